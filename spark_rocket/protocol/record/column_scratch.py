"""Memory that the columnar codec uses again and again, and a look at the columns of rows of bytes. Without pyarrow:
the broker has it too.

Memory is used again instead of asking for fresh pages at every call: on virtual machines the first touch of a page
can cost more than decoding all the records on it.
Thread-safety: a ``Scratch`` belongs to one call at a time; taking one out of the idle list and putting it back are
single steps of the interpreter. No RocketMQ class corresponds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

_U8 = np.ndarray[Any, np.dtype[np.uint8]]

_KEEP_BYTES = 32 * 1024 * 1024  # larger blocks are not kept
_KEEP_IDLE = 4
_AT_ONCE = 64


class Scratch:
    """Named blocks of bytes. What is in one stays until the same name is asked for again."""

    def __init__(self) -> None:
        self._blocks: dict[str, _U8] = {}

    def bytes(self, name: str, size: int) -> _U8:
        """``size`` bytes of whatever was in them before."""
        block = self._blocks.get(name)
        if block is None or len(block) < size:
            block = np.empty(size + size // 4, np.uint8)
            if len(block) <= _KEEP_BYTES:
                self._blocks[name] = block
        return block[:size]


@dataclass(frozen=True)
class Tails:
    """What is behind the body, of records that are parted alike: a row for each, and each column's extremes."""

    rows: _U8
    low: _U8
    high: _U8

    def vary(self, start: int, end: int) -> bool:
        return self.low[start:end].tobytes() != self.high[start:end].tobytes()

    def behind(self, start: int) -> Tails:
        """The rest of them."""
        return Tails(self.rows[:, start:], self.low[start:], self.high[start:])


_idle: list[Scratch] = []


@contextmanager
def borrowed_scratch() -> Iterator[Scratch]:
    """A scratch for one decode; nothing that outlives it may point into the blocks."""
    try:
        scratch = _idle.pop()
    except IndexError:
        scratch = Scratch()
    try:
        yield scratch
    finally:
        if len(_idle) < _KEEP_IDLE:
            _idle.append(scratch)


def column_extremes(rows: _U8) -> tuple[_U8, _U8]:
    """Of contiguous rows the least and the greatest byte of each column. Many rows at a time, for a row is short."""
    length = rows.shape[1]
    whole = len(rows) // _AT_ONCE * _AT_ONCE
    if not whole:
        return rows.min(axis=0), rows.max(axis=0)
    wide, rest = rows[:whole].reshape(-1, _AT_ONCE * length), rows[whole:]
    low, high = wide.min(axis=0).reshape(_AT_ONCE, length), wide.max(axis=0).reshape(_AT_ONCE, length)
    return np.concatenate((low, rest)).min(axis=0), np.concatenate((high, rest)).max(axis=0)
