"""Byte strings of any lengths at any places of a buffer ("spans"): walked, copied and hashed many at a time.

No Python runs per string, except where each length field leads to the next one (``walk_sizes``). The rest is done with
a few array operations for all strings whose lengths have the same number of bits: such a string is copied as two blocks
as long as the shortest of them, one at its start and one at its end, which may overlap. Work and memory are
linear in the number of strings and their bytes. Without pyarrow, which servers do not load.

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
_VIEWED = 2048  # for strings up to this mean length a copy is cheaper than a view
_LARGE = 4096  # strings from this length on are copied one by one
_PASS_BYTES = 1 << 18  # copied at once: the intermediate memory stays in a core's cache
_SHORT = 15  # strings of up to this length are hashed together
_MATRIX_BYTES = 1 << 20  # of strings hashed at once


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
    view: Any = bytes(data) if len(data) < len(starts) * _VIEWED else memoryview(data)
    bodies = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return np.fromiter(map(crc32, bodies), np.int64, len(starts)) & CRC_MASK


def copy_spans(source: ByteArray, starts: Ints, lengths: Ints, target: ByteArray, places: Ints) -> None:
    """Copy strings of ``source`` to ``places`` in ``target``; source and target do not overlap."""
    for rows, width, longest in _groups(lengths, 0):
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


def _groups(lengths: Ints, small: int) -> Iterator[tuple[Any, int, int]]:
    """Yield an index of rows, and the smallest and largest length in them.

    The largest is at most twice the smallest, or ``small``.
    """
    if not len(lengths):
        return
    shortest, longest = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
    if longest <= max(2 * shortest, small):
        yield slice(None), shortest, longest
        return
    bits = np.frexp(np.maximum(lengths, small))[1]
    for number in range(int(bits.min()), int(bits.max()) + 1):
        rows = np.flatnonzero(bits == number)
        if len(rows):
            of_group = lengths[rows]
            yield rows, int(of_group.min()), int(of_group.max())


@cache
def _powers(width: int) -> Hashes:
    """Return 31^(width - 1) … 31^0, modulo 2^32."""
    powers = np.full(width, 31, np.uint32)
    powers[:1] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)[::-1].copy()  # wraps at 32 bits, as Java's int does


def java_hashes(raw: ByteArray, starts: Ints, ends: Ints, before: Hashes | None = None) -> Hashes:
    """Return Java's ``String.hashCode`` of strings in UTF-8, as unsigned numbers.

    ``before``: the hash of a string before each of them. Before the first string, ``raw`` must have as many bytes as
    the longest string. Invalid bytes count as U+FFFD.
    """
    hashes = np.zeros(len(starts), np.uint32) if before is None else before
    if int(raw.max(initial=0)) < _ASCII_END:
        return _hash_units(raw, starts, ends, hashes)
    high = np.flatnonzero(raw >= _ASCII_END)
    is_ascii = np.searchsorted(high, starts) == np.searchsorted(high, ends)
    rows, others = np.flatnonzero(is_ascii), np.flatnonzero(~is_ascii)
    found = np.empty_like(hashes)
    found[rows] = _hash_units(raw, starts[rows], ends[rows], hashes[rows])
    sums = (ends[others] - starts[others]).cumsum()
    cuts = np.searchsorted(sums, np.arange(_MATRIX_BYTES, sums[-1] if len(sums) else 0, _MATRIX_BYTES))
    for part in np.split(others, cuts):
        if len(part):
            found[part] = _hash_units(*_utf16(raw, starts[part], ends[part]), hashes[part])
    return found


def _hash_units(units: Units, starts: Ints, ends: Ints, before: Hashes) -> Hashes:
    """Hash strings of these units, continued from the hashes ``before``."""
    lengths = ends - starts
    hashes = before.copy()
    for rows, _, width in _groups(lengths, _SHORT):
        if not width:
            continue
        of_group, step = np.arange(len(starts))[rows], max(_MATRIX_BYTES // width, 1)
        for at in range(0, len(of_group), step):
            part = of_group[at : at + step]
            hashes[part] = _hash_rows(units, width, ends[part], lengths[part], hashes[part])
    return hashes


def _hash_rows(units: Units, width: int, ends: Ints, lengths: Ints, before: Hashes) -> Hashes:
    """Hash strings of up to ``width`` units, as the rows of a matrix, with zeros on the left."""
    cells = blocks(units, width)[ends - width].view(units.dtype).reshape(-1, width)
    powers = _powers(1 << width.bit_length())[-width - 1 :]
    scale: Any = powers[0]
    if int(lengths.min()) < width:
        cells *= np.arange(width) >= (width - lengths)[:, None]
        scale = powers[width - lengths]
    hashes: Hashes = np.einsum("ij,j->i", cells, powers[1:], dtype=np.uint32, casting="unsafe")
    hashes += before * scale
    return hashes


def _utf16(raw: ByteArray, starts: Ints, ends: Ints) -> tuple[Units, Ints, Ints]:
    """Return strings in UTF-16, and the start and end of each.

    All are decoded at once, with a newline before and after each string: a newline is one byte and one unit, and ends
    an invalid sequence like the end of the text does. So the newlines of both forms correspond.
    """
    lengths = ends - starts
    pad = int(lengths.max()) + 1  # for java_hashes()
    places = (lengths + 1).cumsum() + pad - lengths - 1
    text = np.full(int(places[-1] + lengths[-1]) + 1, _NEWLINE, np.uint8)
    copy_spans(raw, starts, lengths, text, places)
    units = np.frombuffer(text.tobytes().decode("utf-8", "replace").encode("utf-16-le"), np.dtype("<u2"))
    of_bytes, of_units = np.flatnonzero(text == _NEWLINE), np.flatnonzero(units == _NEWLINE)
    before, after = (of_units[np.searchsorted(of_bytes, edges)] for edges in (places - 1, places + lengths))
    return units, before + 1, after
