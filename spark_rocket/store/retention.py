"""Retention: deletion of expired files, the log's first, then the consume-queue and index files that refer to them.

======================================  ===============================================================================
deleted                                 when
======================================  ===============================================================================
files older than ``fileReservedTime``   in the hours of ``deleteWhen``; at any hour while the disk is fuller than
                                        ``diskMaxUsedSpaceRatio``, or for 20 runs after request 329
files beyond ``fileReservedSize``       at any hour, so that at least that many bytes of log stay
the oldest files of any age             while the disk is fuller than ``diskSpaceCleanForciblyRatio``: as many as bring
                                        it back there, unless ``cleanFileForciblyEnable`` is false
nothing, but writes are rejected        while the disk is fuller than ``diskSpaceWarningLevelRatio``
files of consume queues and index       when all records they point to are gone; never the last file
======================================  ===============================================================================

A run deletes at most ``deleteFileBatchMax`` files of the log, oldest first. It never deletes the last file or an
unflushed one. The age of a file is that of the next file's first record, since everything in it was stored before that
record. File times are not used: they change when files are copied.

Expired files are first removed from the store's lists, so that minimum offsets advance at once and readers do not find
the files. A thread then deletes them (file_remover.py), the log's files first. Queues are trimmed in slices.

It does not sleep, and gets the time and the disk usage from the caller; only the duration of a slice is measured here.
After a crash: the next run, or the next one that is due, does the rest. Corresponds to DefaultMessageStore's
CleanCommitLogService, CleanConsumeQueueService and CorrectLogicOffsetService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from spark_rocket.errors import StoreError, StoreNotWritableError
from spark_rocket.protocol.record.layout import AT, LONG, MAGIC, MAGIC_V1, MAGIC_V2
from spark_rocket.store.config import delete_hours
from spark_rocket.store.file_remover import FileRemover
from spark_rocket.store.layout import STORE_TIME_END, store_time
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.parts import StoreParts

_log = logging.getLogger(__name__)
_HOUR_MS = 3_600_000
_MANUAL_RUNS = 20
_SLICE_QUEUES = 100  # trimmed per slice, so that other requests are served in between
_SLICE_S = 0.005  # fewer queues if they take longer: an unopened queue takes up to 1 ms


class DiskUsage(Protocol):
    """Result of ``shutil.disk_usage``. ``free`` is what this process may use, so the three need not add up."""

    @property
    def total(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def free(self) -> int: ...


@dataclass(slots=True)
class RetentionReport:
    """Result of a run."""

    removed: int = 0
    """Number of deleted commit-log files."""
    reason: str = ""
    disk_used: float = 0.0
    """Used share of the fuller of the disks of log and consume queues, 0 to 1."""
    unfinished: bool = False
    """Whether consume queues remain to be trimmed; see :meth:`Retention.trim_queues`."""


class Retention:
    """Deletes expired files, and rejects writes while the disk is nearly full."""

    def __init__(
        self,
        parts: StoreParts,
        refuse: Callable[[StoreNotWritableError | None], None],
        usage: Callable[[Path], DiskUsage],
    ) -> None:
        self.config = parts.config
        """May be replaced by one with other retention settings."""
        self.remover = FileRemover()
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._deleted = parts.deleted
        self._ends = parts.ends
        self._refuse = refuse
        self._usage = usage
        self._is_full = False
        self._manual_runs = 0
        self._trimmed_to = 0
        self._to_trim: Iterator[tuple[str, int]] | None = None
        self._unreadable: Path | None = None

    def run(self, now_ms: int) -> RetentionReport:
        """Delete the files that are due. Call every ``cleanResourceInterval``."""
        report = RetentionReport()
        report.disk_used, over = self.check_disk()
        self.remover.retry()
        self._ends.retry()
        if not self.remover.pending_bytes:
            with suppress(OSError):  # possibly a full disk; the next run retries
                self._deleted.forget_before(self._log.min_offset)
        count, report.reason, is_forced = self._due(now_ms, report.disk_used, over)
        self._manual_runs = max(self._manual_runs - 1, 0)
        if count:
            report.removed = self._remove(count, report.reason, is_forced)
        report.unfinished = self.trim_queues()
        return report

    def delete_expired(self) -> None:
        """Delete expired files in the next 20 runs regardless of the hour (request 329)."""
        self._manual_runs = _MANUAL_RUNS

    def stop(self) -> None:
        """Stop the deletion thread; it deletes pending files for at most 3 s."""
        self.remover.stop()

    # --- the disk -----------------------------------------------------------------------------------------------

    def check_disk(self) -> tuple[float, int]:
        """Return the used share of the fuller disk, and the bytes on the log's disk above the forced-deletion level.

        Rejects writes above the warning level and accepts them again below it. Forced deletion considers only the
        log's disk: deleting log files frees almost nothing on a separate disk for consume queues.
        """
        config = self.config
        level = config.disk_space_warning_level_ratio
        log_disk, queue_disk = self._usages()
        most = (log_disk.used + log_disk.free) * min(config.disk_space_clean_forcibly_ratio, level) // 100
        over = log_disk.used - most
        log, queue = _ratio(log_disk), _ratio(queue_disk)
        used = max(log, queue)
        fullest = config.store_path
        if config.paths.elsewhere:
            fullest = config.commit_log_path if log >= queue else config.consume_queue_path
        is_full = used * 100 > level
        if is_full:
            error = StoreNotWritableError(
                "service not available now. It may be caused by one of the following reasons: the broker's disk is "
                f"full [CL: {log:5.2f} CQ: {queue:5.2f} INDEX: {queue:5.2f}], messages are put to the slave, message "
                f"store has been shut down, etc. The disk of {fullest} is fuller than the {level} % of "
                "diskSpaceWarningLevelRatio.",
                remedy="Free some space, or lower fileReservedTime; the broker then resumes by itself.",
            )
            self._refuse(error)
        elif self._is_full:
            self._refuse(None)
        if is_full != self._is_full:
            if is_full:
                _log.error(
                    "The disk of %s is %.1f %% full, more than diskSpaceWarningLevelRatio %d: rejecting messages until "
                    "there is room. Stored messages can be read.",
                    fullest,
                    used * 100,
                    level,
                )
            else:
                _log.info("The disk of %s is %.1f %% full: accepting messages again.", fullest, used * 100)
        self._is_full = is_full
        return used, over

    def _usages(self) -> tuple[DiskUsage, DiskUsage]:
        """Return the usage of the disks of log and consume queues, which may be different."""
        config = self.config
        paths = (config.commit_log_path, config.consume_queue_path)
        log, queue = (self._usage(path if path.exists() else config.store_path) for path in paths)
        return log, queue

    def log_disk(self) -> DiskUsage:
        """Return the usage of the log's disk."""
        return self._usages()[0]

    def runtime_info(self) -> dict[str, str]:
        """Return disk metrics for request 28, under Apache's names."""
        log, queue = self._usages()
        return {
            "commitLogDiskRatio": str(_ratio(log)),
            f"commitLogDiskRatio_{self.config.commit_log_path}": str(_ratio(log)),
            "consumeQueueDiskRatio": str(_ratio(queue)),
            "commitLogDirCapacity": f"Total : {readable_bytes(log.total)}, Free : {readable_bytes(log.free)}.",
        }

    # --- the log ------------------------------------------------------------------------------------------------

    def _due(self, now: int, used: float, over: int) -> tuple[int, str, bool]:
        """Return how many log files are due, the reason for the last one, and whether any is not expired yet."""
        config, log = self.config, self._log
        files = log.queue.files
        forced = -(-(over - self.remover.pending_bytes) // log.file_size) if config.clean_file_forcibly_enable else 0
        if self._manual_runs:
            occasion = "request 329"
        elif used * 100 > config.disk_max_used_space_ratio:
            occasion = f"disk {used:.0%} full"
        else:
            occasion = f"deleteWhen {config.delete_when}" if self._is_time(now) else ""
        reason, is_forced = "", False
        count = 0
        while count < min(len(files) - 1, config.delete_file_batch_max):
            end = files[count + 1].file_from_offset
            if end > log.flushed_where:
                break
            if count < forced:
                reason = f"disk {used:.0%} full, more than diskSpaceCleanForciblyRatio"
                stored, _ = _begin(files[count + 1])
                is_forced = is_forced or stored is None or not self._is_past(stored, now)
            elif 0 < config.file_reserved_size <= log.max_offset - end:
                reason = "beyond fileReservedSize"
            elif occasion and self._is_expired(files[count + 1], now):
                reason = f"older than fileReservedTime; {occasion}"
            else:
                break
            count += 1
        return count, reason, is_forced

    def _is_time(self, now: int) -> bool:
        return time.localtime(now / 1000).tm_hour in delete_hours(self.config.delete_when)

    def _is_expired(self, following: MappedFile, now: int) -> bool:
        """Return whether everything before a file is older than fileReservedTime."""
        stored, problem = _begin(following)
        if stored is None:
            if problem and self._unreadable != following.path:
                self._unreadable = following.path
                _log.warning(
                    "%s %s: the age of earlier files is unknown, so they are retained. Stop the broker and run "
                    "`rocket store check`.",
                    following.path,
                    problem,
                )
            return False
        return self._is_past(stored, now)

    def _is_past(self, stored: int, now: int) -> bool:
        return now - stored >= self.config.file_reserved_time * _HOUR_MS

    def _remove(self, count: int, reason: str, is_forced: bool) -> int:
        """Remove the first files from the log, advance the minimum offsets, and queue the files for deletion."""
        files = self._log.queue.files
        self._ends.begin_at(files[count].file_from_offset)
        removed = self._log.queue.remove_before(files[count].file_from_offset)
        self.remover.remove(removed, pause=self.config.delete_commit_log_files_interval / 1000, sync=True)
        self._queues.correct_min_offsets(self._log.min_offset)
        _log.log(
            logging.WARNING if is_forced else logging.INFO,
            "deleting %s of %s from %s on%s: %s",
            "1 file" if len(removed) == 1 else f"{len(removed)} files",
            self._log.queue.directory,
            removed[0].path.name,
            ", with messages younger than fileReservedTime" if is_forced else "",
            reason,
        )
        return len(removed)

    # --- consume queues and index -------------------------------------------------------------------------------

    def trim_queues(self) -> bool:
        """Trim a slice of the entries before the log's beginning; return True if queues remain for the next call."""
        begin = self._log.min_offset
        if begin > self._trimmed_to:
            self._trimmed_to = begin
            self._to_trim = iter(list(self._queues.table))
            if self._index is not None:
                self.remover.remove(self._index.trim(begin))
        if self._to_trim is None:
            return False
        last, deadline = None, time.monotonic() + _SLICE_S
        for last in islice(self._to_trim, _SLICE_QUEUES):
            try:
                queue = self._queues.find(*last)
                if queue is not None:
                    self.remover.remove(queue.trim(begin))
            except (StoreError, OSError) as error:  # its readers get the error; the other queues are trimmed
                _log.error("cannot trim queue %d of topic %s: %s", last[1], last[0], error)
            if time.monotonic() >= deadline:
                break
        if last is None:
            self._to_trim = None
        return last is not None

    def trim_again(self) -> None:
        """Trim every consume queue and index file again (request 306)."""
        self._trimmed_to = 0
        self.trim_queues()


def _ratio(usage: DiskUsage) -> float:
    """Return the used share of a disk as ``df`` computes it: of the used space and the space available here."""
    return usage.used / (usage.used + usage.free or 1)


def readable_bytes(size: int) -> str:
    """Format a size as Apache's tools do."""
    power = min((size.bit_length() - 1) // 10, 5) if size else 0
    return f"{size / 1024**power:.1f} {'KMGTP'[power - 1]}iB" if power else f"{size} B"


def _begin(file: MappedFile) -> tuple[int | None, str]:
    """Return the store time of a file's first record, or None if unknown; and the fault, if any."""
    try:
        head = file.read(0, STORE_TIME_END)
    except OSError as error:
        return None, f"cannot be read ({error})"
    return _store_time(head, file.file_from_offset), "does not begin with a record" if any(head) else ""


def _store_time(head: bytes, offset: int) -> int | None:
    """Return the store time of the record that starts with these bytes; None if it is invalid for this offset."""
    if len(head) < STORE_TIME_END:
        return None
    (magic,) = MAGIC.unpack_from(head, AT["magic"])
    (place,) = LONG.unpack_from(head, AT["physical_offset"])
    if magic not in (MAGIC_V1, MAGIC_V2) or place != offset:
        return None
    stored = store_time(head)
    return stored if stored >= 0 else None
