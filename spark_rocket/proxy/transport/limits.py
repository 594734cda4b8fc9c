"""Limits of the gRPC endpoint. Values only.

Corresponds to the grpc settings of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1024 * 1024
MAX_REQUEST_BYTES = 32 * MIB
"""The largest limit of a method."""
MAX_FIELDS = 131_072
"""Fields of one request, at all levels together."""


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
