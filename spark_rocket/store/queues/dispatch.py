"""Replay scanned log records into the consume queues, so that the queues match the log exactly.

A record's queue offset is the number of its entry, so replay is idempotent: equal entries stay unchanged, and from the
first missing or different entry on they are written. A queue offset that goes backwards means a topic that was deleted
and recreated by a broker that did not record it (for ours see side_files.py): the later record wins. A queue offset
beyond the end of the queue is a :class:`QueueGap`: the queue lost entries from before the scan, and the scan must start
earlier.

Prepared and rolled-back records have no entry. Tags codes: see layout.py.
Thread-safety: for recovery, before the store accepts messages. Corresponds to ReputMessageService with
CommitLogDispatcherBuildConsumeQueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.record import RecordView
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, ENTRY_TYPE, DelayLevels, tags_code, tags_codes
from spark_rocket.store.log.record_scan import Ints, RecordBlock
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.queue_table import ConsumeQueueTable, is_storable
from spark_rocket.store.queues.side_files import DeletedTopics

_READ_AHEAD = 4096 // ENTRY_SIZE  # entries

Entries = npt.NDArray[np.void]


class QueueGap(Exception):  # noqa: N818 - a signal to recovery, not an error
    """A queue lacks entries of records before the scan."""

    def __init__(self, queue: ConsumeQueue, queue_offset: int) -> None:
        super().__init__(f"{queue.files.directory} ends at entry {queue.max_offset}, not {queue_offset}")
        self.queue = queue


def entries_of(block: RecordBlock, delays: DelayLevels, deleted: DeletedTopics) -> tuple[list[str], Ints, Entries]:
    """Return the topics, indices in the block, and entries of the records that have an entry."""
    state = block.sys_flags & TRANSACTION_MASK
    queued = (state != TRANSACTION_PREPARED) & (state != TRANSACTION_ROLLBACK)
    topics = block.topics()
    if not deleted.offsets.keys().isdisjoint(topics):
        offsets = block.physical_offsets.tolist()
        queued &= np.array([not deleted.covers(*pair) for pair in zip(topics, offsets, strict=True)])
    chosen = np.flatnonzero(queued)
    codes = tags_codes(block.properties())
    if SCHEDULE_TOPIC in topics:
        for i, topic in enumerate(topics):
            if topic == SCHEDULE_TOPIC:
                properties = block.data[int(block.property_starts[i]) : int(block.property_ends[i])]
                due = delays.deliver_time(properties, int(block.store_timestamps[i]))
                if due is not None:
                    codes[i] = due
    entries = np.empty(len(chosen), ENTRY_TYPE)
    entries["physical_offset"] = block.physical_offsets[chosen]
    entries["size"] = block.sizes[chosen]
    entries["tags_code"] = codes[chosen]
    return [topics[i] for i in chosen.tolist()], chosen, entries


def runs_of(
    block: RecordBlock, delays: DelayLevels, deleted: DeletedTopics
) -> Iterator[tuple[tuple[str, int], int, bytes]]:
    """Yield runs of the entries of a block's records: (topic, queue id), the first entry's number, the entries.

    A run ends where the queue changes or its numbers are not consecutive.
    """
    topics, chosen, entries = entries_of(block, delays, deleted)
    if not len(chosen):
        return
    queue_ids = block.queue_ids[chosen]
    codes = {topic: code for code, topic in enumerate(dict.fromkeys(topics))}
    keys = np.fromiter(map(codes.__getitem__, topics), np.int64, len(topics)) << 32 | queue_ids & 0xFFFFFFFF
    order = np.argsort(keys, kind="stable")
    offsets = block.queue_offsets[chosen][order]
    keys, entries = keys[order], entries[order]
    cuts = (np.flatnonzero((np.diff(keys) != 0) | (np.diff(offsets) != 1)) + 1).tolist()
    for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
        first = int(order[start])
        yield (topics[first], int(queue_ids[first])), int(offsets[start]), entries[start:stop].tobytes()


class CommitLogDispatcher:
    """Replays blocks into the queues of a store."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        delays: DelayLevels,
        deleted: DeletedTopics,
        *,
        may_start_anywhere: bool,
        ignores: Callable[[str, int], bool],
        on_entries: Callable[[ConsumeQueue, bytes], None] | None = None,
    ) -> None:
        """Set up a replay.

        ``may_start_anywhere``: the scan starts at the log's beginning, so a queue may start at any offset.
        ``ignores(topic, queue_offset)``: whether to ignore a record without a queue on disk, because a broker deleted
        its topic without recording when. ``on_entries``: called with entries written to a queue.
        """
        self._queues = queues
        self._delays = delays
        self._deleted = deleted
        self._may_start_anywhere = may_start_anywhere
        self._ignores = ignores
        self._on_entries = on_entries
        self.seen: dict[ConsumeQueue, int] = {}
        """Replayed queues, with the offset after their last record."""
        self._read: dict[ConsumeQueue, tuple[int, bytes]] = {}
        self.changed = 0
        """Number of entries written because they were missing or different."""

    def dispatch(self, block: RecordBlock) -> None:
        """Replay the records of a block."""
        for (topic, queue_id), offset, entries in runs_of(block, self._delays, self._deleted):
            self._replay(topic, queue_id, offset, entries)

    def dispatch_one(self, record: RecordView) -> None:
        """Replay a single record, much cheaper than a block of one."""
        state = record.sys_flag & TRANSACTION_MASK
        topic = str(record.topic, "utf-8", "replace")
        if state in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK) or self._deleted.covers(topic, record.physical_offset):
            return
        properties = bytes(record.properties)
        code = self._delays.deliver_time(properties, record.store_timestamp) if topic == SCHEDULE_TOPIC else None
        if code is None:
            code = tags_code(properties)
        entry = ENTRY.pack(record.physical_offset, record.size, code)
        self._replay(topic, record.queue_id, record.queue_offset, entry)

    def _replay(self, topic: str, queue_id: int, offset: int, entries: bytes) -> None:
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            if not is_storable(topic, queue_id) or self._ignores(topic, offset):
                return
            queue = self._queues.find_or_create(topic, queue_id)
        if offset > queue.max_offset:
            if queue.files.files or not (self._may_start_anywhere or offset == 0):
                raise QueueGap(queue, offset)
            queue.start_at(offset)
        count = len(entries) // ENTRY_SIZE
        present = self._present(queue, offset, count) if offset >= queue.files.min_offset // ENTRY_SIZE else b""
        equal = _equal_entries(present, entries)
        if equal < count:
            self._read.pop(queue, None)
            if offset + equal < queue.max_offset:
                queue.truncate(offset + equal)
            queue.make_room(count - equal)
            queue.append(entries[equal * ENTRY_SIZE :])
            self._queues.mark_dirty(queue)
            self.changed += count - equal
            if self._on_entries is not None:
                self._on_entries(queue, entries)
        self.seen[queue] = offset + count
        queue.verified_from = min(queue.verified_from, offset)

    def _present(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Return existing entries, read and cached a page at a time: scans alternate between many queues."""
        first, entries = self._read.get(queue, (offset, b""))
        start = (offset - first) * ENTRY_SIZE
        if start < 0 or start + count * ENTRY_SIZE > len(entries):
            start, entries = 0, queue.read(offset, max(count, _READ_AHEAD))
            self._read[queue] = offset, entries
        return entries[start : start + count * ENTRY_SIZE]


def _equal_entries(present: bytes, entries: bytes) -> int:
    """Return the number of equal entries at the beginning."""
    if present == entries:
        return len(entries) // ENTRY_SIZE
    count = min(len(present), len(entries)) // ENTRY_SIZE
    a = np.frombuffer(present, np.uint8, count * ENTRY_SIZE).reshape(-1, ENTRY_SIZE)
    b = np.frombuffer(entries, np.uint8, count * ENTRY_SIZE).reshape(-1, ENTRY_SIZE)
    same = (a == b).all(axis=1)
    return count if same.all() else int(np.argmin(same))
