"""``timerwheel``: for each second of 14 days, which units of the timer log are due in it.

A slot is 32 bytes; slot ``n % (2 × 604800)`` stands for the time ``n × timerPrecisionMs``:

====  =====  ==============================================================================
at    type   meaning
====  =====  ==============================================================================
0     int64  time in units of the precision; another one than asked for: the slot is empty
8     int64  firstPos: the slot's first unit in the timer log
16    int64  lastPos: its last; each unit names the one before it
24    int32  num: messages minus recalls
28    int32  magic, 0
====  =====  ==============================================================================

38,707,200 bytes, sparse. The wheel follows from the timer log and is made anew from it at every start, so that nothing
depends on what a crash left in it; Apache's broker, which trusts it, finds it as its own. It is read and written with
``pread`` and ``pwrite``: no memory is held, and a full disk is an ``OSError``.

Thread-safety: for one thread; ``flush`` may be called from another.
Corresponds to org.apache.rocketmq.store.timer.{TimerWheel, Slot}.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.store.log.mapped_file import sync_data, sync_directory

SLOT = Struct(">qqqii")
SLOT_SIZE = SLOT.size
SLOT_TYPE = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")])
_PIECE = 4096  # slots that are looked at in one read
_PAGE_SLOTS = 128

Slots = npt.NDArray[np.void]


class Slot(NamedTuple):
    """Units of one slot; positions in the timer log."""

    first: int
    last: int
    num: int


class TimerWheel:
    """The file, once there is a reason to have one."""

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
        """Make the file anew, empty or with these slots. OSError when there is no room for it."""
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
        """Every slot as it is on disk, for the check."""
        return np.fromfile(self.path, SLOT_TYPE)

    def get(self, time_ms: int) -> Slot | None:
        """The slot of a time; None when it is empty."""
        number = time_ms // self.precision_ms
        time, first, last, num, _ = SLOT.unpack(os.pread(self._fd, SLOT_SIZE, number % self.count * SLOT_SIZE))
        return Slot(first, last, num) if time == number else None

    def put(self, time_ms: int, slot: Slot | None) -> None:
        """Write a slot; None makes it empty. OSError when the disk is full."""
        number = time_ms // self.precision_ms
        raw = bytes(SLOT_SIZE) if slot is None else SLOT.pack(number, *slot, 0)
        os.pwrite(self._fd, raw, number % self.count * SLOT_SIZE)

    def next_slot(self, start_ms: int, end_ms: int) -> int | None:
        """Time of the first slot in a span that is not empty."""
        number = start_ms // self.precision_ms
        end = min(end_ms // self.precision_ms, number + self.count)
        while number < end:
            index = number % self.count
            count = min(end - number, _PIECE, self.count - index)
            times = np.frombuffer(os.pread(self._fd, count * SLOT_SIZE, index * SLOT_SIZE), SLOT_TYPE)["time"]
            found = np.flatnonzero(times == np.arange(number, number + count))
            if len(found):
                return (number + int(found[0])) * self.precision_ms
            number += count
        return None

    def count_from(self, start_ms: int) -> int:
        """Messages minus recalls in the slots from a time on. Reads the parts of the file that were ever written."""
        number, count, at = start_ms // self.precision_ms, 0, 0
        while at < self.size:
            try:
                at = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError:  # nothing was written behind it
                break
            at -= at % SLOT_SIZE
            slots = np.frombuffer(os.pread(self._fd, _PIECE * SLOT_SIZE, at), SLOT_TYPE)
            count += int(slots["num"][slots["time"] >= number].sum())
            at += len(slots) * SLOT_SIZE
        return count

    def flush(self) -> None:
        sync_data(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
