"""Table of a store's consume queues by topic and queue id. Found on disk at start, opened on first use.

Thread-safety: for the store's one thread; ``take_dirty`` may be called from the flush thread.
Corresponds to DefaultMessageStore's consumeQueueTable (ConsumeQueueStore in 5.x).
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.layout import MAX_TOPIC_BYTES
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.queues.consume_queue import ConsumeQueue, MappingCache

QUEUE_SETTING = "mappedFileSizeConsumeQueue"
_DELETED = ".deleted-"  # a deleted topic's directory: the name of the queues' directory, this, and a number


def is_storable(topic: str, queue_id: int) -> bool:
    """Return whether topic and queue are valid directory names that stay inside the store."""
    return (
        queue_id >= 0
        and topic not in ("", ".", "..")
        and "/" not in topic
        and "\0" not in topic
        and len(topic.encode("utf-8", "surrogatepass")) <= MAX_TOPIC_BYTES
    )


def entries_of_directory(directory: Path | str) -> list[os.DirEntry[str]]:
    """Return a directory's entries by name; unlike with ``Path.iterdir``, their types need no further system call."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


class ConsumeQueueTable:
    """Consume queues by (topic, queue id)."""

    def __init__(self, config: StoreConfig) -> None:
        self._root = config.consume_queue_path
        self._file_size = config.mapped_file_size_consume_queue
        self._cache = MappingCache(config.max_mapped_consume_queue_files)
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self._dirty: deque[ConsumeQueue] = deque()
        self._min_physical_offset = -1  # unknown: before recovery an entry may be garbage

    def load(self) -> None:
        """Find the queues that have a directory, without opening them. StoreCorruptError for anything else there."""
        for topic in self._inside(self._root):
            if not topic.is_dir():
                self._refuse(topic.path, "is not a topic's directory")
                continue
            for queue in self._inside(topic.path):
                if not queue.name.isdecimal() or not queue.is_dir():
                    self._refuse(queue.path, "is not a queue's directory: its name must be a number")
                    continue
                self._make(topic.name, int(queue.name), Path(queue.path))

    def _inside(self, directory: Path | str) -> list[os.DirEntry[str]]:
        return entries_of_directory(directory)

    def _refuse(self, path: str, what: str) -> None:
        remedy = "Move it elsewhere; `rocket store check` then reports missing files."
        raise StoreCorruptError(f"{path} {what}.", remedy=remedy)

    def _make(self, topic: str, queue_id: int, directory: Path) -> ConsumeQueue:
        queue = ConsumeQueue(self._files(directory), topic, queue_id, self._cache)
        self.table[topic, queue_id] = queue
        return queue

    def _files(self, directory: Path) -> MappedFileQueue:
        return MappedFileQueue(directory, self._file_size, setting=QUEUE_SETTING, derived=True)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, opened; None if it has never had a message."""
        queue = self.table.get((topic, queue_id))
        if queue is not None and queue.log_min_offset != self._min_physical_offset:
            self._open(queue)
        return queue

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, opened. A new queue's directory is created with its first message."""
        queue = self.find(topic, queue_id)
        if queue is None:
            queue = self._make(topic, queue_id, self._root / topic / str(queue_id))
            queue.loaded = True
            queue.log_min_offset = self._min_physical_offset
        return queue

    def _open(self, queue: ConsumeQueue) -> None:
        """Load a queue if necessary, and correct its minimum offset for the log's beginning."""
        if not queue.loaded:
            queue.load()
        if self._min_physical_offset > 0:
            queue.correct_min_offset(self._min_physical_offset)
        queue.log_min_offset = self._min_physical_offset

    def correct_min_offsets(self, min_physical_offset: int) -> None:
        """Set the log's new beginning. Each queue is corrected on its next use, not ten thousand at once."""
        self._min_physical_offset = min_physical_offset

    def opened(self) -> Iterator[ConsumeQueue]:
        """Yield every queue, opened one by one."""
        for topic, queue_id in list(self.table):
            queue = self.find(topic, queue_id)
            if queue is not None:
                yield queue

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Let the next ``take_dirty`` return a queue."""
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)

    def take_dirty(self) -> list[ConsumeQueue]:
        """Return the queues written since the last call. The flag is reset before a queue's end is read."""
        taken = []
        while self._dirty:
            queue = self._dirty.popleft()
            queue.dirty = False
            taken.append(queue)
        return taken

    def delete_topic(self, topic: str) -> tuple[int, list[Path]]:
        """Remove a topic's queues; return their number, and directories to delete in the background.

        The topic's directory is renamed at once: deleting thousands of files takes seconds.
        """
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            queue = self.table.pop(key)
            queue.close()
        directory = self._root / topic
        if not keys or not directory.is_dir():
            return len(keys), []
        root = self._root.resolve()
        taken = {path.name for path in self.leftovers()}
        name = next(name for number in count() if (name := f"{root.name}{_DELETED}{number}") not in taken)
        try:
            return len(keys), [directory.rename(root.with_name(name))]
        except OSError:  # the root is a separate file system
            shutil.rmtree(directory)
            return len(keys), []

    def leftovers(self) -> list[Path]:
        """Return directories of deleted topics that still exist."""
        root = self._root.resolve()
        return [
            Path(entry.path)
            for entry in entries_of_directory(root.parent)
            if entry.name.startswith(root.name + _DELETED)
        ]

    def known(self) -> Iterator[tuple[str, int]]:
        """Yield topic and queue id of every queue that has or once had a message."""
        return (key for key, queue in self.table.items() if queue.files.files or not queue.loaded)

    def close(self) -> None:
        for queue in self.table.values():
            queue.close()
