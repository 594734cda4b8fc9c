"""Checks of old records: those that this process has neither written nor scanned at start.

A start scans only the end of the log (recovery.py), so damage in an older file may be undetected. A consumed record of
such a file is compared with its consume-queue entry and its CRC. If that fails, one of the two is damaged:

- The record: it is omitted from the response, reading continues after it, and file and byte are logged once. A consumer
  sees a gap in the queue offsets, as after filtering by tag.
- The entry, if the log has the message elsewhere: StoreCorruptError names the consume queue's file and byte, because
  continuing would skip intact messages.

A scan of the log between the records of the neighbouring entries finds out which. It takes about 40 ms. A call
therefore makes at most one scan and returns the records found so far. The result is cached, so that a damaged range is
scanned only once.
Thread-safety: for the store's one thread. RocketMQ has no equivalent: it serves the bytes unchecked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.layout import FIXED_SIZE
from spark_rocket.protocol.record.record import ScanKind, scan_record
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, ENTRY_TYPE
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.record_scan import Ints, LogScan, next_good, parse, walk
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.side_files import DeletedTopics

_MAX_NEIGHBOURS = 64  # entries checked on each side for one with a valid record
_MAX_SCAN_BYTES = 16 << 20
_MAX_DAMAGED_RANGES = 16


class _DamagedRange(NamedTuple):
    """A damaged range of the log, with the queue's messages found in it from number ``first`` to before ``end``."""

    first: int
    end: int
    start: int
    stop: int
    numbers: Ints
    offsets: Ints

    def covers(self, number: int, physical: int) -> bool:
        return self.first <= number < self.end and self.start <= physical < self.stop


