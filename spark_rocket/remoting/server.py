"""The Remoting server: one asyncio protocol per connection, requests dispatched by their code.

A request is answered by the value that its handler returns, or later with ``channel.write(...)``. What a peer can do
to the server is bounded in every direction:

=====================  ==============================================================================================
peer                   server
=====================  ==============================================================================================
sends garbage          the connection is closed with a log line; frames before it in the stream were served
claims a huge frame    ``max_frame_length``; memory grows only with bytes that have arrived
does not read          above ``high_water`` bytes of answers nothing more is read from it nor handled for it, above
                       ``hard_limit`` the connection is dropped, or when it takes nothing for long (watch.py)
says nothing           closed after ``idle_timeout`` seconds without a byte from it; sooner when it never sent any, or
                       half a frame (watch.py)
opens connections      above the limit, of its address or of all, closed at once
sends very much        served for ``time_slice`` seconds, then it is the others' turn; nothing more is read meanwhile,
                       and what has waited too long is sent away (intake.py)
=====================  ==============================================================================================

Thread-safety: everything here, channels included, belongs to the event loop's thread; from another thread use
``loop.call_soon_threadsafe``. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingServer and NettyRemotingAbstract.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any, TypeVar, cast

from spark_rocket.errors import (
    ProtocolError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RocketError,
)
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.address import format_address, format_peer
from spark_rocket.remoting.cores import cores
from spark_rocket.remoting.intake import TURN, Backlog, Intake
from spark_rocket.remoting.listening import bind, cannot_listen
from spark_rocket.remoting.overload import Limits, OverloadStats
from spark_rocket.remoting.session import Session
from spark_rocket.remoting.tls_contexts import ServerTls
from spark_rocket.remoting.tls_server import CLIENT_HELLO, TlsGate
from spark_rocket.remoting.watch import Watch

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A body larger than this is handed to the transport beside its head; below it one copied frame is cheaper.
BODY_APART = 16 * 1024
# Answers of one read are written together, but never more than this held back.
FLUSH_SIZE = 256 * 1024
# Reads nearer together than this, in seconds, are a peer that waits for each answer, or many peers.
BUSY_GAP = 250e-6


class Channel(asyncio.Protocol):
    """One client's connection, as handlers see it."""

    __slots__ = (
        "_idle",
        "_oneways",
        "_paused",
        "_server",
        "_session",
        "_transport",
        "_unusual",
        "attributes",
        "backlog",
        "local_addr",
        "remote_addr",
    )

    #: Whether its client shares out queues, and so wants to know who else does.
    rebalances = True

    def __init__(self, server: RemotingServer) -> None:
        self.remote_addr = "unknown:0"
        self.local_addr = "unknown:0"
        self.attributes: dict[str, Any] = {}
        self._server = server
        self._session: Session[asyncio.Future[RemotingCommand]] = Session(server.max_frame_length)
        self._transport: asyncio.Transport | None = None
        self.backlog: Backlog | None = None  # frames that wait for their turn, or until the peer reads its answers
        self._paused = False
        self._unusual = True  # paused, or with a backlog, or in the middle of a frame; or nothing has come yet
        self._oneways = 0  # requests that wait until the peer reads again
        self._idle = 0  # sweeps since the last byte came

    def __repr__(self) -> str:
        return f"Channel({self.remote_addr})"

    # --- for handlers -----------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """False while the peer is behind with reading: hold back what can wait."""
        return not self._paused and self.is_active

    def write(self, command: RemotingCommand) -> None:
        """Send a late answer, or a request that wants no answer. On a closed channel it does nothing."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not command.flag & 1:
            if self._paused and not self._may_wait(command):
                return
            command.opaque = self._session.next_opaque()
        if len(command.body) > BODY_APART:
            transport.writelines((command.encode_head(), command.body))
        else:
            transport.write(command.encode())
        if self._paused and transport.get_write_buffer_size() > self._server.hard_limit:
            logger.warning("%s reads nothing; dropped with %d bytes unread", self, transport.get_write_buffer_size())
            transport.abort()

    def invoke(self, request: RemotingCommand, timeout: float = 3.0) -> asyncio.Future[RemotingCommand]:
        """Ask the peer something (codes 220, 221, 307, 309). The future fails with a RemotingError."""
        loop = self._server.loop
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        if not self.is_active:
            future.set_exception(self._lost())
            return future
        if len(self._session) >= self._server.limits.max_async:
            self._server.overload.async_refused += 1
            future.set_exception(
                RemotingTooMuchRequestError(
                    f"{len(self._session)} requests wait for answers of {self.remote_addr} already.",
                    remedy="Ask again in a moment, or raise serverAsyncSemaphoreValue.",
                )
            )
            return future
        self.write(request)
        opaque = request.opaque
        self._session.expect(opaque, future)

        def expire() -> None:
            if not future.done():
                future.set_exception(
                    RemotingTimeoutError(f"{self.remote_addr} did not answer code {request.code} in {timeout:g} s.")
                )

        def forget(_: asyncio.Future[RemotingCommand]) -> None:
            timer.cancel()
            self._session.take(opaque)

        timer = loop.call_later(timeout, expire)
        future.add_done_callback(forget)
        return future

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self.remote_addr = format_peer(transport.get_extra_info("peername"))
        self.local_addr = format_peer(transport.get_extra_info("sockname"))
        if not self._server._admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._server.high_water)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # Both loops do this by themselves today; an answer that waits 40 ms for an ACK is worth the certainty.
            # Buffer sizes are left to the kernel: a size set by hand switches its tuning, up to several MiB, off.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def secured(self, transport: asyncio.Transport) -> None:
        """Its peer speaks TLS: this is where it can be read."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._idle = 0
        try:
            frames = self._session.receive(data)
        except ProtocolError as error:
            self._garbage(CLIENT_HELLO if data[:2] == b"\x16\x03" else error)
            return
        server = self._server
        if not frames:
            self._unusual = True
            server.watch.unfinished(self)
            return
        if self._unusual:
            server.watch.spoke(self)
            server.watch.whole(self)
            self._unusual = self._paused or self.backlog is not None
        if server.over or self._unusual:
            server.intake.take(self, frames, len(data))
        else:
            handled = self.handle(frames, server.time_slice)
            if handled < len(frames):
                server.intake.take(self, frames[handled:], len(data))
        server._stay_awake()

    # --- for intake and watch ---------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole."""
        return self._session.splitter.pending

    @property
    def in_progress(self) -> bool:
        """Whether a frame is not whole."""
        return self._session.in_progress

    @property
    def unread(self) -> int:
        """Bytes of answers that this process keeps for the peer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begun_frame(self, most: int) -> tuple[memoryview, int]:
        """At most so many bytes of the frame that is not whole, and how many bytes of it are missing."""
        return self._session.splitter.begun(most)

    def skip(self, missing: int) -> None:
        """Throw away the frame that is not whole."""
        self._session.skip(missing)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_for_backlog(self) -> None:
        """Read nothing more: the others' turn would not come before that is read."""
        self._unusual = True
        transport = self._transport
        if transport is not None and not self._paused and not transport.is_closing():
            transport.pause_reading()

    def resume_after_backlog(self) -> None:
        """All that waited is served."""
        transport = self._transport
        if transport is not None and not self._paused and not transport.is_closing():
            self._unusual = False
            transport.resume_reading()

    def handle(self, frames: list[memoryview], time_slice: float) -> int:
        """Serve frames until the peer is behind with reading or its time is up; how many were served."""
        server = self._server
        handlers = server.handlers
        transport = cast(asyncio.Transport, self._transport)
        decode = RemotingCommand.decode
        answers: list[Any] = []
        size = 0
        served = len(frames)
        until = perf_counter() + time_slice if served > 1 else 0.0
        for index, frame in enumerate(frames):
            if index and perf_counter() >= until:
                served = index
                break
            try:
                command = decode(frame)
            except ProtocolError as error:
                self.write_all(answers)
                self._garbage(error)
                return len(frames)
            if command.flag & 1:
                self._answered(command)
                continue
            handler = handlers.get(command.code, server.default_handler)
            try:
                answer = handler(self, command)
                if answer is None or command.flag & 2:
                    continue
                body = answer.body
                if len(body) > BODY_APART:
                    answers.append(answer.encode_head())
                    answers.append(body)
                    size += len(body)
                else:
                    encoded = answer.encode()
                    answers.append(encoded)
                    size += len(encoded)
            except Exception as error:
                failure = failure_of(self, command, error)
                if not command.flag & 2:
                    answers.append(failure.encode())
            if size > FLUSH_SIZE:
                self.write_all(answers)
                answers = []
                size = 0
                if self._paused:
                    return index + 1
        if len(answers) == 1:  # the usual case: one request at a time on a connection
            if not transport.is_closing():
                transport.write(answers[0])
        else:
            self.write_all(answers)
        return served

    def write_all(self, answers: list[Any]) -> None:
        """Write encoded answers."""
        transport = self._transport
        if answers and transport is not None and not transport.is_closing():
            transport.writelines(answers)

    def pause_writing(self) -> None:
        self._paused = self._unusual = True
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            self._server.watch.reads_nothing(self)

    def resume_writing(self) -> None:
        self._paused = False
        self._idle = 0
        server = self._server
        server.oneways_waiting -= self._oneways
        self._oneways = 0
        server.watch.reads_again(self)
        if self.backlog is None:
            self.resume_after_backlog()
        else:
            server.intake.reads_again(self)

    def _may_wait(self, command: RemotingCommand) -> bool:
        """Whether a request may wait until the peer reads again; a one-way one only as far as there is room."""
        if command.flag & 2:
            server = self._server
            if server.oneways_waiting >= server.limits.max_oneway:
                server.overload.oneway_dropped += 1
                return False
            server.oneways_waiting += 1
            self._oneways += 1
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.intake.forget(self)
        self._server.oneways_waiting -= self._oneways
        self._oneways = 0
        for future in self._session.drain():
            if not future.done():
                future.set_exception(self._lost())
        self._server._forget(self)

    # --- inside -----------------------------------------------------------------------------------------------

    def _answered(self, response: RemotingCommand) -> None:
        future = self._session.take(response.opaque)
        if future is None:
            logger.debug("%s answered %d, which nobody asked or waits for", self, response.opaque)
        elif not future.done():
            future.set_result(response)

    def _garbage(self, error: ProtocolError) -> None:
        logger.warning("%s closed: it sent what is no frame: %s", self, error.message)
        self._server.intake.forget(self)
        self.close()

    def _lost(self) -> RemotingConnectError:
        return RemotingConnectError(f"The connection from {self.remote_addr} was lost.")

    def _sweep(self, limit: int) -> None:
        """Called a few times per idle timeout."""
        transport = self._transport
        if transport is None:
            return
        if self._idle >= limit:
            logger.info("%s closed: nothing came from it within the idle timeout", self)
            # A peer that reads nothing would keep a polite close waiting for ever.
            transport.abort() if self._paused or transport.is_closing() else transport.close()
        self._idle += 1
        if self._session.in_progress and not self._unusual:  # it ends within a frame that nobody has looked at
            self._unusual = True
            self._server.watch.unfinished(self)


