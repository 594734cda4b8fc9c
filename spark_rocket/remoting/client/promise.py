"""Promises: futures that any thread may wait for.

:class:`Promise` is the only future type of the client, apart from asyncio's futures.

Thread-safety: all methods. Callbacks run on the thread that settles the promise, or, if that is the loop's, on the
callback thread of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from spark_rocket.remoting.event_loop import run_callback

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

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` when the promise is settled: on the callback thread of its connection, so it may block."""
        super().add_done_callback(partial(run_callback, fn))

    def when_settled(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn``, which must be short, on the thread that settles the promise."""
        super().add_done_callback(fn)

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


def as_future(promise: Future[T]) -> asyncio.Future[T]:
    """Return a future of the running loop with the outcome of a promise. Cancelling it only ignores the outcome."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if future.done():
            return
        error = promise.exception()
        if error is None:
            future.set_result(promise.result())
        else:
            future.set_exception(error)

    def settled(_: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed, so its futures are unused
            pass

    (promise.when_settled if isinstance(promise, Promise) else promise.add_done_callback)(settled)
    return future


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
