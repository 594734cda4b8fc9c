"""Administration over the wire: settings, statistics, queries."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.processors import query as query_processor
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.config import CreateTopicListRequestBody, TopicConfig
from spark_rocket.protocol.wire.bodies.consume_queue import QueryConsumeQueueResponseBody
from spark_rocket.protocol.wire.bodies.route import TopicList
from spark_rocket.protocol.wire.bodies.stats import (
    ConsumeStats,
    GroupList,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store.index.index_service import IndexService
from tests.broker.wire import Wire, bodies_of, messages_of, request_of, subscribed
from tests.kit.brokers import served
from tests.kit.clock import Clock
from tests.remoting.conftest import RawClient

pytestmark = pytest.mark.live

# --- settings and state ----------------------------------------------------------------------------------------------


def test_settings_are_shown_and_changed(wire: Wire) -> None:
    assert {"brokerName": "broker-a", "traceOn": "true", "flushDiskType": "ASYNC_FLUSH"}.items() <= wire.shown().items()
    with wire.settings(traceOn=False, flushDelayOffsetInterval=10_000):
        assert {"traceOn": "false", "flushDelayOffsetInterval": "10000"}.items() <= wire.shown().items()
    assert wire.shown()["traceOn"] == "true"


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (b"listenPort=1", "'listenPort' cannot be changed while the broker runs."),
        (b"traceOn=perhaps", "traceOn needs true or false"),
        (b"\xff=1", "not valid UTF-8"),
    ],
)
def test_an_invalid_setting(wire: Wire, text: bytes, remark: str) -> None:
    answer = wire.ask(RequestCode.UPDATE_BROKER_CONFIG, text)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


def test_no_answer_and_no_log_has_a_secret_setting(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for text in (
        b"traceOn=true\naclSecret=hunter2",
        b"innerClientAuthenticationCredential={'secretKey': 'hunter2'}",
        b'innerClientAuthenticationCredentials={"accessKey": "a", "secretKey": "hunter2"}',
    ):
        answer = wire.ask(RequestCode.UPDATE_BROKER_CONFIG, text)
        assert "hunter2" not in (answer.remark or "")
    assert b"hunter2" not in bytes(wire.ask(RequestCode.GET_BROKER_CONFIG).body)
    assert "hunter2" not in caplog.text
    assert "traceOn=true aclSecret=******" in caplog.text


def test_settings_that_mqadmin_needs(wire: Wire) -> None:
    """Its exportConfigs puts each of these into Properties, which reject null."""
    assert wire.shown().keys() >= {
        *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums"),
        *("flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"),
        *("traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
    }


# Of prepareRuntimeInfo and what it calls, in 5.3.3.
KEYS_OF_5_3_3 = """
    bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal
    putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax putTps getFoundTps
    getMissTps getTotalTps getTransferredTps putLatency99 putLatency999
    commitLogDiskRatio consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset commitLogDirCapacity
    brokerActive brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning msgPutTotalTodayMorning
    msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow dispatchBehindBytes
    pageCacheLockTimeMills earliestMessageTimeStamp startAcceptSendRequestTimeStamp
    timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
    remainTransientStoreBufferNumbs remainHowManyDataToFlush
    sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueSize pullThreadPoolQueueCapacity
    litePullThreadPoolQueueSize litePullThreadPoolQueueCapacity queryThreadPoolQueueSize
    queryThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize
    EndTransactionThreadPoolQueueCapacity
