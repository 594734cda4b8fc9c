"""Typed rows: a reader's batches of messages -> batches of the columns of their bodies (``bodyFormat``).

Made on the driver to check a schema before any task, and in each task to decode. What the message's own columns are,
and which of them bad records need, is asked of the reader below; this takes them apart again.

Belongs to one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from spark_rocket.datasource.bad_records import BadRecordCounter, kept_rows
from spark_rocket.datasource.body_formats.codecs import decoder, known_columns
from spark_rocket.datasource.body_formats.columns import default_schema, layout
from spark_rocket.datasource.body_formats.decoding import Decoded
from spark_rocket.datasource.body_formats.settings import BodySettings
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.schema import SOURCE_SCHEMA, Projection, project, retype


def schema_of(settings: BodySettings) -> StructType:
    """The schema of a read for which the user gives none."""
    return default_schema(settings, known_columns(settings))


def projection_of(options: ReadOptions, schema: StructType) -> Projection:
    """What a read takes of each message; SchemaError if the schema cannot be read so."""
    return project(schema) if options.body is None else TypedRows(options, options.body, schema).projection


def rows_of(
    batches: Iterator[pa.RecordBatch], options: ReadOptions, schema: StructType, projection: Projection
) -> Iterator[pa.RecordBatch]:
    """A task's batches, made with ``projection``, as Spark is to get them."""
    if options.body is None:
        return batches
    return TypedRows(options, options.body, schema, projection.damaged).rows(batches)


class TypedRows:
    """Decodes the bodies of a task's batches."""

    def __init__(
        self,
        options: ReadOptions,
        settings: BodySettings,
        schema: StructType,
        damaged: dict[int, str] | None = None,
    ) -> None:
        self._damaged = {} if damaged is None else damaged
        self._layout = layout(settings, schema)
        self._decoder = decoder(settings, self._layout.body)
        self._counter = BadRecordCounter(options, settings)
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._limit = options.arrow_batch_rows
        self._bad_text = self._layout.bad_column is not None and isinstance(
            schema[self._layout.bad_column].dataType, StringType
        )
        needed = {"body", *self._layout.metadata.values(), *self._counter.needed()}
        projection = project(StructType([field for field in SOURCE_SCHEMA.fields if field.name in needed]))
        self.projection = replace(projection, damaged=self._damaged)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                rows = self._assemble(batch, self._spoilt(batch, self._decoder.decode(batch.column("body"))))
                for start in range(0, rows.num_rows, self._limit):
                    yield rows.slice(start, self._limit)
        finally:
            self._counter.report()

    def _spoilt(self, batch: pa.RecordBatch, decoded: Decoded) -> Decoded:
        """With the bodies that could not be decompressed among the bad ones, whatever was made of their bytes."""
        if not self._damaged:
            return decoded
        offsets = batch.column("queueOffset").to_numpy()
        found = np.flatnonzero(np.isin(offsets, np.fromiter(self._damaged, np.int64)))
        for index in found.tolist():
            decoded.bad[index] = self._damaged[int(offsets[index])]
        self._damaged.clear()
        of_body = np.arange(batch.num_rows) if decoded.rows is None else decoded.rows
        values = pa.array(np.arange(len(of_body)), mask=np.isin(of_body, found))
        return replace(decoded, columns=[column.take(values) for column in decoded.columns])

    def _assemble(self, batch: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
        dropped = self._counter.take(batch, decoded.bad)
        columns = dict(zip(self._layout.body.names, decoded.columns, strict=True))
        message = {name: batch.column(source) for name, source in self._layout.metadata.items()}
        if self._layout.bad_column is not None:
            message[self._layout.bad_column] = self._bad_bodies(batch.column("body"), decoded.bad)
        if decoded.rows is not None:
            of_rows = pa.array(decoded.rows)
            message = {name: column.take(of_rows) for name, column in message.items()}
        arrays = []
        for item in self._target:
            array = columns[item.name] if item.name in columns else message[item.name]
            arrays.append(array if array.type.equals(item.type, check_metadata=True) else retype(array, item.type))
        count = batch.num_rows if decoded.rows is None else len(decoded.rows)
        if arrays:
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._target)
        else:
            rows = pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        if not dropped:
            return rows
        mask = kept_rows(batch.num_rows, dropped)
        return rows.filter(pa.array(mask if decoded.rows is None else mask[decoded.rows]))

    def _bad_bodies(self, bodies: pa.Array, bad: dict[int, str]) -> pa.Array:
        found: np.ndarray[tuple[int], np.dtype[np.object_]] = np.full(len(bodies), None, object)
        for index in bad:
            body = bodies[index].as_py()
            found[index] = body.decode("utf-8", "replace") if self._bad_text else body
        return pa.array(found, pa.string() if self._bad_text else pa.binary())
