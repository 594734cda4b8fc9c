"""Heartbeats, members of groups, notifications, locks."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from spark_rocket.broker.state import clients as clients_module
from spark_rocket.broker.state import queue_locks
from spark_rocket.broker.state.clients import ClientManager
from spark_rocket.broker.state.queue_locks import RebalanceLockManager
from spark_rocket.errors import RefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.stats import ConsumerConnection, ProducerConnection
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.request_limits import STATE_LIMITS
from spark_rocket.protocol.wire.request_limits.state import PRODUCERS, QUEUE_LOCKS, SUBSCRIPTIONS
from spark_rocket.remoting.client.remoting_client import RemotingClient
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


def test_heartbeats_create_a_limited_number_of_groups(members: list[Member], wire: Wire, namesrv: Wire) -> None:
    def count() -> tuple[int, int]:
        groups = wire.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
        topics = wire.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
        return (
            len(SubscriptionGroupWrapper.from_json(groups).subscription_group_table),
            len(TopicConfigSerializeWrapper.from_json(topics).topic_config_table),
        )

    members[0].beat("limit-known")
    groups, topics = count()
    try:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxAutoCreateGroups=%d" % (groups + 2))
        for number in range(5):
            members[0].beat(f"limit-{number}")
        assert count() == (groups + 2, topics + 2)
        for group, code in (("limit-0", 0), ("limit-known", 0), ("limit-4", 26)):
            members[0].beat(group)
            answer = wire.pull("SELF_TEST_TOPIC", 0, consumerGroup=group)
            assert answer.code in ({26} if code else {0, 19, 21}), answer.remark
        assert f"is not created: the broker has {groups + 2} entries" in (answer.remark or "")
        assert f"maxAutoCreateGroups={groups + 2}" in (answer.remark or "")
        answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="limit-4", delayLevel=0)
        assert (answer.code, "maxAutoCreateGroups" in (answer.remark or "")) == (26, True)
        assert namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%limit-known").code == 0
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxAutoCreateGroups=5000")


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
    mine, channel = [MessageQueue("T", "b", 0)], cast(Channel, SilentChannel())
    assert locks.lock("g", mine, "a", channel) == mine
    now[0] = 60_000
    assert locks.lock("g", mine, "b", channel) == []
    now[0] = 60_001
    assert locks.lock("g", mine, "b", channel) == mine
    locks.unlock("g", mine, "a")
    assert locks.lock("g", mine, "a", channel) == []


def test_expired_locks_are_removed_and_others_bounded() -> None:
    now = [0]
    locks = RebalanceLockManager(lambda: now[0], 60_000)
    channel = cast(Channel, SilentChannel())
    most = STATE_LIMITS[QUEUE_LOCKS].per_connection or 0
    queues = [MessageQueue(f"T{number}", "b", 0) for number in range(most)]
    assert locks.lock("g", queues, "a", channel) == queues
    assert locks.lock("g", queues, "a", channel) == queues  # renewed
    with pytest.raises(RefusedError, match=f"too many queue locks: at most {most:,} per connection"):
        locks.lock("g", [MessageQueue("more", "b", 0)], "a", channel)
    now[0] = 60_001
    locks.lock("g", queues[:10], "a", channel)
    locks.expire()
    assert locks.count == 10
    assert locks.lock("g", [MessageQueue("more", "b", 0)], "a", channel)
    locks.release_group("g")
    assert locks.count == 0


def test_many_expired_locks_are_removed_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "_MAX_EXPIRED", 5)
    now = [0]
    locks = RebalanceLockManager(lambda: now[0], 60_000)
    for group in ("g", "h", "i"):
        locks.lock(group, [MessageQueue("T", "b", number) for number in range(4)], "a", cast(Channel, SilentChannel()))
    now[0] = 60_001
    counts = []
    for _ in range(4):
        locks.expire()
        counts.append(locks.count)
    assert counts == [7, 2, 0, 0]


def test_the_last_member_that_unregisters_ends_the_locks(members: list[Member], group: str) -> None:
    first, second, third = members
    queues = [MessageQueue("T", "b", 0)]

    def lock(member: Member) -> list[MessageQueue]:
        body = LockBatchRequestBody(consumer_group=group, client_id=member.client_id, mq_set=queues).to_json()
        return LockBatchResponseBody.from_json(member.wire.ask(RequestCode.LOCK_BATCH_MQ, body).body).lock_ok_mq_set

    for member in (first, second):
        member.beat(group)
    assert lock(first) == queues
    for member, expected in ((second, []), (first, queues)):
        member.wire.ask(RequestCode.UNREGISTER_CLIENT, clientID=member.client_id, consumerGroup=group)
        assert lock(third) == expected


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
            parts = server.broker.parts
            server.run(lambda: parts.clients.expire(parts.config.channel_expired_timeout))
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


def test_members_are_bounded_and_released_with_their_connection() -> None:
    """Also those with long names: each KiB counts as a member."""
    clients = ClientManager(lambda: 0, lambda channel, group: None, lambda: 0)
    first, second = (cast(Channel, SilentChannel()) for _ in range(2))
    most = STATE_LIMITS[PRODUCERS].per_connection or 0
    for number in range(most):
        clients.register_producer(f"p{number}", first, "one", "JAVA", 1)
    clients.register_producer("p0", first, "one", "JAVA", 1)  # renewed
    with pytest.raises(RefusedError, match="too many producers"):
        clients.register_producer("more", first, "one", "JAVA", 1)
    clients.register_producer("p0", second, "two", "JAVA", 1)
    with pytest.raises(RefusedError, match="too many producers"):
        clients.register_producer("x" * (most << 10), second, "two", "JAVA", 1)
    clients.channel_closed(first)
    assert clients.producers.keys() == {"p0"}
    clients.register_producer("more", first, "one", "JAVA", 1)


def test_consumers_of_one_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MAX_GROUP_MEMBERS", 2)
    clients = ClientManager(lambda: 0, lambda channel, group: None, lambda: 0)
    channels = [cast(Channel, SilentChannel()) for _ in range(2)]
    for channel in channels:
        clients.register_consumer(ConsumerData("g"), channel, "one", "JAVA", 1)
    with pytest.raises(RefusedError, match="too many consumers of group g: at most 2"):
        clients.register_consumer(ConsumerData("g"), channels[0], "two", "JAVA", 1)
    clients.register_consumer(ConsumerData("g"), channels[0], "one", "JAVA", 1)  # renewed
    clients.register_consumer(ConsumerData("h"), channels[0], "two", "JAVA", 1)
    clients.channel_closed(channels[1])
    clients.register_consumer(ConsumerData("g"), channels[0], "two", "JAVA", 1)
    assert len(clients.consumers["g"].members) == 2


def test_subscriptions_are_bounded_and_released_with_their_member() -> None:
    clients = ClientManager(lambda: 0, lambda channel, group: None, lambda: 0)
    channel = cast(Channel, SilentChannel())
    most = STATE_LIMITS[SUBSCRIPTIONS].per_connection or 0

    def consumer(group: str, count: int) -> ConsumerData:
        return ConsumerData(group, subscription_data_set=[SubscriptionData(f"T{number}") for number in range(count)])

    clients.register_consumer(consumer("g", most), channel, "one", "JAVA", 1)
    with pytest.raises(RefusedError, match=f"too many subscriptions: at most {most:,} per connection"):
        clients.register_consumer(consumer("h", 1), channel, "one", "JAVA", 1)
    assert clients.consumers.keys() == {"g"}
    clients.register_consumer(consumer("g", most - 1), channel, "one", "JAVA", 1)
    clients.register_consumer(consumer("h", 1), channel, "one", "JAVA", 1)
    clients.unregister(channel, "one", None, "g")
    clients.register_consumer(consumer("i", most - 1), channel, "one", "JAVA", 1)
    clients.channel_closed(channel)
    assert clients.consumers == {}


def test_a_reply_goes_to_the_latest_connection_of_its_client() -> None:
    clients = ClientManager(lambda: 0, lambda channel, group: None, lambda: 0)
    old, young = (cast(Channel, SilentChannel()) for _ in range(2))
    for group in ("p", "q"):
        clients.register_producer(group, old, "one", "JAVA", 1)
        clients.register_producer(group, young, "one", "JAVA", 1)
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
