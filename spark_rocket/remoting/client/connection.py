"""One client connection on an event loop: it moves bytes between its transport and the session of its requests.

A connection can be used immediately: until it is open, requests are queued, then written in order, or fail with it.
Requests are written at the end of the loop's iteration, together with the others of that iteration. Each request leaves
the session exactly once: with its response, at its deadline, or when the connection is lost. Large bodies are passed to
the transport separately from their head, and received into a buffer of the frame: neither is copied.

While the peer does not read, ``paused`` is set and unsent requests are kept. A dead connection is lost, and the next
request opens a new one:

=============================  ========================================================================================
a request is late, abandoned   if the peer has not read unsent bytes for ``STALL_S``
a request is late              if nothing was received since it, or an earlier late one, was sent ``STALL_S`` ago or
                               more: a slow peer that still responds to others keeps its connection
the system gives up the peer   see ``socket_options``
=============================  ========================================================================================

Thread-safety: event loop only, except ``lost``, ``paused``, ``is_open`` and ``avoid_until``, which other threads may
read. Nothing is stored on disk. Corresponds to a Netty channel with its ResponseFutures, and to Java's
clientCloseSocketIfTimeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from spark_rocket.errors import ProtocolError, RemotingConnectError, RemotingError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.names import NameTranslation
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.event_loop import CallbackThread, with_callbacks_on
from spark_rocket.remoting.future_requests import DeadlineTimer, no_response
from spark_rocket.remoting.session import Pending, Pieces, Session
from spark_rocket.remoting.socket_options import set_caller_options
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.problems import problem_of

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
HIGH_WATER_BYTES = 16 * 1024 * 1024  # unsent bytes above which the peer counts as not reading
SLOW_CONNECT_S = 0.5
STALL_S = 3.0
HTTP = "the peer speaks HTTP, as a web server does"
HTTP2 = "the peer speaks HTTP/2, as a gRPC port does"
REMEDY = "Check the address and that the server is running."
_SETTINGS_BYTES = 9  # the head of an HTTP/2 frame
_READ_GRACE_S = 0.05


class RemotingConnection(asyncio.BufferedProtocol):
    """One connection to a server, created on its loop's thread. ``lost`` is None while the connection can be used.

    ``on_request`` gets the requests of the server; it responds with :meth:`write`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        connect_timeout: float,
        on_request: Callable[[RemotingConnection, RemotingCommand], None],
        *,
        post: Callable[[Callable[[], object]], object] | None = None,
        callbacks: CallbackThread | None = None,
        names: NameTranslation | None = None,
        tls: ClientTls | None = None,
        target: str | None = None,
        remedy: str = REMEDY,
    ) -> None:
        """``connect_timeout`` in seconds. ``post`` runs a call on the loop; default: it is called there already.

        ``target``: where to connect to, if not to ``address``. ``remedy``: of errors while there is no connection.
        ``callbacks`` runs the callbacks of promises; without it they run on the loop.
        """
        self.address = address
        self._target = target or address
        self._remedy = remedy
        self.post = post or loop.call_soon
        self.callbacks = callbacks
        self.lost: RemotingConnectError | None = None
        self._greeting = b""
        self.paused: Promise[None] | None = None
        """While the peer does not read: settled when it does, or when the connection is lost."""
        self.avoid_until = 0.0
        """Until when the failure of a slow connection attempt is cached."""
        self.opened: Promise[None] = Promise()
        self.closed: Promise[None] = Promise()
        self.session = Session(is_open=False)
        self._spare = _receive_buffer()
        self._loop = loop
        self._connect_timeout = connect_timeout
        self._on_request = on_request
        self._names = names
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._plain: asyncio.Transport | None = None  # below TLS
        self._opening: asyncio.Task[None] | None = None
        self._unsent: list[Buffer] = []  # of this iteration of the loop: written together at its end
        self._passed = 0  # bytes of all frames
        self._read_by_peer = -1  # bytes that the peer had accepted when something was late, and since when
        self._stalled_since = 0.0
        self._heard = 0.0  # when the peer was last heard
        self._silent_since = -1.0  # when the first late request was sent after which it was not heard
        self._written: list[Promise[None]] = []  # of the unsent frames
        self._queued: list[tuple[Pending, Pieces]] = []  # until the connection is open
        self._deadlines = DeadlineTimer(loop, self.session, self._expire)

    # --- opening ----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.session.is_open

    def open(self) -> None:
        """Begin to connect; ``opened`` gets the outcome."""
        if self.lost is None:
            self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        started = time.monotonic()
        try:
            host, port = parse_address(self._target)
            context = None if self._tls is None else self._tls.context()
            async with asyncio.timeout(self._connect_timeout):
                if context is None:
                    await self._loop.create_connection(lambda: self, host, port)
                else:
                    await self._open_tls(host, port, context)
        except TimeoutError as error:
            seconds = time.monotonic() - started
            if seconds >= SLOW_CONNECT_S:
                self.avoid_until = time.monotonic() + seconds
            reason = str(error) or f"no response within {self._connect_timeout:.1f} s"
            self._end(self.not_connected(reason))
        except RemotingConnectError as error:
            self._end(error)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            failure = self.not_connected(str(error))
            failure.__cause__ = error
            self._end(failure)
        except Exception as error:  # unreadable TLS files
            self._end(RemotingConnectError(f"No connection to {self.address}: {error}."))

    async def _open_tls(self, host: str, port: int, context: ssl.SSLContext) -> None:
        plain, _ = await self._loop.create_connection(asyncio.Protocol, host, port)
        try:
            transport = await self._loop.start_tls(plain, self, context, server_hostname=host)
            if transport is None:
                raise ConnectionResetError("closed by the peer")
        except (asyncio.CancelledError, OSError, ValueError) as error:
            plain.abort()
            if isinstance(error, asyncio.CancelledError) and self.lost is not None:
                raise
            problem = problem_of(TimeoutError() if isinstance(error, asyncio.CancelledError) else error,
                                 server=False, name=host)  # fmt: skip
            raise RemotingConnectError(
                f"No TLS connection to {self.address}: it {problem.text}.",
                remedy=problem.remedy,
                code=problem.error_code,
                retriable=not problem.is_lasting,
            ) from error
        self._plain = plain
        self.connection_made(transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        if self.lost is not None:
            self._transport.abort()
            return
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            # A connection to a free local port may connect to itself.
            self._end(self.not_connected("no server listens on this port"), abort=True)
            return
        set_caller_options(transport.get_extra_info("socket"))
        self._heard = time.monotonic()
        self.session.is_open = True
        self.opened.resolve(None)
        queued, self._queued = self._queued, []
        for request, pieces in queued:
            if self.session.expects(request.opaque):
                self.write(pieces)
        self._deadlines.expire()  # the deadlines for connecting have ended

    def no_connection(self, seconds: float) -> RemotingConnectError:
        """Return the error of a request whose time for connecting is over."""
        return RemotingConnectError(f"No connection to {self._place} within {seconds:.1f} s.", remedy=self._remedy)

    def not_connected(self, reason: str) -> RemotingConnectError:
        """Return the error of a failed attempt to connect."""
        return RemotingConnectError(f"No connection to {self._place}: {reason.removesuffix('.')}.", remedy=self._remedy)

    @property
    def _place(self) -> str:
        return self.address if self._target == self.address else f"{self.address} (at {self._target})"

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, request: Pending, pieces: Pieces) -> None:
        """Send a request, whose number is in its frame. ``request`` gets the response or the error."""
        if self.lost is not None:
            self._fail(request, copy.copy(self.lost))
            return
        request.sent = time.monotonic()
        self.session.expect(request)
        self._deadlines.watch()
        if self.session.is_open:
            self.write(pieces)
        else:
            self._queued.append((request, pieces))

    def write(self, pieces: Pieces, written: Promise[None] | None = None) -> None:
        """Write a frame to an open connection. ``written`` is settled when the transport has it."""
        if self.lost is not None:
            if written is not None:
                written.fail(copy.copy(self.lost))
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += pieces
        self._passed += sum(map(len, pieces))
        if written is not None:
            self._written.append(written)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.writelines(unsent)
        written, self._written = self._written, []
        for promise in written:
            promise.resolve(None)

    def pause_writing(self) -> None:
        self.paused = Promise()

    def resume_writing(self) -> None:
        paused, self.paused = self.paused, None
        if paused is not None:
            paused.resolve(None)

    @property
    def unsent_bytes(self) -> int:
        return sum(each.get_write_buffer_size() for each in (self._transport, self._plain) if each is not None)

    # --- deadlines --------------------------------------------------------------------------------------------

    def _expire(self, late: list[Pending]) -> None:
        for request in late:
            self._fail(request, self.late(request))
        self.check_stalled()
        self._check_silent(late)

    def _check_silent(self, late: list[Pending]) -> None:
        """Close the connection if nothing was received for some seconds since one of the late requests was sent."""
        silent = [sent for sent in (self._silent_since, *(request.sent for request in late)) if sent >= self._heard]
        if not silent or not self.is_open or self.lost is not None or self.unsent_bytes:
            return
        self._silent_since = min(silent)
        if time.monotonic() - self._silent_since >= STALL_S:
            # If this process was suspended, responses may be waiting to be read.
            self._loop.call_later(_READ_GRACE_S, self._close_silent)

    def _close_silent(self) -> None:
        if self.lost is None and self._silent_since >= self._heard:
            seconds = time.monotonic() - self._silent_since
            logger.warning("closed connection to %s: no response to any request for %.1f s", self.address, seconds)
            self.close(f"no response to any request for {seconds:.1f} s", abort=True)

    def late(self, request: Pending) -> RemotingError:
        """The error of a request without a response in time."""
        if self.is_open:
            return no_response(self.address, request)
        return self.no_connection(request.timeout - (request.deadline - request.connect_by))

    def abandon(self, request: Pending) -> None:
        """Ignore the response of a request, if there is none yet. From any thread."""
        self.post(partial(self.forget, request))

    def forget(self, request: Pending) -> None:
        """Like ``abandon``, on the loop."""
        if self.session.forget(request):
            self.check_stalled()

    def check_stalled(self) -> None:
        """Close the connection if its peer has not read anything for some seconds. Called when something is late."""
        unsent, now = self.unsent_bytes, time.monotonic()
        if not unsent or self._passed - unsent > self._read_by_peer:
            self._read_by_peer, self._stalled_since = self._passed - unsent, now
        elif now - self._stalled_since >= STALL_S:
            self.close("the peer does not read", abort=True)

    def _fail(self, request: Pending, error: RemotingError) -> None:
        with_callbacks_on(self.callbacks, request.fail, error)

    # --- receiving --------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.session.buffer(self._spare)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = time.monotonic()
        if not self._greeting:
            self._greeting = bytes(self._spare[: min(nbytes, _SETTINGS_BYTES)])
        try:
            for frame in self.session.filled(nbytes, self._spare):
                self._dispatch(RemotingCommand.decode(frame))
        except ProtocolError as error:
            logger.warning("closed connection to %s: invalid frame: %s", self.address, error.message)
            reason = f"invalid frame: {error.message.removesuffix('.')}"
            self.close(self._other_protocol or reason, abort=True)

    def _dispatch(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self._on_request(self, command)
            return
        request = self.session.take(command.opaque)
        if request is not None:  # otherwise its deadline has passed
            with_callbacks_on(self.callbacks, self._respond, request, command)

    def _respond(self, request: Pending, response: RemotingCommand) -> None:
        try:
            if self._names is not None:
                self._names.received_response(request.code, response)
            request.respond(response)
        except BaseException as error:  # including SystemExit of a callback: the loop serves others too
            logger.exception("callback of a response of %s failed", self.address)
            request.fail(error)

    # --- the end ----------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._other_protocol or ("closed by the peer" if exc is None else str(exc))
        if isinstance(exc, ssl.SSLError):
            problem = problem_of(exc, server=False, name=self.address)
            reason = f"it {problem.text}. {problem.remedy}".strip()
        self._end(self._error(reason))
        self.closed.resolve(None)

    @property
    def _other_protocol(self) -> str:
        """What the peer speaks, if it is no Remoting server: HTTP, or HTTP/2 if it began with a SETTINGS frame.

        Such a frame begins with 3 bytes of length, type 4, no flags, stream 0.
        """
        if self._greeting[3:] == b"\4\0\0\0\0\0":
            return HTTP2
        return HTTP if self._greeting.startswith(b"HTTP/") else ""

    def close(self, reason: str = "closed by this client", *, abort: bool = False) -> None:
        """End the connection: its requests fail. What is written already is still sent, unless ``abort``."""
        self._end(self._error(reason), abort=abort)

    def _end(self, error: RemotingConnectError, *, abort: bool = False) -> None:
        if self.lost is None:
            self.lost = error
        self._queued = []
        self._deadlines.stop()
        if self._transport is None:
            if self._opening is not None and self._opening is not asyncio.current_task(self._loop):
                self._opening.cancel()
            self.closed.resolve(None)
        elif abort:
            self._transport.abort()
        else:
            if self._unsent:
                self._flush()
            self._transport.close()
        self.opened.fail(copy.copy(self.lost))
        self.resume_writing()
        written, self._written = self._written, []
        for promise in written:
            promise.fail(copy.copy(self.lost))
        for request in self.session.drain():
            self._fail(request, copy.copy(self.lost))

    def _error(self, reason: str) -> RemotingConnectError:
        return RemotingConnectError(f"The connection to {self.address} was lost: {reason.removesuffix('.')}.")

    def leave_to_parent(self) -> None:
        """In a forked child: leave the connection to the parent.

        The copy of its descriptor becomes one of an empty file: closing it would let its number be used again, while
        the objects of the parent's loop still have it. Without a free descriptor the copy stays as it is.
        """
        self.lost = RemotingConnectError(f"The connection to {self.address} belongs to the parent process.")
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                empty = os.open(os.devnull, os.O_RDWR)
                os.dup2(empty, sock.fileno())
                os.close(empty)


_local = threading.local()


def _receive_buffer() -> memoryview:
    """Return the receive buffer of this thread. Loops pass on what they have received before they receive again."""
    buffer: memoryview | None = getattr(_local, "received", None)
    if buffer is None:
        buffer = _local.received = memoryview(bytearray(RECEIVE_SIZE))
    return buffer
