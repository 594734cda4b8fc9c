"""The sizes of a store's files, derived from their names and sizes: for tools without a broker.conf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from spark_rocket.store.config import StoreConfig
from spark_rocket.store.layout import ENTRY_SIZE
from spark_rocket.store.paths import StorePaths


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

    Otherwise the most frequent size is used for reading only.
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
