"""One connection of a server: received frames, responses, and requests to the peer.

The server dispatches requests; a handler responds immediately, or later with :meth:`Channel.write`. Nothing more is
read from a peer that does not read its responses. A peer that is too far behind is dropped.

Thread-safety: all of it belongs to the server's event loop; from another thread use ``loop.call_soon_threadsafe``.
Corresponds to a Netty channel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError, RemotingConnectError, RemotingError, RemotingTooMuchRequestError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.address import format_peer
from spark_rocket.remoting.future_requests import DeadlineTimer, FutureRequest, no_response
from spark_rocket.remoting.server.overload import Limits, OverloadStats
from spark_rocket.remoting.session import Pending, Session, pieces_of
from spark_rocket.remoting.socket_options import set_no_delay

logger = logging.getLogger(__name__)


class ChannelOwner(Protocol):
    """The part of the server that a channel uses."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    overload: OverloadStats
    often: RateLimited
    max_frame_length: int
    high_water: int
    hard_limit: int
    receive_buffer: memoryview
    """What connections receive, until they are given it."""
    oneways_waiting: int

    def connected(self, channel: Channel) -> bool:
        """Whether to accept a new connection."""

    def received(self, channel: Channel, frames: list[memoryview], size: int) -> None:
        """Complete frames were received, in ``size`` bytes."""

    def received_part(self, channel: Channel) -> None:
        """A part of a frame was received."""

    def paused(self, channel: Channel) -> None:
        """The peer is behind with reading."""

    def resumed(self, channel: Channel) -> None:
        """The peer reads again."""

    def closing(self, channel: Channel) -> None:
        """The peer sent an invalid frame: process nothing more of it."""

    def lost(self, channel: Channel) -> None:
        """The connection has ended."""


