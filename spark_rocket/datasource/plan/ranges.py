"""Turn positions into work: which messages a batch reads, and how they are split into Spark partitions.

Pure planning without sockets or Spark, so every rule here is tested as a function. Shares add up to the limit exactly,
and the pieces of a range cover it exactly once.

``maxBytesPerTrigger`` uses the sizes of stored records in the brokers' consume queues. Up to ``RUN`` messages of a
queue are measured completely. A longer range is sampled: runs of messages spread evenly over it, at most ``MAX_RUNS``
for all queues together. The number of messages is then corrected until the batch fits and is close to the limit, each
time with samples of the range that would be read. The batch is within the limit as far as the samples show: exactly for
small batches, within a few percent if sizes vary evenly. It may exceed the limit if a few very large messages lie among
many small ones. At least one message is read, however large.

With more than ``MAX_QUEUES`` queues, only that many are sampled: the queues that hold messages evenly spaced among all
messages. These are the longest queues and some queues of every topic, which change over time. Each represents an equal
share of the messages. A batch costs at most ``MAX_ROUNDS * MAX_QUEUES`` requests, however many queues there are.

Pure over the size requests. Corresponds to Spark's KafkaOffsetRangeCalculator and rateLimit, instead of RocketMQ's
AllocateMessageQueueStrategy.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.stream_offsets import Positions
from spark_rocket.model import MessageQueue


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OffsetRange(FrozenValue):
    """The messages from ``start`` (inclusive) to ``end`` (exclusive) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue.name} [{self.start}, {self.end})"


def ranges_between(starts: Positions, ends: Positions) -> list[OffsetRange]:
    """Return the non-empty ranges in queue order. Raises OffsetsError for a range that would run backwards."""
    ranges = []
    for queue in sorted(ends):
        span = OffsetRange(queue, starts[queue], ends[queue])
        if span.size < 0:
            raise error("BAD_OFFSETS.RUNS_BACKWARDS", queue=queue.name, start=span.start, end=span.end)
        if span.size:
            ranges.append(span)
    return ranges


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges into pieces of nearly equal size.

    No piece has more than ``max_records`` messages. There are at least ``min_partitions`` pieces if there are that many
    messages; each further split goes to the range with the largest pieces.
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
    """Return ends such that a batch has exactly ``max_records`` messages, or all there are.

    Messages are shared in proportion to lag, rounded to integers. Every queue with a lag gets at least one, so none
    starves. With fewer messages than such queues, they take turns: the turn starts at the sum of the start positions,
    which grows by ``max_records`` with every batch.
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


RUN = 64
MAX_RUNS = 64
MAX_QUEUES = 256
MAX_ROUNDS = 12
UNSIZED_BATCH_MESSAGES = 16
"""Messages per queue in a batch if no queue reports a size."""
_MIN_FILL = 0.8

SizesOf = Callable[[Positions, int], dict[MessageQueue, list[int]]]
"""Return the sizes of up to N messages from a position on, for each queue."""


def limit_bytes(
    starts: Positions, ends: Positions, max_bytes: int, sizes_of: SizesOf
) -> dict[MessageQueue, int] | None:
    """Return ends within ``max_bytes``; None if no broker reports a size."""
    whole = sum(ends[queue] - starts[queue] for queue in ends)
    if not whole:
        return dict(ends)
    count, fits, too_many = whole, 0, whole + 1
    best: dict[MessageQueue, int] | None = None
    for _ in range(MAX_ROUNDS):
        tried = limit_ends(starts, ends, count)
        total = _bytes(starts, tried, sizes_of)
        if total is None:
            return best
        if total <= max_bytes:
            fits, best = count, tried
            if count == whole or total >= _MIN_FILL * max_bytes:
                return tried
        else:
            too_many = count
        if too_many - fits <= 1:
            break
        wanted = int(count * max_bytes / total)
        if total > max_bytes and wanted >= count:
            wanted = count - 1
        count = min(max(wanted, fits + 1), too_many - 1, whole)
    return best if best is not None else limit_ends(starts, ends, 1)


def limit_unsized(starts: Positions, ends: Positions) -> dict[MessageQueue, int]:
    """Return ends for brokers that do not report sizes."""
    return {queue: min(end, starts[queue] + UNSIZED_BATCH_MESSAGES) for queue, end in ends.items()}


def _bytes(starts: Positions, ends: Positions, sizes_of: SizesOf) -> float | None:
    """Estimate the bytes of all messages between, from samples; None without samples."""
    behind = {queue: ends[queue] - starts[queue] for queue in ends if ends[queue] > starts[queue]}
    stands_for: Mapping[MessageQueue, float]
    stands_for = behind if len(behind) <= MAX_QUEUES else _some_of(behind, sum(starts[queue] for queue in ends))
    runs = max(1, MAX_RUNS // len(stands_for))
    samples: dict[MessageQueue, list[int]] = {queue: [] for queue in stands_for}
    for run in range(runs):
        places = {}
        for queue in stands_for:
            count = behind[queue]
            pieces = min(runs, -(-count // RUN))
            if run < pieces:  # first run at the start, last run at the end, the others evenly between
                room = count - min(RUN, count)
                places[queue] = starts[queue] + (room * run // (pieces - 1) if pieces > 1 else 0)
        for queue, sizes in sizes_of(places, RUN).items() if places else ():
            samples[queue] += sizes[: ends[queue] - places[queue]]
    every = [size for sizes in samples.values() for size in sizes]
    if not any(every):
        return None
    usual = sum(every) / len(every)  # for queues without a sample: they were just being deleted from
    return sum(
        count * (sum(samples[queue]) / len(samples[queue]) if samples[queue] else usual)
        for queue, count in stands_for.items()
    )


def _some_of(behind: dict[MessageQueue, int], turn: int) -> dict[MessageQueue, float]:
    """Select some queues, each with the number of messages it represents. The selection rotates with ``turn``."""
    queues = sorted(behind)
    edges = list(accumulate(behind[queue] for queue in queues))
    whole = edges[-1]
    places = ((whole * pick + turn % whole) // MAX_QUEUES for pick in range(MAX_QUEUES))
    picks = Counter(queues[bisect_right(edges, place)] for place in places)
    return {queue: count * whole / MAX_QUEUES for queue, count in picks.items()}
