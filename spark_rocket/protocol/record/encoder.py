"""Arrow columns -> the bodies of batch sends (request 320), with no Python per row.

``layout.py`` has the byte table of a batch body. ``plan_rows`` checks every row and computes its position, so that a
caller can cut requests; ``RowsPlan.encode`` makes their bytes one request at a time, while they are in the CPU's cache.

Rows are uniform when all their values are as long as those of the row before. Uniform rows lie in a batch body like the
rows of a matrix: NumPy fills it column by column, and constant parts, such as heads and names, from one example. Most
data frames have few places where lengths change. Arrow's ``binary_join_element_wise`` joins all other rows, which takes
twice as long.

Property strings are written with a 0x02 after every pair, the last too, as RocketMQ 5 writes them. Names and values
with a separator, and strings above 32,767 bytes, raise ``RowProtocolError``, which has the row.

Thread-safety: functions are pure, a plan belongs to one thread. Corresponds to MessageDecoder.encodeMessages and
messageProperties2String.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.errors import ProtocolError, RowProtocolError
from spark_rocket.protocol.record.layout import BATCH_HEADER, BATCH_OVERHEAD, PROPERTIES_LENGTH
from spark_rocket.protocol.record.properties import MAX_PROPERTIES_LENGTH

_MAX_BUFFER_BYTES = 2**31 - 1
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]
_HEX = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)


def encode_batch(bodies: pa.Array, properties: pa.Array) -> tuple[memoryview, _I64]:
    """The batch body of all rows and the ``n + 1`` positions at which rows start, the last being its length.

    ``bodies`` may be binary or string; ``properties`` is what ``encode_properties_columns`` returns.
    """
    count = len(bodies)
    if len(properties) != count:
        raise ProtocolError(f"{count} bodies but {len(properties)} property strings.")
    bodies, body_lengths = binary_values(bodies, "body")
    properties, property_lengths = binary_values(properties, "property string")
    too_long = property_lengths > MAX_PROPERTIES_LENGTH
    if too_long.any():
        row = int(too_long.argmax())
        raise RowProtocolError(
            f"row {row} has properties of {int(property_lengths[row])} bytes; the limit is {MAX_PROPERTIES_LENGTH}.",
            row=row,
            remedy="Move large values into the body.",
        )
    sizes = body_lengths + property_lengths + BATCH_OVERHEAD
    positions = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=positions[1:])
    if count == 0:
        return memoryview(b""), positions
    heads = np.zeros((count, 5), ">i4")
    heads[:, 0] = sizes
    heads[:, 4] = body_lengths
    tails = property_lengths.astype(">i2").view(np.uint8).reshape(count, -1)
    parts = [_fixed(heads.view(np.uint8)), bodies, _fixed(tails), properties]
    if int(positions[-1]) > _MAX_BUFFER_BYTES or any(part.type == pa.large_binary() for part in parts):
        parts = [part.cast(pa.large_binary()) for part in parts]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", parts[0].type))
    return memoryview(joined.buffers()[2]).cast("B")[: int(positions[-1])], positions


def encode_properties_columns(
    count: int, columns: Mapping[str, pa.Array | str | None], map_column: pa.Array | None = None
) -> pa.Array:
    """One property string a row.

    ``columns`` gives the values of single properties: an array (nulls are omitted), or one string for all rows. The
    pairs of ``map_column`` (map of string to string) come before them; a pair whose name is also one of ``columns`` is
    used only in rows where that column is null. Nulls in the map and null maps are omitted.
    """
    pieces: list[pa.Array | pa.Scalar] = []
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
            pieces += [pa.scalar(fixed + name.encode() + b"\x01", pa.binary()), texts]
            fixed = b"\x02"
        else:
            pair = _join(pa.scalar(name.encode() + b"\x01", pa.binary()), texts, pa.scalar(b"\x02", pa.binary()))
            if fixed:
                pieces.append(pa.scalar(fixed, pa.binary()))
                fixed = b""
            pieces.append(pair.fill_null(b""))
    if fixed or not pieces:
        pieces.append(pa.scalar(fixed, pa.binary()))
    if all(isinstance(piece, pa.Scalar) for piece in pieces):
        return pa.repeat(pa.scalar(b"".join(piece.as_py() for piece in pieces), pa.binary()), count)
    return pieces[0] if len(pieces) == 1 else _join(*pieces)


def hex_strings(rows: _U8) -> pa.Array:
    """Upper-case hexadecimal of each row of an ``(n, width)`` array of bytes, as ids are written."""
    count, width = rows.shape
    text = _HEX.take(rows)
    offsets = np.arange(0, 2 * width * count + 1, 2 * width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _join(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


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
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise RowProtocolError(f"row {row} has no {what}.", row=row, remedy="Set it; it may be empty.")
    if array.type not in (pa.binary(), pa.large_binary()):
        array = array.cast(pa.large_binary() if array.type == pa.large_string() else pa.binary())
    if len(array) == 0:
        return array, np.empty(0, np.int64)
    return array, np.diff(value_offsets(array))


def value_offsets(array: pa.Array) -> _I64:
    """Where in the array's bytes each value begins, and the last ends."""
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
        keep &= map_column.is_valid().to_numpy(zero_copy_only=False)[rows]
    if values.null_count:
        keep &= values.is_valid().to_numpy(zero_copy_only=False)
    names, values = names.cast(pa.binary()), values.cast(pa.binary())
    for name, column in columns.items():
        same = pc.equal(names, pa.scalar(name.encode(), pa.binary())).to_numpy(zero_copy_only=False)
        if same.any():
            set_in_column = True if isinstance(column, str) else column.is_valid().to_numpy(zero_copy_only=False)[rows]
            keep &= ~(same & set_in_column)
    refuse_separators(names, "properties (a name)", rows, keep)
    refuse_separators(values, "properties (a value)", rows, keep)
    empty = pc.equal(pc.binary_length(names), 0).to_numpy(zero_copy_only=False) & keep
    if empty.any():
        row = int(rows[empty.argmax()])
        raise RowProtocolError(f"row {row} has a property without a name.", row=row, remedy="Set its name.")
    if not keep.all():
        values = pc.if_else(pa.array(keep), values, pa.scalar(None, pa.binary()))
    pairs = _join(names, pa.scalar(b"\x01", pa.binary()), values, pa.scalar(b"\x02", pa.binary()))
    if pairs.null_count:
        pairs = pairs.fill_null(b"")
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
        bad = bad[texts.is_valid().to_numpy(zero_copy_only=False)[bad]]
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


