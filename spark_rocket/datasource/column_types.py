"""Column types as Arrow types, under the names that Spark SQL has for them (``bigint``, ``map<string,int>``).

Planning, reading and typed rows know columns as Arrow schemas only; ``spark_schema.py`` converts them to Spark's and
back. Arrow has several representations of some types. Columns always have the one that Spark has: no large types, no
views, no dictionaries, microseconds, time zone UTC.

Variants and geometries are structs in Arrow. The metadata of a member tells them from other structs, as in Spark.

Pure.
"""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
_NAMES = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    pa.duration("us"): "interval day to second",
    pa.time64("ns"): "time(6)",
}
_MARKS = ("variant", "geometry", "geography")
_MAX_DIGITS = 38


def list_of(item: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of an array."""
    return pa.list_(pa.field("element", item, nullable=nullable))


def mark_of(kind: pa.DataType) -> str | None:
    """Return ``variant``, ``geometry`` or ``geography`` for a type that is a struct in Arrow, and None for others."""
    if not pa.types.is_struct(kind):
        return None
    metadata = [item.metadata or {} for item in kind]
    return next((mark for mark in _MARKS if any(one.get(mark.encode()) == b"true" for one in metadata)), None)


def is_variant(kind: pa.DataType) -> bool:
    return mark_of(kind) == "variant"


def type_name(kind: pa.DataType) -> str:
    """Return the name in Spark SQL; Arrow's name for types that columns cannot have."""
    types = pa.types
    if kind in _NAMES:
        return _NAMES[kind]
    if (mark := mark_of(kind)) is not None:
        return mark
    if types.is_struct(kind):
        return f"struct<{','.join(f'{item.name}:{type_name(item.type)}' for item in kind)}>"
    if types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return str(kind)


def is_known(kind: pa.DataType) -> bool:
    """Return whether columns can have a type, apart from the types of its members."""
    types = pa.types
    if types.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision <= _MAX_DIGITS)
    return kind in _NAMES or types.is_struct(kind) or types.is_list(kind) or types.is_map(kind)


def same_types(given: pa.DataType, known: pa.DataType) -> bool:
    """Return whether two types are equal except for nullability and missing struct members in ``given``."""
    types = pa.types
    if types.is_struct(given) and types.is_struct(known) and mark_of(given) == mark_of(known):
        members = {item.name: item.type for item in known}
        return all(item.name in members and same_types(item.type, members[item.name]) for item in given)
    if types.is_list(given) and types.is_list(known):
        return same_types(given.value_type, known.value_type)
    if types.is_map(given) and types.is_map(known):
        return same_types(given.key_type, known.key_type) and same_types(given.item_type, known.item_type)
    return bool(given == known)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the representation that columns have, of a type in another one (large types, views, dictionaries)."""
    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return TIMESTAMP
    if types.is_list(kind) or types.is_large_list(kind):
        return list_of(plain_type(kind.value_type), nullable=kind.value_field.nullable)
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if types.is_struct(kind):
        return pa.struct([item.with_type(plain_type(item.type)) for item in kind])
    return kind
