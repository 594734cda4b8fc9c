"""Returned messages: request 36 to their broker, or else a copy to the retry topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_rocket.client.consume.services import SendBack
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.model import MessageExt
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers.consumer import ConsumerSendMsgBackRequestHeader
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from tests.kit.scripted import STORED, FakeCluster, says

pytestmark = pytest.mark.live

BROKERS = 1
BACK, COPY = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    mq.add("%RETRY%g", queues=1)
    return mq


@pytest.fixture
def instance(mq: FakeCluster, acquired: Callable[..., ClientInstance]) -> ClientInstance:
    return acquired(mq.name_server.address)


def stored(mq: FakeCluster) -> MessageExt:
    host, port = mq.brokers[0].address.split(":")
    return MessageExt(
        "t",
        b"body",
        {"UNIQ_KEY": "K", "TAGS": "a", "CONSUME_START_TIME": "5", "mine": "too"},
        7,
        "b0",
        0,
        3,
        4096,
        store_host=(host, int(port)),
        reconsume_times=2,
    )


@pytest.mark.parametrize("level", [0, 5, -1])
def test_the_broker_is_asked_to_retry(mq: FakeCluster, instance: ClientInstance, level: int) -> None:
    mq.everywhere(BACK, says(0))
    assert SendBack(instance, "g", 16).send(stored(mq), level)
    (request,) = mq.brokers[0].requests
    assert ConsumerSendMsgBackRequestHeader.from_ext(request.ext_fields) == ConsumerSendMsgBackRequestHeader(
        offset=4096, group="g", delay_level=level, origin_msg_id="K", origin_topic="t", max_reconsume_times=16
    )


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
def test_a_copy_is_sent_if_the_broker_refuses(mq: FakeCluster, instance: ClientInstance, code: int) -> None:
    mq.everywhere(BACK, says(code, "not today"))
    mq.everywhere(COPY, says(0, ext=STORED))
    message = stored(mq)
    assert SendBack(instance, "g", 16).send(message)
    request = mq.brokers[0].requests[-1]
    header = SendMessageRequestHeader.from_ext_v2(request.ext_fields)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times, header.flag) == ("%RETRY%g", 3, 16, 7)
    assert request.body == b"body"
    assert decode_properties(header.properties or "") == {
        "UNIQ_KEY": "K",  # identifies it among the dead letters
        "TAGS": "a",
        "mine": "too",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "K",
        "DELAY": "5",
    }
    assert message.properties["CONSUME_START_TIME"] == "5"  # the listener's message is not changed


def test_a_retried_message_keeps_its_origin(mq: FakeCluster, instance: ClientInstance) -> None:
    mq.everywhere(COPY, says(0, ext=STORED))
    message = stored(mq)
    message.properties |= {"RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "O"}
    assert SendBack(instance, "g", 16).send_copy(message)
    header = SendMessageRequestHeader.from_ext_v2(mq.brokers[0].requests[-1].ext_fields)
    properties = decode_properties(header.properties or "")
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("first", "O")


def test_a_refused_copy_is_reported(mq: FakeCluster, instance: ClientInstance) -> None:
    mq.everywhere(BACK, says(ResponseCode.SYSTEM_ERROR))
    mq.everywhere(COPY, says(ResponseCode.NO_PERMISSION))
    assert not SendBack(instance, "g", 16).send(stored(mq))


def test_the_address_of_the_route_is_used(mq: FakeCluster, instance: ClientInstance) -> None:
    """The message can have an internal address of the broker; the retry topic can lack a route."""
    del mq.topics["%RETRY%g"]
    mq.add("t")
    mq.everywhere(BACK, says(0))
    message = stored(mq)
    message.store_host = ("192.0.2.1", 10911)
    assert SendBack(instance, "g", 16).send(message)
    assert mq.brokers[0].codes() == [BACK]


def test_without_a_route_the_address_of_the_message_is_used(mq: FakeCluster, instance: ClientInstance) -> None:
    del mq.topics["%RETRY%g"]
    mq.everywhere(BACK, says(0))
    assert SendBack(instance, "g", 16).send(stored(mq))
