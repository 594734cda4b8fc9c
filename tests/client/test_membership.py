"""Groups of an instance: heartbeats, unregistration, periodic tasks, and requests from brokers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import ClientInstance, acquire, release
from spark_rocket.errors import ClientError, GroupInUseError
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import NotifyConsumerIdsChangedRequestHeader
from spark_rocket.testing import LocalCluster
from tests.kit.scripted import FakeCluster

pytestmark = pytest.mark.live

QUEUES = 2


class Consumer:
    """A member that records its calls."""

    def __init__(self, group: str, *, topic: str = "t", fails: bool = False) -> None:
        self.group = group
        self.topic = topic
        self.fails = fails
        self.error: BaseException = KeyError("a mistake of ours")
        self.rebalanced = threading.Semaphore(0)
        self.persisted = threading.Semaphore(0)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(self.group, subscription_data_set=[SubscriptionData.build(self.topic, "a || b", 1)])

    def rebalance(self) -> None:
        self.rebalanced.release()
        if self.fails:
            raise ClientError("no brokers today")

    def persist_offsets(self) -> None:
        self.persisted.release()
        if self.fails:
            raise self.error


class Producer:
    def __init__(self, group: str) -> None:
        self.group = group


@pytest.fixture
def instance(mq: FakeCluster) -> Iterator[ClientInstance]:
    shared = acquire(ClientConfig((mq.name_server.address,), persist_interval=0.01, rebalance_interval=60))
    shared.routes.route("t")
    yield shared
    for consumer in list(shared.members.consumers.values()):
        shared.members.leave_consumer(consumer)
    release(shared)


def test_joining_and_leaving_notify_every_broker(mq: FakeCluster, instance: ClientInstance) -> None:
    producer, consumer = Producer("p"), Consumer("c")
    instance.members.join_producer(producer)
    instance.members.join_consumer(consumer)
    for broker in mq.brokers:
        assert broker.codes() == [RequestCode.HEART_BEAT] * 2
        told = HeartbeatData.from_json(broker.requests[1].body)
        assert told.client_id == instance.client_id
        assert [data.group_name for data in told.producer_data_set] == ["p"]
        assert [data.group_name for data in told.consumer_data_set] == ["c"]
        assert told.consumer_data_set[0].subscription_data_set[0].tags_set == ["a", "b"]
    instance.members.leave_consumer(consumer)
    instance.members.leave_producer(producer)
    for broker in mq.brokers:
        assert broker.codes()[2:] == [RequestCode.UNREGISTER_CLIENT] * 2
        assert [request.ext_fields.get("consumerGroup") for request in broker.requests[2:]] == ["c", None]
        assert {request.ext_fields["clientID"] for request in broker.requests[2:]} == {instance.client_id}


def test_a_group_is_joined_once(instance: ClientInstance) -> None:
    first = Consumer("c")
    instance.members.join_consumer(first)
    instance.members.join_consumer(first)
    with pytest.raises(GroupInUseError, match="'c'"):
        instance.members.join_consumer(Consumer("c"))
    instance.members.join_producer(Producer("c"))
    with pytest.raises(GroupInUseError, match="instance_name"):
        instance.members.join_producer(Producer("c"))
    instance.members.leave_consumer(Consumer("c"))
    assert instance.members.consumers == {"c": first}, "a stranger cannot take it away"


def test_the_address_of_the_client_is_looked_up_by_the_caller(
    instance: ClientInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow name service must not block the event loop."""
    threads: list[threading.Thread] = []

    def own_ip(name_server: str) -> str:
        threads.append(threading.current_thread())
        return "10.0.0.1"

    monkeypatch.setattr("spark_rocket.client.core.instance.own_ip", own_ip)
    instance.members.join_producer(Producer("p"), wait=False)
    instance.members.send_heartbeats()
    assert threads == [threading.current_thread()]
    assert instance.client_id.startswith("10.0.0.1@")


