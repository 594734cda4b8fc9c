"""``rocket topic …``: topics, their routes, contents and settings.

RocketMQ 5 clients never create a topic. The broker's topic settings decide whether a topic accepts ordered, delayed or
transactional messages.

Exit status: 0 success, 1 failure, 2 invalid command line.
Corresponds to mqadmin's updateTopic, deleteTopic, topicList, topicRoute, topicStatus, statsAll, updateTopicPerm,
updateOrderConf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import all_option, bundle, json_option, watch_option, whole, yes_option
from spark_rocket.cli.connect import Link, cluster_option, complete_topics, connection
from spark_rocket.cli.show import Column, Table
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import count_text, second_text
from spark_rocket.errors import BrokerError, RocketError, TopicNotFoundError
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.protocol.wire.bodies.config import TopicConfig

_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_queues = whole(1, 65_536, "number of queues")


def _perm(text: str) -> int:
    """A type: RW, R, W or -; or 6, 4, 2 or 0, like mqadmin."""
    known = {"RW": 6, "WR": 6, "R": 4, "W": 2, "-": 0, "6": 6, "4": 4, "2": 2, "0": 0}
    if text.upper() not in known:
        raise click.BadParameter(f"invalid permission {text!r}: use RW, R, W or - (or 6, 4, 2, 0)")
    return known[text.upper()]


def _type_text(message_type: str) -> str:
    return "any" if message_type == "UNSPECIFIED" else message_type


_topic_argument = click.argument("topic", shell_complete=complete_topics)


def _settings_of(attributes: tuple[str, ...], cluster_name: str | None, **given: Any) -> dict[str, Any]:
    """Return the arguments of Admin's methods."""
    texts = ",".join(text if text[:1] in "+-" else f"+{text}" for text in attributes)
    return {**given, "attributes": texts or None, "cluster": cluster_name}


_setting_options = bundle(
    "given",
    _settings_of,
    click.option("--type", "message_type", type=click.Choice(_TYPES),
                 help="type of messages that gRPC clients can send (any)"),
    click.option("--perm", type=_perm, metavar="PERM", help="permission of clients: RW, R, W or -"),
    click.option("--order/--no-order", default=None,
                 help="keep the number of queues in name servers while a broker is unavailable (updateOrderConf)"),
    click.option("--attribute", "attributes", multiple=True, metavar="+NAME=VALUE",
                 help="topic attribute in Apache's notation; -NAME removes it; repeatable"),
    click.option("--broker", metavar="BROKER", help="only this broker (name or address)"),
    cluster_option,
)  # fmt: skip


@click.group(cls=VerbGroup)
def topic() -> None:
    """List, describe, create, change and delete topics."""


# --- listing and showing ---------------------------------------------------------------------------------------------

_LIST = (
    Column("topic"),
    Column("kind"),
    Column("readQueueNums", "QUEUES"),
    Column("writeQueueNums", "WRITTEN"),
    Column("perm"),
    Column("messageType", "TYPE", form=_type_text),
    Column("brokers", spare=True),
)


@topic.command("list", short_help="list topics with queues and brokers")
@connection
@all_option
@cluster_option
@json_option
def list_topics(link: Link, is_all: bool, cluster_name: str | None, as_json: bool) -> None:
    """List topics. QUEUES is the number of read queues on all brokers, WRITTEN the number of write queues.

    --all includes topics for retries and dead letters, and system topics.
    """
    with link.partial() as (admin, failed):
        topics = admin.topic_list(cluster=cluster_name, failed=failed)
        shown = [info for info in topics if is_all or info.kind == "USER"]
        names = "topic=name kind readQueueNums=read_queues writeQueueNums=write_queues perm order message_type"
        rows = [pick(info, names) | {"brokers": sorted(info.configs)} for info in shown]
        columns = _LIST if is_all else tuple(column for column in _LIST if column.key != "kind")
        hidden = "" if is_all or len(topics) == len(shown) else f" ({len(topics) - len(shown)} more with --all)"
        show.rows(rows, columns, as_json, empty=show.nothing_text(f"No topics{hidden}", failed))


@topic.command("show", short_help="settings, messages and groups of a topic")
@_topic_argument
@connection
@json_option
def show_topic(link: Link, topic: str, as_json: bool) -> None:
    """Show a topic: settings on each broker, number of messages, consumer groups."""
    with link.partial() as (admin, failed):
        route = admin.topic_route(topic)
        state = admin.topic_state(topic, failed=failed)
        names = sorted({queues.broker_name for queues in route.queue_datas} - failed.keys())
        settings = _settings({name: admin.topic_config(topic, broker=name) for name in names})
        groups = admin.groups_of(topic, failed=failed)
        if as_json:
            whole = {"topic": topic, **pick(state, _TOTALS)}
            show.document(whole | {"brokers": settings, "groups": groups})
            return
        shown: dict[str, object] = {
            "messages": f"{count_text(state.messages)} in {len(state.queues)} queues",
            "last stored": second_text(state.last_stored_ms),
            "order": route.order_topic_conf,
            "groups": "\n".join(groups) or "none",
        }
        show.record({name: value for name, value in shown.items() if value}, topic)
        print()
        show.table(settings, _SETTINGS)


