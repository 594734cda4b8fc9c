"""``storePath`` in Spark: the disk of a stopped broker has the same rows as its topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark_rocket.client import Producer
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.model import Message
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.golden import expected, extract_store


def directory_of(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("rocket").options(storePath=str(path), **options).load()  # type: ignore[arg-type]


def ordered(frame: DataFrame) -> list[Row]:
    return frame.orderBy("topic", "queueId", "queueOffset").collect()


def test_a_stopped_brokers_disk_has_the_rows_of_its_topic(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 18, "brokerName": "broker-x"}
    with LocalCluster(in_process=True, data_dir=tmp_path / "data", config=settings) as cluster:
        topics = [cluster.create_topic(name, 3) for name in ("orders", "payments")]
        with Producer("tests", name_server=cluster.name_server) as producer:
            for start in range(0, 1500, 500):
                for topic in topics:
                    producer.send(
                        [
                            Message.of(topic, f"{number}" * 20, tags=f"T{number % 3}", keys=[f"k{number}"])
                            for number in range(start, start + 500)
                        ]
                    )
            producer.send(Message.of("orders", "x" * 10_000, properties={"mine": "ö"}))
        topic_read = ordered(
            spark.read.format("rocket").options(nameServer=cluster.name_server, subscribe="orders,payments").load()
        )
        with pytest.raises(PySparkException, match="STORE_LOCKED"):
            directory_of(spark, tmp_path / "data").collect()
    frame = directory_of(spark, tmp_path / "data")
    assert frame.schema == SOURCE_SCHEMA
    assert ordered(frame) == topic_read
    assert len(topic_read) == 3_001
    assert {row.brokerName for row in topic_read} == {"broker-x"}
    assert check_store(cluster.store_dir) == []


def test_a_killed_brokers_disk(spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path) as cluster:
        topic = cluster.create_topic("orders", 2)
        with Producer("tests", name_server=cluster.name_server) as producer:
            for number in range(20):
                producer.send(Message.of(topic, f"{number}"))
        cluster.kill_broker()
        found = directory_of(spark, tmp_path, subscribe="orders").select("body").collect()
        assert sorted(int(bytes(row.body)) for row in found) == list(range(20))


def test_an_apache_store_through_parquet(spark: SparkSession, tmp_path: Path) -> None:
    directory = extract_store("killed", tmp_path)
    frame = directory_of(spark, directory, minPartitions=6)
    frame.write.parquet(str(tmp_path / "parquet"))
    again = ordered(spark.read.parquet(str(tmp_path / "parquet")))
    assert again == ordered(frame)
    wanted = [row for row in expected("killed") if row["topic"].startswith("Golden")]
    assert len(again) == len(wanted)
    assert sum(row.tags == "TagA" for row in again) == sum(row["tags"] == "TagA" for row in wanted)


def test_a_schema_and_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    frame = (
        spark.read.format("rocket")
        .schema("queueOffset bigint, body binary")
        .options(storePath=f"file://{directory}", subscribe="GoldenOrder")
        .load()
    )
    assert len(frame.limit(7).collect()) == 7
    assert len(frame.collect()) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storePath": "/nowhere"}, "STORE_ERROR.*/nowhere is not a directory on the driver"),
        ({"storePath": "/", "nameServer": "h:1"}, "BAD_OPTION.*nameServer cannot be combined with storePath"),
        ({"storePath": "s3://bucket/store"}, "BAD_OPTION.*storePath is 's3://bucket/store'"),
    ],
)
def test_invalid_options(spark: SparkSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("rocket").options(**options).load().collect()


def test_damage_is_reported_with_its_position(spark: SparkSession, tmp_path: Path) -> None:
    directory = extract_store("clean", tmp_path)
    log = directory / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    with pytest.raises(PySparkException, match=r"DATA_LOSS.*commitlog/0{20} at byte 0 \(offset 0\)"):
        directory_of(spark, directory).collect()
    assert directory_of(spark, directory, failOnDataLoss="false", subscribe="GoldenA").count() == 999
