"""Clients while a broker is unavailable: other brokers, the slave, the queues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.consume.offset_store import RemoteOffsetStore
from spark_rocket.client.consume.pull import PullStatus
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.client.send.router import select_by_sharding_key
from spark_rocket.errors import ProtocolError, QueueNotFoundError, RemotingConnectError, StateError
from spark_rocket.model import SHARDING_KEY, Message, MessageQueue
from spark_rocket.protocol.wire.bodies.route import MAX_ROUTE_QUEUES
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.kit.scripted import STORED, FakeCluster, route, says

pytestmark = pytest.mark.live

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
QUERY, COMMIT = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
QUEUE = MessageQueue("t", "b", 0)
Closing = Callable[[Any], Any]


def keyed(key: str) -> Message:
    return Message("t", b"x", {SHARDING_KEY: key})


def pulled(suggested: int, code: int = ResponseCode.PULL_NOT_FOUND) -> Any:
    ext = {"suggestWhichBrokerId": str(suggested), "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
    return says(code, ext=ext)


@pytest.fixture
def pair(fake: Callable[..., FakeCluster]) -> FakeCluster:
    """``b0`` is the master of the broker b, ``b1`` its slave."""
    cluster = fake(2)
    master, slave = cluster.brokers
    cluster.topics["t"] = route({"b": (1, 1, 6)}, {"b": {0: master.address, 1: slave.address}})
    return cluster


@pytest.fixture
def reader(pair: FakeCluster, closing: Closing) -> Reader:
    found: Reader = closing(Reader(pair.name_server.address, group="g"))
    return found


# --- producing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["send", "send_async"])
def test_a_silent_machine_leaves_time_for_another_broker(
    fake: Callable[..., FakeCluster], silent: Callable[[], str], closing: Closing, how: str
) -> None:
    cluster = fake(1)
    cluster.everywhere(SEND, says(0, ext=STORED))
    cluster.topics["t"] = route(
        {"alive": (1, 1, 6), "dead": (1, 1, 6)}, {"alive": {0: cluster.brokers[0].address}, "dead": {0: silent()}}
    )
    producer = closing(Producer("g", name_server=cluster.name_server.address, member=False, send_timeout=3.0))
    for _ in range(2):  # one of them tries the dead broker first
        sent = getattr(producer, how)(Message("t", b"x"))
        result = sent.result(20) if isinstance(sent, Future) else sent
        assert result.queue.broker_name == "alive"


@pytest.mark.parametrize("slave", [True, False])
def test_ordered_sends_fail_instead_of_changing_their_queue(
    fake: Callable[..., FakeCluster], closing: Closing, slave: bool
) -> None:
    cluster = fake(2)
    cluster.add("t", queues=2)
    cluster.everywhere(SEND, says(0, ext=STORED))
    producer: Producer = closing(Producer("g", name_server=cluster.name_server.address, member=False))
    keys = [str(i) for i in range(16)]
    before = {key: producer.send(keyed(key)).queue for key in keys}
    dead, alive = cluster.brokers[0].address, cluster.brokers[1].address
    cluster.topics["t"] = route(
        {"b0": (2, 2, 6), "b1": (2, 2, 6)} if slave else {"b1": (2, 2, 6)},
        {"b0": {1: dead}, "b1": {0: alive}} if slave else {"b1": {0: alive}},
    )
    producer.running().routes.refresh("t")
    for key, queue in before.items():
        if queue.broker_name == "b1":
            assert producer.send(keyed(key)).queue == queue
        else:
            with pytest.raises(QueueNotFoundError, match="'b0'") as caught:
                producer.send(keyed(key))
            assert caught.value.retriable
            with pytest.raises(QueueNotFoundError):
                producer.send(Message("t", b"x"), selector=select_by_sharding_key, selector_arg=key)
    assert {producer.send(Message("t", b"x")).queue.broker_name for _ in range(6)} == {"b1"}, "others go elsewhere"
    cluster.add("t", queues=2)
    producer.running().routes.refresh("t")
    assert {key: producer.send(keyed(key)).queue for key in keys} == before


def test_queues_for_ordered_messages() -> None:
    def queues(*brokers: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue("t", broker, 0) for broker in brokers)

    there = {"a": {0: "a:1"}, "b": {0: "b:1"}}
    both = TopicRoute.of("t", route({"a": (1, 1, 6), "b": (1, 1, 6)}, there))
    assert both.ordered == queues("a", "b")
    gone = TopicRoute.of("t", route({"a": (1, 1, 6)}, {"a": {0: "a:1"}}), both)
    assert gone.ordered == queues("a", "b"), "it may come back"
    assert gone.writable == queues("a")
    drained = TopicRoute.of("t", route({"a": (1, 1, 6), "b": (1, 1, 4)}, there), both)
    assert drained.ordered == queues("a")
    assert TopicRoute.of("t", route({"a": (1, 1, 6)}, {"a": {0: "a:1"}}), drained).ordered == queues("a")
    fewer = TopicRoute.of("t", route({"a": (1, 1, 6), "b": (1, 0, 6)}, there), both)
    assert fewer.ordered == queues("a")
    said = route({"a": (1, 1, 6)}, {"a": {0: "a:1"}})
    said.order_topic_conf = "b:1;a:1;;x;y:z"
    assert TopicRoute.of("t", said).ordered == queues("a", "b")


def test_a_route_with_too_many_queues_is_an_error() -> None:
    there = {"a": {0: "a:1"}, "b": {0: "b:1"}}
    with pytest.raises(ProtocolError, match="route of topic t has 1,000,001 queues; at most 131,072"):
        TopicRoute.of("t", route({"a": (1, 1, 6), "b": (1, 1_000_000, 6)}, there))
    ordered = route({"a": (1, 1, 6)}, {"a": {0: "a:1"}})
    ordered.order_topic_conf = ";".join(f"b{i}:65536" for i in range(100))
    assert len(TopicRoute.of("t", ordered).ordered) == MAX_ROUTE_QUEUES


# --- reading ------------------------------------------------------------------------------------------------------


def test_pulls_follow_the_suggested_broker(pair: FakeCluster, reader: Reader) -> None:
    master, slave = pair.brokers
    master.responses[PULL] = pulled(1, 0)
    slave.responses[PULL] = pulled(1, 0)
    assert reader.pull(QUEUE, 0).from_master
    assert not reader.pull(QUEUE, 0).from_master
    assert not reader.pull_async(QUEUE, 0).result(30).from_master
    slave.responses[PULL] = pulled(0, 0)
    assert not reader.pull_async(QUEUE, 0).result().from_master
    assert reader.pull(QUEUE, 0).from_master
    slave.responses[PULL] = pulled(1)
    assert not reader.pull(QUEUE, 0).from_master
    assert reader.pull(QUEUE, 0).from_master, "what the slave does not have yet, the master may have"
    slave.close()
    with pytest.raises(RemotingConnectError):
        reader.pull(QUEUE, 0)
    assert reader.pull(QUEUE, 0).from_master, "an unavailable slave is not waited for"


def test_a_closed_reader_is_an_error_at_a_slave_too(pair: FakeCluster, reader: Reader) -> None:
    reader.close()
    with pytest.raises(StateError):
        reader.slave_max_offset(QUEUE)
    with pytest.raises(StateError):
        reader.commit_to_slave("g", QUEUE, 1)


def test_pulls_use_the_slave_while_the_master_is_unavailable(pair: FakeCluster, reader: Reader) -> None:
    master, slave = pair.brokers
    master.responses[PULL] = slave.responses[PULL] = pulled(0, 0)
    assert reader.pull(QUEUE, 0).from_master
    master.close()
    with pytest.raises(RemotingConnectError):
        reader.pull(QUEUE, 0)
    found = reader.pull(QUEUE, 0)
    assert (found.status, found.from_master) == (PullStatus.FOUND, False)
    slave.close()
    for _ in range(4):  # both are unavailable: they are tried in turn
        with pytest.raises(RemotingConnectError):
            reader.pull(QUEUE, 0)


def test_offsets_of_a_group_while_the_master_is_unavailable(pair: FakeCluster, reader: Reader) -> None:
    master, slave = pair.brokers
    master.responses[QUERY] = says(0, ext={"offset": "9"})
    slave.responses[QUERY] = says(0, ext={"offset": "8"})
    slave.responses[COMMIT] = says(0)
    assert reader.committed_offset("g", QUEUE) == 9
    master.close()
    assert reader.committed_offset("g", QUEUE) == 8
    store = RemoteOffsetStore(reader, "g")
    assert store.commit({QUEUE: 12}) == {}
    told = [request.ext_fields["commitOffset"] for request in slave.requests if request.code == COMMIT]
    assert told == ["12"]
    slave.responses[QUERY] = says(ResponseCode.QUERY_NOT_FOUND, "none")
    with pytest.raises(RemotingConnectError):  # it may not have received them yet
        reader.committed_offset("g", QUEUE)
    slave.responses[COMMIT] = says(ResponseCode.SYSTEM_ERROR, "no")
    assert isinstance(store.commit({QUEUE: 13})[QUEUE], RemotingConnectError)
    slave.responses[RequestCode.GET_MAX_OFFSET] = says(0, ext={"offset": "20"})
    assert reader.slave_max_offset(QUEUE) == 20


def test_a_master_that_has_left_the_route(pair: FakeCluster, reader: Reader) -> None:
    slave = pair.brokers[1]
    pair.topics["t"] = route({"b": (1, 1, 6)}, {"b": {1: slave.address}})
    slave.responses[QUERY] = says(0, ext={"offset": "8"})
    slave.responses[PULL] = pulled(0, 0)
    reader.refresh("t")
    assert not reader.pull(QUEUE, 0).from_master
    assert reader.committed_offset("g", QUEUE) == 8
    with pytest.raises(QueueNotFoundError, match="no master at the moment"):
        reader.max_offset(QUEUE)