Handler = Callable[[Channel, RemotingCommand], RemotingCommand | None]


def failure_of(channel: Channel, command: RemotingCommand, error: Exception) -> RemotingCommand:
    """The answer to a request whose handling raised; what is no refusal is logged."""
    code: int = ResponseCode.SYSTEM_ERROR
    if isinstance(error, RocketError):  # an answer like any other: wrong header, unknown topic, full disk
        code = error.response_code or code
        text = f"{error.message} {error.remedy}".rstrip()
        logger.debug("code %d from %s failed: %s", command.code, channel, error)
    else:
        text = f"{type(error).__name__}: {error}"
        logger.error("code %d from %s failed", command.code, channel, exc_info=error)
    # Text from anywhere may hold lone surrogates, which no header can carry.
    return RemotingCommand.response(command, code, text.encode(errors="replace").decode())


def not_supported(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
    """The default handler."""
    return RemotingCommand.response(
        request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {request.code} is not supported"
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
        tls: ServerTls | None = None,
    ) -> None:
        self.host = host
        self.handlers = {int(code): handler for code, handler in handlers.items()}
        self.default_handler: Handler = default_handler or not_supported
        self.max_frame_length = max_frame_length
        self.high_water = high_water
        self.hard_limit = hard_limit
        self.idle_timeout = idle_timeout
        self.limits = limits or Limits()
        self.overload = OverloadStats()
        self.intake: Intake
        self.watch = Watch(self, self.limits, self.overload)
        self.over = False  # this turn of the loop is used up: what is read in it waits
        self.oneways_waiting = 0
        self.time_slice = time_slice
        self.name = name
        self._tls = tls
        self.port_options = port_options  # where its port comes from, for whoever finds that it is taken
        self.channels: set[Channel] = set()
        self.loop: asyncio.AbstractEventLoop
        self._asked_port = port
        self._port = port
        self._on_close = on_close
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None  # bound, but not yet listening
        self._sweeper: asyncio.TimerHandle | None = None
        # Spinning on the only core would keep the peer from the answer's next request.
        self._busy_poll = busy_poll if cores() > 1 else 0.0
        self._last_read = 0.0
        self._awake_until = 0.0
        self._awake = False
        self._in_turn = False
        self.turn = TURN
        self._turn = 0.0  # when this turn of the loop began
        self._empty: asyncio.Event

    @property
    def port(self) -> int:
        """The real port, also when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        return format_address(self.host, self._port)

    async def bind(self) -> None:
        """Take the port, but serve nobody yet: whoever connects is refused. ConfigError as from ``start``."""
        self.loop = asyncio.get_running_loop()
        self._socket = await bind(self.host, self._asked_port, self.name, self.port_options)
        self._port = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Listen. ConfigError if the port is taken or the host is not this machine's."""
        if self._socket is None:
            await self.bind()
        assert self._socket is not None
        self._empty = asyncio.Event()
        self._empty.set()
        sock, self._socket = self._socket, None
        try:
            self._server = await self.loop.create_server(self._protocols(), sock=sock, backlog=1024)
        except OSError as error:  # somebody else bound the port too, and listened first
            raise cannot_listen(self.host, self._asked_port, error, self.name, self.port_options) from error
        self.intake = Intake(self.loop, self.limits, self.overload, self.time_slice)
        self.watch.start(self.loop)
        self._sweep()

    def _protocols(self) -> Callable[[], asyncio.Protocol]:
        if self._tls is None:
            return lambda: Channel(self)
        return TlsGate(self._tls, lambda: Channel(self), name=self.name).newcomer

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, let answers already written go out for at most ``grace`` seconds, drop the rest."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.watch.close()
        for channel in list(self.channels):
            channel.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace)
        for channel in list(self.channels):
            cast(asyncio.Transport, channel._transport).abort()
        await self._empty.wait()

    # --- called by channels -----------------------------------------------------------------------------------

    def _admit(self, channel: Channel) -> bool:
        if self._server is None or not self.watch.admit(channel):
            return False
        self.channels.add(channel)
        self._empty.clear()
        return True

    def _forget(self, channel: Channel) -> None:
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
                logger.exception("the close of %s was not handled", channel)

    def _stay_awake(self) -> None:
        """Keep the loop from sleeping for ``busy_poll`` seconds, if requests come in quick succession.

        A peer that sends its next request when it has the last answer (one sync producer) finds the server's core
        asleep each time, and on virtual machines waking it takes longer than serving: measured 10,000 round trips/s
        without this and 19,000 with it. Slower traffic, below some 4,000 reads/s, costs nothing.
        """
        now = perf_counter()
        if now - self._last_read < BUSY_GAP and self._busy_poll:
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
            self.over = True
        self._last_read = now

    def _poll(self) -> None:
        self._turn = now = perf_counter()
        self.over = False
        if now < self._awake_until:
            self.loop.call_soon(self._poll)  # a loop with something to do looks at its sockets without waiting
        else:
            self._awake = False

    def _next_turn(self) -> None:
        self._in_turn = self.over = False
        self._turn = perf_counter()

    def _sweep(self) -> None:
        sweeps = 4
        for channel in list(self.channels):
            channel._sweep(sweeps)
        self._sweeper = self.loop.call_later(self.idle_timeout / sweeps, self._sweep)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where it can be imported, which more than doubles what a server serves; else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on :func:`new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
