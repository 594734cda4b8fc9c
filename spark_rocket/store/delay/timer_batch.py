"""What a timed message says of its time, and the writing of units for many such messages at once.

Thread-safety: for the store's one thread. After a crash: the timer log is written before the wheel, and the wheel is
made anew from it. Corresponds to parts of TimerMessageStore.doEnqueue.
"""

from __future__ import annotations

from contextlib import suppress

from spark_rocket.protocol.record.properties import find_property
from spark_rocket.store.delay.timer_log import MAGIC_DELETE, UNIT, UNIT_SIZE, TimerLog
from spark_rocket.store.delay.timer_wheel import Slot, TimerWheel

_COARSEST_MS = 1_000  # timerPrecisionMs may have been that, and is not more
_LATEST = 1 << 62
_DELAYS = ((b"TIMER_DELAY_SEC", 1000), (b"TIMER_DELAY_MS", 1))


def number_of(properties: bytes, name: bytes) -> int | None:
    """A property's number; None if there is none."""
    value = find_property(properties, name)
    if value is None or len(value) > 19 or not value.isdigit():
        return None
    return min(int(value), _LATEST)


def due_time(properties: bytes, store_timestamp: int, out: int, precision_ms: int) -> int:
    """The millisecond of delivery: what the sender asked for, if it falls into the second that follows ``out``.

    A delay counts from the time of storing, which for a message that was rolled is not the first one: it is due at the
    end of its slot.
    """
    asked = number_of(properties, b"TIMER_DELIVER_MS")
    for name, factor in _DELAYS:
        delay = number_of(properties, name)
        if delay is not None:
            asked = store_timestamp + delay * factor
            break
    return asked if asked is not None and out < asked <= out + _COARSEST_MS else out + precision_ms


class UnitBatch:
    """Units that are written together."""

    def __init__(self, log: TimerLog, wheel: TimerWheel, write_time: int) -> None:
        self.write_time = write_time
        self._log = log
        self._wheel = wheel
        self._units: list[tuple[int, bytes]] = []
        self._slots: dict[int, Slot] = {}
        self._position = log.position

    def add(self, slot_time: int, magic: int, offset_py: int, size_py: int, topic_hash: int) -> int:
        """One more unit at the end of a slot's chain; returns its position."""
        position = self._log.place(self._position)
        slot = self._slots.get(slot_time) or self._wheel.get(slot_time) or Slot(position, -1, 0)
        delay = slot_time - self.write_time
        fields = (UNIT_SIZE, slot.last, magic, self.write_time, delay, offset_py, size_py, topic_hash, 0)
        self._units.append((position, UNIT.pack(*fields)))
        self._slots[slot_time] = Slot(slot.first, position, slot.num + (-1 if magic & MAGIC_DELETE else 1))
        self._position = position + UNIT_SIZE
        return position

    def write(self) -> None:
        """The timer log, then the wheel; more may be added afterwards. OSError: as if nothing had been added."""
        if not self._units:
            return
        before, done = self._log.position, {}
        try:
            self._log.write(self._units)
            for slot_time, slot in self._slots.items():
                done[slot_time] = self._wheel.get(slot_time)
                self._wheel.put(slot_time, slot)
        except OSError:
            self._log.position = before
            with suppress(OSError):  # one that is not as it was is found out when its chain is read
                for slot_time, there in done.items():
                    self._wheel.put(slot_time, there)
            raise
        self._units.clear()
