"""The second half of the timer: from the wheel to the original topics, and the slots in memory that are due soon.

A slot is loaded shortly before its time, by *walking* the chain of its units in the timer log. Each of its messages is
delivered at its own millisecond, rolled (stored in the timer's topic again), or skipped if it is recalled.

Thread-safety: for the timer's thread. After a crash: slots that are not done are loaded again from the wheel.
Corresponds to TimerMessageStore.{dequeue, doPut}, its dequeue queues, and TimerDequeuePutMessageService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from spark_rocket.protocol.record.properties import find_property
from spark_rocket.store.delay.delivered import DeliveredMessages
from spark_rocket.store.delay.redelivery import PutRefusedError, redeliver
from spark_rocket.store.delay.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerLog
from spark_rocket.store.delay.timer_times import TimerTimes
from spark_rocket.store.delay.timer_topic import TimerTopic, due_time, number_of
from spark_rocket.store.delay.timer_wheel import TimerLogDamageError, TimerWheel, UnitBatch
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

_HORIZON_MS = 60_000
_LATEST = 1 << 62
_POSITION = (1 << 64) - 1


class Recall(NamedTuple):
    """Location of a recall in the commit log."""

    offset_py: int
    size_py: int
    topic_hash: int


class DueSlots:
    """Pending messages of the loaded slots, and recalls.

    Each pending message is one number: its delivery time in milliseconds and the position of its unit in the timer log.
    Messages with equal times are in order of arrival. A slot is *begun* once one of its messages was delivered.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []  # millisecond << 64 | position in the timer log
        self._remaining: dict[int, int] = {}  # by slot: units in the heap
        self._recalls: dict[int, dict[str, Recall]] = {}
        self.begun: set[int] = set()
        self.done = 0
        """Number of done slots with deliveries."""

    def clear(self) -> None:
        self._heap.clear()
        self._remaining.clear()
        self._recalls.clear()
        self.begun.clear()

    @property
    def first_due(self) -> int | None:
        """Delivery time of the first message; None if none is pending."""
        return self._heap[0] >> 64 if self._heap else None

    @property
    def first_position(self) -> int:
        """Position of the first message's unit; only valid if one is pending."""
        return self._heap[0] & _POSITION

    def positions(self) -> list[int]:
        """Return the positions of all pending units, in order of delivery time."""
        return [key & _POSITION for key in sorted(self._heap)]

    def push(self, slot: int, due: int, position: int) -> None:
        heappush(self._heap, due << 64 | position)
        self._remaining[slot] = self._remaining.get(slot, 0) + 1

    def pop(self, slot: int) -> None:
        """Remove the first message, which is of that slot."""
        heappop(self._heap)
        self._remaining[slot] -= 1
        self.begun.add(slot)

    def recall(self, slot: int, key: bytes, place: Recall) -> None:
        self._recalls.setdefault(slot, {})[key.decode("utf-8", "replace")] = place

    def recalls_before(self, slot: int) -> list[Recall]:
        return [place for at, recalls in self._recalls.items() if at < slot for place in recalls.values()]

    def is_recalled(self, slot: int, properties: bytes) -> bool:
        recalls = self._recalls.get(slot)
        unique_key = find_property(properties, b"UNIQ_KEY")
        if not recalls or unique_key is None:
            return False
        key = unique_key.decode("utf-8", "replace")
        topic = (find_property(properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
        return key in recalls or f"{topic}+{key}" in recalls

    def done_to(self, limit: int) -> int:
        """Return the first slot with pending messages, at most ``limit``: all slots before it are done."""
        return min((slot for slot, count in self._remaining.items() if count and slot < limit), default=limit)

    def forget_before(self, slot: int) -> None:
        for table in (self._remaining, self._recalls):
            for done in [other for other in table if other < slot]:
                del table[done]
        begun = {other for other in self.begun if other >= slot}
        self.done += len(self.begun) - len(begun)
        self.begun = begun


class TimerDequeue:
    """The loaded slots of one timer, and the deliveries from them."""

    def __init__(
        self,
        store: MessageStore,
        topic: TimerTopic,
        log: TimerLog,
        wheel: TimerWheel,
        times: TimerTimes,
        delivered: DeliveredMessages,
        timer: Callable[[], float],
    ) -> None:
        """``timer``: the clock of deadlines, in seconds."""
        self._store = store
        self._topic = topic
        self._log = log
        self._wheel = wheel
        self._times = times
        self._delivered = delivered
        self._timer = timer
        self.due = DueSlots()
        self._walk: tuple[int, int] | None = None  # the slot being loaded, and its next unit
        self.delivered = 0
        self.missing = 0
        """Messages that retention removed before they were delivered."""

    def clear(self) -> None:
        self._walk = None
        self.due.clear()

    def is_loaded(self, slot: int) -> bool:
        """Whether the slot is in memory, or being loaded."""
        return slot < self._times.loaded_to or (self._walk is not None and slot == self._walk[0])

    def is_done_to(self, time_ms: int) -> bool:
        """Whether all messages in the wheel due up to a time have been delivered."""
        first = self.due.first_due
        return self._times.slot_of(time_ms) < self._times.loaded_to and (first is None or first > time_ms)

    def run(self, now_ms: int, deadline: float) -> int:
        """Deliver what is due; return when to call again. TimerLogDamageError if a slot cannot be loaded."""
        target = self._times.target(now_ms)
        turns, rolled = 0, _LATEST
        while True:
            turns += 1
            if not turns % 8 and self._timer() >= deadline:
                self._close_slots(now_ms)
                return now_ms
            ready = now_ms if self._walk is None else min(now_ms, self._walk[0] - 1)
            first = self.due.first_due
            if rolled < (_LATEST if first is None else first):
                break  # rolled messages and their recalls must be in the wheel before later messages
            if first is not None and first <= ready and not self._is_of_walked_slot(self.due.first_position):
                if self._deliver_first(now_ms):
                    rolled = first
            elif self._walk is not None:
                self._load_one(*self._walk)
            elif self._times.loaded_to < target:
                self._begin_slot(target)
            else:
                break
        self._close_slots(now_ms)
        due = now_ms + _HORIZON_MS if self.due.first_due is None else self.due.first_due
        slot = self._wheel.next_slot(self._times.loaded_to, now_ms + _HORIZON_MS)
        return due if slot is None else min(due, self._times.wake_time(slot, now_ms))

    def _is_of_walked_slot(self, position: int) -> bool:
        """Return whether a (deferred) unit is of the slot being loaded, so that its recalls may be missing."""
        if self._walk is None:
            return False
        unit = self._log.read(position)
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
        log = self._log
        unit = log.read(position) if position >= log.files.min_offset else None
        if unit is None:  # the end of the chain, or files removed with their messages
            self._walk, self._times.loaded_to = None, slot + self._times.precision
            return
        view = self._topic.message(unit.offset_py, unit.size_py)
        is_valid = view is not None or unit.offset_py < self._store.min_physical_offset  # removed by retention
        if self._times.slot_of(unit.time_ms) != slot or not -1 <= unit.prev_pos < position or not is_valid:
            raise TimerLogDamageError(f"{log.files.directory} has no valid unit of slot {slot} at {position}")
        self._walk = (slot, unit.prev_pos)
        if view is None:
            self.missing += 1
            return
        properties = bytes(view.properties)
        recall = find_property(properties, b"TIMER_DEL_UNIQKEY")
        if unit.magic & MAGIC_ROLL:
            self.due.push(slot, slot, position)
        elif recall is not None:
            self.due.recall(slot, recall, Recall(unit.offset_py, unit.size_py, unit.topic_hash))
        else:
            out = number_of(properties, b"TIMER_OUT_MS")
            due = due_time(properties, view.store_timestamp, slot if out is None else out, self._times.precision)
            self.due.push(slot, due, position)

    def _deliver_first(self, now_ms: int) -> bool:
        """Deliver the heap's first message, roll it, or skip it if it is recalled. Return whether it was rolled."""
        unit = self._log.read(self.due.first_position)
        assert unit is not None  # its slot is not done, so its file still exists
        slot = self._times.slot_of(unit.time_ms)
        # Check the CRC: the message is stored again with a new one, which would hide damage.
        view = self._topic.message(unit.offset_py, unit.size_py, check_crc=True)
        if view is None and unit.offset_py < self._store.min_physical_offset:
            self.missing += 1
        elif view is None:
            _log.error(
                "The timed message at offset %d of the commit log is damaged and is not delivered.", unit.offset_py
            )
        else:
            result: PutResult | None = None
            is_roll = bool(unit.magic & MAGIC_ROLL)
            is_wanted = is_roll or not self.due.is_recalled(slot, bytes(view.properties))
            if is_wanted and not self._delivered.take(view, is_roll=is_roll):
                notes = {"TIMER_ENQUEUE_MS": str(unit.write_time), "TIMER_DEQUEUE_MS": str(now_ms)}
                result = self._topic.roll(view, notes) if is_roll else redeliver(self._store, view, notes)
            if result is not None and result.status is PutStatus.SERVICE_NOT_AVAILABLE:
                raise PutRefusedError
            self.delivered += result is not None and not unit.magic & MAGIC_ROLL
        self.due.pop(slot)
        return bool(unit.magic & MAGIC_ROLL)

    def _close_slots(self, now_ms: int) -> None:
        """Mark past slots without pending messages as done."""
        limit = min(self._times.slot_of(now_ms), self._times.loaded_to)
        done_to = self.due.done_to(limit)
        if done_to <= self._times.read_time:
            return
        self._times.finish(done_to)
        self.due.forget_before(done_to)
        self._log.release()

    # --- at the stop --------------------------------------------------------------------------------------------

    def defer_rest(self) -> None:
        """Move the rest of begun slots to the slot after them, so that the begun slots are done.

        TimerLogDamageError if a slot cannot be loaded.
        """
        if not self.due.begun:
            return
        while self._walk is not None:
            self._load_one(*self._walk)
        done_to = max(self.due.begun) + self._times.precision
        batch = UnitBatch(self._log, self._wheel, done_to)
        for recall in self.due.recalls_before(done_to):
            batch.add(done_to, MAGIC_DEFAULT | MAGIC_DELETE, *recall)
        for position in self.due.positions():
            unit = self._log.read(position)
            if unit is not None and self._times.slot_of(unit.time_ms) < done_to:
                batch.add(done_to, unit.magic, unit.offset_py, unit.size_py, unit.topic_hash)
        batch.write()
        self._times.defer(done_to)
        self.due.done += len(self.due.begun)
