"""Converts a message of the messaging service to the fields of a broker's send request.

==================================  ====================================================================================
of the message                      in the stored record
==================================  ====================================================================================
tag, keys, message id, group        the properties TAGS, KEYS (joined with spaces), UNIQ_KEY, __SHARDINGKEY
trace context, born host            TRACE_CONTEXT, __BORNHOST
user properties                     properties under their own names
delivery timestamp                  TIMER_DELIVER_MS
message type TRANSACTION            TRAN_MSG, PGROUP (the topic's name), CHECK_IMMUNITY_TIME_IN_SECONDS
born timestamp                      the record's field; in requests with several messages BORN_TIMESTAMP if they differ
==================================  ====================================================================================

The type of a message follows from its fields. As in Apache's proxy, ``message_type`` is used for transactions only.

``body_encoding`` GZIP means zlib from RocketMQ's Java client, and gzip from clients in other languages. Classic clients
decompress zlib, so zlib is stored, with bit 0 of the system flag. LZ4 and Zstandard bodies are stored unchanged, with
their bits. Other bodies are refused because consumers could not read them.

Limits and refusals are those of Apache's proxy with its defaults. Additional checks: the digest must match the body,
and ids, hosts and trace contexts must not contain control characters. Corresponds to
org.apache.rocketmq.proxy.grpc.v2.producer.SendMessageActivity.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from spark_rocket.protocol.record.compression import COMPRESSION_BITS, compress_body
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError

MAX_USER_PROPERTIES = 128
MAX_USER_PROPERTY_BYTES = 16 * 1024
MAX_STORED_BYTES = 32_000
"""The limit of all properties: a record has at most 32,767 bytes, of which the broker needs some."""
MAX_GROUP_BYTES = 64
MAX_DELAY_MS = 24 * 3_600_000
MAX_RECOVERY_SECONDS = 3_600
MAX_UNPACKED_GZIP_BYTES = 16 << 20
"""A small gzip body can decompress to a huge one and delay other requests while it is recompressed."""
MAX_GZIP_MEMBERS = 64  # clients write one; each copies the remaining members

SYSTEM_PROPERTIES = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID ORIGIN_GROUP TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO
    CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK
    POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH
    INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DEL_MS TIMER_DELAY_LEVEL __BORNHOST
    BORN_TIMESTAMP __CRC32# DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID _SYS_MSG_PRIORITY_ __LITE_TOPIC
    """.split()  # noqa: SIM905 (ninety lines of quotes)
)
"""Reserved property names: Apache's MessageConst.STRING_HASH_SET, and others that this broker evaluates."""

_Code = definitions.Code
_Type = definitions.MessageType
NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY = (
    int(_Type.Value(name)) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
)
_GZIP = int(definitions.Encoding.GZIP)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # as Java's Character.isISOControl
_COMPRESSED = 1
# UTF-8 bytes that are not part of a control character (0xC2 starts the upper control characters, and others).
_PLAIN_CHARACTERS = bytes(byte for byte in range(256) if byte >= 32 and byte not in (0x7F, 0xC2))
_SEPARATORS = b"\x01\x02" * (MAX_USER_PROPERTIES + 8)
_REFUSED_NAMES = SYSTEM_PROPERTIES | {""}
_YEAR_10000 = 253_402_300_800_000


class IncomingMessage(NamedTuple):
    """A validated message, with the fields of a send request."""

    message_id: str
    kind: int
    """One of ``definitions.MessageType``, derived from the message's fields."""
    declared: int
    """The type that the sender declared."""
    group: str
    body: bytes
    sys_flag: int
    born: int
    properties: str


