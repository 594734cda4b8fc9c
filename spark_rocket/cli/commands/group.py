"""``rocket group …``: consumer groups, their members, lag and settings. ``rocket offsets`` changes their offsets.

Exit status: 0 success, 1 failure, 2 invalid command line.
Corresponds to mqadmin's consumerProgress, updateSubGroup, deleteSubGroup, consumerConnection, consumerStatus,
getConsumerConfig.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import all_option, json_option, watch_option, whole, yes_option
from spark_rocket.cli.commands.cluster import MEMBER
from spark_rocket.cli.connect import Link, cluster_option, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column, Table
from spark_rocket.cli.text import camel, escape_controls
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import count_text, duration_text, second_text
from spark_rocket.errors import ClientError
from spark_rocket.model import RETRY_PREFIX

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import Failures, GroupInfo, GroupKind, GroupState
    from spark_rocket.protocol.wire.bodies.base import Body

_OFFSETS = "spark_rocket.cli.commands.offsets"
LATE_MS = 60_000  # a longer delay is highlighted
group_argument = click.argument("group", shell_complete=complete_groups)


@click.group(cls=VerbGroup, aliases={"reset-offset": f"{_OFFSETS}:reset_offset", "clone": f"{_OFFSETS}:clone_offsets"})
def group() -> None:
    """Show consumer groups with members and lag; create, change and delete them. `rocket offsets` resets them."""


# --- listing and showing ---------------------------------------------------------------------------------------------

_LIST = (
    Column("group"),
    Column("members", right=True),
    Column("topics", right=False, form=lambda found: show.cell([t for t in found if not t.startswith(RETRY_PREFIX)])),
    Column("consumeTps", "OUT/s"),
    Column("lag", form=count_text, right=True),
    Column("delayMs", "BEHIND", form=lambda ms: duration_text(ms) if ms else "-", right=True),
    Column("messageModel", "MODEL", spare=True),
    Column("consumeType", "TYPE", spare=True),
    Column("retryMaxTimes", "RETRIES", spare=True),
)


@group.command("list", short_help="list groups with members, topics and lag")
@connection
@all_option
@json_option
@watch_option
def list_groups(link: Link, is_all: bool, as_json: bool, watch: float | None) -> None:
    """List consumer groups: online members, topics, messages per second, lag in messages and time.

    --all includes the groups of brokers and of RocketMQ's tools.
    """
    with link.partial() as (admin, failed):

        def fetch() -> tuple[object, Table]:
            failed.clear()
            infos = [info for info in admin.groups(failed=failed) if is_all or not info.is_system]
            states = admin.group_states([info.name for info in infos], failed=failed)
            rows = [_row(info, states[info.name]) for info in infos]
            return rows, Table(
                rows,
                _LIST,
                foot=show.failures_text(failed, watch),
                empty=show.nothing_text("No consumer groups", failed),
                marked=lambda row: row["delayMs"] > LATE_MS,
            )

        show.show_table(fetch, watch, as_json)


def _row(info: GroupInfo, state: GroupState) -> dict[str, Any]:
    of_state = pick(state, "topics consume_tps lag delay_ms message_model consume_type")
    of_info = pick(info, "retry_max_times ordered") | {"brokers": sorted(info.configs)}
    return {"group": info.name, "members": len(state.members), **of_state, **of_info}


_MEMBERS = (
    Column("clientId", "MEMBER"),
    Column("address"),
    Column("language"),
    Column("version", spare=True),
    Column("brokers", spare=True),
)
_SUBSCRIPTIONS = (
    Column("topic"),
    Column("expression"),
    Column("expressionType", "BY"),
    Column("lag", form=count_text, right=True),
)


@group.command("show", short_help="settings, members and subscriptions of a group")
@group_argument
@connection
@json_option
def show_group(link: Link, group: str, as_json: bool) -> None:
    """Show the settings, members and subscriptions of a consumer group."""
    from spark_rocket.client.admin import GroupHistory

    with link.partial() as (admin, failed):
        info, state = known_group(admin, group, failed)
        history = GroupHistory()
        history.update(time.time(), state, set(admin.topics()))
        members = [pick(member, MEMBER) for member in state.members]
        topics = [_subscription(state, topic) for topic in state.topics]
        configs = {name: camel(asdict(config)) for name, config in sorted(info.configs.items())} if info else {}
        if as_json:
            words = pick(state, "consume_type message_model consume_from_where lag delay_ms")
            words = {"group": group, "kind": history.kind.value, **words}
            show.document({**words, "brokers": configs, "members": members, "subscriptions": topics})
            return
        delay = f", {duration_text(state.delay_ms)} behind" if state.delay_ms else ""
        values: dict[str, object] = {
            "state": kind_text(state, history.kind),
            "lag": f"{count_text(state.lag)} messages{delay}",
        }
        if info is not None:
            enabled = [name for name, config in info.configs.items() if config.consume_enable]
            values |= {
                "attempts": f"{info.retry_max_times + 1}, then a dead letter",
                "in order": info.ordered,
                "can consume": "yes" if len(enabled) == len(info.configs) else f"on {show.cell(sorted(enabled))} only",
                "brokers": sorted(info.configs),
            }
        if state.online:
            values |= {"model": state.message_model, "type": state.consume_type, "starts": state.consume_from_where}
        show.record(values, group)
        print()
        show.table(members, _MEMBERS, empty="No members online.")
        if topics:
            print()
            show.table(topics, _SUBSCRIPTIONS)


def kind_text(state: GroupState, kind: GroupKind) -> str:
    """Describe a group as the console does: with members by their number and rate, else by its kind."""
    count = len(state.members)
    return f"{count} member{'s' * (count > 1)} online, {state.consume_tps:,.1f} messages/s" if count else kind.label


def _subscription(state: GroupState, topic: str) -> dict[str, Any]:
    found = state.subscriptions.get(topic)
    return {
        "topic": topic,
        "expression": found.sub_string if found else None,
        "expressionType": found.expression_type if found else None,
        "lag": state.lag_of(topic),
    }


def known_group(admin: Admin, group: str, failed: Failures | None = None) -> tuple[GroupInfo | None, GroupState]:
    """Return the settings and state of a group. ClientError if no broker knows the group."""
    info = next((info for info in admin.groups(failed=failed) if info.name == group), None)
    state = admin.group_state(group, failed=failed)
    if info is None and not state.queues and not state.members and not failed:
        raise ClientError(f"Unknown group {group!r}.", remedy="`rocket group list` shows the groups.")
    return info, state


# --- lag -----------------------------------------------------------------------------------------------------------

_LAG = (
    *show.PLACE,
    Column("consumerOffset", "COMMITTED", spare=True),
    Column("brokerOffset", "END", spare=True),
    Column("lag", form=count_text, right=True),
    Column("delayMs", "BEHIND", form=lambda ms: duration_text(ms) if ms else "-", right=True),
    Column("lastTimestamp", "CONSUMED UP TO", form=second_text, right=False, spare=True),
)
_MEMBER = Column("member")


@group.command(short_help="lag of a group by queue")
@group_argument
@connection
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="only this topic")
@click.option("-m", "--members", is_flag=True, help="show the member of each queue (one request per member)")
@json_option
@watch_option
def lag(link: Link, group: str, topic: str | None, members: bool, as_json: bool, watch: float | None) -> None:
    """Show the lag of a group for each queue: in messages, and as the age of its next message.

    The title estimates when the group will have caught up: from the brokers' rates of the last minute, and with --watch
    from the observed decrease of the lag.
    """
    from spark_rocket.client.admin import GroupHistory
    from spark_rocket.client.admin.catch_up import CatchUp, seconds_left

    with link.partial() as (admin, failed):
        known_group(admin, group, failed)
        history, topics, catch_up = GroupHistory(), set(admin.topics()), CatchUp()

        def fetch() -> tuple[object, Table]:
            failed.clear()
            state = admin.group_state(group, topic=topic, failed=failed)
            history.update(time.time(), state, topics)
            left = None if failed else catch_up.add(time.time(), state.lag)
            if left is None and not failed:
                left = seconds_left(state.lag, _decrease(admin, state))
            names = "consumer_offset broker_offset lag delay_ms last_timestamp"
            rows = [show.place(found.queue) | pick(found, names) for found in state.queues]
            if members:
                holders = admin.queue_holders(state, failed=failed)
                for row, found in zip(rows, state.queues, strict=True):
                    row["member"] = holders.get(found.queue)
            columns = (*_LAG, _MEMBER) if members else _LAG
            foot = show.failures_text(failed, watch)
            table = _lag_table(state, rows, history.kind, topic, failed)
            if left:
                table = replace(table, title=f"{table.title}; caught up in about {duration_text(round(left * 1000))}")
            document = {"group": group, "kind": history.kind.value, "members": len(state.members)}
            document |= pick(state, "lag delay_ms consume_tps")
            document |= {"catchUpMs": left if left is None else round(left * 1000), "queues": rows}
            return document, replace(table, columns=columns, foot=foot)

        show.show_table(fetch, watch, as_json)


def _decrease(admin: Admin, state: GroupState) -> float:
    """Return how many messages per second the lag decreases, by the brokers' counts of the last minute.

    0 if a broker does not report how many messages arrive.
    """
    refused: Failures = {}
    stats = admin.topics_stats({progress.queue.topic for progress in state.queues}, failed=refused)
    arriving = [table.topic_put_tps for table in stats.values()]
    if refused or None in arriving:
        return 0.0
    return state.consume_tps - sum(rate for rate in arriving if rate)


def _lag_table(
    state: GroupState, rows: list[dict[str, Any]], kind: GroupKind, topic: str | None, failed: Failures
) -> Table:
    of_topic = "" if topic is None else f" of topic {topic}"
    return Table(
        rows,
        _LAG,
        title=f"{state.group}: {kind_text(state, kind)}",
        total={"topic": "all", **pick(state, "lag delay_ms")},
        empty=show.nothing_text(f"No messages{of_topic} consumed yet", failed),
        marked=lambda row: row["delayMs"] > LATE_MS,
    )


# --- members -------------------------------------------------------------------------------------------------------

_HELD = (
    *show.PLACE,
    Column("commitOffset", "COMMITTED"),
    Column("cachedMsgCount", "CACHED", form=count_text, right=True),
    Column("cachedMsgMinOffset", "FROM", spare=True),
    Column("cachedMsgMaxOffset", "TO", spare=True),
)
_RATES = (
    Column("topic"),
    Column("pullTPS", "PULLED/s"),
    Column("consumeOKTPS", "DONE/s"),
    Column("consumeFailedTPS", "FAILED/s"),
    Column("consumeRT", "MS EACH"),
    Column("consumeFailedMsgs", "FAILED IN 1 H", spare=True),
)


@group.command(short_help="queues, rates and threads of a member")
@group_argument
@click.argument("client_id", metavar="[CLIENT_ID]", required=False)
@connection
@click.option("--stacks", is_flag=True, help="include the stacks of its threads")
@json_option
def member(link: Link, group: str, client_id: str | None, stacks: bool, as_json: bool) -> None:
    """Show the queues and rates of a group member, and with --stacks its threads.

    `rocket group show` prints the CLIENT_IDs. You can omit it if the group has one member.
    """
    with link.admin() as admin:
        client_id = client_id or _only_member(admin, group)
        info = admin.consumer_running_info(group, client_id, stacks=stacks)
    queues = [show.place(queue) | _values(held) for queue, held in sorted(info.mq_table.items())]
    rates = [{"topic": topic, **_values(status)} for topic, status in sorted(info.status_table.items())]
    if as_json:
        subscriptions = [_values(subscription) for subscription in info.subscription_set]
        body = {"properties": info.properties, "subscriptionSet": subscriptions, "mqTable": queues}
        show.document(body | {"statusTable": rates, "jstack": info.jstack})
        return
    show.record({name: info.properties[name] for name in sorted(info.properties)}, client_id)
    print()
    show.table(queues, _HELD, empty="No queues assigned.")
    if rates:
        print()
        show.table(rates, _RATES)
    if info.jstack:
        print(f"\n{escape_controls(info.jstack.rstrip())}")


def _only_member(admin: Admin, group: str) -> str:
    _, state = known_group(admin, group)
    ids = [member.client_id for member in state.members]
    if len(ids) == 1:
        return ids[0]
    raise ClientError(
        f"Group {group} has {len(ids) or 'no'} members online{': ' if ids else ''}{', '.join(ids)}.",
        remedy="Specify one of them." if ids else "",
    )


def _values(body: Body) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(body.to_json(standard=True))
    return values


# --- changes ---------------------------------------------------------------------------------------------------------


@group.command(short_help="create or change consumer groups")
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@connection
@click.option(
    "--ordered/--no-ordered",
    default=None,
    help="consume messages of a message group in order (new groups: no)",
)
@click.option(
    "--attempts",
    type=whole(1, 1_000_000, "number of attempts"),
    metavar="N",
    help="delivery attempts before a message becomes a dead letter (new groups: 17)",
)
@cluster_option
def create(
    link: Link, names: tuple[str, ...], ordered: bool | None, attempts: int | None, cluster_name: str | None
) -> None:
    """Create consumer groups on every broker of the name server, or change existing ones."""
    with link.admin() as admin:
        for name in names:
            retries = None if attempts is None else attempts - 1
            admin.create_group(name, ordered=ordered, retry_max_times=retries, cluster=cluster_name)
            print(_description(admin, name))
        show.report_unavailable_masters(admin, cluster_name)


def _description(admin: Admin, name: str) -> str:
    info = next((info for info in admin.groups(failed={}) if info.name == name), None)
    if info is None:
        return f"Group {name} exists."
    return f"Group {name}: at most {info.retry_max_times + 1} delivery attempts{', in order' if info.ordered else ''}."


@group.command(short_help="delete consumer groups")
@click.argument("names", nargs=-1, required=True, metavar="GROUP…", shell_complete=complete_groups)
@connection
@click.option("--keep-offsets", is_flag=True, help="keep the offsets, in case the group is created again")
@click.option("--topics", is_flag=True, help="delete its retry topic and dead letters too")
@cluster_option
@yes_option
def delete(
    link: Link, names: tuple[str, ...], keep_offsets: bool, topics: bool, cluster_name: str | None, yes: bool
) -> None:
    """Delete consumer groups with their settings and offsets, after confirmation."""
    with link.admin() as admin:
        for name in names:
            _, state = known_group(admin, name)
            count = len(state.members)
            online = f" Its {count} online member{'s' * (count > 1)} will create it again." if count else ""
            print(f"Group {name} has a lag of {count_text(state.lag)} messages.{online}")
        them = f"group {names[0]}" if len(names) == 1 else f"these {len(names)} groups"
        what = "settings only" if keep_offsets else "settings and offsets"
        more = ", retry topic and dead letters" if topics else ""
        show.confirm(f"Delete {them}: {what}{more}?", yes)
        for name in names:
            gone = admin.delete_group(name, offsets=not keep_offsets, topics=topics, cluster=cluster_name)
            print(f"Deleted group {name}{', and topics ' + ', '.join(gone) if gone else ''}.")
        show.report_unavailable_masters(admin, cluster_name)
