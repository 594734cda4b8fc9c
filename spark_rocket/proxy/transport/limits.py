"""Limits of the gRPC endpoint, and the number of fields that a serialized protobuf message has.

An empty submessage has two bytes on the wire and about a hundred in memory, so a request's size does not bound what
parsing it costs. A message has at most half as many fields as bytes: only larger requests are counted at all.

Thread-safety: values and pure functions.
Corresponds to the grpc settings of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

MIB = 1024 * 1024
MAX_REQUEST_BYTES = 32 * MIB
"""The largest limit of a method."""
MAX_FIELDS = 131_072
"""Fields of one request, at all levels together."""
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What clients may use. Times are seconds; 0 means no limit where a field says so."""

    max_connections: int = 10_000
    max_connections_per_address: int = 0
    """0: no limit."""
    max_streams: int = 1_024
    """Concurrent calls of one connection."""
    max_calls: int = 20_000
    """Concurrent calls of all connections, Telemetry streams and held receives included."""
    request_bytes: int = 4 * MIB
    """The largest request of a method that ``method_request_bytes`` does not list."""
    method_request_bytes: Mapping[str, int] = field(default_factory=dict)
    """By ``/service/Method``; at most MAX_REQUEST_BYTES."""
    max_pending_request_bytes: int = 64 * MIB
    """Request bytes of all connections that were received and are not part of a complete request yet."""
    max_request_bytes: int = 32 * MIB
    """Bytes of complete requests whose calls are in progress: most of them wait for a broker."""
    max_unread_bytes: int = 32 * MIB
    """Response bytes of all connections that clients have not read; as many more may wait to be written."""
    first_bytes_timeout: float = 10.0
    """For the first byte of a connection, and for a TLS handshake."""
    idle_timeout: float = 120.0
    """After the last call of a connection."""
    max_age: float = 0.0
    """0: no limit. Telemetry streams of a connection that is older are ended, and its client connects again."""

    def of_method(self, path: str) -> int:
        """The size limit of a method's request."""
        return min(self.method_request_bytes.get(path, self.request_bytes), MAX_REQUEST_BYTES)


def send_request_bytes(max_message_size: int, max_messages: int) -> int:
    """The size limit of SendMessage requests."""
    return min(max_message_size * max_messages + MIB, MAX_REQUEST_BYTES)


def has_more_fields(raw: bytes, message_class: Any, limit: int) -> bool:
    """Whether ``raw`` has more than ``limit`` fields, those of submessages included.

    Malformed input counts as far as it can be read; parsing refuses it.
    """
    return len(raw) > 2 * limit and _count(raw, 0, len(raw), message_class.DESCRIPTOR, limit) > limit


def _count(raw: bytes, at: int, end: int, descriptor: Any, limit: int) -> int:
    """Fields from ``at`` to ``end``; stops above ``limit``."""
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
    """Descriptors of the fields that are messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
