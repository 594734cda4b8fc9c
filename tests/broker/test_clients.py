"""Heartbeats, members of groups, notifications, locks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from spark_rocket.broker.state import client_manager as clients_module
from spark_rocket.broker.state import rebalance_lock_manager
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.rebalance_lock_manager import RebalanceLockManager
from spark_rocket.errors import RefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import PRODUCERS, QUEUE_LOCKS, SUBSCRIPTIONS
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.bodies.stats import ConsumerConnection, ProducerConnection
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Peer, Wire, subscribed
from tests.kit.brokers import served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live


class Member(Peer):
    """A client with its own connection that records the broker's notifications."""

    def __init__(self, address: str, client_id: str) -> None:
        super().__init__(address)
        self.client_id = client_id

    def joins(self, group: str, topic: str = "T", version: int = 1) -> RemotingCommand:
        consumer = subscribed(group, topic, "*", version)
        return self.beat(consumer, producers=[f"{group}-p"], client_id=self.client_id)

    def leaves(self, group: str) -> None:
        self.ask(RequestCode.UNREGISTER_CLIENT, clientID=self.client_id, consumerGroup=group)

    def lock(self, group: str, *queues: MessageQueue) -> list[MessageQueue]:
        return lock(self, group, self.client_id, *queues)

    def expect(self, *groups: str) -> None:
        """Wait for notifications of changes, in this order."""
        for group in groups:
            told = self.asked.get(timeout=20)
            assert (told.code, told.ext_fields["consumerGroup"]) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, group)


def lock(wire: Wire, group: str, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=list(queues)).to_json()
    return wire.read(LockBatchResponseBody, RequestCode.LOCK_BATCH_MQ, body).lock_ok_mq_set


@pytest.fixture
def channel() -> Channel:
    return cast(Channel, SilentChannel())


@pytest.fixture
def locks(clock: Clock) -> RebalanceLockManager:
    return RebalanceLockManager(clock, 60_000)


@pytest.fixture
def members(cluster: LocalCluster) -> Iterator[list[Member]]:
    made = [Member(cluster.broker_address, f"client-{number}") for number in range(3)]
    yield made
    for member in made:
        member.close()


def ids(wire: Wire, group: str) -> list[str] | None:
    answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    if answer.code != ResponseCode.SUCCESS:
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return None
    return GetConsumerListByGroupResponseBody.from_json(bytes(answer.body)).consumer_id_list


def test_members_are_notified_of_changes(members: list[Member], wire: Wire, group: str) -> None:
    first, second, third = members
    assert ids(wire, group) is None
    for count in (1, 2, 3):
        members[count - 1].joins(group)
        for member in members[:count]:
            member.expect(group)
    assert ids(wire, group) == ["client-0", "client-1", "client-2"]
    third.leaves(group)
    first.expect(group)
    second.expect(group)
    second.close()
    first.expect(group)
    assert ids(wire, group) == ["client-0"]
    first.leaves(group)
    assert ids(wire, group) is None


def test_a_heartbeat_without_changes_notifies_no_client(members: list[Member], group: str) -> None:
    first = members[0]
    assert first.joins(group).ext_fields["IS_SUB_CHANGE"] == "true"
    first.expect(group)
    assert first.joins(group).ext_fields["IS_SUB_CHANGE"] == "false"
    first.joins(group, "Other", version=2)
    first.expect(group)
    assert first.asked.empty()


def test_a_heartbeat_makes_the_retry_topic_and_its_route(members: list[Member], namesrv: Wire, group: str) -> None:
    members[0].joins(group)
    route = namesrv.read(TopicRouteData, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=f"%RETRY%{group}")
    assert [queues.read_queue_nums for queues in route.queue_datas] == [1]


def test_heartbeats_create_a_limited_number_of_groups(members: list[Member], wire: Wire, namesrv: Wire) -> None:
    def count() -> tuple[int, int]:
        groups = wire.read(SubscriptionGroupWrapper, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        topics = wire.read(TopicConfigSerializeWrapper, RequestCode.GET_ALL_TOPIC_CONFIG)
        return len(groups.subscription_group_table), len(topics.topic_config_table)

    members[0].joins("limit-known")
    groups, topics = count()
    with wire.settings(maxAutoCreateGroups=groups + 2):
        for number in range(5):
            members[0].joins(f"limit-{number}")
        assert count() == (groups + 2, topics + 2)
        for group, code in (("limit-0", 0), ("limit-known", 0), ("limit-4", 26)):
            members[0].joins(group)
            answer = wire.pull("SELF_TEST_TOPIC", 0, consumerGroup=group)
            assert answer.code in ({26} if code else {0, 19, 21}), answer.remark
        assert f"is not created: the broker has {groups + 2} entries" in (answer.remark or "")
        assert f"maxAutoCreateGroups={groups + 2}" in (answer.remark or "")
        answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="limit-4", delayLevel=0)
        assert (answer.code, "maxAutoCreateGroups" in (answer.remark or "")) == (26, True)
        assert namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%limit-known").code == 0


