"""The commit log: the messages of all queues in order of arrival. All other store files are derived from it.

A record never crosses a file's end. When record + 8 bytes do not fit into the rest of the file, the writer puts a
blank record there (int32 rest, magic 0xCBD43194) and continues in the next file. A batch is never split either.

The allocator thread allocates disk blocks and touches pages ahead of the writer, a few MiB at a time. It also creates
the next file before it is needed. A first write to a cold page costs a hundred times as much as to a warm one, and a
roll-over would otherwise stall every sender. If the thread falls behind or fails, the writer does this itself. A full
disk is detected here (``OSError``), before a byte is written. Touching a page requests it for writing. A disk that
does not deliver promised blocks (copy-on-write, quotas, thin provisioning) therefore fails here too; a write through
the mapping would end the process.

Readers copy from the mappings too. To bound memory, only the end of the log stays resident in this process: the last
64 MiB of flushed bytes, and all unflushed bytes. Older pages that were read are released after every 64 MiB of reads.
All of it may stay in the kernel's page cache.

Thread-safety: one writer (``make_room``, writes, ``advance``). ``max_offset`` is set after the bytes are written, so
other threads may read anything below it. ``flush``: one thread at a time.
After a crash: see recovery.py. A record's first four bytes are written last: if the process is killed during a write,
the log appears to end before that record.
Corresponds to org.apache.rocketmq.store.CommitLog and AllocateMappedFileService.
"""

from __future__ import annotations

import logging
import mmap
import threading

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.buffers import Buffer
from spark_rocket.protocol.record.layout import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)
_MAX_DAMAGE_REPORTS = 10_000
_WARM_BYTES = 64 << 20  # flushed bytes behind the writer that stay in memory, for readers at the tail
_RELEASE_BYTES = 8 << 20  # released at a time
_FAULT_AROUND_BYTES = 64 << 10  # the kernel maps this much around each byte that is read
_MAX_COLD_FILES = 8  # mapped for reads of old bytes
_MAX_WARM_FILES = 4  # limit for small files


