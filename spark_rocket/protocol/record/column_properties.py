"""The property strings of many records -> an Arrow map, keys and values, in one scan.

A property string is ``name 0x01 value`` pairs separated by 0x02, with or without a 0x02 after the last pair
(``properties.py`` decodes single ones; its rules for invalid strings apply here too).

The strings are copied one after the other, each preceded by one byte, which becomes a 0x02, and without a final 0x02.
Then the separators of the entire run, found with one scan, must alternate 2 1 2 1 …: text before a 1 is a name, text
before the next 2 is a value, and both columns are ``take``n from one array whose offsets alternate separator and text.
If every record has the same names at the same positions, as from one producer, the first record is representative for
all (``uniform.py``).
Strings that violate the pattern (a part without 0x01, a 0x01 inside a value, a duplicate name, or invalid UTF-8, which
could be decoded like another name) send the run to the general path, with one dictionary per record.

Thread-safety: an instance belongs to one decode, and points into its scratch memory.
Corresponds to MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.protocol.record.arrays import array_of, numpy_of, strings_of
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.run import Scratch
from spark_rocket.protocol.record.uniform import Rows, layout_of, value_range

_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]

_PAD_BYTES = 8  # bytes of padding on both sides, so that eight bytes can be read before any end and after any start


def to_strings(array: pa.Array) -> pa.Array:
    """Convert binary to string; invalid UTF-8 becomes U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pa.array(texts, pa.string())


@lru_cache(8)
def repeated_text(text: str, count: int) -> pa.Array:
    """Return a column with one constant text."""
    data = text.encode()
    return pa.Array.from_buffers(
        pa.string(), count, [None, even_edges((len(data),), count), pa.py_buffer(data * count)]
    )


@lru_cache(8)
def even_edges(lengths: tuple[int, ...], count: int) -> pa.Buffer:
    """Return the offsets of ``count`` repetitions of strings with these lengths."""
    edges = np.zeros(count * len(lengths) + 1, np.int32)
    if lengths:
        ends = np.cumsum(lengths, dtype=np.int32)
        edges[1:] = np.add.outer(np.arange(count, dtype=np.int32) * ends[-1], ends).ravel()
    return pa.py_buffer(edges)


@lru_cache(2)
def repeated_texts(texts: tuple[bytes, ...], count: int) -> pa.Array:
    """Return a column with repetitions of some strings."""
    edges = even_edges(tuple(map(len, texts)), count)
    return pa.Array.from_buffers(pa.string(), count * len(texts), [None, edges, pa.py_buffer(b"".join(texts) * count)])


