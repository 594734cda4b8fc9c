from __future__ import annotations

import json

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, VarcharType

from spark_rocket.datasource.source import RocketDataSource, RocketMQDataSource
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.datasource.tables import (
    INSERT_SCHEMA,
    is_two_way,
    new_table,
    options_of_direction,
    options_to_read,
    options_to_write,
    plain,
    table_options,
    written,
)
from spark_rocket.datasource.write.writer import RocketWriter
from spark_rocket.errors import OptionError, SchemaError

READ, WRITE = {"subscribe": "orders"}, {"topic": "orders"}
BOTH = READ | WRITE | {"nameserver": "127.0.0.1:9876"}


def created(**options: str) -> dict[str, str]:
    """The options as Spark gives them when a table is created."""
    prefixed = {f"option.{key}": text for key, text in options.items()}
    return {"owner": "me", "provider": "rocket", "comment": "a table's own"} | prefixed | options


def table(**options: str) -> StructType:
    """The schema of the created table: Spark shows VARCHAR as a string with metadata."""
    made = RocketDataSource(created(**options)).schema()
    fields = []
    for field in made.fields:
        metadata = dict(field.metadata or {})
        if isinstance(field.dataType, VarcharType):
            metadata["__CHAR_VARCHAR_TYPE_STRING"] = "varchar(127)"
            field = StructField(field.name, StringType(), field.nullable)
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)


def inserted(schema: StructType) -> StructType:
    """The schema of a writer after Spark has fitted the rows to the table's columns."""
    kept = [{key: text for key, text in (f.metadata or {}).items() if key[0] != "_"} for f in schema.fields]
    return StructType([StructField(f.name, f.dataType, True, m) for f, m in zip(schema.fields, kept, strict=True)])


def test_options_of_a_new_table_differ_from_those_of_the_catalog() -> None:
    assert table_options(created(**READ)) == READ
    assert table_options(created()) == {}
    assert table_options(READ) is None


def test_the_schema_contains_the_options() -> None:
    schema = table(**READ)
    assert plain(schema) == SOURCE_SCHEMA
    assert options_to_read({}, schema) == READ
    assert options_to_read({"tags": "a"}, schema) == READ | {"tags": "a"}


def test_a_read_with_its_own_target_ignores_table_options() -> None:
    """The schema of a table's frame can be passed to another read."""
    schema = table(**READ, tags="paid", consumerGroup="g")
    assert options_to_read({"subscribe": "others"}, schema) == {"subscribe": "others"}
    assert options_to_read({"storePath": "/data"}, schema) == {"storePath": "/data"}


def test_a_table_for_inserts_has_the_writable_columns() -> None:
    schema = table(**WRITE)
    assert plain(schema) == INSERT_SCHEMA
    assert options_to_write({}, inserted(schema)) == WRITE
    assert written(inserted(schema), {}).names == INSERT_SCHEMA.names


def test_a_table_for_reads_and_writes() -> None:
    schema = table(**BOTH)
    assert schema.names == SOURCE_SCHEMA.names
    assert all(field.nullable for field in schema.fields), "an insert leaves columns out"
    assert options_to_read({}, schema) == {"subscribe": "orders", "nameserver": "127.0.0.1:9876"}
    assert options_to_write({}, inserted(schema)) == {"topic": "orders", "nameserver": "127.0.0.1:9876"}
    assert written(inserted(schema), {}).names == ["topic", "queueId", "body", "tags", "keys", "properties"]


def test_rows_with_options_of_another_table_are_not_written_to_it() -> None:
    with pytest.raises(OptionError, match=r"WHICH_TABLE.*INSERT INTO t \(body, tags\)"):
        options_to_write({}, table(**BOTH))
    assert options_to_write({"topic": "elsewhere"}, table(**BOTH)) == {"topic": "elsewhere"}


def test_a_write_with_its_own_options_writes_every_column() -> None:
    """Columns from a table carry its options in their metadata."""
    for schema in (table(**READ), table(**BOTH)):
        more = StructType([*inserted(schema).fields, StructField("extra", StringType())])
        assert written(more, {"topic": "elsewhere", "bodyFormat": "json"}).names == more.names


def test_typed_tables() -> None:
    schema = table(**WRITE, bodyFormat="text")
    assert schema.names == ["value", "tags", "keys", "properties", "shardingKey", "queueId", "topic"]
    assert written(inserted(schema), {}).names == schema.names
    schema = table(**BOTH, bodyFormat="text", metadataColumns="tags, queueOffset, topic as origin")
    assert schema.names == ["value", "tags", "queueOffset", "origin"]
    assert written(inserted(schema), {}).names == ["value", "tags"]
    with pytest.raises(SchemaError, match="bodyFormat=json needs a schema"):
        RocketDataSource(created(**WRITE, bodyFormat="json")).schema()


def test_varchar_columns_are_strings() -> None:
    """spark.sql.preserveCharVarcharTypeInfo=true."""
    assert plain(RocketDataSource(created(**READ)).schema()) == SOURCE_SCHEMA


