"""The listening sockets of a server: one port, and on demand a second one above it that is served likewise.

Corresponds to the start of NettyRemotingServer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from spark_rocket.remoting.server.sockets import bind, cannot_listen
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.tls_gate import TlsGate, UpgradableProtocol

_BACKLOG = 1024


class Listener:
    """``made`` creates the protocol of a connection; ``port_options`` names the port's settings in errors."""

    def __init__(
        self,
        host: str,
        port: int,
        made: Callable[[], UpgradableProtocol],
        *,
        name: str,
        port_options: str,
        tls: ServerTls | None,
    ) -> None:
        self.host = host
        self.port = port
        """The actual port, also if 0 was configured, once it is bound."""
        self._gate = TlsGate(tls, made, name=name)
        self._name = name
        self._port_options = port_options
        self._bound: list[socket.socket] = []  # not yet served: one or two
        self._servers: list[asyncio.Server] = []

    @property
    def is_open(self) -> bool:
        return bool(self._servers)

    async def bind(self) -> None:
        """Bind the port without serving it: connections are refused. ConfigError as from ``start``."""
        self._bound = [await bind(self.host, self.port, self._name, self._port_options)]
        self.port = self._bound[0].getsockname()[1]

    async def start(self) -> None:
        """Listen. ConfigError if the port is in use or the host is not an address of this machine."""
        if not self._bound:
            await self.bind()
        try:
            await self._serve(self._bound.pop(0))
        except OSError as error:  # another process bound the port too, and listened first
            raise cannot_listen(self.host, self.port, error, self._name, self._port_options) from error

    async def bind_second(self, step: int, port_options: str) -> None:
        """After ``bind``, also bind the port ``step`` above the first. Connections there wait for ``serve_second``.

        ConfigError if it is not available; the first port is not affected.
        """
        port = self.port + step
        sock = await bind(self.host, port, self._name, port_options)
        try:
            sock.listen(_BACKLOG)
        except OSError as error:  # another process bound the port too, and listens
            sock.close()
            raise cannot_listen(self.host, port, error, self._name, port_options) from error
        self._bound.append(sock)

    async def serve_second(self) -> None:
        """Serve the second port like the first."""
        while self._bound:
            await self._serve(self._bound.pop())

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(self._gate.newcomer, sock=sock, backlog=_BACKLOG))

    def close(self) -> None:
        """Stop listening."""
        for sock in self._bound:
            sock.close()
        for server in self._servers:
            server.close()
        self._bound.clear()
        self._servers.clear()
