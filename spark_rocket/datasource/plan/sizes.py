"""``maxBytesPerTrigger``: where a batch must end so that its messages are at most so many bytes.

Sizes are those of stored records, as the brokers' consume queues tell them. A stretch of at most ``RUN`` messages of a
queue is looked at whole; of a longer one samples are taken, runs of messages spread evenly over it, as many as
``MOST_RUNS`` allows for all queues together. The count of messages is then corrected until the batch fits and is near
the limit, each time with samples of the stretch that would be read. So a batch is within the limit as far as the
samples tell: exactly for small ones, within a few percent where sizes vary evenly, and it may be over where few very
large messages lie among many small ones. At least one message is read, however large.

Of more than ``MOST_QUEUES`` queues so many are asked, those that hold messages evenly spaced among all: the longest
ones, and of the others some of every topic, not always the same. Each stands for an equal share of the messages. A
batch costs ``ROUNDS * MOST_QUEUES`` requests at the most, however many queues there are.

Pure over the question for sizes. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate

from spark_rocket.datasource.plan.offsets import Positions
from spark_rocket.datasource.plan.ranges import limit_ends
from spark_rocket.model import MessageQueue

RUN = 64
MOST_RUNS = 64
MOST_QUEUES = 256
ROUNDS = 12
UNSIZED = 16
"""Messages of each queue in a batch when no queue that was asked tells any size."""
_FULL_ENOUGH = 0.8

SizesOf = Callable[[Positions, int], dict[MessageQueue, list[int]]]
"""Sizes of up to so many messages from a position on, for each queue."""


def limit_bytes(
    starts: Positions, ends: Positions, max_bytes: int, sizes_of: SizesOf
) -> dict[MessageQueue, int] | None:
    """Where to end instead of ``ends``; None if nobody tells any size."""
    whole = sum(ends[queue] - starts[queue] for queue in ends)
    if not whole:
        return dict(ends)
    count, fits, too_many = whole, 0, whole + 1
    best: dict[MessageQueue, int] | None = None
    for _ in range(ROUNDS):
        tried = limit_ends(starts, ends, count)
        total = _bytes(starts, tried, sizes_of)
        if total is None:
            return best
        if total <= max_bytes:
            fits, best = count, tried
            if count == whole or total >= _FULL_ENOUGH * max_bytes:
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
    """Where to end instead of ``ends`` if nobody tells any size."""
    return {queue: min(end, starts[queue] + UNSIZED) for queue, end in ends.items()}


def _bytes(starts: Positions, ends: Positions, sizes_of: SizesOf) -> float | None:
    """The bytes of all messages between, by samples; None without any."""
    behind = {queue: ends[queue] - starts[queue] for queue in ends if ends[queue] > starts[queue]}
    stands_for: Mapping[MessageQueue, float]
    stands_for = behind if len(behind) <= MOST_QUEUES else _some_of(behind, sum(starts[queue] for queue in ends))
    runs = max(1, MOST_RUNS // len(stands_for))
    samples: dict[MessageQueue, list[int]] = {queue: [] for queue in stands_for}
    for run in range(runs):
        places = {}
        for queue in stands_for:
            count = behind[queue]
            pieces = min(runs, -(-count // RUN))
            if run < pieces:  # the first run at the start, the last at the end, the others evenly between
                room = count - min(RUN, count)
                places[queue] = starts[queue] + (room * run // (pieces - 1) if pieces > 1 else 0)
        for queue, sizes in sizes_of(places, RUN).items() if places else ():
            samples[queue] += sizes[: ends[queue] - places[queue]]
    every = [size for sizes in samples.values() for size in sizes]
    if not any(every):
        return None
    usual = sum(every) / len(every)  # for queues that said nothing: they were just being cleaned
    return sum(
        count * (sum(samples[queue]) / len(samples[queue]) if samples[queue] else usual)
        for queue, count in stands_for.items()
    )


def _some_of(behind: dict[MessageQueue, int], turn: int) -> dict[MessageQueue, float]:
    """Some of the queues, and how many messages each stands for; which ones goes round with ``turn``."""
    queues = sorted(behind)
    edges = list(accumulate(behind[queue] for queue in queues))
    whole = edges[-1]
    places = ((whole * pick + turn % whole) // MOST_QUEUES for pick in range(MOST_QUEUES))
    picks = Counter(queues[bisect_right(edges, place)] for place in places)
    return {queue: count * whole / MOST_QUEUES for queue, count in picks.items()}