_SETTINGS = (
    Column("brokerName", "BROKER"),
    Column("readQueueNums", "QUEUES"),
    Column("writeQueueNums", "WRITTEN"),
    Column("perm"),
    Column("messageType", "TYPE", form=_type_text),
    Column("attributes", form=lambda found: show.cell([f"{name}={value}" for name, value in sorted(found.items())])),
)


def _settings(configs: Mapping[str, TopicConfig | None]) -> list[dict[str, Any]]:
    from spark_rocket.client.admin import TopicRow, perm_text

    names = "broker_name readQueueNums=read_queues writeQueueNums=write_queues order topicSysFlag=sys_flag message_type"
    rows = [TopicRow.of(name, config) for name, config in sorted(configs.items()) if config is not None]
    return [pick(row, f"{names} attributes") | {"perm": perm_text(row.perm)} for row in rows]


_ROUTE = (
    Column("cluster"),
    Column("brokerName", "BROKER"),
    Column("readQueueNums", "QUEUES"),
    Column("writeQueueNums", "WRITTEN"),
    Column("perm"),
    Column("brokerAddrs", "ADDRESSES", form=lambda found: ", ".join(f"{number}: {at}" for number, at in found.items())),
)


@topic.command(short_help="route of a topic: its brokers and queues")
@_topic_argument
@connection
@json_option
def route(link: Link, topic: str, as_json: bool) -> None:
    """Show the route of a topic: brokers with queues and addresses. The address with id 0 is the master's."""
    from spark_rocket.client.admin import perm_text

    with link.admin() as admin:
        found = admin.topic_route(topic)
    brokers = {data.broker_name: data for data in found.broker_datas}
    rows = [
        pick(queues, "broker_name read_queue_nums write_queue_nums")
        | {
            "cluster": data.cluster if data is not None else None,
            "perm": perm_text(queues.perm),
            "brokerAddrs": dict(sorted(data.broker_addrs.items())) if data is not None else {},
        }
        for queues in sorted(found.queue_datas, key=lambda queues: queues.broker_name)
        for data in [brokers.get(queues.broker_name)]
    ]
    show.rows(rows, _ROUTE, as_json, foot=f"Order: {found.order_topic_conf}" if found.order_topic_conf else "")


_TOTALS = "messages lastUpdateTimestamp=last_stored_ms"
_QUEUES = (
    *show.PLACE[1:],
    Column("minOffset", "FIRST"),
    Column("maxOffset", "END"),
    Column("messages", form=count_text, right=True),
    Column("lastUpdateTimestamp", "LAST STORED", form=second_text, right=False),
)
_TOPICS = (
    Column("topic"),
    Column("queues", right=True),
    Column("messages", form=count_text, right=True),
    Column("topicPutTps", "IN/s"),
    Column("lastUpdateTimestamp", "LAST STORED", form=second_text, right=False),
)


@topic.command(short_help="number of messages by queue or topic")
@click.argument("topic", required=False, shell_complete=complete_topics)
@connection
@all_option
@json_option
@watch_option
def stats(link: Link, topic: str | None, is_all: bool, as_json: bool, watch: float | None) -> None:
    """Show offsets and last store time of a topic's queues; without TOPIC, totals of all topics."""
    with link.partial() as (admin, failed):

        def fetch() -> tuple[object, Table]:
            failed.clear()
            if topic is not None:
                state = admin.topic_state(topic, failed=failed)
                rows = [show.place(row.queue) | pick(row, f"min_offset max_offset {_TOTALS}") for row in state.queues]
                total = {"brokerName": "all", **pick(state, _TOTALS)} if len(rows) > 1 else None
                return rows, Table(rows, _QUEUES, total=total, foot=show.failures_text(failed, watch))
            infos = [info for info in admin.topic_list(failed=failed) if is_all or info.kind == "USER"]
            rows = [
                {"topic": name, "queues": len(state.queues)} | pick(state, f"topicPutTps=put_tps {_TOTALS}")
                for name, state in admin.topic_states(infos, failed=failed).items()
            ]
            empty = show.nothing_text("No topics", failed)
            return rows, Table(rows, _TOPICS, foot=show.failures_text(failed, watch), empty=empty)

        show.show_table(fetch, watch, as_json)


# --- changes ---------------------------------------------------------------------------------------------------------


