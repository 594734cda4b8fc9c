"""Rebuild consume queues and index from the commit log of a stopped store, byte for byte as a broker writes them.

They are built beside the old ones (``rebuild.tmp``), flushed, and then exchanged with them. A crash or a full disk
before the exchange leaves the old files unchanged; after it the new files are complete. The next rebuild removes the
files of an interrupted one.

File sizes come from the configuration or from the files; a rebuild with unknown sizes is refused. Damage in the log is
an error unless it is to be skipped. If it is skipped, later messages keep their queue offsets: a missing message has
the entry of the old queue, or an entry for the damaged bytes, and physical offsets always ascend. A queue without
messages in the log is not changed, because its offsets would start at 0 again. Deleted topics stay deleted, as in
recovery.

Records of the log are never changed. A killed store (``abort``) remains one, and its next start recovers it as usual.
If damage is skipped, missing and short files of the log are filled with zeros as the last step, because a broker
refuses the log without them. The next rebuild treats the zeros as damage again.
Thread-safety: for one thread; the directory is locked. RocketMQ has no equivalent: its brokers rebuild missing files at
their start.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from spark_rocket.errors import StoreCorruptError, StoreError
from spark_rocket.protocol.record.layout import FIXED_SIZE
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.index.index_file import IndexWriter
from spark_rocket.store.index.keys import keys_of
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.mapped_file import file_name, sync_file_system
from spark_rocket.store.log.record_scan import RecordBlock
from spark_rocket.store.paths import LMQ_PREFIX, StorePaths
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.dispatch import runs_of
from spark_rocket.store.queues.queue_table import ConsumeQueueTable, is_storable
from spark_rocket.store.read_only import Progress, ReadOnlyFiles, ReadOnlyStore, open_read_only, paths_of
from spark_rocket.store.recovery.recovery import is_deleted, topics_on_record
from spark_rocket.store.store_lock import StoreLock
from spark_rocket.store.tools.salvage import Damage, Salvage

TEMPORARY = "rebuild.tmp"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)  # by ctypes, since os.rename() cannot exchange two names (renameat2)


@dataclass(frozen=True, slots=True)
class Hole:
    """Messages of a queue that are missing in the log."""

    topic: str
    queue_id: int
    first: int
    last: int

    def __str__(self) -> str:
        which = f"message {self.first} is" if self.first == self.last else f"messages {self.first} to {self.last} are"
        return f"{self.topic}, queue {self.queue_id}: {which} lost"


@dataclass(slots=True)
class RebuildReport:
    """Result of a rebuild, or the expected result of a dry run."""

    config: StoreConfig
    records: int = 0
    queues: int = 0
    entries: int = 0
    kept: int = 0
    """Unchanged queues, which have no message in the log."""
    keys: int = 0
    damage: list[Damage] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    filled: list[Path] = field(default_factory=list)
    """Files of the log that are filled with zeros to their size."""
    lower_checkpoint_to: int = -1
    """Store time of the last message if the checkpoint is ahead of it; else −1."""


def rebuild_store(
    path: Path | str,
    config: StoreConfig | None = None,
    *,
    skip_damage: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild consume queues and index. StoreLockedError, StoreCorruptError; StoreError if it is not possible.

    ``dry_run`` reads the entire log and finds all obstacles, and writes nothing.
    """
    path = Path(path)
    with open_read_only(path, config) as view:
        _check_rebuildable(view, skip_damage)
        if dry_run:
            return _Rebuild(view, None, skip_damage, progress).run()
    try:
        return _write(path, config, skip_damage, progress)
    except OSError as error:
        raise StoreError(
            f"{error.filename or path} cannot be written: {error.strerror or error}.",
            remedy="The rebuild writes new files beside the old ones: it needs write permission and disk space. "
            "Rebuild a copy of the store, or free some space.",
        ) from error


