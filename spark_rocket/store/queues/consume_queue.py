"""A consume queue: where in the commit log the messages of one queue of one topic are. Derived from the log.

An entry is 20 bytes: int64 physical offset, int32 record size, int64 tags code. Entry n stands at byte 20·n of the
queue's row of files. A queue that does not begin at a file's beginning (older files are gone, or it was rebuilt from
a shortened log) has fillers (0, 2147483647, 0) before its first entry.

A queue that nobody uses costs one small object, no descriptor and no memory. One that is written to has its last file
mapped; a :class:`MappingCache` unmaps the first in when there are too many. Of the mapping, memory is kept for the last
few pages only: what readers want nearly always is there, and what is behind is read from the file.

Thread-safety: one thread uses a queue; the flush thread calls ``flush`` only.
After a crash: entries may be missing or, after a power failure, garbage behind what was flushed; recovery.py makes them
anew from the log. Corresponds to org.apache.rocketmq.store.ConsumeQueue.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.descriptors import ShortageError, sync_directory
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE, topic_field
from spark_rocket.store.log.mapped_file import KEEPS_DESCRIPTORS, MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

_FIRST_STEP = 4096
_LAST_STEP = 256 << 10
_WARM = 16 << 10  # bytes behind the writer that readers find in memory
_NOTHING = bytearray()  # stands for the mapping while there is none; limit is -1 then


class MappingCache:
    """Bounds how many consume queues are mapped. First in, first out: a busy one is simply mapped again.

    Where mappings keep descriptors, queues have a twentieth of those that the process may have, at the most: half of
    what connections leave.
    """

    __slots__ = ("_mapped", "limit")

    def __init__(self, limit: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if KEEPS_DESCRIPTORS and soft != resource.RLIM_INFINITY:
            limit = min(limit, soft // 20)
        self.limit = max(limit, 1)
        self._mapped: dict[ConsumeQueue, None] = {}

    def add(self, queue: ConsumeQueue) -> None:
        while len(self._mapped) >= self.limit:
            self._drop_first()
        self._mapped[queue] = None

    def map(self, file: MappedFile) -> mmap.mmap:
        """A file's mapping; others make way for it if need be. OSError if it cannot be mapped all the same."""
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


