"""Typed rows: round trips of each format, streams, variants, and records that cannot be decoded."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from spark_rocket.datasource.capabilities import HAS_STREAM_ARROW_WRITER
from spark_rocket.model import (
    BAD_RECORD_BROKER,
    BAD_RECORD_OFFSET,
    BAD_RECORD_QUEUE,
    BAD_RECORD_REASON,
    BAD_RECORD_TOPIC,
    Message,
)
from tests.datasource.body_formats.formats import AVRO, descriptor
from tests.spark.conftest import Rocket
from tests.spark.sessions import needs

ORDERS = "id bigint, item string, at timestamp, price decimal(10,2), marks map<string,int>, kind string"


def typed(mq: Rocket, topic: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = mq.spark.read.format("rocket").options(nameServer=mq.name_server, subscribe=topic, **options)
    return (reader.schema(schema) if schema else reader).load()


def write(mq: Rocket, frame: DataFrame, **options: str) -> None:
    frame.write.format("rocket").options(nameServer=mq.name_server, **options).mode("append").save()


@pytest.mark.parametrize(
    ("form", "more"), [("", {}), ("csv", {}), ("json", {"deliveryGuarantee": "exactlyOnce", "writeId": "large-types"})]
)
def test_large_arrow_types(mq: Rocket, spark: SparkSession, form: str, more: dict[str, str]) -> None:
    """Spark passes other Arrow types with ``useLargeVarTypes``: the same messages are written and read."""
    rows = spark.range(3, numPartitions=1).selectExpr(
        "concat('\"a\", ', id) AS s",
        "CAST('\u00ff' AS BINARY) AS b",
        "array('x', NULL) AS l",
        "map('k', CAST(s AS BINARY)) AS m",
        "concat('tag', id) AS tags",
        "concat('k', id, ' l') AS keys",
        "map('p', s) AS properties",
        "CAST(id AS STRING) AS shardingKey",
    )
    message = ["tags", "keys", "properties", "shardingKey"]
    frame = {
        "": rows.selectExpr("s AS body", *message),
        "csv": rows.drop("b", "l", "m"),
        "json": rows,
    }[form]
    topic = mq.topic()
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        write(mq, frame, topic=topic, **({"bodyFormat": form} if form else {}), **more)
        found = (
            mq.read(topic).selectExpr("CAST(body AS STRING)", "tags", "keys", "properties['p']", "queueId").collect()
        )
        if form == "json":
            schema = "s string, b binary, l array<string>, m map<string,binary>"
            back = typed(mq, topic, schema, bodyFormat="json").sort("s").collect()
            assert back == frame.select("s", "b", "l", "m").sort("s").collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    texts = [f'"a", {row}' for row in range(3)]
    bodies = {
        "": texts,
        "csv": [rf'"\"a\", {row}"' for row in range(3)],
        "json": [
            json.dumps({"s": text, "b": "w78=", "l": ["x", None], "m": {"k": b64encode(text.encode()).decode()}},
                       separators=(",", ":"))
            for text in texts
        ],
    }[form]  # fmt: skip
    expected = [
        (body, f"tag{row}", f"k{row} l", text, row % 2)  # shardingKey "0", "1", "2" of two queues
        for row, (body, text) in enumerate(zip(bodies, texts, strict=True))
    ]
    assert sorted(tuple(row) for row in found) == expected


def test_members_that_must_not_be_null(mq: Rocket) -> None:
    topic = mq.topic(1)
    mq.send(topic, ['{"m": {"a": 1}, "l": [{"x": 1}]}', '{"m": {}, "l": null}', '{"m": {"a": null}}'])
    line = StructType([StructField("x", IntegerType(), False), StructField("y", StringType())])
    schema = StructType(
        [
            StructField("m", MapType(StringType(), IntegerType(), False)),
            StructField("l", ArrayType(line, False)),
        ]
    )
    read = mq.spark.read.format("rocket").schema(schema).options(nameServer=mq.name_server, subscribe=topic)
    frame = read.options(bodyFormat="json", badRecords="null").load()
    assert frame.schema == schema
    assert [tuple(row) for row in frame.collect()] == [({"a": 1}, [(1, None)]), ({}, None), (None, None)]
    with pytest.raises(PySparkException, match=r"0 at 2 cannot be decoded as json: the column m\.value: it is null"):
        read.options(bodyFormat="json", badRecords="fail").load().collect()


def test_every_format_round_trips(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(AVRO)
    (tmp_path / "shop.desc").write_bytes(descriptor())
    orders = spark.range(20, numPartitions=2).selectExpr(
        "id",
        "concat('item ö', id) AS item",
        "timestamp_seconds(1769860800 + id) AS at",
        "CAST(id * 1.25 AS decimal(10,2)) AS price",
        "map('k', CAST(id AS INT)) AS marks",
        "if(id % 2 = 0, 'A', 'B') AS kind",
        "array(named_struct('n', CAST(id AS INT)), named_struct('n', CAST(NULL AS INT))) AS lines",
        "named_struct('n', CAST(id AS INT)) AS later",
        "'12345678-1234-5678-1234-567812345678' AS uid",
        "CAST(id AS INT) AS clock",
        "concat('key', id % 3) AS keys",
    )
    rows = orders.collect()
    flat = ["id", "item", "at", "price"]
    formats: list[tuple[str, list[str], dict[str, str], bool]] = [
        ("json", orders.columns[:-1], {}, True),
        ("csv", flat, {"csvDelimiter": ";"}, True),
        ("arrow", orders.columns[:-1], {"arrowRowsPerMessage": "7"}, True),
        ("avro", orders.columns[:-1], {"avroSchema": str(tmp_path / "order.avsc")}, False),
        (
            "protobuf",
            ["id", "item", "at", "marks", "kind", "lines"],
            {"protobufDescriptor": str(tmp_path / "shop.desc"), "protobufMessage": "shop.Order"},
            False,
        ),
        ("text", ["item"], {}, False),
    ]
    for form, columns, options, needs_schema in formats:
        topic = mq.topic(2)
        frame = orders.select(*columns, "keys")
        write(mq, frame.coalesce(1) if form == "arrow" else frame, topic=topic, bodyFormat=form, **options)
        fields = [f"{field.name} {field.dataType.simpleString()}" for field in orders.schema if field.name in columns]
        schema = f"{', '.join(fields)}, the_keys string" if needs_schema else None
        both = {name: value for name, value in options.items() if name != "arrowRowsPerMessage"}
        found = typed(mq, topic, schema, bodyFormat=form, metadataColumns="keys as the_keys", **both)
        named = columns if form != "text" else ["value"]
        expected = sorted(tuple(row[name] for name in (*columns, "keys")) for row in rows)
        assert sorted(tuple(row) for row in found.select(*named, "the_keys").collect()) == expected, form


@needs(HAS_STREAM_ARROW_WRITER, "4.1", "the operator : of variants")
def test_variants(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    write(mq, spark.sql("""SELECT parse_json('{"a": [1, "x"], "b": 2.5}') AS v"""), topic=topic, bodyFormat="variant")
    found = typed(mq, topic, bodyFormat="variant").selectExpr("value:a[1]::string AS x", "value:b::double AS b")
    assert [tuple(row) for row in found.collect()] == [("x", 2.5)]
    assert mq.bodies(topic) == ['{"a":[1,"x"],"b":2.5}']


SCHEMA = "queueOffset bigint, id int, v variant, kept binary"
JSON = {"bodyFormat": "json", "metadataColumns": "queueOffset, body as kept"}


def test_records_that_cannot_be_decoded(mq: Rocket, spark: SparkSession) -> None:
    topic, bad = mq.topic(1), mq.topic(1)
    queue = mq.queues(topic)[0]
    bodies = ['{"id":1,"v":{"x":[1]}}', "malformed", '{"id":"2"}', '{"id":3}']
    for index, body in enumerate(bodies):
        mq.producer.send(
            Message.of(topic, body, tags="T", keys=[f"k{index}"], properties={"mine": str(index)}), queue=queue
        )
    with pytest.raises(
        PySparkException, match=rf"BAD_RECORD.* {topic}/{queue.broker_name}/0 at 1 cannot be decoded as json"
    ):
        typed(mq, topic, SCHEMA, **JSON).collect()

    def ids(schema: str = SCHEMA, **options: str) -> list[tuple[int, int | None]]:
        rows = typed(mq, topic, schema, **JSON, **options).collect()  # sorting in Spark would read twice
        assert [bytes(row.kept).decode() for row in rows] == [bodies[row.queueOffset] for row in rows]
        if "worst" in schema:
            assert [row.worst for row in rows] == [None, "malformed", '{"id":"2"}', None]
        return [(row.queueOffset, row.id) for row in rows]

    assert ids(badRecords="null") == [(0, 1), (1, None), (2, None), (3, 3)]
    assert len(ids(SCHEMA + ", worst string", badRecords="column", badRecordColumn="worst")) == 4
    assert ids(badRecords="drop") == [(0, 1), (3, 3)]
    assert ids(badRecords="deadLetter", deadLetterTopic=bad) == [(0, 1), (3, 3)]
    letters = mq.read(bad).orderBy("queueOffset").collect()
    assert [bytes(row.body).decode() for row in letters] == bodies[1:3]
    assert [(row.tags, row["keys"], row.properties["mine"]) for row in letters] == [("T", "k1", "1"), ("T", "k2", "2")]
    for offset, row in enumerate(letters, 1):
        origin = {
            BAD_RECORD_TOPIC: topic,
            BAD_RECORD_BROKER: queue.broker_name,
            BAD_RECORD_QUEUE: "0",
            BAD_RECORD_OFFSET: str(offset),
        }
        assert row.properties.items() >= origin.items()
    assert letters[1].properties[BAD_RECORD_REASON] == 'the column id: "2" is not an integer'
    # Another read creates dead letters with the same ids.
    ids(badRecords="deadLetter", deadLetterTopic=bad)
    again = [row.msgId for row in mq.read(bad).collect()]
    assert (len(again), len(set(again))) == (4, 2)


MEANINGS = "t timestamp, n timestamp_ntz, d date, de decimal(38,18), p decimal(10,2), s string"
TIMES = [
    "2026-01-31T12:00:00.123456Z", "2026-01-31 12:00:00 +02:00", "2026-01-31 12:00:00 UTC", "2026-01-31 12:00:00+0230",
    "2026-01-31 12:00:00", "2026-1-3", "2026-01-31 UTC", "2026-01-31Z", "+10000-01-01T04:59:59.000Z", "10000-01-01",
    "-0001-12-31T23:59:59.999999", "0000-01-01", "2026-02-30", "2026-01-31T24:00:00Z", "yesterday",
    " 2026-01-31", "2026-01-31 ", " 2026-01-31T12:00:00 ", "2026-01-31 12:00:00Z ",
]  # fmt: skip
NUMBERS = [
    "1.005", "-99999999.995", "99999999.994", "123456789.12", "1234567890", "1e30", "1E+2", "1e-50", "1e40",
    "340282366920938463463374607431768211457", "99999999999999999999.999999999999999999", "0.1234567890123456785",
]  # fmt: skip
OBJECTS = ['{"x":1,"x":2}', '[{"x":{"y":1,"y":1}},"a"]', "[]", "{}", '"a"']


def test_values_equal_those_of_from_json_and_from_csv(mq: Rocket, spark: SparkSession) -> None:
    """Each value is in its own record, because an invalid value makes all values of its record null."""
    pairs = [(name, f'"{text}"') for name in "tnd" for text in TIMES]
    pairs += [(name, text) for name in ("de", "p") for number in NUMBERS for text in (number, f'"{number}"')]
    names = [column.split(" ")[0] for column in MEANINGS.split(", ")]
    bodies = {
        "json": [f'{{"{name}":{text}}}' for name, text in pairs] + [f'{{"s":{text}}}' for text in OBJECTS],
        "csv": [
            ",".join("" if name != other else text.strip('"') for other in names)
            for name, text in pairs
            if "," not in text
        ],
    }
    shown = [f"CAST({name} AS STRING)" for name in names]
    for form, values in bodies.items():
        topic = mq.topic(1)
        mq.send(topic, values)
        options = {"bodyFormat": form, "badRecords": "null", "metadataColumns": "body as kept"}
        found = typed(mq, topic, f"{MEANINGS}, kept binary", **options)
        ours = found.selectExpr("CAST(kept AS STRING)", *shown).collect()
        theirs = (
            spark.createDataFrame([(value,) for value in values], "kept string")
            .selectExpr("kept", f"from_{form}(kept, '{MEANINGS}') AS found")
            .selectExpr("kept", "found.*")
            .selectExpr("kept", *shown)
            .collect()
        )
        assert [tuple(row) for row in ours] == [tuple(row) for row in theirs]


def test_the_end_of_9999_in_new_york(mq: Rocket, spark: SparkSession) -> None:
    """A sentinel in the year 10000 in UTC is written, read back, and read by Spark's own functions."""
    at = "timestamp'9999-12-31 23:59:59 America/New_York' AS at"
    for form in ("json", "csv"):
        topic = mq.topic(1)
        write(mq, spark.sql(f"SELECT 1 AS id, {at}, date'-0044-03-15' AS day"), topic=topic, bodyFormat=form)
        schema = "id int, at timestamp, day date"
        theirs = mq.read(topic).selectExpr(f"from_{form}(CAST(body AS STRING), '{schema}') AS x").select("x.*")
        for frame in (typed(mq, topic, schema, bodyFormat=form), theirs):
            texts = [tuple(row) for row in frame.selectExpr("CAST(at AS STRING)", "CAST(day AS STRING)").collect()]
            assert texts == [("+10000-01-01 04:59:59", "-0044-03-15")]


