"""Uniform rows: records, or messages of a batch, with equal lengths and the same property names at the same positions.

Messages of one program mostly are uniform. Such rows are a matrix of bytes, and the minimum and maximum of each column
describe all of them. Callers have a general path for other rows. ``layout_of`` is the only place that splits property
strings by columns; ``properties.py`` does it for single ones. Without pyarrow, which servers do not load.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_rocket.protocol.record.spans import ByteArray

_SEPARATOR = 2
_ROWS_PER_PASS = 64


class Rows(NamedTuple):
    """Byte strings of equal length: a row for each, and the extremes of each column."""

    cells: ByteArray
    low: ByteArray
    high: ByteArray

    def vary(self, start: int, end: int) -> bool:
        """Whether these columns differ between rows."""
        return self.low[start:end].tobytes() != self.high[start:end].tobytes()

    def behind(self, start: int) -> Rows:
        """Return the columns from ``start`` on."""
        return Rows(self.cells[:, start:], self.low[start:], self.high[start:])

    @property
    def first(self) -> bytes:
        return bytes(self.cells[0])


class PropertyLayout(NamedTuple):
    """The common layout of the property strings of all rows."""

    values: dict[bytes, tuple[int, int]]
    """The start and end of the value of each name; of a duplicate name, of its last value."""
    names: frozenset[bytes]
    """All names, including those without a value."""
    is_exact: bool
    """Whether ``values`` is complete: every part has a name and a value, names are unique, and all is ASCII."""


def value_range(cells: ByteArray) -> Rows:
    """Return contiguous rows with the smallest and the largest byte of each column. Short rows: many per pass."""
    length = cells.shape[1]
    whole = len(cells) // _ROWS_PER_PASS * _ROWS_PER_PASS
    if not whole or not length:
        return Rows(cells, cells.min(axis=0), cells.max(axis=0))
    wide, rest = cells[:whole].reshape(-1, _ROWS_PER_PASS * length), cells[whole:]
    low, high = wide.min(axis=0).reshape(_ROWS_PER_PASS, length), wide.max(axis=0).reshape(_ROWS_PER_PASS, length)
    return Rows(cells, np.concatenate((low, rest)).min(axis=0), np.concatenate((high, rest)).max(axis=0))


def layout_of(rows: Rows) -> PropertyLayout | None:
    """Return the layout of property strings, one in each row; None if they differ."""
    low = rows.low
    same = low == rows.high
    text = rows.first
    first = rows.cells[0]
    # Separators are in the same columns of every row, and nowhere else.
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
    return PropertyLayout(values, frozenset(names), is_exact)
