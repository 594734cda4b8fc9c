"""A consume queue: the commit-log positions of the messages of one queue of one topic. Derived from the log.

An entry is 20 bytes: int64 physical offset, int32 record size, int64 tags code. Entry n is at byte 20·n of the queue's
sequence of files. A queue that does not start at a file's beginning has fillers (0, 2147483647, 0) before its first
entry: its older files are gone, or it was rebuilt from a trimmed log.

An idle queue costs one small object, no descriptor and no mapping. A queue being written has its last file mapped. A
:class:`MappingCache` limits the mappings, first in, first out. Of a mapping, only the last few pages stay in memory:
most reads are of these. Older entries are read from the file, some more than asked for: the next pull continues there.

Thread-safety: one thread uses a queue; the flush thread calls only ``flush``.
After a crash: entries may be missing or, after a power failure, garbage beyond the flushed end; recovery.py rebuilds
them from the log. Corresponds to org.apache.rocketmq.store.ConsumeQueue.
"""

from __future__ import annotations

import mmap
import os
import resource
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.descriptors import ShortageError, sync_directory
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE, topic_field
from spark_rocket.store.log.mapped_file import KEEPS_DESCRIPTORS, MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

_FIRST_STEP_BYTES = 4096
_LAST_STEP_BYTES = 256 << 10
_WARM_BYTES = 16 << 10  # behind the writer, in memory for readers
_AHEAD_BYTES = 64 << 10  # touched ahead of the writer, as far as they are allocated
_READ_AHEAD_BYTES = 400 * ENTRY_SIZE  # of older entries, for a reader that continues
_MAX_READ_AHEAD = 1024  # queues with such entries in memory
_NO_MAPPING = bytearray()  # replaces the mapping while there is none; limit is -1 then


