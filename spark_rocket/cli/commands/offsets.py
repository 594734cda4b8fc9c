"""``rocket offsets …``: where a streaming query is, where a consumer group is, and setting the second.

A query goes on from its checkpoint, whatever the group says; a group's offsets are for everybody else: other consumers,
a new query with ``startingOffsets=group``, and whoever looks at the lag. These verbs show both side by side, carry one
over to the other, and say beforehand what reading again from somewhere would read.

Offsets are next offsets, and their JSON is that of ``startingOffsets``. What changes a group says what it will do and
asks, or takes ``--yes``; a group with consumers online is refused, since they would write over it.

Exit status: 0 done (``diff``: nothing differs), 1 it could not be done (``diff``: something differs), 2 the command
line is wrong. Corresponds to mqadmin's consumerProgress, resetOffsetByTime, cloneGroupOffset.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, dry_run_option, exclusive, group_name, yes_option
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import camel, count_text, limit, moment, moment_text, second_text
from spark_rocket.errors import ClientError, RocketError
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
_json = click.option("--json", "as_json", is_flag=True, help="one JSON object a line instead of a table")


def _topics(meaning: str) -> Callable[[Any], Any]:
    return click.option(
        "-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help=meaning
    )


@dataclass(frozen=True, kw_only=True)
class _Where:
    """The places that ``preview`` and ``reset`` can be told, of which one is given."""

    checkpoint: Path | None
    at: int | None
    of_group: str | None
    file: Path | None
    earliest: bool
    latest: bool


def _where_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and hands them on as ``where``."""

    @functools.wraps(function)
    def with_where(**values: Any) -> Any:
        given = {field.name: values.pop(field.name) for field in fields(_Where)}
        exclusive({f"--{name.replace('_', '-')}": value for name, value in given.items()}, required=True)
        return function(where=_Where(**given), **values)

    when = "stored since: 2026-11-21T08:00 (UTC, or with +01:00), ms, or 2h (ago; also -2h)"
    wrapped: Callable[..., Any] = with_where
    for option in (
        click.option("--latest", is_flag=True, help="the ends"),
        click.option("--earliest", is_flag=True, help="the first messages that there are"),
        click.option("--file", type=PATH, metavar="FILE", help="offsets as JSON; - is stdin"),
        click.option("--of-group", type=group_name, metavar="GROUP", help="where another group is"),
        click.option("--at", type=moment, metavar="TIME", help=when),
        click.option("--checkpoint", type=PATH, metavar="DIR", help="where a query is"),
    ):
        wrapped = option(wrapped)
    return wrapped


# --- the actions ---------------------------------------------------------------------------------------------------


@click.group()
def offsets() -> None:
    """Offsets of streaming queries (their checkpoints) and of consumer groups (on the brokers)."""


