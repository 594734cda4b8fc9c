"""The columns of ``format("rocket")``: which there are, which a ``.schema(...)`` asks for, and their exact Arrow types.

Spark checks only a task's first Arrow batch against its schema and crashes on a later one that differs, so every
batch is built against the very schema that Spark derives (``to_arrow_schema(schema, "UTC")``): same order,
nullability, microseconds, no dictionaries, no views.

Pure and immutable. Imports pyspark, so only driver and worker processes of Spark load it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
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
    """Where to say, by queue offset, that a body cannot be decompressed; None: that is an error."""

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give decoded columns their target types. Nothing is copied but what has another type, which none has."""
        if batch.schema.equals(self.target):
            return batch
        arrays = [
            array if array.type.equals(field.type) else retype(array, field.type)
            for array, field in zip((batch.column(name) for name in self.columns), self.target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def retype(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values under another type."""
    if pa.types.is_map(wanted):
        # Only nullability inside the map can differ: same buffers under another type.
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=wanted)
    return array.cast(wanted)


def project(schema: StructType) -> Projection:
    """Check a user's ``.schema(...)`` and say what it takes."""
    return Projection(known_columns(schema, SOURCE_SCHEMA, 'format("rocket")'), to_arrow_schema(schema, timezone="UTC"))


def known_columns(schema: StructType, known: StructType, owner: str) -> tuple[str, ...]:
    """The columns of ``known`` that a schema names, as spelt there; SchemaError for others and other types."""
    by_key = {field.name.lower(): field for field in known.fields}
    columns: list[str] = []
    for field in schema.fields:
        mine = by_key.get(field.name.lower())
        if mine is None:
            raise SchemaError(
                f"{owner} has no column {field.name}.", remedy=f"Its columns are {', '.join(known.names)}."
            )
        if mine.name in columns:
            raise SchemaError(f"the schema names the column {mine.name} twice.", remedy="Name it once.")
        check_column(field, mine, mine.name)
        columns.append(mine.name)
    return tuple(columns)


def check_column(field: StructField, known: StructField, shown: str) -> None:
    """Refuse another type, and NOT NULL for what can be null; ``shown`` is the column in errors."""
    kind = known.dataType.simpleString()
    if field.dataType.simpleString() != kind:
        raise SchemaError(
            f"the column {shown} is {kind}, not {field.dataType.simpleString()}.",
            remedy=f"Put `{field.name} {kind}` into the schema and cast in the query.",
        )
    if known.nullable and not field.nullable:
        raise SchemaError(
            f"the column {shown} can be null, and the schema says NOT NULL.", remedy="Leave NOT NULL out."
        )
