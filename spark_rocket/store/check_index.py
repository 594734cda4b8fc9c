"""The index's part of the check: every entry a key of a record, every key findable, chains and headers right.

``take`` is given the log block by block and compares the keys of its records with the entries for the same offsets;
``finish`` looks at what no block asked for. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.index_file import HEADER_SIZE, INDEX_ENTRY_SIZE, INDEX_ENTRY_TYPE, IndexFile
from spark_rocket.store.index_keys import keys_of
from spark_rocket.store.problem import Problem
from spark_rocket.store.record_scan import Ints, RecordBlock


class IndexCheck:
    """The index files of a store, against its log."""

    def __init__(self, config: StoreConfig, problems: list[Problem]) -> None:
        self._config = config
        self._problems = problems
        self._directory = config.index_path
        offsets: list[Ints] = []
        hashes: list[Ints] = []
        paths = sorted(self._directory.iterdir()) if self._directory.is_dir() else []
        self._end = -1
        for path in paths:
            entries = self._file(path)
            offsets.append(entries["physical_offset"].astype(np.int64))
            hashes.append(entries["key_hash"].astype(np.int64))
        self._exists = bool(paths)
        self._offsets = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        self._hashes = np.concatenate(hashes) if hashes else np.zeros(0, np.int64)
        self._claimed = np.zeros(len(self._offsets), np.bool_)
        self._sorted = bool((np.diff(self._offsets) >= 0).all())
        self._behind = 0
        if not self._sorted:
            self._add("index", self._directory, "entries are not in the order of the log")

    def _add(self, kind: str, path: Path, text: str, offset: int = -1) -> None:
        self._problems.append(Problem(kind, path, text, offset))

    def _file(self, path: Path) -> npt.NDArray[np.void]:
        """Entries of a file whose own structure has been checked."""
        size = self._config.index_file_size
        length = path.stat().st_size
        if length != size:
            raise StoreCorruptError(f"{path} has {length} bytes where maxHashSlotNum and maxIndexNum say {size}.")
        index = IndexFile(path, self._config.max_hash_slot_num, self._config.max_index_num)
        count = index.count
        if count > index.capacity:
            raise StoreCorruptError(f"{path} says it has {count - 1} entries, it has room for {index.capacity - 1}.")
        raw = index.file.read(index.entries_at + INDEX_ENTRY_SIZE, INDEX_ENTRY_SIZE * (count - 1))
        entries = np.frombuffer(raw, INDEX_ENTRY_TYPE)
        table = np.frombuffer(index.file.read(HEADER_SIZE, 4 * index.slots), ">i4").astype(np.int64)
        index.close()
        if count == 1:
            return entries
        slots = entries["key_hash"].astype(np.int64) % index.slots
        numbers = np.arange(1, count)
        order = np.argsort(slots, kind="stable")
        first = np.append(True, slots[order][1:] != slots[order][:-1])
        previous = np.append(0, numbers[order][:-1])
        previous[first] = 0
        expected = np.empty(count - 1, np.int64)
        expected[order] = previous
        wrong = np.flatnonzero(expected != entries["previous"])
        if len(wrong):
            self._add("index", path, "an entry's link to the one before it in its slot is wrong", int(wrong[0]) + 1)
        heads = np.zeros(index.slots, np.int64)
        last = np.append(first[1:], True)
        heads[slots[order][last]] = numbers[order][last]
        wrong = np.flatnonzero(heads != table)
        if len(wrong):
            self._add("index", path, f"slot {int(wrong[0])} does not name its newest entry", int(table[wrong[0]]))
        if index.slot_count != int((heads > 0).sum()):
            self._add(
                "index", path, f"{index.slot_count} slots in use by the header, {int((heads > 0).sum())} by count"
            )
        ends = entries["physical_offset"][[0, -1]].tolist()
        if [index.begin_offset, index.end_offset] != ends:
            self._add(
                "index", path, f"the header's offsets are {index.begin_offset} and {index.end_offset}, not {ends}"
            )
        self._end = max(self._end, index.end_offset)
        return entries

    def take(self, block: RecordBlock) -> None:
        """Compare the keys of a block's records with the entries that are there for them."""
        if not self._exists or not self._sorted:
            return
        records, hashes = keys_of(block)
        offsets = block.physical_offsets[records]
        self._behind += int((offsets > self._end).sum())
        covered = offsets <= self._end
        if len(self._offsets):
            covered &= offsets >= self._offsets[0]
        offsets, hashes64 = offsets[covered], hashes[covered].astype(np.int64)
        low = int(np.searchsorted(self._offsets, int(block.physical_offsets[0]), side="left"))
        high = int(np.searchsorted(self._offsets, int(block.physical_offsets[-1]), side="right"))
        mine = _pairs(self._offsets[low:high], self._hashes[low:high], block.base)
        must = _pairs(offsets, hashes64, block.base)
        self._claimed[low:high] = np.isin(mine, must)
        missing = np.flatnonzero(~np.isin(must, mine))
        if len(missing):
            self._add("index", self._directory, "a key of a record is not in the index", int(offsets[missing[0]]))

    def finish(self, min_offset: int) -> None:
        """What no record accounts for (unless it is gone from the log's beginning), and what the index lacks."""
        if not self._exists:
            return
        loose = np.flatnonzero(~self._claimed & (self._offsets >= min_offset))
        if self._sorted and len(loose):
            self._add("index", self._directory, "an entry is no key of a record", int(self._offsets[loose[0]]))
        if self._behind:
            self._add("index.behind", self._directory, f"the last {self._behind} keys of the log are not in it yet")


def _pairs(offsets: Ints, hashes: Ints, base: int) -> Ints:
    """One number for each (offset, hash), offsets being within some MiB of ``base``."""
    pairs: Ints = ((offsets - base) << 31) | hashes
    return pairs
