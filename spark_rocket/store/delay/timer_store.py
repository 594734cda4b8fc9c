"""Delivery of timed messages, from ``rmq_sys_wheel_timer`` to their original topics.

A timed message is stored in queue 0 of that topic. Its property TIMER_OUT_MS is the start of the second
(``timerPrecisionMs``) in which it is due. *Enqueueing* writes a unit for it to the timer log, linked into the wheel's
slot of that second. *Dequeueing* loads a slot shortly before its second begins, by reading the chain of its units. It
delivers each message at its own millisecond, given by other properties; messages with equal times go in order of
arrival. A message beyond the wheel's window (two days) goes to an earlier slot and is *rolled* there: stored in the
topic again. A recall is a message too (TIMER_DEL_UNIQKEY: topic + "+" + unique key, or only the unique key), in the
slot of the message that it cancels. All arrived messages are enqueued before any is delivered, so that no recall comes
too late.

Only slots that are due are in memory, with one number per message. Nothing here waits or reads the system clock: the
caller calls :meth:`TimerMessageStore.deliver`, and :meth:`TimerMessageStore.flush` about once a second. No file exists
before the first timed message.

Thread-safety: for the store's one thread; ``flush`` may be called from one other.
After a crash: ``timercheck`` has the read time before which all slots are done. It advances only when their deliveries
are on disk, so none is lost. Messages delivered since then are found in the log and not delivered again (delivered.py).
Damaged or lost timer files are rebuilt from the queue; the log then shows what was delivered since its first message.
Corresponds to org.apache.rocketmq.store.timer.TimerMessageStore.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from spark_rocket.errors import StoreError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import RecordView
from spark_rocket.store.delay.delivered import DeliveredMessages
from spark_rocket.store.delay.redelivery import RETRY_MS, PutRefusedError, redeliver
from spark_rocket.store.delay.timer_checkpoint import Mark, TimerCheckpoint, TimerProgress
from spark_rocket.store.delay.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerLog
from spark_rocket.store.delay.timer_slots import DueSlots, Recall
from spark_rocket.store.delay.timer_times import DEFERRED_SLOTS, TimerTimes
from spark_rocket.store.delay.timer_topic import TimerTopic, due_time, number_of
from spark_rocket.store.delay.timer_wheel import (
    Slots,
    TimerLogDamageError,
    TimerWheel,
    UnitBatch,
    build_slots,
    find_end,
)
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

_HORIZON_MS = 60_000
_DAY_MS = 86_400_000
_LATEST = 1 << 62


class TimerMessageStore:
    """The timer of one store."""

    def __init__(
        self, store: MessageStore, precision_ms: int = 1_000, *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        config = store.config
        self._store = store
        self._topic = TimerTopic(store)
        self._times = TimerTimes(precision_ms, config.timer_wheel_slots, config.timer_roll_window_slot)
        self._timer = timer
        self._wheel = TimerWheel(config.store_path / "timerwheel", precision_ms, config.timer_wheel_slots)
        self._timer_log = TimerLog(config.store_path / "timerlog", config.mapped_file_size_timer_log)
        self._checkpoint = TimerCheckpoint(config.store_path)
        self._next_offset = 0  # of the queue: earlier messages are in the timer log
        self._replay_until = 0  # rebuild: earlier messages that are due before the read time have been delivered
        self._slots: Slots | None = None  # the wheel's slots, while the disk has no room for its file
        self._walk: tuple[int, int] | None = None  # the slot being loaded, and its next unit
        self._due = DueSlots()
        self._delivered = DeliveredMessages(store, "timed messages")
        self._missing = 0
        self._last_error = ""
        self.enqueued = 0
        """Messages and recalls added to the wheel since the start."""
        self.delivered = 0
        """Messages delivered to their original topics since the start."""
        self._progress = TimerProgress(store, self._timer_log, self._wheel, self._checkpoint)

    # --- opening and closing ------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Load the pending messages from the files. StoreCorruptError for damage that needs an operator."""
        checkpoint, log, store, times = self._checkpoint, self._timer_log, self._store, self._times
        checkpoint.load()
        checkpoint.refuse_future(now_ms + _DAY_MS)
        log.load()
        first, end = self._topic.first, self._topic.end
        if checkpoint.existed:
            self._delivered.find(checkpoint.last_read_time_ms - DEFERRED_SLOTS * times.precision)
        elif end > first:
            self._delivered.find(self._topic.first_store_time)
        saved_offset = checkpoint.last_timer_queue_offset
        self._next_offset = min(max(saved_offset, first), end)
        if checkpoint.existed:
            late_from = checkpoint.master_timer_queue_offset
            times.resume(checkpoint.last_read_time_ms, now_ms, late_from if late_from < saved_offset else None)
            self._missing = max(first - saved_offset, 0)
        elif log.files.files:
            _log.warning(
                "%s is missing: delivering the %d messages of %s that are not recalled or, by the log, delivered.",
                checkpoint.path,
                end - first,
                TIMER_TOPIC,
            )
            self._rebuild()
            return
        if not log.files.files and not checkpoint.last_timer_log_flush_pos:
            return
        try:
            position, behind = find_end(
                log,
                checkpoint.last_timer_log_flush_pos,
                store.max_physical_offset,
                times.wheel_end,
                self._topic.number_of,
            )
            log.continue_at(position)
            slots = build_slots(log, times.read_time, times.precision, self._wheel.count)
        except TimerLogDamageError as damage:
            _log.warning("%s: rebuilding the timer log from the queue of %s.", damage, TIMER_TOPIC)
            self._replay_until = min(saved_offset, end)
            self._rebuild()
            return
        self._next_offset = min(max(self._next_offset, behind), end)
        times.loaded_to = times.read_time
        self._slots = slots
        try:
            self._open_slots()
        except OSError as error:
            _log.error("No timed message is delivered: cannot write %s: %s", self._wheel.path, error)
            return
        self._set_mark()

    def _open_slots(self) -> None:
        """Write the wheel built from the timer log. OSError if the disk is full: nothing is delivered then."""
        if self._slots is not None:
            self._wheel.open(self._slots)
            self._slots = None

    def _rebuild(self) -> None:
        """Drop timer log and wheel, and enqueue the entire queue again. Until then the checkpoint stays unchanged."""
        times = self._times
        if times.late_from is not None:
            self._replay_until = min(self._replay_until, times.late_from)
        self._timer_log.clear(self._checkpoint.last_timer_log_flush_pos)
        self._wheel.close()
        self._next_offset = self._topic.first
        self._delivered.find(self._topic.first_store_time)
        times.loaded_to = times.read_time
        self._walk = None
        self._due.clear()
        self._progress.forget()

    def checkpoint(self) -> bytes:
        """Return the content of ``timercheck``, for slaves."""
        return self._checkpoint.encode()

    def close(self) -> None:
        """Save all progress up to the last message. Call before the store is closed."""
        try:
            if self._wheel.is_open:
                self._defer_rest()
                self._set_mark()
                self._progress.flush_all()
        except (OSError, StoreError) as error:
            _log.error("The last progress of the timer was not saved, the next start reads it from the log: %s", error)
        finally:
            self._wheel.close()
            self._timer_log.close()

    def _defer_rest(self) -> None:
        """Move the rest of begun slots to the slot after them, so that the begun slots are done."""
        if not self._due.begun:
            return
        while self._walk is not None:
            self._load_one(*self._walk)
        if not self._due.begun:
            return  # the log turned out to be damaged
        done_to = max(self._due.begun) + self._times.precision
        batch = UnitBatch(self._timer_log, self._wheel, done_to)
        for recall in self._due.recalls_before(done_to):
            batch.add(done_to, MAGIC_DEFAULT | MAGIC_DELETE, *recall)
        for position in self._due.positions():
            unit = self._timer_log.read(position)
            if unit is not None and self._times.slot_of(unit.time_ms) < done_to:
                batch.add(done_to, unit.magic, unit.offset_py, unit.size_py, unit.topic_hash)
        batch.write()
        self._times.defer(done_to)
        self._due.done += len(self._due.begun)

    # --- delivering ---------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Enqueue arrived messages and deliver due ones, for about ``budget`` seconds.

        Returns the time of the next call: ``now_ms`` if there is more to do at once, None without timed messages.
        """
        is_idle = not self._wheel.is_open and self._slots is None
        if is_idle and self._next_offset >= self._topic.end:
            return None
        deadline = self._timer() + budget
        try:
            self._open_slots()
            done = self._enqueue(now_ms, deadline)
            if not self._wheel.is_open:
                return None
            due = self._dequeue(now_ms, deadline) if done else now_ms
            if self._delivered and self.is_done_to(self._delivered.until):
                self._delivered.clear()
            self._last_error = ""
            return due
        except PutRefusedError:
            return now_ms + RETRY_MS
        except (OSError, StoreError) as error:
            if str(error) != self._last_error:
                _log.error("The timer is blocked and retries every second: %s", error)
            self._last_error = str(error)
            return now_ms + RETRY_MS
        finally:
            self._set_mark()
            if self._missing:
                _log.warning(
                    "%d timed messages were removed from the commit log before they were delivered.", self._missing
                )
                self._missing = 0

    def is_done_to(self, time_ms: int) -> bool:
        """Return whether all messages due up to a time have been delivered."""
        if self._next_offset < self._topic.end:
            return False
        if not self._wheel.is_open:
            return self._slots is None
        first = self._due.first_due
        return self._times.slot_of(time_ms) < self._times.loaded_to and (first is None or first > time_ms)

    def counts_by_topic(self) -> Iterator[dict[int, int]]:
        """Count pending messages in the timer log by the hash code of their topic: counts of consecutive parts."""
        return self._timer_log.counts_by_topic(self._times.read_time) if self._wheel.is_open else iter(())

    def runtime_info(self, now_ms: int) -> dict[str, str]:
        """Return metrics for request 28, under Apache's names."""
        behind = 0 if self.is_done_to(now_ms) else max(now_ms - self._times.read_time, 0) // 1000
        return {
            "timerReadBehind": str(behind),  # seconds
            "timerOffsetBehind": str(max(self._topic.end - self._next_offset, 0)),
            "timerCongestNum": str(self._wheel.count_from(self._times.read_time) if self._wheel.is_open else 0),
        }

    @property
    def slots_done(self) -> int:
        """Number of slots with deliveries since the start."""
        return self._due.done

    # --- from the queue into the wheel --------------------------------------------------------------------------

    def _enqueue(self, now_ms: int, deadline: float) -> bool:
        """Write units for arrived messages; return False if the deadline passed before the end."""
        while self._next_offset < self._topic.end:
            if self._timer() >= deadline:
                return False
            views, following, missing = self._topic.read(self._next_offset)
            self._missing += missing
            if not views:
                self._next_offset = following
                continue
            if not self._wheel.is_open:
                self._open_wheel(views[0].store_timestamp)
            batch = UnitBatch(self._timer_log, self._wheel, self._times.slot_of(now_ms))
            loaded: list[tuple[int, int, int]] = []
            for view in views:
                self._enqueue_one(view, batch, loaded)
            batch.write()
            for entry in loaded:
                self._due.push(*entry)
            self._next_offset = following
            self.enqueued += len(views)
        return True

    def _open_wheel(self, first_timestamp: int) -> None:
        """Open an empty wheel; without a read time, it starts at the queue's first message."""
        self._wheel.open()
        self._times.begin(first_timestamp)

    def _enqueue_one(self, view: RecordView, batch: UnitBatch, loaded: list[tuple[int, int, int]]) -> None:
        """Add a unit for a message to the batch, and to ``loaded`` if its slot is in memory."""
        properties = bytes(view.properties)
        out = number_of(properties, b"TIMER_OUT_MS")
        topic = find_property(properties, b"REAL_TOPIC")
        if out is None or topic is None or view.topic != TIMER_TOPIC.encode():
            _log.warning(
                "The message at offset %d of the commit log is not delivered: no TIMER_OUT_MS or REAL_TOPIC.",
                view.physical_offset,
            )
            return
        if self._delivered.take(view, is_roll=True):  # it is in the queue a second time
            return
        times = self._times
        place = times.place(out, batch.write_time, view.queue_offset, self._replay_until)
        if place is None:
            return
        slot, is_rolled = place
        due = slot if is_rolled else due_time(properties, view.store_timestamp, out, times.precision)
        recall = find_property(properties, b"TIMER_DEL_UNIQKEY")
        magic = MAGIC_DEFAULT | MAGIC_ROLL if is_rolled else MAGIC_DEFAULT
        if recall is not None:
            magic |= MAGIC_DELETE
        topic_hash = java_hash(topic.decode("utf-8", "replace"))
        position = batch.add(slot, magic, view.physical_offset, view.size, topic_hash)
        if slot < times.loaded_to or (self._walk is not None and slot == self._walk[0]):
            if recall is not None and not is_rolled:
                self._due.recall(slot, recall, Recall(view.physical_offset, view.size, topic_hash))
            else:
                loaded.append((slot, due, position))

    # --- from the wheel to the original topics ------------------------------------------------------------------

    def _dequeue(self, now_ms: int, deadline: float) -> int:
        target = self._times.target(now_ms)
        turns, rolled = 0, _LATEST
        while self._wheel.is_open:
            turns += 1
            if not turns % 8 and self._timer() >= deadline:
                self._close_slots(now_ms)
                return now_ms
            ready = now_ms if self._walk is None else min(now_ms, self._walk[0] - 1)
            first = self._due.first_due
            if rolled < (_LATEST if first is None else first):
                break  # rolled messages and their recalls must be in the wheel before later messages
            if first is not None and first <= ready and not self._is_of_walked_slot(self._due.first_position):
                if self._deliver_first(now_ms):
                    rolled = first
            elif self._walk is not None:
                self._load_one(*self._walk)
            elif self._times.loaded_to < target:
                self._begin_slot(target)
            else:
                break
        self._close_slots(now_ms)
        if not self._wheel.is_open or self._next_offset < self._topic.end:
            return now_ms
        due = now_ms + _HORIZON_MS if self._due.first_due is None else self._due.first_due
        slot = self._wheel.next_slot(self._times.loaded_to, now_ms + _HORIZON_MS)
        return due if slot is None else min(due, self._times.wake_time(slot, now_ms))

    def _is_of_walked_slot(self, position: int) -> bool:
        """Return whether a (deferred) unit is of the slot being loaded, so that its recalls may be missing."""
        if self._walk is None:
            return False
        unit = self._timer_log.read(position)
        return unit is not None and self._times.slot_of(unit.time_ms) == self._walk[0]

    def _begin_slot(self, target: int) -> None:
        slot_time = self._wheel.next_slot(self._times.loaded_to, target)
        slot = self._wheel.get(slot_time) if slot_time is not None else None
        if slot_time is None or slot is None:
            self._times.loaded_to = target
        else:
            self._times.loaded_to = slot_time
            self._walk = (slot_time, slot.last)

    def _load_one(self, slot: int, position: int) -> None:
        """Load one unit of a slot's chain into the heap."""
        log = self._timer_log
        unit = log.read(position) if position >= log.files.min_offset else None
        if unit is None:  # the end of the chain, or files removed with their messages
            self._walk, self._times.loaded_to = None, slot + self._times.precision
            return
        view = self._topic.message(unit.offset_py, unit.size_py)
        is_valid = view is not None or unit.offset_py < self._store.min_physical_offset  # removed by retention
        if self._times.slot_of(unit.time_ms) != slot or not -1 <= unit.prev_pos < position or not is_valid:
            _log.warning(
                "%s has no valid unit of slot %d at %d: rebuilding the timer log from the queue of %s.",
                log.files.directory,
                slot,
                position,
                TIMER_TOPIC,
            )
            self._replay_until = self._next_offset
            self._rebuild()
            return
        self._walk = (slot, unit.prev_pos)
        if view is None:
            self._missing += 1
            return
        properties = bytes(view.properties)
        recall = find_property(properties, b"TIMER_DEL_UNIQKEY")
        if unit.magic & MAGIC_ROLL:
            self._due.push(slot, slot, position)
        elif recall is not None:
            self._due.recall(slot, recall, Recall(unit.offset_py, unit.size_py, unit.topic_hash))
        else:
            out = number_of(properties, b"TIMER_OUT_MS")
            due = due_time(properties, view.store_timestamp, slot if out is None else out, self._times.precision)
            self._due.push(slot, due, position)

    def _deliver_first(self, now_ms: int) -> bool:
        """Deliver the heap's first message, roll it, or skip it if it is recalled. Return whether it was rolled."""
        unit = self._timer_log.read(self._due.first_position)
        assert unit is not None  # its slot is not done, so its file still exists
        slot = self._times.slot_of(unit.time_ms)
        # Check the CRC: the message is stored again with a new one, which would hide damage.
        view = self._topic.message(unit.offset_py, unit.size_py, check_crc=True)
        if view is None and unit.offset_py < self._store.min_physical_offset:
            self._missing += 1
        elif view is None:
            _log.error(
                "The timed message at offset %d of the commit log is damaged and is not delivered.", unit.offset_py
            )
        else:
            result: PutResult | None = None
            is_roll = bool(unit.magic & MAGIC_ROLL)
            is_wanted = is_roll or not self._due.is_recalled(slot, bytes(view.properties))
            if is_wanted and not self._delivered.take(view, is_roll=is_roll):
                notes = {"TIMER_ENQUEUE_MS": str(unit.write_time), "TIMER_DEQUEUE_MS": str(now_ms)}
                result = self._topic.roll(view, notes) if is_roll else redeliver(self._store, view, notes)
            if result is not None and result.status is PutStatus.SERVICE_NOT_AVAILABLE:
                raise PutRefusedError
            self.delivered += result is not None and not unit.magic & MAGIC_ROLL
        self._due.pop(slot)
        return bool(unit.magic & MAGIC_ROLL)

    def _close_slots(self, now_ms: int) -> None:
        """Mark past slots without pending messages as done."""
        limit = min(self._times.slot_of(now_ms), self._times.loaded_to)
        done_to = self._due.done_to(limit)
        if done_to <= self._times.read_time:
            return
        self._times.finish(done_to)
        self._due.forget_before(done_to)
        self._timer_log.release()

    # --- on disk ------------------------------------------------------------------------------------------------

    def _set_mark(self) -> None:
        late_from = self._times.late_from
        if self._wheel.is_open and self._next_offset >= self._replay_until:
            self._progress.set(
                Mark(
                    self._times.read_time,
                    self._next_offset,
                    self._timer_log.position,
                    self._due.done,
                    self._next_offset if late_from is None else min(late_from, self._next_offset),
                    self._store.max_physical_offset,
                )
            )

    @property
    def dirty(self) -> bool:
        """Whether there is progress to flush, apart from the read time."""
        return self._progress.dirty

    def flush(self) -> None:
        """Flush timer log and wheel, and save the progress if the delivered messages are on disk. OSError."""
        self._progress.flush()
