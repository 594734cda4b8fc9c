"""Arrow columns -> the bodies of batch sends (request 320), with no Python per row.

``layout.py`` has the byte table of a batch body. ``plan_rows`` checks every row and computes its position, so that a
caller can cut requests. ``RowsPlan.encode`` joins the bytes of all rows with one call of Arrow's
``binary_join_element_wise``: heads, bodies, and the names and values of properties. Rows may have any lengths.

Property strings are written with a 0x02 after every pair, the last too, as RocketMQ 5 writes them. Names and values
with a separator, and strings above 32,767 bytes, raise ``RowProtocolError``, which has the row.

Thread-safety: functions are pure, a plan belongs to one thread. Corresponds to MessageDecoder.encodeMessages and
messageProperties2String.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.errors import ProtocolError, RowProtocolError
from spark_rocket.protocol.record.arrays import array_of, binary_scalar, numpy_of
from spark_rocket.protocol.record.layout import BATCH_OVERHEAD
from spark_rocket.protocol.record.properties import MAX_PROPERTIES_LENGTH

_MAX_BUFFER_BYTES = 2**31 - 1
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]
_HEX = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)
_Piece: TypeAlias = pa.Array | bytes
"""A part of each row: values, or the same bytes in every row."""


class RowsPlan:
    """Checked rows, ready to be encoded."""

    def __init__(self, bodies: pa.Array, properties: Sequence[_Piece]) -> None:
        """``properties``: the parts of each row's property string; binary, without nulls."""
        self._bodies, self._body_lengths = binary_values(bodies, "body")
        self._properties = properties
        self._encoded: memoryview | None = None
        self.property_lengths = np.zeros(len(bodies), np.int64)
        for piece in properties:
            self.property_lengths += len(piece) if isinstance(piece, bytes) else np.diff(value_offsets(piece))
        self.positions = np.zeros(len(bodies) + 1, np.int64)
        """The ``n + 1`` positions at which rows start in one batch body of all, the last being its length."""
        np.cumsum(self._body_lengths + self.property_lengths + BATCH_OVERHEAD, out=self.positions[1:])

    def encode(self, low: int, high: int) -> memoryview:
        """The batch body of the rows from ``low`` to before ``high``."""
        if self._encoded is None:  # all at once: delayed rows are sent one by one
            self._encoded = self._encode()
        return self._encoded[self.positions[low] : self.positions[high]]

    def _encode(self) -> memoryview:
        count, lengths = len(self._bodies), self.property_lengths
        if not count:
            return memoryview(b"")
        if int(lengths.max()) > MAX_PROPERTIES_LENGTH:
            row = int(lengths.argmax())
            raise RowProtocolError(
                f"row {row} has properties of {int(lengths[row])} bytes; the limit is {MAX_PROPERTIES_LENGTH}.",
                row=row,
                remedy="Move large values into the body.",
            )
        heads = np.zeros((count, 5), ">i4")
        heads[:, 0] = np.diff(self.positions)
        heads[:, 4] = self._body_lengths
        tails = lengths.astype(">i2").view(np.uint8).reshape(count, -1)
        parts = [_fixed(heads.view(np.uint8)), self._bodies, _fixed(tails), *self._properties]
        size = int(self.positions[-1])
        is_large = size > _MAX_BUFFER_BYTES or self._bodies.type == pa.large_binary()
        joined = _join(parts, pa.large_binary() if is_large else pa.binary())
        return memoryview(joined.buffers()[2]).cast("B")[:size]


def plan_rows(bodies: pa.Array, columns: Mapping[str, pa.Array | None], map_column: pa.Array | None = None) -> RowsPlan:
    """Check rows whose properties are ``columns`` and ``map_column``, as ``encode_properties_columns`` has them.

    RowProtocolError knows the row.
    """
    count = len(bodies)
    given = {name: value for name, value in columns.items() if value is not None and value.null_count < count}
    return RowsPlan(bodies, _property_pieces(count, given, map_column))


