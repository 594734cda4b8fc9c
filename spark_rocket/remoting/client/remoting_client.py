"""The blocking remoting client: synchronous or with promises, for any number of threads, one connection per address.

It is a facade over the client for an event loop (``async_client.py``), whose connections live on the loop of the
process's :class:`LoopThread`. A caller encodes its request and posts it to the loop; a synchronous call waits for its
promise. The timeout covers all of it, including connecting. Coroutines on that loop use the same connections
(``requests``).

Callbacks of promises and the handler of the servers' requests run on the callback thread of their connection, in order:
one that blocks delays neither responses nor other connections, and may itself send and wait.

Thread-safety: all methods. After a fork the child starts with an empty pool and leaves the parent's connections alone.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingClient.
"""

from __future__ import annotations

import copy
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue

from spark_rocket.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    StateError,
)
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, RemotingCommand
from spark_rocket.protocol.wire.names import NameTranslation
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.client.connection import REMEDY, RemotingConnection
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.request import Request, Submitted
from spark_rocket.remoting.event_loop import is_loop_thread, loop_thread
from spark_rocket.remoting.session import Pieces
from spark_rocket.remoting.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0  # for what is written, but not yet sent

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]


class RemotingClient:
    """Sends requests. ``max_in_flight`` limits the requests of ``invoke`` and ``invoke_async`` over all addresses.

    With ``credentials`` every request is signed. ``names`` translates names of topics and groups, in both directions.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 3.0,
        max_in_flight: int = 4096,
        request_handler: RequestHandler | None = None,
        tls: TlsSettings | None = None,
        credentials: Credentials | None = None,
        names: NameTranslation | None = None,
        target_of: Callable[[str], str] = str,
        remedy: str = REMEDY,
    ) -> None:
        self._max_in_flight = max_in_flight
        self.requests = AsyncRemotingClient(
            connect_timeout=connect_timeout,
            credentials=credentials,
            names=names,
            tls=tls,
            on_push=request_handler,
            thread=loop_thread,
            target_of=target_of,
            remedy=remedy,
        )
        """The same connections, for coroutines on the loop of ``loop_thread()``."""
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        """Make the permits of requests in flight: a queue, whose lock an interrupt (Ctrl-C) cannot leave acquired."""
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._release = partial(self._permits.put, None)
        deque(map(self._permits.put, repeat(None, self._max_in_flight)), maxlen=0)  # a loop would take a while

    def __enter__(self) -> RemotingClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------------------

    def invoke(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> RemotingCommand:
        """Send and wait for the response, whatever its code is.

        Raises RemotingConnectError, RemotingTimeoutError or RemotingTooMuchRequestError.
        """
        return self.invoke_async(addr, request, timeout).wait()  # type: ignore[no-any-return]

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
        promise.permit = self._release
        try:
            self.submit(addr, request, promise)
        except RemotingError as error:
            promise.fail(error)
        except BaseException:
            promise.release()
            raise
        return promise

    def submit(self, addr: str, request: RemotingCommand, pending: Submitted) -> None:
        """Send a request whose response is for ``pending``, for a caller that limits its requests itself.

        RemotingError if the request was not sent. Waits while the peer does not read.
        """
        pieces = self.prepare(addr, request, pending)
        assert pending.connection is not None
        pending.connection.post(partial(pending.connection.send, pending, pieces))

    def prepare(self, addr: str, request: RemotingCommand, pending: Submitted) -> Pieces:
        """Encode a request for its connection, which must then send it on the loop. Otherwise like ``submit``."""
        if self.requests.is_closed:
            raise _closed(addr)
        connection = self.requests.connection(addr, pending.deadline)
        pieces = self.requests.encode(connection, request)
        pending.opaque, pending.connection = request.opaque, connection
        if connection.paused is not None:
            self._await_reader(connection, pending.deadline)
        return pieces

    def invoke_oneway(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> None:
        """Send without a response. Returns when the request is passed to the kernel; it may still be lost."""
        deadline = time.monotonic() + timeout
        self._acquire(addr, deadline)
        try:
            request.flag |= FLAG_ONEWAY
            connection = self.requests.connection(addr, deadline)
            self._write(connection, self.requests.encode(connection, request), deadline)
        finally:
            self._release()

    def _write(self, connection: RemotingConnection, pieces: Pieces, deadline: float) -> None:
        """Write a frame without a response, and wait until the kernel has it."""
        self._await_open(connection, deadline - time.monotonic())
        try:
            self._await_reader(connection, deadline)
            written: Promise[None] = Promise()
            connection.post(partial(connection.write, pieces, written))
            written.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise _too_slow(connection.address) from None
        except RemotingConnectError as error:
            raise copy.copy(error) from error  # a copy per thread: tracebacks are not shared

    def _await_reader(self, connection: RemotingConnection, deadline: float) -> None:
        """Wait until the peer reads. RemotingTimeoutError if it does not in time."""
        paused = connection.paused
        if paused is None:
            return
        if self.is_loop_thread():
            raise _too_slow(connection.address)
        try:
            paused.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            connection.post(connection.check_stalled)
            raise _too_slow(connection.address) from None

    def _acquire(self, addr: str, deadline: float) -> None:
        """Acquire a permit for a request in flight."""
        if self.requests.is_closed:
            raise _closed(addr)
        try:
            self._permits.get_nowait()
        except Empty:
            self._await_permit(addr, deadline)

    def _await_permit(self, addr: str, deadline: float) -> None:
        rest = 0.0 if self.is_loop_thread() else deadline - time.monotonic()
        try:
            self._permits.get(rest > 0.0, rest if rest > 0.0 else None)
        except Empty:
            raise RemotingTooMuchRequestError(
                f"Too many requests in flight ({self._max_in_flight}); the request to {addr} was not sent.",
                remedy="Send slower, or raise the client's max_in_flight.",
            ) from None

    def call_at(self, when: float, action: Callable[[], object]) -> None:
        """Run a short action at ``when`` (``time.monotonic``) or later, unless the client is closed."""
        loop_thread().call_at(when, lambda: None if self.requests.is_closed else action())

    # --- connections ------------------------------------------------------------------------------------------

    def is_connected(self, addr: str) -> bool:
        return self.requests.is_connected(addr)

    @property
    def is_paused(self) -> bool:
        """Whether a request may wait, because some peer does not read."""
        return any(connection.paused is not None for connection in self.requests.connections)

    def is_loop_thread(self) -> bool:
        """Whether this is the thread that receives responses, which must not wait for one."""
        return is_loop_thread()

    def connect(self, addr: str, timeout: float) -> None:
        """Wait until the connection is open. RemotingConnectError on timeout or failure."""
        self._await_open(self.requests.connection(addr, time.monotonic() + timeout), timeout)

    def _await_open(self, connection: RemotingConnection, timeout: float) -> None:
        try:
            connection.opened.result(max(0.0, timeout))
        except TimeoutError:
            raise connection.no_connection(timeout) from None
        except RemotingConnectError as error:
            raise copy.copy(error) from error  # a copy per thread: tracebacks are not shared

    def disconnect(self, addr: str) -> None:
        """Close the connection of an address, if there is one."""
        for connection in self.requests.connections:
            if connection.address == addr:
                connection.post(connection.close)

    def close(self) -> None:
        """Close all connections; requests in flight fail. May be called more than once."""
        self.requests.is_closed = True
        connections = self.requests.connections
        for connection in connections:
            connection.post(partial(connection.close, "the client is closed"))
        if not connections or is_loop_thread() or not loop_thread().is_alive():
            return
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for connection in connections:
            try:
                connection.closed.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:  # the peer does not read
                connection.post(partial(connection.close, abort=True))

    def _after_fork(self) -> None:
        self._begin()
        self.requests.leave_to_parent()


def _closed(addr: str) -> StateError:
    return StateError(f"The client is closed; the request to {addr} was not sent.", remedy="Create a new client.")


def _too_slow(address: str) -> RemotingTimeoutError:
    return RemotingTimeoutError(f"{address} did not accept the request in time: it reads too slowly.")


_clients: weakref.WeakSet[RemotingClient] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
