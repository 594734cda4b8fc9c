"""The commit log: every message of every queue, in the order of arrival. The truth that all else is derived from.

A record never crosses a file's end. When record + 8 bytes do not fit in what is left of the file, the writer puts a
blank record there (int32 rest, magic 0xCBD43194) and goes on in the next file; so does a whole batch.

Disk blocks are taken and pages touched ahead of the writer by the allocator thread, a few MiB at a time, and the next
file is made before it is needed: a first write to a cold page costs a hundred times a warm one, and a roll-over would
otherwise stall every sender. Should the thread fall behind, or fail, the writer does it itself, and it is here that a
full disk is noticed (``OSError``), before a byte is written. Touching asks for the page as a write would: a disk that
does not give the blocks it has promised (copy-on-write, quotas, thin disks) refuses here, too, where a write through
the mapping would end the process.

Readers copy from mappings too. So that memory does not grow with the log, only its end stays in this process's memory:
the last 64 MiB that are on disk, and what is not there yet. What is read of older bytes is given back, 64 MiB at a
time. All of it stays in the kernel's page cache.

Thread-safety: one writer (``make_room``, writes, ``advance``). ``max_offset`` is set after the bytes are there: other
threads may read anything below it. ``flush`` is for one thread at a time.
After a crash: see recovery.py. A record's first four bytes are written last, so that a process killed in between leaves
what reads as the end of the log.
Corresponds to org.apache.rocketmq.store.CommitLog and AllocateMappedFileService.
"""

from __future__ import annotations

import logging
import mmap
import threading

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.layout import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

Bytes = bytes | bytearray | memoryview

_log = logging.getLogger(__name__)
_MOST_DAMAGED = 10_000  # places that are told of
_WARM = 64 << 20  # flushed bytes behind the writer that stay in memory, for readers at the tail
_RELEASE = 8 << 20  # at a time
_AROUND = 64 << 10  # the kernel maps so many bytes around one that is read
_MOST_COLD = 8  # files of old bytes that are mapped
_MOST_WARM = 4  # and of new ones, should they be so small


