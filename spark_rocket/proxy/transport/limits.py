"""Limits of the gRPC endpoint, and counting the fields of a serialized protobuf message.

An empty submessage has two bytes on the wire and about a hundred in memory, so the size of a request does not limit the
cost of parsing it. A message has at most half as many fields as bytes, so only larger requests are counted.

Corresponds to the grpc settings of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

MIB = 1024 * 1024
MAX_REQUEST_BYTES = 32 * MIB
"""The maximum of all method limits."""
MAX_FIELDS = 32_768
"""The limit of a request's fields, at all levels together."""
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits for clients. Times are in seconds."""

    max_connections: int = 10_000
    max_streams: int = 1_024
    """Concurrent calls of one connection."""
    max_calls: int = 20_000
    """Concurrent calls of all connections, Telemetry streams and held receives included."""
    request_bytes: int = 4 * MIB
    """The largest request of a method that ``method_request_bytes`` does not list."""
    method_request_bytes: Mapping[str, int] = field(default_factory=dict)
    """Limits by ``/service/Method``; at most MAX_REQUEST_BYTES."""
    max_unread_bytes: int = 64 * MIB
    """Bytes of messages from brokers that clients have not read, with their copies."""
    handshake_timeout: float = 10.0
    """The timeout of a connection's first byte, and of the handshakes of TLS and HTTP/2."""
    idle_timeout: float = 120.0
    """The timeout after the last call of a connection."""
    max_age: float = 0.0
    """0: no limit. The Telemetry streams of an older connection are ended, and its client reconnects."""

    def of_method(self, path: str) -> int:
        """Return the size limit of a method's request."""
        return min(self.method_request_bytes.get(path, self.request_bytes), MAX_REQUEST_BYTES)


def send_request_bytes(max_message_size: int, max_messages: int) -> int:
    """Return the size limit of SendMessage requests."""
    return min(max_message_size * max_messages + MIB, MAX_REQUEST_BYTES)


def has_more_fields(raw: bytes, message_class: Any, limit: int) -> bool:
    """Whether ``raw`` has more than ``limit`` fields, including those of submessages.

    Malformed input is counted up to the error; parsing then refuses it.
    """
    return len(raw) > 2 * limit and _count(raw, 0, len(raw), message_class.DESCRIPTOR, limit) > limit


def _count(raw: bytes, at: int, end: int, descriptor: Any, limit: int) -> int:
    """Count the fields from ``at`` to ``end``; stop above ``limit``."""
    submessages = _submessages(descriptor)
    count = 0
    while at < end and count <= limit:
        count += 1
        tag, at = _varint(raw, at, end)
        kind = tag & 7
        if kind == _LENGTH:
            size, at = _varint(raw, at, end)
            after = min(at + size, end)
            inner = submessages.get(tag >> 3)
            if inner is not None:
                count += _count(raw, at, after, inner, limit - count)
            at = after
        elif kind == _VARINT:
            _, at = _varint(raw, at, end)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind not in (_START_GROUP, _END_GROUP):
            break
    return count


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


@cache
def _submessages(descriptor: Any) -> dict[int, Any]:
    """Return the descriptors of message fields by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
