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

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_rocket.cli.text import limit, moment, moment_text, print_table
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.model import MessageQueue


def add_offsets(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its actions."""
    offsets = verbs.add_parser(
        "offsets",
        help="where queries and groups are; set, copy and preview it",
        description="Offsets of streaming queries (their checkpoints) and of consumer groups (on the brokers).",
    )
    actions = offsets.add_subparsers(title="commands", required=True, metavar="COMMAND")

    show = _action(actions, "show", _show, "a checkpoint's or a group's offsets, and what is left to read")
    _add_checkpoint(show)
    _add_group(show)
    _add_topic(show, "of a group: in this topic only (may be given several times)")

    diff = _action(actions, "diff", _diff, "where a checkpoint and a group differ")
    diff.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    _add_group(diff, required=True)

    preview = _action(actions, "preview", _preview, "what reading again from somewhere would read")
    _add_topic(preview, "the topic to read (may be given several times)")
    _add_where(preview)
    preview.add_argument("-l", "--limit", type=limit, default=3, metavar="N", help="messages shown of a queue (3)")

    reset = _action(actions, "reset", _reset, "set a group from a checkpoint, a time, another group or a file")
    _add_group(reset, required=True)
    _add_topic(reset, "the topic (may be given several times)")
    _add_where(reset)
    _add_yes(reset)

    export = _action(actions, "export", _export, "write offsets as JSON, as startingOffsets takes them")
    _add_checkpoint(export)
    _add_group(export)
    _add_topic(export, "of a group: in this topic only (may be given several times)")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="a file instead of stdout")

    taken = _action(actions, "import", _import, "set a group to the offsets of a file")
    taken.add_argument("file", type=Path, metavar="FILE", help="what export wrote; - is stdin")
    _add_group(taken, required=True)
    _add_yes(taken)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    action.add_argument("-n", "--nameserver", metavar="ADDR", help="host:port, several with ';' between")
    action.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    action.set_defaults(run=run)
    return action


def _add_checkpoint(action: argparse.ArgumentParser) -> None:
    action.add_argument("checkpoint", type=Path, nargs="?", metavar="CHECKPOINT", help="a query's checkpointLocation")


def _add_group(action: argparse.ArgumentParser, *, required: bool = False) -> None:
    action.add_argument("-g", "--group", type=_group, required=required, metavar="GROUP", help="the consumer group")


def _add_topic(action: argparse.ArgumentParser, meaning: str) -> None:
    action.add_argument("-t", "--topic", action="append", default=[], metavar="TOPIC", help=meaning)


def _add_where(action: argparse.ArgumentParser) -> None:
    where = action.add_mutually_exclusive_group(required=True)
    where.add_argument("--checkpoint", type=Path, metavar="DIR", help="where a query is")
    when = "stored since: 2026-11-21T08:00 (local, or with +00:00 or Z), ms, or 2h (ago; also --at=-2h)"
    where.add_argument("--at", type=moment, metavar="TIME", help=when)
    where.add_argument("--of-group", type=_group, metavar="GROUP", help="where another group is")
    where.add_argument("--file", type=Path, metavar="FILE", help="offsets as JSON; - is stdin")
    where.add_argument("--earliest", action="store_true", help="the first messages that there are")
    where.add_argument("--latest", action="store_true", help="the ends")


def _add_yes(action: argparse.ArgumentParser) -> None:
    action.add_argument("--yes", action="store_true", help="do not ask")
    action.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _group(text: str) -> str:
    from spark_rocket.client.validators import check_group

    try:
        return check_group(text)
    except ClientError as error:
        raise argparse.ArgumentTypeError(f"{error.message} {error.remedy}") from None


# --- the actions ---------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    rows = _rows(options)
    _print(rows, options.json)
    if not options.json and (behind := [row.lag for row in rows if row.lag is not None]):
        print(f"{sum(behind):,} messages left to read in {len(rows)} queues")
    return 0


def _diff(options: argparse.Namespace) -> int:
    rows = [row for row in _rows(options) if row.checkpoint != row.group]
    if not rows:
        if not options.json:
            print(f"{options.checkpoint} and the group {options.group} are at the same offsets")
        return 0
    _print(rows, options.json)
    return 1


def _export(options: argparse.Namespace) -> int:
    from spark_rocket.datasource.offsets import to_tree

    rows = _rows(options, is_asking=options.group is not None)
    if options.checkpoint is None and all(row.offset is None for row in rows):
        raise ClientError(
            f"the group {options.group} has no offsets in {', '.join(options.topic)}.", remedy="Check both names."
        )
    text = json.dumps(to_tree({row.queue: row.offset for row in rows if row.offset is not None}))
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _preview(options: argparse.Namespace) -> int:
    with _connected(options) as (_, reader):
        positions = _where(options, reader)
        total = 0
        for queue, offset in sorted(positions.items()):
            low, high = reader.min_offset(queue), reader.max_offset(queue)
            start = max(low, offset)
            total += max(0, high - start)
            found = [] if start >= high else reader.messages(queue, start, max_msgs=options.limit)
            if options.json:
                first = found[0].store_timestamp if found else None
                _print_json(queue, {"from": start, "to": high, "firstStoreTimestamp": first, "deletedBefore": low})
                continue
            lost = f", and {low - offset:,} that were there are deleted" if offset < low else ""
            print(f"{_name(queue)}: {max(0, high - start):,} messages, [{start}, {high}){lost}")
            for message in found:
                label = " ".join(filter(None, (message.tags, message.keys)))
                print(f"  {message.queue_offset:>10}  {moment_text(message.store_timestamp)}  {label}")
        if not options.json:
            print(f"{total:,} messages would be read")
    return 0


def _reset(options: argparse.Namespace) -> int:
    with _connected(options) as (admin, reader):
        return _set(options, admin, reader, _where(options, reader))


def _import(options: argparse.Namespace) -> int:
    with _connected(options) as (admin, reader):
        return _set(options, admin, reader, _from_file(options.file, reader))


def _set(options: argparse.Namespace, admin: Admin, reader: Reader, wanted: dict[MessageQueue, int]) -> int:
    """Say what will be, ask, and do it."""
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
        changes.append((_Row(queue, None, reader.committed_offset(options.group, queue), low, high), offset))
    _print_changes(changes, options.json)
    for topic in sorted({queue.topic for queue in wanted}):
        if online := admin.consumers(options.group, topic):
            raise ClientError(
                f"the group {options.group} has {len(online)} consumers online ({online[0]}, …), which would write "
                "over its offsets.",
                remedy="Stop them first.",
            )
    if options.dry_run:
        if not options.json:
            print("nothing was changed")
        return 0
    if not options.yes and not _agreed(f"Set the group {options.group} in {len(changes)} queues?"):
        print("nothing was changed", file=sys.stderr)
        return 1
    for row, offset in changes:
        reader.commit_offset(options.group, row.queue, offset)
    if not options.json:
        print(f"the group {options.group} is set in {len(changes)} queues")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        print(f"rocket: {question} There is nobody to ask: add --yes, or --dry-run.", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


# --- what is asked -------------------------------------------------------------------------------------------------


@contextmanager
def _connected(options: argparse.Namespace) -> Iterator[tuple[Admin, Reader]]:
    """An admin and a reader of the name server that is named, or of the environment's."""
    from spark_rocket.client import Admin, Reader

    with Admin(options.nameserver) as admin, Reader(options.nameserver) as reader:
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


def _rows(options: argparse.Namespace, *, is_asking: bool = True) -> list[_Row]:
    """The queues of a checkpoint, of a group's topics, or of both. Brokers are asked unless they need not be."""
    positions: dict[MessageQueue, int] = {}
    if options.checkpoint is not None:
        from spark_rocket.datasource.checkpoint import read_checkpoint

        positions = read_checkpoint(options.checkpoint).positions
    elif options.group is None:
        raise ClientError("there is nothing to show.", remedy="Name a checkpoint directory, or a group.")
    topics = sorted({queue.topic for queue in positions} | set(getattr(options, "topic", [])))
    if not is_asking:
        return [_Row(queue, offset, None) for queue, offset in sorted(positions.items())]
    rows = []
    with _connected(options) as (admin, reader):
        if not topics:
            topics = _topics_of(admin, options.group)
        queues = {queue for topic in topics for queue in reader.queues(topic)}
        for queue in sorted(queues | positions.keys()):
            if queue not in queues:
                rows.append(_Row(queue, positions[queue], None))
                continue
            committed = None if options.group is None else reader.committed_offset(options.group, queue)
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
    topics = {topic for topic in topics if not topic.startswith("%RETRY%")}
    if not topics:
        raise away or ClientError(
            f"no broker has an offset of the group {group}.", remedy="Check its name, or name its topics with -t."
        )
    return sorted(topics)


def _where(options: argparse.Namespace, reader: Reader) -> dict[MessageQueue, int]:
    """The positions that the command line names, of its topics if it names any."""
    if options.checkpoint is not None:
        from spark_rocket.datasource.checkpoint import read_checkpoint

        found = read_checkpoint(options.checkpoint).positions
    elif options.file is not None:
        found = _from_file(options.file, reader)
    elif not options.topic:
        raise ClientError("no topic is named.", remedy="Add --topic.")
    else:
        queues = [queue for topic in options.topic for queue in reader.queues(topic)]
        if options.of_group is not None:
            others = {queue: reader.committed_offset(options.of_group, queue) for queue in queues}
            found = {queue: offset for queue, offset in others.items() if offset is not None}
        elif options.at is not None:
            found = {queue: reader.offset_for_time(queue, options.at) for queue in queues}
        else:
            end = reader.max_offset if options.latest else reader.min_offset
            found = {queue: end(queue) for queue in queues}
    if options.topic:
        found = {queue: offset for queue, offset in found.items() if queue.topic in options.topic}
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


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _print(rows: Iterable[_Row], is_json: bool) -> None:
    if is_json:
        for row in rows:
            values = {"checkpoint": row.checkpoint, "group": row.group, "min": row.low, "max": row.high, "lag": row.lag}
            _print_json(row.queue, values)
        return
    head = ["TOPIC", "BROKER", "QUEUE", "CHECKPOINT", "GROUP", "FIRST", "END", "LEFT"]
    table = [head]
    for row in rows:
        cells = [row.checkpoint, row.group, row.low, row.high, row.lag]
        table.append([row.queue.topic, row.queue.broker_name, str(row.queue.queue_id), *map(_number, cells)])
    used = [i for i in range(len(head)) if i < 3 or any(line[i] != "-" for line in table[1:])]
    print_table([[line[i] for i in used] for line in table], set(range(2, len(used))))


def _print_changes(changes: list[tuple[_Row, int]], is_json: bool) -> None:
    if is_json:
        for row, offset in changes:
            _print_json(row.queue, {"from": row.group, "to": offset, "again": _again(row, offset)})
        return
    table = [["TOPIC", "BROKER", "QUEUE", "NOW", "THEN", ""]]
    for row, offset in changes:
        place = [row.queue.topic, row.queue.broker_name, str(row.queue.queue_id)]
        change = offset - (row.low or 0 if row.group is None else row.group)
        word = f"{-change:,} again" if change < 0 else f"{change:,} skipped" if change else ""
        table.append([*place, _number(row.group), str(offset), word])
    print_table(table, {2, 3, 4})


def _again(row: _Row, offset: int) -> int:
    return max(0, (row.group or 0) - offset)


def _print_json(queue: MessageQueue, values: dict[str, int | None]) -> None:
    place = {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    print(json.dumps(place | values))
