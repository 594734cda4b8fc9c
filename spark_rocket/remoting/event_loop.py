"""Event loops: which one is used, and the thread whose loop serves all blocking clients of a process.

:class:`LoopThread` runs one loop on one daemon thread. Other threads pass it calls with ``LoopThread.post``: each
is appended to a queue, and the loop is woken only if it is not already (:class:`Inbox`). So a thread that posts faster
than the loop runs causes one wake-up for many calls.

Callbacks of users must not run on the loop, because one that blocks would stop all connections. They run on a
:class:`CallbackThread`, in order; each connection has its own.

Interrupts (Ctrl-C) reach the main thread only, so the loop and its connections are not affected. After a fork the child
has no loop; the first use creates one.

Thread-safety: all functions and methods.
Corresponds to Netty's EventLoopGroup and to NettyRemotingClient's callbackExecutor.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar, cast

from spark_rocket.common.system import hold_standard_descriptors
from spark_rocket.errors import StateError

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

CALLBACK_IDLE_S = 10.0  # a callback thread without work ends after this time
_STOP_TIMEOUT_S = 2.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if it is installed, which more than doubles the throughput of a server; else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    hold_standard_descriptors()
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


class CallbackThread:
    """Runs callbacks one after the other on a daemon thread, which ends after ``idle`` seconds without one.

    No locks: a signal handler may submit a call while the interrupted code does.
    """

    def __init__(self, name: str, idle: float = CALLBACK_IDLE_S) -> None:
        self._name = name
        self._idle_seconds = idle
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._idle = deque((None,))  # its only item is taken by the thread that runs the calls
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], object]) -> bool:
        """Run a call after those submitted before. Return False if there is no thread: the next call retries."""
        self._calls.put(call)
        if self._idle:
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError:  # too many threads, or the interpreter's exit
                logger.exception("no thread for the callbacks of %s", self._name)
                return False
        return True

    def is_current(self) -> bool:
        """Whether this is called on the thread."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        while not self._calls.empty():
            try:
                self._idle.pop()
            except IndexError:
                return  # another thread runs the calls
            self._thread = threading.current_thread()
            self._run_calls()
            self._thread = None
            self._idle.append(None)  # then look again for a call that came before

    def _run_calls(self) -> None:
        while True:
            try:
                call = self._calls.get(True, self._idle_seconds)
            except Empty:
                return
            try:
                call()
            except BaseException:  # including SystemExit of a callback: the thread serves others too
                logger.exception("callback failed")
            del call


_local = threading.local()
"""On the thread of a loop, ``callbacks`` is the thread for the callbacks of what is being done. Missing elsewhere."""


def with_callbacks_on(
    thread: CallbackThread | None, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call on a loop's thread; what is done within the call runs its callbacks on ``thread``."""
    before = getattr(_local, "callbacks", None)
    _local.callbacks = thread
    try:
        call(*args, **kwargs)
    finally:
        _local.callbacks = before


def run_callback(callback: Callable[[Any], object], value: Any) -> None:
    """Call a user's callback: on its callback thread if this is a loop's thread, which must not block, else here."""
    thread: CallbackThread | None = getattr(_local, "callbacks", None)
    if thread is None:
        callback(value)
    else:
        thread.submit(partial(callback, value))


class Inbox(Generic[T]):
    """A queue of items that other threads put and one reader takes. ``wake`` is called if the reader may be idle.

    ``put`` may be interrupted at any point, also by a signal handler that puts an item itself and waits for it. Each
    ``put`` wakes the reader unless another one has done so since the reader's last look. So a wake-up may find no item,
    but no item waits without a wake-up.
    """

    __slots__ = ("_append", "_looks", "_wake", "_woken", "items")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.items: deque[T] = deque()
        self._append = self.items.append
        self._wake = wake
        self._looks = 0  # of the reader
        self._woken = -1  # the number of looks when the reader was woken last

    def put(self, item: T) -> None:
        try:
            self._append(item)
            looks = self._looks  # after the append
            if self._woken != looks:
                self._wake()
                self._woken = looks  # after the wake-up
        except BaseException:  # an interrupt between the lines: the reader must still be woken
            self._wake()
            raise

    def look(self) -> deque[T]:
        """Return the items, to be taken by the reader. Each item that is put from now on wakes it again."""
        self._looks += 1
        return self.items


class LoopThread:
    """An event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.callbacks = CallbackThread("rocket-callbacks")
        """Runs the callbacks that belong to no connection."""
        self._inbox: Inbox[Callable[[], object]] = Inbox(self._wake)
        self.post = self._inbox.put
        """Run a call on the loop soon, after the calls posted before. Its errors are logged."""
        self.is_stopped = False
        self._thread = threading.Thread(target=self._run, name="rocket-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        _local.callbacks = self.callbacks
        self.loop.run_forever()

    def is_current(self) -> bool:
        """Whether this is called on the loop's thread."""
        return self._thread is threading.current_thread()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call_at(self, when: float, call: Callable[[], object]) -> None:
        """Run a short call on the loop at ``when`` (``time.monotonic``) or soon after."""
        self.post(lambda: self.loop.call_later(max(0.0, when - self.loop.time()), _logged, call))

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop, and wait for its result. An interrupt (Ctrl-C) cancels it."""
        if not self.is_alive() or self.is_current():
            raise StateError("The event loop of the clients has ended with the interpreter, or this is its thread.")
        ended: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(self.loop.create_task(function(*args, **kwargs)))
            begun[0].add_done_callback(ended.put)

        try:
            self.post(begin)
            return ended.get().result()
        except BaseException:
            self.post(lambda: [task.cancel() for task in begun])
            raise

    def _wake(self) -> None:
        self.loop.call_soon_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        calls = self._inbox.look()
        while calls:
            _logged(calls.popleft())

    def stop(self) -> None:
        """End the thread."""
        self.is_stopped = True
        if self._thread.is_alive() and not self.is_current():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # including SystemExit: the loop serves all connections
        logger.exception("call on the event loop failed")


_lock = threading.RLock()  # a signal handler may start it, too
_current: LoopThread | None = None
_abandoned: list[LoopThread] = []  # of the parent process: never closed here, because its sockets are the parent's


def loop_thread() -> LoopThread:
    """Return the loop thread of this process; the first call starts it."""
    global _current
    found = _current
    if found is None:
        with _lock:
            found = _current
            if found is None:
                started = LoopThread()
                found = _current = started if _current is None else _current
                if found is not started:
                    started.stop()
    return found


def has_loop_ended() -> bool:
    """Whether the loop of this process has ended, with the interpreter."""
    return _current is not None and _current.is_stopped


def is_loop_thread() -> bool:
    """Whether this is called on the loop thread of this process."""
    return _current is not None and _current.is_current()


def _after_fork_in_child() -> None:
    global _lock, _current
    _lock = threading.RLock()
    if _current is not None:
        _abandoned.append(_current)
        _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _stop() -> None:
    """Stop before the interpreter ends, when a daemon thread must not run Python code any more."""
    if _current is not None:
        _current.stop()
