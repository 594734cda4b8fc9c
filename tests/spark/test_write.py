"""Writes: round trips of every column, queues of rows, and errors of invalid rows and frames."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_rocket.protocol.filter.tags import java_hash
from tests.spark.conftest import Rocket


def write(mq: Rocket, frame: DataFrame, **options: Any) -> None:
    given = {"nameServer": mq.name_server, **options}
    frame.write.format("rocket").options(**given).mode("append").save()


def bodies(spark: SparkSession, count: int, *more: str, partitions: int = 2) -> DataFrame:
    return spark.range(count, numPartitions=partitions).selectExpr("CAST(id AS STRING) AS body", *more)


def test_every_column_round_trips(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(2)
    frame = bodies(
        spark,
        50,
        f"'{topic}' AS topic",
        "CASE WHEN id % 3 = 0 THEN concat('tag', id) END AS tags",
        "concat('key', id, ' ö') AS keys",
        "map('p', CAST(id AS STRING), 'ü', '') AS properties",
        "concat('shard', id % 5) AS shardingKey",
        "CAST(id % 2 AS INT) AS queueId",
    )
    write(mq, frame)
    rows = {int(bytes(row.body)): row for row in mq.read(topic).collect()}
    assert set(rows) == set(range(50))
    for number, row in rows.items():
        assert row.tags == (f"tag{number}" if number % 3 == 0 else None)
        assert row["keys"] == f"key{number} ö"
        assert row.queueId == number % 2
        expected = {"p": str(number), "ü": "", "__SHARDINGKEY": f"shard{number % 5}", "UNIQ_KEY": row.msgId}
        assert row.properties.items() >= expected.items()
    assert len({row.msgId for row in rows.values()}) == 50


def test_binary_and_empty_bodies(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    write(mq, spark.createDataFrame([(b"\x00\x01\x02\xff",), (b"",)], "BODY binary").coalesce(1), topic=topic)
    rows = mq.read(topic).orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [b"\x00\x01\x02\xff", b""]


def test_a_sharding_key_keeps_its_order_in_the_queue_of_a_java_producer(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(4)
    frame = bodies(spark, 2000, "concat('k', id % 7) AS shardingKey", partitions=1)
    write(mq, frame, topic=topic, sendBatchSize=50)
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in mq.read(topic).collect():
        key = row.properties["__SHARDINGKEY"]
        found.setdefault(key, []).append((row.queueId, row.queueOffset, int(bytes(row.body))))
    queues = mq.queues(topic)
    for key, places in found.items():
        assert {queue for queue, _, _ in places} == {queues[abs(java_hash(key)) % 4].queue_id}
        numbers = [number for _, _, number in sorted(places)]
        assert numbers == sorted(numbers)
    assert sum(map(len, found.values())) == 2000


def test_free_rows_are_spread_over_the_queues(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(4)
    write(mq, bodies(spark, 1000).repartition(40), topic=topic, writeId="spread")
    counts = [mq.reader.max_offset(queue) for queue in mq.queues(topic)]
    assert sum(counts) == 1000
    assert min(counts) > 0


def test_a_topic_column_and_the_option_that_overrides_it(mq: Rocket, spark: SparkSession) -> None:
    one, two = mq.topic(1), mq.topic(1)
    frame = bodies(spark, 10, f"CASE WHEN id % 2 = 0 THEN '{one}' ELSE '{two}' END AS topic")
    write(mq, frame)
    assert sorted(mq.bodies(one)) == ["0", "2", "4", "6", "8"]
    write(mq, frame, topic=two)
    assert mq.end(two) == 15


def test_the_same_write_id_makes_the_same_message_ids(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    for _ in range(2):
        write(mq, bodies(spark, 20), topic=topic, writeId="nightly-2026-01-31")
    write(mq, bodies(spark, 20), topic=topic)
    rows = mq.read(topic).select("msgId", "body").collect()
    assert len(rows) == 60
    assert len({(row.msgId, bytes(row.body)) for row in rows}) == 40


def test_large_messages_up_to_the_limit(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    limit = 4 * 1024 * 1024
    sizes = [limit, 10, limit - 30, 3_000_000, 2_000_000]
    rows = spark.createDataFrame([(size,) for size in sizes], "size int").coalesce(1)
    write(mq, rows.selectExpr("repeat('x', size) AS body"), topic=topic)
    found = mq.read(topic).selectExpr("length(body) AS size").collect()
    assert sorted(row.size for row in found) == sorted(sizes)


def test_a_message_above_the_limit_is_named_and_not_sent(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    frame = spark.range(3, numPartitions=1).selectExpr("repeat('x', IF(id = 1, 4194305, 5)) AS body")
    with pytest.raises(PySparkException, match=r"BAD_ROW\] row 1 of partition 0.*4194305 bytes.*limit of 4194304"):
        write(mq, frame, topic=topic)
    assert mq.end(topic) == 0


@pytest.mark.parametrize(
    ("columns", "options", "wrong"),
    [
        (["CAST(id AS STRING) AS value"], {}, r"BAD_SCHEMA.*cannot write a column value.*body"),
        (["'x' AS tags"], {}, r"the column body is missing"),
        (["id AS body"], {}, r"the column body is bigint, but must be string or binary"),
        (["CAST(NULL AS STRING) AS body"], {}, r"BAD_ROW\] row 0 of partition 0: body is null"),
        (["'b' AS body", "7 AS queueId"], {}, r"row 0 of partition 0: queueId is 7.*Valid queue ids: 0"),
        (["'b' AS body"], {"topc": "x"}, r"no option topc\. Did you mean topic\?"),
        (["'b' AS body"], {"nameServer": "127.0.0.1:1"}, r"NAME_SERVER_UNREACHABLE.*127\.0\.0\.1:1"),
    ],
)
def test_invalid_rows_and_options(
    mq: Rocket, spark: SparkSession, columns: list[str], options: dict[str, str], wrong: str
) -> None:
    topic = mq.topic(1)
    frame = spark.range(1, numPartitions=1).selectExpr(*columns)
    with pytest.raises(PySparkException, match=wrong):
        write(mq, frame, **{"topic": topic, **options})
    assert mq.end(topic) == 0


def test_a_missing_topic_is_created_by_the_broker(mq: Rocket, spark: SparkSession) -> None:
    write(mq, bodies(spark, 10, partitions=1), topic="never-seen-before")
    assert sorted(mq.bodies("never-seen-before")) == [str(number) for number in range(10)]


def test_no_topic(mq: Rocket, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"no target topic is set"):
        write(mq, bodies(spark, 1))
    nulls = bodies(spark, 1, "CAST(NULL AS STRING) AS topic")
    with pytest.raises(PySparkException, match=r"row 0 of partition \d: topic is null"):
        write(mq, nulls)


def test_delayed_and_compressed_rows_and_a_copy_of_them(mq: Rocket, spark: SparkSession) -> None:
    """Every third row has a level (1 s), every third a time; bodies of every other row are large."""
    topic, copy = mq.topic(2), mq.topic(2)
    frame = bodies(spark, 60).selectExpr(
        "concat(body, ':', repeat('x', IF(body % 2 = 0, 9000, 10))) AS body",
        "IF(body % 3 = 0, 1, IF(body % 2 = 0, 0, NULL)) AS delayLevel",
        "IF(body % 3 = 1, current_timestamp() + INTERVAL 1 SECOND, NULL) AS deliverAt",
        "IF(body % 5 = 0, concat('k', body % 2), NULL) AS shardingKey",
    )
    begun = time.time()
    write(mq, frame, topic=topic, compression="zlib", maxDelayedInFlight=8)
    assert mq.end(topic) >= 20
    while mq.end(topic) < 60:
        assert time.time() < begun + 60
        time.sleep(0.05)
    rows = mq.read(topic).collect()
    found = {int(bytes(row.body).split(b":")[0]): row for row in rows}
    assert len(rows) == len(found) == 60
    for number, row in found.items():
        assert bytes(row.body) == b"%d:%s" % (number, b"x" * (10 if number % 2 else 9000))
        assert row.properties.get("DELAY") == ("1" if number % 3 == 0 else None)
        assert ("TIMER_DELIVER_MS" in row.properties) == (number % 3 == 1)
        if number % 2 == 0:
            assert row.sysFlag & 1
    write(mq, mq.read(topic).select("body", "properties"), topic=copy, compression="zstd", compressAbove=1000)
    copied = mq.read(copy).collect()
    assert sorted(bytes(row.body) for row in copied) == sorted(bytes(row.body) for row in rows)
    assert not any(name in row.properties for row in copied for name in ("DELAY", "REAL_TOPIC", "TIMER_DELIVER_MS"))
    assert {row.sysFlag & 0x700 for row in copied if len(row.body) > 1000} == {0x200}


def test_duplicates_are_skipped(mq: Rocket, spark: SparkSession, run: Callable[..., list[str]]) -> None:
    """The whole write is repeated, as after a failure at its end. All rows keep their queue, so all are detected."""
    topic = mq.topic(4)
    frame = bodies(spark, 5000, "IF(id % 3 = 0, concat('k', id % 20), NULL) AS shardingKey")
    for _ in range(3):
        write(mq, frame, topic=topic, writeId="again", sendBatchSize=100)
    assert mq.end(topic) == 15_000
    want = sorted(map(str, range(5000)))
    assert sorted(mq.bodies(topic, dedupeWindow=15_000, maxRecordsPerPartition=2500)) == want
    assert mq.read(topic, dedupeWindow=1).count() == 15_000
    stream = mq.stream(topic, dedupeWindow=15_000, startingOffsets="earliest", maxOffsetsPerTrigger=6000)
    assert sorted(run(stream, limited=True)) == want