# --- rows ahead of their bytes ---------------------------------------------------------------------------------------

_BODY = "body"
_MIN_RUN = 1000  # rows of a uniform run on average; shorter runs are left to the general path


class _Column(NamedTuple):
    """Values of a column: their bytes, and where each begins."""

    data: Any  # a buffer, or None if all are empty
    offsets: _I64


class RowsPlan:
    """Checked rows, ready to be encoded."""

    def __init__(self, positions: _I64, property_lengths: _I64, edges: Sequence[int]) -> None:
        self.positions = positions
        """The ``n + 1`` positions at which rows would start in one batch body of all, the last being its length."""
        self.property_lengths = property_lengths
        self.edges = edges
        """Where uniform runs of rows begin, and the end; 0 and the end alone if runs are short."""

    def encode(self, low: int, high: int) -> memoryview:
        """The batch body of the rows from ``low`` to before ``high``."""
        raise NotImplementedError


class _UniformPlan(RowsPlan):
    """Runs of rows with the same lengths."""

    def __init__(self, body: _Column, pieces: list[bytes | _Column], edges: list[int]) -> None:
        firsts = np.array(edges[:-1])
        counts = np.diff(edges)
        bodies = body.offsets[firsts + 1] - body.offsets[firsts]
        properties = sum(
            len(piece) if isinstance(piece, bytes) else piece.offsets[firsts + 1] - piece.offsets[firsts]
            for piece in pieces
        ) + np.zeros(len(firsts), np.int64)
        sizes = bodies + properties + BATCH_OVERHEAD
        positions = np.zeros(edges[-1] + 1, np.int64)
        np.cumsum(np.repeat(sizes, counts), out=positions[1:])
        super().__init__(positions, np.repeat(properties, counts), edges)
        self._body = body
        self._pieces = pieces

    def encode(self, low: int, high: int) -> memoryview:
        start = int(self.positions[low])
        out = np.empty(int(self.positions[high]) - start, np.uint8)
        inner = [edge for edge in self.edges if low < edge < high]
        for first, end in pairwise((low, *inner, high)):
            self._fill(out[int(self.positions[first]) - start :], first, end - first)
        return out.data

    def _fill(self, out: np.ndarray[Any, np.dtype[np.uint8]], first: int, count: int) -> None:
        size = int(self.positions[first + 1] - self.positions[first])
        properties = int(self.property_lengths[first])
        head = BATCH_HEADER.pack(size, 0, 0, 0, size - BATCH_OVERHEAD - properties)
        at = 0
        for piece in (head, self._body, PROPERTIES_LENGTH.pack(properties), *self._pieces):
            if isinstance(piece, bytes):
                width = len(piece)
                values = np.frombuffer(piece, f"V{width}")
            else:
                begin = int(piece.offsets[first])
                width = int(piece.offsets[first + 1]) - begin
                if not width:
                    continue
                values = np.frombuffer(piece.data, f"V{width}", count, begin)
            np.ndarray(count, f"V{width}", out, at, size)[:] = values
            at += width


