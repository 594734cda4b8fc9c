"""The commit log: the messages of all queues in order of arrival. All other store files are derived from it.

A record never crosses a file's end. When record + 8 bytes do not fit into the rest of the file, the writer puts a
blank record there (int32 rest, magic 0xCBD43194) and continues in the next file. A batch is never split either.

``make_room`` allocates disk blocks and touches pages, or finds that the allocator (mapped_file_allocator.py) has done
so. A full disk is detected there (``OSError``), before a byte is written. Touching a page requests it for writing. A
disk that does not deliver promised blocks (copy-on-write, quotas, thin provisioning) therefore fails there too; a write
through the mapping would end the process. Readers copy from the mappings, too; resident_memory.py bounds their memory.

Thread-safety: one writer (``make_room``, writes, ``advance``). ``max_offset`` is set after the bytes are written, so
other threads may read anything below it. ``flush``: one thread at a time.
After a crash: see recovery.py. The first four bytes of a run of records, the first one's size, are written last: if the
process is killed during a write, the log appears to end before the run. ``write`` does this, or ``writable`` and then
``complete``; nothing else writes them.
Corresponds to org.apache.rocketmq.store.CommitLog.
"""

from __future__ import annotations

import logging
import mmap

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import BLANK_SIZE, INT, MAGIC_BLANK, SIZE_AND_MAGIC
from spark_rocket.protocol.record.record import RecordView, scan_record
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_allocator import MappedFileAllocator
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.log.resident_memory import ResidentMemory

_log = logging.getLogger(__name__)
_MAX_DAMAGE_REPORTS = 10_000


class CommitLog:
    """The log's files, the writer's position, and the flushed offset."""

    def __init__(self, config: StoreConfig) -> None:
        self.file_size = config.mapped_file_size_commit_log
        self.max_run_size = self.file_size - BLANK_SIZE
        """Bytes of a record or batch, at most: it does not cross a file's end."""
        self.queue = MappedFileQueue(config.commit_log_path, self.file_size, setting="mappedFileSizeCommitLog")
        self.max_offset = 0
        self.flushed_where = 0
        self.position = 0
        """Where the writer is in its file; ``make_room`` has made the bytes up to ``_limit`` writable."""
        self._limit = 0
        self._current: MappedFile | None = None
        self._damaged: set[int] = set()
        self.allocator = MappedFileAllocator(self.queue, min(config.allocate_ahead, self.file_size))
        self._memory = ResidentMemory(self.queue)

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
        self._move_to(max_offset)
        self._memory.reset(max_offset)
        self.flushed_where = flushed

    def _move_to(self, offset: int) -> None:
        self._current = file = self.queue.find(offset)
        self.position = offset - file.file_from_offset if file else 0
        self._limit = 0
        self.max_offset = offset

    def start(self) -> None:
        """Start the allocator thread."""
        self.allocator.start()

    def shutdown(self) -> None:
        """Stop the allocator and delete the unused next file."""
        self.allocator.shutdown()

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

    def make_room(self, size: int) -> None:
        """Make ``size`` bytes at ``position`` writable, in the next file if necessary. OSError: nothing was changed."""
        need = size + BLANK_SIZE
        if self.position + need <= self._limit:
            return
        file = self._current
        if file is None or self.position + need > self.file_size:
            file = self._roll(need)
        self._limit = self.allocator.make_room(file, self.position, self.position + need)

    def _roll(self, need: int) -> MappedFile:
        """End this file with a blank record and continue in the next. Steps that can fail come first."""
        last, position = self._current, self.position
        if last is not None:
            last.reserve(position + BLANK_SIZE)

        def end_last() -> None:
            if last is not None:
                SIZE_AND_MAGIC.pack_into(last.mm, position, self.file_size - position, MAGIC_BLANK)

        offset = self.queue.end_offset if self.queue.files else self.max_offset
        file = self.allocator.take_next(offset, need, end_last)
        self._move_to(file.file_from_offset)
        self._memory.begun(file)
        return file

    def write(self, records: Buffer) -> None:
        """Write a run at ``position``. Call ``make_room`` before."""
        mm, position, view = self.mm, self.position, memoryview(records)
        mm[position + 4 : position + len(view)] = view[4:]
        mm[position : position + 4] = view[:4]

    def writable(self, size: int) -> memoryview:
        """Return the bytes at ``position``, to write a run except its first four bytes. Call ``make_room`` before."""
        return memoryview(self.mm)[self.position : self.position + size]

    def complete(self, first_size: int) -> None:
        """Write the first four bytes of a run that was written to ``writable``: the size of its first record."""
        self.mm[self.position : self.position + 4] = INT.pack(first_size)

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

    def hide_from(self, offset: int) -> None:
        """Show readers nothing from a record's offset on, before ``cut`` removes it."""
        self.max_offset = offset

    def cut(self, offset: int) -> None:
        """Remove everything from a record's offset on. No other thread may flush or read there meanwhile."""
        self.allocator.truncate(offset)
        self._move_to(offset)
        self._memory.cut(offset)
        self.flushed_where = min(self.flushed_where, offset)
        self._damaged = {place for place in self._damaged if place < offset}

    def advance(self, size: int) -> None:
        """Make ``size`` bytes written at ``position`` visible to readers, and move past them."""
        self.position += size
        self.max_offset += size

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
        self._memory.note_read(file, offset, size)
        return data

    def read_up_to(self, offset: int, limit: int) -> bytes:
        """Return a copy of up to ``limit`` bytes from an offset on; fewer at the end of a file or of the log."""
        file = self.queue.find(offset)
        if file is None:
            return b""
        return self.read(offset, min(limit, self.max_offset - offset, file.file_from_offset + file.size - offset))

    def record_at(self, offset: int) -> RecordView | None:
        """Return a copy of the valid record at an offset. Nothing is copied before it is checked."""
        file = self.queue.find(offset) if offset >= 0 else None
        if file is None:
            return None
        limit = min(file.size, self.max_offset - file.file_from_offset)
        size = scan_record(file.mm, offset - file.file_from_offset, limit).size
        return scan_record(self.read(offset, size), check_crc=False).record

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
        self._memory.note_read(file, low, high - low)
        return records

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
            self.allocator.sync_names()
            for file in self.queue.between(start, target):
                base = file.file_from_offset
                file.flush(max(start - base, 0), min(target - base, file.size))
            self.flushed_where = target
            self._memory.flushed(target)
        return target
