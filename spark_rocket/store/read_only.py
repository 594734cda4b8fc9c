"""The read-only open of a stopped store, for check, dump, statistics, rebuild and Spark's ``storePath``.

The files are those that :class:`MessageStore` opens, found by the same code, with two differences. Nothing is changed,
so a read-only mount or a backup can be read. A file with a wrong name or size, or without read permission, is not an
error but a :class:`StoreProblem`; the others are still read. Sizes that are not configured are derived from the files
(file_sizes.py). There is no recovery: the log's end is where a scan ends (tools/salvage.py).

While a store is open, no broker can start on the directory: shared locks block brokers of both kinds (store_lock.py).

RocketMQ has no equivalent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, KeysView
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from spark_rocket.errors import StoreCorruptError, StoreError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.file_sizes import FileSizes, read_file_sizes
from spark_rocket.store.layout import DelayLevels
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.paths import StorePaths, find_paths
from spark_rocket.store.problems import ProblemKind, StoreProblem, read_error_text
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.queue_table import QUEUE_SETTING, ConsumeQueueTable, entries_of_directory
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.store.store_lock import StoreLock, abort_path

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


class ReadOnlyFiles(MappedFileQueue):
    """Consecutive files and their problems; a file may be missing in the middle, or too short."""

    def __init__(
        self, directory: Path, file_size: int, *, setting: str, problems: list[StoreProblem], is_guessed: bool
    ) -> None:
        """``is_guessed``: the size is derived from the files."""
        super().__init__(directory, file_size, setting=setting)
        self._problems = problems
        self._is_guessed = is_guessed
        self._is_sound = True
        self.gaps: list[StoreProblem] = []
        """Problems of files that are too short, or missing between others."""
        self.unreadable: list[StoreProblem] = []
        """Problems of permissions, or of the disk."""
        self._by_offset: dict[int, MappedFile] = {}

    @property
    def is_sound(self) -> bool:
        return self._is_sound

    @property
    def _expected(self) -> str:
        return "such files here have" if self._is_guessed else super()._expected

    def load(self) -> None:
        """Find the files on disk, and add problems to the given list."""
        super().load()
        self._by_offset = {file.file_from_offset: file for file in self.files}

    def _names(self) -> list[os.DirEntry[str]]:
        try:
            return super()._names()
        except OSError as error:
            self.unreadable.append(self._add(self.directory, read_error_text(error), ProblemKind.UNREADABLE))
            return []

    def _refuse(self, path: str, what: str, remedy: str, *, is_gap: bool = False) -> None:
        problem = self._add(Path(path), f"it {what}")
        if is_gap:
            self.gaps.append(problem)

    def _is_readable(self, path: str) -> bool:
        is_readable = os.access(path, os.R_OK)
        if not is_readable:
            self.unreadable.append(self._add(Path(path), read_error_text(), ProblemKind.UNREADABLE))
        return is_readable

    def _add(self, path: Path, text: str, kind: ProblemKind = ProblemKind.FILES) -> StoreProblem:
        self._is_sound = False
        self._problems.append(StoreProblem(kind, path, text))
        return self._problems[-1]

    def drop_last(self) -> None:
        """Forget the last file, which stays on disk."""
        del self._by_offset[self.files[-1].file_from_offset]
        self.files = self.files[:-1]

    def find(self, offset: int) -> MappedFile | None:
        """Return the file of an offset; None if the file is truncated or missing."""
        file = self._by_offset.get(offset - (offset - self.min_offset) % self.file_size) if self.files else None
        return file if file is not None and offset < file.file_from_offset + file.size else None


class _ReadOnlyQueues(ConsumeQueueTable):
    """The consume queues, and their problems."""

    def __init__(self, config: StoreConfig, problems: list[StoreProblem], *, is_guessed: bool) -> None:
        super().__init__(config)
        self._problems = problems
        self._is_guessed = is_guessed

    def _inside(self, directory: Path | str) -> list[os.DirEntry[str]]:
        return _inside(directory, self._problems)

    def _refuse(self, path: str, what: str) -> None:
        self._problems.append(StoreProblem(ProblemKind.FILES, Path(path), f"it {what}"))

    def _files(self, directory: Path) -> ReadOnlyFiles:
        size = self._file_size
        return ReadOnlyFiles(
            directory, size, setting=QUEUE_SETTING, problems=self._problems, is_guessed=self._is_guessed
        )


class ReadOnlyStore:
    """The files of a stopped store. See :func:`open_read_only`."""

    def __init__(self, paths: StorePaths, config: StoreConfig | None) -> None:
        path = self.path = paths.root
        self.problems: list[StoreProblem] = []
        if not paths.commit_log.is_dir() and (path / "checkpoint").exists():
            self.problems.append(StoreProblem(ProblemKind.FILES, paths.commit_log, _NO_LOG))
        sizes = FileSizes(config, True, True, True) if config else read_file_sizes(paths)
        self.config = sizes.config.at(paths)
        self.index_size_known, self.sizes_are_known = sizes.knows_index, sizes.are_known
        self.delays = DelayLevels(self.config.delay_levels())
        self.deleted = DeletedTopics(path)
        try:
            self.deleted.load()
        except StoreCorruptError as error:
            self.problems.append(StoreProblem(ProblemKind.FILES, self.deleted.path, error.message))
        self.log = ReadOnlyFiles(
            self.config.commit_log_path,
            self.config.mapped_file_size_commit_log,
            setting="mappedFileSizeCommitLog",
            problems=self.problems,
            is_guessed=config is None,
        )
        self.log.load()
        self._table = _ReadOnlyQueues(self.config, self.problems, is_guessed=config is None)
        self._table.load()

    @property
    def queues(self) -> KeysView[tuple[str, int]]:
        """Topics and ids of the queues that have a directory."""
        return self._table.table.keys()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Open a queue; None if it has no directory. It is empty if a file is missing (``files.is_sound``)."""
        return self._table.find(topic, queue_id)

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
        return abort_path(self.path).exists()

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
        names = [entry for place in (self.path, self.path / "config") for entry in _inside(place, self.problems)]
        return [
            Path(entry.path) for entry in names if "rocksdb" in entry.name.lower() or entry.name == "consumequeue_r"
        ]


def _inside(directory: Path | str, problems: list[StoreProblem]) -> list[os.DirEntry[str]]:
    """Return the contents of a directory; empty if it is missing, with a problem if it cannot be read."""
    try:
        return entries_of_directory(directory)
    except OSError as error:
        problems.append(StoreProblem(ProblemKind.UNREADABLE, Path(directory), read_error_text(error)))
        return []


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
def open_read_only(path: Path | str, config: StoreConfig | None = None) -> Iterator[ReadOnlyStore]:
    """Open a stopped store for reading. StoreError if there is none, StoreLockedError if it is in use."""
    path = Path(path)
    if not path.is_dir():
        raise StoreError(f"{path} is not a directory.", remedy="Give the directory of a store (storePathRootDir).")
    paths = paths_of(path, config)
    lock = StoreLock(path, is_shared=True)
    lock.acquire()
    try:
        lock.acquire_directories(part for part in paths.directories if part.is_dir() and os.access(part, os.R_OK))
        yield ReadOnlyStore(paths, config)
    finally:
        lock.release()
