"""Group ranges into tasks by their amount of data: small ranges share a task, each other range has its own.

A Spark task costs 40 to 50 ms in Python, whatever it reads. So tasks follow the data and not the number of queues. A
range takes a part of a task: the largest of its messages, its bytes and its one range, in parts of what a task reads at
most. A range that takes at most half a task is small. Small ranges fill tasks in the order of the queues, to about the
same extent. So at most about twice as many tasks as necessary read the small ranges, and a task that reads several
ranges never has more than ``MAX_MESSAGES``, ``MAX_BYTES`` and ``MAX_RANGES``.

Bytes are estimated: the mean size of up to ``SAMPLE_MESSAGES`` messages from the start of a queue's range, times its
messages. At most ``MAX_SAMPLES`` queues are sampled; the others are taken for the median of these. The sizes are those
of stored messages, so the same offsets give the same tasks in another process too: the ids of rows that a query writes
depend on its partitions. Sizes are not worth a wait: a broker that does not report them now changes the tasks, but not
the rows.

Pure over the size requests. Corresponds to FilePartition in Spark, which packs small files; Spark's Kafka source has a
task for every partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING

from spark_rocket.datasource.plan.ranges import OffsetRange, SizesOf, split
from spark_rocket.model import MessageQueue

if TYPE_CHECKING:
    from spark_rocket.datasource.options.options import ReadOptions

MAX_MESSAGES = 10_000
MAX_BYTES = 4 * 1024 * 1024
MAX_RANGES = 256
"""The limits of a task that reads several ranges."""
MAX_SAMPLES = 64
SAMPLE_MESSAGES = 8  # a response with 64 sizes takes four times as long
_ASSUMED_MESSAGE_BYTES = 1024  # if no broker reports sizes
_ROUNDING = 1e-9

Task = tuple[OffsetRange, ...]
"""The ranges that a task reads, one after the other."""


def plan_tasks(ranges: Iterable[OffsetRange], options: ReadOptions, sizes_of: SizesOf) -> list[Task]:
    """Split large ranges, and combine small ones, as the options require. ``sizes_of`` may omit queues."""
    pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
    if not options.combine_small_ranges:
        return [(piece,) for piece in pieces]
    return combine(
        pieces,
        sizes_of,
        min_tasks=options.min_partitions or 1,
        max_messages=min(options.max_records_per_partition or MAX_MESSAGES, MAX_MESSAGES),
        window=options.dedupe_window or 0,
    )


def combine(
    pieces: Sequence[OffsetRange],
    sizes_of: SizesOf,
    *,
    min_tasks: int = 1,
    max_messages: int = MAX_MESSAGES,
    window: int = 0,
) -> list[Task]:
    """Combine small ranges. There remain at least ``min_tasks`` tasks, if there are that many ranges.

    ``window``: the number of messages that a task also reads before each range.
    """
    parts = _parts_of_tasks(pieces, sizes_of, max_messages, window)
    small = [part for part in parts if part <= 0.5]
    spare = len(pieces) - min_tasks  # ranges that may join another one
    if spare <= 0 or len(small) < 2:
        return [(piece,) for piece in pieces]
    needed = max(ceil(sum(small) - _ROUNDING), min_tasks - (len(pieces) - len(small)))
    even = sum(small) / needed
    tasks: list[list[OffsetRange]] = []
    shared: list[OffsetRange] = []
    filled = 0.0
    for piece, part in zip(pieces, parts, strict=True):
        if part > 0.5:
            tasks.append([piece])
        elif shared and spare > 0 and filled + part <= 1 + _ROUNDING and filled + part / 2 <= even:
            shared.append(piece)
            filled += part
            spare -= 1
        else:
            shared, filled = [piece], part
            tasks.append(shared)
    return [tuple(task) for task in tasks]


def _parts_of_tasks(
    pieces: Sequence[OffsetRange], sizes_of: SizesOf, max_messages: int, window: int
) -> Sequence[float]:
    """Return which part of a task each range takes. Sizes are requested only if they can make a difference."""
    counts = [piece.size + min(window, piece.start) for piece in pieces]
    few = [piece for piece, count in zip(pieces, counts, strict=True) if count <= max_messages / 2]
    sizes = _mean_sizes(few, sizes_of) if len(few) > 1 else {}
    return [
        max(count / max_messages, count * sizes.get(piece.queue, 0.0) / MAX_BYTES, 1 / MAX_RANGES)
        for piece, count in zip(pieces, counts, strict=True)
    ]


def _mean_sizes(pieces: Sequence[OffsetRange], sizes_of: SizesOf) -> dict[MessageQueue, float]:
    """Estimate the mean size of the messages of each queue."""
    starts: dict[MessageQueue, int] = {}
    ends: dict[MessageQueue, int] = {}
    for piece in pieces:
        starts.setdefault(piece.queue, piece.start)
        ends[piece.queue] = piece.end
    queues = list(starts)
    sampled = {queue: starts[queue] for queue in queues[:: ceil(len(queues) / MAX_SAMPLES)]}
    means = {}
    for queue, sizes in sizes_of(sampled, SAMPLE_MESSAGES).items():
        sizes = sizes[: ends[queue] - starts[queue]]
        if any(sizes):
            means[queue] = sum(sizes) / len(sizes)
    usual = sorted(means.values())[len(means) // 2] if means else _ASSUMED_MESSAGE_BYTES
    return {queue: means.get(queue, usual) for queue in queues}
