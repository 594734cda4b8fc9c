"""One connection of a server: requests in, answers out, and what the peer is asked.

An answer may come from a handler at once or later, by :meth:`Channel.write`. Nothing more is read from a peer that does
not read its answers, and nothing more handled for it; one that is too far behind is dropped.

Thread-safety: all of it belongs to the server's event loop; from another thread use ``loop.call_soon_threadsafe``.
Corresponds to a Netty channel with NettyRemotingAbstract's processing of what comes in on it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from spark_rocket.errors import (
    ProtocolError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RocketError,
)
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.address import format_peer
from spark_rocket.remoting.server.descriptors import HasFileno
from spark_rocket.remoting.server.request_queue import Backlog
from spark_rocket.remoting.session import Session
from spark_rocket.remoting.tls.server import CLIENT_HELLO

if TYPE_CHECKING:
    from spark_rocket.remoting.server.server import RemotingServer

logger = logging.getLogger(__name__)

# A body larger than this is handed to the transport beside its head; below it one copied frame is cheaper.
BODY_APART = 16 * 1024
# Answers of one read are written together, but never more than this held back.
FLUSH_SIZE = 256 * 1024


class Channel(asyncio.Protocol):
    """One client's connection, as handlers see it."""

    __slots__ = (
        "_idle",
        "_is_plain",
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

    def __init__(self, server: RemotingServer) -> None:
        self.remote_addr = "unknown:0"
        self.local_addr = "unknown:0"
        self.attributes: dict[str, Any] = {}
        self._server = server
        self._session: Session[asyncio.Future[RemotingCommand]] = Session(server.max_frame_length)
        self._transport: asyncio.Transport | None = None
        self._is_plain = True  # what the socket receives is what the peer says: no TLS
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

    @property
    def descriptor(self) -> HasFileno | None:
        """What knows the number of the connection's descriptor; None if nothing does."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

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
        self._is_plain = False

    def data_received(self, data: bytes) -> None:
        self._idle = 0
        try:
            frames = self._session.receive(data)
        except ProtocolError as error:
            self._garbage(CLIENT_HELLO if data[:2] == b"\x16\x03" else error)
            return
        if not frames:
            self._unusual = True
            self._server.watch.unfinished(self)
            if self._is_plain and self._session.splitter.place() is not None:
                self._receive_with(LargeFrame(self))
            return
        self._take(frames, len(data))

    def _take(self, frames: list[memoryview], size: int) -> None:
        """Frames have come, in so many bytes."""
        server = self._server
        if self._unusual:
            server.watch.spoke(self)
            server.watch.whole(self)
            self._unusual = self._paused or self.backlog is not None
        if server.over or self._unusual:
            server.request_queue.take(self, frames, size)
        else:
            handled = self.handle(frames, server.time_slice)
            if handled < len(frames):
                server.request_queue.take(self, frames[handled:], size)
        server._stay_awake()

    def place(self) -> memoryview:
        """For :class:`LargeFrame`: where what comes belongs."""
        place = self._session.splitter.place()
        assert place is not None
        return place

    def filled(self, count: int) -> None:
        """For :class:`LargeFrame`: so many bytes have come to their place."""
        self._idle = 0
        frame = self._session.splitter.filled(count)
        if frame is not None:
            self._receive_with(self)
            self._take([frame], len(frame))
            return
        self._server.watch.unfinished(self)
        if self._session.splitter.place() is None:  # there is no memory for it, and the rest is thrown away
            self._receive_with(self)

    def _receive_with(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have what is received. uvloop's transports look at that when reading begins."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            transport.set_protocol(protocol)
            transport.resume_reading()

    # --- for request_queue and connection_guard ----------------------------------------------------------------------

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
            server.request_queue.reads_again(self)

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
        self._server.request_queue.forget(self)
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
        self._server.request_queue.forget(self)
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


class LargeFrame(asyncio.BufferedProtocol):
    """Stands in for a channel while the rest of a large frame comes, which is received straight into its place."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._channel.place()

    def buffer_updated(self, nbytes: int) -> None:
        self._channel.filled(nbytes)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.connection_lost(exc)
