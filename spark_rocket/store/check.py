"""Is a store directory right? Every invariant of its files, checked against the log, without changing a byte.

==============  ====================================================================================================
of              what is checked
==============  ====================================================================================================
files           names, sizes, rows without gaps; ``abort`` absent; ``lock`` and ``checkpoint`` as they must be
commit log      records back to back, each whole, with its CRC, saying where it stands; a blank record at the end of
                every file but the last; nothing but zeros behind the end
queue offsets   dense per queue, from 0 if the log is complete
consume queues  every record's entry as it must be, tags code included; no entry without its record; fillers before the
                first entry, zeros behind the last
index           every key of every record findable by hash chain, every entry a record's key, header and slots right
checkpoint      not ahead of the log
==============  ====================================================================================================

For a stopped store (``StoreLockedError`` otherwise), of Apache or ours. An API, a command (``rocket store check``),
the teardown of every test that opens a store, and the judge of the crash tests. Reads by ``pread``, once through the
log. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spark_rocket.errors import StoreCorruptError, StoreError, StoreLockedError
from spark_rocket.store.check_index import IndexCheck
from spark_rocket.store.checkpoint import Checkpoint
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.consume_queue import ConsumeQueue
from spark_rocket.store.deleted_topics import DeletedTopics
from spark_rocket.store.dispatch import entries_of
from spark_rocket.store.layout import ENTRY_SIZE, ENTRY_TYPE, FILLER
from spark_rocket.store.mapped_file_queue import MappedFileQueue
from spark_rocket.store.problem import Problem
from spark_rocket.store.queue_table import ConsumeQueueTable
from spark_rocket.store.record_scan import LogScan, RecordBlock, Stop, look_behind
from spark_rocket.store.recovery import is_deleted, topics_on_record
from spark_rocket.store.store_lock import StoreLock, abort_path
from spark_rocket.store.tags import DelayLevels

Progress = Callable[[int, int], None]


def check_store(
    path: Path | str,
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
) -> list[Problem]:
    """Everything that is wrong with the store in ``path``; an empty list when nothing is.

    Without ``config`` the file sizes are taken from the files, and the index's from Apache's defaults.
    """
    path = Path(path)
    if not path.is_dir():
        raise StoreError(f"{path} is not a directory.", remedy="Give the directory of a store (storePathRootDir).")
    lock = _look_at_lock(path)
    try:
        config = replace(config, store_path=path) if config else _guess(path)
        return _Check(config, progress).run()
    finally:
        if lock >= 0:
            os.close(lock)


def _look_at_lock(path: Path) -> int:
    """Hold a shared lock, so that nobody opens the store meanwhile."""
    refusal = StoreLockedError(f"The store in {path} is in use.", remedy="Stop its broker first.")
    if StoreLock.is_held_here(path):
        raise refusal
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise refusal from None
    return fd


def _guess(path: Path) -> StoreConfig:
    config = StoreConfig(path)
    logs = [file.stat().st_size for file in config.commit_log_path.glob("*") if file.is_file()]
    queues = (file.stat().st_size for file in config.consume_queue_path.glob("*/*/*") if file.is_file())
    log_size, queue_size = max(logs, default=0), next(queues, 0)
    if log_size >= 4096:
        config = replace(config, mapped_file_size_commit_log=log_size)
    if queue_size >= ENTRY_SIZE and not queue_size % ENTRY_SIZE:
        config = replace(config, mapped_file_size_consume_queue=queue_size)
    return config


@dataclass(slots=True)
class _Seen:
    """What the log has of a queue."""

    first: int
    next: int
    wrong: list[Problem]


class _Check:
    """One check of one store."""

    def __init__(self, config: StoreConfig, progress: Progress | None) -> None:
        self._config = config
        self._deleted = DeletedTopics(config.store_path)
        self._progress = progress
        self._problems: list[Problem] = []
        self._delays = DelayLevels(config.delay_levels())
        self._known = topics_on_record(config.store_path)
        self._log = MappedFileQueue(config.commit_log_path, config.mapped_file_size_commit_log, setting="commitLog")
        self._queues = ConsumeQueueTable(config)
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._max_timestamp = 0

    def _add(self, kind: str, path: Path, text: str, offset: int = -1) -> None:
        self._problems.append(Problem(kind, path, text, offset))

    def run(self) -> list[Problem]:
        path = self._config.store_path
        if abort_path(path).exists():
            self._add("abort", abort_path(path), "the last owner did not stop cleanly: start and stop the broker first")
        lock = path / "lock"
        if lock.exists() and lock.read_bytes() != b"lock":
            self._add("lock", lock, "its content is not the word lock")
        try:
            self._log.load()
            self._queues.load()
            self._deleted.load()
            index = IndexCheck(self._config, self._problems)
        except StoreCorruptError as error:
            self._add("files", path, error.message)
            return self._problems
        self._check_log(index)
        self._check_queues()
        index.finish(self._log.min_offset)
        self._check_checkpoint()
        self._queues.close()
        self._log.close()
        return self._problems

    # --- the log ------------------------------------------------------------------------------------------------

    def _check_log(self, index: IndexCheck) -> None:
        if not self._log.files:
            return
        start, total = self._log.min_offset, self._log.end_offset
        scan = LogScan(self._log, start)
        for block in scan:
            self._max_timestamp = max(self._max_timestamp, int(block.store_timestamps.max()))
            self._check_entries(block)
            index.take(block)
            if self._progress is not None:
                self._progress(int(block.physical_offsets[-1]) - start, total - start)
        end = scan.end
        file = self._log.find(end.offset)
        path = file.path if file else self._log.directory
        if end.stop is Stop.BAD:
            self._add("record", path, end.reason, end.offset)
        elif file is not None and file is not self._log.files[-1]:
            self._add("end", path, "the log ends here, but files follow", end.offset)
        remains = look_behind(self._log, end.offset)
        if remains.good_offsets:
            text = f"whole records are behind the end of the log, the first at offset {remains.good_offsets[0]}"
            self._add("hidden", path, text, end.offset)
        elif remains.has_data and end.stop is not Stop.BAD:
            self._add("tail", path, "something else than zeros is behind the end of the log", end.offset)
        if self._progress is not None:
            self._progress(total - start, total - start)

    def _check_entries(self, block: RecordBlock) -> None:
        topics, chosen, entries = entries_of(block, self._delays, self._deleted)
        groups: dict[tuple[str, int], list[int]] = {}
        for i, key in enumerate(zip(topics, block.queue_ids[chosen].tolist(), strict=True)):
            groups.setdefault(key, []).append(i)
        offsets = block.queue_offsets[chosen]
        for key, places in groups.items():
            mine, numbers = entries[places], offsets[places]
            cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
            for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(places)], strict=True):
                self._check_run(key, int(numbers[start]), mine[start:stop].tobytes())

    def _check_run(self, key: tuple[str, int], offset: int, entries: bytes) -> None:
        """Records of one queue with consecutive offsets against its entries."""
        count = len(entries) // ENTRY_SIZE
        path = self._config.consume_queue_path / key[0] / str(key[1])
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(offset, offset, [])
            if offset and not self._log.min_offset:
                seen.wrong.append(Problem("offsets", path, f"the first message in the log is number {offset}, not 0"))
        elif offset < seen.next:  # deleted and made anew: what was said of the old one is void
            seen.wrong.clear()
            seen.first = offset
        elif offset > seen.next:
            text = f"messages {seen.next} to {offset - 1} are not in the log"
            seen.wrong.append(Problem("offsets", path, text))
        seen.next = offset + count
        queue = self._queues.find(*key)
        if queue is None:
            return
        present = queue.read(offset, count, mapped=False) if offset * ENTRY_SIZE >= queue.files.min_offset else b""
        if present != entries:
            at = 0
            while present[at : at + ENTRY_SIZE] == entries[at : at + ENTRY_SIZE]:
                at += ENTRY_SIZE
            number = offset + at // ENTRY_SIZE
            has = np.frombuffer(present, ENTRY_TYPE, offset=at)[:1].tolist() if len(present) > at else "nothing"
            must = np.frombuffer(entries, ENTRY_TYPE, offset=at)[:1].tolist()
            seen.wrong.append(Problem("entry", path, f"entry {number} is {has}, its record says {must}", number))

    # --- consume queues -----------------------------------------------------------------------------------------

    def _check_queues(self) -> None:
        for key, seen in self._seen.items():
            queue = self._queues.find(*key)
            path = self._config.consume_queue_path / key[0] / str(key[1])
            if queue is None:
                if not is_deleted(key[0], self._known):
                    self._add("queue", path, f"the queue is missing, the log has messages up to {seen.next - 1} of it")
                continue
            self._problems += seen.wrong
            if queue.max_offset > seen.next:
                text = f"there are {queue.max_offset} entries, the log's last message is number {seen.next - 1}"
                self._add("entry", path, text, seen.next)
            if queue.min_offset < seen.first:
                self._check_old(queue, queue.min_offset, seen.first)
        for key in self._queues.table:
            queue = self._queues.find(*key)
            if queue is not None:
                if key not in self._seen:
                    self._check_old(queue, queue.min_offset, queue.max_offset)
                self._check_surroundings(queue)

    def _check_old(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Entries that no record of the log was met for may only point before the log's beginning."""
        entries = np.frombuffer(queue.read(first, end - first, mapped=False), ENTRY_TYPE)
        loose = np.flatnonzero(entries["physical_offset"] >= self._log.min_offset)
        if len(loose):
            number = first + int(loose[0])
            self._add("entry", queue.files.directory, f"entry {number} has no record in the log", number)

    def _check_surroundings(self, queue: ConsumeQueue) -> None:
        files = queue.files
        if not files.files:
            return
        first = files.files[0]
        blank = queue.min_offset * ENTRY_SIZE - first.file_from_offset
        head = first.read(0, min(max(blank, 0), first.size))
        if 0 < blank <= first.size and head != FILLER * (blank // ENTRY_SIZE) and not self._log.min_offset:
            self._add("filler", first.path, "what stands before the first entry are not fillers")
        if queue.has_data_behind():
            text = "something else than zeros is behind the last entry"
            self._add("tail", files.directory, text, queue.max_offset)

    # --- the checkpoint -----------------------------------------------------------------------------------------

    def _check_checkpoint(self) -> None:
        checkpoint = Checkpoint(self._config.store_path / "checkpoint")
        try:
            checkpoint.load()
        except StoreCorruptError as error:
            self._add("checkpoint", checkpoint.path, error.message)
            return
        if not checkpoint.existed:
            if self._log.files:
                self._add("checkpoint", checkpoint.path, "there is a log, but no checkpoint")
            return
        for name, value in (
            ("physicMsgTimestamp", checkpoint.physic_msg_timestamp),
            ("logicsMsgTimestamp", checkpoint.logics_msg_timestamp),
            ("indexMsgTimestamp", checkpoint.index_msg_timestamp),
        ):
            if value > self._max_timestamp and self._seen:
                text = f"{name} {value} is ahead of the log's last message ({self._max_timestamp})"
                self._add("checkpoint", checkpoint.path, text)
