"""From what the user said (``earliest``, ``group``, a time, JSON) to a number for each queue, and what is lost
meanwhile.

A position is checked against what the queue still has: messages that were deleted before they were read, or a queue
that ended earlier than it once did, are a data loss. It is an error by default; under ``failOnDataLoss=false`` it is
logged once and reading goes on from the earliest message left.

Pure over the ``Queues`` questions. Corresponds to RebalanceImpl.computePullFromWhere, but that it never guesses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from spark_rocket.datasource.offsets import EARLIEST, LATEST, Positions, name
from spark_rocket.datasource.option_parsers import Position, Start
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.errors import DataLossError, OffsetsError, RocketError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")


class Queues(Protocol):
    """The questions that planning asks, about many queues at once; tests answer them from a table.

    Each is asked until there is an answer or ``retryTimeout`` is over, but for ``commit_offsets``.
    """

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]: ...
    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]: ...
    def max_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]: ...
    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]: ...
    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Without the queues of which the group has committed nothing."""

    def commit_offsets(self, group: str, ends: Positions) -> dict[MessageQueue, RocketError]:
        """Tell the brokers, never backwards, and wait for none that is away; the queues that were not told, and why."""


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


def fit(queues: Queues, starts: Positions, latest: Positions, loss: LossPolicy) -> dict[MessageQueue, int]:
    """Check starts against what the queues have; return where reading can begin."""
    first = queues.min_offsets([queue for queue, start in starts.items() if start != latest[queue]])
    fitted = {}
    for queue, start in starts.items():
        low = first.get(queue, start)
        if start > latest[queue]:
            loss.shortened(queue, start, latest[queue])
            start = low
        elif start < low:
            loss.deleted(queue, start, low)
            start = low
        fitted[queue] = start
    return fitted


def _earliest(queues: Queues, latest: Positions) -> dict[MessageQueue, int]:
    return {queue: min(low, latest[queue]) for queue, low in queues.min_offsets(latest.keys()).items()}


def _at_time(queues: Queues, latest: Positions, timestamp_ms: int) -> dict[MessageQueue, int]:
    found = queues.offsets_for_times(dict.fromkeys(latest, timestamp_ms))
    return {queue: min(offset, latest[queue]) for queue, offset in found.items()}


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
        return _earliest(queues, latest)
    if position.kind is Start.TIMESTAMP:
        return _at_time(queues, latest, position.timestamp_ms)
    if position.kind is Start.GROUP:
        assert group is not None
        committed = queues.committed_offsets(group, latest.keys())
        others = {queue: end for queue, end in latest.items() if queue not in committed}
        return fit(queues, committed, latest, loss) | _earliest(queues, others)
    return _from_json(queues, position, latest, "startingOffsets", loss)


def resolve_end(queues: Queues, position: Position, latest: Positions) -> dict[MessageQueue, int]:
    """The first offset of each queue that a batch read leaves out."""
    if position.kind is Start.LATEST:
        return dict(latest)
    if position.kind is Start.TIMESTAMP:
        return _at_time(queues, latest, position.timestamp_ms)
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
    earliest = _earliest(queues, {queue: latest[queue] for queue, offset in given.items() if offset == EARLIEST})
    positions = {}
    for queue, offset in given.items():
        if offset == LATEST:
            positions[queue] = latest[queue]
        elif offset == EARLIEST:
            positions[queue] = earliest[queue]
        elif offset > latest[queue]:
            raise OffsetsError(
                f"option {option} is {offset} for {name(queue)}, and the queue ends at {latest[queue]}.",
                remedy="Use -1 for the end of a queue.",
            )
        else:
            positions[queue] = offset
    return positions if loss is None else fit(queues, positions, latest, loss)


def _list(queues: Iterable[MessageQueue], at_most: int = 8) -> str:
    names = [name(queue) for queue in sorted(queues)]
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
