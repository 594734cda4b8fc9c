"""Decide which messages a batch reads and where it ends, over the ``Queues`` requests and without Spark.

A ``StreamPlanner`` lives in one driver process per query and is called from one thread. Its state (committed offsets,
logged warnings) only saves requests and log lines, so it need not be durable.
Corresponds to KafkaOffsetReader and KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.offsets import EARLIEST, Positions, Stored, StreamOffset, name
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import (
    UNSIZED_BATCH_MESSAGES,
    OffsetRange,
    limit_bytes,
    limit_ends,
    limit_unsized,
    ranges_between,
)
from spark_rocket.datasource.plan.resolve import (
    Queues,
    Seen,
    compare,
    fit,
    resolve_end,
    resolve_start,
    starts_of_new,
)
from spark_rocket.datasource.plan.tasks import Task, plan_tasks
from spark_rocket.datasource.plan.topics import Found, WhatToRead
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

RECHECK_SECONDS = 60.0


def plan_batch(queues: Queues, options: ReadOptions) -> list[Task]:
    """Plan the tasks of a batch read."""
    return plan_tasks(batch_ranges(queues, options), options, queues.known_sizes)


def batch_ranges(queues: Queues, options: ReadOptions) -> list[OffsetRange]:
    """Return the range that a batch read takes from each queue."""
    what = WhatToRead(queues, options)
    loss = LossPolicy(options)
    found = what.complete(loss)
    if problem := what.problem(found):
        raise problem
    if options.topic_pattern is not None and not found.wanted:
        raise what.nothing_matches()
    latest = queues.max_offsets(found.wanted)
    starts = resolve_start(queues, options.starting, latest, group=options.consumer_group, loss=loss)
    ends = resolve_end(queues, options.ending, latest, starts, group=options.consumer_group, loss=loss)
    backwards = sorted(queue for queue, end in ends.items() if starts[queue] > end)
    firsts = queues.min_offsets(backwards) if backwards else {}
    for queue in backwards:
        start, end = starts[queue], ends[queue]
        asked = (options.starting.offsets or {}).get(queue, EARLIEST)
        if asked > end or start > firsts[queue]:
            raise error("BAD_OFFSETS.END_BEFORE_START", queue=name(queue), start=start, end=end)
        if end:  # all messages up to the end and beyond were deleted
            loss.all_deleted(queue, max(asked, 0), end, firsts[queue])
        ends[queue] = start
    return ranges_between(starts, ends)


def replayed(
    queues: Queues, options: ReadOptions, end: StreamOffset, spans: Mapping[MessageQueue, OffsetRange]
) -> list[OffsetRange]:
    """Return what a batch that is planned again can still read: without queues that were recreated, and without
    messages that replaced the planned ones. Raises DataLossError if messages that are still to be read are lost."""
    seen = Seen()
    seen.firsts |= end.firsts
    recreated = seen.recreated(queues, spans.keys())
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


@dataclass(frozen=True)
class _View:
    """The queues and their ends at one time."""

    found: Found
    latest: Positions


class StreamPlanner:
    """Plans the batches of a stream, over the ``Queues`` requests and without Spark."""

    def __init__(self, queues: Queues, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queues = queues
        self._options = options
        self._what = WhatToRead(queues, options)
        self._loss = LossPolicy(options)
        self._pinned: _View | None = None
        self._is_pinned_for = False  # whether the pinned view includes the checkpoint's queues
        self._seen = Seen()
        self._latest: Positions = {}
        self._deleted_queues: set[MessageQueue] = set()
        self._of_deleted_topics: set[MessageQueue] = set()
        self._matches_nothing = False
        self._clock = clock
        self._last_batch: float | None = None
        self._accepted: Positions = {}  # the end of the previous batch, where queues can continue from it
        self._committed: dict[MessageQueue, int] = {}
        self._checked = clock()
        self._compared: float | None = None
        self._logged: set[str] = set()
        self._has_planned = False

    def pin(self) -> None:
        """Make the current ends the end of the stream, for AvailableNow."""
        self._pinned = self._query_ends({})

    def latest_seen(self) -> Positions:
        """Return the queues' ends as of the last request."""
        return self._latest

    def next_end(
        self, previous: StreamOffset | None, max_records: int | None, *, is_limited: bool = True
    ) -> StreamOffset | None:
        """Return where the batch after ``previous`` ends; None if there are no or too few new messages.

        ``is_limited``: apply the limits of the options in addition to ``max_records``.
        """
        known = previous if previous is not None else StreamOffset({})
        before = self._selected(known)
        unselected = {queue: at for queue, at in known.positions.items() if queue not in before}
        view = self._pinned_for(before) or self._query_ends(before)
        if previous is None:
            self._check_all_found(view.found)
            fresh = resolve_start(
                self._queues, self._options.starting, view.latest, group=self._options.consumer_group, loss=self._loss
            )
        else:
            self._note_lost_topics(before, view)
            self._seen.firsts = {**previous.firsts} | self._seen.firsts
            fresh = self._new_starts(before, view.latest, previous.lasts)
        starts = before | fresh
        given = {queue: start for queue, start in starts.items() if queue in fresh or queue not in known.ends}
        is_unchanged = previous is not None and not given and unselected == known.unselected
        checked = view.latest.keys() & before.keys() - {*self._queues.from_slaves}
        self._accepted = {queue: starts[queue] for queue in checked}
        self._commit(self._accepted)
        view = self._with_ends_after(view, starts)
        latest = view.latest
        self._seen.learn(self._queues, {q for q, end in latest.items() if end} - set(self._queues.from_slaves))
        self._note_absent(starts, view)
        begin = {queue: starts[queue] for queue in latest}
        if is_limited and is_unchanged and self._has_too_few(begin, latest):
            return None
        upto = limit_ends(begin, latest, max_records) if max_records is not None else dict(latest)
        if is_limited and self._options.max_bytes_per_trigger is not None:
            upto = self._limited(begin, upto, self._options.max_bytes_per_trigger)
        ends = starts | upto
        if is_unchanged and ends == known.ends:
            return None
        self._last_batch = self._clock()
        self._has_planned = True
        firsts = {queue: first for queue, first in self._seen.firsts.items() if queue in ends or queue in unselected}
        return StreamOffset(ends, given, firsts, self._lasts(known, ends, fresh), unselected)

    def _selected(self, offset: StreamOffset) -> dict[MessageQueue, int]:
        """Return the positions of the selected queues. A queue that was read and is no longer selected is a loss."""
        dropped = {queue: at for queue, at in offset.ends.items() if not self._what.has(queue)}
        if dropped:
            self._loss.not_selected(*self._options.selection, dropped)
        return {queue: at for queue, at in offset.positions.items() if self._what.has(queue)}

    def _lasts(self, known: StreamOffset, ends: Positions, fresh: Positions) -> Stored:
        """Return the last messages before the ends: requested for queues that moved, else (or if unknown) as before."""
        before = known.positions
        moved = {queue: end - 1 for queue, end in ends.items() if end and (queue in fresh or end != before.get(queue))}
        lasts = {queue: (moved[queue], stored) for queue, stored in self._queues.store_times(moved).items()}
        return {queue: last for queue, last in known.lasts.items() if queue not in fresh} | lasts

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
        there = self._what.readable({span.queue.topic for span in spans})
        asked = {span.queue: span for span in spans if span.queue in there}  # the tasks check the others
        self._queues.max_offsets(asked.keys(), {queue: span.end for queue, span in asked.items()})
        for queue in self._queues.from_slaves:  # their masters are unavailable
            asked.pop(queue, None)
        left = {span.queue: span for span in replayed(self._queues, self._options, end, asked)}
        return [left.get(span.queue, span) for span in spans if span.queue in left or span.queue not in asked]

    def _pinned_for(self, before: Positions) -> _View | None:
        """Return the pinned view. It was pinned without the checkpoint: if that has more queues, pin again, once."""
        if self._pinned is not None and not self._is_pinned_for:
            self._is_pinned_for = True
            if before.keys() - self._pinned.latest.keys():
                self._pinned = self._query_ends(before)
        return self._pinned

    def _query_ends(self, before: Positions) -> _View:
        found = self._what.complete(self._loss, before)
        self._latest = self._queues.max_offsets(found.wanted, before)
        if self._queues.from_slaves:
            slaves = sorted({queue.broker_name for queue in self._queues.from_slaves})
            self._log_once(
                f"The masters of {', '.join(slaves)} are unavailable: reading from their slaves, which may lag."
            )
        return _View(found, self._latest)

    def _with_ends_after(self, view: _View, starts: Positions) -> _View:
        """Return the view without ends before starts: retention may delete past an end that is cached or pinned."""
        latest = {queue: max(end, starts[queue]) for queue, end in view.latest.items()}
        if latest != view.latest:
            view = _View(view.found, latest)
            if self._pinned is not None:
                self._pinned = view
        return view

    def _limited(self, starts: Positions, ends: dict[MessageQueue, int], max_bytes: int) -> dict[MessageQueue, int]:
        limited = limit_bytes(starts, ends, max_bytes, self._queues.message_sizes)
        if limited is None:
            self._log_once(
                "The brokers do not report message sizes, so maxBytesPerTrigger cannot be applied: "
                f"a batch reads {UNSIZED_BATCH_MESSAGES} messages of each queue instead."
            )
            limited = limit_unsized(starts, ends)
        return limited

    def _has_too_few(self, starts: Positions, latest: Positions) -> bool:
        """Return whether there are too few messages yet. The first batch of a query or of a restart does not wait."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._pinned is not None or self._last_batch is None:
            return False
        if self._clock() - self._last_batch >= self._options.max_trigger_delay_ms / 1000:
            return False
        return sum(latest[queue] - starts[queue] for queue in latest) < least

    def _check_all_found(self, found: Found, known: Collection[MessageQueue] = ()) -> None:
        problem = self._what.problem(found, known)
        if self._options.topic_pattern is not None and not found.wanted and not self._matches_nothing:
            self._matches_nothing = True  # check and log once
            self._log_once(f"{self._what.nothing_matches().message} Waiting for matching topics.")
        if problem is None:
            return
        if not self._options.wait_for_topic:
            raise problem
        self._log_once(f"{problem.message} Waiting for it (waitForTopic=true).")

    def _note_lost_topics(self, before: Positions, view: _View) -> None:
        """Handle missing topics: deleted, waited for, or never created."""
        read = {queue.topic for queue in before}
        for topic in sorted(view.found.missing.keys() & read):
            if topic not in view.found.unavailable:
                self._loss.topic_deleted(topic, before)
            self._of_deleted_topics.update(queue for queue in before if queue.topic == topic)
        self._check_all_found(view.found, before)

    def _new_starts(self, before: Positions, latest: Positions, lasts: Stored) -> dict[MessageQueue, int]:
        """Return the starts that are not the end of the previous batch: new queues, and queues after data loss."""
        moved: dict[MessageQueue, int] = {}
        new = latest.keys() - before.keys()
        for position, queues in starts_of_new(self._options.starting, new):
            ends = {queue: latest[queue] for queue in queues}
            moved |= resolve_start(self._queues, position, ends, group=self._options.consumer_group, loss=self._loss)
        # A slave's log may begin and end elsewhere, so it cannot show that messages were lost.
        slaves = self._queues.from_slaves
        old = {queue: before[queue] for queue in latest if queue not in new and queue not in slaves}
        suspects = self._of_deleted_topics & old.keys()
        now = self._clock()
        if self._compared is None or now - self._compared >= RECHECK_SECONDS:
            self._compared = now
            self._seen.asked.clear()
            suspects = {*old}
        fitted = fit(self._queues, old, latest, self._loss, self._seen, suspects, lasts)
        self._of_deleted_topics -= suspects
        return moved | {queue: start for queue, start in fitted.items() if start != before[queue]}

    def _note_absent(self, starts: Positions, view: _View) -> None:
        self._deleted_queues -= view.latest.keys()
        absent = sorted(starts.keys() - view.latest.keys() - self._deleted_queues - view.found.queues)
        brokers = {(queue.topic, queue.broker_name) for queue in view.found.queues} if absent else set()
        for queue in absent:
            if (queue.topic, queue.broker_name) not in brokers:
                self._log_once(f"{name(queue)} cannot be read now; the stream keeps its position.")
                continue
            # The broker has the topic with fewer queues. A queue that was read to its end is not a loss.
            if self._queues.max_offsets([queue])[queue] != starts[queue]:
                self._loss.queue_deleted(queue, starts[queue])
            self._deleted_queues.add(queue)

    def commit(self, offset: StreamOffset) -> None:
        """Commit the group's offsets up to ``offset`` on the brokers, for the queues whose end was checked.

        An unchecked offset may be beyond the end of a recreated queue, and the group would miss its next messages.
        """
        self._commit({queue: end for queue, end in offset.ends.items() if self._accepted.get(queue) == end})

    def _commit(self, positions: Positions) -> None:
        """Commit the group's next offsets on the brokers.

        These offsets are for people and tools. The checkpoint is authoritative, so a failure is logged and the query
        continues. An unavailable broker is not waited for; a later trigger commits there. Committed offsets are checked
        again every ``RECHECK_SECONDS``, because a broker that was killed may have lost them.
        """
        group = self._options.consumer_group
        if group is None:
            return
        now = self._clock()
        if now - self._checked >= RECHECK_SECONDS:
            self._committed.clear()
            self._checked = now
        ends = {queue: end for queue, end in positions.items() if self._committed.get(queue) != end}
        failed = self._queues.commit_offsets(group, ends)
        self._committed |= {queue: end for queue, end in ends.items() if queue not in failed}
        for queue, reason in failed.items():
            self._log_once(f"the offset of group {group} could not be committed for {name(queue)}: {reason}")

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s", text)
