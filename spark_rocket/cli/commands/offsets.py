"""``rocket offsets …``: the offsets of streaming queries and consumer groups, and setting those of groups.

A query continues from its checkpoint and ignores the group's offsets. Those are for other consumers, for new queries
with ``startingOffsets=group``, and for monitoring the lag. These verbs show both, copy offsets from one to the other,
and preview what a replay would read.

An offset is the next offset to read. The JSON is that of ``startingOffsets``. Verbs that change a group show the
changes and ask for confirmation, unless ``--yes`` is given. A group with online consumers is refused, because they
would overwrite its offsets, unless ``--online`` is given. ``rocket group reset-offset`` and ``clone`` are the names
that earlier versions and mqadmin have for ``reset``.

Exit status: 0 success (``diff``: no differences), 1 failure (``diff``: differences), 2 invalid command line.
Corresponds to mqadmin's consumerProgress, resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, bundle, dry_run_option, exclusive, group_name, yes_option
from spark_rocket.cli.commands.message import find_queue
from spark_rocket.cli.commands.sinks import ledger, sinks
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import count_text, limit, moment, moment_text, number
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.errors import ClientError
from spark_rocket.model import RETRY_PREFIX

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.client.admin import Failures, PlannedReset
    from spark_rocket.model import MessageQueue


_checkpoint = click.argument("checkpoint", type=PATH, required=False)
_group = click.option(
    "-g", "--group", type=group_name, metavar="GROUP", shell_complete=complete_groups, help="the consumer group"
)
_group_required = click.option(
    "-g", "--group", type=group_name, required=True, metavar="GROUP", shell_complete=complete_groups,
    help="the consumer group",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="print one JSON object per line instead of a table")


def _topics(meaning: str) -> Callable[[Any], Any]:
    return click.option(
        "-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help=meaning
    )


@dataclass(frozen=True, kw_only=True)
class _Where:
    """The target of ``preview`` and ``reset``: exactly one of these options is given."""

    checkpoint: Path | None = None
    at: int | None = None
    of_group: str | None = None
    file: Path | None = None
    earliest: bool = False
    latest: bool = False
    offset: int | None = None

    @property
    def timestamp_ms(self) -> int | None:
        """The time of a reset of online members, whose brokers know no other one; None if it is not a time."""
        return 0 if self.earliest else -1 if self.latest else self.at


def _where(**given: Any) -> _Where:
    exclusive({f"--{name.replace('_', '-')}": value for name, value in given.items()}, required=True)
    return _Where(**given)


_where_options = bundle(
    "where",
    _where,
    click.option("--checkpoint", type=PATH, metavar="DIR", help="offsets of a query"),
    click.option(
        "--at",
        type=moment,
        metavar="TIME",
        help="offsets of a store time: 2026-11-21T08:00 (UTC, or with +01:00), ms, or 2h (ago; also -2h)",
    ),
    click.option("--of-group", type=group_name, metavar="GROUP", help="offsets of another group"),
    click.option("--file", type=PATH, metavar="FILE", help="offsets as JSON; - for stdin"),
    click.option("--earliest", is_flag=True, help="first available messages"),
    click.option("--latest", is_flag=True, help="ends of the queues"),
    click.option("--offset", type=number, metavar="N", help="this offset"),
)


# --- verbs -----------------------------------------------------------------------------------------------------------


@click.group(cls=VerbGroup)
def offsets() -> None:
    """Offsets of streaming queries (their checkpoints) and of consumer groups (on the brokers)."""


offsets.add_command(sinks)
offsets.add_command(ledger)


@offsets.command("show", short_help="show the offsets and the lag of a checkpoint or a group")
@_checkpoint
@connection
@_json
@_group
@_topics("for a group: only this topic; repeatable")
def show_offsets(
    link: Link, checkpoint: Path | None, group: str | None, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show the offsets and the lag of a checkpoint or a group.

    CHECKPOINT is a query's checkpointLocation.
    """
    rows = _rows(link, checkpoint, group, topics)
    _print(rows, as_json)
    if not as_json and (behind := [row.lag for row in rows if row.lag is not None]):
        print(f"lag: {sum(behind):,} messages in {len(rows)} queues")


