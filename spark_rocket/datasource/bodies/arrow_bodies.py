"""Arrow IPC bodies: each is a stream, or a file, of record batches. A message may hold many rows.

Columns are found by name. Missing columns are null, and columns that the schema does not have are ignored. Other types
are cast if no value is lost. All bytes are validated before use, because the offsets in them are untrusted.
A file is a stream between ``ARROW1`` and a footer. It is read as a stream, and its footer must agree.

Sizes are untrusted too: 300 bytes can claim a billion rows of nulls, or endless zeros. ``SizeLimit`` therefore limits
the rows and bytes of a body before they are allocated. Row counts and the lengths of compressed buffers are read from
the flatbuffers that Arrow has verified:
===================  ==============================================================================================
table                fields
===================  ==============================================================================================
Message              0 version, 1 header's type, 2 header, 3 length of the body
DictionaryBatch      0 id, 1 data (a RecordBatch), 2 whether it is appended to the previous one
RecordBatch          0 rows (int64), 1 nodes, 2 buffers (pairs of int64: offset in the body, length), 3 compression
compressed buffer    int64: its uncompressed length, -1 if it is not compressed; then the bytes
===================  ==============================================================================================

Structs, lists and maps are rebuilt (members of structs are found by name, like columns), and dictionaries are
decoded. Values are converted as in this table, and only if none of them changes:

=======================================================  ===============================================
from                                                     to
=======================================================  ===============================================
null                                                     any type
integers, floating-point numbers, decimals               each other, if every value is the same number
strings (large, views); bytes (large, views, fixed)      each other, if bytes are UTF-8
dates                                                    dates, timestamps
timestamps, durations, times of day                      the same in another unit, timestamps in another zone
all of these but bytes, durations and times, booleans    strings
=======================================================  ===============================================

Everything else (unions, run-end encodings, list views, strings to numbers, numbers to dates) is rejected.

Pure.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.bodies.decoding import BAD, I64, BodyError, ColumnError, Decoded, bytes_and_edges, reason

_FILE = b"ARROW1"
_STREAM_IN_FILE = 8
# Bytes of columns after which the remaining bodies of a batch are left to the next call.
_MAX_DECODED_BYTES = 32 << 20


class ArrowDecoder:
    """Decodes IPC streams and files to the columns of ``fields``."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields

    def decode(self, bodies: pa.Array) -> Decoded:
        parts: list[pa.RecordBatch] = []
        counts: list[int] = []
        bad: dict[int, str] = {}
        size = 0
        for index, body in enumerate(bodies):
            buffer = body.as_buffer()
            left = SizeLimit(buffer.size)
            try:
                found = self._read(buffer, left)
                size += left.spent
            except (*BAD, OSError, MemoryError) as error:
                bad[index] = reason(error)
                found = [
                    pa.RecordBatch.from_arrays([pa.nulls(1, item.type) for item in self._fields], schema=self._fields)
                ]
            parts += found
            counts.append(sum(batch.num_rows for batch in found))
            if size >= _MAX_DECODED_BYTES:
                break
        table = pa.Table.from_batches(parts, self._fields)
        columns = [pa.concat_arrays(column.chunks) if column.num_chunks else _empty(column) for column in table.columns]
        rows: I64 = np.repeat(np.arange(len(counts)), counts)
        return Decoded(columns, bad, rows, len(counts))

    def _read(self, buffer: pa.Buffer, left: SizeLimit) -> list[pa.RecordBatch]:
        if not buffer.size:
            raise BodyError("the body is empty")
        promised = None
        if memoryview(buffer)[: len(_FILE)] == _FILE:
            with pa.ipc.open_file(buffer) as file:
                promised = file.num_record_batches
            buffer = buffer.slice(_STREAM_IN_FILE)
        check_stream(buffer)
        found = []
        with pa.ipc.open_stream(buffer) as stream:
            for item in stream.schema:
                check_type(item.type)
            for batch in stream:
                left.rows(batch.num_rows)
                batch.validate(full=True)
                found.append(self._conform(batch, left))
        if promised not in (None, len(found)):
            raise BodyError(f"the file has {len(found)} batches, but its footer {promised}")
        return found

    def _conform(self, batch: pa.RecordBatch, left: SizeLimit) -> pa.RecordBatch:
        names = batch.schema.names
        arrays = []
        for item in self._fields:
            if names.count(item.name) > 1:
                raise BodyError(f"duplicate column {item.name}")
            if item.name not in names:
                arrays.append(array_of_nulls(batch.num_rows, item.type, left))
                continue
            arrays.append(_conform_member(batch.column(item.name), item, left))
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields)


