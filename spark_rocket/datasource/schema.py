"""The columns of messages, the columns that a schema selects, and their exact Arrow types.

Spark checks only the first Arrow batch of a task against its schema and crashes on a later batch with another schema.
Every batch is therefore built with exactly the schema that Spark derives (``to_arrow_schema(schema, "UTC")``): same
order, nullability, microseconds, no dictionaries, no views.

Pure and immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.column_types import TIMESTAMP, type_name
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.errors import SchemaError
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.protocol.record.arrays import array_of

_TEXT, _INT = pa.string(), pa.int32()

MESSAGE_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("topic", _TEXT, nullable=False),
        pa.field("brokerName", _TEXT, nullable=False),
        pa.field("queueId", _INT, nullable=False),
        pa.field("queueOffset", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("tags", _TEXT),
        pa.field("keys", _TEXT),
        pa.field("properties", pa.map_(_TEXT, pa.field("value", _TEXT, nullable=False)), nullable=False),
        pa.field("msgId", _TEXT, nullable=False),
        pa.field("bornTimestamp", TIMESTAMP, nullable=False),
        pa.field("storeTimestamp", TIMESTAMP, nullable=False),
        pa.field("bornHost", _TEXT, nullable=False),
        pa.field("storeHost", _TEXT, nullable=False),
        pa.field("reconsumeTimes", _INT, nullable=False),
        pa.field("flag", _INT, nullable=False),
        pa.field("sysFlag", _INT, nullable=False),
    ]
)
"""The columns of a read without ``bodyFormat``: ``ARROW_SCHEMA`` of the decoder, which planning does not import."""


@dataclass(frozen=True, eq=False, repr=False)
class Projection(FrozenValue):
    """The columns to decode, in the order and with the exact types that Spark expects."""

    columns: tuple[str, ...]
    target: pa.Schema
    namespace: Namespace = NO_NAMESPACE

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give decoded columns their target types, and names without the namespace. Only other columns are copied."""
        if self.namespace:
            from spark_rocket.protocol.record.namespaced import unwrapped_batch

            batch = unwrapped_batch(batch, self.namespace)
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


def owner_of(body: BodySettings | None) -> str:
    """Return what defines the types of a read's columns, for messages."""
    if body is None:
        return 'format("rocket")'
    return {BodyFormat.JSON: "JSON", BodyFormat.CSV: "CSV"}.get(body.format, f"bodyFormat={body.format.value}")


def project(schema: pa.Schema, namespace: Namespace = NO_NAMESPACE) -> Projection:
    """Check the columns that a user selects and return the projection for them."""
    return Projection(known_columns(schema, MESSAGE_SCHEMA, owner_of(None)), schema, namespace)


def known_columns(schema: pa.Schema, known: pa.Schema, owner: str) -> tuple[str, ...]:
    """Return the columns of ``known`` that a schema names, as spelled there. SchemaError for unknown names or types."""
    by_key = {field.name.lower(): field for field in known}
    columns: list[str] = []
    for field in schema:
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


def check_column(field: pa.Field, known: pa.Field, shown: str) -> None:
    """Reject another type, and NOT NULL for a nullable column. ``shown`` is the column's name in errors."""
    if field.type != known.type and type_name(field.type) != (kind := type_name(known.type)):
        raise SchemaError(
            f"the column {shown} is {kind}, not {type_name(field.type)}.",
            remedy=f"Use `{field.name} {kind}` in the schema and cast in the query.",
        )
    if known.nullable and not field.nullable:
        raise SchemaError(
            f"the column {shown} is nullable, but the schema declares it NOT NULL.", remedy="Remove NOT NULL."
        )
