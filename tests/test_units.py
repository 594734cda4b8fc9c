"""Durations, sizes and times: one grammar, in options of the data source and on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click
import pytest

from spark_rocket.cli import arguments, text
from spark_rocket.cli.commands import message
from spark_rocket.datasource.options.table import OPTIONS
from spark_rocket.units import Moment, duration_ms, moment, size_bytes

BY_NAME = {option.name: option for option in OPTIONS}
NOW = 1_800_000_000_000


@pytest.fixture(params=["Asia/Kolkata", "America/Los_Angeles", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's zone."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("2h", 7_200_000), ("1d", 86_400_000),
        (" 10 S ", 10_000), ("0s", 0), ("10", None), ("", None), ("s", None), ("-1s", None), ("1.5h", None),
        ("1h30m", None), ("1w", None), ("1\u017f", None), ("\u0663s", None), ("9" * 19 + "s", None),
    ],
)  # fmt: skip
def test_durations(given: str, ms: int | None) -> None:
    assert duration_ms(given) == ms


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("7b", 7), ("64k", 65_536), ("64KB", 65_536), ("64KiB", 65_536), ("4m", 4 << 20), ("10MB", 10 << 20),
        ("1 g", 1 << 30), ("2t", 2 << 40), ("64", None), ("", None), ("1kk", None), ("1bib", None), ("-1k", None),
        ("1.5m", None), ("1\u212a", None), ("1ms", None),
    ],
)  # fmt: skip
def test_sizes(given: str, count: int | None) -> None:
    assert size_bytes(given) == count


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00", 1_769_860_800_000),
        ("2026-01-31 12:00:00.0001", 1_769_860_800_001),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T12:00+05:30", 1_769_841_000_000),
        ("1769860800000", 1_769_860_800_000),
        ("12345", 12_345),
        ("1969-12-31", 0),
    ],
)
def test_a_time_is_the_same_in_options_and_on_the_command_line(given: str, ms: int, zone: None) -> None:
    """Whatever the zone of the machine: without one it is UTC."""
    assert moment(given, NOW) == Moment(ms)
    assert BY_NAME["startingTimestamp"].parse("startingTimestamp", given) == Moment(ms)
    assert text.moment(given) == ms


def test_relative_times() -> None:
    for given in ("2h", "-2h", "- 2 H"):
        assert moment(given, NOW) == Moment(NOW - 7_200_000, is_relative=True)
    assert moment("99999999d", NOW) == Moment(0, is_relative=True)


@pytest.mark.parametrize("given", ["", "yesterday", "2026", "20260131", "1700000000", "9" * 19, "2026-13-01", "12:00"])
def test_what_is_no_time(given: str) -> None:
    with pytest.raises(ValueError, match="milliseconds since 1970"):
        moment(given, NOW)
    with pytest.raises(click.BadParameter, match=r"invalid time .*: use milliseconds since 1970"):
        text.moment(given)


def test_times_that_are_shown_can_be_typed(zone: None) -> None:
    for ms in (0, 1_769_860_800_001, NOW, 1_774_746_000_000, 1_792_886_400_000):  # about changes of the clock, too
        assert text.moment(text.moment_text(ms)) == ms
    assert text.moment(text.second_text(NOW + 7)) == NOW


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
    ("kind", "given", "value"),
    [
        (arguments.seconds, "2.5", 2.5),
        (arguments.seconds, "500ms", 0.5),
        (arguments.seconds, "2m", 120.0),
        (arguments.byte_size(1, 4 << 20), "128", 128),
        (arguments.byte_size(1, 4 << 20), "64k", 65_536),
        (arguments.byte_size(1, 1 << 20, unit=1 << 20), "64", 64),
        (arguments.byte_size(1, 1 << 20, unit=1 << 20), "1g", 1024),
        (message.duration, "2m", 120_000),
    ],
)
def test_the_command_line_takes_units(kind: Callable[[str], float], given: str, value: float) -> None:
    assert kind(given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((arguments.seconds, given) for given in ("0", "-1", "0s", "soon", "1e9", "nan", "1w")),
        *((arguments.byte_size(1, 4 << 20), given) for given in ("0", "5m", "-1k", "1.5k", "many", "")),
        *((arguments.byte_size(1, 1 << 20, unit=1 << 20), given) for given in ("64k", "1b", "0m")),
        *((message.duration, given) for given in ("10", "", "1.5h")),
    ],
)
def test_what_the_command_line_refuses(kind: Callable[[str], float], given: str) -> None:
    with pytest.raises(click.BadParameter, match=r"invalid (duration|size)"):
        kind(given)
