"""Delivery of timed messages, from ``rmq_sys_wheel_timer`` to their original topics.

A timed message is stored in queue 0 of that topic. Its property TIMER_OUT_MS is the start of the second
(``timerPrecisionMs``) in which it is due. *Enqueueing* writes a unit for it to the timer log, linked into the wheel's
slot of that second. *Dequeueing* loads a slot shortly before its second begins, by reading the chain of its units. It
delivers each message at its own millisecond, given by other properties; messages with equal times go in order of
arrival. A message beyond the wheel's window (two days) goes to an earlier slot and is *rolled* there: stored in the
topic again. A recall is a message too (TIMER_DEL_UNIQKEY: topic + "+" + unique key, or only the unique key), in the
slot of the message that it cancels. All arrived messages are enqueued before any is delivered, so that no recall comes
too late.

:class:`TimerEnqueue` and :class:`TimerDequeue` do the two halves with one :class:`TimerTimes`; this class opens,
rebuilds and saves. Only slots that are due are in memory, with one number per message. Nothing here waits or reads the
system clock: the caller calls :meth:`TimerMessageStore.deliver`, and :meth:`TimerMessageStore.flush` about once a
second. No file exists before the first timed message.

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
from spark_rocket.store.delay.delivered import DeliveredMessages
from spark_rocket.store.delay.redelivery import RETRY_MS, PutRefusedError
from spark_rocket.store.delay.timer_checkpoint import TimerCheckpoint, TimerMark, TimerProgress
from spark_rocket.store.delay.timer_dequeue import TimerDequeue
from spark_rocket.store.delay.timer_enqueue import TimerEnqueue
from spark_rocket.store.delay.timer_log import TimerLog
from spark_rocket.store.delay.timer_times import DEFERRED_SLOTS, TimerTimes
from spark_rocket.store.delay.timer_topic import TimerTopic
from spark_rocket.store.delay.timer_wheel import Slots, TimerLogDamageError, TimerWheel, build_slots, find_end
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_DAY_MS = 86_400_000


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
        self._slots: Slots | None = None  # the wheel's slots, while the disk has no room for its file
        self._delivered = DeliveredMessages(store, "timed messages")
        self._dequeue = TimerDequeue(
            store, self._topic, self._timer_log, self._wheel, self._times, self._delivered, timer
        )
        self._enqueue = TimerEnqueue(
            self._topic, self._timer_log, self._wheel, self._times, self._delivered, self._dequeue, timer
        )
        self._last_error = ""
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
        self._enqueue.next_offset = min(max(saved_offset, first), end)
        if checkpoint.existed:
            late_from = checkpoint.master_timer_queue_offset
            times.resume(checkpoint.last_read_time_ms, now_ms, late_from if late_from < saved_offset else None)
            self._enqueue.missing = max(first - saved_offset, 0)
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
            self._enqueue.next_offset = min(saved_offset, end)
            self._rebuild_after(damage)
            return
        self._enqueue.next_offset = min(max(self._enqueue.next_offset, behind), end)
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

    def _rebuild_after(self, damage: TimerLogDamageError) -> None:
        _log.warning("%s: rebuilding the timer log from the queue of %s.", damage, TIMER_TOPIC)
        self._enqueue.replay_until = self._enqueue.next_offset
        self._rebuild()

    def _rebuild(self) -> None:
        """Drop timer log and wheel, and enqueue the entire queue again. Until then the checkpoint stays unchanged."""
        times = self._times
        if times.late_from is not None:
            self._enqueue.replay_until = min(self._enqueue.replay_until, times.late_from)
        self._timer_log.clear(self._checkpoint.last_timer_log_flush_pos)
        self._wheel.close()
        self._enqueue.next_offset = self._topic.first
        self._delivered.find(self._topic.first_store_time)
        times.loaded_to = times.read_time
        self._dequeue.clear()
        self._progress.forget()

    def checkpoint(self) -> bytes:
        """Return the content of ``timercheck``, for slaves."""
        return self._checkpoint.encode()

    def close(self) -> None:
        """Save all progress up to the last message. Call before the store is closed."""
        try:
            if self._wheel.is_open:
                try:
                    self._dequeue.defer_rest()
                except TimerLogDamageError as damage:
                    self._rebuild_after(damage)
                self._set_mark()
                self._progress.flush_all()
        except (OSError, StoreError) as error:
            _log.error("The last progress of the timer was not saved, the next start reads it from the log: %s", error)
        finally:
            self._wheel.close()
            self._timer_log.close()

    # --- delivering ---------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Enqueue arrived messages and deliver due ones, for about ``budget`` seconds.

        Returns the time of the next call: ``now_ms`` if there is more to do at once, None without timed messages.
        """
        is_idle = not self._wheel.is_open and self._slots is None
        if is_idle and self._enqueue.is_done:
            return None
        deadline = self._timer() + budget
        try:
            self._open_slots()
            done = self._enqueue.run(now_ms, deadline)
            if not self._wheel.is_open:
                return None
            try:
                due = self._dequeue.run(now_ms, deadline) if done else now_ms
            except TimerLogDamageError as damage:
                self._rebuild_after(damage)
                due = now_ms
            if self._delivered and self.is_done_to(self._delivered.until):
                self._delivered.clear()
            self._last_error = ""
            return due if self._enqueue.is_done else now_ms  # rolled messages are in the queue again
        except PutRefusedError:
            return now_ms + RETRY_MS
        except (OSError, StoreError) as error:
            if str(error) != self._last_error:
                _log.error("The timer is blocked and retries every second: %s", error)
            self._last_error = str(error)
            return now_ms + RETRY_MS
        finally:
            self._set_mark()
            missing = self._enqueue.missing + self._dequeue.missing
            if missing:
                _log.warning("%d timed messages were removed from the commit log before they were delivered.", missing)
                self._enqueue.missing = self._dequeue.missing = 0

    def is_done_to(self, time_ms: int) -> bool:
        """Return whether all messages due up to a time have been delivered."""
        if not self._enqueue.is_done:
            return False
        return self._dequeue.is_done_to(time_ms) if self._wheel.is_open else self._slots is None

    def counts_by_topic(self) -> Iterator[dict[int, int]]:
        """Count pending messages in the timer log by the hash code of their topic: counts of consecutive parts."""
        return self._timer_log.counts_by_topic(self._times.read_time) if self._wheel.is_open else iter(())

    def runtime_info(self, now_ms: int) -> dict[str, str]:
        """Return metrics for request 28, under Apache's names."""
        behind = 0 if self.is_done_to(now_ms) else max(now_ms - self._times.read_time, 0) // 1000
        return {
            "timerReadBehind": str(behind),  # seconds
            "timerOffsetBehind": str(max(self._topic.end - self._enqueue.next_offset, 0)),
            "timerCongestNum": str(self._wheel.count_from(self._times.read_time) if self._wheel.is_open else 0),
        }

    @property
    def enqueued(self) -> int:
        """Messages and recalls added to the wheel since the start."""
        return self._enqueue.enqueued

    @property
    def delivered(self) -> int:
        """Messages delivered to their original topics since the start."""
        return self._dequeue.delivered

    @property
    def slots_done(self) -> int:
        """Number of slots with deliveries since the start."""
        return self._dequeue.due.done

    # --- on disk ------------------------------------------------------------------------------------------------

    def _set_mark(self) -> None:
        late_from = self._times.late_from
        if self._wheel.is_open and self._enqueue.next_offset >= self._enqueue.replay_until:
            self._progress.set(
                TimerMark(
                    self._times.read_time,
                    self._enqueue.next_offset,
                    self._timer_log.position,
                    self._dequeue.due.done,
                    self._enqueue.next_offset if late_from is None else min(late_from, self._enqueue.next_offset),
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