def test_members_that_are_not_notified(members: list[Member], wire: Wire, group: str) -> None:
    """Of a group without notifications, and broadcasting ones, which share out nothing."""
    first, second, _ = members
    wire.create_group(group, notifyConsumerIdsChangedEnable=False)
    first.joins(group)
    for member in (first, second):
        member.beat(subscribed(f"{group}-a", "T", message_model="BROADCASTING"), client_id=member.client_id)
    first.joins(f"{group}-b")
    first.expect(f"{group}-b")  # and nothing before it


def test_connections_of_a_group(members: list[Member], wire: Wire, group: str) -> None:
    members[0].joins(group)
    consumers = wire.read(ConsumerConnection, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    assert [(one.client_id, one.language) for one in consumers.connection_set] == [("client-0", "PYTHON")]
    assert list(consumers.subscription_table) == ["T"]
    producers = wire.read(ProducerConnection, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=f"{group}-p")
    assert len(producers.connection_set) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"consumerDataSet":7}', b"\xff\xfe"])
def test_a_broken_heartbeat_is_answered_and_harms_nothing(wire: Wire, body: bytes) -> None:
    assert wire.ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SYSTEM_ERROR


def test_locks_over_the_wire(wire: Wire, group: str) -> None:
    first, second = queues = [MessageQueue("T", "broker-a", number) for number in range(2)]
    assert lock(wire, group, "a", first) == [first]
    assert lock(wire, group, "b", *queues) == [second]
    body = LockBatchRequestBody(consumer_group=group, client_id="a", mq_set=queues).to_json()
    assert wire.ask(RequestCode.UNLOCK_BATCH_MQ, body).code == ResponseCode.SUCCESS
    assert lock(wire, group, "b", *queues) == queues


def test_a_lock_that_is_not_renewed_ends(locks: RebalanceLockManager, clock: Clock, channel: Channel) -> None:
    mine = [MessageQueue("T", "b", 0)]
    assert locks.lock("g", mine, "a", channel) == mine
    clock.now += 60_000
    assert locks.lock("g", mine, "b", channel) == []
    clock.now += 1
    assert locks.lock("g", mine, "b", channel) == mine
    locks.unlock("g", mine, "a")
    assert locks.lock("g", mine, "a", channel) == []


def test_expired_locks_are_removed_and_others_bounded(
    locks: RebalanceLockManager, clock: Clock, channel: Channel
) -> None:
    most = STATE_LIMITS[QUEUE_LOCKS].per_connection or 0
    queues = [MessageQueue(f"T{number}", "b", 0) for number in range(most)]
    for _ in range(2):  # created, then renewed
        assert locks.lock("g", queues, "a", channel) == queues
    with pytest.raises(RefusedError, match=f"too many queue locks: at most {most:,} per connection"):
        locks.lock("g", [MessageQueue("more", "b", 0)], "a", channel)
    clock.now += 60_001
    locks.lock("g", queues[:10], "a", channel)
    locks.expire()
    assert locks.count == 10
    assert locks.lock("g", [MessageQueue("more", "b", 0)], "a", channel)
    locks.release_group("g")
    assert locks.count == 0


def test_many_expired_locks_are_removed_in_several_calls(
    locks: RebalanceLockManager, clock: Clock, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_lock_manager, "_MAX_EXPIRED", 5)
    for group in ("g", "h", "i"):
        locks.lock(group, [MessageQueue("T", "b", number) for number in range(4)], "a", channel)
    clock.now += 60_001
    counts = []
    for _ in range(4):
        locks.expire()
        counts.append(locks.count)
    assert counts == [7, 2, 0, 0]


