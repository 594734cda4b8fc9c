"""The client behaves the same with brokers of 4.3, 4.9 and 5.3, except for documented differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.client import (
    LitePullConsumer,
    Producer,
    PushConsumer,
    Reader,
)
from spark_rocket.client.consume.pull import PullStatus
from spark_rocket.errors import QueueNotFoundError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from tests.client.apache import VERSIONS, ApacheCluster, Stored
from tests.client.consuming import SECONDS
from tests.client.pushing import FIRST, RecordingListener, running_consumer
from tests.kit.scripted import QUEUE

pytestmark = pytest.mark.live


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def apache(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    cluster = ApacheCluster(request.param)
    cluster.add("t")
    yield cluster
    cluster.close()


@pytest.fixture
def name_server(apache: ApacheCluster) -> str:
    return apache.name_server.address


@pytest.fixture
def reader(name_server: str) -> Iterator[Reader]:
    with Reader(name_server) as made:
        yield made


def fill(apache: ApacheCluster, times: list[int], tags: str = "a") -> None:
    apache.broker.queues["t"][0] = [
        Stored(time, b"%d" % number, f"TAGS\x01{tags}".encode(), 0) for number, time in enumerate(times)
    ]


def test_sends(apache: ApacheCluster, name_server: str) -> None:
    with Producer("p", name_server=name_server) as producer:
        one = producer.send(Message.of("t", "x", tags="a"), queue=QUEUE)
        assert (one.queue_offset, one.offset_msg_id) == (0, "7F00000100002A9F0000000000000000")
        assert one.transaction_id == (one.msg_id if apache.version.is_5 else None)
        assert one.recall_handle == ("handle" if apache.version.is_5 else None)
        two = producer.send([Message.of("t", "y"), Message.of("t", "z")], queue=QUEUE)
        assert two.queue_offset == 1
        assert len(two.msg_id.split(",")) == 2
        assert producer.send_async(Message.of("t", "w"), queue=QUEUE).result(SECONDS).queue_offset == 3
        with pytest.raises(QueueNotFoundError) as caught:
            producer.send(Message.of("t", "x"), queue=MessageQueue("t", "b0", 9))
        assert caught.value.response_code in (None, 29 if apache.version.is_5 else 1)
    with Reader(name_server) as reader:
        found = reader.messages(QUEUE, 0)
        assert [message.body for message in found] == [b"x", b"y", b"z", b"w"]
        assert [message.msg_id for message in found[:3]] == [one.msg_id, *two.msg_id.split(",")]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("wanted", [0, 10, 11, 20, 21, 29, 30, 31, 1_000])
def test_the_search_by_time(apache: ApacheCluster, reader: Reader, wanted: int, first: int) -> None:
    """The hint of a broker can be the closest offset, any of a run, one before the end, or a deleted one."""
    times = [10, 20, 20, 20, 20, 30, 30]
    fill(apache, times)
    apache.broker.first["t", 0] = first
    right = next((offset for offset, time in enumerate(times) if time >= wanted and offset >= first), len(times))
    assert reader.offset_for_time(QUEUE, wanted) == right


def test_offsets_of_a_group(apache: ApacheCluster, reader: Reader) -> None:
    fill(apache, [1, 2, 3])
    assert reader.committed_offset("new", QUEUE) == (None if apache.version.is_5 else 0)
    apache.broker.first["t", 0] = 1
    assert reader.committed_offset("new", QUEUE) is None, "its beginning is unavailable"
    reader.commit_offset("new", QUEUE, 2)  # 5.x requires a registered group
    assert reader.committed_offset("new", QUEUE) == 2
    codes = apache.broker.codes()
    assert codes.count(RequestCode.UPDATE_CONSUMER_OFFSET) == (2 if apache.version.is_5 else 1)


def test_an_awaited_topic_loses_no_messages(apache: ApacheCluster, name_server: str) -> None:
    """Messages sent before the consumer knew the topic arrive too, although the group starts at the end."""
    seen = RecordingListener()
    fill(apache, [1, 2, 3])
    with PushConsumer("g", seen, name_server=name_server) as consumer:
        consumer.subscribe("t")
        consumer.subscribe("soon")
        consumer.start()
        apache.add("soon", 1)
        apache.broker.queues["soon"][0] = [Stored(1, b"early", b"", 0)]
        consumer.rebalance()
        seen.until(lambda: b"early" in seen.bodies)
    if apache.version.is_5:  # in 4.x, a new group starts at 0 everywhere
        assert seen.bodies == [b"early"]


def test_pulls(apache: ApacheCluster, reader: Reader) -> None:
    fill(apache, list(range(100)))
    found = reader.pull(QUEUE, 10, max_msgs=1_000)
    assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 42, 100)
    assert [message.tags for message in reader.messages(QUEUE, 98)] == ["a", "a"]
    assert reader.pull(QUEUE, 0, tags="b").status is PullStatus.NO_MATCHED_MSG
    assert reader.pull(QUEUE, 100).status is PullStatus.NO_NEW_MSG
    assert reader.pull(QUEUE, 101).status is PullStatus.OFFSET_ILLEGAL
    with pytest.raises(QueueNotFoundError) as caught:
        reader.pull(MessageQueue("t", "b0", 9), 0)
    assert caught.value.response_code == (29 if apache.version.is_5 else 1)
    with pytest.raises(TopicNotFoundError):
        reader.queues("nowhere")


@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer(apache: ApacheCluster, name_server: str, orderly: bool) -> None:
    fill(apache, list(range(100)))
    seen = RecordingListener()
    how: dict[str, Any] = {"listener": None, "orderly": seen.orderly} if orderly else {"listener": seen}
    with running_consumer(name_server, "g", "t", tags="a", **how):
        seen.until_has(100)
    assert sorted(map(int, seen.bodies)) == list(range(100))
    assert apache.broker.offsets["g", "t", 0] == 100
    assert apache.broker.groups["g"] == set()


def test_a_lite_pull_consumer(apache: ApacheCluster, name_server: str) -> None:
    fill(apache, list(range(100)))
    with LitePullConsumer("g", name_server=name_server, consume_from_where=FIRST) as consumer:
        consumer.subscribe("t")
        consumer.start()
        seen: list[bytes] = []
        while len(seen) < 100:
            found = consumer.poll(SECONDS)
            assert found
            seen += [message.body for message in found]
        consumer.commit()
    assert list(map(int, seen)) == list(range(100))
    assert apache.broker.offsets["g", "t", 0] == 100


def test_a_slave_acting_master(apache: ApacheCluster, name_server: str) -> None:
    """A name server of 5.x then names the slave as master and removes the write permission."""
    fill(apache, [1, 2, 3])
    apache.perm = 4
    with Reader(name_server) as reader, Producer("p", name_server=name_server) as producer:
        assert len(reader.messages(QUEUE, 0)) == 3
        assert (reader.min_offset(QUEUE), reader.max_offset(QUEUE)) == (0, 3)
        with pytest.raises(QueueNotFoundError, match="no writable queue"):
            producer.send(Message.of("t", "x"))
