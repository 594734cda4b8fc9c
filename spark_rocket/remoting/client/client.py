"""The remoting client: synchronous or with promises, for any number of threads, one connection per address.

Every request takes the same path: find or create the connection of the address, number the request, add it to the
connection's table, write it, and wait for its promise. The timeout covers all of it, including connecting; the table of
the connection enforces it. A lost connection fails all its requests, and the next request creates a new one. If a slow
connection attempt fails, because the peer does not respond, the failure is cached for some seconds. After a refused
connection the next request retries immediately, because the server may be starting.

Thread-safety: all methods. After a fork the child starts with an empty pool and leaves the parent's connections alone.
Callbacks of promises run on the thread that reads: they must be short and must not ``invoke`` over its connection.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingClient.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
import weakref
from functools import partial
from queue import Empty, SimpleQueue

from spark_rocket.errors import RemotingConnectError, RemotingError, RemotingTooMuchRequestError, StateError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.client.connection import Connection, RequestHandler
from spark_rocket.remoting.client.deadlines import Timer
from spark_rocket.remoting.client.promise import Pending, Request
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

CONNECT_SHARE = 0.95  # the part of a request's timeout that may be used for connecting


class _Permits:
    """A semaphore implemented in C: unlike threading's, an interrupt (Ctrl-C) cannot leave its lock acquired."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        self.release = partial(self._free.put, None)
        for _ in range(count):
            self.release()

    def acquire(self, timeout: float) -> bool:
        try:
            self._free.get(timeout > 0.0, timeout if timeout > 0.0 else None)
        except Empty:
            return False
        return True