def test_the_last_member_that_unregisters_ends_the_locks(members: list[Member], group: str) -> None:
    first, second, third = members
    mine = MessageQueue("T", "b", 0)
    for member in (first, second):
        member.joins(group)
    assert first.lock(group, mine) == [mine]
    second.leaves(group)
    assert third.lock(group, mine) == []
    first.leaves(group)
    assert third.lock(group, mine) == [mine]


DAY = 86_400_000


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_setting_the_clock_neither_ends_nor_prolongs_locks_and_members(tmp_path: Path, jump: int) -> None:
    wall, monotonic, mine = Clock(), Clock(1_000), MessageQueue("T", "broker-a", 0)
    with served(tmp_path, wall, monotonic=monotonic) as (server, wire), RemotingClient() as other:
        parts = server.broker.parts

        def members() -> list[str] | None:
            server.run(lambda: parts.clients.expire(parts.config.channel_expired_timeout))
            return ids(wire, "g")

        Wire(other, wire.address).beat(ConsumerData("g"), client_id="a")
        assert lock(wire, "g", "a", mine) == [mine]
        wall.now += jump
        assert (lock(wire, "g", "b", mine), members()) == ([], ["a"])
        monotonic.now += 60_001
        assert lock(wire, "g", "b", mine) == [mine]
        monotonic.now += 60_000
        assert members() is None


def test_members_with_different_subscriptions_cause_one_notification(members: list[Member], group: str) -> None:
    """Apache's broker notifies all members at each of their heartbeats."""
    first, second, third = members
    first.joins(group, "A")
    second.joins(group, "B")
    first.expect(group, group)
    second.expect(group)
    for _ in range(3):
        assert first.joins(group, "A").ext_fields["IS_SUB_CHANGE"] == "false"
        assert second.joins(group, "B").ext_fields["IS_SUB_CHANGE"] == "false"
    third.joins(f"{group}-end")
    third.expect(f"{group}-end")
    assert first.asked.empty()
    assert second.asked.empty()


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
    closed = False

    def close(self) -> None:
        self.closed = True


class Clients(ClientManager):
    """The clients of a broker, with a manual clock; ``told``: the groups that were notified, in order."""

    def __init__(self) -> None:
        self.now = 0
        self.told: list[str] = []
        super().__init__(lambda: 0, lambda channel, group: self.told.append(group), lambda: self.now)

    def consumer(self, group: str, channel: object, client_id: str = "one", *topics: str) -> None:
        data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic) for topic in topics])
        self.register_consumer(data, cast(Channel, channel), client_id, "JAVA", 1)

    def producer(self, group: str, channel: object, client_id: str = "one") -> None:
        self.register_producer(group, cast(Channel, channel), client_id, "JAVA", 1)


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_a_member_without_heartbeats_expires(clients: Clients) -> None:
    old, young = SilentChannel(), SilentChannel()
    clients.consumer("g", old, "old")
    clients.producer("p", old, "old")
    clients.now = 100_000
    clients.consumer("g", young, "young")
    clients.now = 120_000
    clients.expire(120_000)
    assert not old.closed
    clients.now = 120_001
    clients.told.clear()
    clients.expire(120_000)
    assert clients.told == ["g"]
    assert (old.closed, young.closed) == (True, False)
    assert clients.consumers["g"].client_ids() == ["young"]
    again = SilentChannel()
    clients.consumer("g", again, "young")
    assert clients.consumers["g"].channel_of("young") is again
    assert clients.consumers["g"].client_ids() == ["young"]
    assert clients.producers == {}


def test_many_clients_of_one_connection_are_members_each(clients: Clients) -> None:
    """Like those of a proxy. A silent one removes neither the others nor the connection."""
    proxy = SilentChannel()
    channel = cast(Channel, proxy)
    for client_id in ("one", "two", "three"):
        clients.consumer("g", channel, client_id)
        clients.producer("p", channel, client_id)
    assert clients.told == ["g"] * 3  # once for each change, not for each member
    assert clients.consumers["g"].client_ids() == ["one", "three", "two"]
    assert clients.consumers["g"].channel_of("two") is channel
    clients.unregister(channel, "two", "p", "g")
    assert clients.consumers["g"].client_ids() == ["one", "three"]
    assert sorted(one.client_id for one in clients.producers["p"]) == ["one", "three"]
    clients.now = 100_000
    clients.consumer("g", channel, "one")
    clients.now = 130_000
    clients.expire(120_000)
    assert clients.consumers["g"].client_ids() == ["one"]
    assert (clients.producers, proxy.closed) == ({}, False)
    clients.channel_closed(channel)
    assert clients.consumers == {}


