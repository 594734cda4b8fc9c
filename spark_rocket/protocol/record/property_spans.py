"""The pairs in the property strings of many messages, found by columns.

The strings are copied one after the other, each with a 0x02 before it; a last 0x02 follows. So every pair is between
two of these bytes, and a pair never crosses the end of its string. ``properties.py`` has the rules for single strings:
a pair's name ends at its first 0x01, and of duplicate names the last one counts.

An instance is not changed after it was created. Corresponds to MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.spans import ByteArray, Hashes, Ints, blocks, copy_spans, java_hashes

_SEPARATOR = 2
_MIDDLE = 1
_WORD = 8  # bytes of a name that are compared at once


@lru_cache(1024)
def _masked(word: bytes) -> tuple[np.uint64, np.uint64]:
    """Return a mask for the first bytes of a name, and these bytes."""
    mask, value = np.frombuffer((b"\xff" * len(word)).ljust(_WORD, b"\0") + word.ljust(_WORD, b"\0"), np.uint64)
    return mask, value


class PropertySpans:
    """The properties of messages: ranges of ``raw`` that lie inside it."""

    def __init__(self, raw: ByteArray, starts: Ints, lengths: Ints) -> None:
        self.count = len(starts)
        ends = (lengths + 1).cumsum()
        begins = ends - lengths
        size = int(ends[-1]) if self.count else 0
        self.data = data = np.empty(size + 1 + _WORD, np.uint8)
        data[size:] = 0
        data[size] = _SEPARATOR
        data[begins - 1] = _SEPARATOR
        copy_spans(raw, starts, lengths, data, begins)
        self._begins = begins
        marks = (data[: size + 1] == _SEPARATOR).nonzero()[0]
        self._starts, self._ends = marks[:-1] + 1, marks[1:]
        self._heads = blocks(data, _WORD)[self._starts].view(np.uint64)

    @property
    def has_nul(self) -> bool:
        return b"\0" in self.data[:-_WORD].tobytes()

    def may_have(self, *names: bytes) -> bool:
        """Return whether a name begins with the first eight bytes of one of ``names``."""
        return any(bool(self._begin_with(name[:_WORD]).any()) for name in names)

    def _begin_with(self, word: bytes) -> npt.NDArray[np.bool_]:
        mask, value = _masked(word)
        found: npt.NDArray[np.bool_] = (self._heads & mask) == value
        return found

    def values(self, name: bytes) -> tuple[Ints, Ints, Ints]:
        """Return the messages with a property, and the start and end of its value in each. See ``hashes``."""
        start = name + b"\x01"
        found = self._begin_with(start[:_WORD]).nonzero()[0]
        if len(start) > _WORD:
            rest = start[_WORD:]
            at = self._starts[found] + _WORD
            at = np.minimum(at, len(self.data) - len(rest))  # after the last pair
            found = found[blocks(self.data, len(rest))[at] == np.frombuffer(rest, f"V{len(rest)}")[0]]
        places = self._starts[found]
        if (
            len(found) == self.count
            and bool((places >= self._begins).all())
            and bool((places[:-1] < self._begins[1:]).all())
        ):
            rows = np.arange(self.count)
        else:
            rows = np.searchsorted(self._begins, places, side="right") - 1
            is_last = np.append(rows[1:] != rows[:-1], np.ones(min(len(rows), 1), bool))
            found, places, rows = found[is_last], places[is_last], rows[is_last]
        return rows, places + len(start), self._ends[found]

    def pairs(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the number of pairs before each message and in all, and the start, middle and end of each pair.

        The middle is the first 0x01; parts without one are not pairs.
        """
        starts, ends = self._starts, self._ends
        first = np.append(np.searchsorted(starts, self._begins), len(starts))
        marks = np.flatnonzero(self.data[: len(self.data) - _WORD] == _MIDDLE)
        if len(marks) == len(starts) and bool(((starts <= marks) & (marks < ends)).all()):
            return first, starts, marks, ends
        middles = np.append(marks, len(self.data))[np.searchsorted(marks, starts)]
        is_pair = middles < ends
        counts = np.append(0, np.cumsum(is_pair))
        return counts[first], starts[is_pair], middles[is_pair], ends[is_pair]

    def same_value(self, starts: Ints, ends: Ints) -> bytes | None:
        """Return the value that is the same at all places; None if they differ, or if there are none."""
        if not len(starts) or (ends - starts != ends[0] - starts[0]).any():
            return None
        first = self.data[starts[0] : ends[0]].tobytes()
        is_same = not first or blocks(self.data, len(first))[starts].tobytes() == first * len(starts)
        return first if is_same else None

    def words(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Split values at blanks; return the value of each word, and its start and end. Empty words are omitted."""
        blanks = np.flatnonzero(self.data == ord(" "))
        if len(blanks) and len(starts):
            of = np.searchsorted(starts, blanks, side="right") - 1
            blanks = blanks[(of >= 0) & (blanks < ends[of])]
            begins, stops = np.sort(np.concatenate((starts, blanks + 1))), np.sort(np.concatenate((blanks, ends)))
            values = np.searchsorted(starts, begins, side="right") - 1
        else:
            begins, stops, values = starts, ends, np.arange(len(starts))
        some = stops > begins
        return values[some], begins[some], stops[some]

    def hashes(self, starts: Ints, ends: Ints, before: Hashes | None = None) -> Hashes:
        """Return Java's hash of values, continued from the hashes ``before``."""
        return java_hashes(self.data, starts, ends, before)
