"""The recorded frames of Apache RocketMQ 4.9.8: each decodes to its index entry and encodes to equal bytes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody, HeartbeatData
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.bodies.route import ClusterInfo, TopicList, TopicRouteData
from spark_rocket.protocol.wire.bodies.stats import ConsumeStats, GroupList, TopicStatsTable
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType
from spark_rocket.protocol.wire.frame import FrameSplitter
from spark_rocket.protocol.wire.headers.base import Header
from spark_rocket.protocol.wire.headers.messages import QueryMessageResponseHeader
from spark_rocket.protocol.wire.headers.namesrv import WipeWritePermOfBrokerResponseHeader
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader, SendMessageResponseHeader
from spark_rocket.protocol.wire.headers.pull import (
    GetMaxOffsetResponseHeader,
    PullMessageResponseHeader,
    SearchOffsetResponseHeader,
)
from spark_rocket.protocol.wire.json import loads_tolerant
from tests.golden import GoldenFrame, frame, frames
from tests.protocol.wire_classes import decode_request_header

ALL = [pytest.param(one, id=one.name) for one in frames()]
REQUESTS = [pytest.param(one, id=one.name) for one in frames() if one.is_request]

# Fields that no typed header has: they belong to every request, or to its signature.
UNTYPED = {"bname", "ReqT", "AccessKey", "Signature", "_UNIQUE_KEY_QUERY"}

REQUEST_BODIES: dict[int, type[Body]] = {
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
}
RESPONSE_BODIES: dict[int, type[Body]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupResponseBody,
    RequestCode.LOCK_BATCH_MQ: LockBatchResponseBody,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_TOPIC_STATS_INFO: TopicStatsTable,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
}
RESPONSE_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponseHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponseHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponseHeader,
    RequestCode.PULL_MESSAGE: PullMessageResponseHeader,
    RequestCode.GET_MAX_OFFSET: GetMaxOffsetResponseHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetResponseHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageResponseHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermOfBrokerResponseHeader,
}


def decode(golden: GoldenFrame) -> RemotingCommand:
    (whole,) = FrameSplitter().feed(golden.raw)
    return RemotingCommand.decode(whole)


def test_there_are_283_of_both_kinds() -> None:
    kinds = [one.index["serialize"] for one in frames()]
    assert (len(kinds), kinds.count("JSON"), kinds.count("ROCKETMQ")) == (283, 216, 67)


@pytest.mark.parametrize("golden", ALL)
def test_decodes_to_the_header_of_the_index(golden: GoldenFrame) -> None:
    command = decode(golden)
    header = golden.header
    assert command.serialize_type.name == golden.index["serialize"]
    assert command.language == LanguageCode.JAVA
    assert {name: getattr(command, name) for name in ("code", "version", "opaque", "flag")} == {
        name: header[name] for name in ("code", "version", "opaque", "flag")
    }
    assert command.remark == header.get("remark")
    assert command.ext_fields == header.get("extFields", {})
    assert len(command.body) == golden.index["bodyLength"]
    assert command.is_response is not golden.is_request
    assert command.is_oneway is golden.index["oneway"]


@pytest.mark.parametrize("golden", ALL)
def test_encodes_to_an_equal_value(golden: GoldenFrame) -> None:
    command = decode(golden)
    raw = command.encode()
    (again,) = FrameSplitter().feed(raw)
    assert RemotingCommand.decode(again) == command
    assert command.encode_head() + bytes(command.body) == raw
    if command.serialize_type is SerializeType.ROCKETMQ:  # this spelling has no freedom
        assert raw == golden.raw


@pytest.mark.parametrize("golden", REQUESTS)
def test_request_headers_keep_every_field(golden: GoldenFrame) -> None:
    command = decode(golden)
    header = decode_request_header(command)
    if header is None:
        assert set(command.ext_fields) <= UNTYPED
        return
    letters = isinstance(header, SendMessageRequestHeader) and command.code != RequestCode.SEND_MESSAGE
    again = header.to_ext_v2() if letters else header.to_ext()  # type: ignore[attr-defined]
    kept = {name: value for name, value in command.ext_fields.items() if name in again or name not in UNTYPED}
    assert {name: again.get(name) for name in kept} == kept


def test_response_headers_keep_every_field() -> None:
    seen = set()
    for golden in frames():
        kind = RESPONSE_HEADERS.get(golden.request_code)
        command = decode(golden)
        if golden.is_request or kind is None or not command.ext_fields:
            continue
        seen.add(kind)
        again = kind.from_ext(command.ext_fields).to_ext()
        assert {**command.ext_fields, **again} == command.ext_fields, golden.name
        assert set(command.ext_fields) - set(again) <= {"MSG_REGION", "TRACE_ON"}, golden.name
    assert seen == set(RESPONSE_HEADERS.values())


def is_part(part: Any, whole: Any) -> bool:
    """Whether every field of ``part`` is in ``whole`` with the same value, at any depth."""
    if isinstance(part, dict):
        return all(name in whole and is_part(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_part, part, whole))
    return bool(part == whole)


def test_json_bodies_keep_every_field() -> None:
    seen = set()
    for golden in frames():
        kinds = REQUEST_BODIES if golden.is_request else RESPONSE_BODIES
        kind = kinds.get(golden.request_code)
        command = decode(golden)
        if kind is None or not command.body:
            continue
        seen.add(kind)
        body = kind.from_json(command.body)
        assert is_part(loads_tolerant(command.body), loads_tolerant(body.to_json())), golden.name
        assert kind.from_json(body.to_json()) == body, golden.name
        if kind not in (TopicStatsTable, ConsumeStats):  # their keys are objects, which standard JSON cannot say
            assert kind.from_json(body.to_json(standard=True)) == body, golden.name
    assert seen == {*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()}


def test_route_of_a_broker() -> None:
    route = TopicRouteData.from_json(decode(frame("json-0007-ns-code105-response")).body)
    assert route.broker_datas[0].master_addr == "127.0.0.2:10911"
    assert (route.queue_datas[0].broker_name, route.queue_datas[0].read_queue_nums) == ("broker-a", 4)
    assert route.queue_datas[0].readable
    assert route.queue_datas[0].writable


def test_batch_request_holds_its_messages() -> None:
    messages = decode_batch_body(decode(frame("json-0013-br-code320-request")).body)
    assert [bytes(body) for _, body, _ in messages] == [b"batch 1 item 0"]
    many = decode_batch_body(decode(frame("json-0014-br-code320-request")).body)
    assert len(many) > 1


def test_pull_answers_are_runs_of_records() -> None:
    messages = decode_messages(decode(frame("json-0028-br-code11-response")).body, "broker-a")
    assert [message.queue_offset for message in messages] == list(range(len(messages)))
    assert messages[0].body == b"golden A body 0"
    assert messages[0].broker_name == "broker-a"
    assert messages[0].tags == "TagA"
