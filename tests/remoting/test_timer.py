import sys
import threading
from collections.abc import Callable

from spark_rocket.remoting.client.timer import SWEEP_FROM, DeadlineTimer


class Do:
    """A deadline that calls a function."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.answered = False

    def expire(self) -> None:
        self._action()

    def needed(self) -> bool:
        return not self.answered


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_due_is_done_in_order_and_once() -> None:
    timer = DeadlineTimer(Clock())
    timer._thread = threading.current_thread()  # no thread of its own: the test is it
    done: list[str] = []
    timer.call_at(3.0, Do(lambda: done.append("c")))
    timer.call_at(1.0, Do(lambda: done.append("a")))
    timer.call_at(1.0, Do(lambda: done.append("b")))
    assert timer.run_due(0.5) == 1.0
    assert done == []
    assert timer.run_due(2.0) == 3.0
    assert done == ["a", "b"]
    assert timer.run_due(3.0) is None
    assert timer.run_due(9.0) is None
    assert done == ["a", "b", "c"]


def test_an_action_may_enter_another() -> None:
    timer = DeadlineTimer(Clock())
    timer._thread = threading.current_thread()
    done: list[str] = []
    timer.call_at(1.0, Do(lambda: timer.call_at(1.0, Do(lambda: done.append("second")))))
    assert timer.run_due(1.0) is None
    assert done == ["second"]


def test_the_thread_wakes_for_a_nearer_deadline() -> None:
    timer = DeadlineTimer()
    near = threading.Event()
    far = threading.Event()
    timer.call_at(timer._clock() + 3600, Do(far.set))
    timer.call_at(timer._clock(), Do(near.set))
    assert near.wait(10)
    assert not far.is_set()
    assert len(timer) == 1
    timer.close()
    assert timer._thread is not None
    timer._thread.join(10)
    assert not timer._thread.is_alive()


def test_what_was_answered_is_swept_out() -> None:
    timer = DeadlineTimer(Clock())
    timer._thread = threading.current_thread()
    done: list[str] = []
    waits = Do(lambda: done.append("waits"))
    timer.call_at(2.0, waits)
    for _ in range(10 * SWEEP_FROM):
        answered = Do(lambda: done.append("answered"))
        timer.call_at(1.0, answered)
        answered.answered = True
    assert len(timer) <= SWEEP_FROM
    assert timer.run_due(1.5) == 2.0
    assert timer.run_due(2.0) is None
    assert done[-1] == "waits"


def test_an_action_that_fails_is_not_the_next_ones_affair() -> None:
    timer = DeadlineTimer(Clock())
    timer._thread = threading.current_thread()
    done: list[str] = []
    timer.call_at(1.0, Do(lambda: sys.exit(1)))
    timer.call_at(1.0, Do(lambda: done.append("b")))
    assert timer.run_due(1.0) is None
    assert done == ["b"]
