"""The property strings of many records -> Arrow columns: a map of all properties, and the values of single ones.

There are two ways. If all strings have equal lengths and the same names at the same positions, as from one producer of
equal rows, they are the rows of a matrix, and the first one is representative for all (``uniform.py``). All other
strings, also invalid ones, are split with one scan (``property_spans.py``), and each column is ``take``n from an array
over the scanned bytes. The first way takes a quarter of the time (``make bench``: codec.decode.128 and .lines).

``properties.py`` has the rules for single strings. They apply here too: parts without 0x01 are skipped, of duplicate
names the last value counts at the place of the first, and invalid UTF-8 becomes U+FFFD, also in names.

Thread-safety: an instance belongs to one decode, and points into its scratch memory.
Corresponds to MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_rocket.protocol.record.arrays import (
    array_of,
    even_edges,
    numpy_of,
    repeated_text,
    repeated_texts,
    to_strings,
)
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.protocol.record.run import Scratch
from spark_rocket.protocol.record.spans import ByteArray, Ints, blocks
from spark_rocket.protocol.record.uniform import PropertyLayout, Rows, layout_of, value_range


class PropertyColumns(Protocol):
    """The properties of a number of records."""

    def map_array(self, map_type: pa.DataType) -> pa.Array:
        """Return all properties as a column of ``map_type``, a map of string to string."""

    def value_of(self, name: str) -> pa.Array:
        """Return the values of one property, null for records without it."""


def property_columns(
    raw: ByteArray, starts: Ints, ends: Ints, scratch: Scratch, tails: Rows | None = None
) -> PropertyColumns:
    """Split the strings at ``starts`` … ``ends`` in ``raw``. ``tails``: the same as rows, if they are available."""
    rows = _as_rows(raw, starts, ends, scratch) if tails is None else tails
    layout = None if rows is None else layout_of(rows)
    if rows is not None and layout is not None and layout.is_exact:
        return UniformProperties(rows, layout)
    return MixedProperties(PropertySpans(raw, starts, ends - starts))


def _as_rows(raw: ByteArray, starts: Ints, ends: Ints, scratch: Scratch) -> Rows | None:
    """Return the strings as rows, if they have equal lengths."""
    count, length = len(starts), int(ends[0] - starts[0]) if len(starts) else 0
    if not count or not bool((ends - starts == length).all()):
        return None
    rows = scratch.bytes("rows", count * length).reshape(count, length)
    if length:
        rows.view(f"V{length}")[:, 0] = blocks(raw, length)[starts]
    return value_range(rows)


class UniformProperties:
    """Strings with the same names at the same positions."""

    def __init__(self, rows: Rows, layout: PropertyLayout) -> None:
        self._rows = rows
        self._count = len(rows.cells)
        self._places = layout.values

    def value_of(self, name: str) -> pa.Array:
        place = self._places.get(name.encode())
        if place is None:
            return pa.nulls(self._count, pa.string())
        start, end = place
        if not self._rows.vary(start, end):
            return repeated_text(self._rows.first[start:end].decode(), self._count)
        data = pa.py_buffer(self._rows.cells[:, start:end].copy())
        return pa.Array.from_buffers(pa.string(), self._count, [None, even_edges((end - start,), self._count), data])

    def map_array(self, map_type: pa.DataType) -> pa.Array:
        offsets = np.arange(self._count + 1) * len(self._places)
        return _map_of(map_type, offsets, repeated_texts(tuple(self._places), self._count), self._values())

    def _values(self) -> pa.Array:
        rows, count, places = self._rows, self._count, list(self._places.values())
        first = b"".join([rows.first[start:end] for start, end in places])
        data = np.frombuffer(bytearray(first * count), np.uint8).reshape(count, -1)
        at = 0
        for start, end in places:
            if rows.vary(start, end):
                data[:, at : at + end - start] = rows.cells[:, start:end]
            at += end - start
        edges = even_edges(tuple(end - start for start, end in places), count)
        return pa.Array.from_buffers(pa.string(), count * len(places), [None, edges, pa.py_buffer(data)])


class MixedProperties:
    """Any strings."""

    def __init__(self, spans: PropertySpans) -> None:
        self._spans = spans

    def value_of(self, name: str) -> pa.Array:
        records, starts, ends = self._spans.values(name.encode())
        bounds = _bounds(starts, ends)
        if len(records) == self._spans.count:
            return self._texts(bounds, array_of(np.arange(0, 2 * len(records), 2)))
        if not len(records):
            return pa.nulls(self._spans.count, pa.string())
        at = np.full(self._spans.count, -1, np.int64)
        at[records] = np.arange(0, 2 * len(records), 2)
        return self._texts(bounds, array_of(at, at < 0))

    def map_array(self, map_type: pa.DataType) -> pa.Array:
        first, starts, middles, ends = self._spans.pairs()
        bounds = _bounds(starts, middles, middles + 1, ends)
        count = len(starts)
        every = np.arange(0, 4 * count, 4)
        names = self._texts(bounds, array_of(every))
        duplicates = _duplicates(names, first)
        if duplicates is None:
            return _map_of(map_type, first, names, self._texts(bounds, array_of(every + 2)))
        kept, last = duplicates
        names, values = names.take(array_of(kept)), self._texts(bounds, array_of(every[last] + 2))
        return _map_of(map_type, np.searchsorted(kept, first), names, values)

    def _texts(self, bounds: np.ndarray[Any, np.dtype[np.int32]], which: pa.Array) -> pa.Array:
        """Take some of the strings between consecutive ``bounds`` in the scanned bytes."""
        if not bounds.size:
            return pa.nulls(len(which), pa.string())
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._spans.data)]
        kind = pa.string() if self._is_ascii else pa.binary()
        taken = pa.Array.from_buffers(kind, bounds.size - 1, buffers).take(which)
        return taken if self._is_ascii else to_strings(taken)

    @cached_property
    def _is_ascii(self) -> bool:
        return int(self._spans.data.view(np.int8).min()) >= 0


def _bounds(*edges: Ints) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the edges of each string, one string after the other, as Arrow has them."""
    bounds = np.empty((len(edges[0]), len(edges)), np.int32)
    for number, column in enumerate(edges):
        bounds[:, number] = column
    return bounds


