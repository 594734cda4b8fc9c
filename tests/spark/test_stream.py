"""Streams: killed and restarted, stopped and restarted, with unavailable brokers and lost data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_rocket.testing import LocalCluster
from tests.spark import killed_query
from tests.spark.conftest import Rocket
from tests.spark.sessions import ROOT, TRIGGER, finish_limited

Run = Callable[..., list[str]]


@pytest.mark.long
def test_a_query_killed_during_a_batch_has_no_loss_and_no_duplicates(
    mq: Rocket, spark: SparkSession, tmp_path: Path
) -> None:
    topic = mq.topic(3)
    for queue in range(3):
        mq.send(topic, [f"{queue}-{number}" for number in range(120)], queue)
    checkpoint, output, fifo = (str(tmp_path / name) for name in ("checkpoint", "output", "fifo"))
    os.mkfifo(fifo)
    # Open for reading and writing, so that neither end waits for the other, and it becomes readable only after a write.
    said = os.open(fifo, os.O_RDWR)
    child = subprocess.Popen(
        [sys.executable, killed_query.__file__, mq.name_server, topic, checkpoint, output, fifo],
        start_new_session=True,
        # A separate classic session, even if this process uses Spark Connect, as PySpark marks in the environment.
        env={name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
        | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready, _, _ = select([said], [], [], 120)
        assert ready, "the query did not come to its third batch"
        assert os.read(said, 100) == b"in the middle of batch 2\n"
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(said)
    done = sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert done == ["0", "1"], "two batches were finished and one was not"
    assert sum(filter(None, mq.committed("killed", topic))) == 200, "the group has what is finished, and no more"
    mq.send(topic, [f"0-{number}" for number in range(120, 150)], 0)

    finish_limited(
        killed_query.source(spark, mq.name_server, topic, **TRIGGER)
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
    )
    rows = spark.read.parquet(output).collect()
    expected = [(queue, offset, f"{queue}-{offset}") for queue in range(3) for offset in range(120 + 30 * (queue == 0))]
    assert sorted((row.queueId, row.queueOffset, row.body) for row in rows) == expected
    assert mq.committed("killed", topic) == [150, 120, 120]


def test_a_restarted_stream_continues_and_ignores_start_options(mq: Rocket, run: Run) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["a", "b"])
    assert run(mq.stream(topic, startingOffsets="earliest")) == ["a", "b"]
    mq.send(topic, ["c"], queue=1)
    assert run(mq.stream(topic, startingOffsets="latest")) == ["c"]
    assert run(mq.stream(topic, startingOffsets="earliest")) == []


def test_a_stored_checkpoint_of_version_1_continues(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.cluster.create_topic("golden-v1", 2)
    assert mq.queues(topic)[0].broker_name == "broker-a", "the stored offsets name it"
    for queue in range(2):
        mq.send(topic, [f"{queue}-{number}" for number in range(10)], queue)
    shutil.copytree(Path(__file__).parent / "golden" / "checkpoint-v1", tmp_path / "checkpoint")
    rest = [f"0-{number}" for number in range(6, 10)] + [f"1-{number}" for number in range(5, 10)]
    assert sorted(run(mq.stream(topic, startingOffsets="earliest"))) == rest


def test_start_options(mq: Rocket, run: Run) -> None:
    topic = mq.topic(1)
    (queue,) = mq.queues(topic)
    mq.send(topic, ["a", "b", "c"])
    mq.reader.commit_offset("starts", queue, 2)
    stored = mq.reader.messages(queue, 0)[0].store_timestamp

    def begin(name: str, **options: object) -> list[str]:
        return run(mq.stream(topic, **options), checkpoint=name)

    assert begin("default") == []
    assert begin("group", startingOffsets="group", consumerGroup="starts") == ["c"]
    assert begin("time", startingTimestamp=stored) == ["a", "b", "c"]
    text = f'{{"{topic}": {{"{queue.broker_name}": {{"0": 1}}}}}}'
    assert begin("json", startingOffsets=text) == ["b", "c"]


def test_two_topics_streamed_into_a_third(mq: Rocket, run: Run, tmp_path: Path) -> None:
    one, two, target = mq.topic(1), mq.topic(2), mq.topic(2)
    mq.send(one, [f"one-{number}" for number in range(5)])
    mq.send(two, [f"two-{number}" for number in range(5)], queue=1)
    finish_limited(
        mq.stream(f"{one},{two}", startingOffsets="earliest", maxOffsetsPerTrigger=4)
        .selectExpr(
            "upper(CAST(body AS STRING)) AS body", "topic AS tags", "CAST(queueOffset AS STRING) AS shardingKey"
        )
        .writeStream.format("rocket")
        .options(nameServer=mq.name_server, topic=target, checkpointLocation=str(tmp_path / "copy"))
    )
    rows = mq.read(target).selectExpr("CAST(body AS STRING) AS body", "tags").collect()
    expected = [(f"ONE-{number}", one) for number in range(5)] + [(f"TWO-{number}", two) for number in range(5)]
    assert sorted((row.body, row.tags) for row in rows) == sorted(expected)


def test_the_groups_lag_is_visible_while_the_stream_runs_and_idles(mq: Rocket, tmp_path: Path) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["a"] * 3)
    query = (
        mq.stream(topic, startingOffsets="earliest", consumerGroup="lag")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert mq.committed("lag", topic) == [3, 0]
        mq.send(topic, ["b"] * 4, queue=1)
        query.processAllAvailable()
        assert mq.committed("lag", topic) == [3, 4]
        progress = [each for each in query.recentProgress if each["sources"][0]["numInputRows"]][-1]
        assert progress["sources"][0]["numInputRows"] == 4
        assert '"1": 4' in str(progress["sources"][0]["latestOffset"]).replace("'", '"')
    finally:
        query.stop()


def test_deleted_messages_stop_the_stream_or_are_skipped(mq: Rocket, run: Run) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a"] * 9)
    assert len(run(mq.stream(topic, startingOffsets="earliest"))) == 9
    mq.cluster.delete_topic(topic)
    mq.cluster.create_topic(topic, 1)
    mq.send(topic, ["b", "c"])
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS.*expected offset 9, but the queue ends at 2"):
        run(mq.stream(topic))
    assert run(mq.stream(topic, failOnDataLoss="false")) == ["b", "c"]
    mq.send(topic, ["d"])
    assert run(mq.stream(topic)) == ["d"], "and from there on as usual"


def test_a_repeated_first_batch_skips_a_recreated_topic(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a"] * 3)

    def fail(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("the first batch fails")

    stream = mq.stream(topic, startingOffsets="earliest")
    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="the first batch fails"):
        query.awaitTermination(120)
    mq.cluster.delete_topic(topic)
    mq.cluster.create_topic(topic, 1)
    mq.send(topic, ["b", "c", "d", "e"])
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS.QUEUE_RECREATED.*The stream is at 0 and has"):
        run(mq.stream(topic))
    assert run(mq.stream(topic, failOnDataLoss="false")) == ["b", "c", "d", "e"]


def test_a_topic_deleted_during_a_batch_is_skipped(mq: Rocket, run: Run, tmp_path: Path) -> None:
    kept, topic = mq.topic(1), mq.topic(1)
    mq.send(kept, ["a"])
    mq.send(topic, ["b"])

    def fail(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("the first batch fails")

    both = mq.stream(f"{kept},{topic}", startingOffsets="earliest")
    for name in ("passed over", "removed"):
        query = both.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / name)).start()
        with pytest.raises(StreamingQueryException, match="the first batch fails"):
            query.awaitTermination(120)
    mq.cluster.delete_topic(topic)
    with pytest.raises(StreamingQueryException, match=rf"DATA_LOSS.TOPIC_DELETED\] topic {topic} .*/0 at 0"):
        run(both, checkpoint="removed")
    assert run(mq.stream(f"{kept},{topic}", failOnDataLoss="false"), checkpoint="passed over") == ["a"]
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS.NOT_SELECTED"):
        run(mq.stream(kept), checkpoint="removed")
    assert run(mq.stream(kept, failOnDataLoss="false"), checkpoint="removed") == ["a"]


@pytest.mark.classic("foreachBatch runs in the process of the broker")
def test_a_query_waits_for_a_restarting_broker(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path / "data") as cluster:
        rocket = Rocket(cluster, spark)
        topic = rocket.topic(1)
        rocket.send(topic, [str(number) for number in range(20)])
        found: list[str] = []

        def collect(batch: DataFrame, batch_id: int) -> None:
            if batch_id == 1:
                cluster.restart_broker()
            found.extend(bytes(row.body).decode() for row in batch.select("body").collect())

        finish_limited(
            rocket.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        assert found == [str(number) for number in range(20)]
        rocket.producer.close()
        rocket.reader.close()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"maxOffsetsPerTriger": 5}, r"no option maxoffsetspertriger\. Did you mean maxOffsetsPerTrigger\?"),
        ({"subscribe": "no-such-topic"}, r"TOPIC_NOT_FOUND.*no-such-topic"),
    ],
)
def test_invalid_options_of_a_stream(mq: Rocket, run: Run, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(PySparkException, match=wrong):
        run(
            mq.stream(**{"topic": mq.topic(1), **options}) if "subscribe" not in options else mq.stream("no-such-topic")
        )
