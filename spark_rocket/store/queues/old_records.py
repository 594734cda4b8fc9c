"""Checks of old records: records that this process has neither written nor scanned at start.

A start scans only the end of the log (recovery.py), so damage in an older file may be undetected. A consumed record of
such a file is compared with its consume-queue entry and its CRC. If that fails, one of the two is damaged:

- The entry, if it points outside the log, before or after its neighbours, or to an intact record of another entry:
  StoreCorruptError names the consume queue's file and byte, because continuing would skip intact messages.
- Otherwise the record, possibly its topic, which no CRC covers: it is omitted from the response, reading continues
  after it, and file and byte are logged once. A consumer sees a gap in the queue offsets, as after filtering by tag.

An entry with a wrong position between its neighbours' records, where no record starts, looks like a damaged record.
Only a scan of the log shows the difference (``rocket store check``), so its message is skipped, and logged, too.
Apache's broker serves the bytes unchecked; a Java client that cannot decode a record drops it and the rest of its
response.
"""

from __future__ import annotations

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.layout import FIXED_SIZE
from spark_rocket.protocol.record.record import RecordView
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, ENTRY_TYPE
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.record_scan import parse, walk
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.queue_table import ConsumeQueueTable

_REMEDY = (
    "Stop the broker and run `rocket store check`, which lists all damage, and `rocket store rebuild`, which rebuilds "
    "the queues from the log (`--skip-damage` if the log is damaged as well)."
)


class OldRecords:
    """Checks records read from before the verified part of a queue."""

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueueTable) -> None:
        self._log = commit_log
        self._queues = queues

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
            try:
                record = self.record(queue, offset + index, physical, size)
            except StoreCorruptError:
                if not parts:
                    raise
                return len(parts), index, b"".join(parts)
            if record:
                parts.append(record)
                total += size
        return len(parts), len(raw) // ENTRY_SIZE, b"".join(parts)

    def record(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> bytes:
        """Return the record of an entry; empty if it is damaged. StoreCorruptError if the entry is."""
        record = self._intact(physical)
        if (
            record is not None
            and (record.size, record.queue_offset, record.queue_id) == (size, number, queue.queue_id)
            and record.topic == queue.topic.encode()
        ):
            return self._log.read(physical, size)
        is_wrong = self._is_in_its_queue(record) if record is not None else False
        if is_wrong or not self._is_between_neighbours(queue, number, physical, size):
            file = queue.files.find(number * ENTRY_SIZE)
            assert file is not None
            raise StoreCorruptError(
                f"{file.path} at byte {number * ENTRY_SIZE - file.file_from_offset}: entry {number} does not match "
                "the commit log.",
                remedy=_REMEDY,
            )
        self._log.report_damage(physical, f"message {number} of {queue.topic} queue {queue.queue_id} is skipped")
        return b""

    def _intact(self, physical: int) -> RecordView | None:
        """Return the valid record that starts at an offset."""
        record = self._log.record_at(physical)
        return record if record is not None and record.physical_offset == physical else None

    def _is_in_its_queue(self, record: RecordView) -> bool:
        """Return whether the queue that a record names has it, so that no other entry may point to it."""
        owner = self._queues.find(str(record.topic, "utf-8", "replace"), record.queue_id)
        if owner is None or not owner.min_offset <= record.queue_offset < owner.max_offset:
            return False
        return owner.entry(record.queue_offset)[0] == record.physical_offset

    def _is_between_neighbours(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> bool:
        """Return whether an entry points into the log, after the previous entry and before the next one.

        It may overlap them only if their records are damaged as well: in a rebuilt queue, the entries of several lost
        messages are for the same damaged bytes.
        """
        low, high = self._log.min_offset, self._log.max_offset
        if number > queue.min_offset:
            before, length, _ = queue.entry(number - 1)
            low = max(low, before if self._intact(before) is None else before + length)
        end = physical + size
        if number + 1 < queue.max_offset:
            behind = queue.entry(number + 1)[0]
            end = physical if self._intact(behind) is None else end
            high = min(high, behind)
        return size >= FIXED_SIZE and low <= physical and end <= high and physical + size <= self._log.max_offset
