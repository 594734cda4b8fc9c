"""Which files of a store are past their time, and letting them go: the log's first, then what describes them.

======================================  ===============================================================================
what goes                               when
======================================  ===============================================================================
files older than ``fileReservedTime``   in the hours of ``deleteWhen``; at any hour while the disk is fuller than
                                        ``diskMaxUsedSpaceRatio``, or for 20 runs after request 329
files beyond ``fileReservedSize``       at any hour, so that at least that many bytes of log stay
the oldest files, however young         while the disk is fuller than ``diskSpaceCleanForciblyRatio``: as many as bring
                                        it back there, unless ``cleanFileForciblyEnable`` is false
nothing, but writes are refused         while the disk is fuller than ``diskSpaceWarningLevelRatio``
files of consume queues and index       when all that they point to is gone; never the last one
======================================  ===============================================================================

At most ``deleteFileBatchMax`` files of the log go in a run, whole ones, oldest first, never the last and none that is
not flushed. A file is as old as the next one's first record, before which everything in it was stored: times of files
change when they are copied.

What goes is first taken out of the store's lists, so that minimum offsets move at once and nobody finds it any more.
Then it is deleted on a thread (file_remover.py), the log's files before the others. Queues are trimmed in slices.

Thread-safety: for the store's one thread; it does not sleep, is told the time, but for the length of a slice, and asks
for the disk by a function.
After a crash: the next run, or the next time it is due, does what was not done yet.
Corresponds to DefaultMessageStore's CleanCommitLogService, CleanConsumeQueueService and CorrectLogicOffsetService.
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
from spark_rocket.store.config import StoreConfig, delete_hours
from spark_rocket.store.file_remover import FileRemover
from spark_rocket.store.index.service import IndexService
from spark_rocket.store.layout import STORE_TIME_END, store_time
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.queues.queue_table import ConsumeQueueTable
from spark_rocket.store.queues.side_files import DeletedTopics

_log = logging.getLogger(__name__)
_HOUR = 3_600_000
_MANUAL_RUNS = 20
_SLICE = 100  # queues that are trimmed before somebody else has a turn,
_SLICE_SECONDS = 0.005  # or fewer: one that was not opened yet takes up to a millisecond


class DiskUsage(Protocol):
    """What ``shutil.disk_usage`` says: ``free`` is what this process may have, so the three need not add up."""

    @property
    def total(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def free(self) -> int: ...


@dataclass(slots=True)
class RetentionReport:
    """What a run did."""

    removed: int = 0
    """Files of the commit log."""
    reason: str = ""
    disk_used: float = 0.0
    """The fuller one of the disks that log and consume queues are on, 0 to 1."""
    unfinished: bool = False
    """Consume queues are left to trim; see :meth:`Retention.trim_queues`."""


class Retention:
    """Lets go of what is past its time, and refuses writes while the disk is nearly full."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        deleted: DeletedTopics,
        refuse: Callable[[StoreNotWritableError | None], None],
        usage: Callable[[Path], DiskUsage],
    ) -> None:
        self.config = config
        """May be replaced by one with other settings of retention."""
        self.remover = FileRemover()
        self._log = log
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._refuse = refuse
        self._usage = usage
        self._is_full = False
        self._manual_runs = 0
        self._trimmed_to = 0
        self._to_trim: Iterator[tuple[str, int]] | None = None
        self._distrusted: Path | None = None

    def run(self, now_ms: int) -> RetentionReport:
        """Do what is due. To be called every ``cleanResourceInterval``."""
        report = RetentionReport()
        report.disk_used, over = self.check_disk()
        self.remover.retry()
        if not self.remover.pending_bytes:
            with suppress(OSError):  # a full disk, perhaps: another run tries it again
                self._deleted.forget_before(self._log.min_offset)
        count, report.reason, is_forced = self._due(now_ms, report.disk_used, over)
        self._manual_runs = max(self._manual_runs - 1, 0)
        if count:
            report.removed = self._remove(count, report.reason, is_forced)
        report.unfinished = self.trim_queues()
        return report

    def delete_expired(self) -> None:
        """Let the next 20 runs delete expired files whatever the hour (request 329)."""
        self._manual_runs = _MANUAL_RUNS

    def stop(self) -> None:
        """Delete what was taken out already."""
        self.remover.stop()

    # --- the disk -----------------------------------------------------------------------------------------------

    def check_disk(self) -> tuple[float, int]:
        """How full the fuller disk is, and how many bytes more the log's disk has than where files go by force.

        Refuses writes above the warning level and takes them again below it. A file of the log makes next to no room
        on a disk that has consume queues only, so that none goes by force for that disk's sake.
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
                remedy="Free some space, or lower fileReservedTime; the broker goes on by itself.",
            )
            self._refuse(error)
        elif self._is_full:
            self._refuse(None)
        if is_full != self._is_full:
            if is_full:
                _log.error(
                    "The disk of %s is %.1f %% full, more than diskSpaceWarningLevelRatio %d: no messages are taken "
                    "until there is room. What is stored can be read.",
                    fullest,
                    used * 100,
                    level,
                )
            else:
                _log.info("The disk of %s is %.1f %% full: messages are taken again.", fullest, used * 100)
        self._is_full = is_full
        return used, over

    def _usages(self) -> tuple[DiskUsage, DiskUsage]:
        """Of the disks that log and consume queues are on (storePathCommitLog, storePathConsumeQueue, or a link)."""
        config = self.config
        paths = (config.commit_log_path, config.consume_queue_path)
        log, queue = (self._usage(path if path.exists() else config.store_path) for path in paths)
        return log, queue

    def log_disk(self) -> DiskUsage:
        """Of the disk that the log is on."""
        return self._usages()[0]

    def runtime_info(self) -> dict[str, str]:
        """Figures of the disk for request 28, under Apache's names."""
        log, queue = self._usages()
        return {
            "commitLogDiskRatio": str(_ratio(log)),
            f"commitLogDiskRatio_{self.config.commit_log_path}": str(_ratio(log)),
            "consumeQueueDiskRatio": str(_ratio(queue)),
            "commitLogDirCapacity": f"Total : {readable_bytes(log.total)}, Free : {readable_bytes(log.free)}.",
        }

    # --- the log ------------------------------------------------------------------------------------------------

    def _due(self, now: int, used: float, over: int) -> tuple[int, str, bool]:
        """How many files of the log are to go, why the last of them, and whether some go before their time."""
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
        """Whether everything before a file is older than fileReservedTime."""
        stored, problem = _begin(following)
        if stored is None:
            if problem and self._distrusted != following.path:
                self._distrusted = following.path
                _log.warning(
                    "%s %s, so nobody knows how old the files before it are: they are kept. Stop the broker and run "
                    "`rocket store check`.",
                    following.path,
                    problem,
                )
            return False
        return self._is_past(stored, now)

    def _is_past(self, stored: int, now: int) -> bool:
        return now - stored >= self.config.file_reserved_time * _HOUR

    def _remove(self, count: int, reason: str, is_forced: bool) -> int:
        """Take the first files out of the log, and everybody's minimum offsets with them; delete them later."""
        files = self._log.queue.files
        removed = self._log.queue.remove_before(files[count].file_from_offset)
        self.remover.remove(removed, pause=self.config.delete_commit_log_files_interval / 1000, sync=True)
        self._queues.correct_min_offsets(self._log.min_offset)
        _log.log(
            logging.WARNING if is_forced else logging.INFO,
            "%s of %s from %s on %s deleted%s: %s",
            "1 file" if len(removed) == 1 else f"{len(removed)} files",
            self._log.queue.directory,
            removed[0].path.name,
            "is" if len(removed) == 1 else "are",
            ", with messages younger than fileReservedTime" if is_forced else "",
            reason,
        )
        return len(removed)

    # --- what follows the log -----------------------------------------------------------------------------------

    def trim_queues(self) -> bool:
        """Go on trimming what points before the log; True when queues are left over for the next call."""
        begin = self._log.min_offset
        if begin > self._trimmed_to:
            self._trimmed_to = begin
            self._to_trim = iter(list(self._queues.table))
            if self._index is not None:
                self.remover.remove(self._index.trim(begin))
        if self._to_trim is None:
            return False
        last, deadline = None, time.monotonic() + _SLICE_SECONDS
        for last in islice(self._to_trim, _SLICE):
            try:
                queue = self._queues.find(*last)
                if queue is not None:
                    self.remover.remove(queue.trim(begin))
            except (StoreError, OSError) as error:  # its readers are told; the others are trimmed
                _log.error("queue %d of topic %s is not trimmed: %s", last[1], last[0], error)
            if time.monotonic() >= deadline:
                break
        if last is None:
            self._to_trim = None
        return last is not None

    def trim_again(self) -> None:
        """Look at every consume queue and index file again (request 306)."""
        self._trimmed_to = 0
        self.trim_queues()