def test_a_view_for_reads_and_writes() -> None:
    assert is_two_way({"Topic": "a", "SUBSCRIBEPATTERN": ".*"})
    assert not is_two_way(READ)
    assert all(field.nullable for field in RocketDataSource(dict(BOTH)).schema().fields), "an insert leaves columns out"
    assert options_of_direction(BOTH | {"startingOffsets": "earliest", "sendBatchSize": "10"}, reading=True).keys() == {
        "subscribe",
        "nameserver",
        "startingOffsets",
    }
    assert written(SOURCE_SCHEMA, BOTH).names == ["topic", "queueId", "body", "tags", "keys", "properties"]
    assert written(SOURCE_SCHEMA, WRITE).names == SOURCE_SCHEMA.names, "a plain write rejects surplus columns"


def test_a_table_of_a_cluster_view_ignores_the_topic_to_write() -> None:
    schema = table(view="topics", **BOTH)
    assert schema.names[0] == "topic"
    assert options_to_read({}, schema) == READ | {"view": "topics", "nameserver": "127.0.0.1:9876"}
    with pytest.raises(OptionError, match="option view is for views, not for batch writes"):
        RocketDataSource({}).writer(inserted(schema), False)


@pytest.mark.parametrize(
    "options",
    [{"subscrib": "orders"}, {"topic": "orders", "startingOffsets": "latest"}, READ | {"sendBatchSize": "10"}, {}],
    ids=str,
)
def test_invalid_options_fail_when_the_table_is_created(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        RocketDataSource(created(**options)).schema()


def test_a_table_with_explicit_columns_loses_its_options() -> None:
    schema = StructType([StructField("body", BinaryType())])
    for find in (options_to_read, options_to_write):
        with pytest.raises(OptionError, match=r"NONE.*without a list of columns"):
            find({"checkpointlocation": "here"}, schema)


def test_stored_options_have_a_stable_text() -> None:
    first, second = (new_table(dict(pairs), lambda _: SOURCE_SCHEMA) for pairs in (BOTH.items(), [*BOTH.items()][::-1]))
    assert first == second
    assert json.loads(first.fields[0].metadata["rocket.options"]) == BOTH


# --- format("rocketmq") --------------------------------------------------------------------------------------------


def test_names_of_the_scala_connector() -> None:
    source = RocketMQDataSource({"nameServer": "a:1", "topic": "orders", "group": "g", "pullTimeoutMs": "3000"})
    assert source.name() == "rocketmq"
    assert source._to_read(source.options) == {
        "nameServer": "a:1",
        "subscribe": "orders",
        "consumerGroup": "g",
        "requestTimeout": "3000",
    }
    assert source._to_write({"topic": "orders", "group": "g"}) == {"topic": "orders", "producerGroup": "g"}
    assert source.schema() == SOURCE_SCHEMA


def test_an_expression_for_all_messages_sets_no_filter() -> None:
    source = RocketMQDataSource({})
    assert source._to_read({"subExpression": "a || b"}) == {"tags": "a || b"}
    assert source._to_read({"subExpression": " * "}) == {}


def test_both_names_together_are_refused() -> None:
    with pytest.raises(OptionError, match=r"topic cannot be combined with subscribe"):
        RocketMQDataSource({"topic": "a", "subscribe": "b"}).schema()
    with pytest.raises(OptionError, match=r"pulltimeoutms cannot be combined with requestTimeout"):
        RocketMQDataSource({"pulltimeout": "1000", "pulltimeoutms": "2000", "topic": "a"}).schema()


BODY, TOPIC = StructField("body", BinaryType()), StructField("Topic", StringType())


@pytest.mark.parametrize("fields", [[BODY], [BODY, TOPIC]], ids=len)
def test_a_write_whose_only_option_is_mistyped(fields: list[StructField]) -> None:
    schema = StructType(fields)
    with pytest.raises(OptionError, match=r"has no option topik\. Did you mean topic\?"):
        RocketDataSource({"topik": "orders"}).writer(schema, False)
    with pytest.raises(OptionError, match=r"has no option topik\. Did you mean topic\?"):
        RocketDataSource({"topik": "orders", "checkpointlocation": "here"}).streamWriter(schema, False)


def test_a_read_whose_only_option_is_mistyped() -> None:
    with pytest.raises(OptionError, match=r"has no option subscrib\. Did you mean subscribe\?"):
        RocketDataSource({"subscrib": "orders"}).reader(SOURCE_SCHEMA)


def test_a_topic_column_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "name-server:9876")
    schema = StructType([BODY, TOPIC])
    for options in ({}, {"checkpointlocation": "here"}):
        assert options_to_write(options, schema) == options
    assert isinstance(RocketDataSource({}).writer(schema, False), RocketWriter)
    with pytest.raises(OptionError, match=r"BAD_OPTION\.NONE"):
        RocketDataSource({}).writer(StructType([BODY]), False)