""".split()  # noqa: SIM905 (eighty lines of quotes)


def test_runtime_info_has_every_key_of_5_3_3(wire: Wire, parts: BrokerParts, topic: str) -> None:
    before = wire.runtime()
    wire.send(topic, b"x", i="a\x01b\0")  # no property has a NUL
    wire.send(topic, b"x")
    wire.pull(topic, 0)
    sampled: Future[None] = Future()
    parts.loop.call_soon_threadsafe(lambda: sampled.set_result(parts.sample()))
    sampled.result(30)
    table = wire.runtime()
    assert set(KEYS_OF_5_3_3) <= set(table)
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert int(table["putMessageTimesTotal"]) >= 1
    assert int(table["commitLogMaxOffset"]) > 0
    assert len(table["putTps"].split()) == 3
    assert float(table["putMessageAverageSize"]) > 0
    assert int(table["msgPutTotalTodayNow"]) >= int(table["msgPutTotalTodayMorning"])
    assert table["dispatchBehindBytes"] == "0"
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert int(table["putMessageFailedTimes"]) == int(before["putMessageFailedTimes"]) + 1
    classes = dict(piece.rsplit(":", 1) for piece in table["putMessageDistributeTime"].split())
    assert len(classes) == 13
    assert {"[<=0ms]", "[500ms~1s]", "[10s~]"} <= set(classes)
    assert sum(map(int, classes.values())) >= 1
    assert int(table["putMessageEntireTimeMax"]) >= float(table["putLatency999"]) >= float(table["putLatency99"]) >= 0
    assert table["remainHowManyDataToFlush"].split()[1] in ("B", "KiB", "MiB")
    assert table["sendThreadPoolQueueCapacity"] == "10000"
    assert table["EndTransactionThreadPoolQueueCapacity"] == "100000"
    assert float(table["getTotalTps"].split()[1]) >= float(table["getFoundTps"].split()[1]) > 0
    assert (table["timerOffsetBehind"], table["timerCongestNum"], table["timerDequeueTps"]) == ("0", "0", "0.0")


@pytest.mark.parametrize("code", [22, 23, 200056, 9999, 0, 100])
def test_unsupported_requests_get_code_3(wire: Wire, code: int) -> None:
    answer = wire.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark


# --- progress --------------------------------------------------------------------------------------------------------


def test_statistics_of_a_topic(wire: Wire, topic: str) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x")] * 5, queue_id=1)
    table = wire.read(TopicStatsTable, RequestCode.GET_TOPIC_STATS_INFO, topic=topic).offset_table
    assert {queue.queue_id for queue in table} == {0, 1, 2, 3}
    row = table[MessageQueue(topic, "broker-a", 1)]
    assert (row.min_offset, row.max_offset) == (0, 5)
    assert row.last_update_timestamp == wire.messages(topic, queue_id=1)[-1].store_timestamp
    assert table[MessageQueue(topic, "broker-a", 0)].last_update_timestamp == 0
    assert wire.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="NoSuchTopic").code == ResponseCode.TOPIC_NOT_EXIST


def test_lag_of_a_group(wire: Wire, topic: str, group: str) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x")] * 5, queue_id=1)
    wire.pull(topic, 0, consumerGroup=group, queue_id=1, maxMsgNums=3)
    wire.commit(group, topic, 2, 1)
    for fields in ({}, {"topic": topic}, {"topicList": f"Other;{topic}"}):
        stats = wire.read(ConsumeStats, RequestCode.GET_CONSUME_STATS, consumerGroup=group, **fields)
        row = stats.offset_table[MessageQueue(topic, "broker-a", 1)]
        assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (5, 2, 3)
        assert row.last_timestamp > 0


def test_how_fast_a_group_consumes(tmp_path: Path, clock: Clock, topic: str, group: str) -> None:
    """Over the last minute, in samples of ten seconds. The test does not wait for them."""
    with served(tmp_path, clock) as (server, wire):

        def tps() -> float:
            return wire.read(ConsumeStats, RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic).consume_tps

        stats = server.broker.parts.stats
        wire.send_batch(topic, [Message.of(topic, b"x")] * 30)
        wire.pull(topic, 0, consumerGroup=group, maxMsgNums=30)
        wire.pull(topic, 30, consumerGroup=group)  # nothing
        wire.pull(topic, 0, consumerGroup="another", maxMsgNums=10)
        assert tps() == 0
        for samples in range(1, 7):
            stats.sample()
            assert tps() == 30 / (10 * samples)
        wire.pull(topic, 0, consumerGroup=group, maxMsgNums=6)
        stats.sample()
        assert tps() == 6 / 60, "the first ones are more than a minute ago"
        assert stats.gets == 46


def test_groups_and_topics_of_consumers(wire: Wire, topic: str, group: str) -> None:
    wire.create_group(group)
    wire.commit(group, topic, 2, 1)
    groups = wire.read(GroupList, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
    assert groups.group_list == [group]
    topics = wire.read(TopicList, RequestCode.QUERY_TOPICS_BY_CONSUMER, group=group)
    assert topics.topic_list == [topic]


def test_what_a_group_subscribes_to(wire: Wire, topic: str, group: str) -> None:
    kind, code = QuerySubscriptionResponseBody, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    assert wire.read(kind, code, group=group, topic=topic) == QuerySubscriptionResponseBody(group, topic)
    wire.beat(subscribed(group, topic, "a || b", 7))
    wanted = QuerySubscriptionResponseBody(group, topic, SubscriptionData.build(topic, "a || b", 7))
    assert wire.read(kind, code, group=group, topic=topic) == wanted


def test_the_time_span_of_a_consumer(wire: Wire, topic: str, group: str) -> None:
    wire.send(topic)
    body = bytes(wire.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic=topic, group=group).body)
    spans = QueryConsumeTimeSpanBody.from_json(body).consume_time_span_set
    assert len(spans) == 4
    assert spans[0].max_time_stamp == wire.messages(topic)[0].store_timestamp


# --- queries ---------------------------------------------------------------------------------------------------------


def test_a_message_by_its_offset_id(wire: Wire, topic: str) -> None:
    message_id = wire.send(topic, b"me").ext_fields["msgId"]
    _, physical = decode_offset_msg_id(message_id)
    answer = wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=physical)
    assert bodies_of(answer) == [b"me"]
    for wrong in (physical + 1, 1 << 60, -1):
        answer = wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=wrong)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"can not find message by the offset, {wrong}" in (answer.remark or "")


def test_messages_by_key_and_by_unique_key(wire: Wire, topic: str) -> None:
    for number in range(5):
        properties = {"KEYS": f"all key-{number}", "UNIQ_KEY": f"U{number}"}
        wire.send(topic, b"%d" % number, properties, queue_id=number % 4)

    def query(key: str, **more: object) -> tuple[int, set[bytes]]:
        answer = wire.query(topic, key, **more)
        assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} <= set(answer.ext_fields)
        return answer.code, set(bodies_of(answer))

    assert query("key-3") == (0, {b"3"})
    assert query("all") == (0, {b"0", b"1", b"2", b"3", b"4"})
    assert len(query("all", maxNum=2)[1]) == 2
    assert query("U2", _UNIQUE_KEY_QUERY=True) == (0, {b"2"})
    assert query("unknown") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert query("key-3", endTimestamp=1) == (ResponseCode.QUERY_NOT_FOUND, set())


def test_a_query_finds_as_many_messages_as_apaches(wire: Wire, topic: str) -> None:
    wire.send_batch(topic, [Message.of(topic, b"%d" % number, keys="all") for number in range(80)])
    wire.send_batch(topic, [Message.of(topic, b"x", properties={"UNIQ_KEY": "same"}) for _ in range(40)])

    def counts() -> tuple[int, int]:
        keys = wire.query(topic, "all", maxNum=1_000), wire.query(topic, "same", maxNum=1_000, _UNIQUE_KEY_QUERY=True)
        return len(messages_of(keys[0])), len(messages_of(keys[1]))

    assert counts() == (64, 32)
    with wire.settings(maxMsgsNumBatch=70, defaultQueryMaxNum=35):
        assert counts() == (70, 35)


def test_a_query_waits_for_the_index_beside_the_loop(wire: Wire, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests are served meanwhile. A query that waits too long gets the current contents of the index."""
    go_on = threading.Event()
    step = IndexService._step

    def slow(service: IndexService, *args: int) -> bool:
        assert threading.current_thread().name == "store-index"
        return go_on.wait(60) and step(service, *args)

    monkeypatch.setattr(IndexService, "_step", slow)
    wire.send(topic, b"just now", {"KEYS": "now"})
    fields = {"topic": topic, "key": "now", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}

    def query(patience: float) -> Future[RemotingCommand]:
        monkeypatch.setattr(query_processor, "_INDEX_TIMEOUT_S", patience)
        return wire.ask_later(RequestCode.QUERY_MESSAGE, **fields)

    assert query(0.01).result(60).code == ResponseCode.QUERY_NOT_FOUND
    waiting = query(60)
    for number in range(20):
        wire.send(topic, b"%d" % number)
        assert not waiting.done()
    go_on.set()
    answer = waiting.result(60)
    assert bodies_of(answer) == [b"just now"]


