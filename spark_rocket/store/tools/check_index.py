"""Check of the index: every entry is a key of a record, every key is found, chains and headers are correct.

Each file's own structure is checked first. Then ``take`` gets the log block by block and compares the keys of its
records with the entries for the same offsets. Both are in log order, so each is read once in chunks, and memory does
not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spark_rocket.store.config import StoreConfig
from spark_rocket.store.index.index_file import HEADER_SIZE, IndexFile, find_index_files
from spark_rocket.store.index.keys import keys_of
from spark_rocket.store.log.record_scan import Ints, RecordBlock
from spark_rocket.store.problems import ProblemKind, StoreProblem, read_error_text
from spark_rocket.store.tools.salvage import Damage

_NOTHING = np.zeros(0, np.int64)


class IndexCheck:
    """The index files of a store, against its log."""

    def __init__(
        self,
        config: StoreConfig,
        problems: list[StoreProblem],
        unknown: list[str] | None = None,
        *,
        is_killed: bool = False,
    ) -> None:
        """``unknown``: list for a note that the index was not checked, if its file sizes are unknown."""
        self._is_killed = is_killed
        self._is_refused = False
        self._config = config
        self._problems = problems
        self._directory = config.index_path
        self._files: list[IndexFile] = []
        self._first = self._end = self._last_seen = -1
        self._sorted = True
        self._behind = 0
        self._loose: list[int] = []
        self._exists = False
        try:
            if unknown is not None:
                if self._directory.is_dir() and any(self._directory.iterdir()):
                    unknown.append(
                        f"{self._directory}: not checked: its files do not have Apache's size, and do not show their "
                        "numbers of slots and entries; give the broker's configuration with -c broker.conf"
                    )
                return
            paths, _ = find_index_files(config, is_clean=not is_killed, refuse=self._refuse)
            if self._is_refused:
                return
            for path in paths:
                self._file(IndexFile(path, config.max_hash_slot_num, config.max_index_num))
        except OSError as error:
            self._add(ProblemKind.UNREADABLE, Path(error.filename or self._directory), read_error_text(error))
            return
        self._exists = bool(paths)
        if not self._sorted:
            self._add(ProblemKind.INDEX, self._directory, "entries are not in log order")
        self._pieces = self._all_pieces()
        self._held: tuple[Ints, Ints] = (_NOTHING, _NOTHING)

    def _add(self, kind: ProblemKind, path: Path, text: str, offset: int = -1) -> None:
        self._problems.append(StoreProblem(kind, path, text, offset))

    def _refuse(self, path: Path, what: str, remedy: str) -> None:
        self._is_refused = True
        self._add(ProblemKind.FILES, path, f"it {what}")

    # --- each file's own structure ------------------------------------------------------------------------------

    def _file(self, index: IndexFile) -> None:
        path = index.file.path
        if index.count > index.capacity:
            self._add(
                ProblemKind.INDEX,
                path,
                f"the header has {index.count - 1} entries, but there is room for {index.capacity - 1}",
            )
            self._sorted = False
            return
        self._files.append(index)
        heads = np.zeros(index.slots, np.int64)
        number, wrong_link = 1, 0
        ends = [0, 0]
        for entries in index.read_all():
            if len(entries) == 0:
                break
            offsets = entries["physical_offset"].astype(np.int64)
            if number == 1:
                ends[0] = int(offsets[0])
            ends[1] = int(offsets[-1])
            self._sorted &= int(offsets[0]) >= self._last_seen and bool((np.diff(offsets) >= 0).all())
            self._first = int(offsets[0]) if self._first < 0 else self._first
            self._last_seen = int(offsets[-1])
            slots = entries["key_hash"].astype(np.int64) % index.slots
            order = np.argsort(slots, kind="stable")
            in_order, numbers = slots[order], order + number
            first = np.append(True, in_order[1:] != in_order[:-1])
            previous = np.append(0, numbers[:-1])
            previous[first] = heads[in_order[first]]
            wrong = np.flatnonzero(previous != entries["previous"][order])
            if len(wrong) and not wrong_link:
                wrong_link = int(numbers[wrong].min())
            last = np.append(first[1:], True)
            heads[in_order[last]] = numbers[last]
            number += len(entries)
        if wrong_link:
            self._add(ProblemKind.INDEX, path, "an entry's link to the previous one of its slot is wrong", wrong_link)
        if number == 1:
            return
        table = np.frombuffer(index.file.read(HEADER_SIZE, 4 * index.slots), ">i4")
        wrong = np.flatnonzero(heads != table)
        if len(wrong):
            self._add(
                ProblemKind.INDEX, path, f"slot {int(wrong[0])} does not link to its newest entry", int(table[wrong[0]])
            )
        used = int((heads > 0).sum())
        if index.slot_count != used:
            self._add(ProblemKind.INDEX, path, f"the header has {index.slot_count} slots in use, but there are {used}")
        if [index.begin_offset, index.end_offset] != ends:
            text = f"the header's offsets are {index.begin_offset} and {index.end_offset}, not {ends}"
            self._add(ProblemKind.INDEX, path, text)
        self._end = max(self._end, index.end_offset)

    # --- against the log ----------------------------------------------------------------------------------------

    def _all_pieces(self) -> Iterator[tuple[Ints, Ints]]:
        for index in self._files:
            for entries in index.read_all():
                yield entries["physical_offset"].astype(np.int64), entries["key_hash"].astype(np.int64)

    def _up_to(self, offset: int) -> tuple[Ints, Ints]:
        """Return offsets and hashes of the next entries, for records up to an offset."""
        offsets, hashes = [], []
        while True:
            if not len(self._held[0]):
                following = next(self._pieces, None)
                if following is None:
                    break
                self._held = following
            at = int(np.searchsorted(self._held[0], offset, side="right"))
            offsets.append(self._held[0][:at])
            hashes.append(self._held[1][:at])
            self._held = self._held[0][at:], self._held[1][at:]
            if len(self._held[0]):
                break
        return (np.concatenate(offsets), np.concatenate(hashes)) if offsets else (_NOTHING, _NOTHING)

    def take(self, block: RecordBlock) -> None:
        """Compare the keys of a block's records with their entries."""
        if not self._exists or not self._sorted:
            return
        records, hashes = keys_of(block)
        offsets = block.physical_offsets[records]
        self._behind += int((offsets > self._end).sum())
        covered = (offsets <= self._end) & (offsets >= self._first)
        there, there_hashes = self._up_to(int(block.physical_offsets[-1]))
        inside = there >= block.base
        self._loose += there[~inside][:1].tolist()
        mine = _pairs(there[inside], there_hashes[inside], block.base)
        must = _pairs(offsets[covered], hashes[covered].astype(np.int64), block.base)
        self._loose += there[inside][~np.isin(mine, must)][:1].tolist()
        missing = offsets[covered][~np.isin(must, mine)]
        self._behind += int((missing == self._end).sum())  # the next keys of the last record that is in it
        missing = missing[missing != self._end]
        if len(missing):
            self._add(ProblemKind.INDEX, self._directory, "a key of a record is not in the index", int(missing[0]))

    def skip(self, damage: Damage) -> None:
        """Skip the entries for a damaged range, which cannot be checked."""
        if self._exists and self._sorted:
            self._loose += self._up_to(damage.offset - 1)[0][:1].tolist()
            self._up_to(damage.offset + damage.length - 1)

    def finish(self, min_offset: int) -> None:
        """Report entries without a record (unless before the log's beginning), and missing keys at the end."""
        if not self._exists:
            return
        if self._sorted:
            if not self._is_killed:  # a killed store's log may have lost its end
                self._loose += self._up_to(1 << 62)[0][:1].tolist()
            loose = next((offset for offset in self._loose if offset >= min_offset), None)
            if loose is not None:
                self._add(ProblemKind.INDEX, self._directory, "an entry is not a key of a record", loose)
        if self._behind and not self._is_killed:
            self._add(
                ProblemKind.INDEX_BEHIND,
                self._directory,
                f"the last {self._behind} keys of the log are not indexed yet",
            )


def _pairs(offsets: Ints, hashes: Ints, base: int) -> Ints:
    """Combine each offset and hash into one number; offsets must be within some MiB of ``base``."""
    pairs: Ints = ((offsets - base) << 31) | hashes
    return pairs
