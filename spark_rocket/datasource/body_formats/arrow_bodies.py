"""Arrow IPC bodies: each is a stream, or a file, of record batches; a message may hold many rows, and be written so.

Columns are found by their names; what a body lacks is null, what it has beside them is left out, other types are cast
where no value is lost. Everything is validated before it is used: offsets in these bytes are somebody else's.

Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.body_formats.decoding import BAD, I64, Decoded, reason

_FILE = b"ARROW1"


class ArrowDecoder:
    """Decodes IPC streams and files to the columns of ``fields``."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields

    def decode(self, bodies: pa.Array) -> Decoded:
        parts: list[pa.RecordBatch] = []
        counts: list[int] = []
        bad: dict[int, str] = {}
        for index, body in enumerate(bodies):
            buffer = body.as_buffer()
            try:
                found = [self._conform(batch) for batch in _batches(buffer)]
            except (*BAD, OSError, MemoryError) as error:
                bad[index] = reason(error)
                found = [
                    pa.RecordBatch.from_arrays([pa.nulls(1, item.type) for item in self._fields], schema=self._fields)
                ]
            parts += found
            counts.append(sum(batch.num_rows for batch in found))
        table = pa.Table.from_batches(parts, self._fields)
        columns = [pa.concat_arrays(column.chunks) if column.num_chunks else _empty(column) for column in table.columns]
        rows: I64 = np.repeat(np.arange(len(bodies)), counts)
        return Decoded(columns, bad, rows)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch.validate(full=True)
        names = batch.schema.names
        arrays = []
        for item in self._fields:
            if names.count(item.name) > 1:
                raise ValueError(f"there are two columns {item.name}")
            if item.name not in names:
                arrays.append(pa.nulls(batch.num_rows, item.type))
                continue
            array = batch.column(item.name)
            try:
                arrays.append(array if array.type.equals(item.type, check_metadata=True) else array.cast(item.type))
            except pa.ArrowException as error:
                raise ValueError(f"the column {item.name} is {array.type}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields)


def _batches(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    if not buffer.size:
        raise ValueError("the body is empty")
    if memoryview(buffer)[: len(_FILE)] == _FILE:
        with pa.ipc.open_file(buffer) as file:
            return [file.get_batch(number) for number in range(file.num_record_batches)]
    with pa.ipc.open_stream(buffer) as stream:
        return list(stream)


def _empty(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([], column.type)


def write_stream(batch: pa.RecordBatch) -> bytes:
    """A batch as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