def encode_batch(bodies: pa.Array, properties: pa.Array) -> tuple[memoryview, _I64]:
    """The batch body of all rows and the ``n + 1`` positions at which rows start, the last being its length.

    ``bodies`` may be binary or string; ``properties`` is what ``encode_properties_columns`` returns.
    """
    count = len(bodies)
    if len(properties) != count:
        raise ProtocolError(f"{count} bodies but {len(properties)} property strings.")
    plan = RowsPlan(bodies, [binary_values(properties, "property string")[0]])
    return plan.encode(0, count), plan.positions


def encode_properties_columns(
    count: int, columns: Mapping[str, pa.Array | str | None], map_column: pa.Array | None = None
) -> pa.Array:
    """One property string a row.

    ``columns`` gives the values of single properties: an array (nulls are omitted), or one string for all rows. The
    pairs of ``map_column`` (map of string to string) come before them; a pair whose name is also one of ``columns`` is
    used only in rows where that column is null. Nulls in the map and null maps are omitted.
    """
    pieces = _property_pieces(count, columns, map_column)
    if all(isinstance(piece, bytes) for piece in pieces):
        return pa.repeat(binary_scalar(b"".join(pieces)), count)
    return _join(pieces)


def _property_pieces(
    count: int, columns: Mapping[str, pa.Array | str | None], map_column: pa.Array | None
) -> list[_Piece]:
    pieces: list[_Piece] = []
    given = {name: value for name, value in columns.items() if value is not None}
    if map_column is not None and len(map_column):
        pieces.append(_map_strings(map_column, given))
    fixed = b""  # text that is the same in every row, not yet in ``pieces``
    for name, value in given.items():
        _refuse_separators_in_text(name)
        if isinstance(value, str):
            _refuse_separators_in_text(value)
            fixed += f"{name}\x01{value}\x02".encode()
            continue
        texts = value.cast(pa.binary())
        if len(texts) != count:
            raise ProtocolError(f"column {name} has {len(texts)} rows, not {count}.")
        refuse_separators(texts, f"{name}")
        if texts.null_count == 0:
            pieces += [fixed + name.encode() + b"\x01", texts]
            fixed = b"\x02"
        else:
            pair = _join([name.encode() + b"\x01", texts, b"\x02"])
            if fixed:
                pieces.append(fixed)
                fixed = b""
            pieces.append(pc.fill_null(pair, binary_scalar(b"")))
    return [*pieces, fixed] if fixed else pieces


