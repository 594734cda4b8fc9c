"""The times of a timer: which slots are done, which are in memory, and into which slot a message goes.

=================  =================================================================================================
time               meaning; each is the start of a slot (``timerPrecisionMs``)
=================  =================================================================================================
``read_time``      slots before it are done (RocketMQ's currReadTimeMs)
``loaded_to``      slots before it that are not done are in memory
forced             slots before it are loaded whatever the clock shows: they have late messages
late               from ``late_from`` (a queue offset) on, messages may be in a slot later than their own time, until
                   that slot is done. The read time does not apply to them
=================  =================================================================================================

A message that is due before the read time is late: it goes into the slot of the read time. A message beyond the wheel's
window goes into an earlier slot, where it is rolled: stored in the topic again.

Pure state: it reads no clock. Thread-safety: for the timer's thread.
Corresponds to the times in TimerMessageStore.{doEnqueue, needRoll} and TimerCheckpoint.
"""

from __future__ import annotations

from typing import NamedTuple

DEFERRED_SLOTS = 10
"""A stop moves the rest of begun slots to the slot after them, by at most so many slots."""
_PRELOAD_MS = 1_000
_BLANK_SLOTS = 60


class Placement(NamedTuple):
    """The slot of a message; a rolled one is stored in the topic again when the slot is due."""

    slot: int
    is_rolled: bool


class TimerTimes:
    """The times of one timer. ``wheel_slots``: half of the wheel's slots; ``window_slots``: timerRollWindowSlot."""

    def __init__(self, precision_ms: int, wheel_slots: int, window_slots: int) -> None:
        self.precision = precision_ms
        most = wheel_slots - _BLANK_SLOTS
        self._window = (window_slots if 2 <= window_slots <= most else most) * precision_ms
        self._span = 2 * wheel_slots * precision_ms
        self.read_time = 0
        self.loaded_to = 0
        self._forced_to = 0
        self.late_from: int | None = None
        self._late_slot = 0

    def slot_of(self, time_ms: int) -> int:
        return time_ms // self.precision * self.precision

    @property
    def wheel_end(self) -> int:
        """The end of the wheel's last slot."""
        return self.read_time + self._span

    # --- progress -----------------------------------------------------------------------------------------------

    def resume(self, read_time_ms: int, now_ms: int, late_from: int | None) -> None:
        """Continue at a saved read time."""
        self.read_time = self.slot_of(read_time_ms)
        if late_from is not None:
            self.late_from, self._late_slot = late_from, self.read_time
        if self.read_time > now_ms:  # the clock was set back: this slot has the messages sent since
            self._forced_to = self.read_time + self.precision

    def begin(self, first_timestamp: int) -> None:
        """Begin to load; without a read time, at the queue's first message."""
        if not self.read_time:
            self.read_time = max(self.slot_of(first_timestamp) - self.precision, 0)
        self.loaded_to = self.read_time

    def target(self, now_ms: int) -> int:
        """The end of the slots to load now: they are loaded shortly before they are due."""
        return max(self.slot_of(now_ms + _PRELOAD_MS) + self.precision, self._forced_to)

    def wake_time(self, slot: int, now_ms: int) -> int:
        """When to load a slot in the future."""
        return max(slot - _PRELOAD_MS, now_ms + 1)

    def finish(self, done_to: int) -> None:
        """Mark all slots before ``done_to`` as done."""
        self.read_time = done_to
        if done_to > self._late_slot:
            self.late_from = None

    def defer(self, done_to: int) -> None:
        """Mark the slots as done whose rest was moved to the slot ``done_to``."""
        self.read_time = self.loaded_to = self._late_slot = done_to

    # --- places -------------------------------------------------------------------------------------------------

    def place(self, out_ms: int, write_time: int, queue_offset: int, replay_until: int) -> Placement | None:
        """The slot of a message that is due at ``out_ms`` and enqueued in the slot ``write_time``.

        None if it has been delivered: it is before ``replay_until`` in the queue, and its slot is done.
        """
        slot, is_rolled = self.slot_of(out_ms), False
        if slot < self.read_time:
            # Shortly before the read time the message may be one that a stop has deferred.
            is_done = slot < self.read_time - DEFERRED_SLOTS * self.precision
            if is_done and queue_offset < replay_until:
                return None
            # The message is late, the clock was set back, or the precision has changed. Its recall comes here too.
            slot = self._late_slot = self.read_time
            self._forced_to = slot + self.precision
            if self.late_from is None:
                self.late_from = queue_offset
        elif slot - write_time >= self._window:
            is_rolled = True
            third = slot - write_time - self._window < self._window // 3
            # Close to the window's end: use half of it, so that the remaining time is not too short.
            slot = write_time + self.slot_of(self._window // 2 if third else self._window)
        if slot >= self.wheel_end:  # the timer lags far behind the clock
            return Placement(self.wheel_end - self.precision, True)
        return Placement(slot, is_rolled)
