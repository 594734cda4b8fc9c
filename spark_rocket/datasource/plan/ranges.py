"""From positions to work: which messages a batch takes, and how they are cut into Spark partitions.

Pure planning without sockets or Spark, so every rule here is tested as a function. Nothing is rounded: shares add up
to the limit exactly, and the pieces of a range cover it exactly once. Corresponds to Spark's
KafkaOffsetRangeCalculator and rateLimit, in the place of RocketMQ's AllocateMessageQueueStrategy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from spark_rocket.datasource.options.conditions import error
from spark_rocket.datasource.plan.offsets import Positions, name
from spark_rocket.model import MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages ``start`` (included) to ``end`` (not included) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{name(self.queue)} [{self.start}, {self.end})"


def ranges_between(starts: Positions, ends: Positions) -> list[OffsetRange]:
    """The non-empty ranges, in the order of their queues. One that runs backwards is an error, never empty."""
    ranges = []
    for queue in sorted(ends):
        span = OffsetRange(queue, starts[queue], ends[queue])
        if span.size < 0:
            raise error("BAD_OFFSETS.RUNS_BACKWARDS", queue=name(queue), start=span.start, end=span.end)
        if span.size:
            ranges.append(span)
    return ranges


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into pieces of nearly equal size.

    No piece has more than ``max_records`` messages, and there are at least ``min_partitions`` pieces if there are as
    many messages; each further cut goes to the range whose pieces are largest.
    """
    whole = list(ranges)
    pieces = [-(-span.size // max_records) if max_records else 1 for span in whole]
    missing = (min_partitions or 0) - sum(pieces)
    if missing > 0:
        heap = [(-span.size / parts, index) for index, (span, parts) in enumerate(zip(whole, pieces, strict=True))]
        heapq.heapify(heap)
        while missing > 0 and heap:
            _, index = heapq.heappop(heap)
            if pieces[index] < whole[index].size:
                pieces[index] += 1
                missing -= 1
                heapq.heappush(heap, (-whole[index].size / pieces[index], index))
    return [piece for span, parts in zip(whole, pieces, strict=True) for piece in _cut(span, parts)]


def _cut(span: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [span.start + span.size * part // parts for part in range(parts + 1)]
    return [OffsetRange(span.queue, low, high) for low, high in pairwise(edges)]


def limit_ends(starts: Positions, latest: Positions, max_records: int) -> dict[MessageQueue, int]:
    """Where to end so that a batch has exactly ``max_records`` messages, or all there are.

    Messages are shared in proportion to lag, to the nearest whole one, and every queue that is behind gets one or more,
    so none starves. With fewer messages than such queues the turn goes round: it begins at the sum of the start
    positions, which moves on by ``max_records`` with every batch.
    """
    behind = sorted(queue for queue in latest if latest[queue] > starts[queue])
    lags = [latest[queue] - starts[queue] for queue in behind]
    total = sum(lags)
    ends = {queue: starts[queue] for queue in latest}
    if total <= max_records:
        ends.update((queue, latest[queue]) for queue in behind)
        return ends
    if max_records <= len(behind):
        first = sum(starts[queue] for queue in latest)
        for turn in range(max_records):
            ends[behind[(first + turn) % len(behind)]] += 1
        return ends
    shares = [max_records * lag // total for lag in lags]
    by_remainder = sorted(range(len(behind)), key=lambda index: (-(max_records * lags[index] % total), index))
    for index in by_remainder[: max_records - sum(shares)]:
        shares[index] += 1
    richest = [(-share, index) for index, share in enumerate(shares)]
    heapq.heapify(richest)
    for index in [index for index, share in enumerate(shares) if share == 0]:
        giver = richest[0][1]
        shares[giver] -= 1
        shares[index] = 1
        heapq.heapreplace(richest, (-shares[giver], giver))
    return ends | {queue: starts[queue] + share for queue, share in zip(behind, shares, strict=True)}
