"""``rocket group lag``, ``reset-offset`` and ``clone``: show, reset and copy the offsets of groups.

An offset is the next offset: the first message that the group has not consumed. ``rocket offsets`` has the verbs for
streaming queries, checkpoints and files.

Exit status: 0 success, 1 failure, 2 invalid command line.
Corresponds to mqadmin's consumerProgress, resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import dry_run_option, exclusive, group_name, json_option, watch_option, yes_option
from spark_rocket.cli.commands.group import LATE_MS, group_argument, kind_text, known_group
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column, Table
from spark_rocket.cli.text import count_text, duration_text, fields, moment, number, second_text
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import Failures, GroupKind, GroupState, PlannedReset

_LAG = (
    *show.PLACE,
    Column("consumerOffset", "COMMITTED", spare=True),
    Column("brokerOffset", "END", spare=True),
    Column("lag", form=count_text, right=True),
    Column("delayMs", "BEHIND", form=lambda ms: duration_text(ms) if ms else "-", right=True),
    Column("lastTimestamp", "CONSUMED UP TO", form=second_text, right=False, spare=True),
)
_MEMBER = Column("member")


@click.command()
@group_argument
@connection
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="only this topic")
@click.option("-m", "--members", is_flag=True, help="show the member of each queue (one request per member)")
@json_option
@watch_option
def lag(link: Link, group: str, topic: str | None, members: bool, as_json: bool, watch: float | None) -> int:
    """Show the lag of a group for each queue: in messages, and as the age of its next message."""
    from spark_rocket.client.admin import GroupHistory

    failed: Failures = {}
    with link.admin() as admin:
        known_group(admin, group, failed)
        history, topics = GroupHistory(), set(admin.topics())

        def fetch() -> tuple[object, Table]:
            failed.clear()
            state = admin.group_state(group, topic=topic, failed=failed)
            history.update(time.time(), state, topics)
            rows = _lag_rows(state)
            if members:
                holders = admin.queue_holders(state, failed=failed)
                for row, found in zip(rows, state.queues, strict=True):
                    row["member"] = holders.get(found.queue)
            columns = (*_LAG, _MEMBER) if members else _LAG
            foot = show.failures_text(failed, watch)
            table = _lag_table(state, rows, history.kind, topic)
            return _lag_document(state, rows, history.kind), replace(table, columns=columns, foot=foot)

        show.show_table(fetch, watch, as_json)
    return show.failures(failed)


def _lag_document(state: GroupState, rows: list[dict[str, Any]], kind: GroupKind) -> dict[str, Any]:
    whole = {"group": state.group, "kind": kind.value, "members": len(state.members), "lag": state.lag}
    return whole | {"delayMs": state.delay_ms, "consumeTps": state.consume_tps, "queues": rows}


def _lag_rows(state: GroupState) -> list[dict[str, Any]]:
    names = ("consumer_offset", "broker_offset", "lag", "delay_ms", "last_timestamp")
    return [show.place(found.queue) | fields(found, *names) for found in state.queues]


def _lag_table(state: GroupState, rows: list[dict[str, Any]], kind: GroupKind, topic: str | None) -> Table:
    return Table(
        rows,
        _LAG,
        title=f"{state.group}: {kind_text(state, kind)}",
        total={"topic": "all", "lag": state.lag, "delayMs": state.delay_ms},
        empty="No messages consumed yet." if topic is None else f"No messages of topic {topic} consumed yet.",
        marked=lambda row: row["delayMs"] > LATE_MS,
    )


# --- reset -----------------------------------------------------------------------------------------------------------


def _when(text: str) -> int:
    """A type: a time in ms; 0 for ``earliest``, -1 for ``latest``."""
    ends = {"earliest": 0, "latest": -1}
    return ends[text] if text in ends else moment(text)


@click.command("reset-offset")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", shell_complete=complete_topics, help="the topic")
@click.option(
    "--to",
    "when",
    type=_when,
    metavar="WHEN",
    help="earliest, latest, or a store time: 2026-11-21T08:00 (UTC, or with +01:00), ms since 1970, or -2h (ago)",
)
@click.option("--offset", type=number, metavar="N", help="reset to this offset, in all queues or in --queue")
@click.option("-q", "--queue", metavar="BROKER:ID", help="with --offset: only this queue, as broker-a:3")
@connection
@click.option("--online", is_flag=True, help="reset online members too: brokers notify them")
@dry_run_option
@yes_option
@json_option
def reset_offset(
    link: Link,
    group: str,
    topic: str,
    when: int | None,
    offset: int | None,
    queue: str | None,
    online: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Reset the offsets of a group in a topic to a time, an end or an offset.

    Shows the present and the new offset of each queue, and asks for confirmation. Without --online, a group with online
    members is refused.
    """
    exclusive({"--to": when, "--offset": offset}, required=True)
    if queue is not None and offset is None:
        raise click.UsageError("--queue needs --offset.")
    _check_json(as_json, yes, dry_run)
    with link.admin() as admin:
        if not online and (members := admin.consumers(group, topic)):
            raise ClientError(
                f"Group {group} has {len(members)} member{'s' * (len(members) > 1)} online: {', '.join(members)}.",
                remedy="Stop them first, or use --online: brokers notify them of the new offsets.",
            )
        if offset is None:
            assert when is not None
            plan = admin.plan_reset(group, topic, when)
        else:
            plan = _plan_to(admin, group, topic, offset, queue)
        _show_plan(group, topic, plan, as_json)
        if dry_run:
            return 0
        if not show.confirm(f"Reset group {group} in {len(plan)} queues of {topic}?", yes):
            return 1
        # Reset to the offsets shown. Online members of 4.x can be notified of a time only.
        targets = {planned.queue: planned.target for planned in plan}
        if when is not None and online:
            done = admin.reset_offsets(group, topic, when, online=True)
        else:
            done = admin.reset_offsets_to(group, targets, online=online)
    if not as_json:
        print(f"Reset group {group} in {len(done)} queues.")
    return 0


