"""Scan many records of the commit log: walk their sizes, then check and decode them in columns.

Recovery, the building of consume queues and index, and the store check all use this scan. It reads by ``pread`` in
chunks of a few MiB, so that a pass over a large log neither maps nor caches it. A record is good when its magic is
valid, its lengths add up to its size, its physical offset is its position, and its body matches its CRC.

Thread-safety: pure but for reading the files. Any thread may scan below the log's ``max_offset``.
Corresponds to CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.layout import (
    AT,
    FIXED_SIZE,
    HEADER_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    SIZE_AND_PLACE,
)
from spark_rocket.protocol.record.parts import find_parts, heads_of
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.protocol.record.record import RecordView, scan_record
from spark_rocket.protocol.record.spans import blocks, body_crcs, gather, walk_sizes
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

CHUNK_BYTES = 4 << 20
_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_HEAD_BYTES = 4096
_ENOUGH_GOOD_RECORDS = 64

Ints = npt.NDArray[np.int64]


class Stop(Enum):
    """Reason why a walk ended."""

    LIMIT = "limit"  # the requested end offset
    END = "end"  # zeros: the unwritten rest of the file
    BLANK = "blank"  # the file's last record; the walk continues in the next file
    BAD = "bad"  # an invalid record


@dataclass(slots=True)
class RecordBlock:
    """Columns of a run of good records. Positions are into ``data``, whose first byte has physical offset ``base``."""

    data: bytes
    base: int
    starts: Ints
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Ints
    sys_flags: Ints
    store_timestamps: Ints
    topic_starts: Ints
    topic_ends: Ints
    property_starts: Ints
    property_ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def physical_offsets(self) -> Ints:
        return self.starts + self.base

    def properties(self) -> PropertySpans:
        """Return the properties of all records."""
        return PropertySpans(
            np.frombuffer(self.data, np.uint8), self.property_starts, self.property_ends - self.property_starts
        )

    def topic(self) -> str | None:
        """Return the topic of all records; None if they have several."""
        lengths = self.topic_ends - self.topic_starts
        if not len(self) or (lengths != lengths[0]).any():
            return None
        cells = blocks(np.frombuffer(self.data, np.uint8), int(lengths[0]))[self.topic_starts]
        first = cells[0].tobytes()
        return None if cells.tobytes() != first * len(cells) else first.decode("utf-8", "replace")

    def topics(self) -> list[str]:
        topic = self.topic()
        if topic is not None:
            return [topic] * len(self)
        ranges = zip(self.topic_starts.tolist(), self.topic_ends.tolist(), strict=True)
        raw = [self.data[start:end] for start, end in ranges]
        names = {value: value.decode("utf-8", "replace") for value in set(raw)}
        return [names[value] for value in raw]


@dataclass(slots=True)
class ScanEnd:
    """Offset at which a scan stopped, and the reason."""

    offset: int
    stop: Stop
    reason: str = ""


class LogScan:
    """Iterate over the blocks of a log from an offset on; afterwards ``end`` has the stop offset and reason."""

    def __init__(
        self,
        queue: MappedFileQueue,
        start: int,
        limit: int | None = None,
        *,
        check_crc: bool = True,
        chunk: int = CHUNK_BYTES,
    ) -> None:
        self._queue = queue
        self._offset = start
        self._limit = queue.end_offset if limit is None else limit
        self._check_crc = check_crc
        self._chunk = chunk
        self.end = ScanEnd(start, Stop.LIMIT)

    def __iter__(self) -> Iterator[RecordBlock]:
        while self._offset < self._limit:
            file = self._queue.find(self._offset)
            if file is None:
                break
            yield from self._file(file)
            if self.end.stop is not Stop.BLANK:
                return
            self._offset = file.file_from_offset + file.size
        self.end = ScanEnd(self._offset, Stop.LIMIT)

    def _file(self, file: MappedFile) -> Iterator[RecordBlock]:
        base = file.file_from_offset
        position = self._offset - base
        end = min(file.size, self._limit - base)
        want = self._chunk
        while position < end:
            data = file.read(position, min(want, end - position))
            starts, at, stop, reason = walk(data, file.size - position)
            if stop is Stop.LIMIT and not len(starts) and len(data) < end - position:
                want *= 4  # one record larger than the chunk
                continue
            want = self._chunk
            if stop is Stop.LIMIT and position + len(data) >= end and at < len(data):
                # The last record crosses the end of the file or of the scanned range.
                stop, reason = Stop.BAD, f"a record extends beyond byte {end} of the file"
            if len(starts):
                block, reason_bad = parse(data, base + position, starts, at, check_crc=self._check_crc)
                if len(block):
                    yield block
                if reason_bad:
                    at, stop, reason = int(starts[len(block)]), Stop.BAD, reason_bad
            position += at
            self._offset = base + position
            self.end = ScanEnd(self._offset, stop, reason)
            if stop is not Stop.LIMIT:
                return
        self.end = ScanEnd(base + position, Stop.LIMIT if end < file.size else Stop.BLANK)


def stored_at(queue: MappedFileQueue, offset: int, *, check_crc: bool = False) -> int:
    """Return the store time of the record at an offset; −1 if there is no record."""
    for block in LogScan(queue, offset, check_crc=check_crc, chunk=_HEAD_BYTES):
        return int(block.store_timestamps[0])
    return -1


def record_at(file: MappedFile, position: int) -> RecordView | None:
    """Return the record at a position of a file, or None if it is invalid."""
    size = int.from_bytes(file.read(position, 4), "big")
    return scan_record(file.read(position, min(size, file.size - position))).record


def walk(data: bytes, room: int) -> tuple[Ints, int, Stop, str]:
    """Return the starts of the complete records in ``data``, the position after them, and why the walk ended there.

    ``room``: bytes of the file from the first byte of ``data`` on; ``data`` may be shorter.
    """
    if not data:
        return np.empty(0, np.int64), 0, Stop.LIMIT, ""
    starts, at = walk_sizes(data, FIXED_SIZE)
    magics = gather(np.frombuffer(data, np.uint8), starts + AT["magic"], ">u4")
    complete = _first_false((magics == MAGIC_V1) | (magics == MAGIC_V2))
    if complete == len(starts) and at > len(data):
        complete -= 1
    if complete < len(starts):
        starts, at = starts[:complete], int(starts[complete])
    last = len(data) - SIZE_AND_MAGIC.size
    if at > last:
        return starts, at, Stop.LIMIT, ""
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    if magic in (MAGIC_V1, MAGIC_V2):
        if FIXED_SIZE <= size <= room - at:
            return starts, at, Stop.LIMIT, ""
        return starts, at, Stop.BAD, f"a record of {size} bytes where {room - at} are left"
    if magic == MAGIC_BLANK:
        if size == room - at:
            return starts, at, Stop.BLANK, ""
        return starts, at, Stop.BAD, f"a blank record of {size} bytes where {room - at} are left"
    if magic == 0 and size == 0:
        return starts, at, Stop.END, ""
    return starts, at, Stop.BAD, f"invalid magic {magic:#010x}"


def parse(
    data: bytes,
    base: int,
    at: Ints,
    end: int,
    *,
    check_crc: bool = True,
    physical_offsets: Ints | None = None,
) -> tuple[RecordBlock, str]:
    """Return columns of walked records (at places of ``data``) up to the first invalid one, and the fault of that one.

    ``physical_offsets``: offsets of the records in the log, if they are not contiguous there.
    """
    source = np.frombuffer(data, np.uint8)
    sizes = np.diff(at, append=end)
    heads = heads_of(source, at)
    parts = find_parts(source, at, at + sizes, heads)
    body_starts, body_ends, topic_starts, topic_ends, property_starts = parts.places
    store_timestamps = heads["store_timestamp"].astype(np.int64)
    if np.any(parts.born_extra):
        store_timestamps = gather(source, at + AT["store_timestamp"] + parts.born_extra, ">i8")
    good = (parts.faults == 0) & (topic_ends > topic_starts)
    reason = "" if good.all() else "lengths of body, topic and properties do not make up the record's size"
    in_place = heads["physical_offset"] == (at + base if physical_offsets is None else physical_offsets)
    count = _first_false(good)
    if not in_place[:count].all():
        count, reason = _first_false(in_place), "the record's physical offset is not its position"
    if check_crc:
        intact = body_crcs(data, body_starts[:count], body_ends[:count]) == heads["body_crc"][:count]
        if not intact.all():
            count, reason = _first_false(intact), "the body does not match the record's CRC"
    block = RecordBlock(
        data,
        base,
        at[:count],
        sizes[:count],
        heads["queue_id"][:count].astype(np.int64),
        heads["queue_offset"][:count].astype(np.int64),
        heads["sys_flag"][:count].astype(np.int64),
        store_timestamps[:count],
        topic_starts[:count],
        topic_ends[:count],
        property_starts[:count],
        (at + sizes)[:count],
    )
    return block, reason


def _first_false(flags: npt.NDArray[np.bool_]) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


@dataclass(slots=True)
class TrailingData:
    """Data after the end of the good records."""

    has_data: bool = False
    good_offsets: list[int] = field(default_factory=list)
    """Physical offsets of the first good records among it."""


def scan_after(queue: MappedFileQueue, offset: int) -> TrailingData:
    """Return whether there is nonzero data at or after ``offset``, and the good records in it."""
    remains = TrailingData()
    for file in queue.files:
        position = max(offset - file.file_from_offset, 0)
        for start, stop in file.data_ranges(min(position, file.size)):
            at = start
            while at < stop and len(remains.good_offsets) < _ENOUGH_GOOD_RECORDS:
                data = file.read(at, min(CHUNK_BYTES, stop - at))
                if data.count(0) != len(data):
                    remains.has_data = True
                    _find_good(file, data, at, remains)
                at += max(len(data) - 8, 1) if at + len(data) < stop else len(data)
    return remains


def _find_good(file: MappedFile, data: bytes, position: int, remains: TrailingData) -> None:
    for found in _find_magics(data):
        start = position + found - 4
        if start >= 0 and len(remains.good_offsets) < _ENOUGH_GOOD_RECORDS and is_good(file, start):
            remains.good_offsets.append(file.file_from_offset + start)


def next_good(file: MappedFile, position: int) -> int:
    """Return the start of the first good record after ``position``; the file's end if there is none."""
    head = file.read(position, 8)
    size, magic = int.from_bytes(head[:4], "big"), head[4:8]
    if magic in _MAGICS and FIXED_SIZE <= size <= file.size - position:
        follower = position + size
        if follower == file.size or is_good(file, follower):
            return follower
        head = file.read(follower, 8)
        if int.from_bytes(head[4:8], "big") == MAGIC_BLANK and int.from_bytes(head[:4], "big") == file.size - follower:
            return file.size
    for start, stop in file.data_ranges(position):
        at = start
        while at < stop:
            data = file.read(at, min(CHUNK_BYTES, stop - at) + 3)  # a magic may cross two chunks
            for found in _find_magics(data):
                if at + found - 4 > position and is_good(file, at + found - 4):
                    return at + found - 4
            at += CHUNK_BYTES
    return file.size


def _find_magics(data: bytes) -> list[int]:
    found = []
    for magic in _MAGICS:
        at = data.find(magic)
        while at >= 0:
            found.append(at)
            at = data.find(magic, at + 1)
    return sorted(found)


def is_good(file: MappedFile, position: int) -> bool:
    """Return whether a valid record starts at a position of a file."""
    head = file.read(position, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return False
    size, physical_offset = SIZE_AND_PLACE.unpack(head)
    if physical_offset != file.file_from_offset + position:
        return False
    if not FIXED_SIZE <= size <= file.size - position:
        return False
    return scan_record(file.read(position, size)).record is not None
