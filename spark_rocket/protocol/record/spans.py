"""Byte strings of any lengths at any places of a buffer ("spans"): walked, copied and hashed many at a time.

No Python runs per string, except where each length field leads to the next one (``walk_sizes``). The rest is done with
a few array operations. Strings whose lengths have the same number of bits are copied together: each as two blocks as
long as the shortest of them, one at its start and one at its end, which may overlap. Work and memory are linear in the
number of strings and the bytes of the buffer. Without pyarrow, which servers do not load.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import CRC_MASK, INT

ByteArray = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]
Units = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

_ASCII_END = 0x80
_NEWLINE = 0x0A
_INVERSE = pow(31, -1, 1 << 32)
_LARGE = 4096  # strings from this length on are copied one by one
_PASS_BYTES = 1 << 18  # copied at once: the intermediate memory stays in a core's cache
_HASHED_BYTES = 1 << 18  # of strings hashed at once
_GAP = 32  # hashing as many bytes between strings takes as long as copying a string
_GAPS = 1 << 13  # the same for a call of copy_spans()


def walk_sizes(data: Buffer, least: int) -> tuple[Ints, int]:
    """Follow items that begin with their size; return their starts, and the place where the walk ended.

    It ends at or after the end of ``data``, or at an item that is smaller than ``least`` or not complete up to there;
    this item's start is not returned. Items as large as the first one are not visited one by one.
    """
    size_at, last = INT.unpack_from, len(data) - least
    size = size_at(data, 0)[0] if last >= 0 else 0
    if size < least:
        return np.empty(0, np.int64), 0
    sizes = np.ndarray((max(len(data) // size, 1),), ">i4", data, 0, (size,))
    is_other = sizes != size
    first_other = int(is_other.argmax())
    equal = first_other if is_other[first_other] else len(sizes)
    starts: list[int] = []
    append, at = starts.append, equal * size
    while at <= last:
        (size,) = size_at(data, at)
        if size < least:
            break
        append(at)
        at += size
    first: Ints = np.arange(equal) * sizes[0]
    return np.concatenate((first, np.array(starts, np.int64))) if starts else first, at


@lru_cache(1024)  # parsing the type's name takes longer than making a view
def void_type(width: int) -> np.dtype[np.void]:
    return np.dtype(f"V{width}")


def blocks(raw: Units, width: int) -> npt.NDArray[np.void]:
    """Return a view of the ``width`` units (in general bytes) from every place of ``raw`` on."""
    size = raw.itemsize
    return np.ndarray((max(len(raw) - width + 1, 0),), void_type(width * size), raw, strides=(size,))


def gather(raw: ByteArray, places: Ints, kind: str) -> Ints:
    """Return numbers at any places, which the caller has checked."""
    if not len(places):
        return np.empty(0, np.int64)
    found: Ints = blocks(raw, np.dtype(kind).itemsize)[places].view(kind).astype(np.int64)
    return found


def body_crcs(data: Buffer, starts: Ints, ends: Ints) -> Ints:
    """Return the CRC of each body as in the header of its record."""
    view = memoryview(data)
    crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(crcs, np.int64) & CRC_MASK


def copy_spans(source: ByteArray, starts: Ints, lengths: Ints, target: ByteArray, places: Ints) -> None:
    """Copy strings of ``source`` to ``places`` in ``target``; source and target do not overlap."""
    for rows, width, longest in _groups(lengths):
        begins, at, sizes = starts[rows], places[rows], lengths[rows]
        if width >= _LARGE:
            _copy_one_by_one(source, begins, sizes, target, at)
            continue
        read, write, step = blocks(source, width), blocks(target, width), _PASS_BYTES // max(width, 1)
        for first in range(0, len(at) if width else 0, step):
            some = slice(first, first + step)
            write[at[some]] = read[begins[some]]
            if width < longest:
                rest = sizes[some] - width
                write[at[some] + rest] = read[begins[some] + rest]


def _copy_one_by_one(source: ByteArray, starts: Ints, lengths: Ints, target: ByteArray, places: Ints) -> None:
    """Copy long strings, each once."""
    read, write = source.data, target.data
    columns = (starts, starts + lengths, places, places + lengths)
    for start, end, place, stop in zip(*(column.tolist() for column in columns), strict=True):
        write[place:stop] = read[start:end]


def _groups(lengths: Ints) -> Iterator[tuple[Any, int, int]]:
    """Yield an index of rows, and the smallest and largest length in them: at most twice the smallest."""
    if not len(lengths):
        return
    shortest, longest = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
    if longest <= 2 * shortest:
        yield slice(None), shortest, longest
        return
    bits = np.frexp(lengths)[1]
    for number in range(int(bits.min()), int(bits.max()) + 1):
        rows = np.flatnonzero(bits == number)
        if len(rows):
            of_group = lengths[rows]
            yield rows, int(of_group.min()), int(of_group.max())


@cache
def _powers(base: int, bits: int) -> Hashes:
    """Return the powers of a number from 0 to 2^bits, modulo 2^32."""
    powers = np.full((1 << bits) + 1, base, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)  # wraps at 32 bits, as Java's int does


def java_hashes(raw: ByteArray, starts: Ints, ends: Ints, before: Hashes | None = None) -> Hashes:
    """Return Java's ``String.hashCode`` of strings in UTF-8, as unsigned numbers.

    ``before``: the hash of a string before each of them. Invalid bytes count as U+FFFD.

    A hash is the sum of the units c at the places p as c * 31^(end - 1 - p). 31 is odd and therefore has an inverse
    modulo 2^32, so it is the difference of two running sums of c / 31^(p + 1), times 31^end.
    """
    lengths = ends - starts
    size = int(lengths.sum())
    if size > _HASHED_BYTES and len(starts) > 1:
        halves = []
        for part in (slice(len(starts) // 2), slice(len(starts) // 2, None)):
            low, high = starts[part].min(), ends[part].max()
            of_part = None if before is None else before[part]
            halves.append(java_hashes(raw[low:high], starts[part] - low, ends[part] - low, of_part))
        return np.concatenate(halves)
    units: Units = raw
    if int(raw.max(initial=0)) >= _ASCII_END or len(raw) > size + _GAP * len(starts) + _GAPS:
        units, starts, ends = _separate(raw, starts, lengths)
    bits = len(units).bit_length()
    sums = np.zeros(len(units) + 1, np.uint32)
    sums[1:] = units
    sums *= _powers(_INVERSE, bits)[: len(sums)]
    np.add.accumulate(sums, out=sums)
    powers = _powers(31, bits)
    hashes: Hashes = (sums[ends] - sums[starts]) * powers[ends]
    return hashes if before is None else hashes + before * powers[ends - starts]


def _separate(raw: ByteArray, starts: Ints, lengths: Ints) -> tuple[Units, Ints, Ints]:
    """Copy strings, with a newline before and after each; return them in ASCII or UTF-16, and their starts and ends.

    All are decoded at once: a newline is one byte and one unit, and ends an invalid sequence like the end of the text
    does. So the newlines of both forms correspond.
    """
    edges = np.append(0, (lengths + 1).cumsum())
    text = np.full(int(edges[-1]) + 1, _NEWLINE, np.uint8)
    copy_spans(raw, starts, lengths, text, edges[:-1] + 1)
    units: Units = text
    if int(text.max()) >= _ASCII_END:
        units = np.frombuffer(text.tobytes().decode("utf-8", "replace").encode("utf-16-le"), np.dtype("<u2"))
        of_bytes, of_units = np.flatnonzero(text == _NEWLINE), np.flatnonzero(units == _NEWLINE)
        edges = of_units[np.searchsorted(of_bytes, edges)]
    return units, edges[:-1] + 1, edges[1:]
