"""Encode columns of a data frame to a column ``body``: the writing half of typed rows.

Columns that specify where and how to send a message are not changed; all others become the body. JSON and CSV are
encoded a batch at a time (``rendering.py``). If a format's library rejects a row, the error has the row's number.

An encoder takes batches with exactly the Arrow types of its schema (``schema.canonical``). It belongs to one task; the
driver creates one to check a schema.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, VariantType

from spark_rocket.datasource.bodies.arrow_bodies import write_stream
from spark_rocket.datasource.bodies.codecs import check_known
from spark_rocket.datasource.bodies.decoding import BAD, library_text
from spark_rocket.datasource.bodies.rendering import csv_lines, json_objects, variant_text
from spark_rocket.datasource.bodies.types import check_types
from spark_rocket.datasource.options.bodies import AvroEncoding, BodyFormat, BodySettings
from spark_rocket.datasource.spark_schema import columns_of
from spark_rocket.errors import OptionError, RowError, SchemaError
from spark_rocket.protocol.record.arrays import array_of, binary_of, numpy_of


class BodyEncoder:
    """Encodes all columns except ``kept`` (in lower case) as bodies."""

    def __init__(self, settings: BodySettings, schema: StructType, kept: frozenset[str], where: str = "") -> None:
        self._settings = settings
        self._where = where
        self._rows = 0
        fields = [field for field in schema.fields if field.name.lower() not in kept]
        self._other_fields = [field for field in schema.fields if field.name.lower() in kept]
        self._body = StructType(fields)
        if not fields:
            raise SchemaError(
                f"no columns for the body: bodyFormat={settings.format.value} encodes all columns except "
                f"{', '.join(sorted(kept))}.",
                remedy="Rename the columns with values, or remove bodyFormat and write a column body.",
            )
        self._columns = columns_of(self._body, settings, "WRITE")
        check_types(self._columns, settings, "WRITE")
        self._check_columns()
        self._encode_row = self._row_encoder()

    @property
    def schema(self) -> StructType:
        """Return the schema that is written to the topic."""
        return StructType([*self._other_fields, StructField("body", BinaryType())])

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the columns of the body with the body."""
        columns = [batch.column(name) for name in self._body.names]
        firsts = None
        if self._settings.format is BodyFormat.ARROW:
            bodies, firsts = self._streams(batch)
        elif self._settings.format is BodyFormat.JSON:
            bodies = json_objects(columns, self._body.names)
        elif self._settings.format is BodyFormat.CSV:
            bodies = csv_lines(columns, self._settings.csv_delimiter, self._settings.csv_escape)
        elif self._settings.format is BodyFormat.TEXT:
            bodies = columns[0]
        else:
            bodies = self._one_by_one(batch)
        self._rows += batch.num_rows
        kept = [batch.column(field.name) for field in self._other_fields]
        if firsts is not None:
            kept = [column.take(firsts) for column in kept]
        return pa.RecordBatch.from_arrays(
            [*kept, bodies], names=[*(field.name for field in self._other_fields), "body"]
        )

    # --- checks: on the driver ----------------------------------------------------------------------------------

    def _check_columns(self) -> None:
        form = self._settings.format
        if form not in (BodyFormat.TEXT, BodyFormat.VARIANT):
            return
        wanted = StringType() if form is BodyFormat.TEXT else VariantType()
        if [field.dataType for field in self._body.fields] != [wanted]:
            raise SchemaError(
                f"bodyFormat={form.value} needs one column of type {wanted.simpleString()}, but the body columns "
                f"are {self._body.simpleString()}.",
                remedy="Select that column, and the columns that specify where to send the message.",
            )

    def _row_encoder(self) -> Callable[[dict[str, Any]], bytes]:
        if self._settings.format is BodyFormat.AVRO:
            from spark_rocket.datasource.bodies.avro import AvroSchema

            if self._settings.avro_encoding is AvroEncoding.CONFLUENT:
                raise OptionError(
                    "option avroEncoding is confluent, which is for reads: the data source does not know the IDs of a "
                    "schema registry.",
                    remedy="Set avroEncoding to single or raw, or write a column body with the header and to_avro.",
                )
            schema = AvroSchema(self._settings)
            check_known(self._columns, schema.columns, "avroSchema")
            return schema.write
        if self._settings.format is BodyFormat.PROTOBUF:
            from spark_rocket.datasource.bodies.protobuf import ProtobufType

            kind = ProtobufType(self._settings)
            check_known(self._columns, kind.columns, "protobufMessage")
            return kind.write
        name = self._body.names[0]
        return lambda row: variant_text(row[name]).encode()

    # --- batches: in the tasks ----------------------------------------------------------------------------------

    def _one_by_one(self, batch: pa.RecordBatch) -> pa.Array:
        bodies = []
        rows = batch.select(self._body.names)
        values: list[dict[str, Any]] | None
        try:
            values = rows.to_pylist()
        except BAD:  # a time that Python does not support; the code below finds its row
            values = None
        for index in range(batch.num_rows):
            try:
                row = rows.slice(index, 1).to_pylist()[0] if values is None else values[index]
                bodies.append(self._encode_row(row))
            except (*BAD, AttributeError) as error:
                raise RowError(
                    f"row {self._rows + index} of {self._where} cannot be written as {self._settings.format.value}: "
                    f"{library_text(error)}.",
                    remedy="Check the row against the schema, or filter it out.",
                ) from None
        return binary_of(bodies)

    def _streams(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """Return IPC streams of rows whose messages differ only in their bodies, and the first row of each."""
        count = batch.num_rows
        changes = np.zeros(max(0, count - 1), np.bool_)
        for field in self._other_fields:
            changes |= _changes(batch.column(field.name))
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
        firsts, bodies = [], []
        rows = batch.select(self._body.names)
        step = self._settings.arrow_rows
        for low, high in pairwise(edges):
            for start in range(low, high, step):
                firsts.append(start)
                bodies.append(write_stream(rows.slice(start, min(step, high - start))))
        return binary_of(bodies), array_of(np.array(firsts))


def _changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether each value differs from the previous one."""
    count = max(0, len(column) - 1)
    if pa.types.is_map(column.type):
        values = column.to_pylist()
        return np.array([values[index] != values[index + 1] for index in range(count)], np.bool_)
    before, after = column.slice(0, count), column.slice(1)
    is_other = pc.not_equal(before, after).fill_null(array_of(np.ones(1, bool))[0])
    both_null = pc.and_(before.is_null(), after.is_null())
    return numpy_of(pc.and_not(is_other, both_null))