@offsets.command(short_help="compare the offsets of a checkpoint and a group")
@click.argument("checkpoint", type=PATH)
@connection
@_json
@_group_required
def diff(link: Link, checkpoint: Path, group: str, as_json: bool) -> int:
    """Show the queues in which a checkpoint and a group differ. Exit status 1 if they differ."""
    rows = [row for row in _rows(link, checkpoint, group) if row.checkpoint != row.group]
    if not rows:
        if not as_json:
            print(f"{checkpoint} and group {group} have the same offsets")
        return 0
    _print(rows, as_json)
    return 1


@offsets.command(short_help="show what a replay would read")
@connection
@_json
@_topics("topic to read; repeatable")
@_where_options
@click.option("-l", "--limit", type=limit, default="3", metavar="N", help="messages to show per queue (3)")
def preview(link: Link, topics: tuple[str, ...], where: _Where, limit: int, as_json: bool) -> None:
    """Show what a replay from these offsets would read, and in which Spark partitions a batch read would."""
    with _connected(link) as (admin, reader):
        positions = _positions(where, topics, reader)
        limits = {queue: ends for queue, ends in _limits(admin, positions).items() if queue in positions}
        starts = {queue: max(low, positions[queue]) for queue, (low, _) in limits.items()}
        partitions = _partitions(starts, {queue: high for queue, (_, high) in limits.items()}, reader)
        total = 0
        for queue, (low, high) in limits.items():
            start = starts[queue]
            total += max(0, high - start)
            found = [] if start >= high else reader.messages(queue, start, max_msgs=limit)
            if as_json:
                first = found[0].store_timestamp if found else None
                values = {"from": start, "to": high, "firstStoreTimestamp": first, "deletedBefore": low}
                show.line(show.place(queue) | values | {"partition": partitions.get(queue)})
                continue
            partition = f", partition {partitions[queue]}" if queue in partitions else ""
            lost = f"; {low - positions[queue]:,} earlier messages have been deleted" if positions[queue] < low else ""
            print(f"{_name(queue)}: {max(0, high - start):,} messages, [{start}, {high}){partition}{lost}")
            for message in found:
                label = " ".join(filter(None, (message.tags, message.keys)))
                print(f"  {message.queue_offset:>10}  {moment_text(message.store_timestamp)}  {label}")
        if not as_json:
            print(f"total: {total:,} messages, Spark partitions: {len({*partitions.values()}):,}")