class Channel(asyncio.BufferedProtocol):
    """One client's connection, as handlers see it."""

    __slots__ = (
        "_deadlines",
        "_oneways",
        "_owner",
        "_session",
        "_transport",
        "attributes",
        "idle_sweeps",
        "is_paused",
        "needs_attention",
        "remote_addr",
    )

    def __init__(self, owner: ChannelOwner) -> None:
        self.remote_addr = "unknown:0"
        self.attributes: dict[str, Any] = {}
        self.is_paused = False  # the peer is behind with reading
        self.needs_attention = True  # new, paused, with queued requests or within a frame
        self.idle_sweeps = 0  # since the last received byte
        self._owner = owner
        self._session = Session(owner.max_frame_length)
        self._deadlines: DeadlineTimer | None = None  # from the first request to the peer
        self._transport: asyncio.Transport | None = None
        self._oneways = 0  # requests that are buffered until the peer reads again

    def __repr__(self) -> str:
        return f"Channel({self.remote_addr})"

    # --- for handlers -----------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """False while the peer is behind with reading: defer data that can wait."""
        return not self.is_paused and self.is_active

    def write(self, command: RemotingCommand) -> None:
        """Send a late response, or a request without a response. Does nothing on a closed channel."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not command.is_response:
            if self.is_paused and not self._may_buffer(command):
                return
            command.opaque = self._session.next_opaque()
        self.write_all(pieces_of(command))
        if self.is_paused and self.unread > self._owner.hard_limit:
            self._owner.often.peer(self.remote_addr, "dropped %s: not reading, %d bytes unread", self, self.unread)
            transport.abort()

    def write_all(self, buffers: Sequence[Buffer]) -> None:
        """Write encoded commands."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif buffers:
            transport.writelines(buffers)

    def invoke(self, request: RemotingCommand, timeout: float = 3.0) -> asyncio.Future[RemotingCommand]:
        """Send a request to the peer (codes 220, 221, 307, 309). The future fails with a RemotingError."""
        if not self.is_active:
            return self._not_sent(self._lost())
        if len(self._session) >= self._owner.limits.max_async:
            self._owner.overload.async_refused += 1
            return self._not_sent(
                RemotingTooMuchRequestError(
                    f"Too many requests in flight to {self.remote_addr} ({len(self._session)}).",
                    remedy="Retry after a moment, or raise serverAsyncSemaphoreValue.",
                )
            )
        self.write(request)
        pending = FutureRequest(request, timeout, time.monotonic(), self._session.forget)
        self._session.expect(pending)
        if self._deadlines is None:
            self._deadlines = DeadlineTimer(self._owner.loop, self._session, self._expire)
        self._deadlines.watch()
        return pending.future

    def close(self) -> None:
        """Close after written data was sent."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.BufferedProtocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self.remote_addr = format_peer(transport.get_extra_info("peername"))
        if not self._owner.connected(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._owner.high_water)
        set_no_delay(transport.get_extra_info("socket"))

    def secured(self, transport: asyncio.Transport) -> None:
        """The peer speaks TLS: use this transport from now on."""
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.buffer(self._owner.receive_buffer)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._session.filled(nbytes, self._owner.receive_buffer)
        except ProtocolError as error:
            self.close_as_invalid(error)
        else:
            self._received(frames, nbytes)

    def data_received(self, data: bytes) -> None:
        """The first bytes of a connection, and decrypted ones."""
        try:
            frames = self._session.receive(data)
        except ProtocolError as error:
            self.close_as_invalid(error)
        else:
            self._received(frames, len(data))

    def _received(self, frames: list[memoryview], size: int) -> None:
        self.idle_sweeps = 0
        if frames:
            self._owner.received(self, frames, max(size, len(frames[0])))  # the first may have begun in earlier reads
        else:
            self.needs_attention = True
            self._owner.received_part(self)

    def pause_writing(self) -> None:
        self.is_paused = self.needs_attention = True
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            self._owner.paused(self)

    def resume_writing(self) -> None:
        self.is_paused = False
        self.idle_sweeps = 0
        self._forget_oneways()
        self._owner.resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_oneways()
        if self._deadlines is not None:
            self._deadlines.stop()
        for request in self._session.drain():
            request.fail(self._lost())
        self._owner.lost(self)

    # --- for the server and its parts -------------------------------------------------------------------------

    def fileno(self) -> int:
        """The connection's descriptor; -1 when there is none."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def pending(self) -> int:
        """Bytes of the incomplete frame."""
        return self._session.unfinished_bytes

    @property
    def in_progress(self) -> bool:
        """Whether a frame is incomplete."""
        return self._session.in_progress

    @property
    def unread(self) -> int:
        """Bytes of responses that are buffered for the peer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begun_frame(self, most: int) -> memoryview:
        """At most so many bytes of the incomplete frame."""
        return self._session.begun_frame(most)

    def skip(self) -> None:
        """Drop the incomplete frame, and its missing bytes when they arrive."""
        self._session.skip()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self, sweeps: int) -> None:
        """Count a sweep; close after so many without a byte from the peer."""
        transport = self._transport
        if transport is None:
            return
        if self.idle_sweeps >= sweeps:
            self._owner.often.peer(
                self.remote_addr, "closed %s: no data within the idle timeout", self, level=logging.INFO
            )
            # For a peer that does not read, close() would never finish.
            transport.abort() if self.is_paused or transport.is_closing() else transport.close()
        self.idle_sweeps += 1

    def stop_reading(self) -> None:
        """Stop reading until the queued requests are processed."""
        self.needs_attention = True
        transport = self._transport
        if transport is not None and not self.is_paused and not transport.is_closing():
            transport.pause_reading()

    def read_on(self) -> None:
        """Read again: the queue is empty."""
        transport = self._transport
        if transport is not None and not self.is_paused and not transport.is_closing():
            self.needs_attention = False
            transport.resume_reading()

    def responded(self, response: RemotingCommand) -> None:
        """Handle a response to a request of :meth:`invoke`."""
        request = self._session.take(response.opaque)
        if request is None:
            logger.debug("%s sent response %d to no pending request", self, response.opaque)
        else:
            request.respond(response)

    def close_as_invalid(self, error: ProtocolError) -> None:
        """Close because of bytes that are not a frame."""
        self._owner.often.peer(self.remote_addr, "closed %s: invalid frame: %s", self, error.message)
        self._owner.closing(self)
        self.close()

    # --- inside -----------------------------------------------------------------------------------------------

    def _not_sent(self, error: RemotingError) -> asyncio.Future[RemotingCommand]:
        future: asyncio.Future[RemotingCommand] = self._owner.loop.create_future()
        future.set_exception(error)
        return future

    def _expire(self, late: list[Pending]) -> None:
        for request in late:
            request.fail(no_response(self.remote_addr, request))

    def _may_buffer(self, command: RemotingCommand) -> bool:
        """Whether to buffer a request until the peer reads again; the number of one-way requests is limited."""
        if command.is_oneway:
            owner = self._owner
            if owner.oneways_waiting >= owner.limits.max_oneway:
                owner.overload.oneway_dropped += 1
                return False
            owner.oneways_waiting += 1
            self._oneways += 1
        return True

    def _forget_oneways(self) -> None:
        self._owner.oneways_waiting -= self._oneways
        self._oneways = 0

    def _lost(self) -> RemotingConnectError:
        return RemotingConnectError(f"The connection from {self.remote_addr} was lost.")
