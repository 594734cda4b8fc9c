"""Arrow IPC bodies: each is a stream, or a file, of record batches; a message may hold many rows, and be written so.

Columns are found by their names; what a body lacks is null, what it has beside them is left out, other types are cast
where no value is lost (``arrow_casts``). Everything is validated before it is used: offsets in these bytes are somebody
else's. So are their sizes: ``arrow_limits`` looks at what a body claims to be before it is read.

A file is a stream between ``ARROW1`` and a footer, and is read as one: its footer may not claim anything else.

Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.arrow_casts import check_type, conform, nothing
from spark_rocket.datasource.bodies.arrow_limits import Allowance, check_stream
from spark_rocket.datasource.bodies.decoding import BAD, I64, Decoded, reason

_FILE = b"ARROW1"
_STREAM_IN_FILE = 8
# Bytes of columns after which the rest of a batch's bodies is left for the next call.
_ENOUGH = 32 << 20


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
            left = Allowance(buffer.size)
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
            if size >= _ENOUGH:
                break
        table = pa.Table.from_batches(parts, self._fields)
        columns = [pa.concat_arrays(column.chunks) if column.num_chunks else _empty(column) for column in table.columns]
        rows: I64 = np.repeat(np.arange(len(counts)), counts)
        return Decoded(columns, bad, rows, len(counts))

    def _read(self, buffer: pa.Buffer, left: Allowance) -> list[pa.RecordBatch]:
        if not buffer.size:
            raise ValueError("the body is empty")
        promised = None
        if memoryview(buffer)[: len(_FILE)] == _FILE:
            with pa.ipc.open_file(buffer) as file:
                promised = file.num_record_batches
            buffer = buffer.slice(_STREAM_IN_FILE)
        check_stream(buffer)
        found = []
        with pa.ipc.open_stream(buffer) as stream:
            as_wanted = stream.schema.equals(self._fields, check_metadata=True)
            for item in () if as_wanted else stream.schema:
                check_type(item.type)
            for batch in stream:
                left.rows(batch.num_rows)
                batch.validate(full=True)
                if as_wanted:
                    left.bytes(batch.nbytes)
                found.append(batch if as_wanted else self._conform(batch, left))
        if promised not in (None, len(found)):
            raise ValueError(f"the file has {len(found)} batches, and its footer {promised}")
        return found

    def _conform(self, batch: pa.RecordBatch, left: Allowance) -> pa.RecordBatch:
        names = batch.schema.names
        arrays = []
        for item in self._fields:
            if names.count(item.name) > 1:
                raise ValueError(f"there are two columns {item.name}")
            if item.name not in names:
                arrays.append(nothing(batch.num_rows, item.type, left))
                continue
            array = batch.column(item.name)
            try:
                arrays.append(conform(array, item.type, left))
            except (pa.ArrowException, ValueError) as error:
                raise ValueError(f"the column {item.name} is {array.type}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields)


def _empty(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([], column.type)


def write_stream(batch: pa.RecordBatch) -> bytes:
    """A batch as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
