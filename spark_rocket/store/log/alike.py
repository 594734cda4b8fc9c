"""Rows of property strings that have the same names in the same places, as those of one program mostly have.

One look at each column of such rows tells all about them. Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.run import column_extremes

Bytes2D = npt.NDArray[np.uint8]
_SEPARATOR = 2


class Layout(NamedTuple):
    """What all rows share."""

    values: dict[bytes, tuple[int, int]] | None
    """Of each name where its value starts and ends; of one that is there twice, the last. None: not the same in all."""
    names: frozenset[bytes]
    same: npt.NDArray[np.bool_]
    """Whether a column is the same in all rows."""
    has_nul: bool


def layout_of(rows: Bytes2D) -> Layout:
    """Of contiguous rows."""
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