class ConsumeQueue:
    """Entries of one queue. ``max_offset`` is the next entry's number, ``min_offset`` the first that is served."""

    __slots__ = (
        "_cache",
        "_checked",
        "_file",
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

    def __init__(self, directory: Path, topic: str, queue_id: int, file_size: int, cache: MappingCache) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.topic_field = topic_field(topic)
        self.files = MappedFileQueue(directory, file_size, setting="mappedFileSizeConsumeQueue", derived=True)
        self._cache = cache
        self.max_offset = 0
        self.min_offset = 0
        self.flushed_offset = 0
        self.dirty = False
        self.unsynced_names = False
        self.loaded = False
        self._checked = (0, 0)  # a range of older ones whose records were found good when they were read
        self.verified_from = 0  # entries from here on are known to say what the log says; see old_records.py
        self.log_min_offset = -2  # the log's beginning that min_offset is corrected for; -2: for none, not loaded
        # The writer's place: entries go to mm[position:], up to limit without asking make_room().
        self._file: MappedFile | None = None
        self.mm: mmap.mmap | bytearray = _NOTHING
        self.position = 0
        self.limit = -1

    # --- opening ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files, the first entry and the end. The end is where the first empty entry is (binary search)."""
        self.files.load()
        per_file = self.files.file_size // ENTRY_SIZE
        head = b""
        while self.files.files:
            last = self.files.files[-1]
            used, head = self._used(last, per_file)
            if used or len(self.files.files) == 1:
                self._set_end(last.file_from_offset // ENTRY_SIZE + used)
                break
            last.destroy()  # made, and never written to
            self.files.files = self.files.files[:-1]
        else:
            self._set_end(0)
        self.min_offset = self._first_entry(head if len(self.files.files) == 1 else b"")
        self.verified_from = self.max_offset
        self.loaded = True  # last: should anything fail, the queue is not taken for an empty one

    def _used(self, file: MappedFile, per_file: int) -> tuple[int, bytes]:
        """How many entries there are in a file, and its beginning."""
        with file.descriptor() as fd:
            head = os.pread(fd, _FIRST_STEP, 0)
            in_head = len(head) // ENTRY_SIZE
            if ENTRY.unpack_from(head, (in_head - 1) * ENTRY_SIZE)[1] > 0:
                return self._search(in_head, per_file, lambda at: os.pread(fd, ENTRY_SIZE, at)), head
        return self._search(0, in_head, lambda at: head[at : at + ENTRY_SIZE]), head  # most queues are short

    @staticmethod
    def _search(low: int, high: int, read: Callable[[int], bytes]) -> int:
        """The first entry from ``low`` on that was not written."""
        while low < high:
            middle = (low + high) // 2
            if ENTRY.unpack(read(middle * ENTRY_SIZE))[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _first_entry(self, head: bytes) -> int:
        """The first entry that is no filler; ``head`` is the first file's beginning, if it was read already."""
        low = self.files.min_offset // ENTRY_SIZE
        high = min(self.max_offset, low + self.files.file_size // ENTRY_SIZE)
        if low == high or (ENTRY.unpack_from(head) if head else self.entry(low))[1] != FILLER_SIZE:
            return low
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] == FILLER_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def _set_end(self, max_offset: int) -> None:
        self.max_offset = self.flushed_offset = max_offset
        self.limit = -1

    def start_at(self, offset: int) -> None:
        """Let a queue without files begin at ``offset``."""
        self.max_offset = self.min_offset = self.flushed_offset = offset
        self.limit = -1

    def go_on_at(self, offset: int) -> None:
        """Let an empty queue begin at ``offset``, and have a file that says so at the next start."""
        self.start_at(offset)
        with suppress(OSError):  # a full disk: then the next start finds the same as this one
            self.make_room(1)
        self.flushed_offset = offset - 1  # the file is to be flushed

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Serve nothing whose record is gone from the log's beginning."""
        self.min_offset = self._first_from(min_physical_offset)

    def trim(self, min_physical_offset: int) -> list[MappedFile]:
        """Follow a log that now begins there: serve nothing before it, and take out the files that have nothing else.

        The caller destroys them.
        """
        self.correct_min_offset(min_physical_offset)
        return self.files.remove_before(self.min_offset * ENTRY_SIZE)

    def _first_from(self, physical_offset: int) -> int:
        """The first entry of a record at or behind a physical offset."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    # --- writing ------------------------------------------------------------------------------------------------

    def make_room(self, count: int) -> None:
        """Have room for ``count`` more entries. OSError when there is no disk for them; nothing was changed then."""
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
            step = min(max(file.allocated, _FIRST_STEP), _LAST_STEP)
            file.reserve(within, step - _FIRST_STEP)
            self._cache.map(file)  # now: nothing may fail once the records are in the log
            file.touch(offset - file.file_from_offset, within)
            offset = stop
        file = self._write_at(start)
        limit = min(file.allocated, self.position + _WARM)
        file.touch(self.position, limit)
        self.limit = limit

    def _write_at(self, offset: int) -> MappedFile:
        """Have the writer's place there, with nothing but warm pages in memory, and no room known behind it."""
        file = self.files.find(offset)
        assert file is not None
        if file is not self._file:
            self.unmap()
            self.mm = self._cache.map(file)
            self._file = file
            self._cache.add(self)
        self.position = offset - file.file_from_offset
        file.release_pages(0, self.position - _WARM)
        self.limit = -1
        return file

    def _add(self, offset: int, blank: int = 0) -> None:
        """Make the next file; ``blank`` bytes at its beginning get fillers."""
        file = self.files.create(offset)
        if blank:
            file.reserve(blank)
            file.touch(0, blank)
            file.mm[:blank] = FILLER * (blank // ENTRY_SIZE)
            file.unmap()
        self.files.add(file)
        self.unsynced_names = True

    def append(self, entry: bytes) -> None:
        """Write one entry; there is room."""
        position = self.position
        self.mm[position : position + ENTRY_SIZE] = entry
        self.position = position + ENTRY_SIZE
        self.max_offset += 1

    def append_many(self, entries: bytes) -> None:
        """Write entries; the caller has made room for them, be it in several files."""
        done = 0
        while done < len(entries):
            if self.position == self.files.file_size:
                self._write_at(self.max_offset * ENTRY_SIZE)
            part = entries[done : done + self.files.file_size - self.position]
            self.mm[self.position : self.position + len(part)] = part
            self.position += len(part)
            self.max_offset += len(part) // ENTRY_SIZE
            done += len(part)

    def truncate(self, max_offset: int) -> None:
        """Drop the entries from ``max_offset`` on. What remains of their file is zero."""
        self.unmap()
        if max_offset <= self.min_offset:
            self.files.truncate(0)
            self.min_offset = max_offset
        else:
            self.files.truncate(max_offset * ENTRY_SIZE)
        self.max_offset = max_offset
        self.flushed_offset = min(self.flushed_offset, max_offset - 1)  # the cut itself is to be flushed as well
        self.unsynced_names = True
        self._checked = (0, 0)

    def cut(self, physical_offset: int) -> bool:
        """Drop the entries of records at or behind a physical offset; whether there were any."""
        if self.max_offset == self.min_offset or self.entry(self.max_offset - 1)[0] < physical_offset:
            return False
        self.truncate(self._first_from(physical_offset))
        return True

    def distrust(self, physical_offset: int) -> None:
        """Entries of records from an offset on, and the files' names, may be in memory only: flush them again."""
        if self.max_offset > self.min_offset and self.entry(self.max_offset - 1)[0] >= physical_offset:
            self.flushed_offset = min(self.flushed_offset, self._first_from(physical_offset))
            self.unsynced_names = True

    def has_data_behind(self) -> bool:
        """Whether something else than zeros is behind the last entry."""
        end = self.max_offset * ENTRY_SIZE
        return any(
            file.has_data(max(end - file.file_from_offset, 0))
            for file in self.files.files
            if file.file_from_offset + file.size > end
        )

    # --- reading ------------------------------------------------------------------------------------------------

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of an entry of the files. Maps nothing: start looks at every queue."""
        file = self.files.find(offset * ENTRY_SIZE)
        if file is None:
            raise StoreCorruptError(
                f"{self.files.directory} has no file for entry {offset}.",
                remedy="Stop the broker and run `rocket store rebuild`: consume queues are made from the commit log.",
            )
        found: tuple[int, int, int] = ENTRY.unpack(file.read(offset * ENTRY_SIZE - file.file_from_offset, ENTRY_SIZE))
        return found

    def read(self, offset: int, count: int) -> bytes:
        """A copy of up to ``count`` entries from ``offset`` on."""
        start = offset * ENTRY_SIZE
        end = min(offset + count, self.max_offset) * ENTRY_SIZE
        current = self._file
        if current is not None and start >= current.file_from_offset + max(self.position - _WARM, 0):
            base = current.file_from_offset
            return current.mm[start - base : end - base]
        parts = []
        while start < end:
            file = self.files.find(start)
            if file is None:
                break
            stop = min(end, file.file_from_offset + file.size)
            parts.append(file.read(start - file.file_from_offset, stop - start))
            start = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def was_checked(self, offset: int, count: int) -> bool:
        """Whether the records of these entries were looked at before; see old_records.py."""
        first, end = self._checked
        return first <= offset and offset + count <= end

    def note_checked(self, offset: int, count: int) -> None:
        """The records of these entries are good. One range is remembered: readers mostly go through a queue."""
        first, end = self._checked
        self._checked = (first, max(end, offset + count)) if first <= offset <= end else (offset, offset + count)

    # --- flushing and letting go --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Put the entries written so far, and the names of new files, on disk. Only for the flush thread."""
        target = self.max_offset
        if self.unsynced_names:
            self.unsynced_names = False  # first: the writer may make another file meanwhile
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
        """How many entries are not known to be on disk."""
        return self.max_offset - self.flushed_offset

    def unmap(self) -> None:
        """Let the writer's place go; the next entry finds it again."""
        if self._file is not None:
            self._file.unmap()
            self._cache.remove(self)
        self._file, self.mm = None, _NOTHING
        self.limit = -1

    def close(self) -> None:
        self.unmap()

    def destroy(self) -> None:
        """Delete the queue's files and its directory."""
        self.unmap()
        for file in self.files.files:
            file.destroy()
        self.files.files = []
        if self.files.directory.is_dir():
            self.files.directory.rmdir()