@offsets.command(short_help="reset a group to a time, an end, an offset, a checkpoint, another group or a file")
@_group_required
@connection
@_json
@_topics("topic; repeatable")
@click.option("-q", "--queue", metavar="BROKER/ID", help="only this queue of the topic")
@_where_options
@click.option("--online", is_flag=True, help="reset online members too: brokers notify them")
@yes_option
@dry_run_option
def reset(
    link: Link,
    group: str,
    topics: tuple[str, ...],
    where: _Where,
    queue: str | None,
    online: bool,
    as_json: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Reset the offsets of a group to a time, an end, an offset, a checkpoint, another group or a file.

    Shows the present and the new offset of each queue, and asks for confirmation. Without --online, a group with online
    members is refused.
    """
    if as_json and not yes and not dry_run:
        raise click.UsageError("--json needs --yes or --dry-run: it cannot ask for confirmation.")
    with _connected(link) as (admin, reader):
        wanted = _positions(where, topics, reader)
        if queue is not None:
            wanted = _only(queue, wanted, topics, admin)
        plan = _plan(admin, group, wanted)
        _show_plan(plan, as_json)
        by_topic = {
            topic: {each.queue: each.target for each in of_topic}
            for topic, of_topic in groupby(plan, key=lambda each: each.queue.topic)
        }
        if not online and (members := sorted({one for topic in by_topic for one in admin.consumers(group, topic)})):
            raise ClientError(
                f"Group {group} has {len(members)} member{'s' * (len(members) > 1)} online: {', '.join(members)}.",
                remedy="Stop them first, or use --online: brokers notify them of the new offsets.",
            )
        if dry_run:
            if not as_json:
                print("Nothing was changed (--dry-run).")
            return
        show.confirm(f"Set the offsets of group {group} in {len(plan)} queues?", yes)
        for topic, targets in by_topic.items():
            # Brokers of 4.x reset online members only to a time.
            if online and queue is None and where.timestamp_ms is not None:
                admin.reset_offsets(group, topic, where.timestamp_ms, online=True)
            else:
                admin.reset_offsets_to(group, targets, online=online)
    if not as_json:
        print(f"Set the offsets of group {group} in {len(plan)} queues.")


def _like_reset(
    name: str, text: str, own: list[click.Parameter], translate: Callable[..., dict[str, Any]], *, drops: set[str]
) -> click.Command:
    """A command with the options of ``reset`` but ``drops``; ``translate`` returns these from its own parameters."""

    def run(**values: Any) -> Any:
        given = {str(parameter.name): values.pop(parameter.name) for parameter in own}
        assert reset.callback is not None
        return reset.callback(**(dict.fromkeys(drops) | values | translate(**given)))

    params = own + [parameter for parameter in reset.params if parameter.name not in drops]
    return click.Command(name, callback=run, params=params, help=text)


def _when(text: str) -> dict[str, Any]:
    return {text: True} if text in ("earliest", "latest") else {"at": moment(text)}


_TARGETS = {field.name for field in fields(_Where)}
import_offsets = _like_reset(
    "import",
    "Set the offsets of a group from FILE, written by export; - for stdin.",
    [click.Argument(["file"], type=PATH)],
    lambda file: {"file": file},
    drops={*_TARGETS, "topics", "queue"},
)
import_offsets.short_help = "set the offsets of a group from a file"
offsets.add_command(import_offsets)
# The names of earlier versions in `rocket group`.
reset_offset = _like_reset(
    "reset-offset",
    "The same as `rocket offsets reset -g GROUP`.",
    [
        click.Argument(["group"], shell_complete=complete_groups),
        click.Option(["--to"], type=_when, metavar="WHEN", help="earliest, latest or a time"),
    ],
    lambda group, to: {"group": group} | (to or {}),
    drops={*_TARGETS, "group"} - {"offset"},
)
clone_offsets = _like_reset(
    "clone",
    "The same as `rocket offsets reset -g TARGET --of-group SOURCE`.",
    [click.Argument([name], type=group_name, shell_complete=complete_groups) for name in ("source", "target")],
    lambda source, target: {"of_group": source, "group": target},
    drops={*_TARGETS, "group"},
)


@offsets.command(short_help="write offsets as JSON for startingOffsets")
@_checkpoint
@connection
@_json
@_group
@_topics("for a group: only this topic; repeatable")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="write to a file instead of stdout")
def export(
    link: Link,
    checkpoint: Path | None,
    group: str | None,
    topics: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write offsets as JSON for startingOffsets. CHECKPOINT is a query's checkpointLocation."""
    from spark_rocket.datasource.stream_offsets import to_tree

    rows = _rows(link, checkpoint, group, topics, queries_brokers=group is not None)
    if checkpoint is None and all(row.offset is None for row in rows):
        raise ClientError(f"Group {group} has no offsets in {', '.join(topics)}.", remedy="Check both names.")
    text = json.dumps(to_tree({row.queue: row.offset for row in rows if row.offset is not None}))
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


def _plan(admin: Admin, group: str, wanted: dict[MessageQueue, int]) -> list[PlannedReset]:
    from spark_rocket.client.admin import PlannedReset

    limits = _limits(admin, wanted)
    committed = {
        queue: at for topic in {q.topic for q in wanted} for queue, at in admin.committed_offsets(group, topic).items()
    }
    plan = []
    for queue, offset in sorted(wanted.items()):
        if queue not in limits:
            others = ", ".join(_name(other) for other in limits if other.topic == queue.topic)
            raise ClientError(f"Unknown queue {_name(queue)}.", remedy=f"The topic has {others}.")
        low, high = limits[queue]
        if not 0 <= offset <= high:
            raise ClientError(
                f"Invalid offset {offset} of {_name(queue)}, which ends at {high}.",
                remedy="Use offsets of the present topic; -1 is the end, -2 the beginning.",
            )
        plan.append(PlannedReset(queue, committed.get(queue), max(offset, low)))
    return plan


# --- reading offsets -------------------------------------------------------------------------------------------------


@contextmanager
def _connected(link: Link) -> Iterator[tuple[Admin, Reader]]:
    with link.admin() as admin, link.reader() as reader:
        yield admin, reader


@dataclass(frozen=True)
class _Row:
    """A queue with the offsets of query and group (None: no offset) and its limits (None: not requested)."""

    queue: MessageQueue
    checkpoint: int | None
    group: int | None
    low: int | None = None
    high: int | None = None

    @property
    def offset(self) -> int | None:
        return self.group if self.checkpoint is None else self.checkpoint

    @property
    def lag(self) -> int | None:
        if self.high is None or self.low is None:
            return None
        return max(0, self.high - max(self.offset or 0, self.low))


def _rows(
    link: Link,
    checkpoint: Path | None,
    group: str | None,
    only: tuple[str, ...] = (),
    *,
    queries_brokers: bool = True,
) -> list[_Row]:
    """Return the queues of a checkpoint, of a group's topics, or of both; with offsets if ``queries_brokers``."""
    positions: dict[MessageQueue, int] = {}
    if checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        positions = read_checkpoint(checkpoint).positions
    elif group is None:
        raise ClientError("Missing checkpoint or group.", remedy="Give a checkpoint directory, or a group with -g.")
    topics = sorted({queue.topic for queue in positions} | set(only))
    if not queries_brokers:
        return [_Row(queue, offset, None) for queue, offset in sorted(positions.items())]
    rows = []
    with _connected(link) as (admin, reader):
        if not topics:
            topics = _topics_of(admin, group or "")
        limits = {queue: ends for topic in topics for queue, ends in admin.offsets(topic).items()}
        for queue in sorted(limits.keys() | positions.keys()):
            committed = None if group is None or queue not in limits else reader.committed_offset(group, queue)
            rows.append(_Row(queue, positions.get(queue), committed, *limits.get(queue, (None, None))))
    return rows


def _limits(admin: Admin, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
    """Return the first offset and the end of all queues of these queues' topics, sorted."""
    topics = sorted({queue.topic for queue in queues})
    return dict(sorted(item for topic in topics for item in admin.offsets(topic).items()))


def _topics_of(admin: Admin, group: str) -> list[str]:
    """Return the topics with an offset of the group at any broker, except its retry topic."""
    failed: Failures = {}
    state = admin.group_states([group], delays=False, failed=failed)[group]
    topics = {found.queue.topic for found in state.queues if found.consumer_offset >= 0}
    topics = {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}
    if not topics:
        raise next(iter(failed.values()), None) or ClientError(
            f"No broker has an offset of group {group}.", remedy="Check its name, or give its topics with -t."
        )
    return sorted(topics)


def _positions(where: _Where, topics: tuple[str, ...], reader: Reader) -> dict[MessageQueue, int]:
    """Resolve the offsets that the command line specifies, only of its topics if any are given."""
    if where.checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        found = read_checkpoint(where.checkpoint).positions
    elif where.file is not None:
        found = _from_file(where.file, reader)
    elif not topics:
        raise ClientError("Missing topic.", remedy="Add --topic.")
    else:
        queues = [queue for topic in topics for queue in reader.queues(topic)]
        if where.of_group is not None:
            others = {queue: reader.committed_offset(where.of_group, queue) for queue in queues}
            found = {queue: offset for queue, offset in others.items() if offset is not None}
        elif where.offset is not None:
            found = dict.fromkeys(queues, where.offset)
        elif where.at is not None:
            found = {queue: reader.offset_for_time(queue, where.at) for queue in queues}
        else:
            end = reader.max_offset if where.latest else reader.min_offset
            found = {queue: end(queue) for queue in queues}
    if topics:
        found = {queue: offset for queue, offset in found.items() if queue.topic in topics}
    if not found:
        raise ClientError("No offsets found.", remedy="Check the names of topic and group.")
    return found


def _only(text: str, wanted: dict[MessageQueue, int], topics: tuple[str, ...], admin: Admin) -> dict[MessageQueue, int]:
    """Return the offsets of one queue of each topic: of those given, else of all that have offsets."""
    chosen = {find_queue(admin, topic, text) for topic in topics or sorted({queue.topic for queue in wanted})}
    found = {queue: offset for queue, offset in wanted.items() if queue in chosen}
    if not found:
        raise ClientError(
            f"No offset for {', '.join(_name(queue) for queue in sorted(chosen))}.",
            remedy=f"There are offsets for {', '.join(_name(queue) for queue in sorted(wanted))}.",
        )
    return found


def _from_file(file: Path, reader: Reader) -> dict[MessageQueue, int]:
    from spark_rocket.datasource.stream_offsets import EARLIEST, LATEST, parse_offsets_option

    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    ends = {LATEST: reader.max_offset, EARLIEST: reader.min_offset}
    found = parse_offsets_option(text, "stdin" if str(file) == "-" else str(file))
    return {
        queue: ends[offset](queue) if offset in ends and queue in reader.queues(queue.topic) else offset
        for queue, offset in found.items()
    }


def _partitions(
    starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], reader: Reader
) -> dict[MessageQueue, int]:
    """Return the number of the partition in which a batch read without other options reads each queue."""
    from spark_rocket.datasource.plan.ranges import OffsetRange
    from spark_rocket.datasource.plan.tasks import combine

    def sizes_of(places: Mapping[MessageQueue, int], count: int) -> dict[MessageQueue, list[int]]:
        asked = {queue: reader.message_sizes_later(queue, start, count) for queue, start in places.items()}
        return {queue: response.result() for queue, response in asked.items() if response.exception() is None}

    ranges = [OffsetRange(queue, start, ends[queue]) for queue, start in starts.items() if start < ends[queue]]
    tasks = combine(ranges, sizes_of)
    return {span.queue: number for number, task in enumerate(tasks) for span in task}


# --- printing --------------------------------------------------------------------------------------------------------


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


_ROWS = (
    *show.PLACE,
    Column("checkpoint", right=True),
    Column("group", right=True),
    Column("min", "FIRST", right=True),
    Column("max", "END", right=True),
    Column("lag", right=True),
)
_CHANGES = (
    *show.PLACE,
    Column("from", "NOW", right=True),
    Column("to", "THEN", right=True),
    Column("change", "", right=False),
)


def _print(rows: Iterable[_Row], is_json: bool) -> None:
    found = [
        show.place(row.queue)
        | {"checkpoint": row.checkpoint, "group": row.group, "min": row.low, "max": row.high, "lag": row.lag}
        for row in rows
    ]
    if is_json:
        for values in found:
            show.line(values)
    else:
        # Omit empty columns.
        known = [column for column in _ROWS if any(values[column.key] is not None for values in found)]
        show.table(found, known or _ROWS)


def _show_plan(plan: list[PlannedReset], is_json: bool) -> None:
    rows = [show.place(each.queue) | {"from": each.committed, "to": each.target} for each in plan]
    changes = [each.change for each in plan]
    if is_json:
        for row, change in zip(rows, changes, strict=True):
            show.line(row | {"again": max(0, -(change or 0))})
        return
    repeated, skipped = (sum(max(sign * (change or 0), 0) for change in changes) for sign in (-1, 1))
    foot = f"{count_text(repeated)} messages repeated, {count_text(skipped)} skipped"
    rows = [row | {"change": _change_text(change)} for row, change in zip(rows, changes, strict=True)]
    show.table(rows, _CHANGES, foot=foot)


def _change_text(change: int | None) -> str:
    if change is None:
        return "first time"
    return f"{count_text(-change)} repeated" if change < 0 else f"{count_text(change)} skipped" if change else "same"