class PropertyColumns:
    """The properties of ``len(starts)`` records at ``starts`` … ``ends`` in ``raw``."""

    def __init__(self, raw: _U8, starts: _I64, ends: _I64, scratch: Scratch, tails: Rows | None = None) -> None:
        """``tails``: the same strings as rows, if they have equal lengths and are available."""
        self._count = len(starts)
        self._pair_offsets: _I64 = np.zeros(self._count + 1, np.int64)
        self._per_record: int | None = None  # pairs per record, if all have the same number
        self._names: pa.Array | None = None
        self._values: pa.Array | None = None
        self._texts: pa.Array | None = None  # separator, text, separator, text … after the fast path
        self._layout: list[bytes] | None = None  # the names of every record, if all have the same
        self._rows: Rows | None = None  # the strings of all records, if names and values have the same positions
        if self._count:
            if tails is None:
                tails = self._as_rows(raw, starts, ends, scratch)
            if tails is not None and self._split_uniform(tails):
                return
            if self._split(raw, starts, ends, scratch):
                return
        self._split_slowly(raw, starts, ends)

    def map_array(self, map_type: pa.DataType) -> pa.Array:
        """Return all properties as a column of ``map_type``, a map of string to string."""
        offsets = pa.py_buffer(self._pair_offsets.astype(np.int32))
        struct = pa.StructArray.from_arrays(
            [self._name_array(), self._value_array()], fields=[map_type.key_field, map_type.item_field]
        )
        return pa.Array.from_buffers(map_type, self._count, [None, offsets], children=[struct])

    def value_of(self, name: str) -> pa.Array:
        """Return the values of one property, null for records without it."""
        if self._layout is not None and self._per_record is not None:
            if name.encode() not in self._layout:
                return pa.nulls(self._count, pa.string())
            column = self._layout.index(name.encode())
            if self._rows is not None:
                return self._cut(*self._places[column])
            return self._take_texts(4 * np.arange(column, self._count * self._per_record, self._per_record) + 3)
        found = np.flatnonzero(numpy_of(pc.equal(self._name_array(), strings_of([name])[0])))
        at = np.full(self._count, -1, np.int64)
        at[np.searchsorted(self._pair_offsets, found, side="right") - 1] = found
        if self._texts is None:
            return self._value_array().take(array_of(at, at < 0))
        return self._take_texts(4 * at + 3, at < 0)

    # --- records with the same names at the same positions ----------------------------------------------------

    def _as_rows(self, raw: _U8, starts: _I64, ends: _I64, scratch: Scratch) -> Rows | None:
        """Return the strings as rows, if they have equal lengths."""
        count, length = self._count, int(ends[0] - starts[0])
        if not bool((ends - starts == length).all()):
            return None
        rows = scratch.bytes("rows", count * length).reshape(count, length)
        if length:
            every = np.ndarray((len(raw) - length + 1,), f"V{length}", raw, strides=(1,))
            rows.view(f"V{length}")[:, 0] = every[starts]
        return value_range(rows)

    def _split_uniform(self, rows: Rows) -> bool:
        layout = layout_of(rows)
        if layout is None or not layout.is_exact:
            return False
        self._rows, self._layout, self._places = rows, list(layout.values), list(layout.values.values())
        self._per_record = len(self._layout)
        self._pair_offsets = np.arange(self._count + 1) * self._per_record
        return True

    def _cut(self, start: int, end: int) -> pa.Array:
        """Return a column of values."""
        assert self._rows is not None
        count, length = self._count, end - start
        if not self._rows.vary(start, end):
            return repeated_text(self._rows.first[start:end].decode(), count)
        data = pa.py_buffer(self._rows.cells[:, start:end].copy())
        return pa.Array.from_buffers(pa.string(), count, [None, even_edges((length,), count), data])

    # --- the fast path ----------------------------------------------------------------------------------------

    def _split(self, raw: _U8, starts: _I64, ends: _I64, scratch: Scratch) -> bool:
        count = self._count
        lengths = ends - starts
        some = lengths > 0
        ends = ends - (some & (raw[ends - 1] == 2))  # ends - 1 is inside: a length field lies before every string
        some = ends > starts
        every = bool(some.all())
        bounds = np.zeros(2 * count + 1, np.int32)
        bounds[1::2] = starts - some
        bounds[2::2] = ends
        layout = [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
        strings = pa.Array.from_buffers(pa.binary(), 2 * count, layout).take(array_of(np.arange(1, 2 * count, 2)))
        begins = np.frombuffer(strings.buffers()[1], np.int32, count).astype(np.int64) + _PAD_BYTES
        text = np.frombuffer(strings.buffers()[2] or b"", np.uint8)
        size = int(np.frombuffer(strings.buffers()[1], np.int32, count + 1)[-1])
        data = scratch.bytes("properties", size + 2 * _PAD_BYTES)
        data[:_PAD_BYTES] = data[_PAD_BYTES + size :] = 0
        data[_PAD_BYTES : _PAD_BYTES + size] = text[:size]
        heads = begins if every else begins[some]
        data[heads] = 2
        mask = scratch.bytes("mask", len(data))
        is_mark = np.less_equal(np.subtract(data, 1, out=mask), 1, out=mask.view(bool))
        at = np.flatnonzero(is_mark)
        if len(at) % 2 or bool((data[at].view("<u2") != 0x0102).any()):
            return False
        self._find_records(at[0::2], heads, begins, every)
        self._set_texts(at, data, size)
        return self._names_are_text() and not self._have_duplicates(data, at)

    def _set_texts(self, at: np.ndarray[Any, Any], data: _U8, size: int) -> None:
        """Return an array of separator, text, separator, text … over ``data``."""
        edges = np.empty(2 * len(at) + 1, np.int32)
        edges[0:-1:2] = at
        np.add(at, 1, out=edges[1::2], casting="same_kind")
        edges[-1] = size + _PAD_BYTES
        kind = pa.string() if int(data.view(np.int8).min()) >= 0 else pa.binary()
        self._texts = pa.Array.from_buffers(kind, 2 * len(at), [None, pa.py_buffer(edges), pa.py_buffer(data)])

    def _names_are_text(self) -> bool:
        assert self._texts is not None
        if self._texts.type != pa.string():
            try:
                self._names = self._texts.take(array_of(np.arange(1, len(self._texts), 4))).cast(pa.string())
            except pa.ArrowInvalid:
                return False
        return True

    def _find_records(self, opens: _I64, heads: _I64, begins: _I64, every: bool) -> None:
        count, pairs = self._count, len(opens)
        if every and pairs and pairs % count == 0:
            per_record = pairs // count
            if bool((opens[::per_record] == heads).all()):
                self._per_record = per_record
                self._pair_offsets = np.arange(0, pairs + 1, per_record)
                return
        self._pair_offsets[:-1] = np.searchsorted(opens, begins)
        self._pair_offsets[-1] = pairs

    def _have_duplicates(self, data: _U8, at: _I64) -> bool:
        """Whether a record has a duplicate name."""
        begins, ends = at[0::2] + 1, at[1::2]
        lengths = ends - begins
        per_record = self._per_record
        if per_record is not None and bool((lengths.reshape(-1, per_record) == lengths[:per_record]).all()):
            # Most often every record has the names of the first, in the same order.
            layout = [data[begins[i] : ends[i]].tobytes() for i in range(per_record)]
            taken = self._name_array().buffers()[2]
            if taken is None or taken[: int(lengths.sum())] == b"".join(layout) * self._count:
                self._layout = layout
                return len(set(layout)) < per_record
        names = self._name_array().dictionary_encode()
        record = np.repeat(np.arange(self._count), np.diff(self._pair_offsets))
        # The names of a record are adjacent, so a stable sort is fastest.
        pairs = np.sort(record * len(names.dictionary) + numpy_of(names.indices), kind="stable")
        return bool((pairs[1:] == pairs[:-1]).any())

    def _take_texts(self, at: _I64, missing: np.ndarray[Any, Any] | None = None) -> pa.Array:
        assert self._texts is not None
        taken = self._texts.take(array_of(at, missing))
        return taken if taken.type == pa.string() else to_strings(taken)

    def _name_array(self) -> pa.Array:
        if self._names is None and self._rows is not None:
            assert self._layout is not None
            self._names = repeated_texts(tuple(self._layout), self._count)
        if self._names is None:
            self._names = self._take_texts(np.arange(1, 4 * int(self._pair_offsets[-1]), 4))
        return self._names

    def _value_array(self) -> pa.Array:
        if self._values is None and self._rows is not None:
            rows, places = self._rows, self._places
            first = b"".join([rows.first[start:end] for start, end in places])
            data = np.frombuffer(bytearray(first * self._count), np.uint8).reshape(self._count, -1)
            at = 0
            for start, end in places:
                if rows.vary(start, end):
                    data[:, at : at + end - start] = rows.cells[:, start:end]
                at += end - start
            edges = even_edges(tuple(end - start for start, end in places), self._count)
            self._values = pa.Array.from_buffers(
                pa.string(), self._count * len(places), [None, edges, pa.py_buffer(data)]
            )
        if self._values is None:
            self._values = self._take_texts(np.arange(3, 4 * int(self._pair_offsets[-1]), 4))
        return self._values

    # --- the general path -------------------------------------------------------------------------------------

    def _split_slowly(self, raw: _U8, starts: _I64, ends: _I64) -> None:
        view = raw.data
        names: list[str] = []
        values: list[str] = []
        offsets = [0]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            found = decode_properties(bytes(view[start:end]))
            names.extend(found.keys())
            values.extend(found.values())
            offsets.append(len(names))
        self._per_record = self._layout = self._texts = None  # discard the results of the fast path
        self._pair_offsets = np.array(offsets, np.int64)
        self._names = strings_of(names)
        self._values = strings_of(values)
