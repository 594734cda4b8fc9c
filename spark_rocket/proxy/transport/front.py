"""The public port in TLS mode ``permissive``: the first byte of a connection selects one of two local ports of grpcio.

Some of RocketMQ's clients start with TLS and some without, and a port of grpcio accepts only one kind. So grpcio
listens on two Unix sockets, for plaintext and for TLS, in a directory that only this user can open, and this module
forwards bytes. In the other modes grpcio has the public port, and there is no front.

The local side of each connection is bound to a name that is the client's address (``…/10.0.0.7:4711``). grpcio reports
it as the peer of calls (``address_of`` in calls.py), so that white lists and logs see the client. The name is removed
from the directory at once.

When one side's write buffer exceeds 64 KiB, reading from the other side pauses. A connection uses three descriptors.

Corresponds to org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import cast

from spark_rocket.common.logs import RateLimited
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.remoting.address import format_peer
from spark_rocket.remoting.tls.problems import HANDSHAKE

_often = RateLimited(logging.getLogger(__name__))

DESCRIPTORS = 3
"""Descriptors of a connection: its own, and both ends of the local one."""
_BACKLOG = 1024
_BUFFER_BYTES = 64 * 1024
_LINGER_S = 10.0
_MAX_DIRECTORY_BYTES = 38  # a Unix socket's path has at most 104 bytes on some systems, an address up to 47


class Front:
    """Forwards the connections of a bound socket."""

    def __init__(self, sock: socket.socket, limits: GrpcLimits) -> None:
        self.open: set[_ClientSide] = set()
        self.limits = limits
        self._socket = sock
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _MAX_DIRECTORY_BYTES:
            base = "/tmp"
        self._directory = Path(tempfile.mkdtemp(prefix="rocket-grpc-", dir=base))  # mode 0700
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()

    def target(self, *, tls: bool) -> str:
        """Return grpcio's local address for one kind of connection."""
        return f"unix:{self._path(tls)}"

    async def start(self) -> None:
        """Start accepting; grpcio must listen on both targets."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ClientSide(self), sock=self._socket, backlog=_BACKLOG)

    def stop_listening(self) -> None:
        """Accept no more connections, and close those that have not sent a byte."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for client in list(self.open):
            if not client.is_known:
                client.transport.abort()

    async def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        for client in list(self.open):
            client.transport.abort()
        if self.open:
            await self._all_closed.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def connect(self, peer: str, tls: bool) -> socket.socket:
        """Return a socket to grpcio that is bound to the client's address. OSError if there are too many."""
        bound = self._directory / peer
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(str(bound))
            try:
                sock.connect(str(self._path(tls)))
            finally:
                bound.unlink()
        except OSError:
            sock.close()
            raise
        return sock

    def lost(self, client: _ClientSide) -> None:
        self.open.discard(client)
        if not self.open:
            self._all_closed.set()

    def _path(self, tls: bool) -> Path:
        return self._directory / ("tls" if tls else "plain")


class _ClientSide(asyncio.Protocol):
    """The client's side of a connection."""

    def __init__(self, front: Front) -> None:
        self.transport: asyncio.Transport
        self.server: asyncio.Transport | None = None
        self.is_known = False
        """Whether the first byte has arrived."""
        self._front = front
        self._early = b""
        self._timer: asyncio.TimerHandle
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        front = self._front
        self._timer = asyncio.get_running_loop().call_later(front.limits.handshake_timeout, self.transport.abort)
        if len(front.open) >= front.limits.max_connections:
            self._refuse(f"{len(front.open)} connections are open (maxConnections)")
        front.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self.server is not None:
            self.server.write(data)
        elif not self.is_known:
            self._timer.cancel()
            self.is_known = True
            self._early = data
            self.transport.pause_reading()
            self._task = asyncio.get_running_loop().create_task(self._connect(data[0] == HANDSHAKE))

    async def _connect(self, tls: bool) -> None:
        try:
            sock = self._front.connect(format_peer(self.transport.get_extra_info("peername")), tls)
            await asyncio.get_running_loop().create_unix_connection(lambda: _ServerSide(self), sock=sock)
        except OSError as error:
            self._refuse(f"cannot create a local connection ({error})")

    def connected(self, server: asyncio.Transport) -> None:
        """Start forwarding to grpcio."""
        self.server = server
        if self.transport.is_closing():
            server.abort()
            return
        self.transport.resume_reading()  # first: the write may pause it
        server.write(self._early)
        self._early = b""

    def _refuse(self, text: str) -> None:
        peer = format_peer(self.transport.get_extra_info("peername"))
        _often.warning("refused", "%s", f"refused gRPC connection {peer}: {text}")
        self.transport.abort()

    def pause_writing(self) -> None:
        if self.server is not None:
            self.server.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None:
            self.server.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._front.lost(self)
        if self.server is not None:
            self.server.abort()


class _ServerSide(asyncio.Protocol):
    """grpcio's side of a connection."""

    def __init__(self, client: _ClientSide) -> None:
        self._client = client
        self._to_client = client.transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = cast(asyncio.Transport, transport)
        server.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._client.connected(server)

    def data_received(self, data: bytes) -> None:
        self._to_client.write(data)

    def pause_writing(self) -> None:
        self._to_client.pause_reading()

    def resume_writing(self) -> None:
        self._to_client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's side after its remaining bytes are written, at most after a timeout."""
        if self._to_client.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_LINGER_S, self._to_client.abort)
        self._to_client.close()
