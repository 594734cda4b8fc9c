"""The rows of requests: one for each code that a server handles, and what one request needs of an account."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.requests import BROKER_REQUESTS, REQUESTS
from spark_rocket.protocol.requests.needs import Action, Permission, PlainAccess, Resource
from spark_rocket.protocol.requests.request_type import RequestType, table
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.cost.generator import request_of

GROUP, TOPIC, CLUSTER = Resource.GROUP, Resource.TOPIC, Resource.CLUSTER
SUB, PUB, GET, UPDATE = Action.SUB, Action.PUB, Action.GET, Action.UPDATE


def needed(code: int, body: bytes = b"", **ext: str) -> list[tuple[Resource, str, tuple[Action, ...]]]:
    request = RemotingCommand.request(code, ext, body)
    return [pair[:3] for pair in REQUESTS[code].pairs(request, {7: "stored", 8: "%RETRY%readers"}.get)]


def permissions(code: int, **ext: str) -> list[Permission | None]:
    request = RemotingCommand.request(code, ext)
    return [pair.permission for pair in REQUESTS[code].pairs(request, {7: "stored"}.get)]


def test_what_a_request_needs() -> None:
    """The names come from fields, bodies and stored messages. All pairs are needed, each with one of its actions."""
    assert needed(Code.SEND_MESSAGE_V2, b="orders") == [(TOPIC, "orders", (PUB,))]
    assert needed(Code.SEND_MESSAGE, topic="orders", b="bills") == [(TOPIC, "orders", (PUB,)), (TOPIC, "bills", (PUB,))]
    read: dict[str, Any] = {"topic": "orders", "consumerGroup": "readers"}
    assert needed(Code.PULL_MESSAGE, **read) == [(TOPIC, "orders", (SUB,)), (GROUP, "readers", (SUB,))]
    assert needed(Code.QUERY_CONSUMER_OFFSET, **read) == [
        (TOPIC, "orders", (SUB, GET)),
        (GROUP, "readers", (SUB, GET)),
    ]
    assert needed(Code.UPDATE_CONSUMER_OFFSET, **read) == [
        (TOPIC, "orders", (SUB, UPDATE)),
        (GROUP, "readers", (SUB, UPDATE)),
    ]
    assert needed(Code.GET_CONSUME_STATS, consumerGroup="readers", topicList="a;;b") == [
        (GROUP, "readers", (GET,)),
        (TOPIC, "a", (GET,)),
        (TOPIC, "b", (GET,)),
    ]
    assert needed(Code.VIEW_MESSAGE_BY_ID, offset="7", topic="another") == [(TOPIC, "stored", (GET,))]
    assert needed(Code.VIEW_MESSAGE_BY_ID, offset="9") == []
    assert needed(Code.GET_ALL_TOPIC_CONFIG) == [(TOPIC, "*", (Action.LIST,))]
    assert needed(Code.UPDATE_BROKER_CONFIG) == [(CLUSTER, "", (UPDATE,))]
    assert needed(Code.CHECK_CLIENT_CONFIG, b"{}") == []
    lock = LockBatchRequestBody("readers", "c", mq_set=[MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)])
    assert needed(Code.LOCK_BATCH_MQ, lock.to_json()) == [(GROUP, "readers", (SUB,)), (TOPIC, "orders", (SUB,))]


def test_a_retry_topic_is_a_need_of_its_group() -> None:
    retry = "%RETRY%readers"
    assert needed(Code.SEND_MESSAGE_V2, b=retry) == [(GROUP, "readers", (SUB,))]
    assert needed(Code.GET_MAX_OFFSET, topic=retry) == [(GROUP, "readers", (GET,))]
    assert needed(Code.GET_ROUTEINFO_BY_TOPIC, topic=retry) == [(GROUP, "readers", (SUB, SUB, GET))]
    assert needed(Code.CONSUMER_SEND_MSG_BACK, group="readers", offset="8", delayLevel="0") == [
        (GROUP, "readers", (SUB,)),
        (GROUP, "readers", (SUB,)),
    ]
    consumer = ConsumerData("readers", subscription_data_set=[SubscriptionData("orders"), SubscriptionData(retry)])
    assert needed(Code.HEART_BEAT, HeartbeatData("c", consumer_data_set=[consumer]).to_json()) == [
        (GROUP, "readers", (SUB,)),
        (TOPIC, "orders", (SUB,)),
        (GROUP, "readers", (SUB,)),
    ]


def test_permissions_of_acl_1_follow_from_the_actions() -> None:
    assert permissions(Code.SEND_MESSAGE_V2, b="orders") == [Permission.PUB]
    assert permissions(Code.SEND_MESSAGE_V2, b="%RETRY%readers") == [Permission.SUB]
    assert permissions(Code.QUERY_MESSAGE, topic="orders") == [Permission.SUB]
    assert permissions(Code.VIEW_MESSAGE_BY_ID, offset="7") == [Permission.SUB]
    assert permissions(Code.GET_MAX_OFFSET, topic="orders") == [None]
    access = {code: row.plain_access for code, row in BROKER_REQUESTS.items()}
    assert access[Code.PULL_MESSAGE] is access[Code.VIEW_MESSAGE_BY_ID] is PlainAccess.PERMISSIONS
    assert access[Code.GET_MAX_OFFSET] is access[Code.QUERY_CONSUMER_OFFSET] is PlainAccess.ANY_ACCOUNT
    assert access[Code.DELETE_TOPIC_IN_BROKER] is access[Code.CONSUME_MESSAGE_DIRECTLY] is PlainAccess.ADMIN


def test_an_offset_that_is_not_a_number() -> None:
    with pytest.raises(ProtocolError, match="ViewMessageRequestHeader has an invalid number"):
        needed(Code.VIEW_MESSAGE_BY_ID, offset="9" * 40)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in REQUESTS.values()])
def test_every_need_finds_a_name_in_a_plausible_request(row: RequestType) -> None:
    """A need that finds nothing would allow every request."""
    request = request_of(row)
    row.pairs(request, lambda offset: "stored")  # decodes the body
    for need in row.needs:
        assert [pair.name for pair in need.pairs(request, lambda offset: "stored")] != [], need


def test_two_rows_with_one_code_are_refused() -> None:
    row = BROKER_REQUESTS[Code.HEART_BEAT]
    with pytest.raises(ValueError, match="two rows"):
        table(row, row)
