"""``rocket offsets …``: the offsets of streaming queries and consumer groups, and setting those of groups.

A query continues from its checkpoint and ignores the group's offsets. Those are for other consumers, for new queries
with ``startingOffsets=group``, and for monitoring the lag. These verbs show both, copy offsets from one to the other,
and preview what a replay would read.

An offset is the next offset to read. The JSON is that of ``startingOffsets``. Verbs that change a group show the
changes and ask for confirmation, unless ``--yes`` is given. A group with online consumers is refused, because they
would overwrite its offsets.

Exit status: 0 success (``diff``: no differences), 1 failure (``diff``: differences), 2 invalid command line.
Corresponds to mqadmin's consumerProgress, resetOffsetByTime, cloneGroupOffset.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, dry_run_option, exclusive, group_name, yes_option
from spark_rocket.cli.commands.sinks import ledger, sinks
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import limit, moment, moment_text
from spark_rocket.errors import ClientError
from spark_rocket.model import RETRY_PREFIX

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
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

    checkpoint: Path | None
    at: int | None
    of_group: str | None
    file: Path | None
    earliest: bool
    latest: bool


def _where_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options and pass them as ``where``."""

    @functools.wraps(function)
    def with_where(**values: Any) -> Any:
        given = {field.name: values.pop(field.name) for field in fields(_Where)}
        exclusive({f"--{name.replace('_', '-')}": value for name, value in given.items()}, required=True)
        return function(where=_Where(**given), **values)

    when = "offsets of a store time: 2026-11-21T08:00 (UTC, or with +01:00), ms, or 2h (ago; also -2h)"
    wrapped: Callable[..., Any] = with_where
    for option in (
        click.option("--latest", is_flag=True, help="ends of the queues"),
        click.option("--earliest", is_flag=True, help="first available messages"),
        click.option("--file", type=PATH, metavar="FILE", help="offsets as JSON; - for stdin"),
        click.option("--of-group", type=group_name, metavar="GROUP", help="offsets of another group"),
        click.option("--at", type=moment, metavar="TIME", help=when),
        click.option("--checkpoint", type=PATH, metavar="DIR", help="offsets of a query"),
    ):
        wrapped = option(wrapped)
    return wrapped


# --- verbs -----------------------------------------------------------------------------------------------------------


@click.group()
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
    with _connected(link) as (_, reader):
        positions = _positions(where, topics, reader)
        limits = {queue: (reader.min_offset(queue), reader.max_offset(queue)) for queue in sorted(positions)}
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


@offsets.command(short_help="set the offsets of a group from a checkpoint, a time, another group or a file")
@_group_required
@connection
@_json
@_topics("topic; repeatable")
@_where_options
@yes_option
@dry_run_option
def reset(
    link: Link, group: str, topics: tuple[str, ...], where: _Where, as_json: bool, yes: bool, dry_run: bool
) -> int:
    """Set the offsets of a group from a checkpoint, a time, another group or a file."""
    with _connected(link) as (admin, reader):
        change = _Change(admin, reader, group, as_json=as_json, yes=yes, dry_run=dry_run)
        return change.to(_positions(where, topics, reader))


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
    from spark_rocket.datasource.offsets import to_tree

    rows = _rows(link, checkpoint, group, topics, queries_brokers=group is not None)
    if checkpoint is None and all(row.offset is None for row in rows):
        raise ClientError(f"Group {group} has no offsets in {', '.join(topics)}.", remedy="Check both names.")
    text = json.dumps(to_tree({row.queue: row.offset for row in rows if row.offset is not None}))
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


@offsets.command("import", short_help="set the offsets of a group from a file")
@click.argument("file", type=PATH)
@connection
@_json
@_group_required
@yes_option
@dry_run_option
def import_offsets(link: Link, file: Path, group: str, as_json: bool, yes: bool, dry_run: bool) -> int:
    """Set the offsets of a group from FILE, written by export; - for stdin."""
    with _connected(link) as (admin, reader):
        change = _Change(admin, reader, group, as_json=as_json, yes=yes, dry_run=dry_run)
        return change.to(_from_file(file, reader))


