"""The timer and tables of entries with deadlines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from spark_rocket.remoting.client.deadlines import DeadlineTable, Timer


@pytest.fixture
def timer() -> Iterator[Timer]:
    """The clock stands still: the test decides which actions are due."""
    timer = Timer(lambda: 0.0)
    yield timer
    timer.close()


def test_due_actions_run_once_and_in_order(timer: Timer) -> None:
    done: list[str] = []
    timer.call_at(3.0, lambda: done.append("c"))
    timer.call_at(1.0, lambda: done.append("a"))
    timer.call_at(1.0, lambda: done.append("b"))
    assert timer.run_due(0.5) == 1.0
    assert done == []
    assert timer.run_due(2.0) == 3.0
    assert done == ["a", "b"]
    assert timer.run_due(3.0) is None
    assert timer.run_due(9.0) is None
    assert done == ["a", "b", "c"]


def test_an_action_may_schedule_another(timer: Timer) -> None:
    done: list[str] = []
    timer.call_at(1.0, lambda: timer.call_at(1.0, lambda: done.append("second")))
    assert timer.run_due(1.0) is None
    assert done == ["second"]


def test_the_thread_wakes_for_a_nearer_deadline() -> None:
    before = set(threading.enumerate())
    timer = Timer()
    near = threading.Event()
    far = threading.Event()
    timer.call_at(time.monotonic() + 3600, far.set)
    timer.call_at(time.monotonic(), near.set)
    assert near.wait(10)
    assert not far.is_set()
    (thread,) = set(threading.enumerate()) - before
    timer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_failed_action_does_not_affect_the_next(timer: Timer) -> None:
    done: list[str] = []
    timer.call_at(1.0, lambda: sys.exit(1))
    timer.call_at(1.0, lambda: done.append("b"))
    assert timer.run_due(1.0) is None
    assert done == ["b"]


class Manual(Timer):
    """A timer whose actions a test runs."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[float, object]] = []

    def call_at(self, when: float, action: object) -> None:  # type: ignore[override]
        self.entries.append((when, action))

    def run(self) -> None:
        entries, self.entries = self.entries, []
        for _, action in entries:
            action()  # type: ignore[operator]


def test_a_table_schedules_its_nearest_deadline(caplog: pytest.LogCaptureFixture) -> None:
    timer, now, late = Manual(), time.monotonic(), SimpleQueue[str]()

    def expire(name: str) -> None:
        late.put(name)
        if name == "exits":
            sys.exit(1)

    table: DeadlineTable[int, str] = DeadlineTable(timer, expire)
    table.put(1, "later", now + 3600)
    table.put(2, "exits", now - 2)
    table.put(3, "late", now - 1)
    assert [when for when, _ in timer.entries] == [now + 3600, now - 2]
    timer.run()
    assert [late.get_nowait(), late.get_nowait()] == ["exits", "late"]
    assert late.empty()
    assert 1 in table
    assert len(table) == 1
    assert now + 3600 in [when for when, _ in timer.entries]
    assert "SystemExit: 1" in caplog.text
    timer.run()  # long before its time
    assert late.empty()
    assert (table.take(1), table.take(1)) == ("later", None)
    table.put(4, "drained", now + 3600)
    assert (table.drain(), table.drain()) == (["drained"], [])
