"""What a consumer is told before it starts, and what an instance does while some of its servers do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_rocket.client import ConsumeConcurrentlyStatus, LitePullConsumer, PushConsumer
from spark_rocket.client.config import ClientConfig
from spark_rocket.client.instance import ServiceState, acquire, release
from spark_rocket.errors import BrokerError, SubscriptionRefusedError
from spark_rocket.protocol.bodies import BrokerData, CheckClientRequestBody, GetConsumerListByGroupResponseBody
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS
from tests.client.fakes import FakeCluster, says

Consumer = PushConsumer | LitePullConsumer


class Member:
    def __init__(self, group: str) -> None:
        self.group = group


def push(name_server: str, group: str = "g") -> PushConsumer:
    return PushConsumer(group, lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, name_server=name_server)


def lite(name_server: str, group: str = "g") -> LitePullConsumer:
    return LitePullConsumer(group, name_server=name_server)


KINDS = pytest.mark.parametrize("kind", [push, lite])


def consuming(fake: Callable[..., FakeCluster], brokers: int = 2) -> FakeCluster:
    """Brokers on which a consumer finds nothing to do."""
    mq = fake(brokers)
    mq.add("t", 1)
    for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG):
        mq.everywhere(code, says(0))
    mq.everywhere(RequestCode.GET_CONSUMER_LIST_BY_GROUP, says(ResponseCode.SYSTEM_ERROR, "no consumer for this group"))
    return mq


# --- SQL92: the brokers are asked first (46) --------------------------------------------------------------------


@KINDS
def test_a_broker_that_does_not_filter_refuses_the_start(kind: Callable[..., Consumer]) -> None:
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
def test_what_a_broker_says_of_an_expression(
    fake: Callable[..., FakeCluster], kind: Callable[..., Consumer], code: int, remark: str, remedy: str
) -> None:
    mq = consuming(fake)
    mq.everywhere(RequestCode.CHECK_CLIENT_CONFIG, says(code, remark))
    consumer = kind(mq.name_server.address)
    consumer.subscribe("t", sql="a IS NOT NULL")
    with pytest.raises(BrokerError, match=f"(?s){remark}.*{remedy}") as refused:
        consumer.start()
    assert isinstance(refused.value, SubscriptionRefusedError)
    assert refused.value.response_code == code
    (asked,) = [request for broker in mq.brokers for request in broker.requests]  # nobody has had a heartbeat
    body = CheckClientRequestBody.from_json(asked.body)
    assert (asked.code, body.group) == (RequestCode.CHECK_CLIENT_CONFIG, "g")
    assert body.subscription_data is not None
    assert (body.subscription_data.expression_type, body.subscription_data.sub_string) == ("SQL92", "a IS NOT NULL")


@KINDS
def test_brokers_that_cannot_be_asked_refuse_nothing(
    fake: Callable[..., FakeCluster], kind: Callable[..., Consumer]
) -> None:
    mq = consuming(fake)
    mq.brokers[0].close()
    mq.brokers[1].answers[RequestCode.CHECK_CLIENT_CONFIG] = says(ResponseCode.SYSTEM_BUSY, "in a moment")
    with kind(mq.name_server.address) as consumer:
        consumer.subscribe("t", sql="a IS NOT NULL")
        consumer.start()
        assert consumer.state is ServiceState.RUNNING
    assert RequestCode.CHECK_CLIENT_CONFIG in mq.brokers[1].codes()


@KINDS
def test_tags_are_no_question(fake: Callable[..., FakeCluster], kind: Callable[..., Consumer]) -> None:
    mq = consuming(fake, 1)
    with kind(mq.name_server.address) as consumer:
        consumer.subscribe("t", "a || b")
        consumer.start()
    assert RequestCode.CHECK_CLIENT_CONFIG not in mq.brokers[0].codes()


# --- machines that have died --------------------------------------------------------------------------------------


def test_heartbeats_do_not_wait_for_brokers_that_do_not_answer(
    fake: Callable[..., FakeCluster], silent: Callable[[], str]
) -> None:
    mq = consuming(fake, 1)
    brokers = mq.topics["t"].broker_datas
    for number in range(3):
        brokers.insert(0, BrokerData("c", f"a{number}", {0: silent()}))
    instance = acquire(ClientConfig((mq.name_server.address,), request_timeout=SECONDS * 6))
    try:
        instance.routes.route("t")
        joining = threading.Thread(target=instance.members.join_producer, args=(Member("p"),))
        joining.start()
        assert mq.brokers[0].arrived.acquire(timeout=SECONDS)  # long before the others' time is up
        assert mq.brokers[0].codes() == [RequestCode.HEART_BEAT]
        assert joining.is_alive()
    finally:
        release(instance)
    joining.join(SECONDS)
    assert not joining.is_alive()


def test_members_are_asked_for_where_there_is_a_connection(
    fake: Callable[..., FakeCluster], silent: Callable[[], str]
) -> None:
    mq = consuming(fake, 1)
    mq.topics["t"].broker_datas.insert(0, BrokerData("c", "a", {0: silent()}))
    body = GetConsumerListByGroupResponseBody(["x", "a"]).to_json()
    mq.everywhere(RequestCode.GET_CONSUMER_LIST_BY_GROUP, says(0, body=body))
    instance = acquire(ClientConfig((mq.name_server.address,), request_timeout=SECONDS * 6))
    try:
        instance.remoting.invoke(mq.brokers[0].address, RemotingCommand.request(RequestCode.HEART_BEAT))
        assert instance.consumer_ids("g", "t") == ["a", "x"]
    finally:
        release(instance)
