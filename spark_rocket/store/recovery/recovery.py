"""Recovery at start: find the end of the log, and make the consume queues match it.

===============  =================================================  ==================================================
state            scanned, with CRC check                            allowed after the last good record
===============  =================================================  ==================================================
clean stop       the last three files, at most 64 MiB               no record or entry; otherwise StoreCorruptError
killed           from the file before the checkpoint's time on      the unflushed tail: cut off, and zeroed
no checkpoint    the entire log                                     as above
===============  =================================================  ==================================================

*Killed* means that the ``abort`` file exists. The scan stops at the first invalid record, and the log is cut exactly
there, so that later bytes are never read as records. Three cases are not cut but rejected (``StoreCorruptError`` with
file and offset), because flushed data is damaged:

- After a clean stop: an invalid record with good records or consume-queue entries after it.
- After a kill: the same, if a later record is older than the checkpoint's flushed time and has a consume-queue entry.
  (A torn record's body may contain bytes that only look like records.)
- After a kill: a log that ends before the checkpoint's flushed time.

After a power failure, later pages of the unflushed tail may be on disk without earlier ones. Good records in such a
tail were never acknowledged as flushed. They are cut off too, but copied to ``quarantine`` and reported. Deleting the
file ``checkpoint`` allows a rejected store to start: no data then counts as flushed.

Consume queues are compared with the scanned records and fixed where they differ (see dispatch.py). Entries that point
beyond the end are dropped. If a queue has lost entries from before the scan, or is shorter than at the last clean stop
(side_files.py), the scan restarts at the log's beginning. After a kill, scanned data never counts as flushed: it may be
only in memory, and the checkpoint must not advance before it is on disk.

A log that begins after the beginning on record is opened, but the loss is an error in the log (lost_begin.py).

Deleted topics stay deleted: the topics of side_files.py, and topics without a directory that ``config/topics.json``
does not list.

Runs alone, before the store accepts messages. Corresponds to CommitLog.recoverNormally and recoverAbnormally,
ConsumeQueue.recover and truncateDirtyLogicFiles.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.model import CHECK_MAX_TIME_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from spark_rocket.protocol.record.layout import HEADER_SIZE, header_struct
from spark_rocket.store.layout import ENTRY_SIZE, ENTRY_TYPE
from spark_rocket.store.log.mapped_file import free_name
from spark_rocket.store.log.record_scan import LogScan, ScanEnd, Stop, TrailingData, record_at, scan_after, stored_at
from spark_rocket.store.parts import StoreParts
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import CommitLogDispatcher, QueueGap
from spark_rocket.store.recovery.lost_begin import REMEDY, LostBegin, find_lost_begin

_PLACES = header_struct("size", "queue_id", "queue_offset", "physical_offset")
_log = logging.getLogger(__name__)
_CLEAN_FILES = 3
_CLEAN_BYTES = 64 << 20
_SYSTEM_PREFIXES = ("RMQ_SYS_", SYSTEM_PREFIX, CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC, RETRY_PREFIX, DLQ_PREFIX)


@dataclass(slots=True)
class RecoveryReport:
    """Result of a recovery."""

    clean: bool
    start_offset: int = 0
    end_offset: int = 0
    records: int = 0
    last_store_timestamp: int = 0
    max_store_timestamp: int = 0
    fixed_entries: int = 0
    cut_reason: str = ""
    """Fault of the record at ``end_offset``; empty if nothing was cut off."""
    lost: LostBegin | None = None
    """Lost files at the log's beginning."""
    quarantined: list[Path] = field(default_factory=list)
    """Copies of cut-off data that contains good records."""


