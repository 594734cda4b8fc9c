"""Plan the batches of a stream: takes the steps of ``step.py``, and commits the group's offsets.

A ``StreamPlanner`` lives in one driver process per query and is called from one thread. Its state (the memory of the
steps, committed offsets, logged warnings) need not be durable: a new planner continues from the checkpoint.
Corresponds to KafkaOffsetReader and KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.losses import replayed
from spark_rocket.datasource.plan.queue_selection import QueueSelection
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.plan.step import (
    RECHECK_SECONDS,
    Context,
    Memory,
    choose_ends,
    find_starts,
    pinned,
    selected,
)
from spark_rocket.datasource.plan.tasks import Task, plan_tasks
from spark_rocket.datasource.stream_offsets import Positions, StreamOffset
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")


class StreamPlanner:
    """Plans the batches of a stream, over the ``Queues`` requests and without Spark."""

    def __init__(self, queues: Queues, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        note = _NoteOnce()
        self._context = Context(queues, options, QueueSelection(queues, options), LossPolicy(options), note)
        self._memory = Memory()
        self._clock = clock
        self._accepted: Positions = {}  # the end of the previous batch, where queues can continue from it
        self._group = GroupOffsets(queues, options.consumer_group, clock, note)
        self._has_planned = False

    def pin(self) -> None:
        """Make the current ends the end of the stream, for AvailableNow."""
        self._memory = pinned(self._context, self._memory)

    def latest_seen(self) -> Positions:
        """Return the queues' ends as of the last request."""
        return self._memory.latest

    def next_end(
        self, previous: StreamOffset | None, max_records: int | None, *, is_limited: bool = True
    ) -> StreamOffset | None:
        """Return where the batch after ``previous`` ends; None if there are no or too few new messages.

        ``is_limited``: apply the limits of the options in addition to ``max_records``.
        """
        begun = find_starts(self._context, previous, self._memory, self._clock())
        self._accepted = begun.accepted
        self._group.commit(begun.accepted)
        planned = choose_ends(self._context, begun, self._clock(), max_records, is_limited=is_limited)
        self._memory = planned.memory
        self._has_planned = self._has_planned or planned.end is not None
        return planned.end

    def tasks(self, end: StreamOffset, spans: list[OffsetRange]) -> list[Task]:
        """Plan the tasks of the batch that ends at ``end``."""
        return plan_tasks(self.remaining(end, spans), self._context.options, self._context.queues.known_sizes)

    def remaining(self, end: StreamOffset, spans: list[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges that a batch can still read. If another process planned the batch and did not finish it,
        verify that its queues are still the same ones. This check runs once per process."""
        if self._has_planned:
            return spans
        self._has_planned = True
        selected(self._context, end)
        queues = self._context.queues
        there = self._context.selection.readable({span.queue.topic for span in spans})
        asked = {span.queue: span for span in spans if span.queue in there}  # the tasks check the others
        queues.max_offsets(asked.keys(), {queue: span.end for queue, span in asked.items()})
        for queue in queues.from_slaves:  # their masters are unavailable
            asked.pop(queue, None)
        left = {span.queue: span for span in replayed(queues, self._context.options, end, asked)}
        return [left.get(span.queue, span) for span in spans if span.queue in left or span.queue not in asked]

    def commit(self, offset: StreamOffset) -> None:
        """Commit the group's offsets up to ``offset`` on the brokers, for the queues whose end was checked.

        An unchecked offset may be beyond the end of a recreated queue, and the group would miss its next messages.
        """
        self._group.commit({queue: end for queue, end in offset.ends.items() if self._accepted.get(queue) == end})


class GroupOffsets:
    """Commits the group's next offsets on the brokers, for people and tools: the checkpoint is authoritative.

    A failure is logged, and the query continues. An unavailable broker is not waited for; a later trigger commits
    there. Committed offsets are checked again every ``RECHECK_SECONDS``: a broker that was killed may have lost them.
    """

    def __init__(
        self, queues: Queues, group: str | None, clock: Callable[[], float], note: Callable[[str], None]
    ) -> None:
        self._queues = queues
        self._group = group
        self._clock = clock
        self._note = note
        self._committed: dict[MessageQueue, int] = {}
        self._checked = clock()

    def commit(self, positions: Positions) -> None:
        if self._group is None:
            return
        now = self._clock()
        if now - self._checked >= RECHECK_SECONDS:
            self._committed.clear()
            self._checked = now
        ends = {queue: end for queue, end in positions.items() if self._committed.get(queue) != end}
        failed = self._queues.commit_offsets(self._group, ends)
        self._committed |= {queue: end for queue, end in ends.items() if queue not in failed}
        for queue, reason in failed.items():
            self._note(f"the offset of group {self._group} could not be committed for {queue.name}: {reason}")


class _NoteOnce:
    """Logs each text once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s", text)
