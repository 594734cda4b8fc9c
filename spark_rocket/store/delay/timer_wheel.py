"""``timerwheel``: the units of the timer log that are due in each second of 14 days.

A slot is 32 bytes; slot ``n % (2 × 604800)`` is for the time ``n × timerPrecisionMs``:

====  =====  ==============================================================================
at    type   meaning
====  =====  ==============================================================================
0     int64  time in units of the precision; if it is not n, the slot is empty
8     int64  firstPos: the slot's first unit in the timer log
16    int64  lastPos: its last unit; each unit links to the one before it
24    int32  num: messages minus recalls
28    int32  magic, 0
====  =====  ==============================================================================

38,707,200 bytes, sparse. The wheel is rebuilt from the timer log at every start, so that its state after a crash does
not matter. Apache's broker, which trusts the file, can use it too. It is accessed with ``pread`` and ``pwrite``: it
uses no memory, and a full disk is an ``OSError``.

At start, the timer log is trusted up to the checkpoint's flushed position. After that position each unit must point to
a message of the timer's queue, which distinguishes units from the remains of a power failure. An invalid unit in the
trusted part, or a log that ends before the flushed position, is damage: the timer log is then rebuilt from the queue.
The same applies to a log that begins after the flushed position: its rebuild was interrupted. In the untrusted part the
read time may have been later than the saved one. Units that no longer fit on the wheel are then enqueued again.

Thread-safety: for one thread; ``flush`` may be called from another.
Corresponds to org.apache.rocketmq.store.timer.{TimerWheel, Slot}, and TimerMessageStore.recover and recoverAndRevise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.store.delay.timer_log import MAGIC_DELETE, UNIT, UNIT_SIZE, TimerLog, plausible_units
from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log.mapped_file import sync_data

SLOT = Struct(">qqqii")
SLOT_SIZE = SLOT.size
SLOT_TYPE = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")])
_CHUNK_SLOTS = 4096  # slots per read
_PAGE_SLOTS = 128

Slots = npt.NDArray[np.void]


class Slot(NamedTuple):
    """Units of one slot; positions in the timer log."""

    first: int
    last: int
    num: int


class TimerWheel:
    """The wheel's file, created when first needed."""

    def __init__(self, path: Path, precision_ms: int, slots_total: int) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self.count = 2 * slots_total
        self._fd = -1

    @property
    def size(self) -> int:
        return self.count * SLOT_SIZE

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self, slots: Slots | None = None) -> None:
        """Create the file again, empty or with these slots. OSError if the disk is full."""
        self.close()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, 0)
            os.ftruncate(fd, self.size)
            sync_directory(self.path.parent)
            for start in range(0, 0 if slots is None else self.count, _PAGE_SLOTS):
                assert slots is not None
                page = slots[start : start + _PAGE_SLOTS]
                if page["time"].any():
                    os.pwrite(fd, page.tobytes(), start * SLOT_SIZE)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def read_all(self) -> Slots:
        """Return every slot as on disk, for the store check."""
        return np.fromfile(self.path, SLOT_TYPE)

    def get(self, time_ms: int) -> Slot | None:
        """Return the slot of a time; None if it is empty."""
        number = time_ms // self.precision_ms
        time, first, last, num, _ = SLOT.unpack(os.pread(self._fd, SLOT_SIZE, number % self.count * SLOT_SIZE))
        return Slot(first, last, num) if time == number else None

    def put(self, time_ms: int, slot: Slot | None) -> None:
        """Write a slot; None clears it. OSError if the disk is full."""
        number = time_ms // self.precision_ms
        raw = bytes(SLOT_SIZE) if slot is None else SLOT.pack(number, *slot, 0)
        os.pwrite(self._fd, raw, number % self.count * SLOT_SIZE)

    def next_slot(self, start_ms: int, end_ms: int) -> int | None:
        """Return the time of the first slot in a range that is not empty."""
        number = start_ms // self.precision_ms
        end = min(end_ms // self.precision_ms, number + self.count)
        while number < end:
            index = number % self.count
            count = min(end - number, _CHUNK_SLOTS, self.count - index)
            times = np.frombuffer(os.pread(self._fd, count * SLOT_SIZE, index * SLOT_SIZE), SLOT_TYPE)["time"]
            found = np.flatnonzero(times == np.arange(number, number + count))
            if len(found):
                return (number + int(found[0])) * self.precision_ms
            number += count
        return None

    def count_from(self, start_ms: int) -> int:
        """Return messages minus recalls in the slots from a time on. Reads only the written parts of the file."""
        number, count, at = start_ms // self.precision_ms, 0, 0
        while at < self.size:
            try:
                at = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError:  # only a hole from here on
                break
            at -= at % SLOT_SIZE
            slots = np.frombuffer(os.pread(self._fd, _CHUNK_SLOTS * SLOT_SIZE, at), SLOT_TYPE)
            count += int(slots["num"][slots["time"] >= number].sum())
            at += len(slots) * SLOT_SIZE
        return count

    def flush(self) -> None:
        sync_data(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class TimerLogDamageError(Exception):
    """The timer log is damaged; the message has the fault and its place."""


def find_end(
    log: TimerLog, trusted: int, max_physical_offset: int, wheel_end_ms: int, number_of: Callable[[int, int], int]
) -> tuple[int, int]:
    """Return the position of the next unit, and the queue offset after the messages of untrusted units (or 0).

    ``trusted``: position up to which the timer log was flushed. ``number_of``: queue offset of the message with an
    offset and size, −1 if it does not exist. Untrusted units are dropped from the first one on whose message is not in
    the commit log (shortened by a power failure), or whose time is not before ``wheel_end_ms``. The last ones are also
    dropped if earlier units point to the same messages: an unfinished stop has deferred them.
    """
    files = log.files
    if not files.files and trusted % files.file_size == 0:
        return trusted, 0  # rebuilt while nothing was pending
    if trusted > files.end_offset:
        raise TimerLogDamageError(f"{files.directory} ends at {files.end_offset}, but was flushed up to {trusted}")
    if trusted < files.min_offset:
        raise TimerLogDamageError(f"{files.directory} begins at {files.min_offset}, but was flushed up to {trusted}")
    end, next_offset, highest = files.min_offset, 0, -1
    for positions, units in log.blocks(files.min_offset):
        good = plausible_units(positions, units)
        good &= units["offset_py"].astype(np.int64) + units["size_py"] <= max_physical_offset
        bad = np.flatnonzero(~good)
        count = int(bad[0]) if len(bad) else len(units)
        known = min(int(np.searchsorted(positions, trusted)), count)
        if known:
            end = int(positions[known - 1]) + UNIT_SIZE
            highest = max(highest, int(units["offset_py"][:known].max()))
        for i in range(known, count):
            offset = int(units["offset_py"][i])
            number = number_of(offset, int(units["size_py"][i]))
            if number < 0 or int(units["write_time"][i]) + int(units["delay"][i]) >= wheel_end_ms:
                count = i
                break
            next_offset = max(next_offset, number + 1)
            if offset > highest:
                end, highest = int(positions[i]) + UNIT_SIZE, offset
        if count < len(units):
            place = int(positions[count])
            if place < trusted:
                file = files.find(place)
                raise TimerLogDamageError(f"{file.path if file else files.directory} has no valid unit at {place}")
            break
    return end, next_offset


def build_slots(log: TimerLog, read_time_ms: int, precision_ms: int, count: int) -> Slots:
    """Build the wheel from a timer log, from a time on. TimerLogDamageError if a chain is broken."""
    slots = np.zeros(count, SLOT_TYPE)
    first_number = read_time_ms // precision_ms
    for positions, units in log.blocks(log.files.min_offset, log.position):
        numbers = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
        chosen = np.flatnonzero(numbers >= first_number)
        if not len(chosen):
            continue
        if int(numbers[chosen].max()) >= first_number + count:  # timerPrecisionMs was larger
            raise TimerLogDamageError(f"{log.files.directory} has units with times beyond the wheel")
        chosen = chosen[np.argsort(numbers[chosen], kind="stable")]
        numbers, positions, units = numbers[chosen], positions[chosen], units[chosen]
        index = numbers % count
        heads = np.append(True, numbers[1:] != numbers[:-1])
        previous = np.append(-1, positions[:-1])
        known = slots["time"][index] == numbers
        previous[heads] = np.where(known, slots["last"][index], -1)[heads]
        links = units["prev_pos"]
        gone = (previous < 0) & (links < log.files.min_offset)  # the file of the previous unit was removed
        wrong = np.flatnonzero((links != previous) & ~gone)
        if len(wrong):
            place = int(positions[wrong[0]])
            raise TimerLogDamageError(f"{log.files.directory} has a unit at {place} with an invalid link")
        new = heads & ~known
        slots["first"][index[new]] = positions[new]
        slots["time"][index] = numbers
        slots["last"][index] = positions  # assignment stores the last of several
        np.add.at(slots["num"], index, np.where(units["magic"] & MAGIC_DELETE, -1, 1))
    return slots


class UnitBatch:
    """Units to be written together."""

    def __init__(self, log: TimerLog, wheel: TimerWheel, write_time: int) -> None:
        self.write_time = write_time
        self._log = log
        self._wheel = wheel
        self._units: list[tuple[int, bytes]] = []
        self._slots: dict[int, Slot] = {}
        self._position = log.position

    def add(self, slot_time: int, magic: int, offset_py: int, size_py: int, topic_hash: int) -> int:
        """Add a unit to the end of a slot's chain; return its position."""
        position = self._log.place(self._position)
        slot = self._slots.get(slot_time) or self._wheel.get(slot_time) or Slot(position, -1, 0)
        delay = slot_time - self.write_time
        fields = (UNIT_SIZE, slot.last, magic, self.write_time, delay, offset_py, size_py, topic_hash, 0)
        self._units.append((position, UNIT.pack(*fields)))
        self._slots[slot_time] = Slot(slot.first, position, slot.num + (-1 if magic & MAGIC_DELETE else 1))
        self._position = position + UNIT_SIZE
        return position

    def write(self) -> None:
        """Write to the timer log, then to the wheel. The batch can be reused. OSError: no unit was written."""
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
            with suppress(OSError):  # a slot that is not restored is detected when its chain is read
                for slot_time, there in done.items():
                    self._wheel.put(slot_time, there)
            raise
        self._units.clear()
