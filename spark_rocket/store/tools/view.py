"""A read-only view of a stopped store, shared by check, dump, stats and rebuild.

Files are opened for reading only and never changed, so a read-only mount or a backup can be viewed. While a view is
open, no broker can start on the directory: the view holds a shared ``flock``, which blocks our brokers, and a shared
POSIX lock on the lock file's first byte, which blocks Java's.

A file with a wrong name or size, or without read permission, is a :class:`StoreProblem`; the others are still read.
Sizes that are not configured are derived from the files (:func:`read_file_sizes`).

RocketMQ has no equivalent.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from spark_rocket.errors import StoreCorruptError, StoreError, StoreLockedError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.layout import ENTRY_SIZE, DelayLevels
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.paths import StorePaths, find_paths
from spark_rocket.store.queues.consume_queue import ConsumeQueue, MappingCache
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.store.store_lock import StoreLock, lock_directories, read_abort


@dataclass(frozen=True, slots=True)
class FileSizes:
    """A configuration with sizes that fit the files, and which of them are known."""

    config: StoreConfig
    knows_log: bool
    knows_queues: bool
    knows_index: bool

    @property
    def are_known(self) -> bool:
        return self.knows_log and self.knows_queues and self.knows_index


def read_file_sizes(paths: StorePaths) -> FileSizes:
    """Derive the sizes of a store's files, for a store without a configuration, from the files themselves.

    A size is *known*, so that files can be written with it, in these cases:

    - log, queues: Apache's size, if a file has it and none is larger (smaller files were truncated). Otherwise the size
      of all files, if there are two or more, because a single one may have been truncated. Without queues: Apache's
      size, if the log's files have Apache's size.
    - index: Apache's size, if a file has it and none is larger. Also if log and queues have Apache's sizes, and at most
      one index file is smaller. Other sizes cannot be derived.

    Otherwise the most frequent size is used for reading only. Reads names and sizes only.
    """
    usual = StoreConfig(paths.root).at(paths)
    log = _sizes(file for file in usual.commit_log_path.glob("*") if len(file.name) == 20 and file.name.isdecimal())
    queues = _sizes(usual.consume_queue_path.glob("*/*/*"))
    index = _sizes(usual.index_path.glob("*"))
    log_size, knows_log = _size(log, usual.mapped_file_size_commit_log)
    queue_size, knows_queues = _size(queues, usual.mapped_file_size_consume_queue)
    is_usual_log = log_size == usual.mapped_file_size_commit_log
    if log_size < 4096:
        log_size, knows_log = usual.mapped_file_size_commit_log, False
    if queue_size < ENTRY_SIZE or queue_size % ENTRY_SIZE:
        queue_size, knows_queues = usual.mapped_file_size_consume_queue, False
    config = replace(usual, mapped_file_size_commit_log=log_size, mapped_file_size_consume_queue=queue_size)
    is_usual = is_usual_log and queue_size == usual.mapped_file_size_consume_queue
    off = [size for size in index.elements() if size != usual.index_file_size]
    knows_index = max(off, default=0) < usual.index_file_size and (
        usual.index_file_size in index or (is_usual and len(off) <= 1)
    )
    return FileSizes(config, knows_log, knows_queues and bool(queues or is_usual_log), knows_index)


def _sizes(paths: Iterable[Path]) -> Counter[int]:
    return Counter(size for path in paths if path.is_file() and (size := path.stat().st_size))


def _size(sizes: Counter[int], usual: int) -> tuple[int, bool]:
    """The size of some files, and whether it is known."""
    if not sizes or (usual in sizes and max(sizes) == usual):
        return usual, True
    most = max(sizes, key=lambda size: (sizes[size], size))
    return most, len(sizes) == 1 and sizes[most] > 1


class ProblemKind(StrEnum):
    """What is wrong, as ``rocket store check`` prints and sorts it."""

    FILES = "files"
    UNREADABLE = "unreadable"
    LOCK = "lock"
    ABORT = "abort"
    RECORD = "record"
    HIDDEN = "hidden"
    BEGIN = "begin"
    END = "end"
    TAIL = "tail"
    QUEUE = "queue"
    OFFSETS = "offsets"
    ENTRY = "entry"
    FILLER = "filler"
    INDEX = "index"
    INDEX_BEHIND = "index.behind"
    CHECKPOINT = "checkpoint"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """``offset`` is a physical offset or an entry's number, or −1."""

    kind: ProblemKind
    path: Path
    text: str
    offset: int = -1

    def __str__(self) -> str:
        place = f" at {self.offset}" if self.offset >= 0 else ""
        return f"{self.kind}: {self.path}{place}: {self.text}"


Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes) at intervals."""

# Parts of Apache's stores that the tools do not read.
_UNKNOWN = {
    "consumequeue_ext": "filter bitmaps of consume queues",
    "batchconsumequeue": "queues of batch topics",
    "transaction": "RocketMQ 3's transaction tables",
    "quarantine": "bytes that a recovery cut off",
    "rebuild.tmp": "what an interrupted rebuild left: delete it",
}


_NO_LOG = "there is no commit log; if broker.conf sets storePathCommitLog, give it with -c"


class ViewedFile(MappedFile):
    """A read-only file."""

    __slots__ = ()

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        finally:
            os.close(fd)

    def destroy(self) -> None:
        """Forget the file; an empty one is not deleted."""


class ViewedFiles(MappedFileQueue):
    """Consecutive files and their problems; a file may be missing in the middle."""

    def __init__(
        self, directory: Path, file_size: int, *, setting: str, problems: list[StoreProblem], is_guessed: bool = False
    ) -> None:
        super().__init__(directory, file_size, setting=setting)
        self._problems = problems
        self._expected = "such files here have" if is_guessed else f"{setting} is"
        self.gaps: list[StoreProblem] = []
        """Problems of files that are too short, or missing between others."""
        self.unreadable: list[StoreProblem] = []
        """Problems of permissions, or of the disk."""
        self._by_offset: dict[int, MappedFile] = {}
        self._loaded = False
        self.sound = True

    def _wrong(self, path: Path, text: str, kind: ProblemKind = ProblemKind.FILES) -> StoreProblem:
        self.sound = False
        self._problems.append(StoreProblem(kind, path, text))
        return self._problems[-1]

    def load(self) -> None:
        """Find the files on disk, and add problems to the given list."""
        if self._loaded:
            return
        self._loaded = True
        try:
            with os.scandir(self.directory) as entries:
                names = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            names = []
        except OSError as error:
            self.unreadable.append(self._wrong(self.directory, read_error_text(error), ProblemKind.UNREADABLE))
            return
        files: list[MappedFile] = []
        for entry in names:
            path = self.directory / entry.name
            if len(entry.name) != 20 or not entry.name.isdecimal() or not entry.is_file():
                self._wrong(path, "this is not a file of a log: their names have 20 digits")
                continue
            length, offset = entry.stat().st_size, int(entry.name)
            if length == 0 and entry is names[-1]:
                continue  # from a crash during creation; a broker's start removes it
            if not os.access(path, os.R_OK):
                self.unreadable.append(self._wrong(path, read_error_text(), ProblemKind.UNREADABLE))
                continue
            if length != self.file_size:
                problem = self._wrong(path, f"it has {length} bytes, but {self._expected} {self.file_size}")
                if length < self.file_size:
                    self.gaps.append(problem)
            if files and (offset - files[0].file_from_offset) % self.file_size:
                self._wrong(path, f"its name is not a multiple of {self.file_size} bytes after the first file's")
                continue
            if files and offset != files[-1].file_from_offset + self.file_size:
                text = f"the files between {files[-1].path.name} and this one are missing"
                self.gaps.append(self._wrong(path, text))
            files.append(ViewedFile(path, min(length, self.file_size), offset))
        self.files = files
        self._by_offset = {file.file_from_offset: file for file in files}

    def find(self, offset: int) -> MappedFile | None:
        """Return the file of an offset; None if the file is truncated or missing."""
        file = self._by_offset.get(offset - (offset - self.min_offset) % self.file_size) if self.files else None
        return file if file is not None and offset < file.file_from_offset + file.size else None


class ViewedQueue(ConsumeQueue):
    """A read-only consume queue."""

    __slots__ = ()

    @property
    def is_sound(self) -> bool:
        """Whether all files exist with the right size. Otherwise the queue counts as empty."""
        return isinstance(self.files, ViewedFiles) and self.files.sound

    def load(self) -> None:
        self.files.load()
        if self.is_sound:
            super().load()
        self.loaded = True


def read_error_text(error: OSError | None = None) -> str:
    """Return the message of a problem."""
    return f"it cannot be read: {(error and error.strerror) or os.strerror(errno.EACCES)}"


class StoreView:
    """The files of a stopped store. See :func:`view_store`."""

    def __init__(self, paths: StorePaths, config: StoreConfig | None) -> None:
        path = self.path = paths.root
        self.problems: list[StoreProblem] = []
        if not paths.commit_log.is_dir() and (path / "checkpoint").exists():
            self.problems.append(StoreProblem(ProblemKind.FILES, paths.commit_log, _NO_LOG))
        sizes = FileSizes(config, True, True, True) if config else read_file_sizes(paths)
        self.config = sizes.config.at(paths)
        self.index_size_known, self.sizes_are_known = sizes.knows_index, sizes.are_known
        self._are_guessed = config is None
        self.delays = DelayLevels(self.config.delay_levels())
        self.deleted = DeletedTopics(path)
        try:
            self.deleted.load()
        except StoreCorruptError as error:
            self.problems.append(StoreProblem(ProblemKind.FILES, self.deleted.path, error.message))
        self.log = ViewedFiles(
            self.config.commit_log_path,
            self.config.mapped_file_size_commit_log,
            setting="mappedFileSizeCommitLog",
            problems=self.problems,
            is_guessed=self._are_guessed,
        )
        self.log.load()
        self.queues: dict[tuple[str, int], ViewedQueue] = {}
        self._cache = MappingCache(1)
        self._find_queues()

    def _find_queues(self) -> None:
        for topic_directory in self._inside(self.config.consume_queue_path):
            if not topic_directory.is_dir():
                self.problems.append(
                    StoreProblem(ProblemKind.FILES, topic_directory, "this is not a topic's directory")
                )
                continue
            for directory in self._inside(topic_directory):
                if not directory.name.isdecimal() or not directory.is_dir():
                    text = "this is not a queue's directory: their names are numbers"
                    self.problems.append(StoreProblem(ProblemKind.FILES, directory, text))
                    continue
                key = topic_directory.name, int(directory.name)
                size = self.config.mapped_file_size_consume_queue
                queue = ViewedQueue(directory, *key, size, self._cache)
                queue.files = ViewedFiles(
                    directory,
                    size,
                    setting="mappedFileSizeConsumeQueue",
                    problems=self.problems,
                    is_guessed=self._are_guessed,
                )
                self.queues[key] = queue

    def _inside(self, directory: Path) -> list[Path]:
        """Return the contents of a directory; empty if it is missing, with a problem if it cannot be read."""
        try:
            return sorted(directory.iterdir()) if directory.is_dir() else []
        except OSError as error:
            self.problems.append(StoreProblem(ProblemKind.UNREADABLE, directory, read_error_text(error)))
            return []

    def queue(self, topic: str, queue_id: int) -> ViewedQueue | None:
        """Open a queue; None if it has no directory."""
        queue = self.queues.get((topic, queue_id))
        if queue is not None and not queue.loaded:
            queue.load()
        return queue

    def data_end(self) -> int:
        """Return the end of possible data in the log, the total for progress reports."""
        for file in reversed(self.log.files):
            end = max((stop for _, stop in file.data_ranges(0)), default=0)
            if end:
                return file.file_from_offset + end
        return self.log.min_offset

    @property
    def is_killed(self) -> bool:
        """Whether the last owner did not stop cleanly."""
        return (self.path / "abort").exists()

    def unchecked(self) -> list[str]:
        """Return a sentence for each part of the directory that the tools do not support."""
        notes = [
            f"{self.path / name}: {what}; not checked" for name, what in _UNKNOWN.items() if (self.path / name).exists()
        ]
        notes += [f"{path}: tables of RocksDB; not checked" for path in self._rocksdb()]
        return notes

    @property
    def has_rocksdb(self) -> bool:
        """Whether Apache's broker may have the consume queues in tables of RocksDB."""
        return bool(self._rocksdb())

    def _rocksdb(self) -> list[Path]:
        places = self._inside(self.path) + self._inside(self.path / "config")
        return [path for path in places if "rocksdb" in path.name.lower() or path.name == "consumequeue_r"]


