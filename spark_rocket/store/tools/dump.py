"""Dump of the messages of a stopped store, in log order or queue by queue, with filters.

In log order, all intact records are returned, whatever the state of the consume queues, with each damaged range
(:class:`Damage`) in its place. By queue, messages are returned as to a consumer; a damaged record is a :class:`Damage`
too, and entries that point outside the log are :class:`BadEntries`. Records without an entry (prepared and rolled-back
transactional ones, deleted topics) are only returned in log order.

Reads by ``pread``; memory does not grow with the log. RocketMQ has no equivalent (mqadmin queries a running broker).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spark_rocket.errors import StoreError
from spark_rocket.protocol.ids import unpack_host
from spark_rocket.protocol.record.properties import decode_properties, find_property
from spark_rocket.protocol.record.record import RecordView, ScanKind, scan_record, view_record
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE
from spark_rocket.store.log.record_scan import RecordBlock
from spark_rocket.store.paths import LMQ_PREFIX
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.read_only import Progress, ReadOnlyStore
from spark_rocket.store.tools.salvage import Damage, Salvage

_ENTRIES_PER_READ = 8192  # per read


@dataclass(frozen=True, slots=True)
class BadEntries:
    """Consecutive entries of a queue that are invalid for the same reason."""

    path: Path
    position: int
    """Position of the first entry in its file."""
    topic: str
    queue_id: int
    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        which = f"message {self.first}" if self.first == self.last else f"messages {self.first} to {self.last}"
        return f"{self.path} at byte {self.position}: {which} of {self.topic}, queue {self.queue_id}: {self.reason}"


@dataclass(frozen=True)
class DumpFilter:
    """Selects messages; conditions that are None are ignored. Minima and maxima are inclusive."""

    topics: frozenset[str] | None = None
    queue_id: int | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    """Queue offsets."""
    begin_ms: int | None = None
    end_ms: int | None = None
    """Store times."""
    key: str | None = None
    """UNIQ_KEY, or one of the words of KEYS."""
    physical_offset: int | None = None
    """Only the record that starts there."""

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        return (self.topics is None or topic in self.topics) and self.queue_id in (None, queue_id)

    def choose(self, block: RecordBlock) -> list[int]:
        """Return the indices of the matching records of a block, without a check of the key."""
        wanted = np.ones(len(block), np.bool_)
        if self.topics is not None:
            wanted &= np.array([topic in self.topics for topic in block.topics()])
        if self.queue_id is not None:
            wanted &= block.queue_ids == self.queue_id
        for values, low, high in (
            (block.queue_offsets, self.min_offset, self.max_offset),
            (block.store_timestamps, self.begin_ms, self.end_ms),
            (block.physical_offsets, self.physical_offset, self.physical_offset),
        ):
            if low is not None:
                wanted &= values >= low
            if high is not None:
                wanted &= values <= high
        chosen: list[int] = np.flatnonzero(wanted).tolist()
        return chosen

    def wants(self, record: RecordView) -> bool:
        """Return whether a record of a matching queue and offset matches the other conditions."""
        in_time = (self.begin_ms is None or record.store_timestamp >= self.begin_ms) and (
            self.end_ms is None or record.store_timestamp <= self.end_ms
        )
        return in_time and self.physical_offset in (None, record.physical_offset) and self.has_key(record)

    def has_key(self, record: RecordView) -> bool:
        if self.key is None:
            return True
        key, properties = self.key.encode(), bytes(record.properties)
        return find_property(properties, b"UNIQ_KEY") == key or key in (
            find_property(properties, b"KEYS") or b""
        ).split(b" ")


def dump_log(
    view: ReadOnlyStore, wanted: DumpFilter | None = None, *, progress: Progress | None = None
) -> Iterator[RecordView | Damage]:
    """Yield matching messages and all damage in log order. Records share memory: do not keep them."""
    wanted = wanted or DumpFilter()
    scan = Salvage(view, progress)
    for part in scan:
        if isinstance(part, Damage):
            yield part
            continue
        chosen = wanted.choose(part)
        if chosen:
            starts, sizes = part.starts.tolist(), part.sizes.tolist()
            data = memoryview(part.data)
            for i in chosen:
                record = view_record(data[starts[i] : starts[i] + sizes[i]], check_crc=False)
                if wanted.has_key(record):
                    yield record
    if scan.tail is not None:
        yield scan.tail


def dump_queues(
    view: ReadOnlyStore, wanted: DumpFilter | None = None, *, progress: Progress | None = None
) -> Iterator[RecordView | Damage | BadEntries]:
    """Yield matching messages by topic, queue and offset. StoreError if there is no such queue."""
    wanted = wanted or DumpFilter()
    keys = [key for key in sorted(view.queues) if wanted.wants_queue(*key)]
    if not keys:
        raise StoreError(
            empty_reason(view, wanted) or f"{view.config.consume_queue_path} has no queues.",
            remedy="Omit --by-queue to read the log itself, or rebuild the queues with "
            f"`rocket store rebuild {view.path}`.",
        )
    for done, key in enumerate(keys):
        queue = view.queue(*key)
        if queue is not None:
            yield from _dump_queue(view, queue, wanted)
        if progress is not None:
            progress(done + 1, len(keys))


def _dump_queue(
    view: ReadOnlyStore, queue: ConsumeQueue, wanted: DumpFilter
) -> Iterator[RecordView | Damage | BadEntries]:
    if view.log.min_offset:
        queue.correct_min_offset(view.log.min_offset)
    number = max(queue.min_offset, wanted.min_offset or 0)
    end = queue.max_offset if wanted.max_offset is None else min(queue.max_offset, wanted.max_offset + 1)
    bad: BadEntries | None = None
    while number < end and (raw := queue.read(number, min(end - number, _ENTRIES_PER_READ))):
        for physical, size, _ in ENTRY.iter_unpack(raw):
            found = _record_of(view, queue, number, physical, size)
            if isinstance(found, BadEntries) and bad is not None and found.reason == bad.reason:
                bad = replace(bad, last=number)
            else:
                if bad is not None:
                    yield bad
                bad = found if isinstance(found, BadEntries) else None
                if isinstance(found, Damage) or (isinstance(found, RecordView) and wanted.wants(found)):
                    yield found
            number += 1
    if bad is not None:
        yield bad


def _record_of(
    view: ReadOnlyStore, queue: ConsumeQueue, number: int, physical: int, size: int
) -> RecordView | Damage | BadEntries:
    """Return the record of an entry, or its fault."""
    name = f"message {number} of {queue.topic}, queue {queue.queue_id}"
    file = view.log.find(physical) if physical >= 0 and size > 0 else None
    if file is None:
        reason = "the entry is invalid" if physical < 0 or size <= 0 else "the log's file is missing or too short"
        at = queue.files.find(number * ENTRY_SIZE)
        path, begin = (at.path, at.file_from_offset) if at is not None else (queue.files.directory, 0)
        return BadEntries(path, number * ENTRY_SIZE - begin, queue.topic, queue.queue_id, number, number, reason)
    position = physical - file.file_from_offset
    found = scan_record(file.read(position, min(size, file.size - position)))
    record = found.record
    if found.kind is not ScanKind.GOOD or record is None:
        reason = f"{name}: {found.reason or 'there is no record'}"
    elif record.physical_offset != physical or (
        (record.queue_id, record.queue_offset) != (queue.queue_id, number) and not queue.topic.startswith(LMQ_PREFIX)
    ):
        reason = f"{name}: the log has another record there"
    else:
        return record
    return Damage(file.path, position, physical, size, reason)


def empty_reason(view: ReadOnlyStore, wanted: DumpFilter) -> str:
    """Explain that a requested topic or queue does not exist, with the existing ones; empty if it exists."""
    topics = {topic for topic, _ in view.queues}
    for topic in sorted(wanted.topics or ()):
        if topics and topic not in topics:
            return f"There is no queue of {topic}. Topics here: {_some(sorted(topics))}."
    ids = sorted({queue_id for topic, queue_id in view.queues if wanted.topics is None or topic in wanted.topics})
    if ids and wanted.queue_id is not None and wanted.queue_id not in ids:
        return f"There is no queue {wanted.queue_id}. Queues here: {_some(ids)}."
    return ""


def _some(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:20]))
    return f"{shown} and {len(names) - 20:,} more" if len(names) > 20 else shown


def to_json(record: RecordView) -> dict[str, Any]:
    """Convert a message to a table with RocketMQ's names. A body that is not UTF-8 is in ``bodyBase64``.

    Bodies are as stored: a compressed one (``sysFlag`` 1) stays compressed.
    """
    line: dict[str, Any] = {
        "topic": str(record.topic, "utf-8", "replace"),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "bodyCRC": record.body_crc,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "flag": record.flag,
        "msgId": f"{record.store_host.hex().upper()}{record.physical_offset:016X}",
        "properties": decode_properties(record.properties),
    }
    try:
        line["body"] = str(record.body, "utf-8")
    except UnicodeDecodeError:
        line["bodyBase64"] = base64.b64encode(record.body).decode()
    return line


def host_text(packed: bytes) -> str:
    """Format a host as ``127.0.0.1:10911`` or ``[::1]:10911``."""
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