def _write(path: Path, config: StoreConfig | None, skip_damage: bool, progress: Progress | None) -> RebuildReport:
    paths = paths_of(path, config)
    new = _temporary(paths)
    lock = StoreLock(path)
    lock.acquire()
    try:
        lock.acquire_directories([directory for directory in paths.directories if directory.is_dir()])
        _remove(new)
        for directory in (new.consume_queue, new.index):
            directory.mkdir(parents=True)
        view = ReadOnlyStore(paths, config)
        report = _Rebuild(view, new, skip_damage, progress).run()
        sync_file_system(new.consume_queue)
        sync_file_system(new.index)
        if report.lower_checkpoint_to >= 0:
            _lower_checkpoint(path, report.lower_checkpoint_to)
        put_in_place(new.consume_queue, paths.consume_queue)
        if view.config.message_index_enable:
            put_in_place(new.index, paths.index)
        for file in report.filled:
            _fill_up(file, view.log.file_size)
        for directory in {paths.commit_log, path, paths.consume_queue.parent, paths.index.parent}:
            sync_directory(directory)
        return report
    finally:
        _remove(new)
        lock.release()


def _temporary(paths: StorePaths) -> StorePaths:
    """Directories for the new queues and index: beside the old ones, for an exchange within a file system."""

    def beside(directory: Path) -> Path:
        is_in_root = directory.parent == paths.root
        return paths.root / TEMPORARY / directory.name if is_in_root else Path(f"{directory}.{TEMPORARY}")

    return replace(paths, consume_queue=beside(paths.consume_queue), index=beside(paths.index))


def _remove(new: StorePaths) -> None:
    for directory in (new.root / TEMPORARY, new.consume_queue, new.index):
        shutil.rmtree(directory, ignore_errors=True)


def _files_to_extend(log: ReadOnlyFiles) -> list[Path]:
    """Return the files of the log that are too short, or missing between others."""
    have = {file.file_from_offset: file.size for file in log.files}
    offsets = range(log.min_offset, log.end_offset, log.file_size)
    return [log.directory / file_name(offset) for offset in offsets if have.get(offset, 0) < log.file_size]


