"""Promises: futures of work that is under way elsewhere, and of requests in flight.

:class:`Promise` is the one such type of the client, apart from asyncio's futures.

Thread-safety: all methods. Callbacks run on the thread that settles the promise and must be short.
Corresponds to org.apache.rocketmq.remoting.netty.ResponseFuture.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
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

    It cannot be cancelled, because its request is on its way.

    Most promises are settled before they are waited for, and the state of a Future (a condition, two lists) costs three
    times as much as the rest of an accumulated send. So Future is initialized when one of its attributes is first
    missed: by a wait for an outcome that is not there, a callback, or ``concurrent.futures.wait``.
    """

    _initialized = False
    _outcome: tuple[Any, BaseException | None] | None = None

    def __init__(self) -> None:
        pass  # see __getattr__

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if not self._initialized:
                super().__init__()
                self._initialized = True
                if self._outcome is not None:
                    self._pass_on(*self._outcome)
        return object.__getattribute__(self, name)

    def _pass_on(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._outcome is not None or super().done()

    def result(self, timeout: float | None = None) -> T:
        outcome = self._outcome
        if outcome is not None and outcome[1] is None:
            return outcome[0]  # type: ignore[no-any-return]
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
                if self._outcome is not None:
                    return False
                self._outcome = value, error
                return True
        try:
            self._pass_on(value, error)
        except InvalidStateError:
            return False
        except KeyboardInterrupt:
            raise
        except BaseException:  # a callback's SystemExit must not end a thread that serves others
            logger.exception("a callback of a promise failed")
        return True


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def failed(error: BaseException) -> Promise[T]:
    """A promise that has failed."""
    promise: Promise[T] = Promise()
    promise.fail(error)
    return promise


class Carrier(Protocol):
    """A connection, as its requests see it."""

    def expire(self, request: Request) -> None:
        """Fail a request that has no answer yet."""

    def read_until(self, settled: Callable[[], bool], deadline: float) -> None:
        """Read for a caller that waits, unless another thread reads."""


class Request(Promise[Any]):
    """A request in flight: the promise of its answer. Its time begins now.

    Subclasses may make something of the answer (``answer``) and of errors (``fail``), on the thread that settles.
    """

    def __init__(self, code: int, timeout: float, *, batch: bool = False) -> None:
        """``batch``: the request may be written together with others, because brokers answer it soon."""
        super().__init__()
        self.code = code
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.connect_by = self.deadline  # the request fails if there is no connection by then
        self.batch = batch
        self.opaque = 0
        self.carrier: Carrier | None = None
        self.is_waited = False
        """The caller waits at once, and calls ``read_until``."""

    def answer(self, command: RemotingCommand) -> None:
        """The answer has come."""
        self.resolve(command)

    def wait(self) -> Any:
        """The result. The request is given up at its deadline, or if the waiting is interrupted."""
        try:
            if self.is_waited and self.carrier is not None:
                self.carrier.read_until(self.done, self.deadline)
            return self.result(max(0.0, self.deadline - time.monotonic()))
        except TimeoutError:
            self.expire()
            return self.result()  # now, or in a moment if the answer is being delivered
        except BaseException:
            self.expire()
            raise

    def expire(self) -> None:
        """Give up waiting for an answer, if none has come."""
        if self.carrier is not None:
            self.carrier.expire(self)


def no_connection(address: str, seconds: float) -> RemotingConnectError:
    return RemotingConnectError(
        f"No connection to {address} within {seconds:.1f} s.", remedy="Check the address and that a server runs there."
    )


def no_answer(address: str, code: int, timeout: float) -> RemotingTimeoutError:
    try:
        what = RequestCode(code).name
    except ValueError:
        what = f"request code {int(code)}"
    return RemotingTimeoutError(
        f"{address} did not answer {what} within {timeout:g} s.",
        remedy="It may have been carried out all the same; a longer timeout waits for slow servers.",
    )