class CommitLog:
    """The log's files, the writer's position, and the flushed offset."""

    def __init__(self, config: StoreConfig) -> None:
        self._ahead = min(config.allocate_ahead, config.mapped_file_size_commit_log)
        self.file_size = config.mapped_file_size_commit_log
        self.queue = MappedFileQueue(config.commit_log_path, self.file_size, setting="mappedFileSizeCommitLog")
        self.max_offset = 0
        self.flushed_where = 0
        self._warm_from = 0
        self._cold: set[MappedFile] = set()  # files with cold bytes (below _warm_from) that were read
        self._cold_bytes = 0
        self._damaged: set[int] = set()
        # The writer's position: records go to mm[position:], up to soft_limit without a call of make_room().
        self.base = 0
        self.position = 0
        self.soft_limit = 0
        self._current: MappedFile | None = None
        self._next: MappedFile | None = None
        self._next_lock = threading.Lock()
        self._names_lock = threading.Lock()
        self._names_made = 0
        self._names_synced = 0
        self._wake = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    # --- opening and closing ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the log's files on disk."""
        self.queue.load()

    def open_at(self, max_offset: int, *, flushed: int) -> None:
        """Continue writing at ``max_offset``, as found by recovery; only zeros follow it.

        ``flushed``: offset below which everything is known to be on disk.
        """
        file = self.queue.find(max_offset)
        if file is None and self.queue.files and max_offset != self.queue.end_offset:
            raise StoreCorruptError(
                f"{self.queue.directory} ends at offset {self.queue.end_offset}, before {max_offset}.",
                remedy="Restore the missing files and restart the broker.",
            )
        self._current = file
        self.base = file.file_from_offset if file else max_offset
        self.position = max_offset - self.base
        self.soft_limit = 0
        self.max_offset = self._warm_from = max_offset
        self.flushed_where = flushed

    def start(self) -> None:
        """Start the allocator thread."""
        self._stop = False
        self._thread = threading.Thread(target=self._allocate, name="store-allocate", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the allocator and delete the unused next file."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._next is not None:
            if self._next.file_from_offset >= self.queue.end_offset:
                self._next.destroy()
            else:  # a part of the log, which must not be deleted
                self._next.close()
            self._next = None

    def close(self) -> None:
        self.shutdown()
        self._current = None
        self.queue.close()

    # --- writing ------------------------------------------------------------------------------------------------

    @property
    def mm(self) -> mmap.mmap:
        """Mapping of the file being written; only valid after ``make_room``."""
        assert self._current is not None
        return self._current.mm

    def fits(self, size: int) -> bool:
        """Return whether a record or batch of this size fits into a file."""
        return size + BLANK_SIZE <= self.file_size

    def make_room(self, size: int) -> None:
        """Make ``size`` bytes at ``position`` writable, in the next file if necessary. OSError: nothing was changed."""
        need = size + BLANK_SIZE
        if self.position + need <= self.soft_limit:
            return
        file = self._current
        if file is None or self.position + need > self.file_size:
            file = self._roll(need)
        end = self.position + need
        file.reserve(end)
        self._wake.set()
        is_ready = file.allocated == self.file_size and self._next is not None
        limit = self.file_size if is_ready else max(end, file.allocated - self._ahead // 2)
        file.touch(self.position, limit)
        self.soft_limit = limit

    def _roll(self, need: int) -> MappedFile:
        """End this file with a blank record and continue in the next. Steps that can fail come first.

        The lock is held until the file is the current one. If the allocator saw the file as neither next nor current,
        it would create the same file a second time.
        """
        with self._next_lock:
            last, position = self._current, self.position
            if last is not None:
                last.reserve(position + BLANK_SIZE)
            file = self._next or self._create(self.queue.end_offset if self.queue.files else self.base + position)
            self._next = file  # if the reservation fails, the next attempt uses this file
            _ = file.mm
            file.reserve(need)
            if last is not None:
                SIZE_AND_MAGIC.pack_into(last.mm, position, self.file_size - position, MAGIC_BLANK)
            self._next = None
            self.queue.add(file)
            self._current = file
            self.base, self.position, self.max_offset = file.file_from_offset, 0, file.file_from_offset
            self.soft_limit = 0
            self._cool(self.base - (_MAX_WARM_FILES - 1) * self.file_size)
            return file

    def write(self, records: Buffer) -> None:
        """Write a run at ``position``, its first four bytes last. Call ``make_room`` before."""
        position, view = self.position, memoryview(records)
        self.mm[position + 4 : position + len(view)] = view[4:]
        self.mm[position : position + 4] = view[:4]

    def writable(self, size: int) -> memoryview:
        """Return the bytes at ``position``, to write a run: its first four bytes last. Call ``make_room`` before."""
        return memoryview(self.mm)[self.position : self.position + size]

    def end_file(self, rest: Buffer) -> None:
        """End this file with ``rest``, which starts with the blank record, and continue in the next file.

        For a replica; a master does this in ``make_room``. OSError: nothing was changed.
        """
        file, behind = self._current, bytes(rest[BLANK_SIZE:])
        assert file is not None
        if behind.count(0) != len(behind):  # left by an Apache broker that was killed
            file.reserve(self.file_size)
            file.touch(self.position, self.file_size)
            file.mm[self.position + BLANK_SIZE :] = behind
        try:
            self._roll(BLANK_SIZE)
        except OSError:
            self.erase(len(rest))
            raise

    def erase(self, size: int) -> None:
        """Overwrite a run at ``position`` with zeros: one written but not yet visible to readers."""
        if self._current is not None and self._current.has_data(self.position):
            self.mm[self.position : self.position + size] = bytes(size)

    def cut(self, offset: int) -> None:
        """Remove everything from a record's offset on. No other thread may flush or read there meanwhile."""
        with self._next_lock:
            if self._next is not None:
                self._next.destroy()
                self._next = None
            self.queue.truncate(offset)
            self._current = file = self.queue.find(offset)
            self.base = file.file_from_offset if file else offset
            self.position = offset - self.base
            self.soft_limit = 0
            self.max_offset = offset
            self.flushed_where = min(self.flushed_where, offset)
            self._warm_from = min(self._warm_from, offset)
            self._cold.clear()
            self._damaged = {place for place in self._damaged if place < offset}

    def advance(self, size: int) -> None:
        """Make ``size`` bytes written at ``position`` visible to readers, and move past them."""
        self.position += size
        self.max_offset = self.base + self.position

    def _allocate(self) -> None:
        """Run the allocator thread: allocate blocks, touch pages and create files ahead of the writer."""
        failed = False
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stop:
                return
            file = self._current
            if file is None:
                continue
            try:
                self._extend(file, min(self.position + self._ahead, self.file_size))
                if self.file_size - self.position < max(2 * self._ahead, self.file_size // 8) and self._next is None:
                    self._prepare_next(file)
                failed = False
            except OSError as error:  # the writer gets the same error and rejects the message
                if not failed:
                    _log.warning("cannot preallocate %s: %s", file.path, error)
                failed = True

    def _prepare_next(self, file: MappedFile) -> None:
        """Create the file after ``file``, unless the writer has done so meanwhile."""
        with self._next_lock:
            offset = file.file_from_offset + self.file_size
            if self._next is not None or offset != self.queue.end_offset:
                return
            self._next = made = self._create(offset)
        self._extend(made, self._ahead)  # takes long, so without the lock; the writer may use the file already
        self._sync_names()

    def _create(self, offset: int) -> MappedFile:
        file = self.queue.create(offset, sync=False)
        self._names_made += 1
        return file

    def _sync_names(self) -> None:
        """Sync the directory if it has new files. The allocator does this early; each flush ensures it."""
        with self._names_lock:
            made = self._names_made
            if self._names_synced != made:
                sync_directory(self.queue.directory)
                self._names_synced = made

    @staticmethod
    def _extend(file: MappedFile, end: int) -> None:
        start = file.allocated
        if end > start:
            file.reserve(end)
            file.touch(start, end)

    # --- reading ------------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of bytes within one file; empty if they are not in the log."""
        file = self.queue.find(offset)
        if file is None or size < 0 or offset + size > self.max_offset:
            return b""
        start = offset - file.file_from_offset
        data = file.mm[start : start + size]
        if offset < self._warm_from:
            self._note_cold(file, size)
        return data

    def read_up_to(self, offset: int, limit: int) -> bytes:
        """Return a copy of up to ``limit`` bytes from an offset on; fewer at the end of a file or of the log."""
        file = self.queue.find(offset)
        if file is None:
            return b""
        return self.read(offset, min(limit, self.max_offset - offset, file.file_from_offset + file.size - offset))

    def read_many(self, starts: list[int], stops: list[int]) -> bytes:
        """Return copies of ranges in ascending order, each within one file, joined."""
        file = self.queue.find(starts[0])
        if len(starts) == 1 or file is None:
            return self.read(starts[0], stops[0] - starts[0])
        base, ranges = file.file_from_offset, zip(starts, stops, strict=True)
        low, high = min(starts), max(stops)
        if low < base or high > min(base + self.file_size, self.max_offset):
            return b"".join([self.read(start, stop - start) for start, stop in ranges])
        with memoryview(file.mm) as view:
            records = b"".join([view[start - base : stop - base] for start, stop in ranges])
        if low < self._warm_from:
            self._note_cold(file, high - low)
        return records

    def _note_cold(self, file: MappedFile, size: int) -> None:
        """Count cold bytes that were read; above a limit, release their memory."""
        self._cold.add(file)
        self._cold_bytes += size + _FAULT_AROUND_BYTES
        if self._cold_bytes > _WARM_BYTES or len(self._cold) > _MAX_COLD_FILES:
            for cold in self._cold:
                self._release_cold(cold)
            self._cold.clear()
            self._cold_bytes = 0

    def _release_cold(self, file: MappedFile) -> None:
        """Release a file's cold pages from this process's memory."""
        if file.file_from_offset + file.size <= self._warm_from:
            file.unmap()
        else:
            file.release_pages(0, self._warm_from - file.file_from_offset)

    def report_damage(self, offset: int, what: str) -> None:
        """Log once that the record at an offset is damaged."""
        if offset in self._damaged or len(self._damaged) >= _MAX_DAMAGE_REPORTS:
            return
        self._damaged.add(offset)
        file = self.queue.find(offset)
        if file is not None:
            _log.error(
                "damaged record in %s at byte %d (offset %d): %s. Restore the file from a copy; "
                "`rocket store check` lists all damage.",
                file.path,
                offset - file.file_from_offset,
                offset,
                what,
            )

    # --- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Flush everything below the current ``max_offset``; return that offset. OSError when the disk fails."""
        target = self.max_offset
        start = self.flushed_where
        if target > start:
            self._sync_names()
            for file in self.queue.between(start, target):
                base = file.file_from_offset
                file.flush(max(start - base, 0), min(target - base, file.size))
            self.flushed_where = target
            self._release(target)
        return target

    def _release(self, flushed: int) -> None:
        """Release pages that have become cold."""
        if flushed - _WARM_BYTES - self._warm_from >= _RELEASE_BYTES:
            self._cool(flushed - _WARM_BYTES)

    def _cool(self, stop: int) -> None:
        start = self._warm_from
        if stop > start:
            self._warm_from = stop  # first, so that concurrent reads there are counted as cold
            for file in self.queue.between(start, stop):
                self._release_cold(file)
