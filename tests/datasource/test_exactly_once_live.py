"""The exactly-once sink on a broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_rocket.client import Reader
from spark_rocket.datasource.exactly_once import publish
from spark_rocket.datasource.exactly_once.brokers import Brokers, brokers_for
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.staging import Staged, stage_rows
from spark_rocket.datasource.exactly_once.writer import check_topics, commit_epoch
from spark_rocket.datasource.options.options import WriteOptions, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.model import MessageQueue, SendResult
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[Reader]:
    with Reader(cluster.name_server) as reader:
        yield reader


def options(cluster: LocalCluster, topic: str | None, **more: str) -> WriteOptions:
    given = {"nameServer": cluster.name_server, "deliveryGuarantee": "exactlyOnce", "gracePeriod": "1s", **more}
    parsed = parse_write_options(given | ({} if topic is None else {"topic": topic}), Scope.WRITE_STREAM)
    check_topics(parsed)
    return parsed


def stage(given: WriteOptions, epoch: Epoch, rows: pa.RecordBatch) -> Staged:
    return stage_rows(iter([rows]), brokers_for(given, given.producer_group), given, epoch)


def stored(reader: Reader, topic: str) -> list[str]:
    found = []
    for queue in reader.queues(topic):
        at = 0
        while at < reader.max_offset(queue):
            messages = reader.messages(queue, at)
            found += [bytes(message.body).decode() for message in messages]
            at = messages[-1].queue_offset + 1
    return found


def rows(count: int, mark: str = "") -> pa.RecordBatch:
    return pa.record_batch({"body": [f"{mark}{number}" for number in range(count)]})


def test_rows_are_visible_when_their_epoch_is_committed(cluster: LocalCluster, reader: Reader) -> None:
    topic = cluster.create_topic("happy")
    given = options(cluster, topic)
    commit_epoch(given, [stage(given, Epoch("happy", 0), rows(10))], is_stream=True)
    stage(given, Epoch("happy", 1), rows(10, "orphan"))
    assert sorted(stored(reader, topic)) == sorted(map(str, range(10)))
    staged = stage(given, Epoch("happy", 1), rows(10, "b"))
    for _ in range(2):
        commit_epoch(given, [staged], is_stream=True)
    commit_epoch(given, [stage(given, Epoch("happy", 1), rows(10, "again"))], is_stream=True)
    assert sorted(stored(reader, topic)) == sorted([*map(str, range(10)), *(f"b{number}" for number in range(10))])


def test_keys_compression_topics_and_delays(cluster: LocalCluster, reader: Reader) -> None:
    """Every kind of block, and several target topics."""
    one, two = cluster.create_topic("one", 3), cluster.create_topic("two", 2)
    given = options(cluster, None, compression="zlib", compressAbove="1k", sendBatchSize="7")
    count = 90
    frame = pa.record_batch(
        {
            "topic": [(one, two)[number % 2] for number in range(count)],
            "body": [f"{number}:" + "x" * (number % 3 * 1000) for number in range(count)],
            "shardingKey": [None if number % 5 else f"k{number % 4}" for number in range(count)],
            "delayLevel": pa.array([1 if number % 10 == 9 else None for number in range(count)], pa.int32()),
        }
    )
    commit_epoch(given, [stage(given, Epoch("kinds", 0), frame)], is_stream=True)
    until(lambda: len(stored(reader, one)) + len(stored(reader, two)) >= count)
    assert sorted(stored(reader, one)) == sorted(frame["body"].to_pylist()[::2])
    assert sorted(stored(reader, two)) == sorted(frame["body"].to_pylist()[1::2])


def test_a_crash_while_publishing_is_gone_on_from(
    cluster: LocalCluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit dies at its seventh send; the second one publishes the rest of the first one's rows."""
    topic = cluster.create_topic("crashed", 3)
    given = options(cluster, topic, sendBatchSize="100")
    frame = pa.record_batch(
        {
            "body": [str(number) for number in range(3000)],
            "shardingKey": [f"k{number % 50}" for number in range(3000)],
            "delayLevel": pa.array([1 if number % 1000 == 0 else None for number in range(3000)], pa.int32()),
        }
    )
    sends = iter(range(7))

    class Killed(BaseException):
        pass

    def publish_some(self: Brokers, block: object, queue: MessageQueue) -> SendResult:
        if next(sends, None) is None:
            raise Killed
        return send(self, block, queue)  # type: ignore[arg-type]

    send = Brokers.publish
    with monkeypatch.context() as patch:
        patch.setattr(Brokers, "publish", publish_some)
        with pytest.raises(Killed):
            commit_epoch(given, [stage(given, Epoch("crashed", 0), frame)], is_stream=True)
    assert 0 < len(stored(reader, topic)) < 3000
    commit_epoch(given, [stage(given, Epoch("crashed", 0), rows(50, "other"))], is_stream=True)
    until(lambda: len(stored(reader, topic)) >= 3000)
    assert sorted(map(int, stored(reader, topic))) == list(range(3000))


def test_a_send_without_a_response_is_not_repeated(
    cluster: LocalCluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.create_topic("lost", 1)
    given = options(cluster, topic, sendBatchSize="10")
    sent: list[int] = []

    def lose(self: Brokers, block: object, queue: MessageQueue) -> SendResult:
        result = send(self, block, queue)  # type: ignore[arg-type]
        sent.append(result.queue_offset)
        if len(sent) in (2, 5):
            raise RemotingTimeoutError("no response")
        return result

    send = Brokers.publish
    monkeypatch.setattr(Brokers, "publish", lose)
    monkeypatch.setattr(publish, "_MARGIN", 3)
    commit_epoch(given, [stage(given, Epoch("lost", 0), rows(60))], is_stream=True)
    assert stored(reader, topic) == [str(number) for number in range(60)]
    assert len(sent) == 6
