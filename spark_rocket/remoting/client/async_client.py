"""The remoting client for an event loop: one connection per address, any number of requests in flight on each.

Futures are set where the response is read: nothing blocks the loop. A connection is opened on first use; concurrent
requests wait for the same attempt. A lost connection fails all its requests in flight, and the next request opens a new
one. If a slow connection attempt fails, because the peer does not respond, the failure is cached for some seconds.
After a refused connection the next request retries immediately, because the server may be starting.

=======================================  ==============================================================================
failure                                  error
=======================================  ==============================================================================
the connection cannot be opened          RemotingConnectError, from ``ask``: nothing was sent
the connection is lost                   RemotingConnectError, from the future: the request may have been executed
no response before the timeout           RemotingTimeoutError
the peer does not read                   RemotingTooMuchRequestError, above ``max_unsent`` bytes
=======================================  ==============================================================================

Remoting cannot withdraw a request. Cancelling a future only ignores the response: to handle a late response, keep the
future and add a callback.

If the client has a loop thread, :meth:`AsyncRemotingClient.connection` and ``is_connected`` may be used by any thread:
the blocking client (``remoting_client.py``) is a facade over them. The loop alone opens connections, so there is no
lock that interrupted code could hold. Nothing is stored on disk. Corresponds to
org.apache.rocketmq.remoting.netty.NettyRemotingClient.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from spark_rocket.errors import RemotingConnectError, RemotingTooMuchRequestError, RocketError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.codes import BROKER_NAME, ONE_LETTER_CODES
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.names import NameTranslation
from spark_rocket.remoting import failures
from spark_rocket.remoting.client.connection import REMEDY, RemotingConnection
from spark_rocket.remoting.client.promise import as_future
from spark_rocket.remoting.event_loop import CallbackThread, LoopThread
from spark_rocket.remoting.future_requests import FutureRequest
from spark_rocket.remoting.session import Pieces, pieces_of
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 * 1024 * 1024  # to one peer; above it requests are refused
CONNECT_SECONDS = 3.0
CONNECT_SHARE = 0.95  # the part of a request's timeout that may be used for connecting

ResponseFuture: TypeAlias = "asyncio.Future[RemotingCommand]"
PushHandler = Callable[[str, RemotingCommand], "ResponseFuture | RemotingCommand | None"]
"""Handles requests of a server, by its address: returns the response, a future of it, or None for no response.