@offsets.command("show", short_help="a checkpoint's or a group's offsets, and what is left to read")
@_checkpoint
@connection
@_json
@_group
@_topics("of a group: in this topic only (may be given several times)")
def show_offsets(
    link: Link, checkpoint: Path | None, group: str | None, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show a checkpoint's or a group's offsets, and what is left to read.

    CHECKPOINT is a query's checkpointLocation.
    """
    rows = _rows(link, checkpoint, group, topics)
    _print(rows, as_json)
    if not as_json and (behind := [row.lag for row in rows if row.lag is not None]):
        print(f"{sum(behind):,} messages left to read in {len(rows)} queues")


@offsets.command(short_help="where a checkpoint and a group differ")
@click.argument("checkpoint", type=PATH)
@connection
@_json
@_group_required
def diff(link: Link, checkpoint: Path, group: str, as_json: bool) -> int:
    """Show where a checkpoint and a group differ. Exit status 1 if they do."""
    rows = [row for row in _rows(link, checkpoint, group) if row.checkpoint != row.group]
    if not rows:
        if not as_json:
            print(f"{checkpoint} and the group {group} are at the same offsets")
        return 0
    _print(rows, as_json)
    return 1


@offsets.command(short_help="what reading again from somewhere would read")
@connection
@_json
@_topics("the topic to read (may be given several times)")
@_where_options
@click.option("-l", "--limit", type=limit, default="3", metavar="N", help="messages shown of a queue (3)")
def preview(link: Link, topics: tuple[str, ...], where: _Where, limit: int, as_json: bool) -> None:
    """Say what reading again from somewhere would read."""
    with _connected(link) as (_, reader):
        positions = _positions(where, topics, reader)
        total = 0
        for queue, offset in sorted(positions.items()):
            low, high = reader.min_offset(queue), reader.max_offset(queue)
            start = max(low, offset)
            total += max(0, high - start)
            found = [] if start >= high else reader.messages(queue, start, max_msgs=limit)
            if as_json:
                first = found[0].store_timestamp if found else None
                show.line(
                    show.place(queue) | {"from": start, "to": high, "firstStoreTimestamp": first, "deletedBefore": low}
                )
                continue
            lost = f", and {low - offset:,} that were there are deleted" if offset < low else ""
            print(f"{_name(queue)}: {max(0, high - start):,} messages, [{start}, {high}){lost}")
            for message in found:
                label = " ".join(filter(None, (message.tags, message.keys)))
                print(f"  {message.queue_offset:>10}  {moment_text(message.store_timestamp)}  {label}")
        if not as_json:
            print(f"{total:,} messages would be read")


@offsets.command(short_help="set a group from a checkpoint, a time, another group or a file")
@_group_required
@connection
@_json
@_topics("the topic (may be given several times)")
@_where_options
@yes_option
@dry_run_option
def reset(
    link: Link, group: str, topics: tuple[str, ...], where: _Where, as_json: bool, yes: bool, dry_run: bool
) -> int:
    """Set a group from a checkpoint, a time, another group or a file."""
    with _connected(link) as (admin, reader):
        change = _Change(admin, reader, group, as_json=as_json, yes=yes, dry_run=dry_run)
        return change.to(_positions(where, topics, reader))


@offsets.command(short_help="write offsets as JSON, as startingOffsets takes them")
@_checkpoint
@connection
@_json
@_group
@_topics("of a group: in this topic only (may be given several times)")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="a file instead of stdout")
def export(
    link: Link,
    checkpoint: Path | None,
    group: str | None,
    topics: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write offsets as JSON, as startingOffsets takes them. CHECKPOINT is a query's checkpointLocation."""
    from spark_rocket.datasource.offsets import to_tree

    rows = _rows(link, checkpoint, group, topics, is_asking=group is not None)
    if checkpoint is None and all(row.offset is None for row in rows):
        raise ClientError(f"the group {group} has no offsets in {', '.join(topics)}.", remedy="Check both names.")
    text = json.dumps(to_tree({row.queue: row.offset for row in rows if row.offset is not None}))
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


@offsets.command(short_help="what exactly-once writes have published, and what is left")
@connection
@_json
@click.option("--ledger", default="ROCKET_SINK_LEDGER", metavar="TOPIC", help="the option ledgerTopic of the writes")
@click.option("--staging", default="ROCKET_SINK_STAGING", metavar="TOPIC", help="their option stagingTopic")
def sinks(link: Link, ledger: str, staging: str, as_json: bool) -> int:
    """Show the last micro-batch of each query that writes with deliveryGuarantee=exactlyOnce.

    DONE: it is published. PREPARED or RESUMED: a driver publishes it, or died; restart the query before STAGED UNTIL,
    when the brokers delete its staged rows. Newer version: a newer spark_rocket writes the query; use that one here.
    Exit status 1 if a micro-batch has duplicates.
    """
    from spark_rocket.datasource.exactly_once.status import sink_statuses

    with _connected(link) as (admin, reader):
        statuses = sink_statuses(reader, ledger)
        hours = _kept_hours(admin, reader, staging) if any(each.prepared for each in statuses) else None
    rows = []
    for each in statuses:
        until = each.prepared + hours * 3_600_000 if each.state != "DONE" and each.prepared and hours else None
        rows.append(camel(asdict(each)) | {"stagedUntil": until})
    columns = (
        Column("query"), Column("batch"), Column("state"), Column("time", form=second_text), Column("blocks"),
        Column("rows", form=count_text), Column("published", form=count_text), Column("duplicates"), Column("ms"),
        Column("stagedUntil", "STAGED UNTIL", form=second_text),
    )  # fmt: skip
    show.rows(rows, columns, as_json, empty="No query has written exactly once with this ledger.")
    return 1 if any(each.duplicates for each in statuses) else 0


def _kept_hours(admin: Admin, reader: Reader, staging: str) -> int | None:
    """How long the brokers of a topic keep messages at least; None if they do not say."""
    try:
        brokers = {queue.broker_name for queue in reader.refresh(staging)}
        return min(int(admin.broker_config(broker)["fileReservedTime"]) for broker in brokers)
    except (RocketError, KeyError, ValueError):
        return None


@offsets.command("import", short_help="set a group to the offsets of a file")
@click.argument("file", type=PATH)
@connection
@_json
@_group_required
@yes_option
@dry_run_option
def import_offsets(link: Link, file: Path, group: str, as_json: bool, yes: bool, dry_run: bool) -> int:
    """Set a group to the offsets of FILE, which export wrote; - is stdin."""
    with _connected(link) as (admin, reader):
        change = _Change(admin, reader, group, as_json=as_json, yes=yes, dry_run=dry_run)
        return change.to(_from_file(file, reader))


@dataclass(frozen=True)
class _Change:
    """Of a group's offsets."""

    admin: Admin
    reader: Reader
    group: str
    as_json: bool
    yes: bool
    dry_run: bool

    def to(self, wanted: dict[MessageQueue, int]) -> int:
        """Say what will be, ask, and do it."""
        reader, group = self.reader, self.group
        changes = []
        there = {queue for topic in {queue.topic for queue in wanted} for queue in reader.queues(topic)}
        for queue, offset in sorted(wanted.items()):
            if queue not in there:
                others = ", ".join(_name(other) for other in sorted(there) if other.topic == queue.topic)
                raise ClientError(f"there is no queue {_name(queue)}.", remedy=f"The topic has {others}.")
            low, high = reader.min_offset(queue), reader.max_offset(queue)
            if not 0 <= offset <= high:
                raise ClientError(
                    f"{_name(queue)} ends at {high}, and the group would be set to {offset}.",
                    remedy="Use offsets of this topic as it is now; -1 is the end, -2 the beginning.",
                )
            changes.append((_Row(queue, None, reader.committed_offset(group, queue), low, high), offset))
        _print_changes(changes, self.as_json)
        for topic in sorted({queue.topic for queue in wanted}):
            if online := self.admin.consumers(group, topic):
                raise ClientError(
                    f"the group {group} has {len(online)} consumers online ({online[0]}, …), which would write "
                    "over its offsets.",
                    remedy="Stop them first.",
                )
        if self.dry_run:
            if not self.as_json:
                print("nothing was changed")
            return 0
        if not show.confirm(f"Set the group {group} in {len(changes)} queues?", self.yes):
            return 1
        for row, offset in changes:
            reader.commit_offset(group, row.queue, offset)
        if not self.as_json:
            print(f"the group {group} is set in {len(changes)} queues")
        return 0


# --- what is asked -------------------------------------------------------------------------------------------------


@contextmanager
def _connected(link: Link) -> Iterator[tuple[Admin, Reader]]:
    """An admin and a reader of the name server that is named, or of the environment's."""
    with link.admin() as admin, link.reader() as reader:
        yield admin, reader


@dataclass(frozen=True)
class _Row:
    """A queue, where the query and the group are in it (None: nowhere), and what is there (None: nobody was asked)."""

    queue: MessageQueue
    checkpoint: int | None
    group: int | None
    low: int | None = None
    high: int | None = None

    @property
    def offset(self) -> int | None:
        """The query's offset if a checkpoint was named, else the group's."""
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
    is_asking: bool = True,
) -> list[_Row]:
    """The queues of a checkpoint, of a group's topics, or of both. Brokers are asked unless they need not be."""
    positions: dict[MessageQueue, int] = {}
    if checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        positions = read_checkpoint(checkpoint).positions
    elif group is None:
        raise ClientError("there is nothing to show.", remedy="Name a checkpoint directory, or a group.")
    topics = sorted({queue.topic for queue in positions} | set(only))
    if not is_asking:
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
    """The topics of which any broker has an offset of the group, but for its retries."""
    topics: set[str] = set()
    away: ClientError | None = None
    for name in admin.cluster_info().broker_addr_table:
        try:
            stats = admin.consume_stats(group, broker=name)
        except ClientError as error:
            if error.response_code is None:
                away = error
            continue  # that there are none is an error to brokers
        topics |= {queue.topic for queue, found in stats.offset_table.items() if found.consumer_offset >= 0}
    topics = {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}
    if not topics:
        raise away or ClientError(
            f"no broker has an offset of the group {group}.", remedy="Check its name, or name its topics with -t."
        )
    return sorted(topics)


