"""A scan of the whole log that does not stop at damage: it says what is damaged, and goes on at the next whole record.

A stretch of :class:`Damage` begins where no good record stands and ends where the next one does: that of the size that
the bad record says it has, if one follows there, or else the first in the file whose magic, lengths, place and CRC are
right. Zeros are the end of the log, unless good records come behind them. What lies behind the last good record is the
``tail``. So nothing good is hidden, and nothing bad is passed over in silence. After a kill the tail begins where the
next start cuts the log, even if whole records were left behind (:func:`cut_of`).

For the tools, which look at stopped stores; a broker's own start is stricter (recovery.py).
Thread-safety: reads files only. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.checkpoint import Checkpoint
from spark_rocket.store.log.record_scan import LogScan, RecordBlock, Stop, look_behind, next_good, stored_at
from spark_rocket.store.tools.view import Progress, StoreView

_log = logging.getLogger(__name__)


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

    def __init__(self, view: StoreView, progress: Progress | None = None) -> None:
        self._log = view.log
        self._progress = progress
        self._total = view.data_end() - view.log.min_offset if progress is not None else 0
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
                    if self._progress is not None:
                        self._progress(self.end - self._log.min_offset, self._total)
                offset = scan.end.offset
                if scan.end.stop not in (Stop.BAD, Stop.END):
                    break
                is_zero = scan.end.stop is Stop.END
                if pending is None:
                    reason = scan.end.reason or "zeros where a record should be"
                    pending = Damage(file.path, offset - base, offset, 0, reason, is_zero)
                offset = base + next_good(file, offset - base)
            behind = stop
        if self._progress is not None:
            self._progress(self._total, self._total)
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


def cut_of(view: StoreView) -> int | None:
    """The offset where a killed broker's log ends; None if it was stopped cleanly, or what is there is damage.

    A record's or a batch's first four bytes are written last. A process that is killed before leaves a size of zero,
    and behind it may lie whole records: of a long batch, which nobody was told is stored. The next start cuts the log
    there (recovery.py); tools and ``storePath`` must neither serve what it cuts off nor call it damage.

    The rule is recovery's, but stricter, because nobody is asked to start anything: the size is zero, the store was not
    stopped cleanly, and no whole record behind is older than what the checkpoint says was flushed. Looked at is what
    recovery looks at, from the file before the checkpoint's time on; without a checkpoint only the last two files.
    Bodies are not checked here: who reads them does. Corresponds to a part of CommitLog.recoverAbnormally.
    """
    if not view.is_killed or not view.log.files:
        return None
    checkpoint = Checkpoint(view.path / "checkpoint")
    try:
        checkpoint.load()
    except (StoreCorruptError, OSError):  # the start refuses
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
    good = look_behind(view.log, end).good_offsets
    if newest < flushed or any(stored_at(view.log, offset) < flushed for offset in good or []):
        return None
    if good:
        _log.warning(
            "%s at byte %d (offset %d): the log of a broker that was killed ends here. Whole records lie behind it, "
            "which were never flushed; its next start cuts them off.",
            file.path,
            at,
            end,
        )
    return end


def _start(view: StoreView, checkpoint: Checkpoint) -> int:
    files = view.log.files
    if not checkpoint.existed:
        return files[max(len(files) - 2, 0)].file_from_offset
    for index, file in enumerate(files):
        stored = stored_at(view.log, file.file_from_offset)
        if stored > checkpoint.recover_timestamp or stored < 0:
            return files[max(index - 1, 0)].file_from_offset
    return files[-1].file_from_offset
