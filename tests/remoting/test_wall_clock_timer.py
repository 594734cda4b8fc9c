"""The timer runs when deliveries are due, and sleeps otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.remoting.wall_clock_timer import ERROR_DELAY_S, MAX_SLEEP_S, WallClockTimer


class Handle:
    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self.seconds = seconds
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """The part of an event loop that the timer uses, with a clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.handles: list[Handle] = []

    def clock(self) -> int:
        return self.now

    def call_soon(self, call: Callable[[], object]) -> Handle:
        return self.call_later(0.0, call)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Handle:
        self.handles.append(Handle(seconds, call))
        return self.handles[-1]

    def armed(self) -> list[float]:
        return [handle.seconds for handle in self.handles if handle.call is not None]

    def run(self) -> None:
        """Run the scheduled call at its time."""
        (handle,) = [handle for handle in self.handles if handle.call is not None]
        self.handles.clear()
        self.now += round(handle.seconds * 1000)
        assert handle.call is not None
        handle.call()


class Deliveries:
    """Answers ``deliver`` from a list."""

    def __init__(self, *responses: int | Exception | None) -> None:
        self.responses = list(responses)
        self.calls: list[int] = []

    def __call__(self, now_ms: int, budget: float) -> int | None:
        assert budget == 0.5
        self.calls.append(now_ms)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def driver(loop: Any, deliver: Deliveries) -> WallClockTimer:
    return WallClockTimer(loop, loop.clock, deliver, 0.5)


def test_the_timer_sleeps_until_the_next_delivery() -> None:
    loop = Loop()
    deliver = Deliveries(loop.now + 300, loop.now, loop.now, None)
    woken = driver(loop, deliver)
    woken.wake()
    assert loop.armed() == [0.0]
    loop.run()
    assert loop.armed() == [0.3]
    loop.run()
    assert loop.armed() == [0.0]  # unfinished: again at once, after other calls of the loop
    loop.run()
    loop.run()
    assert loop.armed() == []
    assert deliver.calls == [1_000_000, 1_000_300, 1_000_300, 1_000_300]


def test_an_earlier_delivery_wakes_the_timer_earlier() -> None:
    loop = Loop()
    deliver = Deliveries(None, None)
    woken = driver(loop, deliver)
    woken.expect(loop.now + 500)
    assert loop.armed() == [0.5]
    woken.expect(loop.now + 700)
    assert loop.armed() == [0.5]
    woken.expect(loop.now + 200)
    assert loop.armed() == [0.2]
    woken.wake()
    assert loop.armed() == [0.0]
    loop.run()
    assert loop.armed() == []
    woken.expect(loop.now - 5)
    assert loop.armed() == [0.0]


def test_sleeps_are_short_because_the_wall_clock_can_change() -> None:
    loop = Loop()
    deliver = Deliveries(loop.now + 60_000, None)
    woken = driver(loop, deliver)
    woken.expect(loop.now + 60_000)
    assert loop.armed() == [MAX_SLEEP_S]
    loop.run()
    assert loop.armed() == [MAX_SLEEP_S]
    loop.now += 120_000
    loop.run()
    assert loop.armed() == []


def test_an_error_does_not_stop_the_timer(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    deliver = Deliveries(OSError("the disk is gone"), None)
    woken = driver(loop, deliver)
    woken.wake()
    loop.run()
    assert "the disk is gone" in caplog.text
    woken.expect(loop.now)  # a new message does not shorten the delay after an error
    assert loop.armed() == [ERROR_DELAY_S]
    loop.run()
    assert len(deliver.calls) == 2


def test_a_closed_timer_does_not_run() -> None:
    loop = Loop()
    woken = driver(loop, Deliveries())
    woken.expect(loop.now + 5)
    woken.close()
    woken.wake()
    woken.expect(loop.now)
    assert loop.armed() == []
