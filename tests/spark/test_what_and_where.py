"""Topics and queues, start and end, limits, and data loss, on a Spark session."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_rocket.model import MessageQueue
from tests.spark.conftest import Rocket
from tests.spark.sessions import CollectedBodies, finish_limited

Run = Callable[..., list[str]]


class Stream:
    """A query that runs until it is stopped, with the rows of its batches."""

    def __init__(self, mq: Rocket, checkpoint: Path, **options: object) -> None:
        self.found = CollectedBodies(checkpoint.with_name(f"found-{uuid4()}"))
        frame = mq.spark.readStream.format("rocket").options(nameServer=mq.name_server, **options).load()  # type: ignore[arg-type]

        self.query: StreamingQuery = (
            frame.writeStream.foreachBatch(self.found).option("checkpointLocation", str(checkpoint)).start()
        )

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def rows(self) -> list[str]:
        self.query.processAllAvailable()
        return sorted(self.found.bodies())


def offsets_json(offsets: dict[MessageQueue, object]) -> str:
    tree: dict[str, dict[str, dict[str, object]]] = {}
    for queue, offset in offsets.items():
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return json.dumps(tree)


def test_a_pattern_finds_new_topics_and_queues_without_loss(mq: Rocket, tmp_path: Path) -> None:
    first, second, other = (mq.cluster.create_topic(name, 1) for name in ("pattern-1", "pattern-x", "no-pattern-1"))
    mq.send(first, ["old"])
    with Stream(mq, tmp_path / "checkpoint", subscribePattern="pattern-[0-9]+") as stream:
        assert stream.rows() == [], "a stream begins at the latest"
        mq.send(first, ["a"])
        mq.send(second, ["never"])
        mq.send(other, ["never"])
        assert stream.rows() == ["a"]
        third = mq.cluster.create_topic("pattern-2", 2)
        mq.cluster.create_topic(first, 3)  # now from three queues
        mq.reader.refresh(first)
        mq.send(third, ["b"], queue=1)
        mq.send(first, ["c"], queue=2)
        assert stream.rows() == ["a", "b", "c"]
    mq.send(third, ["d"])
    with Stream(mq, tmp_path / "checkpoint", subscribePattern="pattern-[0-9]+") as stream:
        assert stream.rows() == ["d"]
    assert sorted(mq.bodies_of(subscribePattern="pattern-.")) == ["a", "b", "c", "d", "never", "old"]
    with pytest.raises(PySparkException, match=r"BAD_OFFSETS.NO_TOPIC_MATCHES.*'missing\.\*'"):
        mq.frame(subscribePattern="missing.*").collect()


def test_unavailable_brokers_and_queues_without_read_permission(mq: Rocket, run: Run) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a"])
    broker = mq.queues(topic)[0].broker_name
    away: dict[str, object] = {"expectedBrokers": f"{broker},broker-z", "retryTimeout": 0}
    wrong = rf"DATA_LOSS.BROKER_UNAVAILABLE\] broker broker-z .*{topic}.*expectedBrokers names it"
    with pytest.raises(PySparkException, match=wrong):
        mq.bodies(topic, **away)
    with pytest.raises(StreamingQueryException, match=wrong):
        run(mq.stream(topic, startingOffsets="earliest", **away))
    assert mq.bodies(topic, **away, failOnDataLoss="false") == ["a"]
    assert run(mq.stream(topic, startingOffsets="earliest", expectedBrokers=broker)) == ["a"]
    closed = mq.cluster.create_topic("closed", 1, perm=2)
    with pytest.raises(PySparkException, match=rf"BAD_OFFSETS.NOT_READABLE\] topic closed .* on {broker}"):
        mq.bodies(closed)


def test_assigned_queues_only(mq: Rocket, run: Run) -> None:
    topic = mq.topic(3)
    broker = mq.queues(topic)[0].broker_name
    for number in range(3):
        mq.send(topic, [str(number)], queue=number)
    assign = json.dumps({topic: {broker: [0, 2]}})
    assert sorted(mq.bodies_of(assign=assign)) == ["0", "2"]
    frame = mq.spark.readStream.format("rocket").options(
        nameServer=mq.name_server, assign=assign, startingOffsets="earliest"
    )
    assert sorted(run(frame.load())) == ["0", "2"]
    with pytest.raises(PySparkException, match=rf"NO_SUCH_QUEUE.*assign names {topic}/{broker}/7"):
        mq.frame(assign=json.dumps({topic: {broker: [0, 7]}})).collect()


def test_a_missing_topic_is_awaited(mq: Rocket, tmp_path: Path) -> None:
    there = mq.topic(1)
    mq.send(there, ["before"])
    subscribe = f"{there},waited-for"
    with Stream(mq, tmp_path / "checkpoint", subscribe=subscribe, waitForTopic="true") as stream:
        assert stream.rows() == []
        mq.send(there, ["a"])
        assert stream.rows() == ["a"]
        mq.cluster.create_topic("waited-for", 2)
        mq.send("waited-for", ["its first"], queue=1)
        assert stream.rows() == ["a", "its first"]
    with pytest.raises(PySparkException, match=r"BAD_OPTION.SCOPE.*waitForTopic is for streaming reads"):
        mq.frame(subscribe=there, waitForTopic="true").collect()


def test_a_stored_checkpoint_of_a_waiting_stream_continues(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["its first", "and next"])
    shutil.copytree(Path(__file__).parent / "golden" / "checkpoint-v1-waiting", tmp_path / "checkpoint")
    assert run(mq.stream(topic, startingOffsets="latest", waitForTopic="true")) == ["its first", "and next"]


def test_times_and_groups_as_start_and_end(mq: Rocket) -> None:
    topic = mq.topic(2)
    one, two = mq.queues(topic)
    mq.send(topic, ["0", "1", "2"])
    second = mq.reader.messages(one, 0)[-1].store_timestamp + 2
    while time.time() * 1000 < second:
        pass
    mq.send(topic, ["3", "4"])
    mq.send(topic, ["5"], queue=1)
    mq.reader.commit_offset("both-ends", one, 4)
    from_second = offsets_json({one: second, two: 0})

    def read(**options: object) -> list[str]:
        return sorted(mq.bodies(topic, **options))

    assert read(startingOffsetsByTimestamp=from_second) == ["3", "4", "5"]
    assert read(endingOffsetsByTimestamp=from_second) == ["0", "1", "2"]
    assert read(startingTimestamp="-1h", endingTimestamp=second) == ["0", "1", "2"]
    assert read(startingTimestamp="-0s", endingTimestamp="-0s") == []
    group = {"consumerGroup": "both-ends"}
    assert read(startingOffsets="group", **group) == ["4", "5"]
    assert read(startingOffsets="group", groupOffsetsFallback="latest", **group) == ["4"]
    assert read(endingOffsets="group", **group) == ["0", "1", "2", "3"]
    late = {"startingOffsetsByTimestamp": offsets_json({one: second, two: 2**53})}
    assert read(**late) == ["3", "4"]
    for options, wrong in (
        (
            late | {"startingOffsetsByTimestampStrategy": "error"},
            r"BAD_OFFSETS.NOTHING_SINCE.*ByTimestampStrategy=latest",
        ),
        (group | {"startingOffsets": "group", "groupOffsetsFallback": "error"}, r"BAD_OFFSETS.NOTHING_COMMITTED"),
    ):
        with pytest.raises(PySparkException, match=wrong):
            read(**options)


def test_combined_limits(mq: Rocket, tmp_path: Path) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["x" * 1000] * 90)
    mq.send(topic, ["y" * 1000] * 30, queue=1)
    found = CollectedBodies(tmp_path / "found")
    finish_limited(
        mq.stream(
            topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=70,
            maxBytesPerTrigger=60_000,
            minOffsetsPerTrigger=50,
            maxTriggerDelay="1ms",
        )
        .writeStream.foreachBatch(found)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    sizes = [len(batch) for batch in found.batches()]
    assert sum(sizes) == 120
    assert len(sizes) == 3
    assert max(sizes) < 57, "of 1,000 bytes and what a record has beside"


def test_a_batch_waits_for_the_minimum_or_the_delay(mq: Rocket, tmp_path: Path) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a", "b"])
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 3}
    with Stream(mq, tmp_path / "checkpoint", **options, maxTriggerDelay="1d") as stream:
        assert stream.rows() == ["a", "b"]
        mq.send(topic, ["c", "d"])
        assert stream.rows() == ["a", "b"]
        mq.send(topic, ["e"])
        assert stream.rows() == ["a", "b", "c", "d", "e"]
        mq.send(topic, ["f"])
        assert len(stream.rows()) == 5
    with Stream(mq, tmp_path / "checkpoint", **options, maxTriggerDelay="1ms") as stream:
        assert stream.rows() == ["f"]


def test_a_deleted_topic_and_removed_queues(mq: Rocket, run: Run) -> None:
    kept, topic = mq.topic(1), mq.topic(2)
    mq.send(kept, ["a"])
    mq.send(topic, ["b"], queue=1)
    both = f"{kept},{topic}"
    assert sorted(run(mq.stream(both, startingOffsets="earliest"))) == ["a", "b"]
    mq.send(topic, ["c"], queue=1)
    mq.cluster.create_topic(topic, 1)
    with pytest.raises(
        StreamingQueryException, match=rf"DATA_LOSS.QUEUE_DELETED\] {topic}/\S+/1 .*failOnDataLoss=false"
    ):
        run(mq.stream(both))
    mq.cluster.create_topic(topic, 2)
    assert run(mq.stream(both)) == ["c"], "it is there again"
    mq.cluster.delete_topic(topic)
    mq.send(kept, ["d"])
    with pytest.raises(StreamingQueryException, match=rf"DATA_LOSS.TOPIC_DELETED\] topic {topic} .*/1 at 2"):
        run(mq.stream(both))
    assert run(mq.stream(both, failOnDataLoss="false")) == ["d"]


def test_a_checkpoint_of_another_topic(mq: Rocket, run: Run) -> None:
    one, two = mq.topic(1), mq.topic(1)
    mq.send(one, ["a"])
    mq.send(two, ["old"])
    assert run(mq.stream(one, startingOffsets="earliest")) == ["a"]
    wrong = rf"DATA_LOSS.NOT_SELECTED\] subscribe={two} .*: {one}/\S+/0 at 1\."
    with pytest.raises(StreamingQueryException, match=wrong):
        run(mq.stream(two))
    mq.send(one, ["b"])
    assert run(mq.stream(two, failOnDataLoss="false")) == ["old"], "the checkpoint has no position of this topic"
    mq.send(two, ["c"])
    assert run(mq.stream(two)) == ["c"], "an accepted change is not a loss again"
    assert run(mq.stream(f"{one},{two}")) == ["b"], "the first topic continues at its position"


def test_an_unfinished_batch_of_another_topic(mq: Rocket, run: Run, tmp_path: Path) -> None:
    one, two = mq.topic(1), mq.topic(1)
    mq.send(one, ["a"])

    def fail(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("the first batch fails")

    writer = mq.stream(one, startingOffsets="earliest").writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="the first batch fails"):
        query.awaitTermination(120)
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS.NOT_SELECTED"):
        run(mq.stream(two))
    assert run(mq.stream(one)) == ["a"]