@topic.command(short_help="create topics")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC…")
@connection
@click.option("--queues", type=_queues, default="8", metavar="N", help="read and write queues on each broker (8)")
@click.option(
    "--write-queues",
    type=_queues,
    metavar="N",
    help="number of write queues, if lower: the first step to remove queues of a topic in use",
)
@_setting_options
def create(link: Link, names: tuple[str, ...], queues: int, write_queues: int | None, given: dict[str, Any]) -> None:
    """Create topics on every broker of the name server, or change existing ones."""
    perm = PERM_READ | PERM_WRITE if given["perm"] is None else given["perm"]
    with link.admin() as admin:
        for name in names:
            before = _check_queues(admin, name, queues)
            _check_written(name, queues, write_queues)
            changed = admin.create_topic(
                name, queues, write_queues=write_queues, **{**given, "perm": perm, "order": bool(given["order"])}
            )
            written = "" if write_queues is None else f" ({write_queues} writable)"
            message_type = given["message_type"] or _type_of(admin, name, changed[0])
            was = f" (before: {before})" if before not in (None, queues) else ""
            each = f" on each of {len(changed)} brokers" if len(changed) > 1 else ""
            count = f"{queues} queue{'s' * (queues != 1)}"
            print(f"Topic {name} has {count}{was}{written}{each}, message type: {message_type}.")
        show.report_unavailable_masters(admin, given["cluster"], given["broker"])


@topic.command(short_help="change settings of a topic")
@_topic_argument
@connection
@click.option("--queues", type=_queues, metavar="N", help="read and write queues on each broker")
@click.option("--write-queues", type=_queues, metavar="N", help="number of write queues, if lower")
@_setting_options
@json_option
def update(
    link: Link, topic: str, queues: int | None, write_queues: int | None, given: dict[str, Any], as_json: bool
) -> None:
    """Change settings of a topic on every broker that has it. Other settings stay.

    To remove queues of a topic in use, first reduce the write queues (--write-queues). When every group has consumed
    the messages in the others, reduce the read queues (--queues).
    """
    settings = (given[name] for name in ("message_type", "perm", "order", "attributes"))
    if all(value is None for value in (queues, write_queues, *settings)):
        raise click.UsageError("Give at least one setting to change.")
    with link.admin() as admin:
        if queues is not None:
            _check_queues(admin, topic, queues)
        elif write_queues is not None:
            read = min(data.read_queue_nums for data in admin.topic_route(topic).queue_datas)
            _check_written(topic, read, write_queues)
        written = queues if write_queues is None else write_queues
        changed = admin.update_topic(topic, read_queues=queues, write_queues=written, **given)
        now = _settings({name: admin.topic_config(topic, broker=name) or config for name, config in changed.items()})
        show.rows(now, _SETTINGS, as_json)
        show.report_unavailable_masters(admin, given["cluster"], given["broker"])


@topic.command(short_help="delete topics with their messages")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC…", shell_complete=complete_topics)
@connection
@cluster_option
@yes_option
def delete(link: Link, names: tuple[str, ...], cluster_name: str | None, yes: bool) -> None:
    """Delete topics with all their messages, on brokers and name servers, after confirmation."""
    with link.admin() as admin:
        for name in names:
            messages = admin.topic_state(name).messages
            groups = admin.groups_of(name)
            read = f", consumed by {', '.join(groups)}" if groups else ""
            print(f"Topic {name} has {count_text(messages)} message{'s' * (messages != 1)}{read}.")
        them = f"topic {names[0]}" if len(names) == 1 else f"these {len(names)} topics"
        show.confirm(f"Delete {them} with all messages?", yes)
        for name in names:
            admin.delete_topic(name, cluster=cluster_name)
            print(f"Deleted topic {name}.")
        show.report_unavailable_masters(admin, cluster_name)


def _type_of(admin: Admin, topic: str, broker: str) -> str:
    """Return the message type of a topic that exists; "any" as well if the broker does not respond."""
    try:
        config = admin.topic_config(topic, broker=broker)
    except RocketError:
        config = None
    return (config.attributes.get("message.type") if config is not None else None) or "any"


def _check_queues(admin: Admin, topic: str, queues: int) -> int | None:
    """Refuse to remove writable queues: consumers could not read their messages any more.

    Returns the largest present number of write queues of a broker; None if the topic does not exist.
    """
    try:
        found = max((data.write_queue_nums for data in admin.topic_route(topic).queue_datas), default=0)
    except TopicNotFoundError:
        return None
    if found > queues:
        raise BrokerError(
            f"Topic {topic} has {found} queues: with {queues}, messages in the others would become unreadable.",
            remedy=f"Use --queues {found}. To remove queues, use --queues {found} --write-queues {queues} first, and"
            f" --queues {queues} when every group has consumed the others.",
        )
    return found


def _check_written(topic: str, queues: int, write_queues: int | None) -> None:
    if write_queues is not None and write_queues > queues:
        raise BrokerError(
            f"Topic {topic} would have {queues} read queues and {write_queues} write queues: messages in the others "
            "would be unreadable.",
            remedy=f"Use --queues {write_queues} too.",
        )
