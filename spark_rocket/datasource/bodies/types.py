"""The column types that each body format supports: one check for reads and writes, before the first task.

====================  =============================================================================================
JSON                  scalars, ``binary``, ``variant``, structs, arrays, maps. Map keys are strings in reads, and
                      scalars in writes; a struct without members is read, but not written
CSV                   scalars: booleans, numbers, strings, dates, timestamps
text, variant         one column of type string or variant (``codecs.py``, ``encoding.py``)
Avro, Protobuf        the types of the format's own schema (``codecs.check_known``)
Arrow                 every type of ``column_types``
====================  =============================================================================================

No format supports types that Spark does not have, such as unsigned integers.

Pure. Corresponds to ``supportsDataType`` of Spark's file formats.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from spark_rocket.datasource.column_types import is_known, is_variant, mark_of, type_name
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.schema import owner_of

Use = Literal["READ", "WRITE", "EXPORT"]


def check_types(columns: pa.Schema, settings: BodySettings, use: Use) -> None:
    """Reject the first column, or member of a column, that a format does not support, by its path."""
    for item in columns:
        _check(item.type, item.name, settings, use)


def _check(kind: pa.DataType, path: str, settings: BodySettings, use: Use) -> None:
    types, form, reading = pa.types, settings.format, use == "READ"
    is_refused = not _is_supported(kind, form)
    if types.is_struct(kind):
        is_refused |= form is BodyFormat.JSON and not reading and not kind.num_fields
    elif types.is_map(kind) and form is BodyFormat.JSON:
        is_refused |= not (types.is_string(kind.key_type) if reading else _is_scalar(kind.key_type))
    if is_refused:
        raise error("BAD_SCHEMA.TYPE", case=use, column=path, kind=type_name(kind), format=owner_of(settings))
    for name, member in _members(kind):
        _check(member, f"{path}.{name}", settings, use)


def _members(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    if mark_of(kind) is not None:
        return []
    if pa.types.is_struct(kind):
        return [(item.name, item.type) for item in kind]
    if pa.types.is_list(kind):
        return [("element", kind.value_type)]
    return [("key", kind.key_type), ("value", kind.item_type)] if pa.types.is_map(kind) else []


def _is_scalar(kind: pa.DataType) -> bool:
    types = pa.types
    return is_known(kind) and any(
        check(kind)
        for check in (
            types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_date,
            types.is_timestamp,
        )
    )  # fmt: skip


def _is_supported(kind: pa.DataType, form: BodyFormat) -> bool:
    types = pa.types
    if form is BodyFormat.CSV:
        return _is_scalar(kind)
    if form is BodyFormat.JSON and not types.is_nested(kind):
        return _is_scalar(kind) or types.is_binary(kind)
    if form is BodyFormat.JSON and mark_of(kind) is not None:
        return is_variant(kind)
    return is_known(kind)
