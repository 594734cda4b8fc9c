"""Durations, sizes, times and numbers: what is printed can be given, in options and on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_rocket.cli import arguments
from spark_rocket.common.units import (
    CLOCK_SKEW_MS,
    Moment,
    count_text,
    duration_ms,
    duration_text,
    moment,
    moment_text,
    second_text,
    size_bytes,
    size_text,
    whole_number,
)
from spark_rocket.datasource.options.table import OPTIONS

BY_NAME = {option.name: option for option in OPTIONS}
NOW = 1_800_000_000_000


@pytest.fixture(params=["Asia/Kolkata", "America/Los_Angeles", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's zone."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("2h", 7_200_000), ("1d", 86_400_000),
        (" 10 S ", 10_000), ("0s", 0), ("10", None), ("", None), ("s", None), ("-1s", None), ("1.5h", None),
        ("1h30m", 5_400_000), ("5 min 12 s", 312_000), ("3 D 2h", 266_400_000), ("30m1h", None), ("1h1h", None),
        ("5m min", None), ("1w", None), ("1\u017f", None), ("\u0663s", None), ("9" * 19 + "s", None),
    ],
)  # fmt: skip
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7b", 7), ("64k", 65_536), ("64KB", 65_536), ("64KiB", 65_536), ("4m", 4 << 20), ("10MB", 10 << 20),
        ("1 g", 1 << 30), ("2t", 2 << 40), ("64", None), ("", None), ("1kk", None), ("1bib", None), ("-1k", None),
        ("1.5m", 3 << 19), ("1.5 KiB", 1536), ("0.1k", 102), ("1.5b", None),
        ("1.5", None), (".5k", None), ("1\u212a", None), ("1ms", None),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int | None) -> None:
    assert size_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7), (" 42 ", 42), ("1,234", 1234), ("12,345,678", 12_345_678), ("007", 7), ("9" * 19, 10**19 - 1),
        ("", None), ("-1", None), ("1,23", None), ("1234,567", None), ("1.5", None), ("\u0663", None), ("1_0", None),
        ("9" * 20, None),
    ],
)  # fmt: skip
def test_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31 12:00:00.0001+00:00", 1_769_860_800_001),
        ("2026-01-31T12:00+05:30", 1_769_841_000_000),
        ("1769860800000", 1_769_860_800_000),
        ("12345", 12_345),
        ("1969-12-31T00:00-12:00", 0),
    ],
)
def test_a_time_is_the_same_in_options_and_on_the_command_line(text: str, ms: int, zone: str) -> None:
    assert moment(text, NOW) == moment(text, NOW, None) == Moment(ms)
    assert BY_NAME["startingTimestamp"].parse("startingTimestamp", text) == Moment(ms)
    assert arguments.moment(text) == ms


LOCAL_NOON = {"Asia/Kolkata": 1_769_841_000_000, "America/Los_Angeles": 1_769_889_600_000, "UTC": 1_769_860_800_000}


@pytest.mark.parametrize("text", ["2026-01-31T12:00", "2026-01-31 12:00:00", "20260131T120000"])
def test_a_time_without_a_zone_means_what_the_command_line_prints(text: str, zone: str) -> None:
    """Options are evaluated on several machines: there it is UTC."""
    assert arguments.moment(text) == LOCAL_NOON[zone]
    assert moment_text(LOCAL_NOON[zone], "seconds").startswith("2026-01-31T12:00:00")
    assert BY_NAME["startingTimestamp"].parse("startingTimestamp", text) == Moment(LOCAL_NOON["UTC"])


def test_relative_times() -> None:
    for text in ("2h", "-2h", "- 2 H"):
        assert moment(text, NOW) == Moment(NOW - 7_200_000, is_relative=True)
    assert moment("99999999d", NOW) == Moment(0, is_relative=True)


@pytest.mark.parametrize("text", ["", "yesterday", "2026", "20260131", "1700000000", "9" * 19, "2026-13-01", "12:00"])
def test_invalid_times(text: str) -> None:
    with pytest.raises(ValueError, match="milliseconds since 1970"):
        moment(text, NOW)
    with pytest.raises(click.BadParameter, match=r"invalid time .*: use milliseconds since 1970"):
        arguments.moment(text)


def test_a_time_that_cannot_be_meant_is_refused() -> None:
    """Messages are stored in the past, and delivered in the future. Clocks may differ a little."""
    now = int(time.time() * 1000)
    soon, late = str(now + CLOCK_SKEW_MS // 2), str(now + 2 * 3_600_000)
    assert arguments.past(soon) == int(soon)
    assert arguments.past("2h") < now
    with pytest.raises(click.BadParameter, match=r"it is (1 h 59 min|2 h) in the future. Use a time in the past"):
        arguments.past(late)
    assert arguments.delivery_time(late) == int(late)
    for text in ("2h", "-2h", str(now - 1), "2026-01-31T12:00Z"):
        with pytest.raises(click.BadParameter, match=r"not in the future.*use --delay"):
            arguments.delivery_time(text)


# --- what is printed can be given -------------------------------------------------------------------------------------


@given(st.integers(0, 10**15))
@example(999)
@example(59_999)
@example(86_400_000)
def test_durations_that_are_shown_can_be_given(ms: int) -> None:
    shown = duration_text(ms)
    again = duration_ms(shown)
    assert again is not None
    assert again <= ms < again + max(ms // 10, 1000)  # two units are shown
    assert duration_text(again) == shown


@given(st.integers(0, 1 << 60))
@example(1023)
@example(1024)
@example((1 << 20) - 1)
def test_sizes_that_are_shown_can_be_given(count: int) -> None:
    shown = size_text(count)
    again = size_bytes(shown)
    assert again is not None
    assert abs(again - count) <= count / 20
    assert size_text(again) == shown


@given(st.integers(0, 10**19 - 1))
def test_numbers_that_are_shown_can_be_given(number: int) -> None:
    assert whole_number(count_text(number)) == number


_EDGES = (0, 1_769_860_800_001, NOW, 1_774_746_000_000, 1_792_886_400_000, 253_402_200_000_001)


def test_times_that_are_shown_can_be_given(zone: str) -> None:
    for ms in _EDGES:  # about changes of the clock, and at the end of the calendar, too
        for read in (arguments.moment, lambda text: moment(text, NOW).ms):
            assert read(moment_text(ms)) == ms
            assert " " not in moment_text(ms)  # one word of a shell
            assert read(second_text(ms + 7)) == (ms + 7) // 1000 * 1000 or not ms
    assert moment_text(NOW, zone=UTC) == "2027-01-15T08:00:00.000Z"


@given(st.integers(0, 253_402_200_000_000))
def test_all_times_that_are_shown_can_be_given(ms: int) -> None:
    assert arguments.moment(moment_text(ms)) == moment(moment_text(ms, zone=UTC), NOW).ms == ms


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bare", "unit", "value"),
    [
        ("requestTimeout", "3000", "3s", 3000),
        ("retryTimeout", "120000", "2m", 120_000),
        ("maxTriggerDelay", "10000", "10s", 10_000),
        ("maxBytesPerTrigger", "1073741824", "1g", 1 << 30),
        ("pullBatchBytes", "65536", "64k", 65_536),
        ("arrowBatchBytes", "1048576", "1m", 1 << 20),
        ("maxMessageSize", "1048576", "1MiB", 1 << 20),
        ("sendBatchBytes", "65536", "64kb", 65_536),
        ("compressAbove", "1024", "1k", 1024),
    ],
)
def test_options_take_units_and_bare_numbers_mean_what_they_did(name: str, bare: str, unit: str, value: int) -> None:
    assert BY_NAME[name].parse(name, bare) == BY_NAME[name].parse(name, unit) == value


def test_every_duration_and_size_takes_units() -> None:
    ending = ("Timeout", "Delay", "Bytes", "BytesPerTrigger", "MessageSize", "compressAbove")
    named = [option for option in OPTIONS if option.name.endswith(ending)]
    assert len(named) == 9
    for option in named:
        assert option.parse(option.name, "2m")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (arguments.seconds, "2.5", 2.5),
        (arguments.seconds, "500ms", 0.5),
        (arguments.seconds, "2m", 120.0),
        (arguments.byte_size(4 << 20), "128", 128),
        (arguments.byte_size(4 << 20), "64k", 65_536),
        (arguments.byte_size(1 << 20, unit=1 << 20), "64", 64),
        (arguments.byte_size(1 << 20, unit=1 << 20), "1g", 1024),
        (arguments.duration, "2m", 120_000),
    ],
)
def test_the_command_line_takes_units(kind: Callable[[str], float], text: str, value: float) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((arguments.seconds, text) for text in ("0", "-1", "0s", "soon", "1e9", "nan", "1w")),
        *((arguments.byte_size(4 << 20), text) for text in ("0", "5m", "-1k", "1.5x", "many", "")),
        *((arguments.byte_size(1 << 20, unit=1 << 20), text) for text in ("64k", "1b", "0m", "1.5m")),
        *((arguments.duration, text) for text in ("10", "", "1.5h")),
    ],
)
def test_what_the_command_line_refuses(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"invalid (duration|size)"):
        kind(text)