class _GeneralPlan(RowsPlan):
    """Rows of any lengths."""

    def __init__(self, bodies: pa.Array, properties: pa.Array) -> None:
        bodies, body_lengths = binary_values(bodies, "body")
        properties, property_lengths = binary_values(properties, "property string")
        positions = np.zeros(len(bodies) + 1, np.int64)
        np.cumsum(body_lengths + property_lengths + BATCH_OVERHEAD, out=positions[1:])
        super().__init__(positions, property_lengths, (0, len(bodies)))
        self._bodies = bodies
        self._properties = properties
        self._encoded: memoryview | None = None

    def encode(self, low: int, high: int) -> memoryview:
        if self._encoded is None:  # all at once: rows that are sent one by one are mostly such
            self._encoded, _ = encode_batch(self._bodies, self._properties)
        return self._encoded[self.positions[low] : self.positions[high]]


def plan_rows(bodies: pa.Array, columns: Mapping[str, pa.Array | None], map_column: pa.Array | None = None) -> RowsPlan:
    """Check rows whose properties are ``columns`` and ``map_column``, as ``encode_properties_columns`` has them.

    RowProtocolError knows the row.
    """
    count = len(bodies)
    given = {name: value for name, value in columns.items() if value is not None and value.null_count < count}
    if count and map_column is None and not any(value.null_count for value in (bodies, *given.values())):
        body, *values = (_column(value, name) for name, value in ((_BODY, bodies), *given.items()))
        edges = _edges((body, *values), count)
        if edges is not None:
            return _UniformPlan(body, _pieces(given, values), edges)
    return _GeneralPlan(bodies, encode_properties_columns(count, given, map_column))


def _column(array: pa.Array, name: str) -> _Column:
    values, _ = binary_values(array, name)
    if name != _BODY:
        refuse_separators(values, name)
    return _Column(values.buffers()[2], value_offsets(values))


def _edges(columns: Sequence[_Column], count: int) -> list[int] | None:
    """The ends of runs of rows with the same lengths; None if the runs are short."""
    changes = np.zeros(count - 1, np.bool_)
    for column in columns:
        lengths = np.diff(column.offsets)
        changes |= lengths[1:] != lengths[:-1]
        if np.count_nonzero(changes) > count // _MIN_RUN:
            return None
    return [0, *(np.flatnonzero(changes) + 1).tolist(), count]


def _pieces(names: Iterable[str], values: Sequence[_Column]) -> list[bytes | _Column]:
    """Return the parts of a row's properties: strings that are the same in all rows, and columns."""
    pieces: list[bytes | _Column] = []
    text = b""
    for name, value in zip(names, values, strict=True):
        pieces += (text + name.encode() + b"\x01", value)
        text = b"\x02"
    return [*pieces, text] if text else pieces