class RemotingClient:
    """Sends requests. ``max_in_flight`` limits those of ``invoke`` and ``invoke_async`` over all addresses.

    With ``credentials`` every request is signed.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 3.0,
        max_in_flight: int = 4096,
        max_frame_length: int = MAX_FRAME_LENGTH,
        request_handler: RequestHandler | None = None,
        tls: TlsSettings | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._sign = RequestSigner(credentials).sign if credentials is not None else None
        self._tls = ClientTls(tls) if tls is not None else None
        self._connect_timeout = connect_timeout
        self._max_in_flight = max_in_flight
        self._max_frame_length = max_frame_length
        self._handler = request_handler
        self._closed = False
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._permits = _Permits(self._max_in_flight)
        self._connecting = threading.Lock()
        self.timer = Timer()

    def __enter__(self) -> RemotingClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------------------

    def invoke(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> RemotingCommand:
        """Send and wait for the response, whatever its code is.

        Raises RemotingConnectError, RemotingTimeoutError or RemotingTooMuchRequestError.
        """
        if self.is_reading_thread(addr):
            raise StateError(
                f"invoke({addr}) called on the thread that receives its response.",
                remedy="Use invoke_async in callbacks and request handlers, or invoke on another thread.",
            )
        promise = Request(int(request.code), timeout)
        promise.is_waited = True
        return self.invoke_async(addr, request, timeout, promise).wait()  # type: ignore[no-any-return]

    def invoke_async(
        self, addr: str, request: RemotingCommand, timeout: float = 3.0, promise: Request | None = None
    ) -> Request:
        """Send and return the promise of the response. Blocks while too many requests are in flight.

        Communication errors fail the promise. A request that cannot be encoded raises an error.
        """
        promise = promise or Request(int(request.code), timeout)
        try:
            self._acquire(addr, promise.deadline)
        except RemotingError as error:
            promise.fail(error)
            return promise
        try:
            self.submit(addr, request, promise)
        except RemotingError as error:
            promise.fail(error)
        except BaseException:
            self._permits.release()
            raise
        promise.add_done_callback(lambda _: self._permits.release())
        return promise

    def submit(self, addr: str, request: RemotingCommand, promise: Pending) -> None:
        """Send a request whose response settles ``promise``, for a caller that limits its requests itself.

        RemotingError if the request was not sent.
        """
        if self._closed:
            raise _closed(addr)
        if self._sign is not None:
            self._sign(request)
        self._connection(addr, promise.deadline).submit(request, promise)

    def invoke_oneway(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> None:
        """Send without a response. Returns when the kernel has the bytes; they may still be lost."""
        deadline = time.monotonic() + timeout
        self._acquire(addr, deadline)
        try:
            if self._sign is not None:
                self._sign(request)
            request.flag |= FLAG_ONEWAY
            self._connection(addr, deadline).send(request, deadline)
        finally:
            self._permits.release()

    def reply(self, addr: str, response: RemotingCommand, timeout: float = 3.0) -> None:
        """Respond to a request received over the connection to ``addr``. A lost connection is logged."""
        connection = self._connections.get(addr)
        try:
            if connection is None:
                raise RemotingConnectError(f"There is no connection to {addr}.")
            connection.send(response, time.monotonic() + timeout)
        except RemotingError as error:
            logger.warning("response to %s not sent: %s", addr, error)

    def _acquire(self, addr: str, deadline: float) -> None:
        """Acquire a permit for a request in flight."""
        if self._closed:
            raise _closed(addr)
        if self._permits.acquire(0.0):
            return
        # A reading thread must not wait here: it receives the responses that release permits.
        if self.is_reading_thread() or not self._permits.acquire(deadline - time.monotonic()):
            raise RemotingTooMuchRequestError(
                f"Too many requests in flight ({self._max_in_flight}); the request to {addr} was not sent.",
                remedy="Send slower, or raise the client's max_in_flight.",
            )

    # --- connections ------------------------------------------------------------------------------------------

    def is_connected(self, addr: str) -> bool:
        connection = self._connections.get(addr)
        return connection is not None and connection.is_open()

    def is_reading_thread(self, addr: str | None = None) -> bool:
        """Whether this thread reads a connection, or the one to ``addr``: it must not wait for data received there."""
        if addr is not None:
            connection = self._connections.get(addr)
            return connection is not None and connection.is_reader()
        return any(connection.is_reader() for connection in list(self._connections.values()))

    def connect(self, addr: str, timeout: float) -> None:
        """Wait until the connection is open. RemotingConnectError on timeout or failure."""
        self._connection(addr, time.monotonic() + timeout).wait_open(timeout)

    def disconnect(self, addr: str) -> None:
        """Close the connection of an address, if there is one."""
        connection = self._connections.get(addr)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections; requests in flight fail. May be called more than once."""
        with self._connecting:
            self._closed = True
            connections = list(self._connections.values())
        self.timer.close()
        for connection in connections:
            connection.close("the client is closed")
        for connection in connections:
            connection.join(1.0)

    def _connection(self, addr: str, deadline: float) -> Connection:
        connection = self._connections.get(addr)
        if connection is not None and connection.lost is None:
            return connection
        with self._connecting:
            if self._closed:
                raise _closed(addr)
            connection = self._connections.get(addr)
            if connection is not None and connection.lost is None:
                return connection
            if connection is not None and connection.lost is not None and time.monotonic() < connection.avoid_until:
                raise copy.copy(connection.lost)
            # The attempt ends before the deadline of its request, which then fails with the reason.
            seconds = CONNECT_SHARE * (deadline - time.monotonic())
            connection = self._connections[addr] = Connection(
                addr,
                min(self._connect_timeout, seconds),
                self.timer,
                max_frame_length=self._max_frame_length,
                request_handler=self._handler,
                tls=self._tls,
            )
            return connection

    def _after_fork(self) -> None:
        connections = self._connections
        self._begin()
        for connection in connections.values():
            connection.abandon()


def _closed(addr: str) -> StateError:
    return StateError(f"The client is closed; the request to {addr} was not sent.", remedy="Create a new client.")


_clients: weakref.WeakSet[RemotingClient] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