class OldRecords:
    """Checks records read from before the verified part of a queue."""

    def __init__(self, commit_log: CommitLog, deleted: DeletedTopics) -> None:
        self._log = commit_log
        self._deleted = deleted
        self._damaged: dict[tuple[str, int], _DamagedRange] = {}  # the last range of each queue
        self._scans = 0

    def are_plausible(self, raw: bytes) -> bool:
        """Return whether entries are in ascending order and their records within the log."""
        entries = np.frombuffer(raw, ENTRY_TYPE)
        starts, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        if not len(starts) or int(starts[0]) < self._log.min_offset or int(starts[-1]) >= self._log.max_offset:
            return False
        return bool(
            (sizes >= FIXED_SIZE).all() and (sizes <= self._log.file_size).all() and (np.diff(starts) > 0).all()
        )

    def are_good(
        self,
        queue: ConsumeQueue,
        offset: int,
        raw: bytes,
        tag_codes: frozenset[int] | None,
        count: int,
        records: bytes,
    ) -> bool:
        """Return whether ``records`` are valid and match the first ``count`` (matching) entries of ``raw``."""
        entries = np.frombuffer(raw, ENTRY_TYPE)
        numbers = np.arange(offset, offset + len(entries))
        if tag_codes is not None:
            wanted = np.isin(entries["tags_code"].astype(np.int64), np.array(list(tag_codes), np.int64))
            entries, numbers = entries[wanted], numbers[wanted]
        entries, numbers = entries[:count], numbers[:count]
        sizes = entries["size"].astype(np.int64)
        if len(sizes) != count or int(sizes.sum()) != len(records):
            return False
        if not count:
            return True
        starts, end, _, _ = walk(records, len(records))
        if end != len(records) or not np.array_equal(starts, np.cumsum(sizes) - sizes):
            return False
        physical = entries["physical_offset"].astype(np.int64)
        block, reason = parse(records, 0, starts, end, physical_offsets=physical)
        return (
            not reason
            and bool((block.queue_offsets == numbers).all() and (block.queue_ids == queue.queue_id).all())
            and set(block.topics()) == {queue.topic}
        )

    def pick(
        self,
        queue: ConsumeQueue,
        offset: int,
        raw: bytes,
        max_msgs: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> tuple[int, int, bytes]:
        """Collect valid records one by one; return their number, the number of processed entries, and the records."""
        parts: list[bytes] = []
        total = 0
        for index, (physical, size, code) in enumerate(ENTRY.iter_unpack(raw)):
            if tag_codes is not None and code not in tag_codes:
                continue
            if parts and (len(parts) >= max_msgs or total + size > max_bytes):
                return len(parts), index, b"".join(parts)
            scans = self._scans
            try:
                record = self.record(queue, offset + index, physical, size)
            except StoreCorruptError:
                if not parts:
                    raise
                return len(parts), index, b"".join(parts)
            if record:
                parts.append(record)
                total += size
            if self._scans != scans:
                return len(parts), index + 1, b"".join(parts)
        return len(parts), len(raw) // ENTRY_SIZE, b"".join(parts)

    def record(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> bytes:
        """Return the record of an entry; empty if it is damaged. StoreCorruptError if the entry is."""
        if record := self._good(queue, number, physical, size):
            return record
        inside = self._log.min_offset <= physical and physical + size <= self._log.max_offset
        file = queue.files.find(number * ENTRY_SIZE)
        if not inside or size < FIXED_SIZE or self._is_elsewhere(queue, number, physical):
            assert file is not None
            raise StoreCorruptError(
                f"{file.path} at byte {number * ENTRY_SIZE - file.file_from_offset}: entry {number} does not match "
                "the commit log.",
                remedy="Stop the broker and run `rocket store rebuild`, which rebuilds the queues from the log.",
            )
        self._log.report_damage(physical, f"message {number} of {queue.topic} queue {queue.queue_id} is skipped")
        return b""

    def _good(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> bytes:
        """Return the record of an entry if it is valid and has that queue offset; else empty."""
        raw = self._log.read(physical, size) if physical >= 0 and FIXED_SIZE <= size <= self._log.file_size else b""
        if raw and int.from_bytes(raw[:4], "big") == size:
            scanned = scan_record(raw)
            record = scanned.record
            if (
                scanned.kind is ScanKind.GOOD
                and record is not None
                and record.physical_offset == physical
                and record.queue_offset == number
                and record.queue_id == queue.queue_id
                and record.topic == queue.topic.encode()
            ):
                return raw
        return b""

    def _is_elsewhere(self, queue: ConsumeQueue, number: int, physical: int) -> bool:
        """Return whether the log has the message between the valid records of the neighbouring entries."""
        key = queue.topic, queue.queue_id
        damaged = self._damaged.get(key)
        if damaged is None or not damaged.covers(number, physical):
            damaged = self._scan(queue, number, physical)
            self._damaged.pop(key, None)
            self._damaged[key] = damaged
            if len(self._damaged) > _MAX_DAMAGED_RANGES:
                del self._damaged[next(iter(self._damaged))]
        for offset in damaged.offsets[damaged.numbers == number].tolist():
            if self._good(queue, number, offset, int.from_bytes(self._log.read(offset, 4), "big")):
                return True
        return False

    def _scan(self, queue: ConsumeQueue, number: int, physical: int) -> _DamagedRange:
        """Scan the log between the valid records of the neighbouring entries, at most ``_MAX_SCAN_BYTES``."""
        self._scans += 1
        first, end, start, stop = number, queue.max_offset, physical, self._log.max_offset
        for before in range(number - 1, max(number - _MAX_NEIGHBOURS, queue.min_offset) - 1, -1):
            entry = queue.entry(before)
            if self._good(queue, before, entry[0], entry[1]):
                first, start = before + 1, entry[0] + entry[1]
                break
        else:
            if number - queue.min_offset <= _MAX_NEIGHBOURS:
                start = max(self._log.min_offset, self._deleted.offsets.get(queue.topic, 0))
        for behind in range(number + 1, min(number + _MAX_NEIGHBOURS, queue.max_offset)):
            entry = queue.entry(behind)
            if self._good(queue, behind, entry[0], entry[1]):
                end, stop = behind, entry[0]
                break
        stop = min(stop, start + _MAX_SCAN_BYTES)
        numbers, offsets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        at = start
        while at < stop:
            scan = LogScan(self._log.queue, at, stop)
            for block in scan:
                wanted = (block.queue_ids == queue.queue_id) & (block.queue_offsets >= first)
                wanted &= block.queue_offsets < end
                numbers.append(block.queue_offsets[wanted])
                offsets.append(block.physical_offsets[wanted])
            file = self._log.queue.find(scan.end.offset)
            if scan.end.offset >= stop or file is None:
                break
            at = file.file_from_offset + next_good(file, scan.end.offset - file.file_from_offset)
        return _DamagedRange(first, end, start, stop, np.concatenate(numbers), np.concatenate(offsets))
