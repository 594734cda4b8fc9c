"""Plan the batches of a stream: from the checkpoint and the cluster's responses to the end of the next batch.

=========================  ============================================================================================
``Memory``                 what a query remembers between steps beside its checkpoint. Empty after a restart
``find_starts``            where the next batch begins: that of the checkpoint, except for new queues and after a loss
``choose_ends``            where it ends: at the ends of the queues, or as far as the limits allow
=========================  ============================================================================================

``find_starts`` and ``choose_ends`` are functions of their arguments and of the responses: they return the next
``Memory`` and change nothing, except that losses are raised or logged. ``next_end`` takes both and keeps the memory, so
a step that raises an error leaves the former one and can be repeated. The end has all that is needed to read the batch
again (``stream_offsets.py``).

A ``StreamPlanner`` lives in one driver process per query and is called from one thread. Its state (the memory,
committed offsets, logged warnings) need not be durable: a new planner continues from the checkpoint.
Corresponds to KafkaOffsetReader and KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.losses import Seen, fit, replayed
from spark_rocket.datasource.plan.queue_selection import FoundQueues, QueueSelection
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.plan.ranges import (
    UNSIZED_BATCH_MESSAGES,
    OffsetRange,
    limit_bytes,
    limit_ends,
    limit_unsized,
)
from spark_rocket.datasource.plan.resolve import resolve_start, starts_of_new
from spark_rocket.datasource.plan.tasks import Task, plan_tasks
from spark_rocket.datasource.stream_offsets import Positions, Stored, StreamOffset
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

RECHECK_SECONDS = 60.0


@dataclass(frozen=True, eq=False, repr=False)
class StreamEnds(FrozenValue):
    """The queues and their ends at one time."""

    found: FoundQueues
    latest: Positions
    slaves: frozenset[MessageQueue]
    """The queues whose end a slave reported. It may end elsewhere, so it cannot show that messages were lost."""


@dataclass(frozen=True, eq=False, repr=False)
class Memory(FrozenValue):
    """What a query remembers between steps beside its checkpoint."""

    seen: Seen = field(default_factory=Seen)
    latest: Positions = field(default_factory=dict)
    """The ends of the queues as of the last request."""
    pinned: StreamEnds | None = None
    """The end of the stream, for AvailableNow."""
    is_pinned_for_checkpoint: bool = False
    suspects: frozenset[MessageQueue] = frozenset()
    """Queues of topics that were missing: if they exist again, they may be others."""
    deleted: frozenset[MessageQueue] = frozenset()
    """Queues that are known to be deleted."""
    compared: float | None = None
    """When all queues were last checked for being recreated."""
    last_batch: float | None = None
    matched_nothing: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Begun(FrozenValue):
    """Where the next batch begins."""

    known: StreamOffset
    """The end of the batch before."""
    starts: Positions
    fresh: Positions
    """The starts that are not the end of the batch before: of new queues, and after a loss."""
    unselected: Positions
    accepted: Positions
    """The starts of queues that were checked and exist."""
    view: StreamEnds
    memory: Memory
    is_first: bool

    @property
    def given(self) -> dict[MessageQueue, int]:
        """The starts that the offset must contain."""
        return {queue: at for queue, at in self.starts.items() if queue in self.fresh or queue not in self.known.ends}

    @property
    def is_unchanged(self) -> bool:
        return not self.is_first and not self.given and self.unselected == self.known.unselected


class StreamPlanner:
    """Plans the batches of a stream, over the ``Queues`` requests and without Spark."""

    def __init__(self, queues: Queues, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queues = queues
        self._options = options
        self._selection = QueueSelection(queues, options)
        self._loss = LossPolicy(options)
        self._note = _NoteOnce()
        self._memory = Memory()
        self._clock = clock
        self._accepted: Positions = {}  # the end of the previous batch, where queues can continue from it
        self._group = GroupOffsets(queues, options.consumer_group, clock, self._note)
        self._has_planned = False

    def pin(self) -> None:
        """Make the current ends the end of the stream, for AvailableNow."""
        view = self._look({})
        self._memory = replace(self._memory, pinned=view, latest=view.latest)

    def latest_seen(self) -> Positions:
        """Return the queues' ends as of the last request."""
        return self._memory.latest

    def next_end(
        self, previous: StreamOffset | None, max_records: int | None, *, is_limited: bool = True
    ) -> StreamOffset | None:
        """Return where the batch after ``previous`` ends; None if there are no or too few new messages.

        ``is_limited``: apply the limits of the options in addition to ``max_records``.
        """
        begun = self.find_starts(previous, self._memory, self._clock())
        self._accepted = begun.accepted
        self._group.commit(begun.accepted)
        end, self._memory = self.choose_ends(begun, self._clock(), max_records, is_limited=is_limited)
        self._has_planned = self._has_planned or end is not None
        return end

    def tasks(self, end: StreamOffset, spans: list[OffsetRange]) -> list[Task]:
        """Plan the tasks of the batch that ends at ``end``."""
        return plan_tasks(self.remaining(end, spans), self._options, self._queues.known_sizes)

    def remaining(self, end: StreamOffset, spans: list[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges that a batch can still read. If another process planned the batch and did not finish it,
        verify that its queues are still the same ones. This check runs once per process."""
        if self._has_planned:
            return spans
        self._has_planned = True
        self._selected(end)
        queues = self._queues
        there = self._selection.readable({span.queue.topic for span in spans})
        asked = {span.queue: span for span in spans if span.queue in there}  # the tasks check the others
        queues.max_offsets(asked.keys(), {queue: span.end for queue, span in asked.items()})
        for queue in queues.from_slaves:  # their masters are unavailable
            asked.pop(queue, None)
        left = {span.queue: span for span in replayed(queues, self._options, end, asked)}
        return [left.get(span.queue, span) for span in spans if span.queue in left or span.queue not in asked]

    def commit(self, offset: StreamOffset) -> None:
        """Commit the group's offsets up to ``offset`` on the brokers, for the queues whose end was checked.

        An unchecked offset may be beyond the end of a recreated queue, and the group would miss its next messages.
        """
        self._group.commit({queue: end for queue, end in offset.ends.items() if self._accepted.get(queue) == end})

    # --- starts ------------------------------------------------------------------------------------------------------

    def find_starts(self, previous: StreamOffset | None, memory: Memory, now: float) -> Begun:
        """Return where the batch after ``previous`` begins."""
        known = previous if previous is not None else StreamOffset({})
        before = self._selected(known)
        unselected = {queue: at for queue, at in known.positions.items() if queue not in before}
        view, memory = self._view_for(before, memory)
        if previous is None:
            memory = self._check_all_found(view.found, (), memory)
            options = self._options
            group = options.consumer_group
            fresh = resolve_start(self._queues, options.starting, view.latest, group=group, loss=self._loss)
        else:
            memory = self._note_lost_topics(before, view, memory)
            firsts = {**previous.firsts, **memory.seen.firsts}
            memory = replace(memory, seen=replace(memory.seen, firsts=firsts))
            fresh, memory = self._new_starts(before, view, previous.lasts, memory, now)
        starts = before | fresh
        checked = (view.latest.keys() & before.keys()) - view.slaves
        accepted = {queue: starts[queue] for queue in checked}
        return Begun(known, starts, fresh, unselected, accepted, view, memory, previous is None)

    def _view_for(self, before: Positions, memory: Memory) -> tuple[StreamEnds, Memory]:
        """Return the pinned view, or the current one.

        A view is pinned without the checkpoint: if that has more queues, pin again, once.
        """
        view = memory.pinned
        if view is None:
            view = self._look(before)
            return view, replace(memory, latest=view.latest)
        if not memory.is_pinned_for_checkpoint:
            memory = replace(memory, is_pinned_for_checkpoint=True)
            if before.keys() - view.latest.keys():
                view = self._look(before)
                memory = replace(memory, pinned=view, latest=view.latest)
        return view, memory

    def _look(self, before: Positions) -> StreamEnds:
        found = self._selection.complete(self._loss, before)
        latest = self._queues.max_offsets(found.wanted, before)
        slaves = frozenset(self._queues.from_slaves)
        if slaves:
            names = ", ".join(sorted({queue.broker_name for queue in slaves}))
            self._note(f"The masters of {names} are unavailable: reading from their slaves, which may lag.")
        return StreamEnds(found, latest, slaves)

    def _check_all_found(self, found: FoundQueues, known: Collection[MessageQueue], memory: Memory) -> Memory:
        problem = self._selection.problem(found, known)
        if self._options.topic_pattern is not None and not found.wanted and not memory.matched_nothing:
            memory = replace(memory, matched_nothing=True)  # check and log once
            self._note(f"{self._selection.nothing_matches().message} Waiting for matching topics.")
        if problem is None:
            return memory
        if not self._options.wait_for_topic:
            raise problem
        self._note(f"{problem.message} Waiting for it (waitForTopic=true).")
        return memory

    def _note_lost_topics(self, before: Positions, view: StreamEnds, memory: Memory) -> Memory:
        """Handle missing topics: deleted, waited for, or never created."""
        missing = view.found.missing.keys() & {queue.topic for queue in before}
        for topic in sorted(missing - view.found.unavailable):
            self._loss.topic_deleted(topic, before)
        lost = {queue for queue in before if queue.topic in missing}
        memory = replace(memory, suspects=memory.suspects | lost)
        return self._check_all_found(view.found, before, memory)

    def _new_starts(
        self, before: Positions, view: StreamEnds, lasts: Stored, memory: Memory, now: float
    ) -> tuple[dict[MessageQueue, int], Memory]:
        """Return the starts that are not the end of the previous batch: new queues, and queues after data loss."""
        moved: dict[MessageQueue, int] = {}
        options, latest = self._options, view.latest
        new = latest.keys() - before.keys()
        for position, queues in starts_of_new(options.starting, new):
            ends = {queue: latest[queue] for queue in queues}
            moved |= resolve_start(self._queues, position, ends, group=options.consumer_group, loss=self._loss)
        old = {queue: before[queue] for queue in latest if queue not in new and queue not in view.slaves}
        seen, compared = memory.seen, memory.compared
        suspects = memory.suspects & old.keys()
        # The first message is about to be learned: until then the last one tells whether the queue is still the same.
        suspects |= {queue for queue in old if queue not in seen.firsts and queue not in seen.asked}
        if compared is None or now - compared >= RECHECK_SECONDS:
            compared, seen, suspects = now, replace(seen, asked=frozenset()), frozenset(old)
        fitted, seen = fit(self._queues, old, latest, self._loss, seen, suspects, lasts)
        moved |= {queue: start for queue, start in fitted.items() if start != before[queue]}
        return moved, replace(memory, seen=seen, compared=compared, suspects=memory.suspects - suspects)

    def _selected(self, offset: StreamOffset) -> dict[MessageQueue, int]:
        """Return the positions of the selected queues. A queue that was read and is no longer selected is a loss."""
        dropped = {queue: at for queue, at in offset.ends.items() if not self._selection.has(queue)}
        if dropped:
            self._loss.not_selected(*self._options.selection, dropped)
        return {queue: at for queue, at in offset.positions.items() if self._selection.has(queue)}

    # --- ends --------------------------------------------------------------------------------------------------------

    def choose_ends(
        self, begun: Begun, now: float, max_records: int | None = None, *, is_limited: bool = True
    ) -> tuple[StreamOffset | None, Memory]:
        """Return where the batch ends; None if there are no or too few new messages.

        ``is_limited``: apply the limits of the options in addition to ``max_records``.
        """
        starts, memory = begun.starts, begun.memory
        # Retention may delete past an end that is cached or pinned.
        latest = {queue: max(end, starts[queue]) for queue, end in begun.view.latest.items()}
        if memory.pinned is not None:
            memory = replace(memory, pinned=replace(begun.view, latest=latest))
        filled = {queue for queue, end in latest.items() if end} - begun.view.slaves
        memory = replace(memory, seen=memory.seen.learned(self._queues, filled))
        memory = self._note_absent(starts, latest, begun.view.found, memory)
        begin = {queue: starts[queue] for queue in latest}
        if is_limited and begun.is_unchanged and self._has_too_few(begin, latest, memory, now):
            return None, memory
        upto = limit_ends(begin, latest, max_records) if max_records is not None else dict(latest)
        if is_limited and self._options.max_bytes_per_trigger is not None:
            upto = self._limited(begin, upto, self._options.max_bytes_per_trigger)
        ends = {**starts, **upto}
        if begun.is_unchanged and ends == begun.known.ends:
            return None, memory
        kept = ends.keys() | begun.unselected.keys()
        firsts = {queue: first for queue, first in memory.seen.firsts.items() if queue in kept}
        lasts = self._lasts(begun, ends)
        end = StreamOffset(ends, begun.given, firsts, lasts, begun.unselected)
        return end, replace(memory, last_batch=now)

    def _lasts(self, begun: Begun, ends: Positions) -> Stored:
        """Return the last messages before the ends: requested for queues that moved, else (or if unknown) as before."""
        before, fresh = begun.known.positions, begun.fresh
        moved = {queue: end - 1 for queue, end in ends.items() if end and (queue in fresh or end != before.get(queue))}
        lasts = {queue: (moved[queue], stored) for queue, stored in self._queues.store_times(moved).items()}
        return {queue: last for queue, last in begun.known.lasts.items() if queue not in fresh} | lasts

    def _limited(self, starts: Positions, ends: dict[MessageQueue, int], max_bytes: int) -> dict[MessageQueue, int]:
        limited = limit_bytes(starts, ends, max_bytes, self._queues.message_sizes)
        if limited is None:
            self._note(
                "The brokers do not report message sizes, so maxBytesPerTrigger cannot be applied: "
                f"a batch reads {UNSIZED_BATCH_MESSAGES} messages of each queue instead."
            )
            limited = limit_unsized(starts, ends)
        return limited

    def _has_too_few(self, starts: Positions, latest: Positions, memory: Memory, now: float) -> bool:
        """Return whether there are too few messages yet. The first batch of a query or of a restart does not wait."""
        options = self._options
        least = options.min_offsets_per_trigger
        if least is None or memory.pinned is not None or memory.last_batch is None:
            return False
        if now - memory.last_batch >= options.max_trigger_delay_ms / 1000:
            return False
        return sum(latest[queue] - starts[queue] for queue in latest) < least

    def _note_absent(self, starts: Positions, latest: Positions, found: FoundQueues, memory: Memory) -> Memory:
        deleted = set(memory.deleted - latest.keys())
        absent = sorted(starts.keys() - latest.keys() - deleted - found.queues)
        brokers = {(queue.topic, queue.broker_name) for queue in found.queues} if absent else set()
        for queue in absent:
            if (queue.topic, queue.broker_name) not in brokers:
                self._note(f"{queue.name} cannot be read now; the stream keeps its position.")
                continue
            # The broker has the topic with fewer queues. A queue that was read to its end is not a loss.
            if self._queues.max_offsets([queue])[queue] != starts[queue]:
                self._loss.queue_deleted(queue, starts[queue])
            deleted.add(queue)
        return replace(memory, deleted=frozenset(deleted))


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
