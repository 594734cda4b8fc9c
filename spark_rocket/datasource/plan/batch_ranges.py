"""Decide which messages a batch read takes from each queue, over the ``Queues`` requests and without Spark.

Pure over the requests. Corresponds to KafkaOffsetReader in Spark.
"""

from __future__ import annotations

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.queue_selection import QueueSelection
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import OffsetRange, ranges_between
from spark_rocket.datasource.plan.resolve import resolve_end, resolve_start
from spark_rocket.datasource.stream_offsets import EARLIEST


def batch_ranges(queues: Queues, options: ReadOptions) -> list[OffsetRange]:
    """Return the range that a batch read takes from each queue."""
    selection = QueueSelection(queues, options)
    loss = LossPolicy(options)
    found = selection.complete(loss)
    if problem := selection.problem(found):
        raise problem
    if options.topic_pattern is not None and not found.wanted:
        raise selection.nothing_matches()
    latest = queues.max_offsets(found.wanted)
    starts = resolve_start(queues, options.starting, latest, group=options.consumer_group, loss=loss)
    ends = resolve_end(queues, options.ending, latest, starts, group=options.consumer_group, loss=loss)
    backwards = sorted(queue for queue, end in ends.items() if starts[queue] > end)
    firsts = queues.min_offsets(backwards) if backwards else {}
    for queue in backwards:
        start, end = starts[queue], ends[queue]
        asked = (options.starting.offsets or {}).get(queue, EARLIEST)
        if asked > end or start > firsts[queue]:
            raise error("BAD_OFFSETS.END_BEFORE_START", queue=queue.name, start=start, end=end)
        if end:  # all messages up to the end and beyond were deleted
            loss.all_deleted(queue, max(asked, 0), end, firsts[queue])
        ends[queue] = start
    return ranges_between(starts, ends)
