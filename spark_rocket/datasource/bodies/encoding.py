"""A frame's columns -> a column ``body``: the half of typed rows that writes.

The columns that say where and how a message goes are left as they are; all others become the body. Where a format's
library refuses a row, the error has the row's number. An encoder belongs to one task; the driver makes one to check a
schema.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, VariantType

from spark_rocket.datasource.bodies.arrow_bodies import write_stream
from spark_rocket.datasource.bodies.codecs import check_known
from spark_rocket.datasource.bodies.decoding import BAD, reason
from spark_rocket.datasource.bodies.settings import BodyFormat, BodySettings
from spark_rocket.datasource.bodies.text_writer import (
    check_json,
    csv_lines,
    is_plain,
    json_objects,
    variant_text,
)
from spark_rocket.errors import RowError, SchemaError


class BodyEncoder:
    """Makes bodies of all columns but ``kept`` (in lower case)."""

    def __init__(self, settings: BodySettings, schema: StructType, kept: frozenset[str], where: str = "") -> None:
        self._settings = settings
        self._where = where
        self._rows = 0
        fields = [field for field in schema.fields if field.name.lower() not in kept]
        self._kept = [field for field in schema.fields if field.name.lower() in kept]
        self._body = StructType(fields)
        if not fields:
            raise SchemaError(
                f"there is no column to make a body of: bodyFormat={settings.format.value} takes all columns but "
                f"{', '.join(sorted(kept))}.",
                remedy="Rename those that are values, or leave out bodyFormat and write a column body.",
            )
        self._check(to_arrow_schema(self._body, timezone="UTC"))
        self._encode_row = self._row_encoder()

    @property
    def schema(self) -> StructType:
        """What is written to the topic."""
        return StructType([*self._kept, StructField("body", BinaryType())])

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the columns of the body by the body."""
        columns = [batch.column(name) for name in self._body.names]
        firsts = None
        if self._settings.format is BodyFormat.ARROW:
            bodies, firsts = self._streams(batch)
        elif self._settings.format is BodyFormat.JSON:
            bodies = json_objects(columns, self._body.names)
        elif self._settings.format is BodyFormat.CSV:
            bodies = csv_lines(columns, self._settings.csv_delimiter)
        elif self._settings.format is BodyFormat.TEXT:
            bodies = columns[0]
        else:
            bodies = self._one_by_one(batch)
        self._rows += batch.num_rows
        kept = [batch.column(field.name) for field in self._kept]
        if firsts is not None:
            kept = [column.take(firsts) for column in kept]
        return pa.RecordBatch.from_arrays([*kept, bodies], names=[*(field.name for field in self._kept), "body"])

    # --- checks: on the driver ----------------------------------------------------------------------------------

    def _check(self, fields: pa.Schema) -> None:
        form = self._settings.format
        if form is BodyFormat.JSON:
            for item in fields:
                check_json(item.type, item.name)
        elif form is BodyFormat.CSV:
            for item in fields:
                if not is_plain(item.type):
                    raise SchemaError(
                        f"the column {item.name} is {item.type}, which CSV has no values for.",
                        remedy="Make it a string, as with to_json.",
                    )
        elif form in (BodyFormat.TEXT, BodyFormat.VARIANT):
            wanted = StringType() if form is BodyFormat.TEXT else VariantType()
            if [field.dataType for field in self._body.fields] != [wanted]:
                raise SchemaError(
                    f"bodyFormat={form.value} makes the body of one column of type {wanted.simpleString()}, and there "
                    f"is {self._body.simpleString()}.",
                    remedy="Select that column, and those that say where the message goes.",
                )

    def _row_encoder(self) -> Callable[[dict[str, Any]], bytes]:
        if self._settings.format is BodyFormat.AVRO:
            from spark_rocket.datasource.bodies.avro import AvroSchema

            schema = AvroSchema(self._settings)
            check_known(self._body, schema.columns, "avroSchema")
            return schema.write
        if self._settings.format is BodyFormat.PROTOBUF:
            from spark_rocket.datasource.bodies.protobuf import ProtobufType

            kind = ProtobufType(self._settings)
            check_known(self._body, kind.columns, "protobufMessage")
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
        except BAD:  # a time that Python has no value for; which row has it is found below
            values = None
        for index in range(batch.num_rows):
            try:
                row = rows.slice(index, 1).to_pylist()[0] if values is None else values[index]
                bodies.append(self._encode_row(row))
            except (*BAD, AttributeError) as error:
                raise RowError(
                    f"row {self._rows + index} of {self._where} cannot be written as {self._settings.format.value}: "
                    f"{reason(error)}.",
                    remedy="Check the row against the schema, or filter it out.",
                ) from None
        return pa.array(bodies, pa.binary())

    def _streams(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """IPC streams of runs of rows whose messages would be the same but for their bodies, and each run's first."""
        count = batch.num_rows
        changes = np.zeros(max(0, count - 1), np.bool_)
        for field in self._kept:
            changes |= _changes(batch.column(field.name))
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
        firsts, bodies = [], []
        rows = batch.select(self._body.names)
        step = self._settings.arrow_rows
        for low, high in pairwise(edges):
            for start in range(low, high, step):
                firsts.append(start)
                bodies.append(write_stream(rows.slice(start, min(step, high - start))))
        return pa.array(bodies, pa.binary()), pa.array(firsts, pa.int64())


def _changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each value differs from the one before it."""
    count = max(0, len(column) - 1)
    if pa.types.is_map(column.type):
        values = column.to_pylist()
        return np.array([values[index] != values[index + 1] for index in range(count)], np.bool_)
    before, after = column.slice(0, count), column.slice(1)
    same = pc.equal(before, after).fill_null(False)
    both_null = pc.and_(before.is_null(), after.is_null())
    return np.asarray(pc.invert(pc.or_(same, both_null)).to_numpy(zero_copy_only=False))
