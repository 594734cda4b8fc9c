"""The Remoting client: blocking, for any number of threads, one connection per address.

A call finds or makes the address's connection, numbers its request, sends it on its own thread and waits until whoever
reads the connection hands over the answer. Time-outs count from the call and cover connecting, waiting for a place
among the requests in flight, sending and waiting. Synchronous callers watch their own time; asynchronous ones share
one timer thread. A lost connection fails everybody who waits on it at once, and the next call makes a new one.
Futures do not wait for a connection on the thread that asks (``connecting``), and an attempt to connect that took long
and in vain, to a machine that says nothing, speaks for the next calls for as long again: who asks such an address waits
half of the time at most. A refusal does not: where it takes long the CPU is short, and the server may be there soon.

Whoever is interrupted (Ctrl-C) in a call takes its connection with him, for the reason that ``connection`` gives.

Thread-safety: all methods. After a fork the child starts with an empty pool and leaves the parent's connections alone.
Callbacks of futures run on whichever thread reads, a caller's among them: they must be short, and must not ``invoke``
over the same connection.
Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingClient.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue

from spark_rocket.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTooMuchRequestError,
    RocketError,
    StateError,
)
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.client.connecting import Connector, Pending
from spark_rocket.remoting.client.connection import Connection, RequestHandler
from spark_rocket.remoting.client.timer import DeadlineTimer
from spark_rocket.remoting.client.waiters import FutureWaiter, SyncWaiter, Waiter
from spark_rocket.remoting.server.outbox import no_answer
from spark_rocket.remoting.session import Session
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

LONG = 0.5  # seconds of an attempt to connect


class _Place:
    """An address's entry in the pool. ``lock`` is held while connecting, so that one thread does it for all."""

    __slots__ = ("believed", "connection", "error", "failures", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.failures = 0
        self.error: RemotingConnectError | None = None  # of the last attempt
        self.believed = 0.0  # until when the error is the answer without another attempt


class _Permits:
    """A semaphore; its places lie in a queue, which costs a fraction of what threading's does."""

    __slots__ = ("_places", "release")

    def __init__(self, count: int) -> None:
        self._places: SimpleQueue[None] = SimpleQueue()
        self.release = partial(self._places.put, None)
        for _ in range(count):
            self.release()

    def acquire(self, timeout: float) -> bool:
        try:
            self._places.get(timeout > 0.0, timeout if timeout > 0.0 else None)
        except Empty:
            return False
        return True


class _Expiry:
    """An asynchronous request's deadline. Neither the request nor its answer: they may be large, and long gone."""

    __slots__ = ("_addr", "_code", "_opaque", "_session", "_timeout")

    def __init__(self, session: Session[Waiter], opaque: int, addr: str, code: int, timeout: float) -> None:
        self._session = session
        self._opaque = opaque
        self._addr = addr
        self._code = code
        self._timeout = timeout

    def needed(self) -> bool:
        return self._session.expects(self._opaque)

    def expire(self) -> None:
        late = self._session.take(self._opaque)
        if late is not None:
            late.fail(no_answer(self._addr, self._code, self._timeout))


class RemotingClient:
    """See the module. ``max_in_flight`` bounds the requests that wait for an answer, all addresses together.

    With ``credentials`` every request is signed, each time it is sent.
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
        self._places: dict[str, _Place] = {}
        self._permits = _Permits(self._max_in_flight)
        self._timer = DeadlineTimer()
        self._connector = Connector(lambda addr: self._connection(addr, time.monotonic() + self._connect_timeout))

    def __enter__(self) -> RemotingClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the three ways to ask --------------------------------------------------------------------------------

    def invoke(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> RemotingCommand:
        """Send and wait for the answer, whatever its code says.

        Raises RemotingConnectError, RemotingTimeoutError or RemotingTooMuchRequestError.
        """
        deadline = time.monotonic() + timeout
        self._enter(addr, deadline)
        try:
            connection = self._connection(addr, deadline)
            if connection.is_reader():
                raise StateError(
                    f"invoke({addr}) on the thread that would receive its answer.",
                    remedy="In a callback or request handler use invoke_async, or hand the work to another thread.",
                )
            waiter = SyncWaiter()
            if self._sign is not None:
                self._sign(request)
            try:
                opaque = connection.request(request, waiter, deadline)
                if not connection.wait(waiter, deadline):
                    if connection.session.take(opaque) is not None:
                        raise no_answer(addr, request.code, timeout)
                    waiter.wait(60.0)  # the answer has just been taken by the reader: it is a moment away
            except RocketError:
                raise
            except BaseException:
                connection.break_off()
                raise
            return waiter.result()
        finally:
            self._permits.release()

    def invoke_async(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> Future[RemotingCommand]:
        """Send, and give a future of the answer. It may block while too many are in flight.

        Whatever goes wrong between the two processes is the future's exception. It cannot be cancelled. A request that
        cannot be encoded raises, or its future does if there was no connection yet.
        """
        deadline = time.monotonic() + timeout
        try:
            self._enter(addr, deadline)
        except RemotingError as error:
            failed: Future[RemotingCommand] = Future()
            failed.set_exception(error)
            return failed
        waiter = FutureWaiter(self._permits.release)

        if self.is_connected(addr):
            try:
                self._send_async(addr, request, waiter, deadline, timeout)
            except RemotingError as error:
                waiter.fail(error)
            except BaseException:  # a request that cannot be encoded: the caller's mistake, not the network's
                if not waiter.future.done():
                    self._permits.release()
                raise
            return waiter.future

        def send() -> None:
            try:
                self._send_async(addr, request, waiter, deadline, timeout)
            except StateError as error:  # closed meanwhile, as requests are that wait for their answer
                waiter.fail(RemotingConnectError(error.message))
            except Exception as error:
                waiter.fail(error)

        pending = Pending(send, waiter.fail, lambda: _no_connection(addr, timeout))
        self._connector.add(addr, pending)
        self._timer.call_at(deadline, pending)
        return waiter.future

    def _send_async(self, addr: str, request: RemotingCommand, waiter: Waiter, deadline: float, timeout: float) -> None:
        connection = self._connection(addr, deadline)
        if self._sign is not None:
            self._sign(request)
        try:
            opaque = connection.request(request, waiter, deadline)
            connection.wake_reader()
            self._timer.call_at(deadline, _Expiry(connection.session, opaque, addr, int(request.code), timeout))
        except RocketError:
            raise
        except BaseException:
            connection.break_off()
            raise

    def post(self, addr: str, request: RemotingCommand, waiter: Waiter, timeout: float) -> None:
        """As ``invoke_async``, for a caller with a waiter of its own, who also bounds what is in flight himself.

        For requests that are answered soon: many of them are written together, once answers come (``outbox``), and
        those that a broker keeps for long would keep the others for up to 10 ms.
        Raises the RemotingError if nothing was sent; afterwards exactly one of the waiter's methods is called.
        """
        if self._closed:
            raise _closed(addr)
        deadline = time.monotonic() + timeout
        connection = self._connection(addr, deadline)
        if self._sign is not None:
            self._sign(request)
        try:
            connection.post(request, waiter, deadline, timeout)
        except RocketError:
            raise
        except BaseException:
            connection.break_off()
            raise

    def is_reading_thread(self) -> bool:
        """Whether this thread reads a connection now: it must not wait for what only comes through one."""
        connections = [place.connection for place in list(self._places.values())]
        return any(connection is not None and connection.is_reader() for connection in connections)

    def invoke_oneway(self, addr: str, request: RemotingCommand, timeout: float = 3.0) -> None:
        """Send and expect nothing. Returns when the kernel has the bytes, which is no promise that they arrive."""
        deadline = time.monotonic() + timeout
        self._enter(addr, deadline)
        try:
            connection = self._connection(addr, deadline)
            if self._sign is not None:
                self._sign(request)
            request.flag |= FLAG_ONEWAY
            request.opaque = connection.session.next_opaque()
            try:
                connection.send(request, deadline)
            except RocketError:
                raise
            except BaseException:
                connection.break_off()
                raise
        finally:
            self._permits.release()

    def reply(self, addr: str, response: RemotingCommand, timeout: float = 3.0) -> None:
        """Answer a request that came over the connection to ``addr``. Nobody can be told if that is gone: logged."""
        place = self._places.get(addr)
        connection = place.connection if place is not None else None
        try:
            if connection is None:
                raise RemotingConnectError(f"There is no connection to {addr}.")
            connection.send(response, time.monotonic() + timeout)
        except RemotingError as error:
            logger.warning("an answer to %s was not sent: %s", addr, error)

    # --- connections ------------------------------------------------------------------------------------------

    def is_connected(self, addr: str) -> bool:
        place = self._places.get(addr)
        return place is not None and place.connection is not None and place.connection.lost is None

    def connect(self, addr: str, timeout: float) -> None:
        """Make the connection if there is none. RemotingConnectError if that takes longer, or cannot be."""
        if self._closed:
            raise _closed(addr)
        self._connection(addr, time.monotonic() + timeout)

    def disconnect(self, addr: str) -> None:
        """Close one address's connection, if there is one."""
        place = self._places.get(addr)
        if place is not None and place.connection is not None:
            place.connection.close()

    def close(self) -> None:
        """Close all connections; requests in flight fail. Closing twice is closing once."""
        self._closed = True
        self._timer.close()
        self._connector.close()
        connections = [place.connection for place in list(self._places.values()) if place.connection is not None]
        for connection in connections:
            connection.close("the client was closed")
        for connection in connections:
            connection.join(1.0)

    def _connection(self, addr: str, deadline: float) -> Connection:
        place = self._places.get(addr)
        if place is not None and (connection := place.connection) is not None and connection.lost is None:
            return connection
        place = place or self._places.setdefault(addr, _Place())
        failures = place.failures
        left = min(self._connect_timeout, deadline - time.monotonic())
        taken: list[bool] = []
        try:
            # In one step: an interrupt that came between acquiring and noting it would leave the lock taken for ever.
            taken.extend(map(place.lock.acquire, (True,), (max(0.0, left),)))
            if True not in taken:
                raise _no_connection(addr, left)
            if place.connection is not None and place.connection.lost is None:
                return place.connection
            began = time.monotonic()
            if place.error is not None and (place.failures != failures or began < place.believed):
                # Another thread tried while this one waited, or just before: its failure is the answer, or every
                # waiter in turn would sit out a connect time-out of its own.
                raise RemotingConnectError(
                    place.error.message,
                    remedy=place.error.remedy,
                    retriable=place.error.retriable,
                    code=place.error.code,
                )
            try:
                place.connection = Connection(
                    addr,
                    min(self._connect_timeout, deadline - time.monotonic()),
                    self._timer,
                    max_frame_length=self._max_frame_length,
                    request_handler=self._handler,
                    tls=self._tls,
                )
            except RemotingConnectError as error:
                place.failures += 1
                place.error = error
                ended = time.monotonic()
                if ended - began >= LONG and isinstance(error.__cause__, TimeoutError):
                    place.believed = ended + (ended - began)
                raise
            if self._closed:  # closed while connecting: close() has not seen this one
                place.connection.close("the client was closed")
                raise _closed(addr)
            return place.connection
        finally:
            if True in taken:
                place.lock.release()

    def _enter(self, addr: str, deadline: float) -> None:
        """Take a place among the requests in flight."""
        if self._closed:
            raise _closed(addr)
        if self._permits.acquire(0.0):
            return
        # A reading thread must not wait here: the answers that would free a place come through it.
        if self.is_reading_thread() or not self._permits.acquire(deadline - time.monotonic()):
            raise RemotingTooMuchRequestError(
                f"{self._max_in_flight} requests are in flight already; the one to {addr} was not sent.",
                remedy="Send more slowly, or raise the client's max_in_flight.",
            )

    def _after_fork(self) -> None:
        places = self._places
        self._begin()
        for place in places.values():
            if place.connection is not None:
                place.connection.abandon()


def _closed(addr: str) -> StateError:
    return StateError(f"The client was closed; nothing was sent to {addr}.", remedy="Make a new client.")


def _no_connection(addr: str, seconds: float) -> RemotingConnectError:
    return RemotingConnectError(
        f"No connection to {addr} within {seconds:.1f} s.", remedy="Check the address and that a server runs there."
    )


_clients: weakref.WeakSet[RemotingClient] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
