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
sends large requests   rejects those above the bounds of their code (protocol/wire/request_limits) before a handler runs
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
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from spark_rocket.errors import ProtocolError, RocketError
from spark_rocket.logs import RateLimited
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Buffer, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.request_limits import RequestLimit
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.remoting.server.channel import Channel, encoded
from spark_rocket.remoting.server.connection_guard import ConnectionGuard
from spark_rocket.remoting.server.overload import Limits, OverloadStats
from spark_rocket.remoting.server.request_queue import TURN_S, Refuse, RequestQueue
from spark_rocket.remoting.server.sockets import bind, cannot_listen
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.server import TlsGate
from spark_rocket.system import cores

# Modules with handlers need no other import.
__all__ = ["Channel", "Handler", "RemotingServer", "failure_of", "run"]

MAX_REMARK_CHARACTERS = 4_096
"""Characters of an error in a response."""
logger = logging.getLogger(__name__)
_often = RateLimited(logger)

T = TypeVar("T")

# Reads at shorter intervals (seconds) mean a peer that waits for each response, or many peers.
BUSY_GAP_S = 250e-6
# Responses to one read are written together, up to this size.
FLUSH_SIZE = 256 * 1024

Handler: TypeAlias = Callable[[Channel, RemotingCommand], RemotingCommand | None]


