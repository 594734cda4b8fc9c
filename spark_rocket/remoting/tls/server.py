"""TLS on the connections of a server, detected by the first byte, for any protocol.

A listening socket creates a :class:`Newcomer` for each connection, and the protocol that serves it, which has the
connection from the start. The first byte decides:

=================  ===================================================================================================
first byte         action
=================  ===================================================================================================
``16``             a handshake of the event loop's TLS (``loop.start_tls``), after which the protocol has its transport;
                   in mode ``disabled`` the connection is closed
anything else      plaintext: the protocol replaces the newcomer; in mode ``enforcing`` the connection is closed
=================  ===================================================================================================

Rejected connections are logged with the reason, each kind at most once in ten seconds.

Limits: ``HANDSHAKE_SECONDS`` from the first byte to the end of the handshake. The number of connections and their time
until the first byte are limited by the protocol, as without TLS.

Thread-safety: the event loop's thread. Corresponds to NettyRemotingServer's HandshakeHandler and netty's SslHandler.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from spark_rocket.errors import RocketError
from spark_rocket.logs import RateLimited
from spark_rocket.remoting.address import format_peer
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.problems import HANDSHAKE, Problem, problem_of, refusal_of
from spark_rocket.remoting.tls.settings import TlsMode

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
_SHUTDOWN_S = 1.0  # for the peer's close_notify
_LINGER_S = 1.0  # for the client to read an alert


class Secured(Protocol):
    """An ``asyncio.Protocol`` whose transport can be replaced."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...

    def secured(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on."""


class TlsGate:
    """TLS of one listening socket: ``create_server(gate.newcomer)``."""

    def __init__(
        self,
        tls: ServerTls | None,
        made: Callable[[], Secured],
        *,
        name: str,
    ) -> None:
        """``made`` creates the protocol of a connection; ``name`` is the port's name in logs. None: TLS is disabled."""
        self.mode = TlsMode.DISABLED if tls is None else tls.mode
        self.tls = tls
        self.made = made
        self._often = RateLimited(_log)
        self._name = name

    def newcomer(self) -> Newcomer:
        return Newcomer(self)

    def refuse(self, peer: str, problem: Problem) -> None:
        """Log a rejected connection."""
        text = f"The {self._name} closed the connection of {peer}: it {problem.text}. {problem.remedy}"
        self._often.warning(problem.kind, "%s", text.rstrip())


class Newcomer(asyncio.Protocol):
    """A connection before its first byte, or during its handshake."""

    __slots__ = ("_gate", "_handshake", "_is_lost", "_peer", "_protocol", "_transport")

    def __init__(self, gate: TlsGate) -> None:
        self._gate = gate
        self._protocol = gate.made()
        self._transport: asyncio.Transport
        self._handshake: asyncio.Task[None] | None = None
        self._is_lost = False
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = format_peer(transport.get_extra_info("peername"))
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        is_tls = data[0] == HANDSHAKE
        problem = refusal_of(is_tls, self._gate.mode)
        if problem is not None:
            self._refuse(problem)
        elif self._gate.tls is not None and is_tls:
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            self._handshake = loop.create_task(self._shake_hands(self._gate.tls))
            # The task's first step calls start_tls, which schedules connection_made of its protocol. Then comes _feed.
            loop.call_soon(loop.call_soon, self._feed, data)
        else:
            self._transport.set_protocol(cast(asyncio.Protocol, self._protocol))
            self._protocol.data_received(data)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(exc)

    # --- the handshake --------------------------------------------------------------------------------------------

    async def _shake_hands(self, server: ServerTls) -> None:
        try:
            context = server.context()
            fd = os.dup(self._transport.get_extra_info("socket").fileno())
        except (RocketError, OSError, ImportError) as error:  # the self-signed certificate needs a missing library
            self._refuse(Problem("NO_CERTIFICATE", f"uses TLS, but no certificate is available: {error}", ""))
            return
        secured, alert = None, b""
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:
            self._gate.refuse(self._peer, problem_of(error, server=True))
            alert = getattr(error, "alert", b"")
            with suppress(OSError):  # the loop has closed its socket without the alert
                os.write(fd, alert)
        # Closed at once, the socket would reset a client that sends before it has read the alert.
        asyncio.get_running_loop().call_later(_LINGER_S if alert else 0.0, os.close, fd)
        if secured is None or secured.is_closing():
            self._transport.abort()
            self.connection_lost(None)
            return
        secured.set_protocol(cast(asyncio.Protocol, self._protocol))
        self._protocol.secured(secured)

    def _feed(self, data: bytes) -> None:
        """Give the bytes that were read already to the protocol of the loop's TLS."""
        receiver = self._transport.get_protocol()
        if receiver is self:  # refused
            return
        receiver = cast(asyncio.BufferedProtocol, receiver)
        while data:
            buffer = memoryview(receiver.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            receiver.buffer_updated(count)
            data = data[count:]

    def _refuse(self, problem: Problem) -> None:
        self._gate.refuse(self._peer, problem)
        self._transport.close()