def topics_on_record(store_path: Path) -> frozenset[str] | None:
    """Return the topics of ``config/topics.json``; None if it is unreadable, so that no topic counts as deleted."""
    for name in ("topics.json", "topics.json.bak"):
        try:
            table = json.loads((store_path / "config" / name).read_bytes())["topicConfigTable"]
            return frozenset(str(topic) for topic in table)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def is_deleted(topic: str, known: frozenset[str] | None) -> bool:
    """Return whether a topic without a directory was deleted: the list of topics exists without it."""
    return known is not None and topic not in known and not topic.startswith(_SYSTEM_PREFIXES)


class Recovery:
    """Recovery of one store."""

    def __init__(self, parts: StoreParts) -> None:
        self._config = config = parts.config
        self._log = parts.log
        self._queues = parts.queues
        self._checkpoint = parts.checkpoint
        self._delays = parts.delays
        self._deleted = parts.deleted
        self._ends = parts.ends
        # A replica gets its list of topics later than their messages, so the list does not show deletions.
        self._known = None if config.is_replica else topics_on_record(config.store_path)

    def run(self, *, clean: bool) -> RecoveryReport:
        """Recover the store. StoreCorruptError if flushed data is damaged."""
        report = RecoveryReport(clean and self._checkpoint.existed)
        files = self._log.queue.files
        if not files:
            self._without_log(report)
            return report
        report.lost = find_lost_begin(self._ends.log_begin, self._log.queue, self._queues.opened())
        if report.lost is not None:
            _log.error("%s: %s. %s", self._log.queue.directory, report.lost, REMEDY)
        start = self._start(report.clean)
        if not any(True for _ in self._queues.table):
            start = self._log.min_offset  # all consume queues are lost
        elif self._log.min_offset == 0 and any(queue.min_offset for queue in self._queues.opened()):
            start = 0  # the log is complete, but a queue has lost its first files
        elif short := self._short():
            _log.warning("%s queue %d is shorter than at the last stop: reading the entire log", *next(iter(short)))
            start = self._log.min_offset
        try:
            end = self._replay(report, start)
        except QueueGap as gap:
            _log.warning("%s: comparing all consume queues with the entire log", gap)
            try:
                end = self._replay(report, self._log.min_offset)
            except QueueGap as again:
                raise StoreCorruptError(
                    f"{again}, and the log does not have the messages in between.",
                    remedy=f"Run `rocket store check {self._config.store_path}`; `rocket store rebuild` with the same "
                    "directory rebuilds the queue from the available messages.",
                ) from None
        self._finish_log(report, end)
        self._queues.correct_min_offsets(self._log.min_offset)
        self._continue_offsets()
        for queue in self._queues.opened():
            if not report.clean:
                queue.mark_unflushed(report.start_offset)
            if queue.unflushed:
                self._queues.mark_dirty(queue)
        if report.records:
            self._checkpoint.correct(report.max_store_timestamp)
        return report

    def _short(self) -> dict[tuple[str, int], int]:
        """Return queues that have lost their end, or all entries."""
        short = self._ends.short(self._queues, self._deleted)
        return {key: end for key, end in short.items() if not is_deleted(key[0], self._known)}

    def _continue_offsets(self) -> None:
        """Continue empty queues at their last known ends, so that no offset is used twice."""
        if self._log.min_offset == 0:
            return
        for key, end in self._short().items():
            queue = self._queues.find_or_create(*key)
            if queue.min_offset == queue.max_offset:
                _log.warning("%s queue %d continues at %d, its end at the last stop", *key, end)
                queue.truncate(queue.min_offset)
                queue.continue_at(end)

    def _without_log(self, report: RecoveryReport) -> None:
        """Start without a commit log: only valid for a new store."""
        for queue in self._queues.opened():
            if queue.max_offset > queue.min_offset and queue.entry(queue.max_offset - 1)[1] > 0:
                raise StoreCorruptError(
                    f"{self._log.queue.directory} has no files, but {queue.files.directory} has entries for them.",
                    remedy="Restore the commit log; `rocket store check` reports missing files. Or delete "
                    "consumequeue to start with an empty store.",
                )
        self._log.open_at(0, flushed=0)

    # --- where to start -----------------------------------------------------------------------------------------

    def _start(self, clean: bool) -> int:
        """Return the physical offset to scan from."""
        files = self._log.queue.files
        if clean:
            first = files[max(len(files) - _CLEAN_FILES, 0)].file_from_offset
            return max(first, self._boundary_before_end())
        limit = self._checkpoint.recover_timestamp
        # From the front: after a clock set back, an unflushed file may be followed by one that looks older.
        for index, file in enumerate(files):
            stored = stored_at(self._log.queue, file.file_from_offset)
            if stored < 0 or stored > limit:
                return files[max(index - 1, 0)].file_from_offset
        return files[-1].file_from_offset

    def _boundary_before_end(self) -> int:
        """Return the start of a record some MiB before the end, found in the queue with the newest entry."""
        newest, queue = max(
            ((queue.entry(queue.max_offset - 1)[0], queue) for queue in self._queues.opened() if queue.max_offset),
            key=lambda pair: pair[0],
            default=(0, None),
        )
        if queue is None or newest < _CLEAN_BYTES:
            return 0
        low, high = queue.min_offset, queue.max_offset - 1
        while low < high:
            middle = (low + high) // 2
            if queue.entry(middle)[0] < newest - _CLEAN_BYTES:
                low = middle + 1
            else:
                high = middle
        return queue.entry(low)[0] if self._points_to_its_record(queue, low, self._log.queue.end_offset) else 0

    # --- the scan -----------------------------------------------------------------------------------------------

    def _replay(self, report: RecoveryReport, start: int) -> ScanEnd:
        """Scan from an offset on, replay into the queues, and determine the end of the log."""
        log_queue = self._log.queue
        known, clean = self._known, report.clean
        dispatcher = CommitLogDispatcher(
            self._queues,
            self._delays,
            self._deleted,
            may_start_anywhere=start == log_queue.min_offset,
            ignores=lambda topic, offset: is_deleted(topic, known) and (clean or offset > 0),
        )
        report.start_offset, report.records = start, 0
        scan = LogScan(log_queue, start, check_crc=self._config.check_crc_on_recover)
        last = before = 0
        torn: int | None = None
        properties, flushed = b"", self._checkpoint.physic_msg_timestamp
        for block in scan:
            dispatcher.dispatch(block)
            report.records += len(block)
            before = int(block.store_timestamps[-2]) if len(block) > 1 else last
            last = int(block.store_timestamps[-1])
            report.max_store_timestamp = max(report.max_store_timestamp, int(block.store_timestamps.max()))
            properties = block.data[int(block.property_starts[-1]) : int(block.property_ends[-1])]
            torn = int(block.physical_offsets[-1]) if b"\0" in properties else None
        report.last_store_timestamp = last
        end = scan.end
        # A record of the last flushed millisecond may be flushed: then only 8 zeros in a row, or one at the end, count.
        is_hole = last > flushed or (last == flushed and (properties.endswith(b"\0") or bytes(8) in properties))
        if end.stop is Stop.END and torn is not None and not clean and is_hole:
            # The last record's properties have zero bytes, which this store never writes: a page is missing.
            end = ScanEnd(torn, Stop.BAD, "the last record's properties have a hole")
            report.last_store_timestamp = before
        self._judge(report, end)
        self._trim_queues(report, dispatcher, start, end.offset)
        report.fixed_entries += dispatcher.changed
        return end

    # --- the end ------------------------------------------------------------------------------------------------

    def _place(self, offset: int) -> str:
        file = self._log.queue.find(offset)
        if file is None:
            return f"The end of the commit log in {self._log.queue.directory} (offset {offset})"
        return f"{file.path} at byte {offset - file.file_from_offset} (offset {offset})"

    def _corrupt(self, offset: int, what: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self._place(offset)}: {what}.",
            remedy=(
                "Restore the file from a copy; `rocket store check` and `rocket store dump` report intact data. To "
                f"continue without the data from there on, delete {self._checkpoint.path}: the log is then cut there, "
                "and the rest is copied to the directory quarantine."
            ),
        )

    def _judge(self, report: RecoveryReport, end: ScanEnd) -> None:
        """Check whether the log may be cut where the scan stopped; StoreCorruptError if not."""
        report.end_offset = end.offset
        remains = scan_after(self._log.queue, end.offset)
        good = remains.good_offsets
        why = end.reason or "there is no record"
        if report.clean:
            beyond = self._queue_beyond(end.offset)
            if good or beyond is not None:
                what = f"intact records follow from offset {good[0]} on" if good else f"{beyond} has later entries"
                raise self._corrupt(end.offset, f"{why}, but {what}")
        else:
            flushed = self._checkpoint.physic_msg_timestamp
            proof = next((offset for offset in good if self._was_flushed(offset, flushed)), None)
            if proof is not None:
                raise self._corrupt(end.offset, f"{why}, but intact, flushed records follow from offset {proof} on")
            if self._checkpoint.existed and report.max_store_timestamp < flushed and self._log_reaches(report):
                raise self._corrupt(end.offset, f"{why}, but later records were flushed according to the checkpoint")
        if remains.has_data:
            report.cut_reason = why
            if good:
                self._quarantine(report, end.offset, remains)

    def _was_flushed(self, offset: int, flushed: int) -> bool:
        """Return whether a good record after the end is older than the checkpoint and not part of a torn body.

        A body may contain anything, but no sender can create a consume-queue entry that points into it.
        """
        file = self._log.queue.find(offset)
        if file is None:
            return False
        record = record_at(file, offset - file.file_from_offset)
        if record is None or record.store_timestamp >= flushed:
            return False
        queue = self._queues.find(str(record.topic, "utf-8", "replace"), record.queue_id)
        number = record.queue_offset
        return queue is not None and queue.min_offset <= number < queue.max_offset and queue.entry(number)[0] == offset

    def _log_reaches(self, report: RecoveryReport) -> bool:
        """Return whether the scan must have seen the record of the checkpoint's time (a trimmed log may be empty)."""
        return report.records > 0 or report.end_offset > self._log.min_offset or self._log.min_offset == 0

    def _queue_beyond(self, offset: int) -> Path | None:
        for queue in self._queues.opened():
            if queue.max_offset > queue.min_offset:
                physical, size, _ = queue.entry(queue.max_offset - 1)
                if physical + size > offset:
                    return queue.files.directory
        return None

    def _quarantine(self, report: RecoveryReport, offset: int, remains: TrailingData) -> None:
        """Copy a tail with intact records to ``quarantine``, so that no data disappears."""
        directory = self._config.store_path / "quarantine"
        directory.mkdir(exist_ok=True)
        for file in self._log.queue.files:
            for start, stop in file.data_ranges(max(offset - file.file_from_offset, 0)):
                data = file.read(start, stop - start)
                if data.count(0) != len(data):
                    path = free_name(directory, file.file_from_offset + start)
                    path.write_bytes(data.rstrip(b"\0"))
                    report.quarantined.append(path)
        _log.warning(
            "%s: %s; cutting off later intact records, %s; a copy is in %s",
            self._place(offset),
            report.cut_reason,
            "which were never flushed" if self._checkpoint.existed else "possibly flushed (there is no checkpoint)",
            directory,
        )

    def _finish_log(self, report: RecoveryReport, end: ScanEnd) -> None:
        """Cut the log at its end: zero the rest of the file, and remove later files."""
        queue = self._log.queue
        file = queue.find(end.offset)
        if file is not None:
            behind = queue.files[queue.files.index(file) + 1 :]
            if report.cut_reason or behind:
                queue.truncate(end.offset)
                if end.offset == file.file_from_offset and queue.find(end.offset) is None:
                    file = None
        if report.cut_reason:
            _log.warning("%s: %s; cut the log there", self._place(end.offset), report.cut_reason)
        known = report.clean and not report.cut_reason
        self._log.open_at(end.offset, flushed=end.offset if known else report.start_offset)

    # --- consume queues -----------------------------------------------------------------------------------------

    def _trim_queues(self, report: RecoveryReport, dispatcher: CommitLogDispatcher, start: int, end: int) -> None:
        """Drop entries whose records do not exist."""
        dropped: list[tuple[int, int, Path]] = []
        for queue in self._queues.opened():
            seen = dispatcher.seen.get(queue)
            if seen is not None:
                if queue.max_offset > seen:
                    if report.clean:
                        raise StoreCorruptError(
                            f"{queue.files.directory} has {queue.max_offset} entries, but its last message in the log "
                            f"is number {seen - 1}.",
                            remedy="Restore the end of the log, or run `rocket store rebuild "
                            f"{self._config.store_path}`. If you delete {self._checkpoint.path}, the queue is cut to "
                            "the messages of the log.",
                        )
                    dropped.append((queue.max_offset - seen, seen, queue.files.directory))
                    report.fixed_entries += queue.max_offset - seen
                    queue.truncate(seen)
                while not report.clean and queue.max_offset > queue.min_offset:
                    if queue.entry(queue.max_offset - 1)[0] < end:
                        break
                    queue.truncate(queue.max_offset - 1)  # the entry of the torn last record
            elif not report.clean and not self._is_sound(queue, start):
                keep = self._sound_length(queue, start)
                dropped.append((queue.max_offset - keep, keep, queue.files.directory))
                report.fixed_entries += queue.max_offset - keep
                queue.truncate(keep)
            if not report.clean and queue.has_data_behind():
                queue.truncate(queue.max_offset)
        if dropped:
            most, length, directory = max(dropped)
            _log.warning(
                "The log in %s ends at offset %d and lacks %d messages of %d consume queues: dropping their entries; "
                "new messages reuse the offsets. Most are of %s: it ended at %d, and now at %d.",
                self._log.queue.directory,
                end,
                sum(count for count, _, _ in dropped),
                len(dropped),
                directory,
                length + most,
                length,
            )

    def _is_sound(self, queue: ConsumeQueue, start: int) -> bool:
        """Return whether the last entry of a queue without scanned records is of a record before the scan's start."""
        if queue.max_offset == queue.min_offset:
            return True
        return self._points_to_its_record(queue, queue.max_offset - 1, start)

    def _points_to_its_record(self, queue: ConsumeQueue, offset: int, start: int) -> bool:
        physical, size, _ = queue.entry(offset)
        if size <= 0 or physical < 0 or physical + size > start:
            return False
        file = self._log.queue.find(physical)
        if file is None:
            return physical < self._log.min_offset  # trimmed from the log's beginning
        head = file.read(physical - file.file_from_offset, HEADER_SIZE)
        return len(head) == HEADER_SIZE and _PLACES.unpack(head) == (size, queue.queue_id, offset, physical)

    def _sound_length(self, queue: ConsumeQueue, start: int) -> int:
        """Return the number of valid entries: ascending, of records before the scan's start. The rest is unflushed."""
        per_file = self._config.mapped_file_size_consume_queue // ENTRY_SIZE
        offset = max(queue.min_offset, queue.max_offset - 2 * per_file)
        entries = np.frombuffer(queue.read(offset, queue.max_offset - offset), ENTRY_TYPE)
        physical = entries["physical_offset"].astype(np.int64)
        ends = physical + entries["size"]
        good = (physical >= 0) & (ends > physical) & (ends <= start)
        good[1:] &= physical[1:] >= ends[:-1]
        keep = offset + (len(good) if good.all() else int(np.argmin(good)))
        while keep > queue.min_offset and not self._points_to_its_record(queue, keep - 1, start):
            keep -= 1
        return keep