def _fill_up(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _check_rebuildable(view: ReadOnlyStore, skip_damage: bool) -> None:
    if not view.log.files:
        raise StoreError(
            f"{view.config.commit_log_path} has no files: queues cannot be rebuilt without a log.",
            remedy="Give the directory of a store.",
        )
    gaps = [] if view.log.unreadable else view.log.gaps
    for problem in view.problems:
        if problem in gaps and skip_damage:
            continue
        remedy = "Correct this first."
        if problem in gaps:
            remedy = "Restore the file from a copy, or skip its messages with --skip-damage."
        raise StoreCorruptError(f"{problem.path}: {problem.text}.", remedy=remedy)
    foreign = [name for name in ("consumequeue_ext", "batchconsumequeue") if any(view.path.glob(f"{name}/*"))]
    foreign += sorted(topic for topic, _ in view.queues if topic.startswith(LMQ_PREFIX))
    foreign += [note for note in view.unchecked() if "RocksDB" in note]
    if foreign:
        raise StoreError(
            f"{view.path} has {foreign[0]}, which this package cannot rebuild from the log.",
            remedy="Delete consumequeue and let the broker that made the store rebuild it at its start.",
        )
    if not view.sizes_are_known:
        raise StoreError(
            f"The sizes of the files of {view.path} are not all known.",
            remedy=f"Give the broker's configuration: `rocket store rebuild {view.path} -c broker.conf` (an empty file "
            "if it had none).",
        )


class _Rebuild:
    """One pass over a log. Without a directory to build in, nothing is written."""

    def __init__(
        self, view: ReadOnlyStore, new: StorePaths | None, skip_damage: bool, progress: Progress | None
    ) -> None:
        self._view = view
        self._skip = skip_damage
        self._progress = progress
        self._report = RebuildReport(view.config)
        self._known = topics_on_record(view.path)
        self._on_disk = {topic for topic, _ in view.queues}
        self._checkpoint = StoreCheckpoint(view.path / "checkpoint")
        self._checkpoint.load()
        self._table: ConsumeQueueTable | None = None
        self._index: IndexWriter | None = None
        self._next: dict[tuple[str, int], tuple[int, int]] = {}
        """The next queue offset of each queue, and the log offset after its last message."""
        if new is not None:
            inside = view.config.at(new)
            self._table = ConsumeQueueTable(inside)
            self._index = IndexWriter(inside)

    def run(self) -> RebuildReport:
        report, view = self._report, self._view
        last_time = -1
        scan = Salvage(view, self._progress)
        try:
            for part in scan:
                if isinstance(part, Damage):
                    self._note(part, f"intact records follow at offset {part.offset + part.length}")
                    continue
                report.records += len(part)
                last_time = max(last_time, int(part.store_timestamps.max()))
                for key, number, entries in runs_of(part, view.delays, view.deleted):
                    self._take(key, number, entries)
                self._take_keys(part)
            if scan.tail is not None and not scan.tail.is_zero and not view.is_killed:
                self._note(scan.tail, "it is at the end, and the store was stopped cleanly")
            self._compare_checkpoint(last_time)
            self._restore_lost_entries()
        finally:
            if self._table is not None:
                self._table.close()
            if self._index is not None:
                self._index.close()
        report.queues = len(self._next)
        report.filled = _files_to_extend(view.log)
        return report

    def _note(self, damage: Damage, what_follows: str) -> None:
        if not self._skip:
            raise StoreCorruptError(
                f"{damage}; {what_follows}.",
                remedy="Restore the file from a copy; or skip the damage with --skip-damage.",
            )
        self._report.damage.append(damage)

    def _compare_checkpoint(self, last_time: int) -> None:
        checkpoint = self._checkpoint
        newest = max(checkpoint.times.values())
        if not self._report.records or newest <= last_time:
            return
        if not self._skip:
            raise StoreCorruptError(
                f"The log in {self._view.log.directory} ends with a message of {last_time}, and {checkpoint.path} "
                f"records that messages up to {newest} were on disk.",
                remedy="Restore the log from a copy; or continue without the missing messages with --skip-damage.",
            )
        self._report.lower_checkpoint_to = last_time

    # --- consume queues -----------------------------------------------------------------------------------------

    def _take(self, key: tuple[str, int], number: int, entries: bytes) -> None:
        """The next entries of a queue."""
        physical = int.from_bytes(entries[:8], "big")
        if key not in self._next:
            if not is_storable(*key) or self._is_deleted(key[0], number):
                return
            # The log starts with the queue's first remaining message; unknown if damage precedes it.
            lost = number if self._report.damage and not self._view.log.min_offset else 0
            self._next[key] = number - lost, self._view.log.min_offset
            if self._table is not None:
                self._table.find_or_create(*key).start_at(number - lost)
        following, behind = self._next[key]
        if number > following:
            self._fill(key, following, number, behind, physical)
        elif number < following and self._table is not None:  # deleted and recreated: the later topic is rebuilt
            self._table.find_or_create(*key).truncate(number)
        self._append(key, number, entries)

    def _append(self, key: tuple[str, int], number: int, entries: bytes) -> None:
        count = len(entries) // ENTRY_SIZE
        physical, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_SIZE)
        self._next[key] = number + count, physical + size
        self._report.entries += count
        if self._table is not None:
            queue: ConsumeQueue = self._table.find_or_create(*key)
            queue.make_room(count)
            queue.append(entries)

    def _is_deleted(self, topic: str, number: int) -> bool:
        """Return whether a topic is deleted by the rule of recovery: no directory, and not in the list of topics."""
        if topic in self._on_disk or not is_deleted(topic, self._known):
            return False
        is_clean = self._checkpoint.existed and not self._view.is_killed
        return is_clean or number > 0

    def _fill(self, key: tuple[str, int], first: int, end: int, behind: int, before: int) -> None:
        """Add entries for messages that are missing between two places of the log."""
        within = [one for one in self._report.damage if behind <= one.offset and one.offset + one.length <= before]
        room = sum(one.length for one in within) // FIXED_SIZE
        hole = Hole(*key, first, end - 1)
        if end - first > room:
            raise StoreCorruptError(
                f"{hole}: the log has no room for as many between offsets {behind} and {before}.",
                remedy="The message after them is not reliable. Restore the log from a copy.",
            )
        self._report.holes.append(hole)
        old = self._view.queue(*key)
        at = within[0].offset
        for number in range(first, end):
            entry = self._old_entry(old, number, at, within)
            self._append(key, number, entry or _entry_for(within[0], at, self._view.log))
            at = max(at, ENTRY.unpack(entry)[0]) if entry else at

    def _old_entry(self, old: ConsumeQueue | None, number: int, behind: int, within: list[Damage]) -> bytes:
        """Return the old queue's entry, if it is for damaged bytes and not before ``behind``."""
        if old is None or not old.files.is_sound or not old.min_offset <= number < old.max_offset:
            return b""
        physical, size, code = old.entry(number)
        inside = any(one.offset <= physical and physical + size <= one.offset + one.length for one in within)
        return ENTRY.pack(physical, size, code) if inside and size > 0 and physical >= behind else b""

    def _restore_lost_entries(self) -> None:
        """Do not reuse queue offsets: of queues without a message in the log, and of lost last messages."""
        view, damage = self._view, self._report.damage
        for key in view.queues:
            old = view.queue(*key)
            if old is None or not old.files.is_sound or old.max_offset == old.min_offset:
                continue
            if key in self._next:
                number, behind = self._next[key]
                first = number
                while damage and (entry := self._old_entry(old, number, behind, damage)):
                    self._append(key, number, entry)
                    behind, number = ENTRY.unpack(entry)[0], number + 1
                if number > first:
                    self._report.holes.append(Hole(*key, first, number - 1))
            elif old.entry(old.max_offset - 1)[0] < view.log.min_offset or self._old_entry(
                old, old.max_offset - 1, 0, damage
            ):
                self._report.kept += 1
                if old.entry(old.max_offset - 1)[0] >= view.log.min_offset:
                    self._report.holes.append(Hole(*key, old.min_offset, old.max_offset - 1))
                if self._table is not None:
                    target = self._table.find_or_create(*key).files.directory
                    shutil.copytree(old.files.directory, target, copy_function=os.link)

    # --- the index ----------------------------------------------------------------------------------------------

    def _take_keys(self, block: RecordBlock) -> None:
        if not self._view.config.message_index_enable:
            return
        records, hashes = keys_of(block)
        self._report.keys += len(hashes)
        if self._index is not None:
            offsets, timestamps = block.physical_offsets[records], block.store_timestamps[records]
            done = 0
            while done < len(hashes):
                done += self._index.file(int(timestamps[done])).put(hashes[done:], offsets[done:], timestamps[done:])


def _entry_for(damage: Damage, at: int, log: ReadOnlyFiles) -> bytes:
    """Return the entry of a damaged range: its position and size in the log, within one file."""
    end_of_file = at - (at - log.min_offset) % log.file_size + log.file_size
    return ENTRY.pack(at, max(min(damage.offset + damage.length, end_of_file) - at, 1), 0)


def _lower_checkpoint(path: Path, last_time: int) -> None:
    checkpoint = StoreCheckpoint(path / "checkpoint")
    checkpoint.load()
    checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, last_time)
    checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, last_time)
    checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, last_time)
    checkpoint.save()


def put_in_place(new: Path, old: Path) -> None:
    """Exchange two directories, in one step if the system supports it. Otherwise a crash can leave neither.

    A broker that finds neither creates its own.
    """
    if not old.exists():
        new.rename(old)
        return
    exchange = getattr(_libc, "renameat2", None)
    if exchange is not None and not exchange(_AT_FDCWD, bytes(new), _AT_FDCWD, bytes(old), _RENAME_EXCHANGE):
        return
    aside = new.with_name(f"{old.name}.old")
    old.rename(aside)
    new.rename(old)
