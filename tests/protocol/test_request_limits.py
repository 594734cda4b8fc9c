"""The table of what a request may cost, and typed bodies within its bounds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.requests import (
    BROKER_REQUESTS,
    HEADER_SEPARATORS,
    NAMESRV_REQUESTS,
    REQUESTS,
    STATE_LIMITS,
    RawBody,
    RequestType,
    body_of,
    collections_of,
)
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData
from spark_rocket.protocol.wire.bodies.config import CreateTopicListRequestBody, SubscriptionGroupConfig
from spark_rocket.protocol.wire.bodies.consumer import BatchAckMessageRequestBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers.base import camel_case
from spark_rocket.protocol.wire.json import dumps_fastjson

EVERY = [pytest.param(row, id=row.name) for row in REQUESTS.values()]


def wire_names(limit: RequestType) -> set[str]:
    """The fields of the declared header."""
    if limit.header is None:
        return set()
    every = fields(limit.header)  # type: ignore[arg-type]  # every header is a dataclass
    return {field.metadata.get("wire") or camel_case(field.name) for field in every}


def test_a_code_belongs_to_one_server() -> None:
    assert not BROKER_REQUESTS.keys() & NAMESRV_REQUESTS.keys()


@pytest.mark.parametrize("limit", EVERY)
def test_every_collection_has_a_bound(limit: RequestType) -> None:
    wanted = wire_names(limit) & HEADER_SEPARATORS.keys()
    if isinstance(limit.body, type):
        wanted |= {collection.path for collection in collections_of(limit.body)}
    if limit.body is not RawBody.REGISTRATION:
        assert set(limit.max_entries) == wanted
    assert {name for name, _, _ in limit.header_lists} == wire_names(limit) & HEADER_SEPARATORS.keys()
    assert limit.max_header_bytes + limit.max_body_bytes <= MAX_FRAME_LENGTH + 256 * 1024
    assert set(limit.state) <= STATE_LIMITS.keys()


def test_every_state_has_ordered_bounds_and_a_release() -> None:
    used = {name for limit in REQUESTS.values() for name in limit.state}
    assert used == STATE_LIMITS.keys()
    for limit in STATE_LIMITS.values():
        of_client = limit.total if limit.per_client is None else limit.per_client
        of_connection = of_client if limit.per_connection is None else limit.per_connection
        assert 0 < of_connection <= of_client <= limit.total
        assert limit.released


def ask(code: int, body: bytes, **ext: str) -> RemotingCommand:
    return RemotingCommand.request(code, ext, body)


@pytest.mark.parametrize(
    ("code", "cls", "allowed", "beyond", "path"),
    [
        pytest.param(
            RequestCode.HEART_BEAT,
            HeartbeatData,
            HeartbeatData("c", consumer_data_set=[ConsumerData("g")] * 500).to_json(),
            HeartbeatData("c", consumer_data_set=[ConsumerData("g")] * 501).to_json(),
            "consumerDataSet",
            id="groups",
        ),
        pytest.param(
            RequestCode.HEART_BEAT,
            HeartbeatData,
            b'{"consumerDataSet":[%s,%s]}' % ((b'{"subscriptionDataSet":[%s]}' % b",".join([b"{}"] * 2_500),) * 2),
            b'{"consumerDataSet":[%s,%s]}' % ((b'{"subscriptionDataSet":[%s]}' % b",".join([b"{}"] * 2_501),) * 2),
            "consumerDataSet.subscriptionDataSet",
            id="entries of all lists together",
        ),
        pytest.param(
            RequestCode.LOCK_BATCH_MQ,
            LockBatchRequestBody,
            LockBatchRequestBody("g", "c", mq_set=[MessageQueue("T", "b", 0)] * 5_000).to_json(),
            LockBatchRequestBody("g", "c", mq_set=[MessageQueue("T", "b", 0)] * 5_001).to_json(),
            "mqSet",
            id="queues",
        ),
        pytest.param(
            RequestCode.BATCH_ACK_MESSAGE,
            BatchAckMessageRequestBody,
            dumps_fastjson({"acks": [{"b": "A" * 699_050}]}),
            dumps_fastjson({"acks": [{"b": "A" * 699_051}]}),
            "acks.b",
            id="bits in base64",
        ),
        pytest.param(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            CreateTopicListRequestBody,
            dumps_fastjson({"topicConfigList": [{"attributes": {f"a{n}": "" for n in range(10_000)}}]}),
            dumps_fastjson({"topicConfigList": [{"attributes": {f"a{n}": "" for n in range(10_001)}}]}),
            "topicConfigList.attributes",
            id="a map in a list",
        ),
        pytest.param(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            SubscriptionGroupConfig,
            dumps_fastjson({"groupRetryPolicy": {"a": [[0] * 998]}}),
            dumps_fastjson({"groupRetryPolicy": {"a": [[0] * 999]}}),
            "groupRetryPolicy",
            id="values of a field without a type",
        ),
    ],
)
def test_a_body_at_its_bound_and_beyond(code: int, cls: type[Body], allowed: bytes, beyond: bytes, path: str) -> None:
    assert isinstance(body_of(ask(code, allowed), cls), cls)
    with pytest.raises(ProtocolError, match=f"entries in {path}, at most"):
        body_of(ask(code, beyond), cls)


def test_a_body_is_decoded_once() -> None:
    request = ask(RequestCode.HEART_BEAT, HeartbeatData("c").to_json())
    assert body_of(request, HeartbeatData) is body_of(request, HeartbeatData)


@pytest.mark.parametrize("damage", [{"acks": {"b": 1}}, {"acks": [1, None, {"b": 5}]}, {"acks": 3}], ids=str)
def test_values_of_other_types_are_not_counted(damage: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        body_of(ask(RequestCode.BATCH_ACK_MESSAGE, dumps_fastjson(damage)), BatchAckMessageRequestBody)


def test_sizes_and_lists_in_the_header() -> None:
    limit = BROKER_REQUESTS[RequestCode.GET_CONSUME_STATS]
    limit.check(ask(RequestCode.GET_CONSUME_STATS, b"", topicList=";".join("t" * 1_000)), 2_000)
    with pytest.raises(ProtocolError, match=r"GET_CONSUME_STATS \(208\) has 1,001 entries in topicList, at most 1,000"):
        limit.check(ask(RequestCode.GET_CONSUME_STATS, b"", topicList=";".join("t" * 1_001)), 2_000)
    with pytest.raises(ProtocolError, match="a header of 262,145 bytes, at most 262,144"):
        limit.check(ask(RequestCode.GET_CONSUME_STATS, b""), 262_145)
    with pytest.raises(ProtocolError, match="a body of 4,097 bytes, at most 4,096"):
        limit.check(ask(RequestCode.GET_CONSUME_STATS, b"x" * 4_097), 5_000)