class MappingCache:
    """Limits the number of mapped consume queues. First in, first out: a busy queue is simply mapped again.

    If mappings hold descriptors, queues use at most a twentieth of the process's limit: half of what connections leave.
    The queues with entries read ahead are limited in the same way.
    """

    __slots__ = ("_mapped", "_read_ahead", "limit")

    def __init__(self, limit: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if KEEPS_DESCRIPTORS and soft != resource.RLIM_INFINITY:
            limit = min(limit, soft // 20)
        self.limit = max(limit, 1)
        self._mapped: dict[ConsumeQueue, None] = {}
        self._read_ahead: dict[ConsumeQueue, None] = {}

    def add(self, queue: ConsumeQueue) -> None:
        """Add a mapped queue; unmap others above the limit."""
        while len(self._mapped) >= self.limit:
            self._drop_first()
        self._mapped[queue] = None

    def map(self, file: MappedFile) -> mmap.mmap:
        """Return a file's mapping; unmap others if the system has no room for it. OSError if that is not enough."""
        while True:
            try:
                return file.mm
            except ShortageError:
                if not self._mapped:
                    raise
                self._drop_first()

    def _drop_first(self) -> None:
        next(iter(self._mapped)).unmap()

    def remove(self, queue: ConsumeQueue) -> None:
        self._mapped.pop(queue, None)

    def add_read_ahead(self, queue: ConsumeQueue) -> None:
        """Add a queue with entries read ahead; let another forget its own above the limit."""
        if queue not in self._read_ahead:
            if len(self._read_ahead) >= _MAX_READ_AHEAD:
                next(iter(self._read_ahead)).forget_read_ahead()
            self._read_ahead[queue] = None

    def remove_read_ahead(self, queue: ConsumeQueue) -> None:
        self._read_ahead.pop(queue, None)


class ConsumeQueue:
    """Entries of one queue, from ``min_offset``, the first one served, to before ``max_offset``."""

    __slots__ = (
        "_cache",
        "_checked",
        "_file",
        "_read_ahead",
        "_read_ahead_from",
        "dirty",
        "files",
        "flushed_offset",
        "limit",
        "loaded",
        "log_min_offset",
        "max_offset",
        "min_offset",
        "mm",
        "position",
        "queue_id",
        "topic",
        "topic_field",
        "unsynced_names",
        "verified_from",
    )

    def __init__(self, files: MappedFileQueue, topic: str, queue_id: int, cache: MappingCache) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.topic_field = topic_field(topic)
        self.files = files
        self._cache = cache
        self.max_offset = 0
        self.min_offset = 0
        self.flushed_offset = 0
        self.dirty = False
        self.unsynced_names = False
        self.loaded = False
        self._checked = (0, 0)  # a range of older entries whose records were valid when they were read
        self._read_ahead = b""  # copies of older entries, from this byte of the queue on
        self._read_ahead_from = 0
        self.verified_from = 0  # entries from here on are known to match the log; see old_records.py
        self.log_min_offset = -2  # the log's beginning that min_offset was corrected for; -2: none, not loaded
        # The writer's position: entries go to mm[position:], up to limit without a call of make_room().
        self._file: MappedFile | None = None
        self.mm: mmap.mmap | bytearray = _NO_MAPPING
        self.position = 0
        self.limit = -1

    # --- opening ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files, the first entry and the end: the first empty entry (binary search).

        A queue with missing or invalid files, which only a read-only open has, counts as empty.
        """
        self.files.load()
        if self.files.is_sound:
            self._find_entries()
        self.verified_from = self.max_offset
        self.loaded = True  # last: after a failure the queue must not count as empty

    def _find_entries(self) -> None:
        per_file = self.files.file_size // ENTRY_SIZE
        head = b""
        while self.files.files:
            last = self.files.files[-1]
            used, head = self._used(last, per_file)
            if used or len(self.files.files) == 1:
                self._set_end(last.file_from_offset // ENTRY_SIZE + used)
                break
            self.files.drop_last()  # created, but never written to
        else:
            self._set_end(0)
        self.min_offset = self._first_entry(head if len(self.files.files) == 1 else b"")

    def _used(self, file: MappedFile, per_file: int) -> tuple[int, bytes]:
        """Return the number of entries in a file, and its first bytes."""
        with file.descriptor() as fd:
            head = os.pread(fd, _FIRST_STEP_BYTES, 0)
            in_head = len(head) // ENTRY_SIZE
            if ENTRY.unpack_from(head, (in_head - 1) * ENTRY_SIZE)[1] > 0:
                return _first(in_head, per_file, lambda at: _is_empty(os.pread(fd, ENTRY_SIZE, at * ENTRY_SIZE))), head
        return _first(0, in_head, lambda at: _is_empty(head[at * ENTRY_SIZE :])), head  # most queues are short

    def _first_entry(self, head: bytes) -> int:
        """Return the first entry that is not a filler; ``head``: the first file's first bytes, if already read."""
        low = self.files.min_offset // ENTRY_SIZE
        high = min(self.max_offset, low + self.files.file_size // ENTRY_SIZE)
        if low == high or (ENTRY.unpack_from(head) if head else self.entry(low))[1] != FILLER_SIZE:
            return low
        return _first(low, high, lambda at: self.entry(at)[1] != FILLER_SIZE)

    def _set_end(self, max_offset: int) -> None:
        self.max_offset = self.flushed_offset = max_offset
        self.limit = -1

    def start_at(self, offset: int) -> None:
        """Start a queue without files at ``offset``."""
        self.max_offset = self.min_offset = self.flushed_offset = offset
        self.limit = -1

    def continue_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``, and create its file, from which the next start knows the offset."""
        self.start_at(offset)
        with suppress(OSError):  # a full disk: the next start then finds the same state as this one
            self.make_room(1)
        self.flushed_offset = offset - 1  # so that the file gets flushed

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Advance ``min_offset`` past entries whose records are before the log's beginning."""
        self.min_offset = self._first_from(min_physical_offset)

    def trim(self, min_physical_offset: int) -> list[MappedFile]:
        """Drop entries before the log's new beginning; return the files without later entries.

        The caller destroys these files.
        """
        self.correct_min_offset(min_physical_offset)
        return self.files.remove_before(self.min_offset * ENTRY_SIZE)

    def _first_from(self, physical_offset: int) -> int:
        """Return the first entry whose record is at or after a physical offset."""
        return _first(self.min_offset, self.max_offset, lambda at: self.entry(at)[0] >= physical_offset)

    def count_between(self, start: int, stop: int) -> int:
        """Return the number of entries whose records are in a range of physical offsets."""
        return self._first_from(stop) - self._first_from(start)

    # --- writing ------------------------------------------------------------------------------------------------

    def make_room(self, count: int) -> None:
        """Ensure room for ``count`` more entries. OSError if the disk is full; nothing was changed then."""
        if self.position + count * ENTRY_SIZE <= self.limit:
            return
        start = self.max_offset * ENTRY_SIZE
        end = start + count * ENTRY_SIZE
        size = self.files.file_size
        if not self.files.files:
            self._add(start - start % size, start % size)
            self.min_offset = self.max_offset
        while self.files.end_offset < end:
            self._add(self.files.end_offset)
        offset = start
        while offset < end:
            file = self.files.find(offset)
            assert file is not None
            stop = min(end, file.file_from_offset + size)
            within = stop - file.file_from_offset
            step = min(max(file.allocated, _FIRST_STEP_BYTES), _LAST_STEP_BYTES)
            file.reserve(within, step - _FIRST_STEP_BYTES)
            self._cache.map(file)  # now, because nothing may fail once the records are in the log
            file.touch(offset - file.file_from_offset, within + _AHEAD_BYTES)
            offset = stop
        file = self._write_at(start)
        self.limit = min(file.allocated, self.position + _AHEAD_BYTES)

    def _write_at(self, offset: int) -> MappedFile:
        """Move the writer's position to ``offset``, with only warm pages in memory and no room reserved after it."""
        file = self.files.find(offset)
        assert file is not None
        if file is not self._file:
            self.unmap()
            self.mm = self._cache.map(file)
            self._file = file
            self._cache.add(self)
        self.position = offset - file.file_from_offset
        file.release_pages(self.position - _WARM_BYTES)
        self.limit = -1
        return file

    def _add(self, offset: int, blank: int = 0) -> None:
        """Create the next file; fill ``blank`` bytes at its beginning with fillers."""
        file = self.files.create(offset)
        if blank:
            file.reserve(blank)
            file.touch(0, blank)
            file.mm[:blank] = FILLER * (blank // ENTRY_SIZE)
            file.unmap()
        self.files.add(file)
        self.unsynced_names = True

    def append(self, entries: bytes) -> None:
        """Write entries, possibly to several files; the caller has made room for them."""
        position = self.position
        end = position + len(entries)
        if end > self.files.file_size:
            self._append_to_several(entries)
            return
        self.mm[position:end] = entries
        self.position = end
        self.max_offset += len(entries) // ENTRY_SIZE

    def _append_to_several(self, entries: bytes) -> None:
        while entries:
            room = self.files.file_size - self.position
            self.append(entries[:room])
            entries = entries[room:]
            if entries:
                self._write_at(self.max_offset * ENTRY_SIZE)

    def truncate(self, max_offset: int) -> None:
        """Drop the entries from ``max_offset`` on; the rest of their file becomes zero."""
        self.unmap()
        self.forget_read_ahead()
        if max_offset <= self.min_offset:
            self.files.truncate(0)
            self.min_offset = max_offset
        else:
            self.files.truncate(max_offset * ENTRY_SIZE)
        self.max_offset = max_offset
        self.flushed_offset = min(self.flushed_offset, max_offset - 1)  # the cut itself must be flushed as well
        self.unsynced_names = True
        self._checked = (0, 0)

    def cut(self, physical_offset: int) -> bool:
        """Drop the entries of records at or after a physical offset; return whether there were any."""
        if self.max_offset == self.min_offset or self.entry(self.max_offset - 1)[0] < physical_offset:
            return False
        self.truncate(self._first_from(physical_offset))
        return True

    def mark_unflushed(self, physical_offset: int) -> None:
        """Flush entries of records from an offset on, and the files' names, again: they may be in memory only."""
        if self.max_offset > self.min_offset and self.entry(self.max_offset - 1)[0] >= physical_offset:
            self.flushed_offset = min(self.flushed_offset, self._first_from(physical_offset))
            self.unsynced_names = True

    def has_data_behind(self) -> bool:
        """Return whether there are nonzero bytes after the last entry."""
        end = self.max_offset * ENTRY_SIZE
        return any(
            file.has_data(max(end - file.file_from_offset, 0))
            for file in self.files.files
            if file.file_from_offset + file.size > end
        )

    # --- reading ------------------------------------------------------------------------------------------------

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return an entry's physical offset, size and tags code. Maps nothing, since start reads every queue."""
        file = self.files.find(offset * ENTRY_SIZE)
        if file is None:
            raise StoreCorruptError(
                f"{self.files.directory} has no file for entry {offset}.",
                remedy="Stop the broker and run `rocket store rebuild`, which rebuilds the queues from the log.",
            )
        found: tuple[int, int, int] = ENTRY.unpack(file.read(offset * ENTRY_SIZE - file.file_from_offset, ENTRY_SIZE))
        return found

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of up to ``count`` entries from ``offset`` on."""
        start = offset * ENTRY_SIZE
        end = min(offset + count, self.max_offset) * ENTRY_SIZE
        current = self._file
        if current is not None and start >= current.file_from_offset + max(self.position - _WARM_BYTES, 0):
            base = current.file_from_offset
            return current.mm[start - base : end - base]
        return self._read_old(start, end)

    def _read_old(self, start: int, end: int) -> bytes:
        """Return the bytes of older entries, from memory if they were read ahead."""
        within = start - self._read_ahead_from
        if within >= 0 and within + end - start <= len(self._read_ahead):
            return self._read_ahead[within : within + end - start]
        if end - start >= _READ_AHEAD_BYTES:
            return self._read_files(start, end)
        self._read_ahead = self._read_files(start, min(start + _READ_AHEAD_BYTES, self.max_offset * ENTRY_SIZE))
        self._read_ahead_from = start
        self._cache.add_read_ahead(self)
        return self._read_ahead[: max(end - start, 0)]

    def _read_files(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            file = self.files.find(start)
            if file is None:
                break
            stop = min(end, file.file_from_offset + file.size)
            parts.append(file.read(start - file.file_from_offset, stop - start))
            start = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget_read_ahead(self) -> None:
        """Drop the copies of older entries."""
        self._read_ahead = b""
        self._cache.remove_read_ahead(self)

    def was_checked(self, offset: int, count: int) -> bool:
        """Return whether the records of these entries were checked before; see old_records.py."""
        first, end = self._checked
        return first <= offset and offset + count <= end

    def note_checked(self, offset: int, count: int) -> None:
        """Remember that the records of these entries are valid. Only one range: most readers are sequential."""
        first, end = self._checked
        self._checked = (first, max(end, offset + count)) if first <= offset <= end else (offset, offset + count)

    # --- flushing and closing -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush the entries written so far, and the names of new files. Only for the flush thread."""
        target = self.max_offset
        if self.unsynced_names:
            self.unsynced_names = False  # first: the writer may create another file meanwhile
            directory = self.files.directory
            try:
                for path in (directory, directory.parent, directory.parent.parent):
                    sync_directory(path)
            except OSError:
                self.unsynced_names = True
                raise
        for file in self.files.files:
            end = file.file_from_offset + file.size
            if self.flushed_offset * ENTRY_SIZE < end and file.file_from_offset < target * ENTRY_SIZE:
                file.flush()
        self.flushed_offset = target

    @property
    def unflushed(self) -> int:
        """Number of entries that are not known to be on disk."""
        return self.max_offset - self.flushed_offset

    def unmap(self) -> None:
        """Unmap the file being written; the next entry maps it again."""
        if self._file is not None:
            self._file.unmap()
            self._cache.remove(self)
        self._file, self.mm = None, _NO_MAPPING
        self.limit = -1

    def close(self) -> None:
        self.unmap()
        self.forget_read_ahead()

    def destroy(self) -> None:
        """Delete the queue's files and its directory."""
        self.close()
        for file in self.files.files:
            file.destroy()
        self.files.files = []
        if self.files.directory.is_dir():
            self.files.directory.rmdir()


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first offset in a range from which on a condition holds; ``high`` if it never does."""
    return low + bisect_left(range(low, high), True, key=holds)


def _is_empty(entry: bytes) -> bool:
    size: int = ENTRY.unpack_from(entry)[1]
    return size <= 0
