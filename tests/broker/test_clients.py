"""Heartbeats, members of groups, notifications, locks."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from spark_rocket.broker.state.clients import ClientManager, RebalanceLockManager
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies import (
    ConsumerConnection,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live


class Member:
    """A client with its own connection that records the broker's notifications."""

    def __init__(self, address: str, client_id: str) -> None:
        self.told: queue.Queue[tuple[int, str]] = queue.Queue()
        self.client = RemotingClient(request_handler=self._told)
        self.wire = Wire(self.client, address)
        self.client_id = client_id

    def _told(self, address: str, request: RemotingCommand) -> None:
        self.told.put((request.code, request.ext_fields["consumerGroup"]))

    def beat(self, group: str, topic: str = "T", version: int = 1) -> RemotingCommand:
        consumer = ConsumerData(group, subscription_data_set=[SubscriptionData.build(topic, "*", version)])
        data = HeartbeatData(self.client_id, [ProducerData(f"{group}-p")], [consumer])
        answer = self.wire.ask(RequestCode.HEART_BEAT, data.to_json())
        assert answer.code == ResponseCode.SUCCESS
        return answer

    def expect(self, group: str) -> None:
        assert self.told.get(timeout=20) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, group)


@pytest.fixture
def members(cluster: LocalCluster) -> Iterator[list[Member]]:
    made = [Member(cluster.broker_address, f"client-{number}") for number in range(3)]
    yield made
    for member in made:
        member.client.close()


def ids(wire: Wire, group: str) -> list[str] | None:
    answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    if answer.code != ResponseCode.SUCCESS:
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return None
    return GetConsumerListByGroupResponseBody.from_json(bytes(answer.body)).consumer_id_list


def test_members_are_notified_of_changes(members: list[Member], wire: Wire, group: str) -> None:
    first, second, third = members
    assert ids(wire, group) is None
    first.beat(group)
    first.expect(group)
    second.beat(group)
    first.expect(group)
    second.expect(group)
    third.beat(group)
    for member in members:
        member.expect(group)
    assert ids(wire, group) == ["client-0", "client-1", "client-2"]
    third.wire.ask(RequestCode.UNREGISTER_CLIENT, clientID="client-2", consumerGroup=group)
    first.expect(group)
    second.expect(group)
    second.client.close()
    first.expect(group)
    assert ids(wire, group) == ["client-0"]
    first.wire.ask(RequestCode.UNREGISTER_CLIENT, clientID="client-0", consumerGroup=group)
    assert ids(wire, group) is None


def test_a_heartbeat_without_changes_notifies_no_client(members: list[Member], group: str) -> None:
    first = members[0]
    assert first.beat(group).ext_fields["IS_SUB_CHANGE"] == "true"
    first.expect(group)
    assert first.beat(group).ext_fields["IS_SUB_CHANGE"] == "false"
    first.beat(group, "Other", version=2)
    first.expect(group)
    assert first.told.empty()


def test_a_heartbeat_makes_the_retry_topic_and_its_route(members: list[Member], namesrv: Wire, group: str) -> None:
    members[0].beat(group)
    route = namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=f"%RETRY%{group}")
    assert route.code == ResponseCode.SUCCESS
    assert b'"readQueueNums":1' in bytes(route.body)


def test_a_group_without_notifications(members: list[Member], wire: Wire, group: str) -> None:
    body = f'{{"groupName":"{group}","notifyConsumerIdsChangedEnable":false}}'.encode()
    wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    members[0].beat(group)
    members[0].beat(f"{group}-b")
    members[0].expect(f"{group}-b")  # and nothing before it


def test_connections_of_a_group(members: list[Member], wire: Wire, group: str) -> None:
    members[0].beat(group)
    answer = wire.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    consumers = ConsumerConnection.from_json(bytes(answer.body))
    assert [(one.client_id, one.language) for one in consumers.connection_set] == [("client-0", "PYTHON")]
    assert list(consumers.subscription_table) == ["T"]
    answer = wire.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=f"{group}-p")
    assert len(ProducerConnection.from_json(bytes(answer.body)).connection_set) == 1
    offline = wire.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="Unknown")
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert wire.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="Unknown").code == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"consumerDataSet":7}', b"\xff\xfe"])
def test_a_broken_heartbeat_is_answered_and_harms_nothing(wire: Wire, body: bytes) -> None:
    assert wire.ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SYSTEM_ERROR


