"""``timerlog/``: one unit for each pending message, in order of arrival; files of 100 MiB.

====  =====  =============================================================================================
at    type   meaning
====  =====  =============================================================================================
0     int32  size, 52
4     int64  prevPos: the unit before this one in the same slot of the wheel, −1 for the first
12    int32  magic: 1 default, + 2 roll when due (its time is beyond the wheel's window), + 4 a recall
16    int64  currWriteTime: the second in which it was written
24    int32  delay: currWriteTime + delay is the slot
28    int64  offsetPy: offset of the message in the commit log
36    int32  sizePy: size of the message
40    int32  hash code of the message's original topic
44    int64  reserved, 0
====  =====  =============================================================================================

A unit that would leave less than 16 bytes of its file goes to the next one. The rest of the file is a blank: int32
rest, int64 0, int32 0xCBD43194. Units are at fixed positions, so a damaged unit does not hide others.

The log is derived from the queue of the topic ``rmq_sys_wheel_timer``, and rebuilt from it if it is lost.
Thread-safety: one writer; ``flush`` and ``expire`` may be called by one other thread.
After a crash: everything below lastTimerLogFlushPos is intact. After it, units are valid up to the first whose message
is missing. Corresponds to org.apache.rocketmq.store.timer.TimerLog.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

UNIT = Struct(">iqiqiqiiq")
UNIT_SIZE = UNIT.size
UNIT_TYPE = np.dtype(
    [
        ("size", ">i4"),
        ("prev_pos", ">i8"),
        ("magic", ">i4"),
        ("write_time", ">i8"),
        ("delay", ">i4"),
        ("offset_py", ">i8"),
        ("size_py", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
BLANK = Struct(">iqI")
BLANK_MAGIC = 0xCBD43194
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
_FINEST_MS = 100  # every timerPrecisionMs is a multiple of it
_CHUNK_UNITS = 1 << 16  # units per read

Units = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]


class Unit(NamedTuple):
    """One unit, as in the file."""

    size: int
    prev_pos: int
    magic: int
    write_time: int
    delay: int
    offset_py: int
    size_py: int
    topic_hash: int
    reserved: int

    @property
    def time_ms(self) -> int:
        """Time of its slot."""
        return self.write_time + self.delay


class TimerLog:
    """The timer log's files, and the position of the next unit."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.files = MappedFileQueue(directory, file_size, setting="mappedFileSizeTimerLog")
        self.position = 0
        self._per_file = (file_size - BLANK.size) // UNIT_SIZE
        self._latest: dict[int, int] = {}

    def load(self) -> None:
        """Find the files. StoreCorruptError, with a remedy for the timer log, for an invalid file."""
        try:
            self.files.load()
        except StoreCorruptError as error:
            raise StoreCorruptError(
                error.message,
                remedy=f"Set mappedFileSizeTimerLog to the value it was created with, or delete "
                f"{self.files.directory}: it is rebuilt from the commit log.",
            ) from None

    # --- writing ------------------------------------------------------------------------------------------------

    def place(self, position: int) -> int:
        """Return ``position``, or the next file's start if a unit does not fit there."""
        size = self.files.file_size
        return position if position % size // UNIT_SIZE < self._per_file else (position // size + 1) * size

    def write(self, units: list[tuple[int, bytes]]) -> None:
        """Write units at their positions and advance past them. OSError: the position is unchanged."""
        size = self.files.file_size
        at = 0
        while at < len(units):
            start = units[at][0]
            stop = at
            while stop < len(units) and units[stop][0] // size == start // size:
                stop += 1
            if start % size == 0 and start > self.files.min_offset and self.files.files:
                self._blank(start - size)
            file = self.files.find(start)
            if file is None:
                file = self.files.create(start)
                self.files.add(file)
            with file.descriptor(os.O_RDWR) as fd:
                _write(fd, b"".join([unit for _, unit in units[at:stop]]), start - file.file_from_offset)
            at = stop
        self.position = units[-1][0] + UNIT_SIZE

    def _blank(self, base: int) -> None:
        """Write the blank at the end of the file that starts at ``base``."""
        file = self.files.find(base)
        if file is not None:
            rest = self.files.file_size - self._per_file * UNIT_SIZE
            with file.descriptor(os.O_RDWR) as fd:
                _write(fd, BLANK.pack(rest, 0, BLANK_MAGIC), self._per_file * UNIT_SIZE)

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, position: int) -> Unit | None:
        """Return the unit at a position; None if its file is gone."""
        file = self.files.find(position)
        if file is None:
            return None
        return Unit._make(UNIT.unpack_from(file.mm, position - file.file_from_offset))

    def blocks(self, start: int, end: int | None = None) -> Iterator[tuple[Ints, Units]]:
        """Yield positions and units, valid or not, from ``start`` up to ``end``."""
        for file in self.files.files:
            first = max(start - file.file_from_offset, 0) // UNIT_SIZE
            stop = self._per_file
            if end is not None:
                stop = min(stop, max(end - file.file_from_offset, 0) // UNIT_SIZE)
            while first < stop:
                count = min(stop - first, _CHUNK_UNITS)
                units = np.frombuffer(file.read(first * UNIT_SIZE, count * UNIT_SIZE), UNIT_TYPE)
                yield file.file_from_offset + UNIT_SIZE * np.arange(first, first + count), units
                first += count

    def counts_by_topic(self, read_time_ms: int) -> Iterator[dict[int, int]]:
        """Count pending messages from a time on, minus their recalls, by the hash code of their topic.

        Yields the counts of consecutive parts of the log, which may change between two of them.
        """
        for start in range(self.files.min_offset, self.position, _CHUNK_UNITS * UNIT_SIZE):
            found: dict[int, int] = {}
            for _, units in self.blocks(start, min(start + _CHUNK_UNITS * UNIT_SIZE, self.position)):
                pending = units[units["write_time"].astype(np.int64) + units["delay"] >= read_time_ms]
                steps = np.where(pending["magic"] & MAGIC_DELETE, -1, 1)
                codes, places = np.unique(pending["topic_hash"].astype(np.int64), return_inverse=True)
                for code, count in zip(codes.tolist(), np.bincount(places, steps).tolist(), strict=True):
                    found[code] = found.get(code, 0) + int(count)
            yield found

    # --- truncating and releasing -------------------------------------------------------------------------------

    def continue_at(self, position: int) -> None:
        """Drop everything after a position and continue writing there."""
        self.files.truncate(position)
        self.position = position

    def clear(self, flushed: int) -> None:
        """Drop everything and continue with a new file, after all existing ones and after ``flushed``.

        A start then detects that the checkpoint, with the flushed position ``flushed``, is not of this log.
        """
        size = self.files.file_size
        self.position = max(self.files.end_offset, (flushed // size + 1) * size)
        self.files.truncate(0)
        self._latest.clear()

    def flush(self, start: int, end: int) -> None:
        for file in self.files.files:
            if file.file_from_offset < end and start < file.file_from_offset + self.files.file_size:
                file.flush()

    def release(self) -> None:
        """Release the memory of pages that were read."""
        for file in self.files.files:
            file.release_pages(file.size)

    def expire(self, read_time_ms: int) -> int:
        """Remove files whose slots are all done, but not the last file; return their number.

        Files whose messages retention removed stay: their slots may be in memory.
        """
        removed = 0
        while len(self.files.files) > 1:
            first = self.files.files[0]
            if self._latest_of(first.file_from_offset) >= read_time_ms:
                break
            self.files.files = self.files.files[1:]
            self._latest.pop(first.file_from_offset, None)
            first.destroy()
            removed += 1
        return removed

    def _latest_of(self, base: int) -> int:
        """Return the time of a full file's latest slot."""
        found = self._latest.get(base)
        if found is None:
            found = 0
            for _, units in self.blocks(base, base + self.files.file_size):
                found = max(found, int((units["write_time"].astype(np.int64) + units["delay"]).max()))
            self._latest[base] = found
        return found

    def close(self) -> None:
        self.files.close()


def _write(fd: int, data: bytes, position: int) -> None:
    """Write all data: on a nearly full disk a write may be partial, without an error."""
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written


def plausible_units(positions: Ints, units: Units) -> npt.NDArray[np.bool_]:
    """Return which of these units are plausible."""
    magic = units["magic"]
    fine: npt.NDArray[np.bool_] = (
        (units["size"] == UNIT_SIZE)
        & (magic >= 0)
        & (magic <= 0xF)
        & (units["prev_pos"] < positions)
        & (units["offset_py"] >= 0)
        & (units["size_py"] > 0)
        & (units["write_time"] > 0)
        & (units["write_time"] % _FINEST_MS == 0)
        & (units["delay"] % _FINEST_MS == 0)
    )
    return fine
