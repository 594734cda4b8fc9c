"""One index file: a hash table on disk from keys to physical offsets.

=====================  ===========  =============================================================================
at                     type         meaning
=====================  ===========  =============================================================================
0                      int64        beginTimestamp: store time of the first record
8                      int64        endTimestamp: store time of the last record
16                     int64        beginPhyOffset
24                     int64        endPhyOffset
32                     int32        hashSlotCount: slots in use
36                     int32        indexCount: entries + 1 (entry 0 is never used)
40                     int32 × S    slots: number of the slot's newest entry, 0 for none
40 + 4·S               20 B × N     entries: int32 keyHash, int64 phyOffset, int32 timeDiff (seconds from
                                    beginTimestamp), int32 number of the slot's previous entry
=====================  ===========  =============================================================================

Many keys are added at once: chains inside the batch are built by sorting it by slot. Entries are written before slots,
and slots before the header. Disk blocks are allocated for header and slots with the file, for entries as they are
added. A full disk is therefore an ``OSError`` before anything is changed.

Thread-safety: callers lock. After a crash: a file whose ``endTimestamp`` is newer than the checkpoint's index time is
deleted and rebuilt from the log. Corresponds to org.apache.rocketmq.store.index.IndexFile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from struct import Struct

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.index.keys import Hashes
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import Ints

HEADER_SIZE = 40
INDEX_ENTRY_SIZE = 20
INDEX_ENTRY_TYPE = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_difference", ">i4"), ("previous", ">i4")]
)
_HEADER = Struct(">4q2i")
_ENTRY = Struct(">iqii")
_STEP_BYTES = 1 << 20
_MAX_CHAIN_MISMATCHES = 4_000  # entries of a chain that do not match, before a linear search
_BLOCK_ENTRIES = 16_384  # searched at once
_ENTRIES_PER_READ = 1 << 18
_MAX_INT = (1 << 31) - 1
_ORDER_BITS = 32  # slots are numbers of 31 bits
_ORDER_MASK = (1 << _ORDER_BITS) - 1


class DamagedIndexError(StoreCorruptError):
    """An index file has an invalid chain; index_service.py rebuilds the file."""


class IndexFile:
    """One file of the index directory."""

    def __init__(self, path: Path, slots: int, entries: int, *, create: bool = False) -> None:
        self.slots = slots
        self.capacity = entries
        self.entries_at = HEADER_SIZE + 4 * slots
        self.file = MappedFile(path, self.entries_at + INDEX_ENTRY_SIZE * entries, create=create, scattered=True)
        self.begin_timestamp = self.end_timestamp = self.begin_offset = self.end_offset = 0
        self.slot_count = 0
        self.count = 1
        if create:
            try:
                self.file.reserve(self.entries_at)
            except OSError:
                self.file.destroy()  # the next attempt uses another name
                raise
        else:
            self.read_header()

    def read_header(self) -> None:
        """Read the header fields from disk."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            count,
        ) = _HEADER.unpack(self.file.read(0, HEADER_SIZE))
        self.count = max(count, 1)

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity

    def put(self, hashes: Hashes, offsets: Ints, timestamps: Ints) -> int:
        """Add as many keys as fit; return their number. OSError if the disk is full."""
        count = min(len(hashes), self.capacity - self.count)
        if count <= 0:
            return 0
        hashes, offsets, timestamps = hashes[:count], offsets[:count], timestamps[:count]
        at = self.entries_at + INDEX_ENTRY_SIZE * self.count
        self.file.reserve(self.entries_at)
        self.file.reserve(at + INDEX_ENTRY_SIZE * count, _STEP_BYTES)
        mm = self.file.mm
        if self.count == 1:
            self.begin_timestamp, self.begin_offset = int(timestamps[0]), int(offsets[0])
        numbers = np.arange(self.count, self.count + count)
        slots = hashes.astype(np.int64) % self.slots
        table = np.frombuffer(mm, ">i4", self.slots, HEADER_SIZE)
        by_slot = slots << _ORDER_BITS | np.arange(count)  # sorted much faster than by argsort
        by_slot.sort()
        order, sorted_slots = by_slot & _ORDER_MASK, by_slot >> _ORDER_BITS
        sorted_numbers = numbers[order]
        first = np.append(True, sorted_slots[1:] != sorted_slots[:-1])
        heads = table[sorted_slots[first]].astype(np.int64)
        heads[(heads < 0) | (heads >= self.count)] = 0
        before = np.append(0, sorted_numbers[:-1])
        before[first] = heads
        previous = np.empty(count, np.int64)
        previous[order] = before
        entries = np.empty(count, INDEX_ENTRY_TYPE)
        entries["key_hash"] = hashes
        entries["physical_offset"] = offsets
        entries["time_difference"] = np.clip((timestamps - self.begin_timestamp) // 1000, 0, _MAX_INT)
        entries["previous"] = previous
        mm[at : at + INDEX_ENTRY_SIZE * count] = entries.tobytes()
        last = np.append(first[1:], True)
        table[sorted_slots[last]] = sorted_numbers[last]
        del table  # a view, which would prevent closing the file
        self.slot_count += int((heads == 0).sum())
        self.count += count
        self.end_timestamp, self.end_offset = int(timestamps[-1]), int(offsets[-1])
        _HEADER.pack_into(
            mm,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.count,
        )
        return count

    def find(self, key_hash: int, first: int, end: int) -> Iterator[int | None]:
        """Yield physical offsets of the entries with a hash and a number from ``first`` to ``end`` - 1, newest first.

        Yields None for each other entry of the chain and for each searched block, so that the caller can stop. After
        thousands of mismatches in the chain, all entries are searched instead, block by block. DamagedIndexError if
        the chain is invalid.
        """
        mm = self.file.mm
        slot = key_hash % self.slots
        at = HEADER_SIZE + 4 * slot
        number = int.from_bytes(mm[at : at + 4], "big", signed=True)
        above, mismatches_left = min(self.count, self.capacity), _MAX_CHAIN_MISMATCHES  # a damaged count may be larger
        if not 0 <= number < above:
            raise self._damaged(at, f"slot {slot} links to entry {number} of {above - 1}")
        while first <= number and mismatches_left:
            at = self.entries_at + INDEX_ENTRY_SIZE * number
            hashed, offset, _, previous = _ENTRY.unpack_from(mm, at)
            if hashed % self.slots != slot or not 0 <= previous < number:  # a chain only goes down
                raise self._damaged(at, f"entry {number} is in the wrong chain")
            if hashed == key_hash and number < end:
                yield offset
            else:
                mismatches_left -= 1
                yield None
            above, number = number, previous
        stop = first if mismatches_left else min(above, end)
        while stop > first:
            start = max(stop - _BLOCK_ENTRIES, first)
            at = self.entries_at + INDEX_ENTRY_SIZE * start
            entries = np.frombuffer(mm, INDEX_ENTRY_TYPE, stop - start, at)
            offsets = entries["physical_offset"][entries["key_hash"] == key_hash].tolist()
            del entries  # a view, which would prevent closing the file
            yield None
            yield from reversed(offsets)
            stop = start

    def _damaged(self, position: int, what: str) -> DamagedIndexError:
        return DamagedIndexError(f"{self.file.path} at byte {position}: {what}.")

    def read_all(self) -> Iterator[np.ndarray[tuple[int], np.dtype[np.void]]]:
        """Yield the entries in large pieces, read without a mapping."""
        end = min(self.count, self.capacity)
        for number in range(1, end, _ENTRIES_PER_READ):
            count = min(_ENTRIES_PER_READ, end - number)
            raw = self.file.read(self.entries_at + INDEX_ENTRY_SIZE * number, INDEX_ENTRY_SIZE * count)
            yield np.frombuffer(raw, INDEX_ENTRY_TYPE)

    def offset_of(self, number: int) -> int:
        """Return the physical offset of an entry's record."""
        offset: int = _ENTRY.unpack_from(self.file.mm, self.entries_at + INDEX_ENTRY_SIZE * number)[1]
        return offset

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def destroy(self) -> None:
        self.file.destroy()


def find_index_files(
    config: StoreConfig, *, is_clean: bool, refuse: Callable[[Path, str, str], None]
) -> tuple[list[Path], list[Path]]:
    """Return the index files in order of time, and those that a crash or a full disk left incomplete.

    ``refuse`` is called with path, fault and remedy of each other file. A file is incomplete if it is empty or, after a
    kill, the last and too short.
    """
    directory, size = config.index_path, config.index_file_size
    names = sorted(directory.iterdir()) if directory.is_dir() else []
    found: list[Path] = []
    incomplete: list[Path] = []
    for path in names:
        if len(path.name) != 17 or not path.name.isdecimal() or not path.is_file():
            refuse(
                path,
                "is not an index file: index files have names of 17 digits",
                "Move it elsewhere; `rocket store check` then reports missing files.",
            )
            continue
        length = path.stat().st_size
        if length == 0 or (not is_clean and length < size and path is names[-1]):
            incomplete.append(path)
        elif length != size:
            refuse(
                path,
                f"has {length} bytes, but maxHashSlotNum and maxIndexNum result in {size}",
                "Set both to the values this directory was created with, or run `rocket store rebuild "
                f"{config.store_path}` (with the broker's -c), which rebuilds the index from the log.",
            )
        else:
            found.append(path)
    return found, incomplete


class IndexWriter:
    """Writes a sequence of index files, each named by its first key's store time, as a broker names them."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._named = 0
        self._current: IndexFile | None = None

    def file(self, store_timestamp: int) -> IndexFile:
        """Return the current file, or a new one if it is full."""
        if self._current is None or self._current.is_full:
            self.close()
            self._named = max(store_timestamp, self._named + 1)
            name = _index_name(self._named)
            if self._current is not None and name <= self._current.file.path.name:  # daylight saving time ended
                self._named += 3_600_000
                name = _index_name(self._named)
            path = self._config.index_path / name
            self._current = IndexFile(path, self._config.max_hash_slot_num, self._config.max_index_num, create=True)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.close()


def _index_name(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000):%Y%m%d%H%M%S}{milliseconds % 1000:03d}"
