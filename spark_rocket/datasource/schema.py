"""The columns of ``format("rocket")``, the columns that a ``.schema(...)`` selects, and their exact Arrow types.

Spark checks only the first Arrow batch of a task against its schema and crashes on a later batch with another schema.
Every batch is therefore built with exactly the schema that Spark derives (``to_arrow_schema(schema, "UTC")``): same
order, nullability, microseconds, no dictionaries, no views.

Pure and immutable. Imports pyspark, so only Spark's driver and worker processes load it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.errors import SchemaError

_TEXT, _INT = StringType(), IntegerType()

SOURCE_SCHEMA = StructType(
    [
        StructField("topic", _TEXT, False),
        StructField("brokerName", _TEXT, False),
        StructField("queueId", _INT, False),
        StructField("queueOffset", LongType(), False),
        StructField("body", BinaryType(), False),
        StructField("tags", _TEXT, True),
        StructField("keys", _TEXT, True),
        StructField("properties", MapType(_TEXT, _TEXT, False), False),
        StructField("msgId", _TEXT, False),
        StructField("bornTimestamp", TimestampType(), False),
        StructField("storeTimestamp", TimestampType(), False),
        StructField("bornHost", _TEXT, False),
        StructField("storeHost", _TEXT, False),
        StructField("reconsumeTimes", _INT, False),
        StructField("flag", _INT, False),
        StructField("sysFlag", _INT, False),
    ]
)


@dataclass(frozen=True)
class Projection:
    """The columns to decode, in the order and with the exact types that Spark expects."""

    columns: tuple[str, ...]
    target: pa.Schema
    damaged: dict[int, str] | None = None
    """Collects the error text of bodies that cannot be decompressed, by queue offset. None: raise the error."""

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give decoded columns their target types. Only columns of another type are copied."""
        if batch.schema.equals(self.target):
            return batch
        arrays = [
            array if array.type.equals(field.type) else retype(array, field.type)
            for array, field in zip((batch.column(name) for name in self.columns), self.target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def retype(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the same values with another type."""
    if pa.types.is_map(wanted):
        # Only the nullability inside the map can differ: reuse the buffers with the new type.
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=wanted)
    return array.cast(wanted)


def project(schema: StructType) -> Projection:
    """Check a user's ``.schema(...)`` and return the projection for it."""
    return Projection(known_columns(schema, SOURCE_SCHEMA, 'format("rocket")'), arrow_schema(schema))


def known_columns(schema: StructType, known: StructType, owner: str) -> tuple[str, ...]:
    """Return the columns of ``known`` that a schema names, as spelled there. SchemaError for unknown names or types."""
    by_key = {field.name.lower(): field for field in known.fields}
    columns: list[str] = []
    for field in schema.fields:
        mine = by_key.get(field.name.lower())
        if mine is None:
            raise SchemaError(
                f"{owner} has no column {field.name}.", remedy=f"Its columns are {', '.join(known.names)}."
            )
        if mine.name in columns:
            raise SchemaError(f"duplicate column {mine.name} in the schema.", remedy="Name it once.")
        check_column(field, mine, mine.name)
        columns.append(mine.name)
    return tuple(columns)


def check_column(field: StructField, known: StructField, shown: str) -> None:
    """Reject another type, and NOT NULL for a nullable column. ``shown`` is the column's name in errors."""
    kind = known.dataType.simpleString()
    if field.dataType.simpleString() != kind:
        raise SchemaError(
            f"the column {shown} is {kind}, not {field.dataType.simpleString()}.",
            remedy=f"Use `{field.name} {kind}` in the schema and cast in the query.",
        )
    if known.nullable and not field.nullable:
        raise SchemaError(
            f"the column {shown} is nullable, but the schema declares it NOT NULL.", remedy="Remove NOT NULL."
        )
