"""The first half of the timer: from ``rmq_sys_wheel_timer`` into timer log and wheel.

Each message gets a unit in the timer log, linked into the wheel's slot of its time (timer_times.py). If that slot is
already in memory, the message or recall is added there too.

Thread-safety: for the timer's thread. After a crash: the queue is read again from the saved offset.
Corresponds to TimerMessageStore.{enqueue, doEnqueue}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import RecordView
from spark_rocket.store.delay.delivered import DeliveredMessages
from spark_rocket.store.delay.timer_dequeue import Recall, TimerDequeue
from spark_rocket.store.delay.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerLog
from spark_rocket.store.delay.timer_times import TimerTimes
from spark_rocket.store.delay.timer_topic import TimerTopic, due_time, number_of
from spark_rocket.store.delay.timer_wheel import TimerWheel, UnitBatch

_log = logging.getLogger(__name__)


class TimerEnqueue:
    """The reader of one timer's queue."""

    def __init__(
        self,
        topic: TimerTopic,
        log: TimerLog,
        wheel: TimerWheel,
        times: TimerTimes,
        delivered: DeliveredMessages,
        dequeue: TimerDequeue,
        timer: Callable[[], float],
    ) -> None:
        """``timer``: the clock of deadlines, in seconds."""
        self._topic = topic
        self._log = log
        self._wheel = wheel
        self._times = times
        self._delivered = delivered
        self._dequeue = dequeue
        self._timer = timer
        self.next_offset = 0
        """Earlier messages of the queue are in the timer log."""
        self.replay_until = 0
        """Rebuild: earlier messages that are due before the read time have been delivered."""
        self.enqueued = 0
        self.missing = 0
        """Messages that retention removed before they were read."""

    @property
    def is_done(self) -> bool:
        """Whether all messages of the queue are in the timer log."""
        return self.next_offset >= self._topic.end

    def run(self, now_ms: int, deadline: float) -> bool:
        """Write units for arrived messages; return False if the deadline passed before the end."""
        while not self.is_done:
            if self._timer() >= deadline:
                return False
            views, following, missing = self._topic.read(self.next_offset)
            self.missing += missing
            if not views:
                self.next_offset = following
                continue
            if not self._wheel.is_open:
                self._wheel.open()
                self._times.begin(views[0].store_timestamp)
            batch = UnitBatch(self._log, self._wheel, self._times.slot_of(now_ms))
            loaded: list[tuple[int, int, int]] = []
            for view in views:
                self._add(view, batch, loaded)
            batch.write()
            for entry in loaded:
                self._dequeue.due.push(*entry)
            self.next_offset = following
            self.enqueued += len(views)
        return True

    def _add(self, view: RecordView, batch: UnitBatch, loaded: list[tuple[int, int, int]]) -> None:
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
        place = times.place(out, batch.write_time, view.queue_offset, self.replay_until)
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
        if self._dequeue.is_loaded(slot):
            if recall is not None and not is_rolled:
                self._dequeue.due.recall(slot, recall, Recall(view.physical_offset, view.size, topic_hash))
            else:
                loaded.append((slot, due, position))
