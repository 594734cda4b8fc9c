"""Serving the console until it is stopped.

Corresponds to the program of RocketMQ's dashboard.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_rocket.console.app import make_app
from spark_rocket.console.guard import name_of
from spark_rocket.console.settings import ConsoleSettings
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address, own_ip
from spark_rocket.remoting.tls.contexts import server_tls

MAX_CONNECTIONS = 512
STOP_SECONDS = 3
SLOW_SECONDS = 30
MAX_HEADER_BYTES = 64 << 10
HEADER_SECONDS = 10


async def serve_console(settings: ConsoleSettings, ready: Callable[[str], None], stopped: Awaitable[Any]) -> None:
    """Serve until ``stopped``. Calls ``ready`` with the address. ConfigError if the port is in use."""
    stop = asyncio.ensure_future(stopped)
    try:
        await _serve(settings, ready, stop)
    finally:
        stop.cancel()


async def _serve(settings: ConsoleSettings, ready: Callable[[str], None], stop: asyncio.Future[Any]) -> None:
    listener = _listen(settings)
    config = uvicorn.Config(
        make_app(settings),
        http=_Connection,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=2 * MAX_CONNECTIONS,  # of requests in progress; connections are limited by _Connection
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=30,
        ws="none",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        tls = server_tls(settings.tls, (settings.host, *settings.allowed_hosts))
        config.load()
        config.ssl = None if tls is None else tls.listening()
    except BaseException:
        listener.close()
        raise
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    begun = asyncio.create_task(server.begun.wait())
    try:
        await asyncio.wait([serving, begun, stop], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            ready(address_of(settings, listener.getsockname()[1]))
            await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        begun.cancel()
        await serving
        with suppress(OSError):
            listener.close()


class _Connection(H11Protocol):  # httptools does not bound the header of a request
    """Closes the connection of a peer that neither completes a request nor reads a response.

    Such peers must not block others. uvicorn has a timeout only for idle connections, and responds with 503 to everyone
    when there are too many. Here the oldest connection that waits for its peer makes room for a new one.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.began = self.loop.time()
        self.loop.call_later(HEADER_SECONDS, self._look, None)
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, _Connection) and each.waits]
            min(waiting, key=lambda each: each.began).transport.abort()  # at least this one waits

    @property
    def waits(self) -> bool:
        """Whether the next bytes must come from the peer, or be read by it."""
        transport, cycle = self.transport, self.cycle
        if transport.is_closing():
            return False
        return cycle is None or cycle.response_complete or cycle.more_body or transport.get_write_buffer_size() > 0

    def _look(self, before: Any) -> None:
        """Close the connection without progress. ``before``: the request at the last check."""
        if self.cycle is before and self.waits:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(SLOW_SECONDS, self._look, self.cycle)


class _Server(uvicorn.Server):
    """Sets ``begun`` when it serves. The caller handles signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    def capture_signals(self):  # type: ignore[no-untyped-def]  # a context manager that does nothing
        return nullcontext()


def address_of(settings: ConsoleSettings, port: int) -> str:
    """Return the URL for a browser. For a wildcard: the first allowed name, else this machine's address.

    Without a route to other networks that is 127.0.0.1.
    """
    host = settings.host.strip("[]")
    if settings.is_wildcard:
        host = next(map(name_of, settings.allowed_hosts), own_ip() if host == "0.0.0.0" else "::1")
    return f"{'https' if settings.is_tls else 'http'}://{format_address(host, port)}"


def _listen(settings: ConsoleSettings) -> socket.socket:
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, settings.port))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The console cannot listen on {settings.host}:{settings.port}: {error.strerror or error}.",
            remedy="Use another port with --port, 0 for a free port (--console-port with rocket up).",
        ) from None
    return listener
