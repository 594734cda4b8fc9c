"""Samples over time."""

from __future__ import annotations

from itertools import pairwise

from spark_rocket.console.series import Rate, Series


def test_old_samples_are_thinned_and_the_newest_kept() -> None:
    series = Series(most=100)
    for second in range(10_000):
        series.add(float(second), {"total": float(second)})
    assert len(series) <= 100
    times = list(series.times)
    assert times == sorted(times)
    assert times[-40:] == [float(second) for second in range(9_960, 10_000)]
    assert times[0] < 9_000
    assert list(series.columns["total"]) == times


def test_new_columns_start_with_a_gap() -> None:
    series = Series()
    series.add(1.0, {"a": 1.0})
    series.add(2.0, {"a": 2.0, "b": 5.0})
    series.add(3.0, {"b": 6.0})
    assert series.to_json() == {"times": [1000, 2000, 3000], "columns": {"a": [1.0, 2.0, None], "b": [None, 5.0, 6.0]}}
    assert series.to_json(["b", "none"])["columns"] == {"b": [None, 5.0, 6.0]}


def test_the_number_of_points_is_limited_and_includes_the_newest() -> None:
    series = Series()
    for second in range(599):
        series.add(float(second), {"a": 0.0})
    times = series.to_json(points=100)["times"]
    assert isinstance(times, list)
    assert len(times) <= 100
    assert times[-1] == 598_000


def test_a_clock_that_was_set_back() -> None:
    series = Series()
    for moment in (10.0, 20.0, 30.0, 15.0):
        series.add(moment, {"a": moment})
    assert list(series.times) == [10.0, 15.0]
    assert list(series.columns["a"]) == [10.0, 15.0]


def test_the_number_of_names_is_limited() -> None:
    series = Series(most_columns=3)
    series.add(1.0, {str(i): 1.0 for i in range(10)})
    assert len(series.columns) == 3


def test_rates() -> None:
    rate = Rate()
    assert rate.count(10.0, 100) is None
    assert rate.count(12.0, 150) == 25.0
    assert rate.count(14.0, 150) == 12.5
    for second in range(15, 60):
        rate.count(float(second), 150 + second)
    assert rate.value == 1.0  # the last ten seconds
    assert rate.count(60.0, 3) is None  # deleted and recreated
    assert rate.count(62.0, 5) == 1.0
    assert rate.count(61.0, 6) is None  # a clock that was set back


def test_rates_of_counters_over_time() -> None:
    series = Series()
    for second in range(0, 40, 2):
        series.add(float(second), {"in": second * 5.0})
    series.add(100.0, {"in": 38 * 5.0 + 124.0, "out": 0.0})  # after a gap
    series.add(110.0, {"in": 38 * 5.0 + 124.0, "out": 30.0})
    series.add(120.0, {"in": 0.0, "out": 30.0})  # recreated
    rates = series.rates()
    assert rates["times"] == [*range(2_000, 40_000, 2_000), 100_000, 110_000, 120_000]
    columns = rates["columns"]
    assert isinstance(columns, dict)
    assert columns["in"] == [*[5.0] * 19, 2.0, 0.0, None]
    assert columns["out"] == [*[None] * 20, 3.0, 0.0]
    assert Series().rates() == {"times": [], "columns": {}}


def test_rates_are_correct_with_removed_samples() -> None:
    """Rates of any number of remaining samples are averages, and their sum is the number of messages."""
    series = Series(most=60)
    total = 0.0
    for second in range(0, 2_000, 2):
        total += second % 14
        series.add(float(second), {"in": total})
    for points in (10, 60):
        rates = series.rates(points=points)
        times, columns = rates["times"], rates["columns"]
        assert isinstance(times, list)
        assert isinstance(columns, dict)
        assert len(times) <= points
        assert times[-1] == 1_998_000
        assert all(abs(value - 3.0) <= 1.0 for value in columns["in"][1:])
    spread = series.rates(points=10)
    times, columns = spread["times"], spread["columns"]
    assert isinstance(times, list)
    assert isinstance(columns, dict)
    gaps = [(after - before) / 1000 for before, after in pairwise(times)]
    grown = sum(rate * gap for rate, gap in zip(columns["in"][1:], gaps, strict=True))
    first = series.columns["in"][list(series.times).index(times[0] / 1000)]
    assert abs(grown - (total - first)) < 0.02 * total
