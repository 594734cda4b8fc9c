"""Schemas of Spark and of Arrow. Below Spark's interface the columns of a read are an Arrow schema.

Pure; imports pyspark. Only what Spark calls uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, owner_of

if TYPE_CHECKING:
    import pyarrow as pa


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow columns."""
    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


SOURCE_SCHEMA = spark_schema(MESSAGE_SCHEMA)
"""The columns of a read without ``bodyFormat``."""


def columns_of(schema: StructType, body: BodySettings | None, use: str = "READ") -> pa.Schema:
    """Return the Arrow schema of a Spark schema. SchemaError for the first type that Spark does not convert."""
    try:
        return arrow_schema(schema)
    except PySparkException:
        for field in schema.fields:
            _check(field.dataType, field.name, owner_of(body), use)
        raise


def _check(kind: DataType, path: str, owner: str, use: str) -> None:
    try:
        arrow_schema(StructType([StructField("value", kind)]))
    except PySparkException:
        for name, member in _members(kind):
            _check(member, f"{path}.{name}", owner, use)
        raise error("BAD_SCHEMA.TYPE", case=use, column=path, kind=kind.simpleString(), format=owner) from None


def _members(kind: DataType) -> list[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, ArrayType):
        return [("element", kind.elementType)]
    return [("key", kind.keyType), ("value", kind.valueType)] if isinstance(kind, MapType) else []
