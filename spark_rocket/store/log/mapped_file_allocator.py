"""Prepares the commit log ahead of its writer, in a thread: disk blocks, pages in memory, and the next file.

A first write to a cold page costs a hundred times as much as to a warm one, and the creation of a file would stall
every sender. If the thread falls behind or fails, the writer makes what it needs itself, and gets the error.

Thread-safety: one writer; ``sync_names`` in any thread. Corresponds to AllocateMappedFileService.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)


class MappedFileAllocator:
    """Allocates up to ``ahead`` bytes beyond the writer's position."""

    def __init__(self, queue: MappedFileQueue, ahead: int) -> None:
        self._queue = queue
        self._ahead = ahead
        self._next: MappedFile | None = None
        self._next_lock = threading.Lock()
        self._names_made = 0
        self._names_synced = 0
        self._request: tuple[MappedFile, int] | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-allocate", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread and delete the unused next file."""
        if self._thread is not None:
            self._request = None
            self._wake.set()
            self._thread.join()
            self._thread = None
        if self._next is not None:
            if self._next.file_from_offset >= self._queue.end_offset:
                self._next.destroy()
            else:  # a part of the log, which must not be deleted
                self._next.close()
            self._next = None

    def make_room(self, file: MappedFile, position: int, end: int) -> int:
        """Make the bytes from ``position`` to ``end`` writable; return up to where they are. OSError."""
        file.reserve(end)
        self._request = file, position
        self._wake.set()
        is_ready = file.allocated == file.size and self._next is not None
        limit = file.size if is_ready else max(end, file.allocated - self._ahead // 2)
        file.touch(position, limit)
        return limit

    def take_next(self, offset: int, need: int, finish: Callable[[], None]) -> MappedFile:
        """Append the file that starts at ``offset`` to the log, with ``need`` bytes allocated. OSError.

        ``finish`` ends the file before it, after everything that can fail. The lock is held until the file is a part
        of the log: the thread would otherwise create the same file a second time.
        """
        with self._next_lock:
            file = self._next = self._next or self._create(offset)  # after a failure the next attempt uses this file
            _ = file.mm
            file.reserve(need)
            finish()
            self._next = None
            self._queue.add(file)
            return file

    def truncate(self, offset: int) -> None:
        """Remove everything from an offset on from the log, and the next file."""
        with self._next_lock:
            if self._next is not None:
                self._next.destroy()
                self._next = None
            self._queue.truncate(offset)

    def sync_names(self) -> None:
        """Sync the directory if it has new files. The thread does this early; each flush ensures it."""
        made = self._names_made
        if self._names_synced != made:
            sync_directory(self._queue.directory)
            self._names_synced = made

    def _create(self, offset: int) -> MappedFile:
        file = self._queue.create(offset, sync=False)
        self._names_made += 1
        return file

    def _run(self) -> None:
        failed = False
        while True:
            self._wake.wait()
            self._wake.clear()
            request = self._request
            if request is None:
                return
            file, position = request
            try:
                self.extend(file, min(position + self._ahead, file.size))
                if file.size - position < max(2 * self._ahead, file.size // 8) and self._next is None:
                    self.prepare_next(file)
                failed = False
            except OSError as error:  # the writer gets the same error and rejects the message
                if not failed:
                    _log.warning("cannot preallocate %s: %s", file.path, error)
                failed = True

    def prepare_next(self, file: MappedFile) -> None:
        """Create the file after ``file``, unless the writer has done so meanwhile. A step of the thread. OSError."""
        with self._next_lock:
            offset = file.file_from_offset + file.size
            if self._next is not None or offset != self._queue.end_offset:
                return
            self._next = made = self._create(offset)
        self.extend(made, self._ahead)  # takes long, so without the lock; the writer may use the file already
        self.sync_names()

    @staticmethod
    def extend(file: MappedFile, end: int) -> None:
        """Allocate a file up to ``end``, and its pages. A step of the thread. OSError."""
        start = file.allocated
        if end > start:
            file.reserve(end)
            file.touch(start, end)
