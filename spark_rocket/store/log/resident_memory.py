"""Bounds the part of the commit log that is resident in this process. All of it may stay in the kernel's page cache.

The end of the log stays resident: the last 64 MiB of flushed bytes, and all unflushed bytes. Older bytes are *cold*:
their pages are released once they are behind that, and after every 64 MiB of reads.

Thread-safety: ``note_read`` for the readers' thread; the other methods in any thread. RocketMQ has no equivalent: its
brokers map all files.
"""

from __future__ import annotations

from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

_WARM_BYTES = 64 << 20  # flushed bytes behind the writer that stay in memory, for readers at the tail
_RELEASE_BYTES = 8 << 20  # released at a time
_FAULT_AROUND_BYTES = 64 << 10  # the kernel maps this much around each byte that is read
_MAX_COLD_FILES = 8  # mapped for reads of old bytes
_MAX_WARM_FILES = 4  # limit for small files


class ResidentMemory:
    """The offset up to which the log is cold, and what was read below it."""

    def __init__(self, queue: MappedFileQueue) -> None:
        self._queue = queue
        self._warm_from = 0
        self._cold: set[MappedFile] = set()  # files with cold bytes that were read
        self._cold_bytes = 0

    def reset(self, offset: int) -> None:
        """Start with everything below an offset cold."""
        self._warm_from = offset

    def cut(self, offset: int) -> None:
        """Forget the bytes from an offset on: they are no longer in the log."""
        self._warm_from = min(self._warm_from, offset)
        self._cold.clear()

    def note_read(self, file: MappedFile, offset: int, size: int) -> None:
        """Count cold bytes that were read; above a limit, release their memory."""
        if offset >= self._warm_from:
            return
        self._cold.add(file)
        self._cold_bytes += size + _FAULT_AROUND_BYTES
        if self._cold_bytes > _WARM_BYTES or len(self._cold) > _MAX_COLD_FILES:
            for cold in self._cold:
                self._release(cold)
            self._cold.clear()
            self._cold_bytes = 0

    def flushed(self, offset: int) -> None:
        """Release what has become cold by a flush of everything below an offset."""
        if offset - _WARM_BYTES - self._warm_from >= _RELEASE_BYTES:
            self._cool(offset - _WARM_BYTES)

    def begun(self, file: MappedFile) -> None:
        """Release what has become cold because the writer has begun a file."""
        self._cool(file.file_from_offset - (_MAX_WARM_FILES - 1) * file.size)

    def _cool(self, stop: int) -> None:
        start = self._warm_from
        if stop > start:
            self._warm_from = stop  # first, so that concurrent reads there are counted as cold
            for file in self._queue.between(start, stop):
                self._release(file)

    def _release(self, file: MappedFile) -> None:
        """Release a file's cold pages from this process's memory."""
        if file.file_from_offset + file.size <= self._warm_from:
            file.unmap()
        else:
            file.release_pages(self._warm_from - file.file_from_offset)
