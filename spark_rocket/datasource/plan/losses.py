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
from types import MappingProxyType
from typing import Any

from spark_rocket.datasource.loss_policy import LossPolicy, Replaced
from spark_rocket.datasource.offsets import Positions, Stored, StreamOffset
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.model import MessageQueue


@dataclass(frozen=True)
class Seen:
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
    same, others = compare(queues, {q: lasts[q] for q in grown | doubtful if lasts[q][0] < starts[q]})
    first = queues.min_offsets(sorted((behind - same) | others.keys()))
    back = {queue for queue, low in first.items() if low < seen.lows.get(queue, 0)}
    possible = {*suspects, *back, *others} & {q for q in starts if starts[q] <= latest[q]}
    recreated = find_recreated(queues, seen.firsts, possible)
    fitted: dict[MessageQueue, int] = {}
    forgotten: set[MessageQueue] = set()
    for queue, start in starts.items():
        low, end = first.get(queue, start), latest[queue]
        was_first, was_end = seen.lows.get(queue, 0), seen.ends.get(queue, 0)
        if queue in recreated:
            low, stored = recreated[queue]
            loss.recreated(queue, *seen.firsts[queue], stored, start)
            start = min(low, end)
        elif start > end:
            if end == 0 and queue.topic not in queues.topics():
                loss.topic_deleted(queue.topic, starts)
            else:
                loss.shortened(queue, start, end)
            forgotten.add(queue)  # the next messages belong to another queue
            start = low
        elif start < low:
            loss.deleted(queue, start, low)
            start = low
        elif queue in others:
            loss.replaced(queue, others[queue])
            start = max(low, others[queue].since)
        elif queue in back and queue not in seen.firsts:  # else a promoted slave, which retained more
            loss.went_back(queue, "first message", was_first, low, start)
            start = low
        elif end < was_end:  # a broker that lost its newest messages is likelier than a recreated topic: continue here
            loss.went_back(queue, "end", was_end, end, start)
        fitted[queue] = start
    return fitted, Seen(
        {**_without(seen.lows, forgotten), **first},
        {**_without(seen.ends, forgotten), **{queue: latest[queue] for queue in starts}},
        {**_without(seen.firsts, forgotten), **recreated},
        seen.asked - forgotten,
    )


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