def entries(wire: Wire, topic: str, **fields: object) -> QueryConsumeQueueResponseBody:
    asked = {"topic": topic, "queueId": 0, "index": 0, "count": 9, **fields}
    return wire.read(QueryConsumeQueueResponseBody, RequestCode.QUERY_CONSUME_QUEUE, **asked)


def test_entries_of_a_consume_queue(wire: Wire, topic: str) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x", tags="t")] * 5)
    body = entries(wire, topic, index=1, count=3, consumerGroup="g")
    stored = wire.messages(topic)
    assert (body.min_queue_index, body.max_queue_index) == (0, 5)
    assert [row.physic_offset for row in body.queue_data] == [message.physical_offset for message in stored[1:4]]
    assert [row.tags_code for row in body.queue_data] == [ord("t")] * 3
    assert (body.subscription_data, body.filter_data) == (None, f"g@{topic} is not online!")
    assert not any(row.eval or row.bit_map or row.extend_data_json for row in body.queue_data)
    behind = wire.ask(RequestCode.QUERY_CONSUME_QUEUE, topic=topic, queueId=0, index=5, count=3)
    assert (behind.code, behind.remark) == (0, f"Index 5 of 0@{topic} is not exist!")
    found = QueryConsumeQueueResponseBody.from_json(bytes(behind.body))
    assert (found.queue_data, found.filter_data, found.max_queue_index) == ([], None, 5)


