"""The remoting client for an event loop: one connection per address, any number of requests in flight on each.

Requests are written at the end of the loop's iteration, together with the others of that iteration. Futures are set
where the response is read: no thread is involved, and nothing blocks the loop. A connection is opened on first use;
concurrent requests wait for the same attempt. A lost connection fails all its requests in flight, and the next request
opens a new one.

=======================================  ==============================================================================
failure                                  error
=======================================  ==============================================================================
the connection cannot be opened          RemotingConnectError, from ``ask``: nothing was sent
the connection is lost                   RemotingConnectError, from the future: the request may have been executed
no response before the timeout           RemotingTimeoutError
the peer does not read                   RemotingTooMuchRequestError, above ``high_water`` bytes of unsent data
=======================================  ==============================================================================

Remoting cannot withdraw a request. Cancelling a future only ignores the response: to handle a late response, keep the
future and add a callback.

Thread-safety: event loop only. Nothing is stored on disk.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingClient.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias, cast

from spark_rocket.errors import (
    ProtocolError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RocketError,
)
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.session import Session
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.problems import problem_of
from spark_rocket.remoting.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

SEPARATE_BODY_BYTES = 16 * 1024  # a larger body is passed to the transport separately, not copied
HIGH_WATER_BYTES = 64 * 1024 * 1024
CONNECT_SECONDS = 3.0

Answer: TypeAlias = "asyncio.Future[RemotingCommand]"
PushHandler = Callable[[str, RemotingCommand], "Answer | RemotingCommand | None"]
"""Handles requests of a server, by its address: returns the response, a future of it, or None for no response."""


class _Connection(asyncio.Protocol):
    """One connection; its session has the futures of pending requests."""

    def __init__(self, address: str, max_frame_length: int, on_push: PushHandler | None) -> None:
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.lost: RemotingConnectError | None = None
        self.session: Session[Answer] = Session(max_frame_length)
        self._on_push = on_push
        self._pushed: set[Answer] = set()
        self._unsent: list[Buffer] = []  # of this iteration of the loop: written together at its end
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            self.close("no server listens on this port")  # a free local port may connect to itself
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, command: RemotingCommand) -> None:
        unsent = self._unsent
        if not unsent:
            self._loop.call_soon(self._flush)
        if len(command.body) > SEPARATE_BODY_BYTES:
            unsent += (command.encode_head(), command.body)
        else:
            unsent.append(command.encode())

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.writelines(unsent)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self.session.receive(data):
                command = RemotingCommand.decode(frame)
                if not command.flag & 1:
                    self._serve(command)
                    continue
                future = self.session.take(command.opaque)
                if future is not None and not future.done():
                    future.set_result(command)
        except ProtocolError as error:
            logger.warning("closed connection to %s: invalid frame: %s", self.address, error.message)
            self.close(f"invalid frame: {error.message}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc) if exc is not None else "closed by the peer")
        lost = self.lost
        assert lost is not None
        for future in self.session.drain():
            if not future.done():
                future.set_exception(RemotingConnectError(lost.message))
        for pushed in self._pushed:
            pushed.cancel()

    def close(self, reason: str) -> None:
        if self.lost is None:
            self.lost = RemotingConnectError(f"The connection to {self.address} was lost: {reason.removesuffix('.')}.")
        if self.transport is not None:
            self.transport.abort()

    # --- requests of the server ---------------------------------------------------------------------------------

    def _serve(self, request: RemotingCommand) -> None:
        try:
            answer = None if self._on_push is None else self._on_push(self.address, request)
        except RocketError as error:
            answer = _failure(request, error)
        except Exception as error:
            logger.exception("request code %d of %s failed", request.code, self.address)
            answer = _failure(request, error)
        if isinstance(answer, asyncio.Future):
            self._pushed.add(answer)
            answer.add_done_callback(lambda done: self._answer_later(request, done))
        elif answer is not None:
            self._answer(request, answer)

    def _answer_later(self, request: RemotingCommand, done: Answer) -> None:
        self._pushed.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        self._answer(request, done.result() if error is None else _failure(request, error))

    def _answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        if not request.is_oneway and self.lost is None:
            self.send(answer)


def _failure(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, str(error) or type(error).__name__)


class AsyncRemotingClient:
    """Sends requests on an event loop. With ``credentials`` every request is signed."""

    def __init__(
        self,
        *,
        connect_timeout: float = CONNECT_SECONDS,
        max_frame_length: int = MAX_FRAME_LENGTH,
        high_water: int = HIGH_WATER_BYTES,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        on_push: PushHandler | None = None,
        on_connect: Callable[[str], None] | None = None,
    ) -> None:
        """``connect_timeout`` in seconds. ``on_connect`` is called with the address of each new connection."""
        self._connect_timeout = connect_timeout
        self._max_frame_length = max_frame_length
        self._high_water = high_water
        self._sign = RequestSigner(credentials).sign if credentials is not None else None
        self._tls = ClientTls(tls) if tls is not None else None
        self._on_push = on_push
        self._on_connect = on_connect
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Task[_Connection]] = {}
        self._closed = False

    def is_connected(self, address: str) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.lost is None

    async def invoke(self, address: str, request: RemotingCommand, seconds: float = 3.0) -> RemotingCommand:
        """Return the response, whatever its code is. RemotingError as documented in the module."""
        return await (await self.ask(address, request, seconds))

    async def ask(self, address: str, request: RemotingCommand, seconds: float = 3.0) -> Answer:
        """Send a request and return the future of its response. RemotingError if it was not sent.

        ``seconds`` is the timeout for both, including connecting.
        """
        connection = self._connections.get(address)
        if connection is None or connection.lost is not None:
            loop = asyncio.get_running_loop()
            started = loop.time()
            connection = await self._connect(address, seconds)
            seconds = max(0.001, seconds - (loop.time() - started))
        return self._send(connection, request, seconds)

    def _send(self, connection: _Connection, request: RemotingCommand, timeout: float) -> Answer:
        if connection.lost is not None:  # right after it was opened
            raise RemotingConnectError(connection.lost.message)
        transport = connection.transport
        assert transport is not None
        if transport.get_write_buffer_size() > self._high_water:
            raise RemotingTooMuchRequestError(
                f"{connection.address} has {transport.get_write_buffer_size()} bytes of unread requests.",
                remedy="Retry after a moment.",
            )
        if self._sign is not None:
            self._sign(request)
        session = connection.session
        opaque = request.opaque = session.next_opaque()
        loop = asyncio.get_running_loop()
        future: Answer = loop.create_future()
        connection.send(request)
        session.expect(opaque, future)
        timer = loop.call_later(timeout, _expire, session, opaque, connection.address, int(request.code), timeout)

        def done(future: Answer) -> None:
            timer.cancel()
            if future.cancelled():
                session.take(opaque)

        future.add_done_callback(done)
        return future

    async def _connect(self, address: str, seconds: float) -> _Connection:
        """Return the connection; one attempt serves all waiting callers, even if one of them gives up."""
        if self._closed:
            raise RemotingConnectError(f"The client is closed; the request to {address} was not sent.")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._connecting[address] = asyncio.get_running_loop().create_task(self._open(address))
            attempt.add_done_callback(lambda done: self._connected(address, done))
        try:
            return await asyncio.wait_for(asyncio.shield(attempt), seconds)
        except TimeoutError:
            raise _not_connected(address, f"no response within {seconds:.1f} s") from None

    def _connected(self, address: str, attempt: asyncio.Task[_Connection]) -> None:
        del self._connecting[address]
        if attempt.cancelled() or attempt.exception() is not None:
            return
        self._connections[address] = attempt.result()
        if self._on_connect is not None:
            self._on_connect(address)

    async def _open(self, address: str) -> _Connection:
        host, port = parse_address(address)
        context = None if self._tls is None else self._tls.context()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(address, self._max_frame_length, self._on_push),
                    host,
                    port,
                    ssl=context,
                    server_hostname=host if context is not None else None,
                )
        except TimeoutError:
            raise _not_connected(address, f"no response within {self._connect_timeout:.1f} s") from None
        except (ssl.SSLError, ssl.CertificateError) as error:
            problem = problem_of(error, server=False, name=host)
            raise RemotingConnectError(
                f"No TLS connection to {address}: it {problem.text}.", remedy=problem.remedy, code=problem.error_code
            ) from error
        except (OSError, UnicodeError) as error:
            raise _not_connected(address, str(error)) from error
        return connection

    def disconnect(self, address: str) -> None:
        """Close the connection of an address, if there is one: its requests fail."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close("closed by this client")

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        attempts = list(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in self._connections.values():
            connection.close("the client is closed")
        self._connections.clear()
        await asyncio.sleep(0)  # connection_lost is called in the next iteration


def _expire(session: Session[Answer], opaque: int, address: str, code: int, timeout: float) -> None:
    future = session.take(opaque)
    if future is not None and not future.done():
        error = RemotingTimeoutError(f"{address} did not respond to request code {code} within {timeout:g} s.")
        future.set_exception(error)


def _not_connected(address: str, reason: str) -> RemotingConnectError:
    return RemotingConnectError(
        f"No connection to {address}: {reason.removesuffix('.')}.",
        remedy="Check the address and that the server is running.",
    )
