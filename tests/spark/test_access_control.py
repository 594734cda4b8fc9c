"""Spark on a cluster with signed requests, without secrets in the output and files of Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

KEYS = {"accessKey": "root-key", "secretKey": "r00t-s3cr3t"}
SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    keys: dict[str, Any] = {"access_key": KEYS["accessKey"], "secret_key": KEYS["secretKey"]}
    with LocalCluster(**keys) as running:
        running.create_topic("orders", 1)
        with Producer("senders", name_server=running.name_server, **keys) as producer:
            producer.send([Message.of("orders", str(number)) for number in range(10)])
        yield running
        assert SECRET not in running.log


def test_a_query_with_credentials(
    spark: SparkSession,
    guarded: LocalCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "spark_rocket")
    shown: list[str] = []
    at = {"nameServer": guarded.name_server}
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: root-key\nsecretKey: r00t-s3cr3t\n")

    frame = spark.read.format("rocket").options(**at, **KEYS, subscribe="orders").load()
    frame.explain("extended")
    frame.explain("formatted")
    assert frame.count() == 10
    topics = spark.read.format("rocket").options(**at, **KEYS, view="topics").load()
    topics.explain("extended")
    assert "orders" in {row.topic for row in topics.collect()}

    rows = spark.createDataFrame([("written", "orders")], "body string, topic string")
    rows.write.format("rocket").options(**at, credentialsFile=str(file)).mode("append").save()

    stream = spark.readStream.format("rocket").options(**at, **KEYS, subscribe="orders", startingOffsets="earliest")
    streamed = stream.load()
    streamed.explain("extended")
    letters = streamed.selectExpr("body", "'orders' as topic").writeStream.format("rocket").options(**at, **KEYS)
    query = letters.option("checkpointLocation", str(tmp_path / "to")).trigger(availableNow=True).start()
    query.explain(extended=True)
    assert query.awaitTermination(120)
    shown += [str(progress) for progress in query.recentProgress]
    shown += [progress.json for progress in query.recentProgress]
    assert shown

    again = spark.read.format("rocket").options(**at, **KEYS, subscribe="orders").load()
    assert again.where("cast(body as string) = 'written'").count() == 2  # and the rows of the stream
    kept = [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert kept
    assert not any(SECRET.encode() in path.read_bytes() for path in kept)

    with pytest.raises(Exception, match="NO_PERMISSION") as refused:
        spark.read.format("rocket").options(
            **at, accessKey="root-key", secretKey="wr0ng-s3cr3t", subscribe="orders"
        ).load().count()
    shown += [str(refused.value), repr(refused.value)]
    with pytest.raises(Exception, match="NO_PERMISSION") as refused:
        rows.write.format("rocket").options(**at, accessKey="n0body", secretKey="wr0ng-s3cr3t").mode("append").save()
    shown += [str(refused.value), repr(refused.value)]
    shown += [*capfd.readouterr(), caplog.text]
    assert not any(SECRET in text for text in shown)


@pytest.mark.classic("the session's own catalog")
def test_a_table_and_a_view(spark: SparkSession, guarded: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    options = f"nameServer '{guarded.name_server}', subscribe 'orders'"
    with pytest.raises(Exception, match="SECRET_IN_TABLE") as refused:
        spark.sql(
            f"CREATE TABLE guarded_t USING rocket OPTIONS ({options}, accessKey 'root-key', "
            f"secretKey '{KEYS['secretKey']}')"
        )
    assert SECRET not in str(refused.value)
    spark.sql(
        f"CREATE TEMPORARY VIEW guarded_v USING rocket OPTIONS ({options}, accessKey 'root-key', "
        f"secretKey '{KEYS['secretKey']}')"
    )
    try:
        assert spark.table("guarded_v").count() >= 10
        for statement in ("DESCRIBE TABLE EXTENDED guarded_v", "EXPLAIN EXTENDED SELECT * FROM guarded_v"):
            assert SECRET not in str(spark.sql(statement).collect())
    finally:
        spark.catalog.dropTempView("guarded_v")