def _check_json(as_json: bool, yes: bool, dry_run: bool) -> None:
    if as_json and not yes and not dry_run:
        raise click.UsageError("--json needs --yes or --dry-run: it cannot ask for confirmation.")


def _plan_to(admin: Admin, group: str, topic: str, offset: int, queue: str | None) -> list[PlannedReset]:
    from spark_rocket.client.admin import PlannedReset

    committed = admin.committed_offsets(group, topic)
    if queue is None:
        return [PlannedReset(found, before, offset) for found, before in sorted(committed.items())]
    broker, _, number = queue.replace("/", ":").rpartition(":")  # other verbs show BROKER/ID
    for found, before in committed.items():
        if (found.broker_name, str(found.queue_id)) == (broker, number):
            return [PlannedReset(found, before, offset)]
    names = ", ".join(f"{found.broker_name}:{found.queue_id}" for found in sorted(committed))
    raise ClientError(f"Topic {topic} has no queue {queue}.", remedy=f"Its queues: {names}.")


_PLAN = (
    *show.PLACE[1:],
    Column("from", "NOW", right=True),
    Column("to", "THEN"),
    Column("change", "", right=False),
)


def _show_plan(group: str, topic: str, plan: Iterable[PlannedReset], as_json: bool) -> None:
    plan = sorted(plan, key=lambda planned: planned.queue)
    if as_json:
        show.document([show.place(at.queue) | {"from": at.committed, "to": at.target} for at in plan])
        return
    rows = []
    repeated = skipped = 0
    for planned in plan:
        change = 0 if planned.committed is None else planned.target - planned.committed
        repeated, skipped = repeated - min(change, 0), skipped + max(change, 0)
        word = f"{count_text(-change)} repeated" if change < 0 else f"{count_text(change)} skipped" if change else ""
        if planned.committed is None:
            word = "first time"
        rows.append(
            show.place(planned.queue) | {"from": planned.committed, "to": planned.target, "change": word or "same"}
        )
    foot = f"{count_text(repeated)} messages repeated, {count_text(skipped)} skipped"
    show.table(rows, _PLAN, title=f"{group} in {topic}", foot=foot)


# --- clone -----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("source", type=group_name, shell_complete=complete_groups)
@click.argument("target", type=group_name, shell_complete=complete_groups)
@click.option("-t", "--topic", required=True, metavar="TOPIC", shell_complete=complete_topics, help="the topic")
@connection
@dry_run_option
@yes_option
@json_option
def clone(link: Link, source: str, target: str, topic: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Copy the offsets of group SOURCE in a topic to group TARGET. Shows the changes and asks for confirmation."""
    from spark_rocket.client.admin import PlannedReset

    _check_json(as_json, yes, dry_run)
    with link.admin() as admin:
        wanted = {
            queue: offset for queue, offset in admin.committed_offsets(source, topic).items() if offset is not None
        }
        if not wanted:
            raise ClientError(f"Group {source} has no offsets in {topic}.", remedy="Check both names.")
        if members := admin.consumers(target, topic):
            raise ClientError(
                f"Group {target} has {len(members)} members online ({members[0]}, …), which would overwrite its "
                "offsets.",
                remedy="Stop them first.",
            )
        before = admin.committed_offsets(target, topic)
        plan = [PlannedReset(queue, before.get(queue), offset) for queue, offset in wanted.items()]
        _show_plan(target, topic, plan, as_json)
        if dry_run:
            return 0
        if not show.confirm(f"Copy the offsets of group {source} in {topic} to {target}?", yes):
            return 1
        admin.clone_offsets(source, target, topic)
    if not as_json:
        print(f"Copied the offsets of group {source} to {target} in {len(wanted)} queues.")
    return 0
