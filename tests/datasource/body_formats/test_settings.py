"""The options of body formats, the columns of typed rows, and the handling of bad records."""

from __future__ import annotations

import builtins
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from spark_rocket.datasource.options.bodies import AvroEncoding, BadRecords, BodyFormat, BodySettings
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import body_of, parse_read_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.typed_rows import schema_of
from spark_rocket.datasource.read_tasks import warn_of_names
from spark_rocket.datasource.schema import MESSAGE_SCHEMA
from spark_rocket.datasource.spark_schema import spark_schema
from spark_rocket.datasource.write import task
from spark_rocket.errors import OptionError, RecordError, RocketError, SchemaError, StateError
from tests.datasource.body_formats.formats import (
    AVRO,
    avro,
    batch_of,
    columns,
    known_columns,
    protobuf,
    reading,
    typed_rows,
)


def test_a_read_and_a_write(tmp_path: Path) -> None:
    body = reading(
        bodyFormat="JSON", metadataColumns="queueOffset, storeTimestamp AS `stored at`", badRecords="DEADLETTER",
        deadLetterTopic="bad",
    ).body  # fmt: skip
    assert body == BodySettings(
        BodyFormat.JSON,
        metadata=(("queueOffset", "queueOffset"), ("storeTimestamp", "stored at")),
        bad_records=BadRecords.DEAD_LETTER,
        dead_letter_topic="bad",
    )
    assert reading().body is None
    assert body_of({"bodyformat": "text", "metadatacolumns": "*", "subscribe": "x"}) == BodySettings(
        BodyFormat.TEXT, metadata=None
    )
    (tmp_path / "order.avsc").write_text(AVRO)
    given = {"topic": "t", "bodyFormat": "avro", "avroEncoding": "raw"}
    written = parse_write_options({**given, "avroSchema": str(tmp_path / "order.avsc")}, Scope.WRITE).body
    assert written == avro(avro_encoding=AvroEncoding.RAW)
    csv = {"topic": "t", "bodyFormat": "csv", "csvDelimiter": "tab"}
    assert parse_write_options(csv, Scope.WRITE_STREAM).body == BodySettings(BodyFormat.CSV, csv_delimiter="\t")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"bodyFormat": "xml"}, "bodyFormat is 'xml'. Use one of json, csv, avro, protobuf, arrow, text"),
        ({"bodyFormat": "json", "badRecords": "skip"}, "badRecords is 'skip'. Use one of fail, null, column"),
        ({"badRecords": "drop"}, "badRecords has no effect without bodyFormat"),
        ({"metadataColumns": "*"}, "metadataColumns has no effect without bodyFormat"),
        ({"csvDelimiter": ";"}, "csvDelimiter has no effect without bodyFormat"),
        ({"bodyFormat": "json", "csvDelimiter": ";"}, "csvDelimiter cannot be combined with bodyFormat=json"),
        ({"bodyFormat": "csv", "csvDelimiter": ";;"}, "csvDelimiter is ';;'. Use one ASCII character"),
        ({"bodyFormat": "json", "csvEscape": '"'}, "csvEscape cannot be combined with bodyFormat=json"),
        ({"bodyFormat": "csv", "csvEscape": "ab"}, "csvEscape is 'ab'. Use one ASCII character"),
        ({"bodyFormat": "csv", "csvDelimiter": "\\"}, "csvDelimiter is '\\\\', which is also the value of csvEscape"),
        ({"bodyFormat": "csv", "csvDelimiter": "/", "csvEscape": "/"}, "which is also the value of csvEscape"),
        ({"bodyFormat": "json", "metadataColumns": "a b"}, "metadataColumns is 'a b'. Use columns such as"),
        ({"bodyFormat": "avro"}, "bodyFormat is avro, which requires avroSchema"),
        ({"bodyFormat": "avro", "avroSchema": "/no/such.avsc"}, "/no/such.avsc cannot be read: No such file"),
        ({"bodyFormat": "avro", "avroSchema": "such\0.avsc"}, "cannot be read: embedded null byte"),
        ({"bodyFormat": "avro", "avroSchema": "~no-such-user/such.avsc"}, "cannot be read: Could not determine home"),
        ({"bodyFormat": "avro", "avroSchema": "{}", "avroEncoding": "x"}, "avroEncoding is 'x'"),
        ({"bodyFormat": "protobuf", "protobufMessage": "x"}, "which requires protobufDescriptor"),
        ({"bodyFormat": "json", "badRecords": "deadLetter"}, "deadLetterTopic is missing for badRecords=deadLetter"),
        ({"bodyFormat": "json", "deadLetterTopic": "x"}, "deadLetterTopic requires badRecords=deadLetter"),
        ({"bodyFormat": "json", "badRecords": "deadLetter", "deadLetterTopic": "orders"}, "would read its bad"),
        ({"bodyFormat": "json", "badRecords": "deadLetter", "deadLetterTopic": "%RETRY%x"}, "deadLetterTopic"),
        ({"bodyFormat": "json", "badRecordColumn": "x"}, "badRecordColumn requires badRecords=column"),
        ({"arrowRowsPerMessage": "1"}, "arrowRowsPerMessage is for batch writes"),
    ],
)  # fmt: skip
def test_contradictions(options: dict[str, str], wrong: str) -> None:
    with pytest.raises(OptionError) as raised:
        reading(**options)
    assert wrong in str(raised.value)


