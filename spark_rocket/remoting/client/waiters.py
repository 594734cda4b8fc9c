"""Who waits for an answer: each is told once, by whoever reads the connection, gives the time-out or finds it lost.

Whoever is interrupted while he tells an answer fails the waiter, which counts if nothing was told yet.

Thread-safety: all of it. Corresponds to ResponseFuture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from spark_rocket.errors import RemotingError
from spark_rocket.protocol.wire.command import RemotingCommand


class Waiter(Protocol):
    """Somebody who waits for an answer and is told once."""

    def complete(self, response: RemotingCommand) -> None: ...

    def fail(self, error: RemotingError) -> None: ...


class SyncWaiter:
    """The calling thread itself, asleep on a bare lock: the cheapest hand-over between two threads."""

    __slots__ = ("_error", "_lock", "_response", "told")

    def __init__(self) -> None:
        self.told = False
        self._lock: threading.Lock | None = None  # only if another thread reads
        self._response: RemotingCommand | None = None
        self._error: RemotingError | None = None

    def complete(self, response: RemotingCommand) -> None:
        self._response = response
        self._tell()

    def fail(self, error: RemotingError) -> None:
        if not self.told:
            self._error = error
            self._tell()

    def _tell(self) -> None:
        self.told = True
        lock = self._lock
        if lock is not None:
            lock.release()

    def wait(self, seconds: float) -> bool:
        """Whether it was told in time."""
        lock = self._lock
        if lock is None:
            lock = threading.Lock()
            lock.acquire()
            self._lock = lock
        # Looked at after the lock is there to be seen: whoever tells us looks for it after it has said so here.
        return self.told or lock.acquire(timeout=max(0.0, seconds))

    def result(self) -> RemotingCommand:
        """After it was told."""
        if self._response is not None:
            return self._response
        assert self._error is not None
        raise self._error


class FutureWaiter:
    """A future, and what is to be given back when it is done."""

    __slots__ = ("_done", "future")

    def __init__(self, done: Callable[[], None]) -> None:
        self.future: Future[RemotingCommand] = Future()
        self.future.set_running_or_notify_cancel()  # the request is on its way: it cannot be cancelled
        self._done = done

    def complete(self, response: RemotingCommand) -> None:
        self._done()
        self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self._done()
            self.future.set_exception(error)
