"""A scan of the entire log that does not stop at damage: it reports damage and continues at the next intact record.

:class:`Damage` starts at an invalid record and ends at the next good one. That is the record at the end of the invalid
record's size, if it is good, or else the first in the file with valid magic, lengths, physical offset and CRC. Zeros
are the end of the log, unless good records follow. The data after the last good record is the ``tail``. The scan
therefore hides no good records and reports all damage. After a kill the tail starts where the next start cuts the log,
even if intact records follow (:func:`cut_of`).

For the tools, which read stopped stores; a broker's own start is stricter (recovery.py). Thread-safety: only reads
files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.record_scan import LogScan, RecordBlock, Stop, next_good, scan_after, stored_at
from spark_rocket.store.read_only import Progress, ReadOnlyStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are not valid records. ``path`` and ``position`` locate the first of them on disk."""

    path: Path
    position: int
    offset: int
    length: int
    reason: str
    is_zero: bool = False
    """Whether the first bytes are zeros: never written, or lost."""

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position} (offset {self.offset}), {self.length} bytes: {self.reason}"


class Salvage:
    """Iterate over the good blocks of a log and the damage between them, in log order."""

    def __init__(self, view: ReadOnlyStore, progress: Progress | None = None) -> None:
        self._log = view.log
        self._progress = progress
        self._total = view.data_end() - view.log.min_offset if progress is not None else 0
        self._cut = cut_of(view)
        self.end = view.log.min_offset
        """End of the last good record; set when the iteration is complete."""
        self.tail: Damage | None = None
        """Data after ``end``, if it is not only zeros."""

    def __iter__(self) -> Iterator[RecordBlock | Damage]:
        pending: Damage | None = None  # ends at the next good record, if there is one
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
                    if self._progress is not None:
                        self._progress(self.end - self._log.min_offset, self._total)
                offset = scan.end.offset
                if scan.end.stop not in (Stop.BAD, Stop.END):
                    break
                is_zero = scan.end.stop is Stop.END
                if pending is None:
                    reason = scan.end.reason or "zeros instead of a record"
                    pending = Damage(file.path, offset - base, offset, 0, reason, is_zero)
                offset = base + next_good(file, offset - base)
            behind = stop
        if self._progress is not None:
            self._progress(self._total, self._total)
        if pending is None and self._cut is not None:
            pending = self._cut_off(self._cut)
        if pending is not None:
            self.end = pending.offset
            if not pending.is_zero or scan_after(self._log, pending.offset).has_data:
                self.tail = _until(pending, self._log.end_offset)

    def _cut_off(self, cut: int) -> Damage:
        file = self._log.find(cut)
        path, base = (file.path, file.file_from_offset) if file is not None else (self._log.directory, 0)
        reason = "the log of a killed broker ends here, before an unfinished write"
        return Damage(path, cut - base, cut, 0, reason, is_zero=True)


def _until(damage: Damage, end: int) -> Damage:
    return Damage(damage.path, damage.position, damage.offset, end - damage.offset, damage.reason, damage.is_zero)


def cut_of(view: ReadOnlyStore) -> int | None:
    """Return the end of a killed broker's log; None if it was stopped cleanly, or if the end is damaged.

    A record's or a batch's first four bytes are written last. A process killed before that leaves a size of zero,
    possibly followed by intact records of a long batch that was never acknowledged. The next start cuts the log there
    (recovery.py). Tools and ``storePath`` must neither serve the data after it nor report it as damage.

    The rule is stricter than that of recovery: the size is zero, the store was not stopped cleanly, and no later intact
    record is older than the checkpoint's flushed time. The scan starts where that of recovery does, at the file before
    the checkpoint's time; without a checkpoint, it covers only the last two files. Bodies are not checked here, but
    when they are read. Corresponds to a part of CommitLog.recoverAbnormally.
    """
    if not view.is_killed or not view.log.files:
        return None
    checkpoint = StoreCheckpoint(view.path / "checkpoint")
    try:
        checkpoint.load()
    except (StoreCorruptError, OSError):  # the broker's start rejects the store
        return None
    flushed = checkpoint.physic_msg_timestamp
    newest = 0
    scan = LogScan(view.log, _start(view, checkpoint), check_crc=False)
    for block in scan:
        newest = max(newest, int(block.store_timestamps.max()))
    end = scan.end.offset
    file = view.log.find(end)
    if scan.end.stop not in (Stop.BAD, Stop.END) or file is None:
        return None
    at = end - file.file_from_offset
    if file.read(at, 4) != bytes(4):
        return None
    good = scan_after(view.log, end).good_offsets
    if newest < flushed or any(stored_at(view.log, offset) < flushed for offset in good):
        return None
    if good:
        _log.warning(
            "%s at byte %d (offset %d): the log of a killed broker ends here. Intact records follow that were never "
            "flushed; the broker's next start cuts them off.",
            file.path,
            at,
            end,
        )
    return end


def _start(view: ReadOnlyStore, checkpoint: StoreCheckpoint) -> int:
    files = view.log.files
    if not checkpoint.existed:
        return files[max(len(files) - 2, 0)].file_from_offset
    for index, file in enumerate(files):
        stored = stored_at(view.log, file.file_from_offset)
        if stored > checkpoint.recover_timestamp or stored < 0:
            return files[max(index - 1, 0)].file_from_offset
    return files[-1].file_from_offset
