"""A scan of the whole log that does not stop at damage: it says what is damaged, and goes on at the next whole record.

A stretch of :class:`Damage` begins where no good record stands and ends where the next one does: that of the size that
the bad record says it has, if one follows there, or else the first in the file whose magic, lengths, place and CRC are
right. Zeros are the end of the log, unless good records come behind them. What lies behind the last good record is the
``tail``. So nothing good is hidden, and nothing bad is passed over in silence. After a kill the tail begins where the
next start cuts the log, even if whole records were left behind (log_end.py).

For the tools, which look at stopped stores; a broker's own start is stricter (recovery.py).
Thread-safety: reads files only. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.protocol.record.layout import FIXED_SIZE, HEADER_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_PLACE
from spark_rocket.protocol.record.record import ScanKind, scan_record
from spark_rocket.store.log.end import cut_of
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import CHUNK, LogScan, RecordBlock, Stop, look_behind
from spark_rocket.store.tools.view import StoreView

_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are no records. ``path`` and ``position`` say where the first of them is on disk."""

    path: Path
    position: int
    offset: int
    length: int
    reason: str
    is_zero: bool = False
    """Nothing was ever written there, or it was lost: the first bytes are zeros."""

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position} (offset {self.offset}), {self.length} bytes: {self.reason}"


class Salvage:
    """Iterates over the good blocks of a log and the damage between them, in the order of the log."""

    def __init__(self, view: StoreView) -> None:
        self._log = view.log
        self._cut = cut_of(view)
        self.end = view.log.min_offset
        """Where the last good record ends; known when the iteration is over."""
        self.tail: Damage | None = None
        """What is behind ``end``, if that is something else than zeros."""

    def __iter__(self) -> Iterator[RecordBlock | Damage]:
        pending: Damage | None = None  # up to the next good record, if there is one
        behind = self._log.min_offset
        for file in self._log.files:
            base = file.file_from_offset
            if self._cut is not None and base >= self._cut:
                break
            if base > behind and pending is None:
                pending = Damage(self._log.directory, 0, behind, 0, "files are missing or too short")
            offset = base
            stop = base + file.size if self._cut is None else min(base + file.size, self._cut)
            while offset < stop:
                scan = LogScan(self._log, offset, stop)
                for block in scan:
                    start = int(block.physical_offsets[0])
                    if pending is not None:
                        yield _until(pending, start)
                        pending = None
                    yield block
                    self.end = int(block.physical_offsets[-1] + block.sizes[-1])
                offset = scan.end.offset
                if scan.end.stop not in (Stop.BAD, Stop.END):
                    break
                is_zero = scan.end.stop is Stop.END
                if pending is None:
                    reason = scan.end.reason or "zeros where a record should be"
                    pending = Damage(file.path, offset - base, offset, 0, reason, is_zero)
                offset = base + next_good(file, offset - base)
            behind = stop
        if pending is None and self._cut is not None:
            pending = self._cut_off(self._cut)
        if pending is not None:
            self.end = pending.offset
            if not pending.is_zero or look_behind(self._log, pending.offset).has_data:
                self.tail = _until(pending, self._log.end_offset)

    def _cut_off(self, cut: int) -> Damage:
        file = self._log.find(cut)
        path, base = (file.path, file.file_from_offset) if file is not None else (self._log.directory, 0)
        reason = "the log of a killed broker ends here, before what it was writing"
        return Damage(path, cut - base, cut, 0, reason, is_zero=True)


def _until(damage: Damage, end: int) -> Damage:
    return Damage(damage.path, damage.position, damage.offset, end - damage.offset, damage.reason, damage.is_zero)


def next_good(file: MappedFile, position: int) -> int:
    """Where the first good record behind ``position`` starts; the file's end if there is none."""
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
            data = file.read(at, min(CHUNK, stop - at) + 3)  # a magic may lie across two chunks
            for found in sorted(_find_all(data, _MAGICS)):
                if at + found - 4 > position and is_good(file, at + found - 4):
                    return at + found - 4
            at += CHUNK
    return file.size


def _find_all(data: bytes, words: tuple[bytes, ...]) -> Iterator[int]:
    for word in words:
        found = data.find(word)
        while found >= 0:
            yield found
            found = data.find(word, found + 1)


def is_good(file: MappedFile, position: int) -> bool:
    head = file.read(position, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return False
    size, physical_offset = SIZE_AND_PLACE.unpack(head)
    if physical_offset != file.file_from_offset + position or not FIXED_SIZE <= size <= file.size - position:
        return False
    return scan_record(file.read(position, size)).kind is ScanKind.GOOD
