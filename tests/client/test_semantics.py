"""What a consumer is told before it starts, and what an instance does while some of its servers do not answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_rocket.client import ConsumeConcurrentlyStatus, LitePullConsumer, PushConsumer
from spark_rocket.client.instance import ServiceState
from spark_rocket.errors import BrokerError, SubscriptionRefusedError
from spark_rocket.protocol.bodies import CheckClientRequestBody
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.testing import LocalCluster
from tests.client.fakes import FakeCluster, says

Consumer = PushConsumer | LitePullConsumer


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
