"""Errors before a consumer starts, and instances while some servers do not respond."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from spark_rocket.client.consume import concurrently as consume_concurrently
from spark_rocket.client.consume import process_queue, puller, queue_locks, services
from spark_rocket.client.consume.allocation import GroupMembers
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import ClientInstance, acquire, release
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import (
    BrokerError,
    NameServerUnreachableError,
    RemotingConnectError,
    StateError,
    SubscriptionRefusedError,
)
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.bodies.client import CheckClientRequestBody, GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.bodies.route import BrokerData, QueueData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS
from tests.client.producing import Decides
from tests.kit.scripted import STORED, Fake, FakeCluster, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live

Consumer = PushConsumer | LitePullConsumer
Fakes = Callable[..., FakeCluster]
Acquired = Callable[..., ClientInstance]


class Member:
    def __init__(self, group: str) -> None:
        self.group = group


def push(name_server: str, group: str = "g") -> PushConsumer:
    return PushConsumer(group, lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, name_server=name_server)


def lite(name_server: str, group: str = "g") -> LitePullConsumer:
    return LitePullConsumer(group, name_server=name_server)


KINDS = pytest.mark.parametrize("kind", [push, lite])


def consuming(fake: Fakes, brokers: int = 2) -> FakeCluster:
    """Brokers without messages for a consumer."""
    mq = fake(brokers)
    mq.add("t", 1)
    for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG):
        mq.everywhere(code, says(0))
    mq.everywhere(RequestCode.GET_CONSUMER_LIST_BY_GROUP, says(ResponseCode.SYSTEM_ERROR, "no consumer for this group"))
    return mq


# --- SQL92: checked at the brokers first (46) ---------------------------------------------------------------------


@KINDS
def test_without_filters_at_the_broker_the_start_fails(kind: Callable[..., Consumer]) -> None:
    with LocalCluster(in_process=True, config={"enablePropertyFilter": False}) as cluster:
        topic = cluster.create_topic("t", 1)
        consumer = kind(cluster.name_server)
        consumer.subscribe(topic, sql="a > 1")
        with pytest.raises(SubscriptionRefusedError, match="enablePropertyFilter=true") as refused:
            consumer.start()
        assert (refused.value.code, refused.value.retriable) == ("SUBSCRIPTION_REFUSED", False)
        assert "does not support consumer to filter message by SQL92" in str(refused.value)
        assert consumer.state is ServiceState.START_FAILED
        with kind(cluster.name_server, "g2") as running:
            running.subscribe(topic, "a")
            running.start()
            with pytest.raises(SubscriptionRefusedError):
                running.subscribe(topic, sql="a > 1")
            (data,) = (one for one in running.consumer_data().subscription_data_set if one.topic == topic)
            assert data.sub_string == "a", "what it had stays"


@KINDS
@pytest.mark.parametrize(
    ("code", "remark", "remedy"),
    [
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed", "Correct the expression"),
        (ResponseCode.SYSTEM_ERROR, "The broker does not support", "enablePropertyFilter"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 46 not supported", "subscribe by tags"),
    ],
)
def test_errors_of_an_expression(
    fake: Fakes, kind: Callable[..., Consumer], code: int, remark: str, remedy: str
) -> None:
    mq = consuming(fake)
    mq.everywhere(RequestCode.CHECK_CLIENT_CONFIG, says(code, remark))
    consumer = kind(mq.name_server.address)
    consumer.subscribe("t", sql="a IS NOT NULL")
    with pytest.raises(BrokerError, match=f"(?s){remark}.*{remedy}") as refused:
        consumer.start()
    assert isinstance(refused.value, SubscriptionRefusedError)
    assert refused.value.response_code == code
    (asked,) = [request for broker in mq.brokers for request in broker.requests]  # no broker has received a heartbeat
    body = CheckClientRequestBody.from_json(asked.body)
    assert (asked.code, body.group) == (RequestCode.CHECK_CLIENT_CONFIG, "g")
    assert body.subscription_data is not None
    assert (body.subscription_data.expression_type, body.subscription_data.sub_string) == ("SQL92", "a IS NOT NULL")


@KINDS
def test_unavailable_brokers_do_not_reject_an_expression(fake: Fakes, kind: Callable[..., Consumer]) -> None:
    mq = consuming(fake)
    mq.brokers[0].close()
    mq.brokers[1].responses[RequestCode.CHECK_CLIENT_CONFIG] = says(ResponseCode.SYSTEM_BUSY, "in a moment")
    with kind(mq.name_server.address) as consumer:
        consumer.subscribe("t", sql="a IS NOT NULL")
        consumer.start()
        assert consumer.state is ServiceState.RUNNING
    assert RequestCode.CHECK_CLIENT_CONFIG in mq.brokers[1].codes()


@KINDS
def test_tags_are_not_checked_at_the_broker(fake: Fakes, kind: Callable[..., Consumer]) -> None:
    mq = consuming(fake, 1)
    with kind(mq.name_server.address) as consumer:
        consumer.subscribe("t", "a || b")
        consumer.start()
    assert RequestCode.CHECK_CLIENT_CONFIG not in mq.brokers[0].codes()


# --- dead machines ------------------------------------------------------------------------------------------------


def test_heartbeats_do_not_wait_for_unresponsive_brokers(
    fake: Fakes, silent: Callable[[], str], acquired: Acquired
) -> None:
    mq = consuming(fake, 1)
    brokers = mq.topics["t"].broker_datas
    for number in range(3):
        brokers.insert(0, BrokerData("c", f"a{number}", {0: silent()}))
    instance = acquired(mq.name_server.address, request_timeout=SECONDS * 6)
    instance.routes.route("t")
    joining = threading.Thread(target=instance.members.join_producer, args=(Member("p"),))
    joining.start()
    assert mq.brokers[0].arrived.acquire(timeout=SECONDS)  # long before the deadline of the others
    assert mq.brokers[0].codes() == [RequestCode.HEART_BEAT]
    assert joining.is_alive()
    release(instance)
    joining.join(SECONDS)
    assert not joining.is_alive()


def test_the_first_send_does_not_wait_for_heartbeats(fake: Fakes, acquired: Acquired) -> None:
    """The instance of the producer already has brokers. An unresponsive one would use up the timeout of the send."""
    mq = consuming(fake, 1)
    mq.everywhere(RequestCode.SEND_MESSAGE_V2, says(0, ext=STORED))
    mq.everywhere(RequestCode.HEART_BEAT, lambda _: None)
    instance = acquired(mq.name_server.address, request_timeout=SECONDS * 6)
    instance.routes.route("t")
    for make in (Producer, partial(TransactionProducer, listener=Decides())):
        producer = make("p", name_server=mq.name_server.address)
        assert producer.send(Message.of("t", "x"), timeout=SECONDS * 3).queue_offset == 7
        assert instance.members.producers == {"p": producer}
        producer.close()


def test_members_are_requested_over_an_existing_connection(
    fake: Fakes, silent: Callable[[], str], acquired: Acquired
) -> None:
    mq = consuming(fake, 1)
    mq.topics["t"].broker_datas.insert(0, BrokerData("c", "a", {0: silent()}))
    body = GetConsumerListByGroupResponseBody(["x", "a"]).to_json()
    mq.everywhere(RequestCode.GET_CONSUMER_LIST_BY_GROUP, says(0, body=body))
    instance = acquired(mq.name_server.address, request_timeout=SECONDS * 6)
    instance.remoting.invoke(mq.brokers[0].address, RemotingCommand.request(RequestCode.HEART_BEAT))
    assert GroupMembers("g", lambda: instance).client_ids("t") == ["a", "x"]


def test_a_broker_without_the_members_is_not_asked_first_again(fake: Fakes, acquired: Acquired) -> None:
    mq = consuming(fake)
    hangs, responds = mq.brokers
    hangs.responses[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda _: None
    body = GetConsumerListByGroupResponseBody(["a"]).to_json()
    responds.responses[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(0, body=body)
    instance = acquired(mq.name_server.address, request_timeout=0.2)
    members = GroupMembers("g", lambda: instance)
    for _ in range(3):
        assert members.client_ids("t") == ["a"]
    assert (len(hangs.requests), len(responds.requests)) == (1, 3)


# --- stopped name servers and brokers -----------------------------------------------------------------------------


def sending(fake: Fakes, brokers: int = 1) -> FakeCluster:
    mq = consuming(fake, brokers)
    mq.everywhere(RequestCode.SEND_MESSAGE_V2, says(0, ext=STORED))
    return mq


def test_an_unresponsive_name_server_leaves_time_for_the_next(fake: Fakes, silent: Callable[[], str]) -> None:
    mq = sending(fake)
    with Producer("p", name_server=f"{silent()};{mq.name_server.address}", send_timeout=SECONDS) as producer:
        assert producer.send(Message.of("t", "x"), timeout=6.0).queue_offset == 7


@KINDS
def test_a_name_server_that_stops_and_restarts(fake: Fakes, kind: Callable[..., Consumer]) -> None:
    mq = sending(fake)
    address = mq.name_server.address
    with Producer("p", name_server=address) as producer, kind(address) as consumer:
        producer.send(Message.of("t", "x"))
        consumer.subscribe("t")
        consumer.start()
        mq.name_server.close()
        producer.send(Message.of("t", "x"))  # cached routes stay
        mq.add("later", 1)
        with pytest.raises(NameServerUnreachableError) as caught:
            producer.send(Message.of("later", "x"))
        assert caught.value.retriable
        late = kind(address, "g2")
        late.subscribe("later")
        with pytest.raises(NameServerUnreachableError):
            late.start()
        assert late.state is ServiceState.START_FAILED
        consumer.rebalance()  # its queues do not change
        back = Fake(mq.name_server.responses, int(address.rpartition(":")[2]))
        try:
            producer.send(Message.of("later", "x"))
            consumer.subscribe("later")
            consumer.rebalance()
            assert back.codes()
        finally:
            back.close()


class ClosingBroker:
    """A broker that reads a request completely or half, and closes without a response."""

    def __init__(self, half: bool) -> None:
        self._half = half
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.died = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    left = int.from_bytes(connection.recv(4), "big") // (2 if self._half else 1)
                    while left > 0:
                        left -= len(connection.recv(min(left, 65_536)))
                self.died += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("how", ["send", "send_async", "send_oneway"])
def test_a_broker_dies_during_a_send(fake: Fakes, half: bool, how: str) -> None:
    mq = sending(fake)
    dying = ClosingBroker(half)
    data = mq.topics["t"]
    data.broker_datas.append(BrokerData("c", "a", {0: dying.address}))
    data.queue_datas.append(QueueData("a", 1, 1, 6))
    message = Message.of("t", "x" * 100_000, properties={"UNIQ_KEY": "k"})
    there = MessageQueue("t", "a", 0)
    try:
        with Producer(
            "p", name_server=mq.name_server.address, member=False, compress_msg_body_over_howmuch=1 << 20
        ) as producer:

            def send(queue: MessageQueue | None) -> object:
                sent = getattr(producer, how)(message, queue=queue)
                return sent.result(SECONDS) if how == "send_async" else sent

            if how == "send_oneway":
                send(there)  # no member is notified
                until(lambda: dying.died == 1)
                return
            with pytest.raises(RemotingConnectError) as caught:  # a requested queue is not changed
                send(there)
            assert (caught.value.code, caught.value.retriable) == ("CONNECT_FAILED", True)
            for _ in range(2):  # whichever broker comes first
                send(None)
            assert len(mq.brokers[0].of(RequestCode.SEND_MESSAGE_V2)) == 2
            until(lambda: dying.died >= 2)
    finally:
        dying.close()


@KINDS
def test_a_consumer_closed_during_its_start_does_not_join(
    fake: Fakes, kind: Callable[..., Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = consuming(fake)
    other = acquire(ClientConfig((mq.name_server.address,)))  # keeps the members running
    consumer = kind(mq.name_server.address)
    consumer.subscribe("t")
    members = consumer.instance().members
    join = members.join_consumer

    def close_first(member: Any) -> None:
        consumer.close()
        join(member)

    monkeypatch.setattr(members, "join_consumer", close_first)
    with pytest.raises(StateError, match="closed"):
        consumer.start()
    assert not members.consumers
    assert not (consumer.process_queues() if isinstance(consumer, PushConsumer) else consumer.assignment())
    release(other)


# --- defaults of Apache's client ----------------------------------------------------------------------------------

TIMES: list[tuple[str, object, object]] = [
    ("ClientConfig.pollNameServerInterval", ClientConfig().route_refresh_interval, 30.0),
    ("ClientConfig.heartbeatBrokerInterval", ClientConfig().heartbeat_interval, 30.0),
    ("ClientConfig.persistConsumerOffsetInterval", ClientConfig().persist_interval, 5.0),
    ("ClientConfig.mqClientApiTimeout", ClientConfig().request_timeout, 3.0),
    ("rocketmq.client.rebalance.waitInterval", ClientConfig().rebalance_interval, 20.0),
    ("rocketmq.client.rebalance.lockInterval", queue_locks.RENEW_SECONDS, 20.0),
    ("rocketmq.client.rebalance.lockMaxLiveTime", process_queue.LOCK_EXPIRED_SECONDS, 30.0),
    ("rocketmq.client.pull.pullMaxIdleTime", process_queue.PULL_EXPIRED_SECONDS, 120.0),
    ("BROKER_SUSPEND_MAX_TIME_MILLIS", puller.SUSPEND_MS, 15_000),
    (
        "CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND",
        puller.SUSPEND_MS / 1000 + puller.PULL_TIMEOUT_S,
        30.0,
    ),
    ("pullTimeDelayMillsWhenException", puller.ERROR_DELAY_S, 3.0),
    ("pullTimeDelayMillsWhenBrokerFlowControl", puller.BUSY_DELAY_S, 0.02),
    ("PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL", puller.FULL_DELAY_S, 0.05),
    ("PULL_TIME_DELAY_MILLS_WHEN_SUSPEND", puller.PAUSED_DELAY_S, 1.0),
    ("OFFSET_ILLEGAL is corrected after", puller.CORRECTION_DELAY_S, 10.0),
    ("consumeLater", consume_concurrently.RETRY_SECONDS, 5.0),
    ("at the broker: rebalanceLockMaxLiveTime", BrokerConfig().rebalance_lock_max_live_time, 60_000),
    ("transactionTimeOut", BrokerConfig().transaction_time_out, 6_000),
    ("transactionCheckInterval", BrokerConfig().transaction_check_interval, 30_000),
    ("transactionCheckMax", BrokerConfig().transaction_check_max, 15),
    ("channelExpiredTimeout", BrokerConfig().channel_expired_timeout, 120_000),
    ("serverChannelMaxIdleTimeSeconds", BrokerConfig().server_channel_max_idle_time_seconds, 120),
    ("flushConsumerOffsetInterval", BrokerConfig().flush_consumer_offset_interval, 5_000),
    ("retryMaxTimes", services.DEFAULT_MAX_RECONSUME_TIMES, 16),
]


@pytest.mark.parametrize(("ours", "javas"), [row[1:] for row in TIMES], ids=[row[0] for row in TIMES])
def test_timeouts_and_limits_equal_apaches(ours: object, javas: object) -> None:
    assert ours == javas
