"""Uniform rows: records, or messages of a batch, of the same lengths, whose properties have the same names in the same
places, as those of one program mostly have.

Such rows are a matrix of bytes, and one look at each of its columns tells all about it. Whoever uses this has a general
path too, for all other rows. ``layout_of`` is the only place that takes apart property strings by columns;
``properties.py`` does it for a single one. Without pyarrow, which servers do not load.

Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
_SEPARATOR = 2
_FEWEST = 16  # ranges for which it is worth while
_AT_ONCE = 64


class Rows(NamedTuple):
    """Byte strings of one length: a row for each, and each column's extremes."""

    cells: Bytes
    low: Bytes
    high: Bytes

    def vary(self, start: int, end: int) -> bool:
        """Whether these columns are not the same in all rows."""
        return self.low[start:end].tobytes() != self.high[start:end].tobytes()

    def behind(self, start: int) -> Rows:
        """The columns from ``start`` on."""
        return Rows(self.cells[:, start:], self.low[start:], self.high[start:])

    @property
    def first(self) -> bytes:
        return bytes(self.cells[0])


class Layout(NamedTuple):
    """What the property strings of all rows share."""

    values: dict[bytes, tuple[int, int]]
    """Of each name where its value starts and ends; of one that is there twice, the last."""
    names: frozenset[bytes]
    """All names, those without a value too."""
    is_exact: bool
    """Whether ``values`` says all: every part is a name and a value, no name is there twice, and all is ASCII."""


def look_at(cells: Bytes) -> Rows:
    """Contiguous rows with the least and the greatest byte of each column. Many at a time, for a row is short."""
    length = cells.shape[1]
    whole = len(cells) // _AT_ONCE * _AT_ONCE
    if not whole or not length:
        return Rows(cells, cells.min(axis=0), cells.max(axis=0))
    wide, rest = cells[:whole].reshape(-1, _AT_ONCE * length), cells[whole:]
    low, high = wide.min(axis=0).reshape(_AT_ONCE, length), wide.max(axis=0).reshape(_AT_ONCE, length)
    return Rows(cells, np.concatenate((low, rest)).min(axis=0), np.concatenate((high, rest)).max(axis=0))


def rows_of(data: bytes, starts: Ints, ends: Ints) -> Rows | None:
    """Ranges of ``data`` as rows, if there are some of one length at equal distances; else None."""
    if len(starts) < _FEWEST:
        return None
    step, length = int(starts[1] - starts[0]), int(ends[0] - starts[0])
    if length <= 0 or step < length or (np.diff(starts) != step).any() or (ends - starts != length).any():
        return None
    cells = np.ndarray((len(starts), length), np.uint8, data, int(starts[0]), (step, 1))
    return look_at(np.ascontiguousarray(cells))


def records_alike(data: bytes, size: int) -> int:
    """How many records follow one another from the first byte on with the first one's ``size`` and magic."""
    heads = np.ndarray((len(data) // size,), ">u8", data, 0, (size,))
    same = heads == heads[0]
    return len(same) if same.all() else int(np.argmin(same))


def layout_of(rows: Rows) -> Layout | None:
    """The layout of property strings, one in each row; None if they do not have the same."""
    low = rows.low
    same = low == rows.high
    text = rows.first
    first = rows.cells[0]
    # Separators stand in the same columns of every row, and nowhere else.
    if not (bool(same[first <= _SEPARATOR].all()) and bool((low[first > _SEPARATOR] > _SEPARATOR).all())):
        return None
    values: dict[bytes, tuple[int, int]] = {}
    names: list[bytes] = []
    is_exact = not len(text) or int(rows.high.max()) < 0x80
    at = 0
    for pair in text.removesuffix(b"\x02").split(b"\x02") if text else ():
        end = at + len(pair)
        name, separator, value = pair.partition(b"\x01")
        if not same[at : at + len(name)].all():
            return None
        is_exact = is_exact and bool(separator) and b"\x01" not in value and name not in values
        names.append(name)
        if separator:
            values[name] = at + len(name) + 1, end
        at = end + 1
    return Layout(values, frozenset(names), is_exact)