def test_null_in_the_only_csv_column(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    write(mq, spark.sql("SELECT * FROM VALUES ('a'), (NULL), ('') AS t(s)").coalesce(1), topic=topic, bodyFormat="csv")
    assert [row.s for row in typed(mq, topic, "s string", bodyFormat="csv").collect()] == ["a", None, ""]


def test_a_stream(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    """JSON with bad records in, JSON out, bad records to a topic. A restart causes no duplicates."""
    topic, out, bad = mq.topic(2), mq.topic(2), mq.topic(1)

    def run() -> None:
        options = JSON | {"badRecords": "deadLetter", "deadLetterTopic": bad, "startingOffsets": "earliest"}
        reader = spark.readStream.format("rocket").options(nameServer=mq.name_server, subscribe=topic, **options)
        query = (
            reader.schema("id int, at timestamp, price decimal(10,2), queueOffset bigint, kept binary")
            .load()
            .selectExpr("id", "at", "price * 2 AS price", "CAST(id AS STRING) AS keys")
            .writeStream.format("rocket")
            .options(nameServer=mq.name_server, topic=out, bodyFormat="json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for start in (0, 10):
        lines = [
            f'{{"id":{number},"at":"2026-01-31T12:00:0{number % 10}","price":1.5}}'
            for number in range(start, start + 10)
        ]
        mq.send(topic, [*lines, "{"], queue=start // 10)
        run()
    found = typed(
        mq, out, "id int, at timestamp, price decimal(12,2), keys string", bodyFormat="json", metadataColumns="keys"
    )
    assert sorted(tuple(row) for row in found.collect()) == [
        (number, datetime(2026, 1, 31, 12, 0, number % 10), Decimal("3.00"), str(number)) for number in range(20)
    ]
    assert mq.bodies(bad) == ["{", "{"]


@pytest.mark.parametrize(
    ("attempt", "wrong"),
    [
        (lambda mq: typed(mq, "x", bodyFormat="json").collect(), r"BAD_SCHEMA.*bodyFormat=json needs a schema"),
        (
            lambda mq: typed(mq, "x", "id int", badRecords="drop").collect(),
            "badRecords has no effect without bodyFormat",
        ),
        (lambda mq: typed(mq, "x", "id int not null", bodyFormat="csv").collect(), "the body column id is nullable"),
        (
            lambda mq: write(mq, mq.spark.sql("SELECT map('a', 1) AS m"), topic="x", bodyFormat="csv"),
            "the column m is map<.*>, which CSV does not support",
        ),
    ],
)
def test_invalid_options_fail_before_any_task(mq: Rocket, attempt: Callable[[Rocket], object], wrong: str) -> None:
    with pytest.raises(PySparkException, match=wrong):
        attempt(mq)
