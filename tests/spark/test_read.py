"""Batch reads: every column, every start and end, and partitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.model import Message
from tests.spark.conftest import Rocket


def test_every_column(mq: Rocket) -> None:
    topic = mq.topic(2)
    queue = mq.queues(topic)[1]
    before = datetime.now(UTC) - timedelta(seconds=1)
    messages = [
        Message.of(topic, "grüße", tags="T", keys=["k1", "k2"], properties={"mine": "ö"}),
        Message.of(topic, b"\x00\xff"),
        Message.of(topic, "x" * 10_000, tags=""),
    ]
    for message in messages:
        mq.producer.send(message, queue=queue)
    frame = mq.read(topic)
    assert frame.schema == SOURCE_SCHEMA
    rows = frame.orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [message.body for message in messages]
    assert {(row.topic, row.brokerName, row.queueId) for row in rows} == {(topic, queue.broker_name, 1)}
    assert [row.queueOffset for row in rows] == [0, 1, 2]
    assert [row["keys"] for row in rows] == ["k1 k2", None, None]
    assert rows[0].tags == "T"
    assert rows[1].tags is None
    assert rows[0].properties["mine"] == "ö"
    assert rows[0].properties["KEYS"] == "k1 k2"
    assert [row.properties["UNIQ_KEY"] for row in rows] == [row.msgId for row in rows]
    stored = mq.reader.messages(queue, 0)
    assert [row.msgId for row in rows] == [message.msg_id for message in stored]
    for row, message in zip(rows, stored, strict=True):
        assert row.storeHost == "{}:{}".format(*message.store_host) == mq.cluster.broker_address
        assert row.bornHost == "{}:{}".format(*message.born_host)
        assert (row.reconsumeTimes, row.flag, row.sysFlag) == (0, 0, message.sys_flag)
        assert row.bornTimestamp.astimezone(UTC) >= before
        assert row.storeTimestamp.timestamp() == pytest.approx(message.store_timestamp / 1000)
        assert row.bornTimestamp.timestamp() == pytest.approx(message.born_timestamp / 1000)


def test_a_schema_names_the_columns_to_decode(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a", "b"])
    frame = (
        spark.read.format("rocket")
        .schema("queueOffset bigint, body binary")
        .options(nameServer=mq.name_server, subscribe=topic)
        .load()
    )
    assert [(row.queueOffset, bytes(row.body)) for row in frame.collect()] == [(0, b"a"), (1, b"b")]


def test_start_and_end(mq: Rocket) -> None:
    topic = mq.topic(1)
    (queue,) = mq.queues(topic)
    mq.send(topic, [str(number) for number in range(10)])
    first_of_second = mq.reader.messages(queue, 0, max_msgs=1)[0].store_timestamp + 1
    while int(datetime.now(UTC).timestamp() * 1000) <= first_of_second:
        pass
    mq.send(topic, [str(number) for number in range(10, 20)])
    mq.reader.commit_offset("from", queue, 15)
    later = datetime.fromtimestamp(first_of_second / 1000, UTC).isoformat()

    def json_of(offset: int) -> str:
        return f'{{"{topic}": {{"{queue.broker_name}": {{"0": {offset}}}}}}}'

    def numbers(**options: object) -> list[int]:
        return [int(body) for body in mq.bodies(topic, **options)]

    assert numbers() == list(range(20))
    assert numbers(startingOffsets="earliest", endingOffsets="latest") == list(range(20))
    assert numbers(startingOffsets="group", consumerGroup="from") == [15, 16, 17, 18, 19]
    assert numbers(startingTimestamp=first_of_second) == list(range(10, 20))
    assert numbers(startingOffsets="timestamp", startingTimestamp=later) == list(range(10, 20))
    assert numbers(endingTimestamp=later) == list(range(10))
    assert numbers(startingOffsets=json_of(18)) == [18, 19]
    assert numbers(startingOffsets=json_of(-2), endingOffsets=json_of(2)) == [0, 1]
    assert numbers(startingOffsets=json_of(20), endingOffsets=json_of(-1)) == []


def test_several_topics(mq: Rocket) -> None:
    one, two = mq.topic(1), mq.topic(2)
    mq.send(one, ["a"])
    mq.send(two, ["b"], queue=1)
    assert sorted(mq.bodies(f"{one}, {two}")) == ["a", "b"]


def test_partitions_are_ranges_of_queues_and_large_ones_are_split(mq: Rocket) -> None:
    topic = mq.topic(3)
    mq.send(topic, [str(number) for number in range(100)], queue=0)
    mq.send(topic, ["x"] * 10, queue=2)

    def sizes(**options: object) -> list[int]:
        frame = mq.read(topic, **options).selectExpr("spark_partition_id() AS part", "queueId", "queueOffset")
        parts: dict[int, list[tuple[int, int]]] = {}
        for row in frame.collect():
            parts.setdefault(row.part, []).append((row.queueId, row.queueOffset))
        assert sorted(pair for part in parts.values() for pair in part) == sorted(
            [(0, offset) for offset in range(100)] + [(2, offset) for offset in range(10)]
        )
        assert all(part == sorted(part) and len({queue for queue, _ in part}) == 1 for part in parts.values())
        return [len(parts[number]) for number in sorted(parts)]

    assert sizes(combineSmallRanges=False) == [100, 10]
    assert sizes(minPartitions=5) == [25, 25, 25, 25, 10]
    assert sizes(maxRecordsPerPartition=40) == [33, 33, 34, 10]


def test_small_ranges_share_a_partition(mq: Rocket) -> None:
    topic = mq.topic(16)
    for queue in range(16):
        mq.send(topic, [f"{queue}-{number}" for number in range(62 + queue // 8)], queue=queue)

    def read(**options: object) -> tuple[int, list[str]]:
        frame = mq.read(topic, **options).selectExpr("spark_partition_id() AS part", "CAST(body AS STRING) AS text")
        rows = frame.collect()
        return len({row.part for row in rows}), [row.text for row in rows]

    alone = read(combineSmallRanges=False)
    assert len(alone[1]) == 1000
    assert read() == (1, alone[1]), "the same rows in the same order"
    assert alone[0] == 16


def test_a_broker_with_small_responses(mq: Rocket) -> None:
    topic = mq.topic(1)
    mq.send(topic, [str(number) for number in range(200)])
    for options in ({"pullBatchSize": 32}, {"pullBatchSize": 7, "arrowBatchRows": 50}, {"pullBatchBytes": 1024}):
        assert mq.bodies(topic, **options) == [str(number) for number in range(200)]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"startingoffset": "earliest"}, r"no option startingoffset\. Did you mean startingOffsets\?"),
        ({"sendBatchSize": "5"}, r"option sendBatchSize is for batch writes and streaming writes, not for batch reads"),
        ({"startingOffsets": "latest"}, r"reads nothing"),
        ({"startingOffsets": '{"TOPIC": {"missing": {"0": 1}}}'}, r"BAD_OFFSETS.* names TOPIC/missing/0"),
        (
            {"startingOffsets": '{"TOPIC": {"BROKER": {"0": 99}}}'},
            r"is 99 for TOPIC/BROKER/0, which is beyond its end 1",
        ),
        ({"subscribe": "no-such-topic"}, r"TOPIC_NOT_FOUND.*no-such-topic"),
        ({"nameServer": "127.0.0.1:1"}, r"NAME_SERVER_UNREACHABLE.*127\.0\.0\.1:1"),
    ],
)
def test_invalid_options(mq: Rocket, options: dict[str, str], wrong: str) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a"])
    broker = mq.queues(topic)[0].broker_name

    def filled(text: str) -> str:
        return text.replace("TOPIC/BROKER", f"{topic}/{broker}").replace("TOPIC/missing", f"{topic}/missing")

    given = {name: value.replace("TOPIC", topic).replace("BROKER", broker) for name, value in options.items()}
    with pytest.raises(PySparkException, match=filled(wrong)):
        mq.frame(**{"subscribe": topic, **given}).collect()


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ("value binary", r"BAD_SCHEMA.*no column value.*queueOffset"),
        ("body string", r"the column body is binary, not string"),
    ],
)
def test_invalid_schemas(mq: Rocket, spark: SparkSession, schema: str, wrong: str) -> None:
    reader = spark.read.format("rocket").schema(schema)
    with pytest.raises(PySparkException, match=wrong):
        reader.options(nameServer=mq.name_server, subscribe=mq.topic(1)).load().collect()


def test_subscribe_is_required(mq: Rocket, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"option subscribe is missing"):
        spark.read.format("rocket").option("nameServer", mq.name_server).load().collect()
