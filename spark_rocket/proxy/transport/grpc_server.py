"""The gRPC server: methods with raw bytes on ``grpc.aio``.

==============  ==================================================================================================
module          purpose
==============  ==================================================================================================
calls           authentication, limits and handler of a call
credentials     grpcio's TLS credentials, reloaded when their files change
front           the public port in TLS mode ``permissive``; in the other modes grpcio has it
message_bytes   the limit of the memory for messages that clients have not read
tool_services   health checking and reflection
==============  ==================================================================================================

grpcio implements HTTP/2, flow control, TLS, and protection against floods (rapid reset, SETTINGS, PING). It bounds the
number of connections and calls, and the size of messages and metadata, but not their sum, nor a header block (HEADERS
and CONTINUATION frames) before its end: docs/reference/security.md.
Compressed gRPC messages are refused: a few KiB would be decompressed to 32 MiB before their size can be checked.
RocketMQ clients compress bodies instead.

Thread-safety: create, start and close it on the event loop. Nothing is stored on disk.
Corresponds to org.apache.rocketmq.proxy.grpc.GrpcServer.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from spark_rocket.common.logs import RateLimited
from spark_rocket.proxy.transport.calls import CallHandlers
from spark_rocket.proxy.transport.credentials import server_credentials
from spark_rocket.proxy.transport.front import DESCRIPTORS, Front
from spark_rocket.proxy.transport.limits import MAX_REQUEST_BYTES, GrpcLimits
from spark_rocket.proxy.transport.proxy_context import Authenticate, Rpc
from spark_rocket.proxy.transport.tool_services import ToolServices
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.sockets import bind, cannot_listen, connections_possible
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import TlsMode

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_NAME = "gRPC endpoint"
_PORT_OPTIONS = " with --grpc-port"
_MAX_METADATA_BYTES = 32 * 1024
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
    """Serves ``rpcs`` (by ``/service/Method``) on an address, with TLS, plaintext or both by the mode of ``tls``."""

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
        reuse_port: bool = False,
    ) -> None:
        self.port = port
        """The bound port after the start, also if 0 was configured."""
        self._host = host
        self._tls = tls
        self._is_permissive = tls is not None and tls.mode is TlsMode.PERMISSIVE
        self._limits = limits = _possible(limits or GrpcLimits(), DESCRIPTORS if self._is_permissive else 1)
        self.calls = CallHandlers(limits)
        self._handlers = {path: self.calls.handler(path, rpc, authenticate) for path, rpc in rpcs.items()}
        self._tools = tools
        if tools is not None:
            self._handlers |= {path: self.calls.handler(path, rpc) for path, rpc in tools.rpcs().items()}
        self._reuse_port = reuse_port
        self._front: Front | None = None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Start serving. ConfigError if the address cannot be bound, or the TLS settings are not supported."""
        credentials = None if self._tls is None else server_credentials(self._tls)
        sock = await bind(self._host, self.port, _NAME, _PORT_OPTIONS, reuse_port=self._reuse_port)
        self._server = server = grpc.aio.server(
            options=_options(self._limits, self._reuse_port), maximum_concurrent_rpcs=self._limits.max_calls
        )
        server.add_generic_rpc_handlers((_Methods(self._handlers),))
        try:
            if self._is_permissive:
                self._listen_behind_front(server, sock, credentials)
            else:
                self._listen(server, sock, credentials)
            await server.start()
            if self._tools is not None:
                await self._tools.start()
            if self._front is not None:
                await self._front.start()
        except BaseException:
            sock.close()
            await self.close(0.0)
            raise

    def _listen(self, server: grpc.aio.Server, sock: socket.socket, credentials: grpc.ServerCredentials | None) -> None:
        """Let grpcio listen. ``sock`` was bound to find the reason if that is not possible: grpcio has none."""
        host = sock.getsockname()[0]
        sock.close()
        address = format_address(host, self.port)
        try:
            if credentials is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise cannot_listen(self._host, self.port, OSError(errno.EADDRINUSE, ""), _NAME, _PORT_OPTIONS) from None

    def _listen_behind_front(
        self, server: grpc.aio.Server, sock: socket.socket, credentials: grpc.ServerCredentials | None
    ) -> None:
        try:
            sock.listen()
        except OSError as error:  # another socket of the same address listens
            raise cannot_listen(self._host, self.port, error, _NAME, _PORT_OPTIONS) from error
        self.port = sock.getsockname()[1]
        self._front = front = Front(sock, self._limits)
        server.add_insecure_port(front.target(tls=False))
        server.add_secure_port(front.target(tls=True), credentials)

    async def close(self, grace: float = 1.0) -> None:
        """Refuse new calls, wait ``grace`` seconds for running calls, then cancel them."""
        if self._front is not None:
            self._front.stop_listening()
        server, self._server = self._server, None
        if server is not None:
            if self._tools is not None:
                await self._tools.close()
            await server.stop(grace)
        front, self._front = self._front, None
        if front is not None:
            await front.close()


def _possible(limits: GrpcLimits, descriptors: int) -> GrpcLimits:
    """Return the limits with as many connections as there are descriptors for."""
    possible = connections_possible() // descriptors
    if limits.max_connections <= possible:
        return limits
    _log.info(
        "at most %d gRPC connections, not %d (maxConnections): the limit of open files (ulimit -Hn) allows no more",
        possible,
        limits.max_connections,
    )
    return replace(limits, max_connections=possible)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


def _options(limits: GrpcLimits, reuse_port: bool) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.compression_enabled_algorithms_bitset", _ONLY_IDENTITY),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_timeout * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.idle_timeout * 1000)),
        # Clients ping every 10 to 60 s, also between calls.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        # Pings of this server detect clients that disappeared without closing their connections.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.so_reuseport", int(reuse_port)),
    ]
    if limits.max_age > 0:
        options.append(("grpc.max_connection_age_ms", int(limits.max_age * 1000)))
        options.append(("grpc.max_connection_age_grace_ms", 10_000))
    return options