With a loop thread it is called on the callback thread of the connection, and may block.
"""


class AsyncRemotingClient:
    """Sends requests on an event loop. With ``credentials`` every request is signed."""

    def __init__(
        self,
        *,
        connect_timeout: float = CONNECT_SECONDS,
        max_unsent: int = MAX_UNSENT_BYTES,
        credentials: Credentials | None = None,
        names: NameTranslation | None = None,
        tls: TlsSettings | None = None,
        on_push: PushHandler | None = None,
        on_connect: Callable[[str], None] | None = None,
        thread: Callable[[], LoopThread] | None = None,
        target_of: Callable[[str], str] = str,
        remedy: str = REMEDY,
    ) -> None:
        """``connect_timeout`` in seconds. ``names`` puts a namespace before names of topics and groups.

        ``on_connect`` is called with the address of each new connection.
        ``thread`` returns the thread whose loop has the connections; default: the running loop.
        ``target_of`` returns where to connect to for an address. ``remedy``: of servers that cannot be reached.
        """
        self._connect_timeout = connect_timeout
        self._max_unsent = max_unsent
        self._sign = RequestSigner(credentials).sign if credentials is not None else None
        self._names = names
        self.broker_names: dict[str, str] = {}
        """The names of brokers by address. A request has that of its address, unless it already names a broker.

        A proxy needs it to forward the request. Its address is that of several brokers: requests that concern a queue
        name the queue's.
        """
        self._tls = ClientTls(tls) if tls is not None else None
        self._on_push = on_push
        self._on_connect = on_connect
        self._thread = thread
        self._target_of = target_of
        self._remedy = remedy
        self._connections: dict[str, RemotingConnection] = {}
        self._pushed: dict[RemotingConnection, set[ResponseFuture]] = {}
        self.is_closed = False

    @property
    def connections(self) -> list[RemotingConnection]:
        return list(self._connections.values())

    def leave_to_parent(self) -> None:
        """In a forked child: start without connections. Nothing here can fail, whatever has become of the TLS files."""
        connections, self._connections, self._pushed = self.connections, {}, {}
        for connection in connections:
            connection.leave_to_parent()

    def is_connected(self, address: str) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.is_open and connection.lost is None

    async def invoke(self, address: str, request: RemotingCommand, seconds: float = 3.0) -> RemotingCommand:
        """Return the response, whatever its code is. RemotingError as documented in the module."""
        return await (await self.ask(address, request, seconds))

    async def ask(self, address: str, request: RemotingCommand, seconds: float = 3.0) -> ResponseFuture:
        """Send a request and return the future of its response. RemotingError if it was not sent.

        ``seconds`` is the timeout for both, including connecting.
        """
        begun = time.monotonic()
        connection = self.connection(address)
        if not connection.is_open:
            await self._opened(connection, seconds)
        if connection.lost is not None:  # right after it was opened
            raise copy.copy(connection.lost)
        if connection.unsent_bytes > self._max_unsent:
            raise RemotingTooMuchRequestError(
                f"{address} has {connection.unsent_bytes} bytes of unread requests.", remedy="Retry after a moment."
            )
        pieces = self.encode(connection, request)
        pending = FutureRequest(request, seconds, begun, connection.forget)
        connection.send(pending, pieces)
        return pending.future

    def encode(self, connection: RemotingConnection, request: RemotingCommand) -> Pieces:
        """Encode a request for a connection, with its number, the names that belong there, and a signature.

        From any thread.
        """
        broker = self.broker_names.get(connection.address)
        if broker is not None:
            request.ext_fields.setdefault("n" if request.code in ONE_LETTER_CODES else BROKER_NAME, broker)
        if self._names is not None:
            self._names.sent_request(request)
        if self._sign is not None:
            self._sign(request)
        request.opaque = connection.session.next_opaque()
        return pieces_of(request)

    def connection(self, address: str, deadline: float = math.inf) -> RemotingConnection:
        """Return the connection, which may still be opening: one attempt serves all waiting callers.

        The attempt ends before the ``deadline`` of its request, which then fails with the reason.
        """
        connection = self._connections.get(address)
        if connection is not None and connection.lost is None:
            return connection
        connect_timeout = min(self._connect_timeout, CONNECT_SHARE * (deadline - time.monotonic()))
        thread = None if self._thread is None else self._thread()
        if thread is None or thread.is_current():
            return self._connect(address, connect_timeout, thread)
        return thread.run(self._connect_soon, address, connect_timeout, thread)

    async def _connect_soon(self, address: str, connect_timeout: float, thread: LoopThread) -> RemotingConnection:
        return self._connect(address, connect_timeout, thread)

    def _connect(self, address: str, connect_timeout: float, thread: LoopThread | None) -> RemotingConnection:
        """Open a connection, unless another caller just did. On the loop only, so there is one attempt."""
        connection = self._connections.get(address)
        if connection is not None and connection.lost is None:
            return connection
        if self.is_closed:
            raise RemotingConnectError(f"The client is closed; the request to {address} was not sent.")
        if connection is not None and connection.lost is not None and time.monotonic() < connection.avoid_until:
            raise copy.copy(connection.lost)
        connection = RemotingConnection(
            asyncio.get_running_loop(),
            address,
            connect_timeout,
            self._serve,
            post=None if thread is None else thread.post,
            callbacks=None if thread is None else CallbackThread(f"rocket-callbacks-{address}"),
            names=self._names,
            tls=self._tls,
            target=self._target_of(address),
            remedy=self._remedy,
        )
        connection.opened.when_settled(partial(self._connected, address))
        connection.closed.when_settled(partial(self._lost, connection))
        connection.open()
        self._connections[address] = connection
        if self.is_closed:  # by another thread, which may not have seen this connection
            connection.close("the client is closed", abort=True)
        return connection

    async def _opened(self, connection: RemotingConnection, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await as_future(connection.opened)
        except TimeoutError:
            raise connection.not_connected(f"no response within {seconds:.1f} s") from None
        except RemotingConnectError as error:
            raise copy.copy(error) from error  # a copy for each caller: tracebacks are not shared

    def _connected(self, address: str, opened: Future[None]) -> None:
        if self._on_connect is not None and opened.exception() is None:
            self._on_connect(address)

    def _lost(self, connection: RemotingConnection, closed: Future[None]) -> None:
        for pushed in self._pushed.pop(connection, ()):
            pushed.cancel()

    # --- requests of the server ---------------------------------------------------------------------------------

    def _serve(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if connection.callbacks is None:
            self._handle(connection, request)
        else:
            connection.callbacks.submit(partial(self._handle, connection, request))

    def _handle(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        response: ResponseFuture | RemotingCommand | None
        try:
            if self._names is not None:
                self._names.received_request(request)
            if self._on_push is None:
                response = failures.not_supported(request)
            else:
                response = self._on_push(connection.address, request)
        except RocketError as error:
            response = failures.failed(request, error)
        except Exception as error:
            logger.exception("request code %d of %s failed", request.code, connection.address)
            response = failures.failed(request, error)
        if isinstance(response, asyncio.Future):
            self._pushed.setdefault(connection, set()).add(response)
            response.add_done_callback(partial(self._respond_later, connection, request))
        elif response is not None:
            self._respond(connection, request, response)

    def _respond_later(self, connection: RemotingConnection, request: RemotingCommand, done: ResponseFuture) -> None:
        pushed = self._pushed.get(connection)
        if pushed is not None:
            pushed.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        self._respond(connection, request, done.result() if error is None else failures.failed(request, error))

    def _respond(self, connection: RemotingConnection, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.is_oneway:
            return
        try:
            if self._names is not None:
                self._names.sent_response(request.code, response)
            pieces = pieces_of(response)
        except Exception as error:  # it cannot be encoded: too long, for example
            logger.exception("response to request code %d of %s", request.code, connection.address)
            pieces = pieces_of(failures.failed(request, error))
        connection.post(partial(connection.write, pieces))

    # --- the end ------------------------------------------------------------------------------------------------

    def disconnect(self, address: str) -> None:
        """Close the connection of an address, if there is one: its requests fail."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close(abort=True)

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self.is_closed = True
        connections = self.connections
        self._connections.clear()
        for connection in connections:
            connection.close("the client is closed", abort=True)
        await asyncio.gather(*(as_future(connection.closed) for connection in connections))
