"""A stream over several brokers: one is killed in the middle of a micro-batch, and brokers and queues are added."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

PATIENCE = 60.0
TOPIC = "Flights"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def halts_at(broker: str, reported: str, wait: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task that returns offset 30 of the broker's queue 0 reports it and waits until it may continue."""

    def halt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        for batch in batches:
            row = batch.slice(0, 1).to_pylist()[0]
            if (row["brokerName"], row["queueId"], row["queueOffset"]) == (broker, 0, 30):
                with Path(reported).open("w") as out:
                    out.write("in the middle\n")
                Path(wait).read_text()
            yield batch

    return halt


@pytest.mark.long
def test_a_killed_broker_and_added_brokers_and_queues(spark: SparkSession, tmp_path: Path) -> None:
    output, reported, wait = (str(tmp_path / name) for name in ("output", "reached", "wait"))
    os.mkfifo(reported)
    os.mkfifo(wait)
    # Open for reading and writing, so that it becomes readable only after a write.
    heard = os.open(reported, os.O_RDWR)
    sent: set[tuple[str, int, int, str]] = set()
    spark.conf.set(_BATCH_ROWS, "10")
    with (
        LocalCluster(brokers=2, config={"grpcServerPort": -1}) as cluster,
        Producer(name_server=cluster.name_server) as producer,
        Reader(cluster.name_server) as reader,
    ):
        cluster.create_topic(TOPIC, 2)

        def send(count: int) -> None:
            """Send this many messages to each existing queue."""
            for queue in reader.refresh(TOPIC):
                bodies = [f"{queue.broker_name}-{queue.queue_id}-{len(sent) + number}" for number in range(count)]
                first = producer.send([Message.of(TOPIC, body) for body in bodies], queue=queue).queue_offset
                sent.update(
                    (queue.broker_name, queue.queue_id, first + number, body) for number, body in enumerate(bodies)
                )

        def written() -> list[tuple[str, int, int, str]]:
            rows = spark.read.schema("brokerName string, queueId int, queueOffset long, body string").parquet(output)
            return [tuple(row) for row in rows.collect()]

        def wait_for_all() -> None:
            deadline = time.monotonic() + PATIENCE
            while query.isActive:  # on Spark Connect, only sources report their rows
                seen = sum(done["sources"][0]["numInputRows"] for done in query.recentProgress)
                if seen >= len(sent):
                    return
                assert time.monotonic() < deadline, (seen, len(sent), query.lastProgress)
                time.sleep(0.1)

        send(20)
        query = (
            spark.readStream.format("rocket")
            .option("nameServer", cluster.name_server)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("arrowBatchRows", 10)
            .option("pullBatchSize", 10)
            .load()
            .selectExpr("brokerName", "queueId", "queueOffset", "CAST(body AS STRING) AS body")
            .mapInArrow(
                halts_at("broker-b", reported, wait),
                "brokerName string, queueId int, queueOffset long, body string",
            )
            .writeStream.format("parquet")
            .option("path", output)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_for_all()
            send(100)
            ready, _, _ = select([heard], [], [], PATIENCE)
            assert ready, query.exception() or query.lastProgress
            assert query.isActive
            cluster.brokers[1].kill()
            with Path(wait).open("w") as out:
                out.write("go on\n")
            cluster.create_topic(TOPIC, 3)  # one more queue on the remaining brokers
            producer.send(Message.of(TOPIC, "x"), queue=reader.refresh(TOPIC)[0])
            sent.add(("broker-a", 0, 120, "x"))
            cluster.brokers[1].start()
            cluster.add_broker()
            cluster.create_topic(TOPIC, 3)
            send(30)
            wait_for_all()
            assert {broker for broker, *_ in sent} == {"broker-a", "broker-b", "broker-c"}
            assert query.exception() is None
        finally:
            query.stop()
            os.close(heard)
            spark.conf.unset(_BATCH_ROWS)
        assert sorted(written()) == sorted(sent)
