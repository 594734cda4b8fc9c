"""The gRPC server: methods with raw bytes on ``grpc.aio``, behind a front that limits connections.

=================  ==============================================================================
module             purpose
=================  ==============================================================================
front              accepting; PROXY header, TLS or plaintext; limits of connections
forwarding         bytes between a client and grpcio's local socket; the client's address
calls              authentication, limits and handler of a call
memory_budgets     request and response bytes of all connections
tool_services      health checking and reflection
=================  ==============================================================================

grpcio implements HTTP/2, flow control, and protection against floods (rapid reset, SETTINGS, PING). It does not bound a
header block (HEADERS and CONTINUATION frames) before its end: docs/reference/security.md.
Compressed gRPC messages are refused: a few KiB would be decompressed to 32 MiB before their size can be checked.
RocketMQ clients compress bodies instead.

Thread-safety: create, start and close it on the event loop. Nothing is stored on disk.
Corresponds to org.apache.rocketmq.proxy.grpc.GrpcServer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from spark_rocket.logs import RateLimited
from spark_rocket.proxy.transport.calls import Calls
from spark_rocket.proxy.transport.context import Authenticate, Rpc
from spark_rocket.proxy.transport.forwarding import Forwarder, LocalSocket
from spark_rocket.proxy.transport.front import Front
from spark_rocket.proxy.transport.limits import MAX_REQUEST_BYTES, GrpcLimits
from spark_rocket.proxy.transport.memory_budgets import PendingBytes, ResponseBytes
from spark_rocket.proxy.transport.proxy_protocol import TrustedAddresses
from spark_rocket.proxy.transport.tool_services import ToolServices
from spark_rocket.remoting.tls.contexts import ServerTls

_often = RateLimited(logging.getLogger(__name__))

_MAX_METADATA_BYTES = 32 * 1024
_HANDSHAKE_MS = 10_000
_MIN_PING_INTERVAL_MS = 5_000
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_ONLY_IDENTITY = 1  # bit 0 of grpcio's compression algorithms


def _rarely(record: logging.LogRecord) -> bool:
    """Limit grpcio's tracebacks of protocol violations by clients to one line in ten seconds."""
    if record.levelno >= logging.WARNING:
        _often.warning(record.msg, "grpcio: %s", record.getMessage())
    return False


logging.getLogger("grpc._cython.cygrpc").addFilter(_rarely)


class GrpcServer:
    """Serves ``rpcs`` (by ``/service/Method``) on an address, with ``tls`` also TLS on the same port."""

    def __init__(
        self,
        rpcs: Mapping[str, Rpc],
        host: str,
        port: int,
        *,
        tls: ServerTls | None = None,
        limits: GrpcLimits | None = None,
        authenticate: Authenticate | None = None,
        tools: ToolServices | None = None,
        trusted_proxies: Sequence[str] = (),
        reuse_port: bool = False,
    ) -> None:
        self.limits = limits = limits or GrpcLimits()
        self.pending = PendingBytes(limits.max_pending_request_bytes)
        self.unread = ResponseBytes(limits.max_unread_bytes)
        self.front = Front(
            host,
            port,
            self._forwarder,
            limits=limits,
            tls=tls,
            trusted=TrustedAddresses(trusted_proxies),
            reuse_port=reuse_port,
        )
        self.calls = Calls(self._connection_of, limits, self.unread)
        self._handlers = {path: self.calls.handler(path, rpc, authenticate) for path, rpc in rpcs.items()}
        self._tools = tools
        if tools is not None:
            self._handlers |= {path: self.calls.handler(path, rpc) for path, rpc in tools.rpcs().items()}
        self._local: LocalSocket | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def port(self) -> int:
        """The bound port, also if 0 was configured."""
        return self.front.port

    @property
    def connections(self) -> list[Forwarder]:
        """Connections that reached grpcio."""
        return [] if self._local is None else list(self._local.connections.values())

    async def start(self) -> None:
        """Start serving. ConfigError if the address cannot be bound."""
        await self.front.bind()
        try:
            self._local = LocalSocket()
            self._server = server = grpc.aio.server(options=_options(self.limits))
            server.add_generic_rpc_handlers((_Methods(self._handlers),))
            server.add_insecure_port(self._local.target)
            await server.start()
            if self._tools is not None:
                await self._tools.start()
        except BaseException:
            await self.close(0.0)
            raise
        self.front.accept()

    async def close(self, grace: float = 1.0) -> None:
        """Refuse new calls, wait ``grace`` seconds for running calls, then cancel them."""
        await self.front.close()
        server, self._server = self._server, None
        if server is not None:
            if self._tools is not None:
                await self._tools.close()
            await server.stop(grace)
        local, self._local = self._local, None
        if local is not None:
            await local.close()

    def _forwarder(self, peer: str) -> Forwarder:
        assert self._local is not None
        return Forwarder(peer, self.front, self._local, self.pending, self.unread)

    def _connection_of(self, peer: str) -> Forwarder | None:
        return None if self._local is None else self._local.connection_of(peer)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


def _options(limits: GrpcLimits) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.compression_enabled_algorithms_bitset", _ONLY_IDENTITY),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", int(limits.idle_timeout * 1000)),
        # Clients ping every 10 to 60 s, also between calls.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        # Pings of this server detect clients that disappeared without closing their connections.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.so_reuseport", 0),
    ]
    if limits.max_age > 0:
        options.append(("grpc.max_connection_age_ms", int(limits.max_age * 1000)))
        options.append(("grpc.max_connection_age_grace_ms", 10_000))
    return options
