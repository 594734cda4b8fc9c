"""Stored records as gRPC clients see them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from typing import Any

import pytest

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.compression import COMPRESSION_BITS, compress_body
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record, view_record
from spark_rocket.proxy import definitions
from spark_rocket.proxy.definitions import Encoding, MessageType
from spark_rocket.proxy.messages.message_out import body_of, milliseconds_of, properties_of, write_message, write_time

_BORN = 1_795_229_620_131
_STORED = 1_795_229_620_999


def _out(
    properties: dict[str, str] | None = None,
    body: bytes = b"hello",
    topic: str = "orders",
    host: str = "127.0.0.1",
    **more: Any,
) -> Any:
    raw = encode_record(
        topic.encode(),
        3,
        body,
        encode_properties(properties or {}),
        queue_offset=41,
        physical_offset=0x75,
        born_timestamp=_BORN,
        born_host=pack_host((host, 50123)),
        store_timestamp=_STORED,
        store_host=pack_host((host, 19876)),
        **more,
    )
    record = view_record(raw)
    message = definitions.Message()
    write_message(message, record, properties_of(record), topic, body_of(record, MAX_MESSAGE_SIZE))
    return definitions.Message.FromString(message.SerializeToString())


def test_every_field_of_an_ordinary_message() -> None:
    message = _out({"TAGS": "paid", "KEYS": "a b", "UNIQ_KEY": "7F00", "colour": "grün", "WAIT": "true"})
    system = message.system_properties
    assert (message.topic.resource_namespace, message.topic.name) == ("", "orders")
    assert message.body == b"hello"
    assert dict(message.user_properties) == {"colour": "grün"}
    assert (system.tag, list(system.keys), system.message_id) == ("paid", ["a", "b"], "7F00")
    assert system.body_encoding == Encoding.IDENTITY
    assert system.body_digest.type == definitions.DigestType.MD5
    assert system.body_digest.checksum == hashlib.md5(b"hello", usedforsecurity=False).hexdigest().upper()
    assert system.message_type == MessageType.NORMAL
    assert milliseconds_of(system.born_timestamp) == _BORN
    assert milliseconds_of(system.store_timestamp) == _STORED
    assert (system.born_host, system.store_host) == ("127.0.0.1", "127.0.0.1:19876")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 41, 1)
    for name in ("receipt_handle", "invisible_duration", "message_group", "delivery_timestamp", "dead_letter_queue"):
        assert not system.HasField(name)


def test_a_message_without_a_unique_key_has_its_offset_id_and_no_tag() -> None:
    system = _out().system_properties
    assert system.message_id == "7F00000100004DA40000000000000075"
    assert not system.HasField("tag")
    assert not system.keys


def test_hosts_of_version_6() -> None:
    system = _out(host="::1").system_properties
    assert (system.born_host, system.store_host) == ("::1", "[::1]:19876")
    assert len(system.message_id) == 56


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"TRAN_MSG": "true", "PGROUP": "p"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"DELAY": "3"}, "DELAY"),
        ({"DELAY": "0"}, "NORMAL"),
        ({"TIMER_DELAY_SEC": "5"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1795229625000", "__SHARDINGKEY": "k"}, "DELAY"),
        ({"__SHARDINGKEY": "k"}, "FIFO"),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "k"}, "TRANSACTION"),
    ],
)
def test_the_type_follows_from_properties(properties: dict[str, str], kind: str) -> None:
    message = _out(properties)
    assert message.system_properties.message_type == MessageType.Value(kind)
    assert not message.user_properties


def test_the_delivery_time_of_a_message() -> None:
    system = _out({"TIMER_DELIVER_MS": "1795229625001"}).system_properties
    assert milliseconds_of(system.delivery_timestamp) == 1_795_229_625_001
    system = _out({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1795229625002"}).system_properties
    assert milliseconds_of(system.delivery_timestamp) == 1_795_229_625_002
    assert not _out({"TIMER_DELIVER_MS": "soon"}).system_properties.HasField("delivery_timestamp")
    assert not _out({"TIMER_DELIVER_MS": "9" * 30}).system_properties.HasField("delivery_timestamp")


@pytest.mark.parametrize("stored", [-(2**31), -1, 2**31 - 1])
def test_impossible_numbers(stored: int) -> None:
    system = _out({"BORN_TIMESTAMP": "9" * 15}, reconsume_times=stored).system_properties
    assert 1 <= system.delivery_attempt <= 2**31 - 1
    assert system.born_timestamp.ToMilliseconds() == 253_402_300_799_999  # the end of the year 9999


def test_a_dead_letter_has_its_original_topic_and_id() -> None:
    properties = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "7F00", "UNIQ_KEY": "01AB"}
    assert not _out(properties).system_properties.HasField("dead_letter_queue")
    dead = _out(properties, topic="%DLQ%billing").system_properties.dead_letter_queue
    assert (dead.topic, dead.message_id) == ("orders", "01AB")
    del properties["UNIQ_KEY"]
    assert _out(properties, topic="%DLQ%billing").system_properties.dead_letter_queue.message_id == "7F00"


def test_properties_of_a_proxy_become_fields() -> None:
    message = _out(
        {
            "BORN_TIMESTAMP": "1795229600007",
            "__BORNHOST": "10.1.2.3",
            "TRACE_CONTEXT": "00-1",
            "DLQ_ORIGIN_TOPIC": "orders",
            "DLQ_ORIGIN_MESSAGE_ID": "01AB",
            "__SHARDINGKEY": "customer 7",
        },
        reconsume_times=4,
    )
    system = message.system_properties
    assert milliseconds_of(system.born_timestamp) == 1_795_229_600_007
    assert (system.born_host, system.trace_context, system.message_group) == ("10.1.2.3", "00-1", "customer 7")
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("orders", "01AB")
    assert system.delivery_attempt == 5
    assert not message.user_properties


def test_a_namespace_is_separated_from_the_name() -> None:
    topic = _out(topic="shop%orders").topic
    assert (topic.resource_namespace, topic.name) == ("shop", "orders")


@pytest.mark.parametrize("codec", sorted(COMPRESSION_BITS))
def test_stored_compressed_delivered_decompressed(codec: str) -> None:
    body = b"much of the same " * 400
    message = _out(body=compress_body(body, kind=codec), sys_flag=COMPRESSION_BITS[codec])
    assert message.body == body
    assert message.system_properties.body_encoding == Encoding.IDENTITY
    assert message.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


@pytest.mark.parametrize(
    "stored",
    [
        b"nonsense",
        gzip.compress(b"x", mtime=0),
        zlib.compress(b"x" * 99)[:-6],
        zlib.compress(bytes(MAX_MESSAGE_SIZE + 1)),
    ],
    ids=["invalid", "gzip", "cut", "large"],
)
def test_bodies_that_cannot_be_decompressed_are_delivered_as_stored(stored: bytes) -> None:
    message = _out(body=stored, sys_flag=1)
    assert message.body == stored
    assert message.system_properties.body_encoding == Encoding.GZIP
    assert message.system_properties.body_digest.checksum == hashlib.md5(stored).hexdigest().upper()


def test_keys_with_several_blanks_between() -> None:
    assert list(_out({"KEYS": " a  b "}).system_properties.keys) == ["a", "b"]


@pytest.mark.parametrize("milliseconds", [0, 1, 999, 1000, _BORN, -1])
def test_milliseconds_both_ways(milliseconds: int) -> None:
    timestamp = definitions.Timestamp()
    write_time(timestamp, milliseconds)
    assert 0 <= timestamp.nanos < 1_000_000_000
    assert milliseconds_of(timestamp) == milliseconds