def test_a_schema_finds_what_has_no_effect() -> None:
    with pytest.raises(OptionError, match="timeZone"):
        body_of({"subscribe": "x", "bodyFormat": "text", "timeZone": "UTC"})


def test_a_dead_letter_topic_that_matches_the_pattern() -> None:
    given = {
        "subscribePattern": "order.*",
        "bodyFormat": "json",
        "badRecords": "deadLetter",
        "deadLetterTopic": "orders",
    }
    with pytest.raises(OptionError, match="would read its bad records again"):
        parse_read_options(given, Scope.READ_STREAM)


def test_schemas_without_a_schema() -> None:
    text = BodySettings(BodyFormat.TEXT, metadata=(("queueOffset", "at"),), bad_records=BadRecords.COLUMN)
    assert spark_schema(schema_of(text)) == StructType(
        [
            StructField("value", StringType()),
            StructField("at", LongType(), False),
            StructField("_bad_record", BinaryType()),
        ]
    )
    everything = schema_of(BodySettings(BodyFormat.TEXT, metadata=None)).names
    assert everything == ["value", *(name for name in MESSAGE_SCHEMA.names if name != "body")]
    for form in (BodyFormat.JSON, BodyFormat.CSV, BodyFormat.ARROW):
        with pytest.raises(SchemaError, match=f"bodyFormat={form.value} needs a schema"):
            schema_of(BodySettings(form))
    with pytest.raises(SchemaError, match="metadataColumns names offset, which is not a message column"):
        schema_of(BodySettings(BodyFormat.TEXT, metadata=(("offset", "offset"),)))
    with pytest.raises(SchemaError, match="duplicate column value"):
        schema_of(BodySettings(BodyFormat.TEXT, metadata=(("topic", "value"),)))


def wrong_schema(schema: StructType, **options: str) -> str:
    with pytest.raises(SchemaError) as raised:
        typed_rows(reading(bodyFormat="json", **options), schema, batch_of())
    return str(raised.value)


def test_invalid_schemas() -> None:
    nullable = StructType([StructField("id", IntegerType(), False)])
    assert "the body column id is nullable" in wrong_schema(nullable)
    assert "duplicate column ID" in wrong_schema(columns(id="int", ID="int"))
    assert "queueOffset) is bigint, not int" in wrong_schema(columns(at="int"), metadataColumns="queueOffset as at")
    assert "names tags, which is missing in the schema" in wrong_schema(columns(id="int"), metadataColumns="tags")
    assert "which is missing in the schema" in wrong_schema(columns(id="int"), badRecords="column")
    assert "_bad_record for bad records is int" in wrong_schema(columns(_bad_record="int"), badRecords="column")


def test_columns_with_names_of_message_columns(caplog: pytest.LogCaptureFixture) -> None:
    def said(**options: str) -> int:
        caplog.clear()
        warn_of_names(reading(**options), ["id", "queueOffset", "tags"])
        return caplog.text.count('"metadataColumns", "queueOffset, tags"')

    caplog.set_level(logging.WARNING)
    assert said(bodyFormat="json", metadataColumns="queueOffset, tags") == 0
    assert [said(bodyFormat=form) for form in ("json", "json", "csv")] == [1, 0, 0], "once"


