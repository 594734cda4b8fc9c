"""Sends over a real socket: stored records, responses, and the codes of refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.broker.processors.send import message_ids
from spark_rocket.model import Message
from spark_rocket.protocol.ids import decode_offset_msg_id, encode_offset_msg_id
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import SerializeType
from spark_rocket.testing import LocalCluster
from tests.broker.wire import BROKER_PROPERTIES, Wire, request_of, send_fields
from tests.remoting.conftest import RawClient

pytestmark = pytest.mark.live

UNIQUE = "FD0000000000000000000000000000027B085FFD2B27679E2FA30000"
ADDED = "\x02".join(f"{name}\x01{value}" for name, value in BROKER_PROPERTIES.items())
JAVA_PROPERTIES = {"colour": "blue", "KEYS": "key-0", "UNIQ_KEY": UNIQUE, "WAIT": "true", "TAGS": "TagA", "n": "0"}


def test_a_message_is_stored_as_apache_stores_it(wire: Wire, topic: str, cluster: LocalCluster) -> None:
    answer = wire.send(topic, b"golden", JAVA_PROPERTIES, queue_id=2, h=7)
    assert answer.code == ResponseCode.SUCCESS
    host, physical = decode_offset_msg_id(answer.ext_fields["msgId"])
    assert f"{host[0]}:{host[1]}" == cluster.broker_address
    assert answer.ext_fields == {
        "msgId": encode_offset_msg_id(host, physical),
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": UNIQUE,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    (message,) = wire.messages(topic, queue_id=2)
    assert message.body == b"golden"
    assert message.flag == 7
    assert message.physical_offset == physical
    assert message.born_timestamp == 1_795_229_620_131
    assert message.properties == {**JAVA_PROPERTIES, **BROKER_PROPERTIES}


def test_code_10_is_310_with_long_names(wire: Wire, topic: str) -> None:
    fields = {"producerGroup": "g", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1}
    fields |= {"sysFlag": 0, "bornTimestamp": 5, "flag": 3, "properties": "TAGS\x01t"}
    answer = wire.ask(RequestCode.SEND_MESSAGE, b"ten", **fields)
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "1")
    (message,) = wire.messages(topic, queue_id=1)
    assert (message.body, message.flag, message.tags, message.born_timestamp) == (b"ten", 3, "t", 5)


def test_a_binary_header_is_answered_with_one(wire: Wire, topic: str) -> None:
    request = request_of(RequestCode.SEND_MESSAGE_V2, b"binary", **send_fields(topic))
    request.serialize_type = SerializeType.ROCKETMQ
    answer = wire.client.invoke(wire.address, request)
    assert (answer.code, answer.serialize_type) == (0, SerializeType.ROCKETMQ)
    assert wire.bodies(topic) == [b"binary"]


def test_a_unique_key_is_added_where_there_is_none(wire: Wire, topic: str) -> None:
    answers = [wire.send(topic, b"x", properties) for properties in ({}, {"XUNIQ_KEY": "no"}, {})]
    keys = [answer.ext_fields["transactionId"] for answer in answers]
    assert len(set(keys)) == 3
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in keys)
    assert [message.properties["UNIQ_KEY"] for message in wire.messages(topic)] == keys


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("WAIT\x01true", "WAIT\x01true\x02"),
        ("a\x01b\x02", "a\x01b\x02"),
        ("a\x01b\x02WAIT\x01true\x02", "a\x01b\x02WAIT\x01true\x02"),
        ("WAIT\x01false", "WAIT\x01false\x02"),
        ("CLUSTER\x01Other\x02a\x01b", "a\x01b\x02"),
        ("a\x01b\x02MSG_REGION\x01Other\x02TRACE_ON\x01false", "a\x01b\x02"),
        ("MY_CLUSTER\x01mine", "MY_CLUSTER\x01mine\x02"),
        ("POP_CK\x011 2 3\x02a\x01b", "a\x01b\x02"),
        ("DELAY\x010\x02a\x01b", "DELAY\x010\x02a\x01b\x02"),
        ("a\x01b\x01c", "a\x01b\x01c\x02"),  # a value with a separator is stored alone and beside any other property
        ("CLUSTER\x01Other\x02a\x01b\x01c", "a\x01b\x01c\x02"),
        ("POP_CK\x011 2 3\x02a\x01b\x01c", "a\x01b\x01c\x02"),
        ("DELAY\x010\x02a\x01b\x01c", "DELAY\x010\x02a\x01b\x01c\x02"),
    ],
)
def test_the_property_string(wire: Wire, topic: str, sent: str, stored: str) -> None:
    wire.send(topic, b"x", i=f"UNIQ_KEY\x01k\x02{sent}")
    raw = bytes(wire.pull(topic, 0).body)
    assert bytes(view_record(raw, 0).properties).decode() == f"UNIQ_KEY\x01k\x02{stored}{ADDED}"


def test_region_and_trace_switch_are_those_of_the_configuration(wire: Wire, topic: str) -> None:
    """Consumers of 5.x send no trace for a message without MSG_REGION, or with TRACE_ON=false."""
    with wire.settings(regionId="eu-1", traceOn=False):
        answer = wire.send(topic, b"x", {"UNIQ_KEY": "k", "MSG_REGION": "of another broker"})
        wire.send_batch(topic, [Message.of(topic, b"y")], i="MSG_REGION\x01of another broker\x02WAIT\x01true")
        refused = wire.configure(regionId="eu\x02TAGS\x01t")
        assert refused.code != ResponseCode.SUCCESS, "it would make properties of its own"
    assert (answer.ext_fields["MSG_REGION"], answer.ext_fields["TRACE_ON"]) == ("eu-1", "false")
    raw = bytes(wire.pull(topic, 0).body)
    assert (raw.count(b"MSG_REGION\x01"), raw.count(b"MSG_REGION\x01eu-1\x02TRACE_ON\x01false\x02")) == (2, 2)


def test_a_batch_is_stored_as_single_messages_in_order(wire: Wire, topic: str) -> None:
    wire.send(topic, b"before", queue_id=3)
    batch = [Message.of(topic, b"%d" % number, tags=f"t{number}", keys="k") for number in range(100)]
    answer = wire.send_batch(topic, batch, queue_id=3)
    assert (answer.code, answer.ext_fields["queueOffset"], answer.ext_fields["queueId"]) == (0, "1", "3")
    found = [message for offset in (1, 33, 65, 97) for message in wire.messages(topic, offset, queue_id=3)]
    assert [message.body for message in found] == [message.body for message in batch]
    assert [message.queue_offset for message in found] == list(range(1, 101))
    assert answer.ext_fields["msgId"].split(",") == [message.offset_msg_id for message in found]
    # The batch's own properties stand behind those of each message, as Apache has them.
    assert found[5].properties == {"TAGS": "t5", "KEYS": "k", "WAIT": "true", **BROKER_PROPERTIES}


def test_message_ids_of_a_batch() -> None:
    host = ("127.0.0.1", 10911)
    offsets = [0, 117, 2**40, 2**62]
    prefix = encode_offset_msg_id(host, 0)[:-16]
    assert message_ids(prefix, offsets).split(",") == [encode_offset_msg_id(host, offset) for offset in offsets]


def test_a_negative_queue_id_lets_the_broker_choose(wire: Wire, topic: str) -> None:
    chosen = {int(wire.send(topic, queue_id=-1).ext_fields["queueId"]) for _ in range(50)}
    assert chosen == {0, 1, 2, 3}


def test_a_oneway_message_is_stored_and_not_answered(wire: Wire, topic: str) -> None:
    later = wire.hold(topic, 0)
    wire.tell(RequestCode.SEND_MESSAGE_V2, b"oneway", **send_fields(topic))
    assert later.result(20).code == ResponseCode.SUCCESS


REFUSED = [
    ({"b": "%bad name"}, {}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
    ({"b": ""}, {}, ResponseCode.INVALID_PARAMETER, "blank"),
    ({"b": "x" * 128}, {}, ResponseCode.INVALID_PARAMETER, "longer than topic max length"),
    ({"b": "SCHEDULE_TOPIC_XXXX"}, {}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, {}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "Unknown-1", "c": "NoDefault"}, {}, ResponseCode.TOPIC_NOT_EXIST, "topic[Unknown-1] not exist"),
    ({"b": "Unknown-2", "c": "BenchmarkTest"}, {}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ({"e": 4}, {}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
    ({"b": "rmq_sys_wheel_timer"}, {}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({}, {"DELAY": "three"}, ResponseCode.MESSAGE_ILLEGAL, "property DELAY 'three': use the number of a delay level"),
    ({}, {"TIMER_DELIVER_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL, "invalid property TIMER_DELIVER_MS 'soon'"),
    ({}, {"TIMER_DELAY_SEC": "259201"}, ResponseCode.MESSAGE_ILLEGAL, "bigger than the max delay 259200000ms"),
    ({}, {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "k"}, ResponseCode.MESSAGE_ILLEGAL, "timer message illegal"),
    ({"f": 4}, {}, ResponseCode.MESSAGE_ILLEGAL, "the sysFlag of a transaction"),
    ({"f": 8}, {"TRAN_MSG": "false"}, ResponseCode.MESSAGE_ILLEGAL, "the sysFlag of a transaction"),
    ({"f": 0x80}, {}, ResponseCode.MESSAGE_ILLEGAL, "inner batches"),
    ({}, {"k": "v" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "propert"),
    ({"h": 2**31}, {}, ResponseCode.SYSTEM_ERROR, "out-of-range number"),
    ({"f": 2**31}, {}, ResponseCode.SYSTEM_ERROR, "out-of-range number"),
    ({"g": 2**63}, {}, ResponseCode.SYSTEM_ERROR, "out-of-range number"),
    ({"j": -(2**31) - 1}, {}, ResponseCode.SYSTEM_ERROR, "out-of-range number"),
    ({"e": "zero"}, {}, ResponseCode.SYSTEM_ERROR, "number"),
]


@pytest.mark.parametrize(("fields", "properties", "code", "remark"), REFUSED)
def test_refused_messages_are_not_stored(
    wire: Wire, topic: str, fields: dict[str, Any], properties: dict[str, str], code: int, remark: str
) -> None:
    answer = wire.send(topic, b"no", properties, **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert wire.end(topic) == 0
    assert wire.send(topic, b"yes").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("missing", list("bcdefgh"))
def test_a_missing_field_is_named(wire: Wire, missing: str) -> None:
    fields = send_fields("T")
    del fields[missing]
    answer = wire.ask(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert re.search("the custom field <[a-zA-Z]+> of the send request is missing", answer.remark or "")


def test_a_message_above_the_limit(wire: Wire, topic: str) -> None:
    limit = 4 * 1024 * 1024
    assert wire.send(topic, b"x" * limit).code == ResponseCode.SUCCESS
    answer = wire.send(topic, b"x" * (limit + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"msg body length limit {limit}B" in (answer.remark or "")
    # One message is always served, however large.
    assert len(wire.messages(topic)[0].body) == limit


@pytest.mark.parametrize(
    "properties", [{"DELAY": "1"}, {"TIMER_DELIVER_MS": "1"}, {"TIMER_DELAY_SEC": "1"}, {"TRAN_MSG": "true"}]
)
def test_a_batch_with_one_such_message_is_refused(wire: Wire, topic: str, properties: dict[str, str]) -> None:
    batch = [Message.of(topic, b"a"), Message.of(topic, b"b", properties=properties), Message.of(topic, b"c")]
    assert wire.send_batch(topic, batch).code == ResponseCode.MESSAGE_ILLEGAL
    assert wire.end(topic) == 0


def test_a_batch_with_bodies_like_records_is_accepted(wire: Wire, topic: str) -> None:
    batch = [
        Message.of(topic, b"DELAY\x011", properties={"ITEMS": "1", "UNITS_MS": "2", "DELAY": "0"}),
        Message.of(topic, b"TIMER_DELIVER_MS\x01"),
    ]
    assert wire.send_batch(topic, batch).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x00\x00\x05DELAY\x01", b"\xff" * 40])
def test_a_broken_batch_is_refused(wire: Wire, topic: str, body: bytes) -> None:
    answer = wire.ask(RequestCode.SEND_BATCH_MESSAGE, body, **(send_fields(topic) | {"m": True}))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark


def test_a_retry_topic_accepts_no_batch(wire: Wire, group: str) -> None:
    topic = f"%RETRY%{group}"
    answer = wire.send_batch(topic, [Message.of(topic, b"x")])
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_message_retried_often_enough_goes_to_the_dead_letter_topic(wire: Wire, group: str) -> None:
    retry, dead = f"%RETRY%{group}", f"%DLQ%{group}"
    assert wire.send(retry, b"again", j=15).code == ResponseCode.SUCCESS
    assert wire.send(retry, b"enough", j=16).code == ResponseCode.SUCCESS
    assert wire.send(retry, b"the client's own limit", j=3, l=3).code == ResponseCode.SUCCESS
    assert wire.bodies(retry) == [b"again"]
    assert wire.bodies(dead) == [b"enough", b"the client's own limit"]


def test_a_first_message_creates_its_topic_for_everyone(wire: Wire, namesrv: Wire) -> None:
    assert wire.send("Auto-1", b"first", d=3).code == ResponseCode.SUCCESS
    route = namesrv.read(TopicRouteData, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Auto-1")
    assert [(queues.read_queue_nums, queues.perm) for queues in route.queue_datas] == [(3, 6)]


def test_the_number_of_queues_is_bounded_by_the_default_topic(wire: Wire) -> None:
    wire.send("Auto-2", b"first", d=100)
    assert wire.send("Auto-2", queue_id=7).code == ResponseCode.SUCCESS
    assert wire.send("Auto-2", queue_id=8).code == ResponseCode.INVALID_PARAMETER


def test_properties_of_any_string_are_read_back(wire: Wire, topic: str) -> None:
    properties = {"TAGS": "ünïcödé", "KEYS": "ключ 钥匙", "emoji": "🚀", "empty": ""}
    wire.send(topic, "тело".encode(), properties)
    (message,) = wire.messages(topic)
    assert {name: message.properties[name] for name in properties} == properties
    assert decode_properties("a\x01b") == {"a": "b"}


def test_any_queue_of_a_topic_without_queues_to_write_to(wire: Wire, topic: str) -> None:
    wire.create_topic(topic, writeQueueNums=0)
    answer = wire.send(topic, queue_id=-1)
    assert (answer.code, wire.messages(topic)) == (ResponseCode.INVALID_PARAMETER, [])
    assert "no queue to write to" in (answer.remark or "")


@pytest.fixture(scope="module")
def sync_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, config={"flushDiskType": "SYNC_FLUSH"}) as running:
        yield running


def test_a_one_way_message_is_stored_and_never_answered(sync_cluster: LocalCluster, cluster: LocalCluster) -> None:
    """It waits neither for the flush nor for the new topic's file."""
    for running in (cluster, sync_cluster):
        client = RawClient(running.broker_address)
        requests = [request_of(310, b"x", oneway=n < 2, **send_fields("OneWay")) for n in range(3)]
        for opaque, request in enumerate(requests):
            request.opaque = opaque
        client.send(*requests)
        answer = client.receive()
        assert (answer.opaque, answer.ext_fields["queueOffset"]) == (2, "2")
        client.close()
