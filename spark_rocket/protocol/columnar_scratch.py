"""Memory that the columnar codec uses again and again instead of asking for fresh pages at every call.

On virtual machines the first touch of a page can cost more than decoding all the records on it.
Thread-safety: a ``Scratch`` belongs to one call at a time; taking one out of the idle list and putting it back are
single steps of the interpreter. No RocketMQ class corresponds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_U8 = np.ndarray[Any, np.dtype[np.uint8]]

_KEEP_BYTES = 32 * 1024 * 1024  # larger blocks are not kept
_KEEP_IDLE = 4


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