class CommitLog:
    """The log's files, the writer's place in them, and how far they are on disk."""

    def __init__(self, config: StoreConfig) -> None:
        self._ahead = min(config.allocate_ahead, config.mapped_file_size_commit_log)
        self.file_size = config.mapped_file_size_commit_log
        self.queue = MappedFileQueue(config.commit_log_path, self.file_size, setting="mappedFileSizeCommitLog")
        self.max_offset = 0
        self.flushed_where = 0
        self._warm_from = 0
        self._cold: set[MappedFile] = set()  # files of which bytes below were read,
        self._cold_bytes = 0  # and how many
        self._damaged: set[int] = set()
        # The writer's place: records go to mm[position:]; up to soft_limit without asking make_room().
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
        self.queue.load()

    def open_at(self, max_offset: int, *, flushed: int) -> None:
        """Go on writing at ``max_offset``, which recovery found; nothing but zeros lies behind it.

        ``flushed``: everything below is known to be on disk, and not only in memory.
        """
        file = self.queue.find(max_offset)
        if file is None and self.queue.files and max_offset != self.queue.end_offset:
            raise StoreCorruptError(
                f"{self.queue.directory} ends at offset {self.queue.end_offset}, before {max_offset}.",
                remedy="Put the missing files back and start again.",
            )
        self._current = file
        self.base = file.file_from_offset if file else max_offset
        self.position = max_offset - self.base
        self.soft_limit = 0
        self.max_offset = self._warm_from = max_offset
        self.flushed_where = flushed

    def start(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._allocate, name="store-allocate", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the allocator and remove the file that it made and nobody used."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._next is not None:
            if self._next.file_from_offset >= self.queue.end_offset:
                self._next.destroy()
            else:  # would be a file of the log: never delete such a one
                self._next.close()
            self._next = None

    def close(self) -> None:
        self.shutdown()
        self._current = None
        self.queue.close()

    # --- writing ------------------------------------------------------------------------------------------------

    @property
    def mm(self) -> mmap.mmap:
        """The mapping of the file being written; only after ``make_room``."""
        assert self._current is not None
        return self._current.mm

    def fits(self, size: int) -> bool:
        """Whether a record or batch of this size can be stored at all."""
        return size + BLANK_SIZE <= self.file_size

    def make_room(self, size: int) -> None:
        """Have ``size`` writable bytes at ``position``, in the next file if need be. OSError: nothing was changed."""
        need = size + BLANK_SIZE
        if self.position + need <= self.soft_limit:
            return
        file = self._current
        if file is None or self.position + need > self.file_size:
            file = self._roll(need)
        end = self.position + need
        file.reserve(end)
        self._wake.set()
        is_whole = file.allocated == self.file_size and self._next is not None
        limit = self.file_size if is_whole else max(end, file.allocated - self._ahead // 2)
        file.touch(self.position, limit)
        self.soft_limit = limit

    def _roll(self, need: int) -> MappedFile:
        """Go on in the next file, behind a blank record in this one; whatever can fail is done first.

        The lock is kept until the file is the current one: the allocator must never find it to be neither the next
        nor the current, or it makes the same file once more, as one that nobody uses.
        """
        with self._next_lock:
            last, position = self._current, self.position
            if last is not None:
                last.reserve(position + BLANK_SIZE)
            file = self._next or self._create(self.queue.end_offset if self.queue.files else self.base + position)
            self._next = file  # kept should the reservation fail: it is taken at the next attempt
            _ = file.mm
            file.reserve(need)
            if last is not None:
                SIZE_AND_MAGIC.pack_into(last.mm, position, self.file_size - position, MAGIC_BLANK)
            self._next = None
            self.queue.add(file)
            self._current = file
            self.base, self.position, self.max_offset = file.file_from_offset, 0, file.file_from_offset
            self.soft_limit = 0
            self._cool(self.base - (_MOST_WARM - 1) * self.file_size)
            return file

    def write(self, records: Bytes) -> None:
        """Write a run at ``position``, its first four bytes last; there is room."""
        position, view = self.position, memoryview(records)
        self.mm[position + 4 : position + len(view)] = view[4:]
        self.mm[position : position + 4] = view[:4]

    def end_file(self, rest: Bytes) -> None:
        """Go on in the next file: ``rest``, from the blank record on, is all that is left of this one.

        For a replica: who writes messages has this done by ``make_room``. OSError: nothing was changed.
        """
        file, behind = self._current, bytes(rest[BLANK_SIZE:])
        assert file is not None
        if behind.count(0) != len(behind):  # as an Apache broker that was killed before may leave it
            file.reserve(self.file_size)
            file.touch(self.position, self.file_size)
            file.mm[self.position + BLANK_SIZE :] = behind
        try:
            self._roll(BLANK_SIZE)
        except OSError:
            self.take_back(len(rest))
            raise

    def take_back(self, size: int) -> None:
        """Put zeros over a run just written at ``position`` that nobody was shown."""
        if self._current is not None and self._current.has_data(self.position):
            self.mm[self.position : self.position + size] = bytes(size)

    def cut(self, offset: int) -> None:
        """Forget everything from an offset on, where a record begins. Nobody may flush or read there meanwhile."""
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
        """The writer has written ``size`` bytes at ``position``: let others see them."""
        self.position += size
        self.max_offset = self.base + self.position

    def _allocate(self) -> None:
        """The allocator thread: disk blocks and warm pages ahead of the writer, the next file before it is needed."""
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
            except OSError as error:  # the writer meets the same error and refuses; this thread only helps
                if not failed:
                    _log.warning("no room could be made ahead in %s: %s", file.path, error)
                failed = True

    def _prepare_next(self, file: MappedFile) -> None:
        """Make the file behind ``file``, unless the writer has been there meanwhile."""
        with self._next_lock:
            offset = file.file_from_offset + self.file_size
            if self._next is not None or offset != self.queue.end_offset:
                return
            self._next = made = self._create(offset)
        self._extend(made, self._ahead)  # the writer may have it already: what takes long is done without the lock
        self._sync_names()

    def _create(self, offset: int) -> MappedFile:
        file = self.queue.create(offset, sync=False)
        self._names_made += 1
        return file

    def _sync_names(self) -> None:
        """A new file is safe only when its directory is. The allocator sees to it; who flushes makes sure."""
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
        """A copy of bytes that lie in one file; empty when they are not there."""
        file = self.queue.find(offset)
        if file is None or size < 0 or offset + size > self.max_offset:
            return b""
        start = offset - file.file_from_offset
        data = file.mm[start : start + size]
        if offset < self._warm_from:
            self._note_cold(file, size)
        return data

    def read_up_to(self, offset: int, limit: int) -> bytes:
        """A copy of up to ``limit`` bytes from an offset on; fewer at the end of a file or of the log."""
        file = self.queue.find(offset)
        if file is None:
            return b""
        return self.read(offset, min(limit, self.max_offset - offset, file.file_from_offset + file.size - offset))

    def read_many(self, starts: list[int], stops: list[int]) -> bytes:
        """Copies of ranges in ascending order, each within one file, joined."""
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
        """Cold bytes were read; when they are many, give the memory back."""
        self._cold.add(file)
        self._cold_bytes += size + _AROUND
        if self._cold_bytes > _WARM or len(self._cold) > _MOST_COLD:
            for cold in self._cold:
                self._let_go(cold)
            self._cold.clear()
            self._cold_bytes = 0

    def _let_go(self, file: MappedFile) -> None:
        """Have none of a file's cold pages in memory."""
        if file.file_from_offset + file.size <= self._warm_from:
            file.unmap()
        else:
            file.release_pages(0, self._warm_from - file.file_from_offset)

    def report_damage(self, offset: int, what: str) -> None:
        """Say in the log, once, that no good record stands at an offset where one should."""
        if offset in self._damaged or len(self._damaged) >= _MOST_DAMAGED:
            return
        self._damaged.add(offset)
        file = self.queue.find(offset)
        if file is not None:
            _log.error(
                "%s at byte %d (offset %d): the record is damaged; %s. Restore the file from a copy; "
                "`rocket store check` tells all that is damaged.",
                file.path,
                offset - file.file_from_offset,
                offset,
                what,
            )

    # --- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Put everything below the present ``max_offset`` on disk; returns that offset. OSError when the disk fails."""
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
        """Let pages go that are cold now."""
        if flushed - _WARM - self._warm_from >= _RELEASE:
            self._cool(flushed - _WARM)

    def _cool(self, stop: int) -> None:
        start = self._warm_from
        if stop > start:
            self._warm_from = stop  # first, so that nobody reads there meanwhile without a word
            for file in self.queue.between(start, stop):
                self._let_go(file)