def read_message(message: Any, topic: str, now_ms: int, max_body: int) -> IncomingMessage:
    """Convert a message to ``topic``. StatusError with the same code as Apache's proxy."""
    system = message.system_properties
    body: bytes = message.body
    if not body:
        raise StatusError(_Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > max_body:
        raise StatusError(_Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {max_body}")
    properties = _properties(message)
    kind, more = _kind(system, topic, now_ms)
    sys_flag = 0
    if system.HasField("body_digest"):
        _check_digest(body, system.body_digest)
    if system.body_encoding == _GZIP:
        body, sys_flag = _to_store(body, min(max_body, MAX_UNPACKED_GZIP_BYTES))
        if len(body) > max_body:
            raise StatusError(_Code.MESSAGE_BODY_TOO_LARGE, f"message body as zlib exceeds the max {max_body}")
    timestamp = system.born_timestamp
    born = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    if not 0 < born < _YEAR_10000:
        born = now_ms
    group: str = system.message_group
    return IncomingMessage(system.message_id, kind, system.message_type, group, body, sys_flag, born, properties + more)


def _properties(message: Any) -> str:
    """Validate the properties of all message types and return them encoded."""
    system = message.system_properties
    message_id: str = system.message_id
    if not message_id or message_id.isspace():
        raise StatusError(_Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    users = message.user_properties
    if len(users) > MAX_USER_PROPERTIES:
        raise StatusError(_Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_USER_PROPERTIES}")
    tag, keys, group = system.tag, system.keys, system.message_group
    if len(keys) > MAX_USER_PROPERTY_BYTES:
        raise StatusError(_Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many keys, max is {MAX_USER_PROPERTY_BYTES}")
    pairs = [f"{name}\x01{users[name]}" for name in users]
    pairs += [
        f"{name}\x01{value}"
        for name, value in (
            ("TAGS", tag),
            ("KEYS", " ".join(keys)),
            ("UNIQ_KEY", message_id),
            ("__SHARDINGKEY", group),
            ("__BORNHOST", system.born_host),
            ("TRACE_CONTEXT", system.trace_context),
        )
        if value
    ]
    properties = "\x02".join(pairs)
    raw = properties.encode()
    # Fast path: one pass over all strings, which accepts most messages.
    if (
        len(raw) > MAX_USER_PROPERTY_BYTES
        or not _REFUSED_NAMES.isdisjoint(users)
        or raw.translate(None, _PLAIN_CHARACTERS) != _SEPARATORS[: 2 * len(pairs) - 1]
    ):
        _check_texts(message)
    if tag and (tag.isspace() or "|" in tag):
        raise StatusError(_Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|' or be the char sequence of whitespace")
    if any(map(str.isspace, keys)):
        raise StatusError(_Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
    if group and (group.isspace() or len(group.encode()) >= MAX_GROUP_BYTES):
        raise StatusError(
            _Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceeds the max size {MAX_GROUP_BYTES} or is the char sequence of whitespace",
        )
    return properties


def _kind(system: Any, topic: str, now_ms: int) -> tuple[int, str]:
    """Return the message type, derived from its fields, and the properties of this type."""
    kind, properties = FIFO if system.message_group else NORMAL, ""
    if system.HasField("delivery_timestamp"):
        kind = DELAY
        properties = f"\x02TIMER_DELIVER_MS\x01{_delivery_time(system.delivery_timestamp, now_ms)}"
    declared: int = system.message_type
    if declared == TRANSACTION:
        if kind == DELAY:
            raise StatusError(
                _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transaction has no delivery timestamp: it is delivered when it is committed",
            )
        kind = TRANSACTION
        properties = f"\x02TRAN_MSG\x01true\x02PGROUP\x01{topic}"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = _recovery_seconds(system.orphaned_transaction_recovery_duration)
            properties += f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{seconds}"
    elif declared == LITE or system.lite_topic:
        kind = LITE
    elif declared == PRIORITY or system.priority:
        kind = PRIORITY
    return kind, properties


def _check_texts(message: Any) -> None:
    """Check each string. StatusError names the invalid string and the reason."""
    system = message.system_properties
    users = message.user_properties
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name in users:
        value = users[name]
        if not name:
            raise StatusError(_Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot be empty")
        if name in SYSTEM_PROPERTIES:
            raise StatusError(_Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        _no_control(_Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property", name)
        _no_control(_Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the value of property {name[:80]}", value)
        size += len(name.encode()) + len(value.encode())
    _no_control(_Code.ILLEGAL_MESSAGE_TAG, "tag", system.tag)
    _no_control(_Code.ILLEGAL_MESSAGE_KEY, "key", " ".join(system.keys))
    if size > MAX_USER_PROPERTY_BYTES:
        raise StatusError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large: {size}, max is {MAX_USER_PROPERTY_BYTES}",
        )
    _no_control(_Code.ILLEGAL_MESSAGE_ID, "message id", system.message_id)
    _no_control(_Code.ILLEGAL_MESSAGE_GROUP, "message group", system.message_group)
    _no_control(_Code.BAD_REQUEST, "born host", system.born_host)
    _no_control(_Code.BAD_REQUEST, "trace context", system.trace_context)
    size += sum(len(text.encode()) for text in (system.message_id, system.born_host, system.trace_context))
    if size > MAX_STORED_BYTES:
        raise StatusError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties together are too large, with message id, born host and trace context: {size}, "
            f"max is {MAX_STORED_BYTES}",
        )


def _no_control(code: int, what: str, text: str) -> None:
    if _CONTROL.search(text):
        raise StatusError(code, f"{what} cannot contain control character")


def _delivery_time(timestamp: Any, now_ms: int) -> int:
    """Return the delivery time; messages with a past time are delivered at once."""
    due: int = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    if due - now_ms > MAX_DELAY_MS:
        raise StatusError(
            _Code.ILLEGAL_DELIVERY_TIME, f"the max delay time of message is too large, max is {MAX_DELAY_MS}"
        )
    return max(due, 0)


def _recovery_seconds(duration: Any) -> int:
    seconds: int = duration.seconds
    if not 0 <= seconds <= MAX_RECOVERY_SECONDS:
        raise StatusError(
            _Code.BAD_REQUEST,
            f"the transaction recovery time of message is {seconds} s, it must be from 0 to {MAX_RECOVERY_SECONDS}",
        )
    return seconds


def _check_digest(body: bytes, digest: Any) -> None:
    """Check the digest of the body as sent; a digest without type or checksum is ignored."""
    expected: str = digest.checksum
    compute = _DIGESTS.get(digest.type)
    if compute is None or not expected:
        return
    found = compute(body)
    if expected.upper().lstrip("0") != found.lstrip("0"):  # Java writes a CRC without leading zeros
        kind = definitions.DigestType.Name(digest.type)
        raise StatusError(_Code.MESSAGE_CORRUPTED, f"the body's {kind} is {found}, not {expected[:80]}")


_DIGESTS: dict[int, Callable[[bytes], str]] = {
    int(definitions.DigestType.CRC32): lambda body: f"{zlib.crc32(body):08X}",
    int(definitions.DigestType.MD5): lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
    int(definitions.DigestType.SHA1): lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper(),
}


def _to_store(body: bytes, most: int) -> tuple[bytes, int]:
    """Return a compressed body in a form for classic clients, and its system flag. Gzip may contain ``most`` bytes."""
    if body.startswith(b"\x1f\x8b"):
        return compress_body(_gunzip(body, most)), _COMPRESSED
    if body.startswith(b"\x04\x22\x4d\x18"):
        return body, COMPRESSION_BITS["lz4"]
    if body.startswith(b"\x28\xb5\x2f\xfd"):
        return body, COMPRESSION_BITS["zstd"]
    if len(body) > 1 and body[0] & 0xF == 8 and (body[0] << 8 | body[1]) % 31 == 0:
        return body, _COMPRESSED
    raise StatusError(
        _Code.MESSAGE_CORRUPTED, "the body's encoding is GZIP, but it is neither gzip nor zlib, LZ4 or Zstandard"
    )


def _gunzip(body: bytes, most: int) -> bytes:
    content = bytearray()
    members = 0
    while body:
        members += 1
        if members > MAX_GZIP_MEMBERS:
            raise StatusError(_Code.MESSAGE_CORRUPTED, f"the gzip body has more than {MAX_GZIP_MEMBERS} members")
        member = zlib.decompressobj(wbits=31)
        try:
            content += member.decompress(body, most + 1 - len(content))
        except zlib.error as error:
            raise StatusError(_Code.MESSAGE_CORRUPTED, f"the body is damaged gzip: {error}") from None
        if len(content) > most:
            raise StatusError(_Code.MESSAGE_BODY_TOO_LARGE, f"the gzip body has more than {most} bytes decompressed")
        if not member.eof:
            raise StatusError(_Code.MESSAGE_CORRUPTED, "the body is damaged gzip: truncated")
        body = member.unused_data
    return bytes(content)
