from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA, columns_of
from spark_rocket.errors import SchemaError
from spark_rocket.protocol.record.columns import ARROW_SCHEMA


def test_all_columns_by_default() -> None:
    projection = project(MESSAGE_SCHEMA)
    assert projection.columns == tuple(SOURCE_SCHEMA.names)
    assert projection.target == ARROW_SCHEMA
    # As text: to Spark 4.0, all values of a map are nullable.
    assert list(map(str, arrow_schema(SOURCE_SCHEMA))) == list(map(str, ARROW_SCHEMA))


def test_order_case_and_nullability_are_kept() -> None:
    wanted = StructType(
        [
            StructField("QUEUEOFFSET", LongType(), True),
            StructField("properties", MapType(StringType(), StringType(), True), True),
            StructField("topic", StringType(), False, {"comment": "kept"}),
        ]
    )
    projection = project(columns_of(wanted, None))
    assert projection.columns == ("queueOffset", "properties", "topic")
    decoded = pa.record_batch(
        {
            "topic": pa.array(["t", "t"]),
            "queueOffset": pa.array([1, 2], pa.int64()),
            "properties": pa.array(
                [[("a", "1")], []], pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
            ),
        }
    )
    batch = projection.conform(decoded)
    assert batch.schema.equals(arrow_schema(wanted), check_metadata=True)
    assert batch.to_pydict() == {"QUEUEOFFSET": [1, 2], "properties": [[("a", "1")], []], "topic": ["t", "t"]}


def test_unknown_columns_and_other_types_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"no column value.*brokerName"):
        project(columns_of(StructType([StructField("value", StringType())]), None))
    with pytest.raises(SchemaError, match=r"body is binary, not string.*cast in the query"):
        project(columns_of(StructType([StructField("body", StringType())]), None))
    with pytest.raises(SchemaError, match="properties is map<string,string>, not map<string,int>"):
        project(columns_of(StructType([StructField("properties", MapType(StringType(), IntegerType()))]), None))
    with pytest.raises(SchemaError, match="duplicate column tags"):
        project(columns_of(StructType([StructField("tags", StringType()), StructField("TAGS", StringType())]), None))
    with pytest.raises(SchemaError, match="column tags is nullable"):
        project(columns_of(StructType([StructField("tags", StringType(), False)]), None))
