"""Uniform runs: records, or messages of a batch, of the same lengths, whose properties have the same names in the same
places, as those of one program mostly have.

Such a run is a matrix of bytes, and one look at each of its columns tells all about it. Whoever uses this has a general
path too, for all other runs. Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.run import column_extremes

Bytes2D = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
_SEPARATOR = 2
_FEWEST = 16  # ranges for which it is worth while


class Layout(NamedTuple):
    """What the property strings of all rows share."""

    values: dict[bytes, tuple[int, int]] | None
    """Of each name where its value starts and ends; of one that is there twice, the last. None: not the same in all."""
    names: frozenset[bytes]
    same: npt.NDArray[np.bool_]
    """Whether a column is the same in all rows."""
    has_nul: bool


def rows_of(data: bytes, starts: Ints, ends: Ints) -> Bytes2D | None:
    """Ranges of ``data`` as a matrix, if there are some of one length at equal distances; else None."""
    if len(starts) < _FEWEST:
        return None
    step, length = int(starts[1] - starts[0]), int(ends[0] - starts[0])
    if length <= 0 or step < length or (np.diff(starts) != step).any() or (ends - starts != length).any():
        return None
    rows = np.ndarray((len(starts), length), np.uint8, data, int(starts[0]), (step, 1))
    return np.ascontiguousarray(rows)


def records_alike(data: bytes, size: int) -> int:
    """How many records follow one another from the first byte on with the first one's ``size`` and magic."""
    heads = np.ndarray((len(data) // size,), ">u8", data, 0, (size,))
    same = heads == heads[0]
    return len(same) if same.all() else int(np.argmin(same))


def layout_of(rows: Bytes2D) -> Layout:
    """The layout of property strings, one in each row."""
    least, greatest = column_extremes(rows)
    same = least == greatest
    has_nul = not least.all()
    first = rows[0]
    # Separators stand in the same columns of every row, and nowhere else.
    if not (bool(same[first <= _SEPARATOR].all()) and bool((least[first > _SEPARATOR] > _SEPARATOR).all())):
        return Layout(None, frozenset(), same, has_nul)
    values: dict[bytes, tuple[int, int]] = {}
    names: list[bytes] = []
    at = 0
    for pair in first.tobytes().split(b"\x02"):
        end = at + len(pair)
        name, separator, _ = pair.partition(b"\x01")
        if not same[at : at + len(name)].all():
            return Layout(None, frozenset(), same, has_nul)
        names.append(name)
        if separator:
            values[name] = at + len(name) + 1, end
        at = end + 1
    return Layout(values, frozenset(names), same, has_nul)
