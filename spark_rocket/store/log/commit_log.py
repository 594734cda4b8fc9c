"""The commit log: every message of every queue, in the order of arrival. The truth that all else is derived from.

A record never crosses a file's end. When record + 8 bytes do not fit in what is left of the file, the writer puts a
blank record there (int32 rest, magic 0xCBD43194) and goes on in the next file; so does a whole batch.

Disk blocks are taken and pages touched ahead of the writer by the allocator thread, a few MiB at a time, and the next
file is made before it is needed: a first write to a cold page costs a hundred times a warm one, and a roll-over would
otherwise stall every sender. Should the thread fall behind, or fail, the writer takes blocks itself, and it is here
that a full disk is noticed (``OSError``), before a byte is written. Long batches go to the file and not through the
mapping, which saves zeroing and mapping their pages: while most bytes come like that, none are touched ahead. A disk
may refuse these although it has promised the blocks (copy-on-write, quotas, thin disks): then the batch is refused, for
through the mapping the same shortage would be the process's end, and nothing is written before zeros are there again.

Readers copy from mappings too. So that memory does not grow with the log, only its end stays in this process's memory:
the last 64 MiB that are on disk, and what is not there yet. Older bytes that readers want are there by windows of
1 MiB, 64 of them, first in, first out; a file without a window is unmapped. All of it stays in the kernel's page cache.

Thread-safety: one writer (``make_room``, writes, ``advance``). ``max_offset`` is set after the bytes are there: other
threads may read anything below it. ``flush`` is for one thread at a time.
After a crash: see recovery.py. A record's first four bytes are written last, so that a process killed in between leaves
what reads as the end of the log.
Corresponds to org.apache.rocketmq.store.CommitLog and AllocateMappedFileService.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections import OrderedDict
from contextlib import suppress

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.layout import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.log.mapped_file import MappedFile, sync_data, sync_directory
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

Bytes = bytes | bytearray | memoryview

_log = logging.getLogger(__name__)
_MOST_DAMAGED = 10_000  # places that are told of
_LONG_RUN = 64 << 10  # from here on a batch is written past the mapping
_WARM = 64 << 20  # flushed bytes behind the writer that stay in memory, for readers at the tail
_RELEASE = 8 << 20  # at a time
_ZEROS = bytes(1 << 20)
_WINDOW = 1 << 20
_WINDOWS = 64
_LARGE = 64 << 10
_SPARSE = 64 << 10  # cold ranges that lie further apart are read from the file: nothing else is wanted of their pages


class CommitLog:
    """The log's files, the writer's place in them, and how far they are on disk."""

    def __init__(self, config: StoreConfig) -> None:
        self._ahead = min(config.allocate_ahead, config.mapped_file_size_commit_log)
        self.file_size = config.mapped_file_size_commit_log
        self.queue = MappedFileQueue(config.commit_log_path, self.file_size, setting="mappedFileSizeCommitLog")
        self.max_offset = 0
        self.flushed_where = 0
        self._warm_from = 0
        self._windows: OrderedDict[int, None] = OrderedDict()  # below _warm_from, by offset // _WINDOW
        self._damaged: set[int] = set()
        # The writer's place: records go to mm[position:]; up to soft_limit without asking make_room().
        self.base = 0
        self.position = 0
        self.soft_limit = 0
        self.written_past_mapping = 0  # bytes, since the start
        self._left_behind = 0  # bytes behind ``position`` that a refused run left there
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
        if self._left_behind:
            self.wipe()
        file = self._current
        need = size + BLANK_SIZE
        if file is None or self.position + need > self.file_size:
            file = self._roll(need)
        end = self.position + need
        file.reserve(end)
        _ = file.mm  # mapped now: nothing may fail while a record is written
        self._wake.set()
        if file.allocated == self.file_size and self._next is not None:
            self.soft_limit = self.file_size
        else:
            self.soft_limit = max(end, file.allocated - self._ahead // 2)

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
            return file

    def write(self, records: Bytes) -> None:
        """Write a run at ``position``, its first four bytes last; there is room. OSError: there is no run.

        A long run goes to the file and not through the mapping: pages that are written whole need not be zeroed and
        mapped first.
        """
        position, size, mm = self.position, len(records), self.mm
        view = memoryview(records)
        if size < _LONG_RUN:
            mm[position + 4 : position + size] = view[4:]
            mm[position : position + 4] = view[:4]
            return
        assert self._current is not None
        done = 4
        try:
            with self._current.descriptor() as fd:
                while done < size:
                    done += os.pwrite(fd, view[done:], position + done)
                if os.pwrite(fd, view[:4], position) < 4:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._current.path))
        except OSError:
            self._left_behind = done if done > 4 else 0
            self.soft_limit = 0  # the next put comes by make_room(), which wipes what is left
            with suppress(OSError):
                self.wipe()
            raise
        self.written_past_mapping += size

    def end_file(self, rest: Bytes) -> None:
        """Go on in the next file: ``rest``, from the blank record on, is all that is left of this one.

        For a replica: who writes messages has this done by ``make_room``. OSError: nothing was changed.
        """
        file = self._current
        assert file is not None
        if self._left_behind:
            self.wipe()
        file.reserve(self.position + BLANK_SIZE)
        behind = bytes(rest[BLANK_SIZE:])
        try:
            if behind.count(0) != len(behind):  # as an Apache broker that was killed before may leave it
                with file.descriptor() as fd:
                    os.pwrite(fd, behind, self.position + BLANK_SIZE)
            self._roll(BLANK_SIZE)
        except OSError:
            self.take_back(len(rest))
            raise
        self.soft_limit = 0

    def take_back(self, size: int) -> None:
        """Forget a run just written at ``position`` that nobody was shown."""
        self._left_behind = max(self._left_behind, size)
        self.soft_limit = 0
        with suppress(OSError):
            self.wipe()

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
            self.soft_limit = self._left_behind = 0
            self.max_offset = offset
            self.flushed_where = min(self.flushed_where, offset)
            self._warm_from = min(self._warm_from, offset)
            for window in [window for window in self._windows if window >= offset // _WINDOW]:
                del self._windows[window]
            self._damaged = {place for place in self._damaged if place < offset}

    def wipe(self) -> None:
        """Zeros over what a refused run left behind ``position``: nothing may lie behind the end of a stopped log."""
        if not self._left_behind:
            return
        assert self._current is not None
        with self._current.descriptor() as fd:
            while self._left_behind > 0:
                start = max(self._left_behind - len(_ZEROS), 0)
                count = self._left_behind - start
                if os.pwrite(fd, _ZEROS[:count], self.position + start) < count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._current.path))
                self._left_behind = start
            sync_data(fd)

    def advance(self, size: int) -> None:
        """The writer has written ``size`` bytes at ``position``: let others see them."""
        self.position += size
        self.max_offset = self.base + self.position

    def _allocate(self) -> None:
        """The allocator thread: disk blocks and warm pages ahead of the writer, the next file before it is needed."""
        failed = False
        seen, seen_past = self.max_offset, self.written_past_mapping
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stop:
                return
            file = self._current
            if file is None:
                continue
            offset, past = self.max_offset, self.written_past_mapping
            touch = 2 * (past - seen_past) <= offset - seen  # mapped pages are of use to who writes through the mapping
            seen, seen_past = offset, past
            try:
                self._extend(file, min(self.position + self._ahead, self.file_size), touch=touch)
                if self.file_size - self.position < max(2 * self._ahead, self.file_size // 8) and self._next is None:
                    self._prepare_next(file, touch=touch)
                failed = False
            except OSError as error:  # the writer meets the same error and refuses; this thread only helps
                if not failed:
                    _log.warning("no room could be made ahead in %s: %s", file.path, error)
                failed = True

    def _prepare_next(self, file: MappedFile, *, touch: bool = True) -> None:
        """Make the file behind ``file``, unless the writer has been there meanwhile."""
        with self._next_lock:
            offset = file.file_from_offset + self.file_size
            if self._next is not None or offset != self.queue.end_offset:
                return
            self._next = made = self._create(offset)
        self._extend(
            made, self._ahead, touch=touch
        )  # the writer may have it already: what takes long is done without the lock
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
    def _extend(file: MappedFile, end: int, *, touch: bool) -> None:
        start = file.allocated
        if end > start:
            file.reserve(end)
            if touch:
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
        if offset < self._warm_from:
            self._visit(offset, offset + size)
        start = offset - file.file_from_offset
        return file.mm[start : start + size]

    def read_up_to(self, offset: int, limit: int) -> bytes:
        """A copy of up to ``limit`` bytes from an offset on; fewer at the end of a file or of the log."""
        file = self.queue.find(offset)
        if file is None:
            return b""
        return self.read(offset, min(limit, self.max_offset - offset, file.file_from_offset + file.size - offset))

    def read_many(self, starts: list[int], stops: list[int]) -> bytes | memoryview:
        """Copies of ranges, each within one file, joined."""
        file = self.queue.find(starts[0])
        if len(starts) == 1 or file is None:
            return self.read(starts[0], stops[0] - starts[0])
        base = file.file_from_offset
        low, high = min(starts), max(stops)
        if low >= base and high <= min(base + self.file_size, self.max_offset):  # nearly always
            if low < self._warm_from:
                if high - low > len(starts) * _SPARSE:
                    return self._read_apart(file, [(a - base, b - base) for a, b in zip(starts, stops, strict=True)])
                self._visit(low, high)
            ranges = zip(starts, stops, strict=True)
            if stops[0] - starts[0] < _LARGE:
                mm = file.mm
                return b"".join([mm[start - base : stop - base] for start, stop in ranges])
            with memoryview(file.mm) as view:  # slices of which are no copies, but dearer to make
                return b"".join([view[start - base : stop - base] for start, stop in ranges])
        return b"".join([self.read(start, stop - start) for start, stop in zip(starts, stops, strict=True)])

    @staticmethod
    def _read_apart(file: MappedFile, ranges: list[tuple[int, int]]) -> bytes | memoryview:
        """Ranges of a file that is not mapped for it. Many bytes are read to their places instead of being joined."""
        total = sum(stop - start for start, stop in ranges)
        with file.descriptor() as fd:
            if total < _LARGE:
                return b"".join([os.pread(fd, stop - start, start) for start, stop in ranges])
            joined = np.empty(total, np.uint8).data
            at = 0
            for start, stop in ranges:
                read = os.preadv(fd, (joined[at : at + stop - start],), start)
                at += read
                if read < stop - start:
                    break
        return joined[:at]

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

    def _visit(self, start: int, stop: int) -> None:
        """Somebody is going to read cold bytes: of those that were read before, let the oldest go."""
        windows = self._windows
        for window in range(start // _WINDOW, (stop - 1) // _WINDOW + 1):
            if window not in windows:
                windows[window] = None
                if len(windows) > _WINDOWS:
                    self._leave(windows.popitem(last=False)[0])

    def _leave(self, window: int) -> None:
        start, stop = window * _WINDOW, min((window + 1) * _WINDOW, self._warm_from)
        for file in self.queue.between(start, stop):
            base, end = file.file_from_offset, file.file_from_offset + file.size
            first, last = base // _WINDOW, (end - 1) // _WINDOW
            if end <= self._warm_from and not any(first <= other <= last for other in self._windows):
                file.unmap()
            else:
                file.release_pages(max(start - base, 0), stop - base)

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
        start, stop = self._warm_from, flushed - _WARM
        if stop - start < _RELEASE:
            return
        self._warm_from = stop  # first, so that nobody reads there meanwhile without a word
        for file in self.queue.between(start, stop):
            base = file.file_from_offset
            if base + file.size <= stop:
                file.unmap()
            else:
                file.release_pages(max(start - base, 0), stop - base)