def _ratio(usage: DiskUsage) -> float:
    """How full a disk is, as ``df`` says it: of what is used and what this process may have."""
    return usage.used / (usage.used + usage.free or 1)


def readable_bytes(size: int) -> str:
    """Bytes in the words of Apache's tools."""
    power = min((size.bit_length() - 1) // 10, 5) if size else 0
    return f"{size / 1024**power:.1f} {'KMGTP'[power - 1]}iB" if power else f"{size} B"


def _begin(file: MappedFile) -> tuple[int | None, str]:
    """When a file's first record was stored; None if nobody knows, and what is then wrong with it, if anything."""
    try:
        head = file.read(0, STORE_TIME_END)
    except OSError as error:
        return None, f"cannot be read ({error})"
    return _store_time(head, file.file_from_offset), "does not begin with a record" if any(head) else ""


def _store_time(head: bytes, offset: int) -> int | None:
    """When the record that begins with these bytes was stored; None if it is none, or does not belong there."""
    if len(head) < STORE_TIME_END:
        return None
    (magic,) = MAGIC.unpack_from(head, AT["magic"])
    (place,) = LONG.unpack_from(head, AT["physical_offset"])
    if magic not in (MAGIC_V1, MAGIC_V2) or place != offset:
        return None
    stored = store_time(head)
    return stored if stored >= 0 else None