def test_named_instances_share_nothing(mq: FakeCluster) -> None:
    address = mq.name_server.address
    first = acquire(ClientConfig.of(address, instance_name="a"))
    second = acquire(ClientConfig.of(address, instance_name="b"))
    try:
        assert first is not second
        assert f"@{os.getpid()}#a#" in first.client_id
        assert f"@{os.getpid()}#b#" in second.client_id
    finally:
        release(first)
        release(second)


@pytest.mark.parametrize("error", [KeyError("a mistake of ours"), SystemExit(1)])
def test_a_failing_consumer_does_not_stop_periodic_persistence(instance: ClientInstance, error: BaseException) -> None:
    bad, good = Consumer("bad", fails=True), Consumer("good")
    bad.error = error
    instance.members.join_consumer(bad)
    instance.members.join_consumer(good)
    for _ in range(3):
        assert good.persisted.acquire(timeout=10)
        assert bad.persisted.acquire(timeout=10)


def test_slow_offset_commits_do_not_delay_heartbeats(mq: FakeCluster) -> None:
    shared = acquire(ClientConfig((mq.name_server.address,), persist_interval=0.01, heartbeat_interval=0.01))
    consumer, asked, go = Consumer("c"), threading.Event(), threading.Event()

    def persist_offsets() -> None:
        asked.set()
        assert go.wait(10)

    consumer.persist_offsets = persist_offsets  # type: ignore[method-assign]
    try:
        shared.routes.route("t")
        shared.members.join_consumer(consumer)
        assert asked.wait(10)
        while mq.brokers[0].arrived.acquire(blocking=False):
            pass
        for _ in range(3):
            assert mq.brokers[0].arrived.acquire(timeout=10)
    finally:
        go.set()
        shared.members.leave_consumer(consumer)
        release(shared)


def test_an_unavailable_broker_does_not_delay_heartbeats_to_others(mq: FakeCluster, instance: ClientInstance) -> None:
    mq.brokers[0].close()
    instance.members.join_consumer(Consumer("c"))
    assert mq.brokers[1].codes() == [RequestCode.HEART_BEAT]


def test_connections_to_brokers_that_left_are_closed(mq: FakeCluster, instance: ClientInstance) -> None:
    instance.members.join_consumer(Consumer("c"))
    gone = mq.brokers[1].address
    assert instance.remoting.is_connected(gone)
    data = mq.topics["t"]
    data.queue_datas, data.broker_datas = data.queue_datas[:1], data.broker_datas[:1]
    instance.routes.refresh("t")
    instance.members.send_heartbeats()
    assert not instance.remoting.is_connected(gone)
    assert instance.remoting.is_connected(mq.brokers[0].address)


def test_only_the_changed_group_is_rebalanced(instance: ClientInstance) -> None:
    consumer = Consumer("c")
    instance.members.join_consumer(consumer)
    for group, times in (("c", 1), ("other", 0)):
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header.to_ext(), oneway=True)
        assert instance.members.handle("127.0.0.1:1", request) is None
        assert consumer.rebalanced.acquire(timeout=10 if times else 0.05) is bool(times)


def test_requests_without_a_handler_are_not_supported(instance: ClientInstance) -> None:
    response = instance.members.handle("127.0.0.1:1", RemotingCommand.request(9999, {}))
    assert response is not None
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_live_broker_notifies_members_of_changes(cluster: LocalCluster) -> None:
    cluster.create_topic("members")
    instances = [acquire(ClientConfig.of(cluster.name_server, instance_name=name)) for name in "ab"]
    consumers = [Consumer("notified", topic="members") for _ in instances]
    try:
        for instance, consumer in zip(instances, consumers, strict=True):
            instance.routes.route("members")
            instance.members.join_consumer(consumer)
        assert consumers[0].rebalanced.acquire(timeout=10), "the second one's coming"
        instances[1].members.leave_consumer(consumers[1])
        assert consumers[0].rebalanced.acquire(timeout=10), "the second one's leaving"
    finally:
        for instance, consumer in zip(instances, consumers, strict=True):
            instance.members.leave_consumer(consumer)
            release(instance)