def test_members_are_bounded_and_released_with_their_connection(clients: Clients) -> None:
    """Also those with long names: each KiB counts as a member."""
    first, second = (cast(Channel, SilentChannel()) for _ in range(2))
    most = STATE_LIMITS[PRODUCERS].per_connection or 0
    for number in range(most):
        clients.producer(f"p{number}", first, "one")
    clients.producer("p0", first, "one")  # renewed
    with pytest.raises(RefusedError, match="too many producers"):
        clients.producer("more", first, "one")
    clients.producer("p0", second, "two")
    with pytest.raises(RefusedError, match="too many producers"):
        clients.producer("x" * (most << 10), second, "two")
    clients.channel_closed(first)
    assert clients.producers.keys() == {"p0"}
    clients.producer("more", first, "one")


def test_consumers_of_one_group_are_bounded(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MAX_GROUP_MEMBERS", 2)
    channels = [cast(Channel, SilentChannel()) for _ in range(2)]
    for channel in channels:
        clients.consumer("g", channel, "one")
    with pytest.raises(RefusedError, match="too many consumers of group g: at most 2"):
        clients.consumer("g", channels[0], "two")
    clients.consumer("g", channels[0], "one")  # renewed
    clients.consumer("h", channels[0], "two")
    clients.channel_closed(channels[1])
    clients.consumer("g", channels[0], "two")
    assert len(clients.consumers["g"].members) == 2


def test_subscriptions_are_bounded_and_released_with_their_member(clients: Clients, channel: Channel) -> None:
    most = STATE_LIMITS[SUBSCRIPTIONS].per_connection or 0
    topics = [f"T{number}" for number in range(most)]
    clients.consumer("g", channel, "one", *topics)
    with pytest.raises(RefusedError, match=f"too many subscriptions: at most {most:,} per connection"):
        clients.consumer("h", channel, "one", "T")
    assert clients.consumers.keys() == {"g"}
    clients.consumer("g", channel, "one", *topics[1:])
    clients.consumer("h", channel, "one", "T")
    clients.unregister(channel, "one", None, "g")
    clients.consumer("i", channel, "one", *topics[1:])
    clients.channel_closed(channel)
    assert clients.consumers == {}


def test_a_reply_goes_to_the_latest_connection_of_its_client(clients: Clients) -> None:
    old, young = (cast(Channel, SilentChannel()) for _ in range(2))
    for group in ("p", "q"):
        clients.producer(group, old, "one")
        clients.producer(group, young, "one")
    assert clients.producer_channel("one") is young
    clients.unregister(young, "one", "q", None)
    assert clients.producer_channel("one") is young
    clients.channel_closed(young)
    assert clients.producer_channel("one") is old
    clients.channel_closed(old)
    assert clients.producer_channel("one") is None


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (
            HeartbeatData("c", consumer_data_set=[ConsumerData("g")] * 501).to_json(),
            "has 501 entries in consumerDataSet, at most 500",
        ),
        (HeartbeatData("c", [ProducerData("p")] * 1_001).to_json(), "has 1,001 entries in producerDataSet"),
        (
            b'{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[' + b",".join([b"{}"] * 5_001) + b"]}]}",
            "has 5,001 entries in consumerDataSet.subscriptionDataSet, at most 5,000",
        ),
        (b'{"clientID":"c","x":"' + b"x" * (1 << 20) + b'"}', "at most 1,048,576 are allowed"),
        (b'{"clientID":"c","x":{' + b",".join([b"0:1"] * 70_000) + b"}}", "is not standard JSON"),
    ],
    ids=["consumers", "producers", "subscriptions", "bytes", "odd"],
)
def test_a_heartbeat_that_would_block_others(wire: Wire, body: bytes, remark: str) -> None:
    answer = wire.ask(RequestCode.HEART_BEAT, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


def test_a_heartbeat_as_large_as_allowed(wire: Wire) -> None:
    data = HeartbeatData("c", [ProducerData(f"Large-P-{number}") for number in range(1_000)])
    assert wire.ask(RequestCode.HEART_BEAT, data.to_json()).code == ResponseCode.SUCCESS
    assert wire.ask(RequestCode.HEART_BEAT, b'{clientID:"c",x:{0:1}}').code == ResponseCode.SUCCESS
