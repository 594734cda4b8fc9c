"""Promises: futures that any thread may wait for.

:class:`Promise` is the only future type of the client, apart from asyncio's futures.

Thread-safety: all methods, without locks: every step is one operation of a deque, or one assignment from values that
exist already. CPython runs signal handlers and switches threads at calls, jumps back and starts of functions only, so
nothing comes between the test and the store of such an assignment. So a signal handler may use the promises of the code
that it has interrupted, and the thread that settles a promise never waits for another. Only ``concurrent.futures.wait`` and ``as_completed`` lock, as for any future.
Callbacks run on the thread that settles the promise, or, if that is the loop's, on the callback thread of the
connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from spark_rocket.remoting.event_loop import CallbackThread, run_callback

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Outcome = tuple[Any, BaseException | None]


class Promise(Future[T]):
    """A future that is settled once: of several outcomes the first one counts.

    It cannot be cancelled, because its request is already in flight.

    Most promises are settled before anyone waits for them, and the state of a Future (a condition, two lists) costs
    three times as much as the rest of an accumulated send. So it is set up on the first access to one of its
    attributes, for example by ``concurrent.futures.wait``.
    """

    _outcome: _Outcome | None = None
    _calls: deque[Callable[[Future[T]], object]] | None = None  # when settled

    __init__ = object.__init__  # see __getattr__

    def __getattr__(self, name: str) -> Any:
        state = vars(Future())
        if name not in state:
            raise AttributeError(name)
        for each, value in state.items():
            self.__dict__.setdefault(each, value)
        if self.__dict__.setdefault("_state_of", state) is state:  # not set up by another thread
            self.when_settled(lambda _: self._pass_on())
        return self.__dict__[name]

    def _pass_on(self) -> None:
        value, error = self._outcome or (None, None)
        if isinstance(error, CancelledError):
            super().cancel()
            super().set_running_or_notify_cancel()
        elif error is None:
            super().set_result(value)  # type: ignore[arg-type]
        else:
            super().set_exception(error)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` when the promise is settled: on the callback thread of its connection, so it may block."""
        self.when_settled(partial(run_callback, fn))

    def when_settled(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn``, which must be short, on the thread that settles the promise."""
        calls = self._calls
        if calls is None:
            first: deque[Callable[[Future[T]], object]] = deque()
            self._calls = calls = first if self._calls is None else self._calls
        calls.append(fn)
        if self._outcome is not None:
            self._run_calls()

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        outcome = self._outcome
        return outcome is not None and isinstance(outcome[1], CancelledError)

    def done(self) -> bool:
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> T:
        value, error = self._outcome or self._wait(timeout)
        if error is None:
            return value  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            del error  # no circle of the error and this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = (self._outcome or self._wait(timeout))[1]
        if isinstance(error, CancelledError):
            raise error
        return error

    def _wait(self, timeout: float | None) -> _Outcome:
        """Return the outcome. TimeoutError if there is none in time."""
        settled: SimpleQueue[object] = SimpleQueue()
        self.when_settled(settled.put)
        until = None if timeout is None else time.monotonic() + timeout
        while self._outcome is None:
            try:
                settled.get(True, None if until is None else max(0.0, until - time.monotonic()))
            except Empty:
                break
        if self._outcome is None:
            raise TimeoutError
        return self._outcome

    def resolve(self, value: T) -> bool:
        """Settle with a result; False if the promise is settled already."""
        return self._settle(value, None)

    def fail(self, error: BaseException) -> bool:
        """Settle with an error; False if the promise is settled already."""
        return self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> bool:
        outcome = value, error
        self._outcome = self._outcome or outcome  # not by __dict__, which would cost a dictionary for each promise
        if self._outcome is not outcome:
            return False
        if self._calls is not None:
            self._run_calls()
        return True

    def _run_calls(self) -> None:
        calls = self._calls
        while calls:
            try:
                call = calls.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                call(self)
            except KeyboardInterrupt:
                self._run_calls()
                raise
            except BaseException:  # including SystemExit of a callback: the thread serves others too
                logger.exception("promise callback failed")


def resolve_each(promises: Sequence[Promise[T]], values: Sequence[T]) -> None:
    """Settle many promises with their values."""
    for promise, value in zip(promises, values, strict=True):
        promise._settle(value, None)


def run_on(thread: CallbackThread, call: Callable[[], T]) -> T:
    """Call on a thread, and wait for the result. An interrupt (Ctrl-C) ends the wait, not the call."""
    if thread.is_current():
        return call()
    promise: Promise[T] = Promise()

    def settle() -> None:
        try:
            promise.resolve(call())
        except BaseException as error:
            promise.fail(error)

    thread.submit(settle)
    return promise.result()


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


def failed(error: BaseException) -> Promise[T]:
    """Return a failed promise."""
    promise: Promise[T] = Promise()
    promise.fail(error)
    return promise