def not_supported(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
    """The default handler."""
    return RemotingCommand.response(
        request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
    )


class RemotingServer:
    """Listens on one address and serves every connection with the same handlers."""

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[int, Handler],
        *,
        default_handler: Handler | None = None,
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
        request_limits: Mapping[int, RequestLimit] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.host = host
        self.often = RateLimited(logger)
        self.handlers = {int(code): handler for code, handler in handlers.items()}
        self.default_handler: Handler = default_handler or not_supported
        self._request_limits = request_limits or {}
        self.max_frame_length = max_frame_length
        self.high_water = high_water
        self.hard_limit = hard_limit
        self.limits = limits or Limits()
        self.overload = OverloadStats()
        self.channels: set[Channel] = set()
        self.watch = ConnectionGuard(name, self.channels, self.limits, self.overload, idle_timeout)
        self.request_queue = RequestQueue(self.limits, self.overload, time_slice, self._serve)
        self.oneways_waiting = 0
        self.time_slice = time_slice
        self.name = name
        self._tls = tls
        self.port_options = port_options  # the settings of the port, for the error if it is in use
        self.loop: asyncio.AbstractEventLoop
        self._asked_port = port
        self._port = port
        self._on_close = on_close
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []  # bound, but not yet served: one or two
        # Spinning on the only core would delay the peer's next request.
        self._busy_poll = busy_poll if cores() > 1 else 0.0
        self._last_read = 0.0
        self._awake_until = 0.0
        self._awake = False
        self._in_turn = False
        self.turn = TURN_S
        self._turn = 0.0  # start of this turn of the loop
        self._over = False  # the time of this turn is used up: frames read in it are queued
        self._empty: asyncio.Event

    @property
    def port(self) -> int:
        """The actual port, also if the configured one is 0."""
        return self._port

    @property
    def address(self) -> str:
        return format_address(self.host, self._port)

    async def bind(self) -> None:
        """Bind the port without serving it: connections are refused. ConfigError as from ``start``."""
        self.loop = asyncio.get_running_loop()
        self._sockets = [await bind(self.host, self._asked_port, self.name, self.port_options)]
        self._port = self._sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Listen. ConfigError if the port is in use or the host is not an address of this machine."""
        if not self._sockets:
            await self.bind()
        self._empty = asyncio.Event()
        self._empty.set()
        try:
            await self._listen(self._sockets.pop(0))
        except OSError as error:  # another process bound the port too, and listened first
            raise cannot_listen(self.host, self._asked_port, error, self.name, self.port_options) from error
        self.request_queue.changed()  # the limits may have been set since its creation
        self.watch.start()

    async def bind_second(self, step: int, port_options: str) -> None:
        """After ``bind``, also bind the port ``step`` above the first. Connections there wait for ``serve_second``.

        ConfigError if it is not available; the first port is not affected.
        """
        port = self._port + step
        sock = await bind(self.host, port, self.name, port_options)
        try:
            sock.listen(1024)
        except OSError as error:  # another process bound the port too, and listens
            sock.close()
            raise cannot_listen(self.host, port, error, self.name, port_options) from error
        self._sockets.append(sock)

    async def serve_second(self) -> None:
        """Serve the second port like the first: they share the limits and the queue."""
        while self._sockets:
            await self._listen(self._sockets.pop())

    async def _listen(self, sock: socket.socket) -> None:
        gate = TlsGate(self._tls, lambda: Channel(self), name=self.name)
        self._servers.append(await self.loop.create_server(gate.newcomer, sock=sock, backlog=1024))

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, wait at most ``grace`` seconds until written responses are sent, drop the rest."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.watch.close()
        for channel in list(self.channels):
            channel.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace)
        for channel in list(self.channels):
            channel.abort()
        await self._empty.wait()

    # --- called by channels -----------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> bool:
        if not self._servers or not self.watch.admit(channel):
            return False
        self.channels.add(channel)
        self._empty.clear()
        return True

    def received(self, channel: Channel, frames: list[memoryview], size: int) -> None:
        if channel.needs_attention:
            self.watch.whole(channel)
            channel.needs_attention = channel.is_paused or channel in self.request_queue
        if self._over or channel.needs_attention:
            self.request_queue.take(channel, frames, size)
        else:
            served = self._serve(channel, frames, self.time_slice)
            if served < len(frames):
                self.request_queue.take(channel, frames[served:], size)
        self._stay_awake()

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

    # --- serving ----------------------------------------------------------------------------------------------

    def _serve(
        self, channel: Channel, frames: list[memoryview], time_slice: float, refuse: Refuse | None = None
    ) -> int:
        """Process frames until the peer is behind with reading or the time is up; return the number processed.

        ``refuse`` returns the responses to rejected requests.
        """
        answers: list[Buffer] = []
        size = 0
        until = perf_counter() + time_slice if len(frames) > 1 else 0.0
        for index, frame in enumerate(frames):
            if index and perf_counter() >= until:
                channel.write_all(answers)
                return index
            try:
                command = RemotingCommand.decode(frame)
            except ProtocolError as error:
                channel.write_all(answers)
                channel.close_as_invalid(error)
                return len(frames)
            if command.flag & FLAG_RESPONSE:
                channel.answered(command)
                continue
            buffers = self._answer(channel, command, len(frame), refuse)
            if not buffers:
                continue
            answers += buffers
            size += len(buffers[-1])
            if size > FLUSH_SIZE:
                channel.write_all(answers)
                answers, size = [], 0
                if channel.is_paused:
                    return index + 1
        channel.write_all(answers)
        return len(frames)

    def _answer(
        self, channel: Channel, command: RemotingCommand, frame_size: int, refuse: Refuse | None
    ) -> Sequence[Buffer]:
        """Return the encoded response to a request, nothing if there is none yet."""
        try:
            answer = None if refuse is None else refuse(command)
            if answer is None:
                limit = self._request_limits.get(command.code)
                if limit is not None:
                    limit.check(command, frame_size)
                answer = self.handlers.get(command.code, self.default_handler)(channel, command)
            if answer is None or command.flag & FLAG_ONEWAY:
                return ()
            return encoded(answer)
        except Exception as error:
            failure = failure_of(channel, command, error)
            return () if command.flag & FLAG_ONEWAY else encoded(failure)

    def _stay_awake(self) -> None:
        """Keep the loop from sleeping for ``busy_poll`` seconds if requests arrive in quick succession.

        With a peer that sends its next request after each response (one sync producer) the server's core is asleep each
        time, and on virtual machines waking it takes longer than processing: measured 10,000 round trips/s without this
        and 19,000 with it. Slower traffic, below some 4,000 reads/s, is not affected.
        """
        now = perf_counter()
        if now - self._last_read < BUSY_GAP_S and self._busy_poll:
            self._awake_until = now + self._busy_poll
            if not self._awake:
                self._awake = True
                if not self._in_turn:
                    self._turn = now
                self.loop.call_soon(self._poll)
        elif not self._awake and not self._in_turn:
            self._in_turn = True
            self._turn = now
            self.loop.call_soon(self._next_turn)
        if now - self._turn > self.turn:
            self._over = True
        self._last_read = now

    def _poll(self) -> None:
        self._turn = now = perf_counter()
        self._over = False
        if now < self._awake_until:
            self.loop.call_soon(self._poll)  # a loop with pending callbacks polls its sockets without waiting
        else:
            self._awake = False

    def _next_turn(self) -> None:
        self._in_turn = self._over = False
        self._turn = perf_counter()


def failure_of(channel: Channel, command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the response to a request whose handler raised an error; unexpected errors are logged."""
    code: int = ResponseCode.SYSTEM_ERROR
    if isinstance(error, RocketError):  # an expected error: invalid header, unknown topic, full disk
        code = error.response_code or code
        text = f"{error.message} {error.remedy}".rstrip()
        logger.debug("code %d from %s failed: %s", command.code, channel, error)
    else:
        text = f"{type(error).__name__}: {error}"
        key = (command.code, type(error))
        _often.log(logging.ERROR, key, "code %d from %s failed", command.code, channel, exc_info=error)
    if len(text) > MAX_REMARK_CHARACTERS:  # it repeats what the request had; a client may not read so large a header
        text = f"{text[:MAX_REMARK_CHARACTERS]} … ({len(text):,} characters)"
    # The text may contain lone surrogates, which cannot be encoded in a header.
    return RemotingCommand.response(command, code, text.encode(errors="replace").decode())


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on :func:`new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