GOOD, BAD = b'{"id": 1}', b'{"id": "x"}'


def typed(schema: StructType, *bodies: bytes, **options: str) -> list[dict[str, Any]]:
    parsed = reading(bodyFormat="json", metadataColumns="queueOffset", **options)
    return [row for batch in typed_rows(parsed, schema, batch_of(*bodies)) for row in batch.to_pylist()]


def test_modes_of_bad_records(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    schema = columns(queueOffset="bigint", id="int")
    values = (GOOD, BAD, GOOD, b"")
    where = r"orders/broker-a/3 at 101 cannot be decoded as json: the column id: \"x\" is not an integer"
    with pytest.raises(RecordError, match=where):
        typed(schema, *values)
    assert "2 of 4 messages could not be decoded as json and fail the task (badRecords=fail)" in caplog.text
    rows = [{"queueOffset": 100 + index, "id": value} for index, value in enumerate((1, None, 1, None))]
    assert typed(schema, *values, badRecords="null") == rows
    assert "2 of 4 messages could not be decoded as json and have no values" in caplog.text
    assert "first orders/broker-a/3 at 101, last orders/broker-a/3 at 103" in caplog.text
    assert typed(schema, *values, badRecords="drop") == [rows[0], rows[2]]
    with_bad = columns(queueOffset="bigint", id="int", worst="string")
    found = typed(with_bad, *values, b"\xff", badRecords="column", badRecordColumn="worst")
    assert [row["worst"] for row in found] == [None, '{"id": "x"}', None, "", "\ufffd"]
    sent: list[tuple[list[dict[str, Any]], WriteOptions, str]] = []

    def send_rows(batches: Any, options: WriteOptions, name: str) -> None:
        sent.extend((batch.to_pylist(), options, name) for batch in batches)

    monkeypatch.setattr(task, "send_rows", send_rows)
    assert typed(schema, *values, badRecords="deadLetter", deadLetterTopic="bad") == [rows[0], rows[2]]
    ((letters, options, name),) = sent
    assert (options.topic, name) == ("bad", "dead letters of orders/broker-a/3 at 101")
    assert letters[0] == {
        "body": BAD,
        "tags": "T",
        "keys": None,
        "properties": [
            ("mine", "1"),
            ("ROCKET_ORIGIN_MSG_ID", "U"),
            ("ROCKET_ORIGIN_TOPIC", "orders"),
            ("ROCKET_ORIGIN_BROKER", "broker-a"),
            ("ROCKET_ORIGIN_QUEUE", "3"),
            ("ROCKET_ORIGIN_OFFSET", "101"),
            ("ROCKET_BAD_RECORD_REASON", 'the column id: "x" is not an integer'),
        ],
    }
    monkeypatch.setattr(task, "send_rows", lambda *_: (_ for _ in ()).throw(RocketError("away")))
    with pytest.raises(RocketError, match="away"):
        typed(schema, *values, badRecords="deadLetter", deadLetterTopic="bad")


def test_batches_have_sparks_schema_and_bounded_size() -> None:
    """Later batches that differ would crash the JVM; bodies of many rows make many batches."""
    schema = columns(s="string", queueOffset="bigint", id="int")
    options = reading(bodyFormat="arrow", metadataColumns="queueOffset", arrowBatchRows="4")
    from spark_rocket.datasource.bodies.arrow_bodies import write_stream

    stream = write_stream(pa.record_batch({"id": pa.array(range(10), pa.int64()), "s": ["x"] * 10}))
    found = typed_rows(options, schema, batch_of(stream, stream))
    assert [batch.num_rows for batch in found] == [4, 4, 4, 4, 4]
    assert all(batch.schema.equals(found[0].schema, check_metadata=True) for batch in found)
    assert [row["queueOffset"] for batch in found for row in batch.to_pylist()] == [100] * 10 + [101] * 10


def test_only_metadata() -> None:
    assert typed(columns(queueOffset="bigint"), GOOD, b"{", badRecords="drop") == [{"queueOffset": 100}]


@pytest.mark.parametrize(("settings", "module"), [(avro(), "fastavro"), (protobuf(), "google.protobuf")])
def test_a_missing_library(settings: BodySettings, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith(module):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(StateError, match=r"spark-rocket\[(avro|protobuf)\]' on the driver"):
        known_columns(settings)
