"""Where the records of a run start and what is at any place of them, for columnar decoding.

Guarantees about starts: the first is at 0, each is where the one before ends, and the last record ends the run.
Pure, but for working memory that is lent to one call at a time. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.column_scratch import Scratch
from spark_rocket.protocol.record.record import FIXED_SIZE, MAGIC_V1, MAGIC_V2
from spark_rocket.protocol.record.unwrap import record_name

_MAGIC_FIRST_BYTE = MAGIC_V1 >> 24
_SCAN_BELOW = 640  # record size in bytes under which one scan is faster than following the chain
_BLOCK = 1 << 20
_REMEDY = "The answer or file is damaged or cut short: read it again, or check the store."
_INT = Struct(">i")
_LONG = Struct(">q")
_Any = np.ndarray[Any, Any]
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]


def record_starts(raw: _U8, scratch: Scratch) -> _I64:
    """Where each record starts."""
    end = len(raw)
    if end == 0:
        return np.empty(0, np.int64)
    first = _INT.unpack_from(raw.data, 0)[0] if end >= FIXED_SIZE else 0
    if first < FIXED_SIZE or first > end:
        raise ProtocolError(f"The record at byte 0 says it is {first} bytes long, of {end} received.", remedy=_REMEDY)
    if first < _SCAN_BELOW:
        # Candidates by the first byte of the magic, then by all of it; the chain check makes it a proof.
        found: _I64 = _positions(raw[4 : end - FIXED_SIZE + 5], _MAGIC_FIRST_BYTE, scratch)
        magic = gather(raw, found + 4, ">u4")
        found = found[(magic == MAGIC_V1) | (magic == MAGIC_V2)]
        if len(found) and found[0] == 0:
            sizes = gather(raw, found, ">i4")
            ends = found + sizes
            if ends[-1] == end and bool((ends[:-1] == found[1:]).all()) and bool((sizes >= FIXED_SIZE).all()):
                return found
    starts: list[int] = []
    append, size_at, at, last = starts.append, _INT.unpack_from, 0, end - FIXED_SIZE
    view = raw.data
    while at <= last:
        append(at)
        (size,) = size_at(view, at)
        if size < FIXED_SIZE:
            after = f", after the {_record(raw, starts[-2])}," if len(starts) > 1 else ""
            raise ProtocolError(f"The record at byte {at}{after} says it is {size} bytes long.", remedy=_REMEDY)
        at += size
    if at != end:
        raise ProtocolError(f"The run of {end} bytes ends inside the {_record(raw, starts[-1])}.", remedy=_REMEDY)
    return np.array(starts, np.int64)


def _positions(data: _U8, byte: int, scratch: Scratch) -> _I64:
    """Where a rare byte occurs: words of eight first, then the bytes of the words that have it.

    In blocks, because fresh memory for a mask of everything would cost more than the search.
    """
    mask = scratch.bytes("mask", min(_BLOCK, -(-len(data) // 8) * 8)).view(bool)
    found = []
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        np.equal(block, byte, out=mask[: len(block)])
        mask[len(block) :] = False
        words = np.flatnonzero(mask.view(np.uint64) != 0)
        inside = np.flatnonzero(mask.reshape(-1, 8)[words])
        found.append(words[inside >> 3] * 8 + (inside & 7) + start)
    return np.concatenate(found)


def gather(raw: _U8, positions: _I64, dtype: str) -> _I64:
    """Integers at any byte positions, which the caller has checked to be inside."""
    width = np.dtype(dtype).itemsize
    if len(positions) == 0:
        return np.empty(0, np.int64)
    every = np.ndarray((len(raw) - width + 1,), f"V{width}", raw, strides=(1,))
    found: _I64 = every[positions].view(dtype).astype(np.int64)
    return found


def refuse(wrong: _Any, raw: _U8, starts: _I64, what: str) -> None:
    if wrong.any():
        raise ProtocolError(f"The {_record(raw, int(starts[wrong.argmax()]))}, {what}.", remedy=_REMEDY)


def _record(raw: _U8, start: int) -> str:
    return record_name(_LONG.unpack_from(raw.data, start + 20)[0], start)
