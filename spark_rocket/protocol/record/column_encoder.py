"""Arrow columns -> the body of a batch send (320), with no Python per row.

===========  =======  =====================================================
position     size     field
===========  =======  =====================================================
0            4        totalSize of this message
4            4        magic (0) and
8            4        bodyCRC (0): the broker fills both
12           4        flag (the user's)
16           4 + n    bodyLen, body
20 + body    2 + n    propertiesLen (int16), properties
===========  =======  =====================================================

Fixed heads are made with NumPy, everything is put together by ``binary_join_element_wise``; what comes back is one
buffer and the position of every row in it, so that a caller cuts it into requests without encoding again.

Property strings are written with a 0x02 after every pair, the last too, as RocketMQ 5 writes them. Names and values
that hold a separator, and strings above 32,767 bytes, raise ``RowProtocolError``, which knows the row.

Thread-safety: pure functions. Corresponds to MessageDecoder.encodeMessages and messageProperties2String.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.errors import ProtocolError, RowProtocolError
from spark_rocket.protocol.record.layout import BATCH_OVERHEAD
from spark_rocket.protocol.record.properties import MAX_PROPERTIES_LENGTH

_MAX_BUFFER = 2**31 - 1
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]
_HEX = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)


def encode_batch(
    bodies: pa.Array, properties: pa.Array, flags: np.ndarray[Any, Any] | None = None
) -> tuple[memoryview, _I64]:
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
    if flags is not None:
        heads[:, 3] = flags
    heads[:, 4] = body_lengths
    parts = [_fixed(heads.view(np.uint8)), bodies, _fixed(property_lengths.astype(">i2").view(np.uint8)), properties]
    if int(positions[-1]) > _MAX_BUFFER or any(part.type == pa.large_binary() for part in parts):
        parts = [part.cast(pa.large_binary()) for part in parts]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", parts[0].type))
    return memoryview(joined.buffers()[2]).cast("B")[: int(positions[-1])], positions


def encode_properties_columns(
    count: int, columns: Mapping[str, pa.Array | str | None], map_column: pa.Array | None = None
) -> pa.Array:
    """One property string a row.

    ``columns`` gives the values of single properties: an array (nulls are left out), or one text for every row. The
    pairs of ``map_column`` (map of string to string) come before them; a pair whose name is also one of ``columns`` is
    used only in rows where that column is null. Nulls in the map, or a null map, are left out.
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
    """The rows of an ``(n, width)`` array of bytes, or consecutive pairs of a flat one, as a binary array."""
    count = len(rows) if rows.ndim == 2 else len(rows) // 2
    width = rows.shape[1] if rows.ndim == 2 else 2
    offsets = np.arange(0, width * count + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def binary_values(array: pa.Array, what: str) -> tuple[pa.Array, _I64]:
    """``array`` as binary without nulls, and the length of every value."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise RowProtocolError(f"row {row} has no {what}.", row=row, remedy="Every message needs one; it may be empty.")
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
        raise RowProtocolError(f"row {row} has a property without a name.", row=row, remedy="Give it a name.")
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
    if texts.null_count:  # bytes under a null are nobody's
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
            f"{text!r} holds a separator (byte 0x01 or 0x02).", remedy="Property names and values must not hold these."
        )
