"""The column types that each body format supports: one check for reads and writes, before the first task.

====================  =============================================================================================
JSON                  scalars, ``binary``, ``variant``, structs, arrays, maps. Map keys are strings in reads, and
                      scalars in writes; a struct without members is read, but not written
CSV                   scalars: booleans, numbers, strings, dates, timestamps
text, variant         one column of type string or variant (``codecs.py``, ``encoding.py``)
Avro, Protobuf        the types of the format's own schema (``codecs.check_known``)
Arrow                 every type that Spark converts to Arrow
====================  =============================================================================================

No format supports types that Spark does not convert to Arrow, such as year-month intervals.

Pure. Corresponds to ``supportsDataType`` of Spark's file formats.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    VariantType,
)

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.bodies import BodyFormat

_SCALARS = (BooleanType, NumericType, StringType, DateType, TimestampType, TimestampNTZType)
_TO_WRITE = "Cast it to a supported type such as string, or drop it."
_TO_READ = "Declare it as string, and convert it in the query."


def check_types(schema: StructType, form: BodyFormat, *, reading: bool) -> None:
    """Reject the first column, or member of a column, that a format does not support, by its path."""
    for field in schema.fields:
        _check(field.dataType, field.name, form, reading)


def _check(kind: DataType, path: str, form: BodyFormat, reading: bool) -> None:
    if isinstance(kind, UserDefinedType):
        return _check(kind.sqlType(), path, form, reading)
    is_refused = not _is_supported(kind, form)
    if isinstance(kind, StructType):
        is_refused |= form is BodyFormat.JSON and not reading and not kind.fields
    elif isinstance(kind, MapType) and form is BodyFormat.JSON:
        is_refused |= not isinstance(kind.keyType, StringType if reading else _SCALARS)
    if is_refused:
        name = {BodyFormat.JSON: "JSON", BodyFormat.CSV: "CSV"}.get(form, f"bodyFormat={form.value}")
        hint = _TO_READ if reading else _TO_WRITE
        raise error("BAD_SCHEMA.TYPE", column=path, kind=kind.simpleString(), format=name, hint=hint)
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check(field.dataType, f"{path}.{field.name}", form, reading)
    elif isinstance(kind, ArrayType):
        _check(kind.elementType, f"{path}.element", form, reading)
    elif isinstance(kind, MapType):
        _check(kind.keyType, f"{path}.key", form, reading)
        _check(kind.valueType, f"{path}.value", form, reading)
    return None


def _is_supported(kind: DataType, form: BodyFormat) -> bool:
    if form is BodyFormat.CSV:
        return isinstance(kind, _SCALARS)
    if isinstance(kind, (StructType, ArrayType, MapType)):
        return True
    if form is BodyFormat.JSON:
        return isinstance(kind, (*_SCALARS, BinaryType, VariantType))
    try:
        arrow_schema(StructType([StructField("value", kind)]))
    except PySparkException:
        return False
    return True
