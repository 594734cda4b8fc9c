"""Typed bodies: every class by its dataclass fields, then those with rules of their own."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueAssignment,
    QueryAssignmentResponseBody,
)
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from spark_rocket.protocol.wire.bodies.config import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from spark_rocket.protocol.wire.bodies.consumer import (
    CR_LATER,
    PROP_CONSUME_TYPE,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerStatusBody,
    MessageQueueForC,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo, KVTable, QueueData, TopicRouteData
from spark_rocket.protocol.wire.bodies.stats import ConsumeStats, OffsetWrapper, TopicOffset, TopicStatsTable
from tests.protocol.wire_classes import BODIES

QUEUE = MessageQueue("t", "b", 1)

# Value, its JSON as fastjson writes it
TABLE: list[tuple[Body, str]] = [
    (DataVersion(1, 2, 3), '{"counter":3,"stateVersion":1,"timestamp":2}'),
    (
        TopicRouteData(
            queue_datas=[QueueData("b", 4, 4, 6)], broker_datas=[BrokerData("c", "b", {0: "h:1", 1: "h:2"})]
        ),
        '{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"c"}],"filterServerTable":{},'
        '"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfo({"b": BrokerData("c", "b", {0: "h:1"})}, {"c": ["b"]}),
        '{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}},'
        '"clusterAddrTable":{"c":["b"]}}',
    ),
    (
        HeartbeatData("id", [ProducerData("p")], [ConsumerData("g", subscription_data_set=[SubscriptionData("t")])]),
        '{"clientID":"id","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
        '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":0,"tagsSet":[],'
        '"topic":"t"}],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"p"}],'
        '"withoutSub":false}',
    ),
    (GetConsumerListByGroupResponseBody(["a", "b"]), '{"consumerIdList":["a","b"]}'),
    (KVTable({"a": "é"}), '{"table":{"a":"é"}}'),
    (LockBatchResponseBody([QUEUE]), '{"lockOKMQSet":[{"brokerName":"b","queueId":1,"topic":"t"}]}'),
    (
        LockBatchRequestBody("g", "c", False, [QUEUE]),
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"t"}],"onlyThisBroker":false}',
    ),
    (
        TopicStatsTable({QUEUE: TopicOffset(1, 2, 3)}),
        '{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}',
    ),
    (
        ConsumeStats({QUEUE: OffsetWrapper(9, 4)}, 0.5),
        '{"consumeTps":0.5,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:'
        '{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":0}}}',
    ),
    (ResetOffsetBody({QUEUE: 5}), '{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:5}}'),
    (
        ResetOffsetBodyForC([MessageQueueForC("t", "b", 1, 5)]),
        '{"offsetTable":[{"brokerName":"b","offset":5,"queueId":1,"topic":"t"}]}',
    ),
    (
        GetConsumerStatusBody(consumer_table={"c": {QUEUE: 5}}),
        '{"consumerTable":{"c":{{"brokerName":"b","queueId":1,"topic":"t"}:5}},"messageQueueTable":{}}',
    ),
    (
        ConsumerRunningInfo(
            {PROP_CONSUME_TYPE: "CONSUME_PASSIVELY"},
            [],
            {QUEUE: ProcessQueueInfo(commit_offset=7, dropped=True)},
            {QUEUE: PopProcessQueueInfo(1)},
            {"t": ConsumeStatus(consume_ok_tps=1.5)},
        ),
        '{"mqPopTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"droped":false,"lastPopTimestamp":0,"waitAckCount":1}},'
        '"mqTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"cachedMsgCount":0,"cachedMsgMaxOffset":0,'
        '"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":7,"droped":true,"lastConsumeTimestamp":0,'
        '"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        '"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
        '"statusTable":{"t":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.5,"consumeRT":0.0,'
        '"pullRT":0.0,"pullTPS":0.0}},"subscriptionSet":[],"userConsumerInfo":{}}',
    ),
    (
        ConsumeMessageDirectlyResult(consume_result=CR_LATER, remark="r", spent_time_mills=3),
        '{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"remark":"r","spentTimeMills":3}',
    ),
    (ConsumerOffsetSerializeWrapper({"t@g": {0: 1, 1: 2}}), '{"offsetTable":{"t@g":{0:1,1:2}}}'),
    (
        QueryAssignmentResponseBody([MessageQueueAssignment(QUEUE)]),
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":1,"topic":"t"},"mode":"PULL"}]}',
    ),
]
CASES = pytest.mark.parametrize(("body", "text"), [pytest.param(*row, id=type(row[0]).__name__) for row in TABLE])


@CASES
def test_write(body: Body, text: str) -> None:
    assert body.to_json().decode() == text


@CASES
def test_read(body: Body, text: str) -> None:
    for data in (text, text.encode(), memoryview(text.encode()), body.to_json(pretty=True)):
        assert type(body).from_json(data) == body


@CASES
def test_every_truncation(body: Body, text: str) -> None:
    for size in range(len(text)):
        with pytest.raises(ProtocolError):
            type(body).from_json(text[:size])


def test_standard_spelling_of_a_route() -> None:
    route = TABLE[1][0]
    raw = route.to_json(standard=True)
    assert b'"brokerAddrs":{"0":"h:1","1":"h:2"}' in raw
    assert TopicRouteData.from_json(raw) == route
    assert b"\\u00e9" in KVTable({"a": "é"}).to_json(standard=True)


@pytest.mark.parametrize("kind", BODIES)
def test_every_body_has_defaults_and_ignores_what_it_does_not_know(kind: type[Body]) -> None:
    empty = kind()
    nulls = dict.fromkeys(empty.to_value())
    assert kind.from_value({}) == kind.from_value({"unknown": [1]}) == kind.from_value(nulls) == empty
    assert kind.from_json(empty.to_json()) == empty


@pytest.mark.parametrize("text", ["", "[]", "5", "null", '"x"', "{", "\xff"])
def test_what_is_no_body(text: str) -> None:
    with pytest.raises(ProtocolError):
        TopicRouteData.from_json(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (QueueData, {"perm": "six"}),
        (QueueData, {"perm": True}),
        (QueueData, {"perm": 1 << 63}),
        (QueueData, {"perm": 1.5}),
        (QueueData, {"brokerName": []}),
        (TopicConfig, {"order": "maybe"}),
        (TopicConfig, {"order": 1}),
        (TopicRouteData, {"queueDatas": {}}),
        (TopicRouteData, {"queueDatas": ["x"]}),
        (BrokerData, {"brokerAddrs": []}),
        (BrokerData, {"brokerAddrs": {"x": "h:1"}}),
        (ConsumeStats, {"consumeTps": "x"}),
        (ConsumeStats, {"offsetTable": {"queue": {}}}),
        (LockBatchResponseBody, {"lockOKMQSet": [5]}),
        (LockBatchResponseBody, {"lockOKMQSet": [{"queueId": "x"}]}),
    ],
)
def test_fields_that_cannot_be_read(kind: type[Body], value: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        kind.from_value(value)


def test_what_java_casts_is_cast() -> None:
    assert QueueData.from_value({"perm": "6", "brokerName": 5}) == QueueData("5", perm=6)
    assert TopicConfig.from_value({"order": "TRUE"}).order is True
    assert KVTable.from_value({"table": {"a": True, "b": 1.5}}).table == {"a": "true", "b": "1.5"}
    assert ConsumeStats.from_value({"consumeTps": 2}).consume_tps == 2.0


def test_objects_of_no_type_are_kept() -> None:
    value = {"groupRetryPolicy": {"type": "CUSTOMIZED", "next": [1, None]}}
    assert SubscriptionGroupConfig.from_value(value).group_retry_policy == value["groupRetryPolicy"]


# --- rules of their own -------------------------------------------------------------------------------------------


def test_data_version_grows() -> None:
    assert DataVersion(5, 1, 7).next(99) == DataVersion(5, 99, 8)


def test_addresses_and_permissions() -> None:
    both = BrokerData("c", "b", {2: "slave", 0: "master"})
    assert (both.master_addr, both.select_addr()) == ("master", "master")
    assert (BrokerData(broker_addrs={2: "b", 1: "a"}).select_addr(), BrokerData().select_addr()) == ("a", None)
    assert BrokerData(broker_addrs={1: "a"}).master_addr is None
    assert (QueueData(perm=4).readable, QueueData(perm=4).writable) == (True, False)
    assert (QueueData(perm=2).readable, QueueData(perm=2).writable) == (False, True)


def test_lag() -> None:
    other = MessageQueue("t", "b", 2)
    assert ConsumeStats({QUEUE: OffsetWrapper(9, 4), other: OffsetWrapper(3, 3)}).total_lag == 5


REGISTRATION = RegisterBrokerBody(
    TopicConfigSerializeWrapper(
        {"T": TopicConfig("T", 1, 2, 4), "U": TopicConfig("U", attributes={"+message.type": "FIFO ORDER"})},
        DataVersion(1, 2, 3),
    ),
    ["127.0.0.1:30000"],
)


@pytest.mark.parametrize("compressed", [False, True])
def test_registrations(compressed: bool) -> None:
    raw = REGISTRATION.encode(compressed=compressed)
    assert RegisterBrokerBody.decode(raw, compressed=compressed) == REGISTRATION
    assert RegisterBrokerBody.decode(memoryview(raw), compressed=compressed) == REGISTRATION
    for size in range(len(raw)):
        with pytest.raises(ProtocolError):
            RegisterBrokerBody.decode(raw[:size], compressed=compressed)


def packed(*pieces: bytes | int) -> bytes:
    """A compressed registration of numbers and sized records."""
    return zlib.compress(
        b"".join(
            struct.pack(">i", piece) if isinstance(piece, int) else struct.pack(">i", len(piece)) + piece
            for piece in pieces
        )
    )


def test_registrations_of_4x_have_no_mappings() -> None:
    raw = packed(b'{"counter":1,"timestamp":2}', 1, b"T 8 8 6 SINGLE_TAG", b"[]")
    body = RegisterBrokerBody.decode(raw, compressed=True)
    assert body.topic_config_serialize_wrapper.topic_config_table == {"T": TopicConfig("T", 8, 8)}
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(0, 2, 1)


def test_mappings_of_5x_are_skipped() -> None:
    raw = packed(b"{}", 0, b'["f"]', 1, b'{"topic":"x"}')
    assert RegisterBrokerBody.decode(raw, compressed=True) == RegisterBrokerBody(filter_server_list=["f"])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not zlib",
        packed(),
        packed(b"[]"),
        packed(b"{}"),
        packed(b"{}", 1),
        packed(b"{}", 1, -5),
        packed(b"{}", 1 << 30),
        packed(b"{}", 1, b"T 8 8"),
        packed(b"{}", 1, b"T x 8 6 SINGLE_TAG", b"[]"),
        packed(b"{}", 1, b"T 8 8 6 SINGLE_TAG {", b"[]"),
        packed(b"{}", 1, b"T 8 8 6 SINGLE_TAG []", b"[]"),
        packed(b"{}", 0),
        packed(b"{}", 0, b"{}"),
        packed(b"{}", 0, b"[[]]"),
        packed(b"{}", 0, b"nonsense"),
    ],
)
def test_what_is_no_compressed_registration(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        RegisterBrokerBody.decode(raw, compressed=True)


def test_a_registration_may_not_unpack_to_gigabytes() -> None:
    with pytest.raises(ProtocolError, match="exceeds 16,777,216 bytes"):
        RegisterBrokerBody.decode(zlib.compress(bytes(17 << 20), 1), compressed=True)


SLOW = b"{" + b"a:1," * 3_900_000 + b"a:1}"  # 16 KB when it is compressed, half a minute to read


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (packed(SLOW, 0, b"[]", 0), "at most 1,500,000 are allowed"),
        (packed(b"{}", 1, b"T 8 8 6 SINGLE_TAG " + SLOW, b"[]", 0), "at most 1,500,000 are allowed"),
        (packed(b"{}", 0, SLOW, 0), "at most 1,500,000 are allowed"),
        (packed(b"{}", 0, b"[" + b'"",' * 900_000 + b'""]', 0), "a record of"),
        (packed(b"{}", 0, b"[" + b'"",' * 1_000 + b'""]', 0), "1,001 filter servers"),
        (packed(b'{"counter":"' + b"1" * 300_000 + b'"}', 0, b"[]", 0), "a record of 300,014 bytes"),
        (packed(b"{}", 1, b"T 8 8 6 SINGLE_TAG " + b" " * 300_000, b"[]", 0), "a record of"),
        (packed(b"{}", 100_001, *[b"T 1 1 6 S"] * 100_001, b"[]", 0), "has 100,001 topics"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_compressed_registration_may_cost(raw: bytes, wanted: str) -> None:
    with pytest.raises(ProtocolError, match=wanted):
        RegisterBrokerBody.decode(raw, compressed=True)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (SLOW, "at most 1,500,000 are allowed"),
        (b"[" + b"[]," * 1_000_000 + b"0]", "at most 1,500,000 are allowed"),
        (b'{"filterServerList":[' + b'"",' * 1_000 + b'""]}', "1,001 filter servers"),
        (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
            + b",".join(b'"%d":{}' % number for number in range(100_001))
            + b"}}}",
            "has 100,001 topics",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_registration_may_cost(raw: bytes, wanted: str) -> None:
    with pytest.raises(ProtocolError, match=wanted):
        RegisterBrokerBody.decode(raw)


def test_a_registration_of_many_topics() -> None:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(5_000)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(0, 1, 2)))
    for compressed in (False, True):
        raw = body.encode(compressed=compressed)
        assert RegisterBrokerBody.decode(raw, compressed=compressed) == body
        assert not RegisterBrokerBody.is_short(raw, compressed=compressed, most=64 * 1024)
        assert RegisterBrokerBody.is_short(raw, compressed=compressed, most=1 << 20)
