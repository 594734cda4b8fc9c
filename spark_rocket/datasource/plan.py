"""What a batch takes and where it ends: the decisions of reading, over the ``Queues`` questions and without Spark.

A ``StreamPlanner`` lives in one driver process per query and is called from one thread; what it remembers (what was
committed, what was said) only saves requests and log lines, so nothing is lost with it.
Corresponds to KafkaOffsetReader and KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_rocket.datasource.offsets import Positions, StreamOffset, name
from spark_rocket.datasource.option_parsers import Position, Start
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.ranges import OffsetRange, limit_ends, ranges_between, split
from spark_rocket.datasource.resolve import LossPolicy, Queues, fit, resolve_end, resolve_start
from spark_rocket.errors import OffsetsError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

RECHECK_SECONDS = 60.0


def plan_batch(queues: Queues, options: ReadOptions) -> list[OffsetRange]:
    """Decide what a batch read takes, and how it is cut."""
    return split(
        batch_ranges(queues, options),
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )


def batch_ranges(queues: Queues, options: ReadOptions) -> list[OffsetRange]:
    """What a batch read takes of each queue."""
    latest = queues.max_offsets(queues.queues(options.topics))
    ends = resolve_end(queues, options.ending, latest)
    starts = resolve_start(
        queues,
        options.starting,
        latest,
        group=options.consumer_group,
        loss=LossPolicy(options),
    )
    for queue, end in ends.items():
        if starts[queue] > end:
            raise OffsetsError(
                f"{name(queue)} would be read from {starts[queue]} to {end}: the end is before the start.",
                remedy="Check startingOffsets and endingOffsets (or the time stamps).",
            )
    return ranges_between(starts, ends)


class StreamPlanner:
    """All of the stream's decisions, over the ``Queues`` questions and without Spark."""

    def __init__(self, queues: Queues, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queues = queues
        self._options = options
        self._loss = LossPolicy(options)
        self._pinned: dict[MessageQueue, int] | None = None
        self._seen: dict[MessageQueue, int] = {}
        self._clock = clock
        self._committed: dict[MessageQueue, int] = {}
        self._checked = clock()
        self._said: set[str] = set()

    def pin(self) -> None:
        """Take what is there now as the end of all, for AvailableNow."""
        self._pinned = self._latest()

    def latest_seen(self) -> Positions:
        """The queues' ends when last asked."""
        return self._seen

    def next_end(self, previous: StreamOffset | None, max_records: int | None) -> StreamOffset | None:
        """Where the batch after ``previous`` ends; None if there is nothing new."""
        latest = self._pinned if self._pinned is not None else self._latest()
        if previous is not None:
            self.commit(previous)
        if previous is None:
            fresh = resolve_start(
                self._queues, self._options.starting, latest, group=self._options.consumer_group, loss=self._loss
            )
            starts = dict(fresh)
        else:
            before = {q: end for q, end in previous.ends.items() if q.topic in self._options.topics}
            fresh = self._moved(before, latest)
            starts = before | fresh
        self._note_absent(starts, latest)
        known = {queue: starts[queue] for queue in latest}
        ends = dict(starts)
        ends |= limit_ends(known, latest, max_records) if max_records is not None else latest
        if previous is not None and not fresh and ends == previous.ends:
            return None
        return StreamOffset(ends, fresh)

    def _moved(self, before: Positions, latest: Positions) -> dict[MessageQueue, int]:
        """Starts that are not the end of the batch before: new queues, and after a loss that may be passed over.

        A new queue may be one whose broker was away at the start. ``group`` and ``timestamp`` mean the same then and
        now; for the other ways the first message is the one start that loses nothing.
        """
        position = self._options.starting
        if position.kind not in (Start.GROUP, Start.TIMESTAMP):
            position = Position(Start.EARLIEST)
        new = {queue: end for queue, end in latest.items() if queue not in before}
        moved = resolve_start(self._queues, position, new, group=self._options.consumer_group, loss=self._loss)
        old = {queue: before[queue] for queue in latest if queue not in new}
        fitted = fit(self._queues, old, latest, self._loss)
        return moved | {queue: start for queue, start in fitted.items() if start != before[queue]}

    def _latest(self) -> dict[MessageQueue, int]:
        self._seen = self._queues.max_offsets(self._queues.queues(self._options.topics))
        return dict(self._seen)

    def _note_absent(self, starts: Positions, latest: Positions) -> None:
        for queue in starts.keys() - latest.keys():
            self._say(f"{name(queue)} has no readable broker now; its position is kept until it is back.")

    def commit(self, offset: StreamOffset) -> None:
        """Tell the brokers what the group has processed: the next offset, never backwards.

        It is for people and tools to see. The checkpoint is the truth, so a failure is logged and the query goes on;
        a broker that is away is not waited for but told at a later trigger. What brokers were told is looked at again
        now and then, for a broker that was killed may have forgotten it.
        """
        group = self._options.consumer_group
        if group is None:
            return
        now = self._clock()
        if now - self._checked >= RECHECK_SECONDS:
            self._committed.clear()
            self._checked = now
        ends = {
            queue: end
            for queue, end in offset.ends.items()
            if queue in self._seen and self._committed.get(queue, -1) < end
        }
        untold = self._queues.commit_offsets(group, ends)
        self._committed |= {queue: end for queue, end in ends.items() if queue not in untold}
        for queue, error in untold.items():
            self._say(f"the offset of group {group} could not be committed for {name(queue)}: {error}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
