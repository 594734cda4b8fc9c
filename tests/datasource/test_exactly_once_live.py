"""The exactly-once sink on a broker, without Spark."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.datasource.exactly_once import publish
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.ledger import Ledger
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest
from spark_rocket.datasource.exactly_once.records import PREPARED
from spark_rocket.datasource.exactly_once.registers import Registers
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing, brokers_for
from spark_rocket.datasource.exactly_once.staging import Staged, stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import (
    BrokerError,
    DataLossError,
    ExactlyOnceError,
    QueueNotFoundError,
    RemotingTimeoutError,
)
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[Reader]:
    with Reader(cluster.name_server) as reader:
        yield reader


def options(cluster: LocalCluster, topic: str | None, **more: str) -> WriteOptions:
    given = {
        "nameServer": cluster.name_server,
        "deliveryGuarantee": "exactlyOnce",
        "gracePeriod": "2s",
        "requestTimeout": "1s",
        **more,
    }
    parsed = parse_write_options(given | ({} if topic is None else {"topic": topic}), Scope.WRITE_STREAM)
    check_topics(parsed)
    return parsed


def stage(given: WriteOptions, epoch: Epoch, rows: pa.RecordBatch) -> Staged:
    return stage_rows(iter([rows]), brokers_for(given), given, epoch)


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


def test_a_query_remembers_its_batch_at_the_broker(cluster: LocalCluster, reader: Reader) -> None:
    given = options(cluster, cluster.create_topic("remembers"))
    brokers, epoch = brokers_for(given), Epoch("remembers", 4)
    commit_epoch(given, [stage(given, epoch, rows(1))], is_stream=True)
    (ledger,) = reader.queues(given.ledger_topic)
    assert Registers(brokers, ledger, "remembers").read().batch == 4
    assert Registers(brokers, ledger, "another").read().batch is None


def test_a_topic_created_by_the_first_row(cluster: LocalCluster, reader: Reader) -> None:
    given = options(cluster, "created-by-a-row")
    frame = pa.record_batch({"body": ["now", "later"], "delayLevel": pa.array([None, 1], pa.int32())})
    commit_epoch(given, [stage(given, Epoch("created", 0), frame)], is_stream=True)
    until(lambda: sorted(stored(reader, "created-by-a-row")) == ["later", "now"])


def test_ends_of_queues_of_an_unavailable_broker(cluster: LocalCluster) -> None:
    brokers = brokers_for(options(cluster, "t"))
    with pytest.raises(QueueNotFoundError) as caught:
        brokers.ends([MessageQueue("created-nowhere", "broker-x", 0)])
    assert caught.value.retriable
    assert brokers.ends([MessageQueue("created-nowhere", "broker-a", 0)]) == {
        MessageQueue("created-nowhere", "broker-a", 0): 0
    }


@pytest.mark.parametrize(
    "request_of",
    [
        lambda brokers, queue: brokers.start(queue),
        lambda brokers, queue: brokers.end(queue),
        lambda brokers, queue: brokers.ends([queue]),
        lambda brokers, queue: brokers.messages(queue, 0),
        lambda brokers, queue: brokers.staged_later(queue, 0)(),
        lambda brokers, queue: brokers.append(queue, b"x"),
        lambda brokers, queue: brokers.committed("g", queue),
        lambda brokers, queue: brokers.commit("g", queue, 1),
    ],
    ids=["start", "end", "ends", "messages", "staged", "append", "committed", "commit"],
)
def test_a_queue_without_a_route_is_unavailable(
    cluster: LocalCluster, request_of: Callable[[Brokers, MessageQueue], object]
) -> None:
    """The broker of a ledger that restarts has no route for a moment: its requests are retried."""
    brokers = brokers_for(options(cluster, "t"))
    with pytest.raises(QueueNotFoundError, match="its broker is unavailable or not registered yet") as caught:
        request_of(brokers, MessageQueue("of-a-stopped-broker", "broker-x", 0))
    assert caught.value.retriable


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


def test_publishing_continues_after_a_crash(
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
    monkeypatch.setattr(publish, "_READ_BACK_MESSAGES", 3)
    commit_epoch(given, [stage(given, Epoch("lost", 0), rows(60))], is_stream=True)
    assert stored(reader, topic) == [str(number) for number in range(60)]
    assert len(sent) == 6


def test_a_broker_killed_during_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}) as cluster, Reader(cluster.name_server) as reader:
        topic = cluster.create_topic("killed", 2)
        given = options(cluster, topic, sendBatchSize="20")
        sends = iter(range(100))

        def kill(self: Brokers, block: object, queue: MessageQueue) -> SendResult:
            number = next(sends)
            if number == 4:
                cluster.kill_broker()
                cluster.restart_broker()
            result = send(self, block, queue)  # type: ignore[arg-type]
            if number == 9:
                cluster.kill_broker()
                cluster.restart_broker()
                raise RemotingTimeoutError("the broker was killed before it answered")
            return result

        send = Brokers.publish
        monkeypatch.setattr(Brokers, "publish", kill)
        frame = pa.record_batch({"body": ROWS_OF_KEYS, "shardingKey": [body.split(":")[0] for body in ROWS_OF_KEYS]})
        commit_epoch(given, [stage(given, Epoch("killed", 0), frame)], is_stream=True)
        assert sorted(stored(reader, topic)) == sorted(ROWS_OF_KEYS)
        for key in range(9):
            numbers = [int(body.split(":")[1]) for body in stored(reader, topic) if body.startswith(f"k{key}:")]
            assert numbers == sorted(numbers)


def test_a_past_and_a_future_delivery_time(cluster: LocalCluster, reader: Reader) -> None:
    topic = cluster.create_topic("timers", 1)
    given = options(cluster, topic)
    now = datetime.now(UTC)
    times = pa.array([now - timedelta(hours=1), now + timedelta(seconds=1)], pa.timestamp("us", tz="UTC"))
    frame = pa.record_batch({"body": ["past", "soon"], "deliverAt": times})
    commit_epoch(given, [stage(given, Epoch("timers", 0), frame)], is_stream=True)
    until(lambda: sorted(stored(reader, topic)) == ["past", "soon"])


@pytest.mark.parametrize("more", [{}, {"compression": "zlib", "compressAbove": "1k"}])
def test_a_restart_with_a_smaller_limit(cluster: LocalCluster, reader: Reader, more: dict[str, str]) -> None:
    """Blocks staged with a higher limit are published in halves."""
    topic = cluster.create_topic(f"halves{len(more)}", 1)
    given = options(cluster, topic, **more)
    frame = pa.record_batch({"body": [f"{number}:" + "x" * 2000 for number in range(100)]})
    staged = stage(given, Epoch(topic, 0), frame)
    commit_epoch(options(cluster, topic, maxMessageSize="4k"), [staged], is_stream=True)
    assert stored(reader, topic) == frame["body"].to_pylist()


def test_a_ledger_with_several_queues_is_refused(cluster: LocalCluster) -> None:
    cluster.create_topic("wide-ledger", 2)
    with pytest.raises(
        ExactlyOnceError, match=r"LEDGER_QUEUES.*wide-ledger has 2 queues \(wide-ledger/broker-a/0, .* must have one"
    ):
        options(cluster, "t", ledgerTopic="wide-ledger")


def test_a_missing_ledger_with_an_existing_staging_topic(cluster: LocalCluster) -> None:
    """It is on an unavailable broker: a ledger on another broker would lack its decisions."""
    options(cluster, "t")
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*rocket topic create other-ledger .*--queues 1"):
        options(cluster, "t", ledgerTopic="other-ledger", retryTimeout="0")


def test_a_foreign_message_in_the_ledger(cluster: LocalCluster) -> None:
    given = options(
        cluster, cluster.create_topic("foreign"), ledgerTopic="foreign-ledger", stagingTopic="foreign-stage"
    )
    with Producer("tests", name_server=cluster.name_server) as producer:
        producer.send(Message.of("foreign-ledger", "hello"))
    with pytest.raises(ExactlyOnceError, match=r"FOREIGN_MESSAGE.*foreign-ledger/broker-a/0: message 1"):
        commit_epoch(given, [stage(given, Epoch("foreign", 0), rows(1))], is_stream=True)


def test_a_deleted_staging_topic(cluster: LocalCluster, reader: Reader) -> None:
    topic = cluster.create_topic("unstaged")
    given = options(cluster, topic, ledgerTopic="lost-ledger", stagingTopic="lost-stage", retryTimeout="1s")
    staged = stage(given, Epoch("unstaged", 0), rows(10))
    cluster.delete_topic("lost-stage")
    with pytest.raises(DataLossError, match=r"DATA_LOSS.STAGED_BLOCK.*lost-stage/broker-a/\d: the staged rows"):
        commit_epoch(given, [staged], is_stream=True)
    assert stored(reader, topic) == []


def test_tls() -> None:
    """Staging, the ledger, publishing and reading back."""
    with (
        LocalCluster(in_process=True, tls="enforcing") as cluster,
        Reader(cluster.name_server, tls=cluster.tls) as reader,
    ):
        topic = cluster.create_topic("private", 2)
        given = options(cluster, topic, tls="true", tlsCaFile=str(cluster.tls.client_trust_cert_path))
        staged = stage(given, Epoch("private", 0), rows(50))
        queue = brokers_for(given).reader.refresh(given.ledger_topic)[0]
        timing = Timing.of(given)
        ledger = Ledger(brokers_for(given), queue, given.staging_topic, "private", timing, is_stream=True)
        manifest = Manifest(staged.blocks, {}).encode()
        ledger.append(PREPARED, Epoch("private", 0), manifest=base64.b64encode(manifest).decode())
        commit_epoch(given, [stage(given, Epoch("private", 0), rows(9, "other"))], is_stream=True)
        assert sorted(stored(reader, topic)) == sorted(map(str, range(50)))


def test_two_brokers() -> None:
    with LocalCluster(brokers=2) as cluster, Reader(cluster.name_server) as reader:
        topic = cluster.create_topic("spread", 2)
        given = options(cluster, topic, sendBatchSize="10")
        frame = pa.record_batch({"body": ROWS_OF_KEYS, "shardingKey": [body.split(":")[0] for body in ROWS_OF_KEYS]})
        commit_epoch(given, [stage(given, Epoch("spread", 0), frame)], is_stream=True)
        assert sorted(stored(reader, topic)) == sorted(ROWS_OF_KEYS)
        assert {queue.broker_name for queue in reader.queues("ROCKET_SINK_STAGING")} == {"broker-a", "broker-b"}
        assert [queue.broker_name for queue in reader.queues("ROCKET_SINK_LEDGER")] == ["broker-a"]


def test_a_restarted_broker_is_confirmed_at_once() -> None:
    """Its staging queues are missing in the route that was requested while it was unavailable."""
    with LocalCluster(brokers=2) as cluster:
        given = options(cluster, cluster.create_topic("back", 1))
        brokers = brokers_for(given)
        cluster.kill_broker()
        routes = brokers._producer.running().routes
        until(lambda: {queue.broker_name for queue in routes.refresh(given.staging_topic).writable} == {"broker-b"})
        cluster.restart_broker()
        brokers.confirm("broker-a", given.staging_topic, Timing(grace=0, retry_timeout_ms=10_000))


ROWS_OF_KEYS = [f"k{number % 9}:{number}" for number in range(200)]


def test_missing_permissions_are_named() -> None:
    keys: dict[str, Any] = {"access_key": "admin-account", "secret_key": "admin-secret"}
    with LocalCluster(in_process=True, access_key="admin-account", secret_key="admin-secret") as cluster:
        cluster.create_topic("orders")
        account = {"accessKey": "sink-account", "secretKey": "sink-secret"}
        rights = ["orders=PUB|SUB", "ROCKET_SINK_STAGING=PUB|SUB", "ROCKET_SINK_LEDGER=SUB"]

        def allow(*topics: str) -> None:
            with Admin(cluster.name_server, **keys) as admin:
                admin.update_account(
                    account["accessKey"], admin=False, secret_key=account["secretKey"], topic_perms=topics,
                    default_topic_perm="DENY", default_group_perm="SUB",
                )  # fmt: skip

        def write() -> None:
            given = options(cluster, "orders", retryTimeout="0", **account)
            commit_epoch(given, [stage(given, Epoch("rights", 0), rows(5))], is_stream=True)

        allow(*rights)
        refused = r"NO_TOPIC\] topic ROCKET_SINK_LEDGER of the sink .* could not be created.*mqadmin updateTopic -n"
        with pytest.raises(ExactlyOnceError, match=refused):
            write()
        cluster.create_topic("ROCKET_SINK_LEDGER", 1)
        cluster.create_topic("ROCKET_SINK_STAGING", 4)
        with pytest.raises(BrokerError, match=r"PUB.*ROCKET_SINK_LEDGER"):
            write()
        allow(*rights[:1], "ROCKET_SINK_LEDGER=PUB|SUB")
        with pytest.raises(BrokerError, match=r"PUB.*ROCKET_SINK_STAGING"):
            write()
        allow(*rights[:2], "ROCKET_SINK_LEDGER=PUB|SUB")
        write()
        with Reader(cluster.name_server, **keys) as reader:
            assert sorted(stored(reader, "orders")) == [str(number) for number in range(5)]