def _positions(where: _Where, topics: tuple[str, ...], reader: Reader) -> dict[MessageQueue, int]:
    """The positions that the command line names, of its topics if it names any."""
    if where.checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        found = read_checkpoint(where.checkpoint).positions
    elif where.file is not None:
        found = _from_file(where.file, reader)
    elif not topics:
        raise ClientError("no topic is named.", remedy="Add --topic.")
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
        raise ClientError("there are no offsets there.", remedy="Check the names of topic and group.")
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


# --- printing ------------------------------------------------------------------------------------------------------


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


_ROWS = (
    *show.PLACE,
    Column("checkpoint", right=True),
    Column("group", right=True),
    Column("min", "FIRST", right=True),
    Column("max", "END", right=True),
    Column("lag", "LEFT", right=True),
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
        # Without what nothing is known of.
        known = [column for column in _ROWS if any(values[column.key] is not None for values in found)]
        show.table(found, known or _ROWS)


def _print_changes(changes: list[tuple[_Row, int]], is_json: bool) -> None:
    rows: list[dict[str, object]] = []
    for row, offset in changes:
        if is_json:
            show.line(show.place(row.queue) | {"from": row.group, "to": offset, "again": _again(row, offset)})
            continue
        change = offset - (row.low or 0 if row.group is None else row.group)
        word = f"{-change:,} again" if change < 0 else f"{change:,} skipped" if change else "same"
        rows.append(show.place(row.queue) | {"from": row.group, "to": offset, "change": word})
    if not is_json:
        show.table(rows, _CHANGES)


def _again(row: _Row, offset: int) -> int:
    return max(0, (row.group or 0) - offset)