def test_locks_over_the_wire(wire: Wire, group: str) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]

    def lock(client_id: str, wanted: list[MessageQueue]) -> list[MessageQueue]:
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=wanted).to_json()
        return LockBatchResponseBody.from_json(bytes(wire.ask(RequestCode.LOCK_BATCH_MQ, body).body)).lock_ok_mq_set

    assert lock("a", queues[:1]) == queues[:1]
    assert lock("b", queues) == queues[1:]
    body = LockBatchRequestBody(consumer_group=group, client_id="a", mq_set=queues).to_json()
    assert wire.ask(RequestCode.UNLOCK_BATCH_MQ, body).code == ResponseCode.SUCCESS
    assert lock("b", queues) == queues


def test_a_lock_that_is_not_renewed_ends() -> None:
    now = [0]
    locks = RebalanceLockManager(lambda: now[0], 60_000)
    mine = [MessageQueue("T", "b", 0)]
    assert locks.lock("g", mine, "a") == mine
    now[0] = 60_000
    assert locks.lock("g", mine, "b") == []
    now[0] = 60_001
    assert locks.lock("g", mine, "b") == mine
    locks.unlock("g", mine, "a")
    assert locks.lock("g", mine, "a") == []


DAY = 86_400_000


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_setting_the_clock_neither_ends_nor_prolongs_locks_and_members(tmp_path: Path, jump: int) -> None:
    wall, monotonic = Clock(), Clock(1_000)
    queues = [MessageQueue("T", "broker-a", 0)]
    with served(tmp_path, wall, monotonic=monotonic) as (server, wire):

        def lock(client_id: str) -> list[MessageQueue]:
            body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=queues).to_json()
            found = wire.ask(RequestCode.LOCK_BATCH_MQ, body).body
            return LockBatchResponseBody.from_json(bytes(found)).lock_ok_mq_set

        def members() -> list[str]:
            service = server.broker.service
            server.run(lambda: service.clients.expire(service.config.channel_expired_timeout))
            answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
            if answer.code != ResponseCode.SUCCESS:
                return []
            return GetConsumerListByGroupResponseBody.from_json(bytes(answer.body)).consumer_id_list

        with RemotingClient() as other:
            heartbeat = HeartbeatData("a", consumer_data_set=[ConsumerData("g")]).to_json()
            assert Wire(other, wire.address).ask(RequestCode.HEART_BEAT, heartbeat).code == ResponseCode.SUCCESS
            assert lock("a") == queues
            wall.now += jump
            assert lock("b") == []
            assert members() == ["a"]
            monotonic.now += 60_001
            assert lock("b") == queues
            monotonic.now += 60_000
            assert members() == []


def test_members_with_different_subscriptions_cause_one_notification(members: list[Member], group: str) -> None:
    """Apache's broker notifies all members at each of their heartbeats."""
    first, second, third = members
    first.beat(group, "A")
    second.beat(group, "B")
    for member in (first, first, second):
        member.expect(group)
    for _ in range(3):
        assert first.beat(group, "A").ext_fields["IS_SUB_CHANGE"] == "false"
        assert second.beat(group, "B").ext_fields["IS_SUB_CHANGE"] == "false"
    third.beat(f"{group}-end")
    third.expect(f"{group}-end")
    assert first.told.empty()
    assert second.told.empty()


def test_broadcasting_members_share_out_nothing(members: list[Member], group: str) -> None:
    first, second, _ = members
    for member in (first, second):
        consumer = ConsumerData(group, message_model="BROADCASTING", subscription_data_set=[SubscriptionData("T")])
        body = HeartbeatData(member.client_id, consumer_data_set=[consumer]).to_json()
        assert member.wire.ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SUCCESS
    first.beat(f"{group}-b")
    first.expect(f"{group}-b")  # and nothing before it


def test_silent_peers_are_disconnected(tmp_path: Path) -> None:
    with served(tmp_path, Clock(), serverChannelMaxIdleTimeSeconds=1) as (server, _):
        host, _, port = server.broker.address.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(30)
            assert connection.recv(1) == b""