def paths_of(path: Path, config: StoreConfig | None) -> StorePaths:
    """Find the parts of the store in ``path``, by its own configuration, else by its contents.

    Queues and index in the root, as with Apache's brokers, are found there. StoreError if the place is unknown.
    """
    if config is None or not config.paths.elsewhere:
        return find_paths(path)
    if config.store_path.absolute() == path.absolute():
        named, usual = config.paths, StorePaths.of(path)
        if usual.consume_queue.is_dir() and not named.consume_queue.is_dir():
            named = replace(named, consume_queue=usual.consume_queue)
        if usual.index.is_dir() and not named.index.is_dir():
            named = replace(named, index=usual.index)
        return named
    raise StoreError(
        f"The configuration is of the store in {config.store_path}, which has its commit log in "
        f"{config.commit_log_path}; {path} is another directory.",
        remedy="Of a copy, give a broker.conf that names the directories of the copy.",
    )


@contextmanager
def view_store(path: Path | str, config: StoreConfig | None = None) -> Iterator[StoreView]:
    """Open a stopped store for reading. StoreError if there is none, StoreLockedError if it is in use."""
    path = Path(path)
    if not path.is_dir():
        raise StoreError(f"{path} is not a directory.", remedy="Give the directory of a store (storePathRootDir).")
    paths = paths_of(path, config)
    held = _hold(paths)
    try:
        yield StoreView(paths, config)
    finally:
        for descriptor in held:
            os.close(descriptor)


def _hold(paths: StorePaths) -> list[int]:
    """Lock a store with shared locks; return the descriptors."""
    held = _hold_root(paths.root)
    try:
        there = [path for path in paths.directories if path.is_dir() and os.access(path, os.R_OK)]
        return held + lock_directories(there, fcntl.LOCK_SH)
    except BaseException:
        for descriptor in held:
            os.close(descriptor)
        raise


def _hold_root(path: Path) -> list[int]:
    """Lock a directory with both shared locks; return its descriptor, if there is a lock file."""
    owner = read_abort(path)
    refusal = StoreLockedError(
        f"The store in {path} is in use{f' by process {owner}' if owner else ''}.", remedy="Stop its broker first."
    )
    if StoreLock.is_held_here(path):
        raise refusal
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError:
        os.close(fd)
        raise refusal from None
    return [fd]
