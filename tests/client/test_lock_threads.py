"""No thread waits for ever when a signal handler interrupts code that holds a lock, and then sends or closes.

Two rules, checked over the calls that the tests of interrupts make:

1. No lock is acquired both on the event loop and elsewhere. Otherwise the loop waits for interrupted code, all clients
   of the process stand still, and a handler that waits for the loop never ends.
2. If another thread holds a lock A while it acquires B, and ``close`` acquires A, then the main thread never holds B
   without A. Otherwise a handler that closes waits for A, and the other thread for B, which the interrupted code holds.

Locks are known by the line that creates them, also those within ``Event``, ``Condition`` and ``Semaphore``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_rocket.client.core import instance, lifecycle
from spark_rocket.remoting import event_loop
from spark_rocket.remoting.event_loop import loop_thread
from tests.client import test_interrupts_admin as administering
from tests.client import test_interrupts_consuming as consuming
from tests.client import test_interrupts_everywhere as sending
from tests.kit.scripted import FakeCluster

pytestmark = pytest.mark.live

BROKERS = 1
PARTS = "spark_rocket/client/", "spark_rocket/remoting/client/", "spark_rocket/remoting/event_loop.py"


async def get_ident() -> int:
    return threading.get_ident()


class Locks:
    """The recorded locks, by where they were created, and how threads acquire them."""

    def __init__(self) -> None:
        self.on_loop: set[str] = set()
        self.elsewhere: set[str] = set()
        self.nested: set[tuple[str, str]] = set()  # by threads other than the main one
        self.of_main: set[tuple[str, frozenset[str]]] = set()  # with the locks that it held already
        self.of_close: set[str] = set()
        self._is_closing = False
        self._held = threading.local()
        self._main = threading.get_ident()
        self._loop = loop_thread().run(get_ident)

    def held(self) -> list[str]:
        """The places of the locks that this thread holds."""
        held: list[str] = self._held.__dict__.setdefault("places", [])
        return held

    def acquires(self, place: str) -> None:
        held, me = self.held(), threading.get_ident()  # the thread may not be known to ``threading`` yet
        (self.on_loop if me == self._loop else self.elsewhere).add(place)
        if me != self._main:
            self.nested |= {(outer, place) for outer in held if place not in held}
        elif place not in held:
            self.of_main.add((place, frozenset(held)))
            if self._is_closing:
                self.of_close.add(place)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """The calls of a signal handler that closes."""
        self._is_closing = True
        try:
            yield
        finally:
            self._is_closing = False

    def check(self) -> None:
        """Check both rules."""
        assert not self.on_loop & self.elsewhere
        assert not self.deadlocks()

    def deadlocks(self) -> set[tuple[str, str]]:
        """Pairs of locks in the order of another thread, of which the main thread holds only the second."""
        return {
            (outer, inner)
            for outer, inner in self.nested
            if outer in self.of_close and any(place == inner and outer not in held for place, held in self.of_main)
        }


class RecordedLock:
    """A lock that tells who acquires it. Everything else is the lock's own."""

    def __init__(self, lock: Any, place: str, locks: Locks) -> None:
        self._lock = lock
        self._place = place
        self._locks = locks

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        self._locks.acquires(self._place)
        is_acquired = bool(self._lock.acquire(*args, **kwargs))
        if is_acquired:
            self._locks.held().append(self._place)
        return is_acquired

    def release(self) -> None:
        self._lock.release()
        held = self._locks.held()
        if self._place in held:  # not a plain lock that another thread acquired
            held.remove(self._place)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def place_of_creation() -> str | None:
    """The line of the client that creates a lock, maybe within the standard library; None for other locks.

    A lock of ``Thread`` belongs to the thread and to who starts it, so it is another one.
    """
    frame = sys._getframe(2)
    while frame.f_code.co_filename in (threading.__file__, __file__) and frame.f_back is not None:
        if frame.f_code.co_qualname == "Thread.__init__":
            return None
        frame = frame.f_back
    name = frame.f_code.co_filename
    at = next((name.index(part) for part in PARTS if part in name), None)
    return None if at is None else f"{name[at:]}:{frame.f_lineno}"


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Locks:
    """Records the locks that are created from now on, and those of modules."""
    found = Locks()

    def recorded(make: Callable[[], Any]) -> Callable[[], Any]:
        def create() -> Any:
            place = place_of_creation()
            return make() if place is None else RecordedLock(make(), place, found)

        return create

    for name in ("Lock", "RLock"):
        monkeypatch.setattr(threading, name, recorded(getattr(threading, name)))
    for module in (instance, lifecycle, event_loop):
        monkeypatch.setattr(module, "_lock", RecordedLock(module._lock, f"{module.__name__}._lock", found))
    return found


def created(code: str) -> Any:
    """Execute code of the client; return its variables as attributes."""
    made = type("", (), {})()
    exec(compile(code, PARTS[0] + "new.py", "exec"), made.__dict__)
    return made


def test_a_lock_of_the_loop_and_others_is_found(locks: Locks) -> None:
    made = created("import threading\nevent = threading.Event()\nlock = threading.Lock()\nalone = threading.RLock()")

    async def use() -> None:
        made.event.set()
        with made.lock:
            pass

    with made.lock, made.alone:
        assert not made.event.wait(0)
    loop_thread().run(use)
    assert locks.on_loop & locks.elsewhere == {f"{PARTS[0]}new.py:{line}" for line in (2, 3)}


def test_a_wrong_order_of_locks_is_found(locks: Locks) -> None:
    made = created("import threading\nouter = threading.RLock()\ninner = threading.RLock()\nright = threading.RLock()")

    def in_order() -> None:
        with made.outer, made.inner, made.right:
            pass

    thread = threading.Thread(target=in_order)
    thread.start()
    thread.join()
    with made.inner:
        pass
    with made.outer, made.right:
        pass
    assert not locks.deadlocks()
    with locks.closing(), made.outer:
        pass
    assert locks.deadlocks() == {(f"{PARTS[0]}new.py:2", f"{PARTS[0]}new.py:3")}


@pytest.mark.parametrize("name", sending.CALLS)
def test_producers(mq: FakeCluster, locks: Locks, name: str) -> None:
    sending.serve(mq)
    settings, call = sending.CALLS[name]
    producer = sending.make(mq, settings)
    sending.check(producer, call(producer))
    with locks.closing():
        producer.close()
    locks.check()


@pytest.mark.parametrize("name", consuming.CALLS)
def test_consumers_and_readers(mq: FakeCluster, locks: Locks, name: str) -> None:
    consuming.serve(mq)
    make, call = consuming.CALLS[name]
    client = make(mq.name_server.address)
    with consuming.busy(client) as meet:
        call(client)
        meet()
        consuming.works(client, mq)
        with locks.closing():
            client.close()
    assert locks.of_close
    locks.check()


def test_administrators(mq: FakeCluster, locks: Locks) -> None:
    message = administering.message_of(consuming.serve(mq))
    admin = administering.new(mq)
    for name in administering.called():
        administering.call_of(admin, name, message)()
    with locks.closing():
        admin.close()
    assert locks.of_close
    locks.check()
