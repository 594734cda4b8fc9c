"""Converts a stored record to a message of the messaging service.

===========================  ===========================================================================================
of the record                in the message
===========================  ===========================================================================================
topic                        topic, with a separate namespace; messages of a retry topic have their original topic
body                         body, decompressed; its MD5 as digest, like Apache's proxy
UNIQ_KEY                     message id; without one the offset id
TAGS, KEYS, __SHARDINGKEY    tag, keys (split at spaces), message group
TRAN_MSG, delays             message type and delivery timestamp
BORN_TIMESTAMP, __BORNHOST   born timestamp and host, if they differ from the record's
all other properties         user properties, unless the name is reserved
reconsume times              delivery attempt, counted from 1
RETRY_TOPIC, UNIQ_KEY        of a dead letter: its original topic and id, unless DLQ_ORIGIN_TOPIC and
                             DLQ_ORIGIN_MESSAGE_ID are set
===========================  ===========================================================================================

A compressed body that is damaged, or larger than ``maxMessageSize`` when decompressed, is returned as stored with
encoding GZIP. Consumers then handle it as a corrupt message; a refusal would block the delivery of later messages.

CRC-32 is not used as the digest: clients write it with and without leading zeros.

Corresponds to org.apache.rocketmq.proxy.grpc.v2.common.GrpcConverter.buildMessage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import md5
from typing import Any

from spark_rocket.errors import ProtocolError
from spark_rocket.model import (
    DELAY,
    DLQ_PREFIX,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from spark_rocket.protocol.ids import encode_offset_msg_id, unpack_host
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.layout import COMPRESSED
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import RecordView
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.message_in import SYSTEM_PROPERTIES
from spark_rocket.proxy.messages.names import resource_of
from spark_rocket.proxy.transport.message_bytes import Batch
from spark_rocket.remoting.address import format_address

_MAX_TIMES = (1 << 31) - 2
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # what protobuf allows: the years 1 to 9999
_TIMER_OUT_MS = "TIMER_OUT_MS"
_DELAYS = frozenset((DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS))
_MD5 = int(definitions.DigestType.MD5)
_IDENTITY, _GZIP = (int(definitions.Encoding.Value(name)) for name in ("IDENTITY", "GZIP"))
_NORMAL, _FIFO, _DELAY, _TRANSACTION = (
    int(definitions.MessageType.Value(name)) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
)


def properties_of(record: RecordView) -> dict[str, str]:
    """Return all properties of a record, including system properties."""
    return decode_properties(record.properties)


def message_id_of(record: RecordView, properties: dict[str, str]) -> str:
    """Return the message id for clients."""
    return properties.get(UNIQ_KEY) or encode_offset_msg_id(record.store_host, record.physical_offset)


Body = tuple[bytes, int]
"""A body for clients and its ``definitions.Encoding``."""


def body_of(record: RecordView, most: int) -> Body:
    """Return the body, decompressed if it then has at most ``most`` bytes."""
    stored = bytes(record.body)
    if not record.sys_flag & COMPRESSED:
        return stored, _IDENTITY
    try:
        return decompress_body(stored, record.sys_flag, most), _IDENTITY
    except ProtocolError:
        return stored, _GZIP


async def body_with_room(record: RecordView, most: int, batch: Batch) -> Body:
    """Like ``body_of``, with memory reserved for the decompressed body until the batch's next body is requested."""
    if not record.sys_flag & COMPRESSED:
        return body_of(record, most)
    await batch.reserve(most)
    body = body_of(record, most)
    batch.keep(len(body[0]))
    return body


def write_message(message: Any, record: RecordView, properties: dict[str, str], topic: str, body: Body) -> None:
    """Fill an empty ``definitions.Message`` from a record; ``topic`` is the requested one.

    The caller sets the fields of popped messages: receipt handle and invisible duration.
    """
    namespace, name = _names_of(topic)
    resource = message.topic
    resource.name = name
    if namespace:
        resource.resource_namespace = namespace
    system = message.system_properties
    message.body, system.body_encoding = body
    digest = system.body_digest
    digest.type = _MD5
    digest.checksum = md5(body[0], usedforsecurity=False).hexdigest().upper()
    user = message.user_properties
    delayed = False
    for key, value in properties.items():
        if key not in SYSTEM_PROPERTIES:
            user[key] = value
        elif key in _DELAYS and value != "0":  # level 0 means no delay; brokers write it into dead letters
            delayed = True
    get = properties.get
    system.message_id = get(UNIQ_KEY) or encode_offset_msg_id(record.store_host, record.physical_offset)
    if (tag := get(TAGS)) is not None:
        system.tag = tag
    if keys := get(KEYS):
        system.keys.extend([key for key in keys.split(" ") if key])
    group = get(SHARDING_KEY)
    if group is not None:
        system.message_group = group
    if get(TRAN_MSG) == "true":
        system.message_type = _TRANSACTION
    elif delayed:
        system.message_type = _DELAY
        _write_delivery(system, get(TIMER_DELIVER_MS) or get(_TIMER_OUT_MS))
    else:
        system.message_type = _NORMAL if group is None else _FIFO
    born = get("BORN_TIMESTAMP", "")
    write_time(system.born_timestamp, int(born) if _is_time(born) else record.born_timestamp)
    write_time(system.store_timestamp, record.store_timestamp)
    system.born_host = get("__BORNHOST") or _ip_of(record.born_host)
    system.store_host = _address_of(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = attempt_of(record.reconsume_times)
    if (trace := get("TRACE_CONTEXT")) is not None:
        system.trace_context = trace
    if topic.startswith(DLQ_PREFIX) or "DLQ_ORIGIN_TOPIC" in properties:
        _write_origin(system, get)


def attempt_of(reconsume_times: int) -> int:
    """Return the delivery attempt, from 1; classic producers may have stored any number."""
    return min(max(reconsume_times, 0), _MAX_TIMES) + 1


def write_time(timestamp: Any, milliseconds: int) -> None:
    """Set a ``Timestamp`` or a ``Duration`` to milliseconds, limited to the valid range."""
    if not _FIRST_MS <= milliseconds <= _LAST_MS:
        milliseconds = _FIRST_MS if milliseconds < 0 else _LAST_MS
    timestamp.seconds, rest = divmod(milliseconds, 1000)
    timestamp.nanos = rest * 1_000_000


def milliseconds_of(timestamp: Any) -> int:
    """Return the whole milliseconds of a ``Timestamp`` or a ``Duration``."""
    milliseconds: int = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    return milliseconds


def _write_origin(system: Any, get: Callable[[str], str | None]) -> None:
    """Set the original topic and id of a dead letter."""
    origin = get("DLQ_ORIGIN_TOPIC") or get("RETRY_TOPIC")
    origin_id = get("DLQ_ORIGIN_MESSAGE_ID") or get(UNIQ_KEY) or get("ORIGIN_MESSAGE_ID")
    if origin and origin_id:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = origin_id


def _write_delivery(system: Any, milliseconds: str | None) -> None:
    if milliseconds is not None and _is_time(milliseconds):
        write_time(system.delivery_timestamp, int(milliseconds))


def _is_time(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 16


@lru_cache(1024)
def _names_of(topic: str) -> tuple[str, str]:
    resource = resource_of(topic)
    return resource.resource_namespace, resource.name


@lru_cache(4096)
def _ip_of(host: bytes) -> str:
    return unpack_host(host)[0]


@lru_cache(1024)
def _address_of(host: bytes) -> str:
    return format_address(*unpack_host(host))