def _duplicates(names: pa.Array, first: Ints) -> tuple[Ints, Ints] | None:
    """Return the first and the last place of each name of each record; None if no record has a duplicate.

    ``first``: the place of each record's first name, and the number of names.
    """
    counts = np.diff(first)
    if len(counts) and bool((counts == counts[0]).all()):
        of_one = tuple(text.encode() for text in names.slice(0, int(counts[0])).to_pylist())
        if len(set(of_one)) == len(of_one) and names.equals(repeated_texts(of_one, len(counts))):
            return None  # all records have the names of the first, as most often
    codes = names.dictionary_encode()
    records = np.repeat(np.arange(len(counts)), counts)
    keys = records * len(codes.dictionary) + numpy_of(codes.indices)
    in_order = np.sort(keys, kind="stable")  # the names of a record are adjacent, so a stable sort is fastest
    if not bool((in_order[1:] == in_order[:-1]).any()):
        return None
    _, kept = np.unique(keys, return_index=True)
    _, from_end = np.unique(keys[::-1], return_index=True)
    order = np.argsort(kept)
    return kept[order], (len(keys) - 1 - from_end)[order]


def _map_of(map_type: pa.DataType, offsets: np.ndarray[Any, Any], names: pa.Array, values: pa.Array) -> pa.Array:
    pairs = pa.StructArray.from_arrays([names, values], fields=[map_type.key_field, map_type.item_field])
    edges = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(map_type, len(offsets) - 1, [None, edges], children=[pairs])