def _empty(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([], column.type)


def write_stream(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


# Limits for the size and growth of a body; small bodies may always use the free part.
MAX_ROWS, FREE_ROWS, ROWS_PER_BYTE = 1 << 24, 1 << 16, 64
MAX_BYTES, FREE_BYTES, BYTES_PER_BYTE = 128 << 20, 16 << 20, 64
_OLD_COMPRESSION = b"ARROW:experimental_compression"


class SizeLimit:
    """The remaining rows and bytes of a body."""

    def __init__(self, size: int) -> None:
        self._rows = min(MAX_ROWS, FREE_ROWS + ROWS_PER_BYTE * size)
        self._bytes = min(MAX_BYTES, FREE_BYTES + BYTES_PER_BYTE * size)
        self.spent = 0

    def rows(self, count: int) -> None:
        """Take rows; ValueError if the limit is exceeded."""
        self._rows -= count
        if count < 0 or self._rows < 0:
            raise BodyError("it claims more rows than allowed for a body of its size")

    def bytes(self, count: int) -> None:
        """Take bytes; ValueError if the limit is exceeded."""
        self._bytes -= count
        self.spent += count
        if count < 0 or self._bytes < 0:
            raise BodyError("it would become larger than allowed for a body of its size")


def check_stream(buffer: pa.Buffer) -> None:
    """Reject a stream that exceeds the limits."""
    left = SizeLimit(buffer.size)
    for message in pa.ipc.MessageReader.open_stream(buffer):
        if message.type not in ("record batch", "dictionary"):
            continue
        metadata = message.metadata.to_pybytes()
        if _OLD_COMPRESSION in metadata:
            raise BodyError("it uses Arrow's experimental compression, which is unsupported")
        try:
            rows, inflated = _claimed_size(metadata, message.body, message.type == "dictionary")
        except struct.error:
            raise BodyError("its metadata is truncated") from None
        left.rows(rows)
        left.bytes(inflated)


def _claimed_size(metadata: bytes, body: pa.Buffer | None, dictionary: bool) -> tuple[int, int]:
    """Return a batch's rows, and the bytes that its compressed buffers claim to have."""
    batch = _table(metadata, _field(metadata, _table(metadata, 0), 2))
    if dictionary:
        batch = _table(metadata, _field(metadata, batch, 1))
    at = _field(metadata, batch, 0)
    rows: int = struct.unpack_from("<q", metadata, at)[0] if at else 0
    buffers = _field(metadata, batch, 2)
    if not _field(metadata, batch, 3) or not buffers or body is None:
        return rows, 0
    start = _table(metadata, buffers)
    (count,) = struct.unpack_from("<I", metadata, start)
    data, inflated = memoryview(body), 0
    for offset, length in np.frombuffer(metadata, "<i8", 2 * count, start + 4).reshape(-1, 2).tolist():
        if length:
            if offset < 0:
                raise BodyError("a buffer lies outside the body")
            (claim,) = struct.unpack_from("<q", data, offset)
            inflated += 0 if claim == -1 else claim
            if claim < -1:
                raise BodyError("a buffer claims a negative length")
    return rows, inflated


def _table(data: bytes, at: int) -> int:
    """Follow the offset at a position."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, slot: int) -> int:
    """Return the position of a table's field; 0 if the field is missing."""
    names = table - struct.unpack_from("<i", data, table)[0]
    if names < 0 or 4 + 2 * slot >= struct.unpack_from("<H", data, names)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", data, names + 4 + 2 * slot)
    return table + offset if offset else 0


_MAX_DIGITS_IN_STRING = 80
_NUMBERS = ("integer", "float", "decimal")
_PAIRS = frozenset(
    {(one, other) for one in _NUMBERS for other in _NUMBERS}
    | {(one, "text") for one in (*_NUMBERS, "boolean", "date", "timestamp")}
    | {("text", "bytes"), ("bytes", "text"), ("date", "timestamp")}
)


def check_type(kind: pa.DataType) -> None:
    """Reject invalid decimals: Arrow uses the scale as an unchecked index into its powers of ten."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        check_type(kind.storage_type)
    elif types.is_decimal(kind):
        if not 0 <= kind.scale <= kind.precision:
            raise BodyError(f"a decimal has {kind.precision} digits, {kind.scale} of them after the point")
    elif types.is_map(kind):
        check_type(kind.key_type)
        check_type(kind.item_type)
    elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        check_type(kind.value_type)
    else:
        for index in range(kind.num_fields):
            check_type(kind.field(index).type)


def array_of_nulls(count: int, kind: pa.DataType, left: SizeLimit) -> pa.Array:
    """Return an array of nulls."""
    left.bytes(count * _width(kind))
    return pa.nulls(count, kind)


def conform(array: pa.Array, kind: pa.DataType, left: SizeLimit) -> pa.Array:
    """Convert a valid array to another type; ValueError if a value would change."""
    types = pa.types
    if array.type.equals(kind, check_metadata=True):
        left.bytes(array.nbytes)
        return array
    if isinstance(array, pa.ExtensionArray):
        return conform(array.storage, kind, left)
    if types.is_null(array.type) or not len(array):
        return array_of_nulls(len(array), kind, left)
    if types.is_dictionary(array.type):
        left.bytes(_resolved(array))
        return conform(array.dictionary_decode(), kind, left)
    if types.is_struct(kind) and types.is_struct(array.type):
        return _struct(array, kind, left)
    if types.is_map(kind) and types.is_map(array.type):
        left.bytes(5 * len(array))
        keys, items = conform(array.keys, kind.key_type, left), conform(array.items, kind.item_type, left)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_mask(array))
    if types.is_list(kind):
        left.bytes(5 * len(array))
        if types.is_fixed_size_list(array.type):
            values = conform(array.values, kind.value_type, left)
            offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * array.type.list_size)
            return pa.ListArray.from_arrays(offsets, values, type=kind, mask=_mask(array))
        if types.is_list(array.type) or types.is_large_list(array.type):
            values = conform(array.values, kind.value_type, left)
            return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=kind, mask=_mask(array))
    return _values(array, kind, left)


def _conform_member(array: pa.Array, item: pa.Field, left: SizeLimit) -> pa.Array:
    """Convert a column, or a member of a struct; errors name it."""
    try:
        return conform(array, item.type, left)
    except ColumnError as error:
        raise ColumnError(f"{item.name}.{error.path}", error.problem) from None
    except (pa.ArrowException, ValueError) as error:
        raise ColumnError(item.name, f"it is {array.type}: {reason(error)}") from None


def _struct(array: pa.Array, kind: pa.DataType, left: SizeLimit) -> pa.Array:
    left.bytes(len(array))
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    members = []
    for index in range(kind.num_fields):
        item = kind.field(index)
        if names.count(item.name) > 1:
            raise BodyError(f"duplicate member {item.name}")
        if item.name in names:
            members.append(_conform_member(array.field(names.index(item.name)), item, left))
        else:
            members.append(array_of_nulls(len(array), item.type, left))
    if not members:
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], offset=array.offset)
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=_mask(array))


def _values(array: pa.Array, kind: pa.DataType, left: SizeLimit) -> pa.Array:
    given, wanted = _group(array.type), _group(kind)
    if not wanted or (given != wanted and (given, wanted) not in _PAIRS):
        raise BodyError(f"it cannot be converted to {kind} without loss")
    left.bytes(len(array) * _width(kind))
    if given in ("text", "bytes"):
        left.bytes(int(_lengths(array).sum()))
    elif wanted == "text":
        left.bytes(len(array) * _MAX_DIGITS_IN_STRING)
    if given == "integer" and wanted == "decimal":
        # Arrow reserves room for the largest number of the type, so provide it.
        return array.cast(pa.decimal256(76, kind.scale)).cast(kind)
    found = array.cast(kind)
    # Arrow does not detect digits that a float loses, and overflow when a decimal is scaled.
    if ({given, wanted} & {"float"} and wanted in ("float", "decimal")) or given == wanted == "decimal":
        same = pc.equal(found.cast(array.type), array)
        if given == "float":
            same = pc.or_(same, pc.is_nan(array))
        if pc.all(same).as_py() is False:
            raise BodyError(f"{array.filter(pc.invert(same))[0]} does not fit {kind}")
    return found


def _group(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    checks = (
        ("bytes", types.is_fixed_size_binary),
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("date", types.is_date),
        ("timestamp", types.is_timestamp),
        ("time", types.is_time),
        ("duration", types.is_duration),
    )
    return next((name for name, check in checks if check(kind)), "")


def _width(kind: pa.DataType) -> int:
    """Return the approximate bytes of a null value."""
    if pa.types.is_struct(kind):
        return 1 + sum(_width(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:
        return 5


def _lengths(array: pa.Array) -> I64:
    """Return the bytes of each string or binary value."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        widths: I64 = np.full(len(array), kind.byte_width, np.int64)
        return widths
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        found: I64 = np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
        return found
    lengths: I64 = np.diff(bytes_and_edges(array)[1])
    return lengths


def _resolved(array: pa.Array) -> int:
    """Return the bytes of a dictionary array after decoding."""
    values: Any = array.dictionary
    if _group(values.type) in ("text", "bytes"):
        return int(_lengths(values)[array.indices.drop_null().to_numpy()].sum()) + 5 * len(array)
    if _group(values.type):
        return len(array) * _width(values.type)
    return len(array) * int(values.nbytes)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
