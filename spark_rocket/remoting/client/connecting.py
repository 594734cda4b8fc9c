"""Requests that wait for a connection: each address has its own, and none holds up the others.

Threads connect, one for each address as long as there are no more than ``THREADS``. The first request to an address
without a connection brings it to one of them; those that come meanwhile wait with it, and are all sent, in their order,
or all fail, when the attempt is over, whatever ended it. A request whose time is up fails by then, whatever the threads
are at.

Thread-safety: all methods. Threads are daemons that start when there is work and end when there has been none.
Corresponds to what Netty's event loop does for NettyRemotingClient.getAndCreateChannelAsync.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from spark_rocket.errors import RemotingConnectError, RocketError

logger = logging.getLogger(__name__)

THREADS = 32
IDLE_SECONDS = 5.0


class Pending:
    """A request that waits: sent, failed or given up, once. Nothing of it is kept afterwards: it may be large."""

    __slots__ = ("_lock", "_ways")

    def __init__(
        self, send: Callable[[], None], fail: Callable[[Exception], None], late: Callable[[], Exception]
    ) -> None:
        self._ways: tuple[Callable[[], None], Callable[[Exception], None], Callable[[], Exception]] | None
        self._ways = send, fail, late
        self._lock = threading.Lock()

    def send(self) -> None:
        with self._lock:
            ways, self._ways = self._ways, None
        if ways is not None:
            ways[0]()

    def fail(self, error: Exception | None) -> None:
        """For this reason, or because its time is up."""
        with self._lock:
            ways, self._ways = self._ways, None
        if ways is not None:
            _, fail, late = ways
            fail(error or late())

    def needed(self) -> bool:
        """As a deadline: whether there is something to give up."""
        return self._ways is not None

    def expire(self) -> None:
        """As a deadline."""
        self.fail(None)


class Connector:
    """``connect`` makes an address's connection, or raises."""

    def __init__(self, connect: Callable[[str], object], threads: int = THREADS) -> None:
        self._connect = connect
        self._most = threads
        self._changed = threading.Condition()
        self._waiting: dict[str, list[Pending]] = {}
        self._next: deque[str] = deque()
        self._threads = 0
        self._idle = 0

    def add(self, address: str, pending: Pending) -> None:
        """Have it sent once there is a connection."""
        with self._changed:
            others = self._waiting.get(address)
            if others is not None:
                others.append(pending)
                return
            self._waiting[address] = [pending]
            self._next.append(address)
            if self._idle >= len(self._next):
                self._changed.notify_all()  # an interrupt within may leave a waiter in the list that is no more
                return
            if self._threads >= self._most:
                return
            try:
                threading.Thread(target=self._run, name=f"rocket-connect-{self._threads + 1}", daemon=True).start()
            except RuntimeError as error:  # there are too many threads
                if self._threads:
                    return  # one of those that run comes by
                self._next.remove(address)
                del self._waiting[address]
                failure = error
            else:
                self._threads += 1
                return
        pending.fail(_no_connection(address, failure))

    def close(self) -> None:
        """Whoever waits now waits in vain."""
        with self._changed:
            waiting = [pending for pendings in self._waiting.values() for pending in pendings]
            for pendings in self._waiting.values():
                pendings.clear()
        for pending in waiting:
            pending.fail(RemotingConnectError("The client was closed while it was connecting."))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._next:
                    self._idle += 1
                    self._changed.wait_for(lambda: self._next, IDLE_SECONDS)
                    self._idle -= 1
                    if not self._next:
                        self._threads -= 1
                        return
                address = self._next.popleft()
            self._serve(address)

    def _serve(self, address: str) -> None:
        failure: BaseException | None = None
        try:
            self._connect(address)
        except BaseException as error:  # whatever it is, those who wait are told, and the next ones try again
            failure = error
        with self._changed:
            waiting = self._waiting.pop(address)
        for pending in waiting:
            try:
                if failure is None:
                    pending.send()
                else:
                    pending.fail(_no_connection(address, failure))
            except BaseException:  # a call-back's SystemExit must not cost others their connections
                logger.exception("a request to %s could not be sent", address)


def _no_connection(address: str, cause: BaseException) -> RemotingConnectError:
    """An error of its own for each: tracebacks are not shared."""
    if isinstance(cause, RocketError):
        if not isinstance(cause, RemotingConnectError):
            return RemotingConnectError(cause.message, remedy=cause.remedy)
        return RemotingConnectError(cause.message, remedy=cause.remedy, code=cause.code, retriable=cause.retriable)
    return RemotingConnectError(f"No connection to {address}: {type(cause).__name__}: {cause}.")
