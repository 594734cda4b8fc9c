"""Promises: futures of pending work, and of requests in flight.

:class:`Promise` is the only future type of the client, apart from asyncio's futures.

Thread-safety: all methods. Callbacks run on the thread that settles the promise and must be short.
Corresponds to org.apache.rocketmq.remoting.netty.ResponseFuture.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, TypeVar

from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

T = TypeVar("T")

_lock = threading.Lock()
"""Held while a promise is settled or its Future is initialized."""


class Promise(Future[T]):
    """A future that is settled once: of several outcomes the first one counts.

    It cannot be cancelled, because its request is already in flight.

    Most promises are settled before anyone waits for them, and the state of a Future (a condition, two lists) costs
    three times as much as the rest of an accumulated send. So Future is initialized lazily, on the first access to one
    of its attributes: by a wait, a callback, or ``concurrent.futures.wait``.
    """

    _initialized = False
    _settled = False  # before Future was initialized
    _value: Any = None
    _error: BaseException | None = None

    def __init__(self) -> None:
        pass  # see __getattr__

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if not self._initialized:
                super().__init__()
                self._initialized = True
                if self._settled:
                    self._pass_on(self._value, self._error)
        return object.__getattribute__(self, name)

    def _pass_on(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._settled or super().done()

    def result(self, timeout: float | None = None) -> T:
        if self._settled and self._error is None:
            return self._value  # type: ignore[no-any-return]
        return super().result(timeout)

    def resolve(self, value: T) -> bool:
        """Settle with a result; False if the promise is settled already."""
        return self._settle(value, None)

    def fail(self, error: BaseException) -> bool:
        """Settle with an error; False if the promise is settled already."""
        return self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> bool:
        with _lock:
            if not self._initialized:
                if self._settled:
                    return False
                self._value, self._error, self._settled = value, error, True
                return True
        try:
            self._pass_on(value, error)
        except InvalidStateError:
            return False
        except KeyboardInterrupt:
            raise
        except BaseException:  # including SystemExit of a callback: the thread serves others too
            logger.exception("promise callback failed")
        return True


def resolve_each(promises: Sequence[Promise[T]], values: Sequence[T]) -> None:
    """Settle many promises with their values."""
    rest: list[tuple[Promise[T], T]] = []
    with _lock:
        for promise, value in zip(promises, values, strict=True):
            if promise._initialized or promise._settled:
                rest.append((promise, value))
            else:
                promise._value, promise._settled = value, True
    for promise, value in rest:
        promise.resolve(value)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def failed(error: BaseException) -> Promise[T]:
    """Return a failed promise."""
    promise: Promise[T] = Promise()
    promise.fail(error)
    return promise


class Carrier(Protocol):
    """A connection, as used by its requests."""

    def expire(self, request: Pending) -> None:
        """Fail a request that has no response yet."""

    def read_until(self, settled: Callable[[], bool], deadline: float) -> None:
        """Read on the waiting thread, unless another thread reads."""


class Pending(ABC):
    """A request in flight, as used by its connection. ``answer`` or ``fail`` is called once and must be short."""

    code: int
    timeout: float
    deadline: float
    connect_by: float
    carrier: Carrier | None = None
    opaque = 0
    batch = False
    """The request may be written together with others, because brokers respond soon."""
    is_waited = False
    """The caller waits immediately, and calls ``read_until``."""

    def begin(self, timeout: float, now: float) -> None:
        """Start the timeout of the request."""
        self.timeout = timeout
        self.deadline = self.connect_by = now + timeout  # the deadline for connecting as well

    @abstractmethod
    def answer(self, command: RemotingCommand) -> None:
        """Handle the response."""

    @abstractmethod
    def fail(self, error: BaseException) -> object:
        """Handle an error instead of a response."""

    def expire(self) -> None:
        """Fail the request if it has no response yet."""
        if self.carrier is not None:
            self.carrier.expire(self)


class Request(Promise[Any], Pending):
    """The promise of a response. Subclasses may convert the response (``answer``) or errors."""

    def __init__(self, code: int, timeout: float, *, batch: bool = False) -> None:
        super().__init__()
        self.code = code
        self.batch = batch
        self.begin(timeout, time.monotonic())

    def answer(self, command: RemotingCommand) -> None:
        self.resolve(command)

    def wait(self) -> Any:
        """Return the result. The request is abandoned at its deadline, or if the wait is interrupted."""
        try:
            if self.is_waited and self.carrier is not None:
                self.carrier.read_until(self.done, self.deadline)
            return self.result(max(0.0, self.deadline - time.monotonic()))
        except TimeoutError:
            self.expire()
            return self.result()  # available, or just being delivered
        except BaseException:
            self.expire()
            raise


def no_connection(address: str, seconds: float) -> RemotingConnectError:
    return RemotingConnectError(
        f"No connection to {address} within {seconds:.1f} s.", remedy="Check the address and the server."
    )


def no_answer(address: str, code: int, timeout: float) -> RemotingTimeoutError:
    try:
        what = RequestCode(code).name
    except ValueError:
        what = f"request code {int(code)}"
    return RemotingTimeoutError(
        f"{address} did not respond to {what} within {timeout:g} s.",
        remedy="The request may have been executed; a longer timeout allows for slow servers.",
    )
