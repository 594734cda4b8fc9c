"""The Remoting server: one asyncio protocol per connection, requests dispatched by their code.

A handler returns the response, or sends it later with ``channel.write(...)``. The effect of a peer on the server is
limited in every respect:

=====================  ==============================================================================================
peer                   server
=====================  ==============================================================================================
sends garbage          closes the connection with a log line; earlier frames in the stream were processed
claims a huge frame    ``max_frame_length``; memory grows only with received bytes
does not read          above ``high_water`` bytes of responses nothing more is read from it nor processed for it, above
                       ``hard_limit`` or without progress (connection_guard.py) the connection is dropped
is silent              closes the connection after ``idle_timeout`` seconds without a byte from it; earlier if it never
                       sent any, or an incomplete frame (connection_guard.py)
opens connections      closes those above the limit, per address, in total or of the process's descriptors
sends large requests   rejects those above the bounds of their code (protocol/requests) before a handler runs
sends very much        processed for ``time_slice`` seconds, then it is the turn of others; nothing more is read
                       meanwhile, and requests queued for too long are rejected (request_queue.py)
=====================  ==============================================================================================

Thread-safety: everything here, channels included, belongs to the event loop's thread; from another thread use
``loop.call_soon_threadsafe``. Nothing is stored on disk.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingServer and NettyRemotingAbstract.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from spark_rocket.common.logs import RateLimited
from spark_rocket.protocol.requests import RequestType
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.connection_guard import ConnectionGuard
from spark_rocket.remoting.server.dispatcher import Handler, RequestDispatcher, failure_of, not_supported
from spark_rocket.remoting.server.listener import Listener
from spark_rocket.remoting.server.overload import Limits, OverloadStats
from spark_rocket.remoting.server.request_queue import RequestQueue
from spark_rocket.remoting.server.turns import LoopTurns
from spark_rocket.remoting.tls.contexts import ServerTls

# Modules with handlers need no other import.
__all__ = ["Channel", "Handler", "RemotingServer", "failure_of", "run"]

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024  # as much as the loops receive at once

T = TypeVar("T")


class RemotingServer:
    """Serves every connection of its listener with the same handlers."""

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[int, Handler],
        *,
        default_handler: Handler = not_supported,
        on_close: Callable[[Channel], None] | None = None,
        max_frame_length: int = MAX_FRAME_LENGTH,
        high_water: int = 1024 * 1024,
        hard_limit: int = 64 * 1024 * 1024,
        idle_timeout: float = 120.0,
        limits: Limits | None = None,
        busy_poll: float = 120e-6,
        time_slice: float = 2e-3,
        name: str = "server",
        port_options: str = "",
        request_types: Mapping[int, RequestType] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.often = RateLimited(logger)
        self.max_frame_length = max_frame_length
        self.high_water = high_water
        self.hard_limit = hard_limit
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self.limits = limits or Limits()
        self.overload = OverloadStats()
        self.oneways_waiting = 0
        self.channels: set[Channel] = set()
        self.turns = LoopTurns(busy_poll)
        self.watch = ConnectionGuard(name, self.channels, self.limits, self.overload, idle_timeout)
        self._dispatcher = RequestDispatcher(handlers, default_handler, request_types or {})
        self.request_queue = RequestQueue(self.limits, self.overload, time_slice, self._dispatcher.serve)
        self._listener = Listener(host, port, lambda: Channel(self), name=name, port_options=port_options, tls=tls)
        self._time_slice = time_slice
        self._on_close = on_close
        self._empty: asyncio.Event

    @property
    def handlers(self) -> dict[int, Handler]:
        """By request code."""
        return self._dispatcher.handlers

    @handlers.setter
    def handlers(self, handlers: dict[int, Handler]) -> None:
        self._dispatcher.handlers = handlers

    @property
    def port(self) -> int:
        """The actual port, also if the configured one is 0."""
        return self._listener.port

    @property
    def address(self) -> str:
        return format_address(self._listener.host, self.port)

    async def bind(self) -> None:
        """Bind the port without serving it: connections are refused. ConfigError as from ``start``."""
        await self._listener.bind()

    async def start(self) -> None:
        """Listen. ConfigError if the port is in use or the host is not an address of this machine."""
        self.loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        await self._listener.start()
        self.request_queue.changed()  # the limits may have been set since its creation
        self.watch.start()

    async def bind_second(self, step: int, port_options: str) -> None:
        """After ``bind``, also bind the port ``step`` above the first (``Listener.bind_second``)."""
        await self._listener.bind_second(step, port_options)

    async def serve_second(self) -> None:
        """Serve the second port like the first: they share the limits and the queue."""
        await self._listener.serve_second()

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, wait at most ``grace`` seconds until written responses are sent, drop the rest."""
        was_open = self._listener.is_open
        self._listener.close()
        if not was_open:
            return
        self.watch.close()
        for channel in list(self.channels):
            channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._empty.wait()
        for channel in list(self.channels):
            channel.abort()
        await self._empty.wait()

    # --- called by channels -----------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> bool:
        if not self._listener.is_open or not self.watch.admit(channel):
            return False
        self.channels.add(channel)
        self._empty.clear()
        return True

    def received(self, channel: Channel, frames: list[memoryview], size: int) -> None:
        if channel.needs_attention:
            self.watch.whole(channel)
            channel.needs_attention = channel.is_paused or channel in self.request_queue
        if self.turns.is_over or channel.needs_attention:
            self.request_queue.take(channel, frames, size)
        else:
            served = self._dispatcher.serve(channel, frames, self._time_slice)
            if served < len(frames):
                self.request_queue.take(channel, frames[served:], size)
        self.turns.read()

    def received_part(self, channel: Channel) -> None:
        self.watch.unfinished(channel)

    def paused(self, channel: Channel) -> None:
        self.watch.reads_nothing(channel)

    def resumed(self, channel: Channel) -> None:
        self.watch.reads_again(channel)
        if channel in self.request_queue:
            self.request_queue.reads_again(channel)
        else:
            channel.read_on()

    def closing(self, channel: Channel) -> None:
        self.request_queue.forget(channel)

    def lost(self, channel: Channel) -> None:
        self.request_queue.forget(channel)
        if channel not in self.channels:
            return
        self.channels.discard(channel)
        self.watch.forget(channel)
        if not self.channels:
            self._empty.set()
        if self._on_close is not None:
            try:
                self._on_close(channel)
            except Exception:
                logger.exception("close handler of %s failed", channel)


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on :func:`new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
