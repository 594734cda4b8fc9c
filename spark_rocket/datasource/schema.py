"""The columns of ``format("rocket")``, the columns that a ``.schema(...)`` selects, and their exact Arrow types.

Spark checks only the first Arrow batch of a task against its schema and crashes on a later batch with another schema.
Every batch is therefore built with exactly the schema that Spark derives (``to_arrow_schema(schema, "UTC")``): same
order, nullability, microseconds, no dictionaries, no views.

Pure and immutable. Imports pyspark, so only Spark's driver and worker processes load it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
from spark_rocket.protocol.record.arrays import array_of

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
        arrays = [retype(batch.column(name), field.type) for name, field in zip(self.columns, self.target, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def retype(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the same values as exactly this type: from another representation (large types, views, dictionaries,
    run-ends), and with other nullability or metadata. Equal parts are not copied; nulls are not checked."""
    types = pa.types
    if array.type.equals(wanted, check_metadata=True):
        return array
    if types.is_dictionary(array.type):
        return retype(array.dictionary_decode(), wanted)
    if types.is_run_end_encoded(array.type):
        import pyarrow.compute as pc

        return retype(pc.run_end_decode(array), wanted)
    if not types.is_nested(wanted):
        return array.cast(wanted)
    if array.offset:  # the members of a slice are those of the entire array
        array = array.take(array_of(np.arange(len(array))))
    mask = array.is_null() if array.null_count else None
    if types.is_struct(wanted):
        members = [retype(array.field(index), wanted.field(index).type) for index in range(wanted.num_fields)]
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:1], children=members)
    if types.is_map(wanted):
        keys, items = retype(array.keys, wanted.key_type), retype(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=mask)
    values = retype(array.values, wanted.value_type)
    return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=wanted, mask=mask)


def canonical(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``wanted`` with exactly its types.

    Spark's settings change the types of the batches that a writer gets (``useLargeVarTypes``, the session's time zone).
    """
    if batch.schema.equals(wanted, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays([retype(batch.column(item.name), item.type) for item in wanted], schema=wanted)


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
