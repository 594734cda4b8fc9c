"""Promises: futures that any thread may wait for.

:class:`Promise` is the only future type of the client, apart from asyncio's futures.

Thread-safety: all methods, without locks: every step is one operation of a deque, or one assignment from values that
exist already. CPython runs signal handlers and switches threads at calls, jumps back and starts of functions only, so
nothing comes between the test and the store of such an assignment. So a signal handler may use the promises of the code
that it has interrupted, and the thread that settles a promise never waits for another. Only
``concurrent.futures.wait`` and ``as_completed`` lock, as for any future.
Callbacks run on the thread that settles the promise, or, if that is the loop's, on the callback thread of the
connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from spark_rocket.remoting.event_loop import CallbackThread, run_callback

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Failure:
    """The outcome of a promise that failed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


_PENDING = _Failure(TimeoutError())


class Promise(Future[T]):
    """A future that is settled once: of several outcomes the first one counts.

    It cannot be cancelled, because its request is already in flight.

    Most promises are settled before anyone waits for them, and the state of a Future (a condition, two lists) costs
    three times as much as the rest of an accumulated send. So it is set up on the first access to one of its
    attributes, for example by ``concurrent.futures.wait``.
    """

    _outcome: Any = _PENDING  # the value itself, or a failure
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
        outcome = self._outcome
        if not isinstance(outcome, _Failure):
            super().set_result(outcome)
        elif isinstance(outcome.error, CancelledError):
            super().cancel()
            super().set_running_or_notify_cancel()
        else:
            super().set_exception(outcome.error)

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
        if self._outcome is not _PENDING:
            self._run_calls()

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        outcome = self._outcome
        return isinstance(outcome, _Failure) and isinstance(outcome.error, CancelledError)

    def done(self) -> bool:
        return self._outcome is not _PENDING

    def result(self, timeout: float | None = None) -> T:
        outcome = self._outcome
        if outcome is _PENDING:
            outcome = self._wait(timeout)
        if not isinstance(outcome, _Failure):
            return outcome  # type: ignore[no-any-return]
        try:
            raise outcome.error
        finally:
            del outcome  # no circle of the error and this frame

    def wait(self) -> T:
        """Return the result, for a caller that keeps no reference. The promise of a request has a deadline."""
        return self.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self._outcome
        if outcome is _PENDING:
            outcome = self._wait(timeout)
        if not isinstance(outcome, _Failure):
            return None
        if isinstance(outcome.error, CancelledError):
            raise outcome.error
        return outcome.error

    def _wait(self, timeout: float | None) -> Any:
        """Return the outcome. TimeoutError if there is none in time."""
        settled: SimpleQueue[object] = SimpleQueue()
        self.when_settled(settled.put)
        until = None if timeout is None else time.monotonic() + timeout
        while self._outcome is _PENDING:
            try:
                settled.get(True, None if until is None else max(0.0, until - time.monotonic()))
            except Empty:
                break
        if self._outcome is _PENDING:
            raise TimeoutError
        return self._outcome

    def resolve(self, value: T) -> None:
        """Settle with a result, unless the promise is settled already."""
        self._settle(value)

    def fail(self, error: BaseException) -> None:
        """Settle with an error, unless the promise is settled already."""
        self._settle(_Failure(error))

    def _settle(self, outcome: Any) -> None:
        # One assignment; a dictionary or tuple for each promise would double the time of the garbage collector.
        self._outcome = outcome if self._outcome is _PENDING else self._outcome
        if self._calls is not None:
            self._run_calls()

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


def submitted(thread: CallbackThread, call: Callable[[], T]) -> Promise[T]:
    """Call on a thread, after the calls submitted before, and return a promise of the result.

    It is called at once if this is the thread, or if none can be started: at the interpreter's exit.
    """
    promise: Promise[T] = Promise()
    calls = deque((call,))

    def settle() -> None:
        try:
            first = calls.pop()
        except IndexError:  # called already, without the thread
            return
        try:
            promise.resolve(first())
        except BaseException as error:
            promise.fail(error)

    if thread.is_current() or not thread.submit(settle):
        settle()
    return promise


def run_on(thread: CallbackThread, call: Callable[[], T]) -> T:
    """Call on a thread, and wait for the result. An interrupt (Ctrl-C) ends the wait, not the call."""
    return submitted(thread, call).result()


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


def resolved(value: T) -> Promise[T]:
    """Return a promise with a result."""
    promise: Promise[T] = Promise()
    promise.resolve(value)
    return promise


def failed(error: BaseException) -> Promise[T]:
    """Return a failed promise."""
    promise: Promise[T] = Promise()
    promise.fail(error)
    return promise
