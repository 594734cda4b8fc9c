"""Detect lost messages: compare what queues have now with what they had when they were read.

A queue's messages keep their offsets and store times. So each of these shows a loss:

===============================================  ======================================================================
the queue begins after the position              messages were deleted before they were read
it ends before the position                      it was shortened, or its topic was deleted
its first offset, or its end, is lower than it   it was recreated, or lost messages
was
another first message at the same offset, or a   it was recreated and has grown since, or it is in another cluster
later one at a smaller offset
another message at the offset of the last one    the broker lost its newest messages and has stored others since
that was read
===============================================  ======================================================================

``Seen`` is what a query has seen of its queues; the first messages are also in the checkpoint. It is a value: functions
return the next one, and after an error the former one remains.

Pure over the ``Queues`` requests, except that ``LossPolicy`` raises or logs. Corresponds to the data loss checks of
Spark's KafkaMicroBatchStream, which knows only the first two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.loss_policy import LossPolicy, Replaced
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.stream_offsets import Positions, Stored, StreamOffset
from spark_rocket.model import MessageQueue


@dataclass(frozen=True, eq=False, repr=False)
class Seen(FrozenValue):
    """The offsets and first messages that queues were seen to have."""

    lows: Positions = field(default_factory=dict)
    ends: Positions = field(default_factory=dict)
    firsts: Stored = field(default_factory=dict)
    asked: frozenset[MessageQueue] = frozenset()
    """The queues whose first message was requested, known or not."""

    def learned(self, queues: Queues, unknown: Collection[MessageQueue]) -> Seen:
        """Request first messages, once per queue. Request times last: retention only makes them later."""
        new = [queue for queue in unknown if queue not in self.firsts and queue not in self.asked]
        if not new:
            return self
        lows = {**self.lows, **queues.min_offsets([queue for queue in new if queue not in self.lows])}
        firsts = {queue: (lows[queue], stored) for queue, stored in queues.first_times(new).items()}
        return replace(self, firsts={**self.firsts, **firsts}, asked=self.asked.union(new))


def find_recreated(
    queues: Queues, firsts: Stored, suspects: Collection[MessageQueue]
) -> dict[MessageQueue, tuple[int, int]]:
    """Return the first messages of recreated queues. Offsets are requested last: retention only makes them larger,
    and a larger offset proves nothing."""
    known = [queue for queue in suspects if queue in firsts]
    times = queues.first_times(known) if known else {}
    lows = queues.min_offsets(times.keys()) if times else {}
    return {
        queue: (lows[queue], stored)
        for queue, stored in times.items()
        if _is_another((lows[queue], stored), firsts[queue])
    }


def _is_another(first: tuple[int, int], known: tuple[int, int]) -> bool:
    """Return whether a queue with this first message (offset, store time) never had the known one."""
    return first[0] <= known[0] and (first[1] > known[1] or (first[0] == known[0] and first[1] != known[1]))


def compare(queues: Queues, lasts: Stored) -> tuple[set[MessageQueue], dict[MessageQueue, Replaced]]:
    """Return the queues that still have this message of theirs, and those that have another message at its offset.

    Queues without a message there are omitted. Another message is there if the broker lost its newest messages (a copy
    was restored, or a slave that lagged behind was promoted) and has stored others since. Those have later store times,
    so the first of them is found by time.
    """
    times = queues.store_times({queue: offset for queue, (offset, _) in lasts.items()}) if lasts else {}
    others = {queue: stored for queue, stored in times.items() if stored != lasts[queue][1]}
    since = queues.offsets_for_times({queue: lasts[queue][1] + 1 for queue in others}) if others else {}
    return times.keys() - others.keys(), {
        queue: Replaced(*lasts[queue], stored, min(since[queue], lasts[queue][0])) for queue, stored in others.items()
    }


class Change(Enum):
    """What happened to a queue since it was read."""

    NONE = auto()
    RECREATED = auto()
    SHORTENED = auto()
    """It ends before the position."""
    DELETED = auto()
    """It begins after the position."""
    REPLACED = auto()
    """It has another message at the offset of the last one that was read."""
    FIRST_WENT_BACK = auto()
    END_WENT_BACK = auto()


@dataclass(frozen=True, eq=False, repr=False)
class QueueObservation(FrozenValue):
    """A queue's position and offsets, and what is known of it from before."""

    start: int
    low: int
    end: int
    was_low: int = 0
    was_end: int = 0
    knows_first: bool = False
    recreated: tuple[int, int] | None = None
    """The first message of the recreated queue."""
    replaced: Replaced | None = None


