"""From what the user said (``earliest``, ``group``, a time, JSON) to a number for each queue, and what is lost
meanwhile.

A position is checked against what the queue still has: messages that were deleted before they were read, or a queue
that ended earlier than it once did, are a data loss. It is an error by default; under ``failOnDataLoss=false`` it is
logged once and reading goes on from the earliest message left.

Pure over the ``Queues`` questions. Corresponds to RebalanceImpl.computePullFromWhere, but that it never guesses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from spark_rocket.datasource.offsets import EARLIEST, LATEST, Positions, name
from spark_rocket.datasource.option_parsers import Position, Start
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.errors import DataLossError, OffsetsError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")


class Queues(Protocol):
    """The questions that planning asks; tests answer them from a table."""

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]: ...
    def min_offset(self, queue: MessageQueue) -> int: ...
    def max_offset(self, queue: MessageQueue) -> int: ...
    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int: ...
    def committed_offset(self, group: str, queue: MessageQueue, *, patient: bool = True) -> int | None: ...
    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None: ...


class LossPolicy:
    """What to do about lost messages: fail, or say so once per queue and kind and go on."""

    def __init__(self, options: ReadOptions) -> None:
        self._fail = options.fail_on_data_loss
        self._begin_anew = "; to begin anew, use a new checkpoint directory" if options.is_stream else ""
        self._said: set[tuple[MessageQueue, str]] = set()

    def deleted(self, queue: MessageQueue, wanted: int, first_left: int, until: int | None = None) -> None:
        """Messages from ``wanted`` on are gone; the queue now begins at ``first_left``."""
        last = (first_left if until is None else min(first_left, until)) - 1
        self._lost(
            queue,
            "deleted",
            f"{name(queue)}: messages {wanted} to {last} were deleted before they were read; "
            f"the next one left is {first_left}.",
        )

    def missing(self, queue: MessageQueue, start: int, end: int, count: int) -> None:
        """The broker passed over messages without a word: their file was deleted, or the topic is compacted."""
        self._lost(queue, "missing", f"{name(queue)}: {count} of the messages {start} to {end - 1} were deleted.")

    def shortened(self, queue: MessageQueue, wanted: int, end: int) -> None:
        """The queue ends before a position that it once had."""
        self._lost(
            queue,
            "shortened",
            f"{name(queue)}: offset {wanted} was expected, but the queue now ends at {end}: the topic was deleted and "
            f"created again, or its broker lost messages {end} to {wanted - 1}.",
        )

    def _lost(self, queue: MessageQueue, kind: str, text: str) -> None:
        if self._fail:
            raise DataLossError(
                text,
                remedy=f"To go on from the earliest message left, set failOnDataLoss=false{self._begin_anew}; to "
                "prevent it, let the broker keep messages longer (fileReservedTime, fileReservedSize, more disk).",
            )
        if (queue, kind) not in self._said:
            self._said.add((queue, kind))
            log.warning("%s Going on from the earliest left (failOnDataLoss=false).", text)


def fit(queues: Queues, queue: MessageQueue, start: int, latest: int, loss: LossPolicy) -> int:
    """Check a start against what the queue has; return where reading can begin."""
    if start > latest:
        loss.shortened(queue, start, latest)
        return queues.min_offset(queue)
    if start < latest and start < (low := queues.min_offset(queue)):
        loss.deleted(queue, start, low)
        return low
    return start


def resolve_start(
    queues: Queues,
    position: Position,
    latest: Positions,
    *,
    group: str | None,
    loss: LossPolicy,
) -> dict[MessageQueue, int]:
    """The first offset to read of each queue in ``latest``."""
    if position.kind is Start.LATEST:
        return dict(latest)
    if position.kind is Start.EARLIEST:
        return {queue: min(queues.min_offset(queue), latest[queue]) for queue in latest}
    if position.kind is Start.TIMESTAMP:
        return {q: min(queues.offset_for_time(q, position.timestamp_ms), latest[q]) for q in latest}
    if position.kind is Start.GROUP:
        assert group is not None
        starts = {}
        for queue in latest:
            committed = queues.committed_offset(group, queue)
            if committed is None:
                starts[queue] = min(queues.min_offset(queue), latest[queue])
            else:
                starts[queue] = fit(queues, queue, committed, latest[queue], loss)
        return starts
    return _from_json(queues, position, latest, "startingOffsets", loss)


def resolve_end(queues: Queues, position: Position, latest: Positions) -> dict[MessageQueue, int]:
    """The first offset of each queue that a batch read leaves out."""
    if position.kind is Start.LATEST:
        return dict(latest)
    if position.kind is Start.TIMESTAMP:
        return {q: min(queues.offset_for_time(q, position.timestamp_ms), latest[q]) for q in latest}
    return _from_json(queues, position, latest, "endingOffsets", None)


def _from_json(
    queues: Queues, position: Position, latest: Positions, option: str, loss: LossPolicy | None
) -> dict[MessageQueue, int]:
    given = position.offsets or {}
    if unknown := sorted(given.keys() - latest.keys()):
        raise OffsetsError(
            f"option {option} names {name(unknown[0])}, and there is no such queue.",
            remedy=f"The queues are {_list(latest)}.",
        )
    if missing := sorted(latest.keys() - given.keys()):
        raise OffsetsError(
            f"option {option} does not say where {name(missing[0])} begins or ends.",
            remedy=f"Name every queue, with -1 for latest or -2 for earliest; missing are {_list(missing)}.",
        )
    positions = {}
    for queue, offset in given.items():
        if offset == LATEST:
            positions[queue] = latest[queue]
        elif offset == EARLIEST:
            positions[queue] = min(queues.min_offset(queue), latest[queue])
        elif offset > latest[queue]:
            raise OffsetsError(
                f"option {option} is {offset} for {name(queue)}, and the queue ends at {latest[queue]}.",
                remedy="Use -1 for the end of a queue.",
            )
        else:
            positions[queue] = offset if loss is None else fit(queues, queue, offset, latest[queue], loss)
    return positions


def _list(queues: Iterable[MessageQueue], at_most: int = 8) -> str:
    names = [name(queue) for queue in sorted(queues)]
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
