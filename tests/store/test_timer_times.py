"""Into which slot a timed message goes: slots of a second, a window of 20 slots, a wheel of 200."""

from __future__ import annotations

import pytest

from spark_rocket.store.delay.timer_times import DEFERRED_SLOTS, Placement, TimerTimes

NOW = 1_000_000


def times(read_time: int = NOW, late_from: int | None = None, now: int = NOW) -> TimerTimes:
    made = TimerTimes(1_000, 100, 20)
    made.resume(read_time, now, late_from)
    made.begin(0)
    return made


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        pytest.param(NOW, Placement(NOW, False), id="the slot of the read time"),
        pytest.param(NOW + 1_999, Placement(NOW + 1_000, False), id="the start of its second"),
        pytest.param(NOW + 19_999, Placement(NOW + 19_000, False), id="the last slot of the window"),
        pytest.param(NOW + 20_000, Placement(NOW + 10_000, True), id="close to the window's end: half of it"),
        pytest.param(NOW + 27_000, Placement(NOW + 20_000, True), id="far beyond the window: all of it"),
        pytest.param(NOW + 10**12, Placement(NOW + 20_000, True), id="years"),
        pytest.param(NOW - 1, Placement(NOW, False), id="late"),
        pytest.param(0, Placement(NOW, False), id="very late"),
    ],
)
def test_places(out: int, expected: Placement) -> None:
    assert times().place(out, NOW, 7, 0) == expected


def test_a_wheel_that_lags_behind_the_clock_rolls_at_its_end() -> None:
    assert times().place(NOW + 305_000, NOW + 300_000, 7, 0) == Placement(NOW + 199_000, True)


def test_late_messages_are_exempt_from_the_read_time_until_their_slot_is_done() -> None:
    it = times()
    assert it.late_from is None
    it.place(NOW - 1, NOW, 7, 0)
    it.place(NOW - 1, NOW, 8, 0)
    assert it.late_from == 7
    assert it.target(0) == NOW + 1_000, "whatever the clock shows"
    it.finish(NOW)
    assert it.late_from == 7
    it.finish(NOW + 1_000)
    assert it.late_from is None


def test_a_rebuild_passes_over_what_was_delivered() -> None:
    done = NOW - DEFERRED_SLOTS * 1_000 - 1
    assert times().place(done, NOW, 7, 8) is None
    assert times().place(done, NOW, 8, 8) == Placement(NOW, False), "it was not in the timer log before"
    assert times().place(done + 1_000, NOW, 7, 8) == Placement(NOW, False), "a stop may have deferred it"


def test_slots_are_loaded_a_second_before_they_are_due() -> None:
    it = times()
    assert it.target(NOW) == NOW + 2_000
    assert it.wake_time(NOW + 5_000, NOW) == NOW + 4_000
    assert it.wake_time(NOW + 500, NOW) == NOW + 1


def test_a_read_time_in_the_future_is_loaded_at_once() -> None:
    assert times(NOW + 60_000).target(NOW) == NOW + 61_000


def test_without_a_read_time_it_begins_before_the_first_message() -> None:
    it = TimerTimes(1_000, 100, 20)
    it.begin(NOW + 500)
    assert (it.read_time, it.loaded_to) == (NOW - 1_000, NOW - 1_000)


def test_a_window_that_does_not_fit_the_wheel_is_replaced() -> None:
    it = TimerTimes(1_000, 100, 172_800)
    it.resume(NOW, NOW, None)
    assert it.place(NOW + 39_000, NOW, 0, 0) == Placement(NOW + 39_000, False)
    assert it.place(NOW + 80_000, NOW, 0, 0) == Placement(NOW + 40_000, True)