class SilentChannel:
    """A minimal channel."""

    remote_addr = "127.0.0.1:1"
    rebalances = True

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_member_without_heartbeats_expires() -> None:
    now = [0]
    told: list[str] = []
    clients = ClientManager(lambda: 0, lambda channel, group: told.append(group), lambda: now[0])
    old, young = SilentChannel(), SilentChannel()
    clients.register_consumer(ConsumerData("g"), cast(Channel, old), "old", "JAVA", 1, notify=False)
    clients.register_producer("p", cast(Channel, old), "old", "JAVA", 1)
    now[0] = 100_000
    clients.register_consumer(ConsumerData("g"), cast(Channel, young), "young", "JAVA", 1, notify=False)
    now[0] = 120_000
    clients.expire(120_000)
    assert not old.closed
    now[0] = 120_001
    clients.expire(120_000)
    assert (old.closed, young.closed) == (True, False)
    assert clients.consumers["g"].client_ids() == ["young"]
    again = SilentChannel()
    clients.register_consumer(ConsumerData("g"), cast(Channel, again), "young", "JAVA", 1, notify=False)
    assert clients.consumers["g"].channel_of("young") is again
    assert clients.consumers["g"].client_ids() == ["young"]
    assert clients.producers == {}
    assert told == ["g"]


def test_many_clients_of_one_connection_are_members_each() -> None:
    """Like those of a proxy. A silent one removes neither the others nor the connection."""
    now = [0]
    told: list[str] = []
    clients = ClientManager(lambda: 0, lambda channel, group: told.append(group), lambda: now[0])
    proxy = SilentChannel()
    channel = cast(Channel, proxy)
    for client_id in ("one", "two", "three"):
        clients.register_consumer(ConsumerData("g"), channel, client_id, "JAVA", 1)
        clients.register_producer("p", channel, client_id, "JAVA", 1)
    assert told == ["g"] * 3  # once for each change, not for each member
    assert clients.consumers["g"].client_ids() == ["one", "three", "two"]
    assert clients.consumers["g"].channel_of("two") is channel
    clients.unregister(channel, "two", "p", "g")
    assert clients.consumers["g"].client_ids() == ["one", "three"]
    assert sorted(one.client_id for one in clients.producers["p"]) == ["one", "three"]
    now[0] = 100_000
    clients.register_consumer(ConsumerData("g"), channel, "one", "JAVA", 1)
    now[0] = 130_000
    clients.expire(120_000)
    assert clients.consumers["g"].client_ids() == ["one"]
    assert (clients.producers, proxy.closed) == ({}, False)
    clients.channel_closed(channel)
    assert clients.consumers == {}


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (
            HeartbeatData("c", consumer_data_set=[ConsumerData("g")] * 1_001).to_json(),
            "has 1001 groups, at most 1000",
        ),
        (HeartbeatData("c", [ProducerData("p")] * 600, [ConsumerData("g")] * 600).to_json(), "has 1200 groups"),
        (
            b'{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[' + b",".join([b"{}"] * 10_001) + b"]}]}",
            "has 10001 subscriptions, at most 10000",
        ),
        (b'{"clientID":"c","x":"' + b"x" * (1 << 20) + b'"}', "at most 1048576 are allowed"),
        (b'{"clientID":"c","x":{' + b",".join([b"0:1"] * 70_000) + b"}}", "is not standard JSON"),
    ],
    ids=["consumers", "both", "subscriptions", "bytes", "odd"],
)
def test_a_heartbeat_that_would_block_others(wire: Wire, body: bytes, remark: str) -> None:
    answer = wire.ask(RequestCode.HEART_BEAT, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


@pytest.mark.parametrize(
    "code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG]
)
def test_other_bodies_are_bounded_too(wire: Wire, code: int) -> None:
    answer = wire.ask(code, b'{"group":"' + b"x" * (1 << 20) + b'"}')
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "at most 1048576 are allowed" in (answer.remark or "")


def test_a_heartbeat_as_large_as_allowed(wire: Wire) -> None:
    data = HeartbeatData("c", [ProducerData(f"Large-P-{number}") for number in range(1_000)])
    assert wire.ask(RequestCode.HEART_BEAT, data.to_json()).code == ResponseCode.SUCCESS
    assert wire.ask(RequestCode.HEART_BEAT, b'{clientID:"c",x:{0:1}}').code == ResponseCode.SUCCESS
