"""The target of a preview or a reset: a checkpoint, a time, an end, an offset, another group or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.arguments import PATH, bundle, exclusive, group_name, number, past, text_of
from spark_rocket.cli.commands.message import find_queue
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.model import MessageQueue
    from spark_rocket.protocol.namespace import Namespace


@dataclass(frozen=True, kw_only=True)
class OffsetTarget:
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


def _where(**given: Any) -> OffsetTarget:
    exclusive({f"--{name.replace('_', '-')}": value for name, value in given.items()}, required=True)
    return OffsetTarget(**given)


target_options = bundle(
    "where",
    _where,
    click.option("--checkpoint", type=PATH, metavar="DIR", help="offsets of a query"),
    click.option(
        "--at",
        type=past,
        metavar="TIME",
        help="offsets of a store time: 2026-11-21T08:00 (local time, or with +01:00), ms, or 2h (ago; also -2h)",
    ),
    click.option("--of-group", type=group_name, metavar="GROUP", help="offsets of another group"),
    click.option("--file", type=PATH, metavar="FILE", help="offsets as JSON; - for stdin"),
    click.option("--earliest", is_flag=True, help="first available messages"),
    click.option("--latest", is_flag=True, help="ends of the queues"),
    click.option("--offset", type=number, metavar="N", help="this offset"),
)


TARGETS = {field.name for field in fields(OffsetTarget)}


def in_namespace(positions: Mapping[MessageQueue, int], namespace: Namespace) -> dict[MessageQueue, int]:
    """Return the positions of a checkpoint, which have full names. ClientError for other topics."""
    other = sorted({queue.topic for queue in positions if not namespace.has(queue.topic)})
    if other:
        raise ClientError(
            f"The checkpoint has topics that are not in the namespace {namespace.name}: {', '.join(other[:8])}.",
            remedy="Give the namespace of the query, or --namespace '' to use full names.",
        )
    return {replace(queue, topic=namespace.unwrap(queue.topic)): offset for queue, offset in positions.items()}


def positions_of(where: OffsetTarget, topics: tuple[str, ...], reader: Reader) -> dict[MessageQueue, int]:
    """Resolve the offsets that the command line specifies, only of its topics if any are given."""
    if where.checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        found = in_namespace(read_checkpoint(where.checkpoint).positions, reader.namespace)
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


def only_queue(
    text: str, wanted: dict[MessageQueue, int], topics: tuple[str, ...], admin: Admin
) -> dict[MessageQueue, int]:
    """Return the offsets of one queue of each topic: of those given, else of all that have offsets."""
    chosen = {find_queue(admin, topic, text) for topic in topics or sorted({queue.topic for queue in wanted})}
    found = {queue: offset for queue, offset in wanted.items() if queue in chosen}
    if not found:
        raise ClientError(
            f"No offset for {', '.join(queue.name for queue in sorted(chosen))}.",
            remedy=f"There are offsets for {', '.join(queue.name for queue in sorted(wanted))}.",
        )
    return found


def _from_file(file: Path, reader: Reader) -> dict[MessageQueue, int]:
    from spark_rocket.datasource.stream_offsets import EARLIEST, LATEST, parse_offsets_option

    ends = {LATEST: reader.max_offset, EARLIEST: reader.min_offset}
    found = parse_offsets_option(text_of(file), "stdin" if str(file) == "-" else str(file))
    return {
        queue: ends[offset](queue) if offset in ends and queue in reader.queues(queue.topic) else offset
        for queue, offset in found.items()
    }
