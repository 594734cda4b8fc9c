"""Statistics of a stopped store: messages and disk space per queue, per topic and in total.

A queue's statistics come from its consume queue, whose entries have the size of every message. That needs 20 bytes per
message, and the log only for the first and the last store time. ``scan=True`` reads the log instead, for a store with
lost or unreliable consume queues.

File sizes are given twice: the nominal size, and the space used on disk, because files are sparse. RocketMQ has no
equivalent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from spark_rocket.store.index.index_file import IndexFile
from spark_rocket.store.layout import ENTRY_TYPE
from spark_rocket.store.log.record_scan import record_at
from spark_rocket.store.problems import ProblemKind, StoreProblem, read_error_text
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import entries_of
from spark_rocket.store.read_only import Progress, ReadOnlyStore
from spark_rocket.store.tools.salvage import Damage, Salvage

_ENTRIES_PER_READ = 1 << 16  # entries per read


@dataclass(slots=True)
class QueueStats:
    """Available messages of a queue. Times are −1 if unknown."""

    topic: str
    queue_id: int
    messages: int = 0
    bytes: int = 0
    min_offset: int = 0
    max_offset: int = 0
    first_store_time: int = -1
    last_store_time: int = -1


@dataclass(slots=True)
class FileUsage:
    """Files of one kind: number, nominal size, and space used on disk."""

    count: int = 0
    size: int = 0
    on_disk: int = 0


@dataclass(slots=True)
class StoreStats:
    """Statistics of a store."""

    queues: list[QueueStats] = field(default_factory=list)
    log: FileUsage = field(default_factory=FileUsage)
    consume_queues: FileUsage = field(default_factory=FileUsage)
    index: FileUsage = field(default_factory=FileUsage)
    everything: FileUsage = field(default_factory=FileUsage)
    log_min_offset: int = 0
    log_max_offset: int = 0
    """End of the last record known from consume queues or the scan; −1 if unknown."""
    first_store_time: int = -1
    last_store_time: int = -1
    index_entries: int = -1
    """−1 if the sizes of the index files are unknown."""
    damage: list[Damage] = field(default_factory=list)
    """Damage found by a scan."""


def store_stats(
    view: ReadOnlyStore,
    topics: frozenset[str] | None = None,
    *,
    scan: bool = False,
    progress: Progress | None = None,
) -> StoreStats:
    """Return statistics of a store, or of some of its topics (totals are always of the entire store)."""
    stats = StoreStats(log_min_offset=view.log.min_offset)
    directories = dict(zip(view.config.paths.directories, (stats.log, stats.consume_queues, stats.index), strict=True))
    for path in chain(_walk(view.path), *map(_walk, view.config.paths.outside)):
        try:
            status = path.stat()
        except OSError as error:
            view.problems.append(StoreProblem(ProblemKind.UNREADABLE, path, read_error_text(error)))
            continue
        kind = next((files for directory, files in directories.items() if directory in path.parents), None)
        for files in (stats.everything, kind) if kind is not None else (stats.everything,):
            files.count += 1
            files.size += status.st_size
            files.on_disk += status.st_blocks * 512
    stats.log_max_offset = stats.log_min_offset
    queues = _scanned(view, stats, progress) if scan else _listed(view, stats, progress)
    stats.queues = [queue for queue in queues if topics is None or queue.topic in topics]
    if stats.log_max_offset == stats.log_min_offset and view.log.files and any(view.log.files[0].read(0, 4)):
        stats.log_max_offset = -1
    times = [queue.first_store_time for queue in queues if queue.first_store_time >= 0]
    stats.first_store_time = min(times, default=-1)
    stats.last_store_time = max((queue.last_store_time for queue in queues), default=-1)
    if view.index_size_known:
        stats.index_entries = sum(_index_entries(view, path) for path in sorted(_walk(view.config.index_path)))
    return stats


def _index_entries(view: ReadOnlyStore, path: Path) -> int:
    config = view.config
    try:
        if path.stat().st_size == config.index_file_size:
            return IndexFile(path, config.max_hash_slot_num, config.max_index_num).count - 1
    except OSError as error:
        view.problems.append(StoreProblem(ProblemKind.UNREADABLE, path, read_error_text(error)))
    return 0


def _walk(directory: Path) -> Iterator[Path]:
    for place, _, names in os.walk(directory):
        yield from (Path(place, name) for name in names)


def _listed(view: ReadOnlyStore, stats: StoreStats, progress: Progress | None) -> list[QueueStats]:
    """Return statistics from the consume queues."""
    found = []
    for done, key in enumerate(sorted(view.queues)):
        queue = view.queue(*key)
        if queue is not None and queue.files.is_sound:
            found.append(_of_queue(view, queue, stats))
        if progress is not None:
            progress(done + 1, len(view.queues))
    return found


def _of_queue(view: ReadOnlyStore, queue: ConsumeQueue, stats: StoreStats) -> QueueStats:
    if view.log.min_offset:
        queue.correct_min_offset(view.log.min_offset)
    first, end = queue.min_offset, queue.max_offset
    mine = QueueStats(queue.topic, queue.queue_id, end - first, 0, first, end)
    for number in range(first, end, _ENTRIES_PER_READ):
        entries = np.frombuffer(queue.read(number, min(_ENTRIES_PER_READ, end - number)), ENTRY_TYPE)
        mine.bytes += int(entries["size"].sum())
    if end > first:
        mine.first_store_time = _store_time(view, queue.entry(first)[0])
        physical, size, _ = queue.entry(end - 1)
        mine.last_store_time = _store_time(view, physical)
        stats.log_max_offset = max(stats.log_max_offset, physical + size)
    return mine


def _store_time(view: ReadOnlyStore, physical: int) -> int:
    file = view.log.find(physical) if physical >= 0 else None
    if file is None:
        return -1
    record = record_at(file, physical - file.file_from_offset)
    return record.store_timestamp if record is not None else -1


def _scanned(view: ReadOnlyStore, stats: StoreStats, progress: Progress | None) -> list[QueueStats]:
    """Return statistics from a scan of the log."""
    found: dict[tuple[str, int], QueueStats] = {}
    scan = Salvage(view, progress)
    for part in scan:
        if isinstance(part, Damage):
            stats.damage.append(part)
            continue
        topics, chosen, entries = entries_of(part, view.delays, view.deleted)
        sizes, numbers = entries["size"].tolist(), part.queue_offsets[chosen].tolist()
        keys = zip(topics, part.queue_ids[chosen].tolist(), strict=True)
        times = part.store_timestamps[chosen].tolist()
        for key, size, number, time in zip(keys, sizes, numbers, times, strict=True):
            mine = found.get(key)
            if mine is None or number < mine.max_offset:  # the first message, or a recreated topic
                mine = found[key] = QueueStats(*key, 0, 0, number, number, time)
            mine.messages += 1
            mine.bytes += size
            mine.max_offset, mine.last_store_time = number + 1, time
    stats.log_max_offset = scan.end
    return [found[key] for key in sorted(found)]