def judge(queue: QueueObservation) -> tuple[Change, int]:
    """Return what happened to a queue, and where reading can continue."""
    if queue.recreated is not None:
        return Change.RECREATED, min(queue.recreated[0], queue.end)
    if queue.start > queue.end:
        return Change.SHORTENED, queue.low
    if queue.start < queue.low:
        return Change.DELETED, queue.low
    if queue.replaced is not None:
        return Change.REPLACED, max(queue.low, queue.replaced.since)
    if queue.low < queue.was_low and not queue.knows_first:  # else a promoted slave, which retained more
        return Change.FIRST_WENT_BACK, queue.low
    if queue.end < queue.was_end:  # a broker that lost its newest messages is likelier than a recreated topic
        return Change.END_WENT_BACK, queue.start
    return Change.NONE, queue.start


def fit(
    queues: Queues,
    starts: Positions,
    latest: Positions,
    loss: LossPolicy,
    seen: Seen,
    suspects: Set[MessageQueue] = frozenset(),
    lasts: Stored = MappingProxyType({}),
) -> tuple[dict[MessageQueue, int], Seen]:
    """Check starts against what the queues have; return where reading can begin, and what was seen.

    Queues that have grown are checked for their message of ``lasts``, one before the start: if it is there, no message
    from the start on was deleted. ``suspects`` are checked for being recreated: by their first message, or by that of
    ``lasts`` if the first is unknown, because only a slave has served the queue so far.
    """
    behind = {queue for queue, start in starts.items() if start != latest[queue]}
    grown = {queue for queue in behind & lasts.keys() if starts[queue] < latest[queue]}
    doubtful = {queue for queue in starts.keys() & suspects & lasts.keys() if queue not in seen.firsts}
    compared = {queue for queue in grown | doubtful if lasts[queue][0] < starts[queue]}
    same, others = compare(queues, {queue: lasts[queue] for queue in compared})
    lows = queues.min_offsets(sorted((behind - same) | others.keys()))
    back = {queue for queue, low in lows.items() if low < seen.lows.get(queue, 0)}
    possible = {*suspects, *back, *others} & {queue for queue in starts if starts[queue] <= latest[queue]}
    recreated = find_recreated(queues, seen.firsts, possible)
    fitted: dict[MessageQueue, int] = {}
    forgotten: set[MessageQueue] = set()
    for queue, start in starts.items():
        state = QueueObservation(
            start,
            lows.get(queue, start),
            latest[queue],
            seen.lows.get(queue, 0),
            seen.ends.get(queue, 0),
            queue in seen.firsts,
            recreated.get(queue),
            others.get(queue),
        )
        change, fitted[queue] = judge(state)
        if change is Change.SHORTENED:
            forgotten.add(queue)  # the next messages belong to another queue
            if latest[queue] == 0 and queue.topic not in queues.topics():
                loss.topic_deleted(queue.topic, starts)
                continue
        _report(loss, queue, state, change, seen.firsts)
    return fitted, Seen(
        {**_without(seen.lows, forgotten), **lows},
        {**_without(seen.ends, forgotten), **{queue: latest[queue] for queue in starts}},
        {**_without(seen.firsts, forgotten), **recreated},
        seen.asked - forgotten,
    )


def _report(loss: LossPolicy, queue: MessageQueue, state: QueueObservation, change: Change, firsts: Stored) -> None:
    match change:
        case Change.RECREATED:
            assert state.recreated is not None
            loss.recreated(queue, *firsts[queue], state.recreated[1], state.start)
        case Change.SHORTENED:
            loss.shortened(queue, state.start, state.end)
        case Change.DELETED:
            loss.deleted(queue, state.start, state.low)
        case Change.REPLACED:
            assert state.replaced is not None
            loss.replaced(queue, state.replaced)
        case Change.FIRST_WENT_BACK:
            loss.went_back(queue, "first message", state.was_low, state.low, state.start)
        case Change.END_WENT_BACK:
            loss.went_back(queue, "end", state.was_end, state.end, state.start)


def _without(values: Mapping[MessageQueue, Any], queues: Collection[MessageQueue]) -> dict[MessageQueue, Any]:
    return {queue: value for queue, value in values.items() if queue not in queues}


def replayed(
    queues: Queues, options: ReadOptions, end: StreamOffset, spans: Mapping[MessageQueue, OffsetRange]
) -> list[OffsetRange]:
    """Return what a batch that is planned again can still read: without queues that were recreated, and without
    messages that replaced the planned ones. Raises DataLossError if messages that are still to be read are lost."""
    recreated = find_recreated(queues, end.firsts, spans.keys())
    lasts = {q: end.lasts[q] for q, span in spans.items() if q not in recreated and q in end.lasts}
    _, others = compare(queues, lasts)
    left = []
    loss = LossPolicy(options)
    for queue, span in spans.items():
        if queue in recreated:
            loss.recreated(queue, *end.firsts[queue], recreated[queue][1], span.start)
            continue
        if queue in others:
            loss.replaced(queue, others[queue])
            span = replace(span, end=min(span.end, others[queue].since))
        if span.size > 0:
            left.append(span)
    return left