@dataclass(frozen=True)
class _Change:
    """A change of a group's offsets."""

    admin: Admin
    reader: Reader
    group: str
    as_json: bool
    yes: bool
    dry_run: bool

    def to(self, wanted: dict[MessageQueue, int]) -> int:
        """Show the changes, ask for confirmation, and apply them; return the exit status."""
        reader, group = self.reader, self.group
        changes = []
        existing = {queue for topic in {queue.topic for queue in wanted} for queue in reader.queues(topic)}
        for queue, offset in sorted(wanted.items()):
            if queue not in existing:
                others = ", ".join(_name(other) for other in sorted(existing) if other.topic == queue.topic)
                raise ClientError(f"Unknown queue {_name(queue)}.", remedy=f"The topic has {others}.")
            low, high = reader.min_offset(queue), reader.max_offset(queue)
            if not 0 <= offset <= high:
                raise ClientError(
                    f"Invalid offset {offset} of {_name(queue)}, which ends at {high}.",
                    remedy="Use offsets of the present topic; -1 is the end, -2 the beginning.",
                )
            changes.append((_Row(queue, None, reader.committed_offset(group, queue), low, high), offset))
        _print_changes(changes, self.as_json)
        for topic in sorted({queue.topic for queue in wanted}):
            if online := self.admin.consumers(group, topic):
                raise ClientError(
                    f"Group {group} has {len(online)} consumers online ({online[0]}, …), which would overwrite its "
                    "offsets.",
                    remedy="Stop them first.",
                )
        if self.dry_run:
            if not self.as_json:
                print("Nothing was changed (--dry-run).")
            return 0
        if not show.confirm(f"Set the offsets of group {group} in {len(changes)} queues?", self.yes):
            return 1
        for row, offset in changes:
            reader.commit_offset(group, row.queue, offset)
        if not self.as_json:
            print(f"Set the offsets of group {group} in {len(changes)} queues.")
        return 0


# --- reading offsets -------------------------------------------------------------------------------------------------


@contextmanager
def _connected(link: Link) -> Iterator[tuple[Admin, Reader]]:
    """Open an admin and a reader for the given name server, or the environment's."""
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
        """The query's offset if a checkpoint is given, else the group's."""
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
        queues = {queue for topic in topics for queue in reader.queues(topic)}
        for queue in sorted(queues | positions.keys()):
            if queue not in queues:
                rows.append(_Row(queue, positions[queue], None))
                continue
            committed = None if group is None else reader.committed_offset(group, queue)
            low, high = reader.min_offset(queue), reader.max_offset(queue)
            rows.append(_Row(queue, positions.get(queue), committed, low, high))
    return rows


def _topics_of(admin: Admin, group: str) -> list[str]:
    """Return the topics with an offset of the group at any broker, except its retry topic."""
    topics: set[str] = set()
    unavailable: ClientError | None = None
    for name in admin.cluster_info().broker_addr_table:
        try:
            stats = admin.consume_stats(group, broker=name)
        except ClientError as error:
            if error.response_code is None:
                unavailable = error
            continue  # brokers respond with an error if there are no offsets
        topics |= {queue.topic for queue, found in stats.offset_table.items() if found.consumer_offset >= 0}
    topics = {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}
    if not topics:
        raise unavailable or ClientError(
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


def _from_file(file: Path, reader: Reader) -> dict[MessageQueue, int]:
    from spark_rocket.datasource.offsets import EARLIEST, LATEST, parse_offsets_option

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
        return {queue: answer.result() for queue, answer in asked.items() if answer.exception() is None}

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
    Column("change", right=False),
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


def _print_changes(changes: list[tuple[_Row, int]], is_json: bool) -> None:
    rows: list[dict[str, object]] = []
    for row, offset in changes:
        if is_json:
            show.line(show.place(row.queue) | {"from": row.group, "to": offset, "again": _repeated(row, offset)})
            continue
        change = offset - (row.low or 0 if row.group is None else row.group)
        word = f"{-change:,} repeated" if change < 0 else f"{change:,} skipped" if change else "same"
        rows.append(show.place(row.queue) | {"from": row.group, "to": offset, "change": word})
    if not is_json:
        show.table(rows, _CHANGES)


def _repeated(row: _Row, offset: int) -> int:
    return max(0, (row.group or 0) - offset)