def hex_strings(rows: _U8) -> pa.Array:
    """Upper-case hexadecimal of each row of an ``(n, width)`` array of bytes, as ids are written."""
    count, width = rows.shape
    text = _HEX.take(rows)
    offsets = np.arange(0, 2 * width * count + 1, 2 * width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _join(pieces: Sequence[_Piece], kind: pa.DataType | None = None) -> pa.Array:
    """Join the pieces of each row; the result is null where one of them is."""
    kind = kind or pa.binary()
    values = [binary_scalar(piece) if isinstance(piece, bytes) else piece for piece in (*pieces, b"")]
    return pc.binary_join_element_wise(*(value.cast(kind) for value in values))


def _fixed(rows: _U8) -> pa.Array:
    """The rows of an ``(n, width)`` array of bytes as a binary array."""
    count, width = rows.shape
    offsets = np.arange(0, width * count + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def binary_values(array: pa.Array, what: str) -> tuple[pa.Array, _I64]:
    """``array`` as binary without nulls, and the length of every value."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        row = int(np.flatnonzero(numpy_of(array.is_null()))[0])
        raise RowProtocolError(f"row {row} has no {what}.", row=row, remedy="Set it; it may be empty.")
    if array.type not in (pa.binary(), pa.large_binary()):
        array = array.cast(pa.large_binary() if array.type == pa.large_string() else pa.binary())
    return array, np.diff(value_offsets(array))


def value_offsets(array: pa.Array) -> _I64:
    """Where in the array's bytes each value begins, and the last ends."""
    if not len(array):  # may have no buffers
        return np.zeros(1, np.int64)
    kind = np.int64 if array.type in (pa.large_binary(), pa.large_string()) else np.int32
    every = np.frombuffer(array.buffers()[1], kind, array.offset + len(array) + 1)
    return every[array.offset :].astype(np.int64)


def _map_strings(map_column: pa.Array, columns: Mapping[str, pa.Array | str]) -> pa.Array:
    """The pairs of each row's map, joined. Pairs of a row lie side by side, so only their string needs to be made."""
    count = len(map_column)
    edges = np.frombuffer(map_column.buffers()[1], np.int32, map_column.offset + count + 1)[map_column.offset :]
    first, last = int(edges[0]), int(edges[-1])
    names = map_column.keys.slice(first, last - first)
    values = map_column.items.slice(first, last - first)
    edges = edges - first
    rows: _I64 = np.repeat(np.arange(count), np.diff(edges))
    keep = np.ones(len(names), bool)
    if map_column.null_count:
        keep &= numpy_of(map_column.is_valid())[rows]
    if values.null_count:
        keep &= numpy_of(values.is_valid())
    names, values = names.cast(pa.binary()), values.cast(pa.binary())
    for name, column in columns.items():
        same = numpy_of(pc.equal(names, binary_scalar(name.encode())))
        if same.any():
            set_in_column = True if isinstance(column, str) else numpy_of(column.is_valid())[rows]
            keep &= ~(same & set_in_column)
    refuse_separators(names, "properties (a name)", rows, keep)
    refuse_separators(values, "properties (a value)", rows, keep)
    empty = (np.diff(value_offsets(names)) == 0) & keep
    if empty.any():
        row = int(rows[empty.argmax()])
        raise RowProtocolError(f"row {row} has a property without a name.", row=row, remedy="Set its name.")
    if not keep.all():
        values = values.take(array_of(np.arange(len(values)), ~keep))
    pairs = _join([names, b"\x01", values, b"\x02"])
    if pairs.null_count:
        pairs = pc.fill_null(pairs, binary_scalar(b""))
    pair_edges = value_offsets(pairs)[edges].astype(np.int32) if len(pairs) else np.zeros(count + 1, np.int32)
    data = pairs.buffers()[2] if len(pairs) else None
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(pair_edges), data or pa.py_buffer(b"")])


def refuse_separators(
    texts: pa.Array, name: str, rows: _I64 | None = None, keep: np.ndarray[Any, Any] | None = None
) -> None:
    """RowProtocolError if a value has a byte that separates properties."""
    data = texts.buffers()[2] if len(texts) else None
    if data is None:
        return
    offsets = value_offsets(texts)
    first = int(offsets[0])
    units = np.frombuffer(data, np.uint8)[first : int(offsets[-1])]
    if len(units) == 0 or units.min() > 2:  # nearly always
        return
    at = np.flatnonzero((units - np.uint8(1)) <= 1)
    if len(at) == 0:
        return
    bad = np.searchsorted(offsets, at + first, side="right") - 1
    if texts.null_count:  # a null may have bytes
        bad = bad[numpy_of(texts.is_valid())[bad]]
    if keep is not None:
        bad = bad[keep[bad]]
    if len(bad):
        row = int(bad[0] if rows is None else rows[bad[0]])
        raise RowProtocolError(
            f"row {row} has a separator (byte 0x01 or 0x02) in {name}.",
            row=row,
            remedy="RocketMQ separates properties with these bytes: remove them or move the value into the body.",
        )


def _refuse_separators_in_text(text: str) -> None:
    if "\x01" in text or "\x02" in text:
        raise ProtocolError(
            f"{text!r} contains a separator (byte 0x01 or 0x02).", remedy="Remove it from property names and values."
        )
