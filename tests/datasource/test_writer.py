"""What a data frame must look like to be written: checked on the driver, before the first task."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_rocket.datasource.options import Scope, WriteOptions, parse_write_options
from spark_rocket.datasource.writer import RocketStreamWriter, check_append, check_columns
from spark_rocket.errors import OptionError, SchemaError

KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "tinyint": ByteType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "struct<a:int>": StructType([StructField("a", IntegerType())]),
}


def struct(ddl: str) -> StructType:
    """A schema from text, without a session."""
    pairs = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def options(**given: str) -> WriteOptions:
    return parse_write_options({"nameServer": "x:1"} | given, Scope.WRITE_STREAM)


@pytest.mark.parametrize(
    "schema",
    [
        "body string",
        "BODY binary",
        "body binary, tags string, keys string, properties map<string,string>, shardingKey string, queueId int",
        "body string, queueid bigint, SHARDINGKEY string",
        "body string, queueId tinyint, topic string",
    ],
)
def test_frames_that_can_be_written(schema: str) -> None:
    check_columns(struct(schema), options(topic="t"))


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ("value string", r"cannot write a column value.*Select only body, topic, tags"),
        ("tags string", r"there is no column body.*to_json"),
        ("body bigint", r"the column body is bigint, and should be string or binary.*cast\(\"string\"\)"),
        ("body struct<a:int>", r"the column body is struct<a:int>"),
        ("body string, tags bigint", r"the column tags is bigint, and should be string"),
        ("body string, queueId string", r"the column queueId is string, and should be int"),
        ("body string, properties map<string,int>", r"properties is map<string,int>, and should be map<string,string>"),
        ("body string, Body string", r"two columns body"),
        ("body string, offset bigint", r"cannot write a column offset"),
    ],
)
def test_frames_that_cannot(schema: str, wrong: str) -> None:
    with pytest.raises(SchemaError, match=wrong):
        check_columns(struct(schema), options(topic="t"))


def test_a_topic_comes_from_the_option_or_a_column() -> None:
    check_columns(struct("body string, topic string"), options())
    with pytest.raises(OptionError, match=r"where to write is not said.*a column topic"):
        check_columns(struct("body string"), options())


def test_only_append() -> None:
    check_append(False, "")
    with pytest.raises(OptionError, match=r"can only append.*Use mode append"):
        check_append(True, "Use mode append")


def test_a_writer_is_values_only() -> None:
    writer = RocketStreamWriter(options(topic="t"), struct("body string"))
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