@pytest.mark.parametrize(
    ("expression", "kind", "wanted"),
    [("b || c", "TAG", [1, 2]), ("*", "TAG", [0, 1, 2]), ("n > 0 AND TAGS <> 'c'", "SQL92", [1]), ("n >", "SQL92", [])],
)
def test_entries_that_a_group_wants(
    wire: Wire, topic: str, group: str, expression: str, kind: str, wanted: list[int]
) -> None:
    for number, tag in enumerate("abc"):
        wire.send(topic, b"x", {"TAGS": tag, "n": str(number)})
    wire.beat(subscribed(group, topic, expression, 7, kind))
    body = entries(wire, topic, consumerGroup=group)
    assert [row.eval for row in body.queue_data] == [number in wanted for number in range(3)]
    assert body.subscription_data == SubscriptionData.build(topic, expression, 7, kind)
    filter_data = json.loads(body.filter_data or "")
    if kind == "TAG":
        assert filter_data is None
    else:
        assert {"expression": expression, "consumerGroup": group, "dead": False}.items() <= filter_data.items()


def test_one_way_administration_is_carried_out_and_never_answered(wire: Wire) -> None:
    fields: dict[str, Any] = {"defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    fields |= {"order": False, "topicFilterType": "SINGLE_TAG"}
    listed = CreateTopicListRequestBody([TopicConfig("OneWay-2", 1, 1)]).to_json()
    commands = [
        request_of(RequestCode.UPDATE_AND_CREATE_TOPIC, oneway=True, topic="OneWay-1", **fields),
        request_of(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, listed, oneway=True),
        request_of(RequestCode.DELETE_TOPIC_IN_BROKER, oneway=True, topic="OneWay-1"),
        request_of(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="OneWay-3", **fields),
    ]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    client = RawClient(wire.address)
    client.send(*commands)
    assert client.receive().opaque == 3
    client.close()
    assert [wire.topic_config(f"OneWay-{number}") is not None for number in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"topicSysFlag": 1 << 40}, "Invalid topicSysFlag 1099511627776: use a 32-bit integer."),
        ({"topicFilterType": "BOGUS"}, "Invalid topicFilterType of topic Unreadable: use SINGLE_TAG or MULTI_TAG."),
    ],
)
def test_a_topic_that_apache_cannot_read_is_refused(wire: Wire, change: dict[str, object], remark: str) -> None:
    topic = {"topicName": "Unreadable", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, **change}
    answer = wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": [topic]}).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert remark in (answer.remark or "")
    assert wire.topic_config("Unreadable") is None


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"retryQueueNums": -5}, "Invalid retryQueueNums -5: use 0 to 65536."),
        ({"retryQueueNums": 1_000_000}, "Invalid retryQueueNums 1000000: use 0 to 65536."),
        ({"retryMaxTimes": 1 << 40}, "Invalid retryMaxTimes 1099511627776: use a 32-bit integer."),
        ({"groupSysFlag": -(1 << 31) - 1}, "groupSysFlag"),
        ({"consumeTimeoutMinute": 1 << 31}, "consumeTimeoutMinute"),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED", "x": json.loads("[" * 200 + "]" * 200)}}, "nested deeper"),
        ({"groupRetryPolicy": {"type": "LINEAR"}}, "Invalid type of groupRetryPolicy: use EXPONENTIAL or CUSTOMIZED."),
        ({"groupRetryPolicy": [1]}, "Invalid type of groupRetryPolicy"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_group_that_cannot_be_stored_is_refused(
    wire: Wire, group: str, change: dict[str, object], remark: str, listed: bool
) -> None:
    value = {"groupName": group, **change}
    if listed:
        answer = wire.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, json.dumps({"groupConfigList": [value]}).encode()
        )
    else:
        answer = wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(value).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert remark in (answer.remark or "")
    found = wire.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
    assert found.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_of_many_queues_those_with_messages_are_reported(wire: Wire, group: str) -> None:
    assert wire.create_topic("Wide", readQueueNums=65_536, writeQueueNums=65_536).code == 0
    for queue_id in (3, 65_535):
        wire.send("Wide", queue_id=queue_id)
    wire.create_group(group)
    wire.commit(group, "Wide", 1, 3)
    stats = wire.read(TopicStatsTable, RequestCode.GET_TOPIC_STATS_INFO, topic="Wide")
    lag = wire.read(ConsumeStats, RequestCode.GET_CONSUME_STATS, consumerGroup=group)
    span = wire.read(QueryConsumeTimeSpanBody, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Wide", group=group)
    assert {queue.queue_id: row.max_offset for queue, row in stats.offset_table.items()} == {3: 1, 65_535: 1}
    assert sorted(queue.queue_id for queue in lag.offset_table) == [3, 65_535]
    assert lag.total_lag == 1
    assert len(span.consume_time_span_set) == 2
