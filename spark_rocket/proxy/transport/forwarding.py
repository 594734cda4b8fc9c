"""Forwards bytes between a client's connection and grpcio's local socket, with backpressure in both directions.

grpcio listens on a Unix socket in a directory that only this user can open. The local side of each connection is bound
to a unique name there (``…/17``), which grpcio reports as the call's peer. So a call finds its connection and the
client's address. The name is removed from the directory at once.

When one side's write buffer exceeds 64 KiB, reading from the other side pauses. So a connection uses at most a few
hundred KiB here, regardless of its client.

Thread-safety: event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import cast

from spark_rocket.errors import ConfigError
from spark_rocket.proxy.transport.front import NAME, Front
from spark_rocket.proxy.transport.memory_budgets import PendingBytes, ResponseBytes
from spark_rocket.remoting.server.sockets import leaves_reserve

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 64 * 1024
_LINGER_S = 10.0
_CALL_OVERHEAD_BYTES = 512  # a conservative estimate of a request's frames and headers
_MAX_DIRECTORY = 80  # a Unix socket's path has at most 104 bytes on some systems


class LocalSocket:
    """grpcio's listening address, and the connections to it by name."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _MAX_DIRECTORY:
            raise ConfigError(
                f"The path of the temporary directory {base} is too long for a Unix socket.",
                remedy=f"Set TMPDIR to a directory of at most {_MAX_DIRECTORY} bytes.",
            )
        self._directory = Path(tempfile.mkdtemp(prefix="rocket-grpc-"))  # mode 0700
        self._numbers = itertools.count(1)
        self._path = self._directory / "s"
        self.connections: dict[str, Forwarder] = {}
        self._all_closed: asyncio.Event | None = None
        self.target = f"unix:{self._path}"

    def connect(self, forwarder: Forwarder) -> tuple[str, socket.socket]:
        """Return a socket connected to grpcio, and its name. OSError if descriptors or the backlog are exhausted."""
        name = str(next(self._numbers))
        bound = self._directory / name
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(str(bound))
            try:
                self.connections[name] = forwarder
                sock.connect(str(self._path))
            finally:
                bound.unlink(missing_ok=True)
        except OSError:
            self.connections.pop(name, None)
            sock.close()
            raise
        return name, sock

    def connection_of(self, peer: str) -> Forwarder | None:
        """Return the connection of a peer reported by grpcio; None if it has just been closed."""
        return self.connections.get(peer.rpartition("/")[2])

    def forget(self, name: str) -> None:
        """Remove a closed connection."""
        self.connections.pop(name, None)
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    async def close(self) -> None:
        """Close all connections and remove the directory."""
        if self.connections:
            self._all_closed = asyncio.Event()
            for connection in list(self.connections.values()):
                connection.abort()
            await self._all_closed.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


class Forwarder(asyncio.Protocol):
    """The client's side of a connection."""

    def __init__(
        self, peer: str, front: Front, local: LocalSocket, pending: PendingBytes, unread: ResponseBytes
    ) -> None:
        self.peer = peer
        self.reading = 0
        """Unary calls whose request is incomplete."""
        self.forwarded = 0
        """Bytes written to the client so far."""
        self.streaming = 0
        """Calls with an open request stream."""
        self._front = front
        self._local = local
        self._pending = pending
        self._unread = unread
        self._name = ""
        self._early: list[bytes] = []
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport
        self.server: asyncio.Transport | None = None

    def __str__(self) -> str:
        return self.peer

    # --- the client's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self.transport.pause_reading()
        try:
            self._name, sock = self._local.connect(self)
        except OSError as error:
            self._front.reject("descriptors", self.peer, f"cannot create a local connection ({error})")
            self.abort()
            return
        if not leaves_reserve(sock, NAME, self.peer):
            self._front.refused["descriptors"] += 1
            sock.close()
            self.abort()
            return
        self._task = asyncio.get_running_loop().create_task(self._connect(sock))

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: _ServerSide(self), sock=sock)
        except OSError as error:
            _log.debug("%s: failed local connection: %s", self.peer, error)
            sock.close()
            self.abort()

    def connected(self, server: asyncio.Transport) -> None:
        """Start forwarding to grpcio."""
        self.server = server
        if self._is_closed:
            server.abort()
            return
        for data in self._early:
            server.write(data)
        self._early.clear()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._pending.received(self, len(data))
        if self.server is None:
            self._early.append(data)
        else:
            self.server.write(data)

    def pause_writing(self) -> None:
        if self.server is not None:
            self.server.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None:
            self.server.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._front.forget(self.peer)
        self._local.forget(self._name)
        self._pending.forget(self)
        self._unread.forget(self)
        if self.server is not None:
            self.server.abort()

    def abort(self) -> None:
        """Close the connection at once, which cancels its calls."""
        self.transport.abort()

    # --- calls ------------------------------------------------------------------------------------------------

    def request_begins(self) -> None:
        self.reading += 1

    def request_ends(self, size: int) -> None:
        """Record the end of a request with ``size`` bytes."""
        self.reading -= 1
        if self.reading or self.streaming:
            self._pending.taken(self, size + _CALL_OVERHEAD_BYTES)
        else:
            self._pending.forget(self)

    def message_taken(self, size: int) -> None:
        """Record a message of a request stream."""
        self._pending.taken(self, size + _CALL_OVERHEAD_BYTES)


class _ServerSide(asyncio.Protocol):
    """grpcio's side of a connection."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._client = forwarder.transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = cast(asyncio.Transport, transport)
        server.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._forwarder.connected(server)

    def data_received(self, data: bytes) -> None:
        self._forwarder.forwarded += len(data)
        self._client.write(data)

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's side after its remaining bytes are written, at most after a timeout."""
        if self._client.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_LINGER_S, self._client.abort)
        self._client.close()
