"""Human-readable values for the command line, and a progress bar.

Thread-safety: one thread. RocketMQ has no counterpart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from spark_rocket import units
from spark_rocket.attributes import camel_case
from spark_rocket.system import now_ms

_MIN_BAR_BYTES = 64 << 20  # smaller stores have no progress bar


def size_text(count: int) -> str:
    if count < 1024:
        return f"{count:,} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def moment_text(milliseconds: int, precision: str = "milliseconds") -> str:
    """Format local time with its UTC offset, as ``moment`` parses it; a time outside the calendar as a number."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(" ", precision)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def count_text(number: int) -> str:
    return f"{number:,}"


def duration_text(milliseconds: int) -> str:
    """Format a duration with at most two units: 4 s, 5 min 12 s, 3 d 2 h."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    units = (("d", seconds // 86_400), ("h", seconds // 3600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60))
    first = next(i for i, (_, count) in enumerate(units) if count)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count)


def second_text(milliseconds: int) -> str:
    """Format local time to the second; "-" for no time."""
    return moment_text(milliseconds, "seconds") if milliseconds > 0 else "-"


def percent_text(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def number(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise click.BadParameter(f"invalid number {text!r}: use an integer of at least 0")
    return int(text)


def limit(text: str) -> int:
    if not number(text):
        raise click.BadParameter(f"invalid limit {text!r}: use at least 1")
    return int(text)


def moment(text: str) -> int:
    """A type: a time (UTC unless it has a zone), epoch milliseconds, or a negative duration; as epoch milliseconds."""
    try:
        return units.moment(text, now_ms()).ms
    except ValueError as problem:
        raise click.BadParameter(
            f"invalid time {text!r}: use {problem} (after an = on the command line, as in --from=-2h; 2h works too)"
        ) from None


def camel(values: dict[str, Any]) -> dict[str, Any]:
    return {camel_case(name): camel(value) if isinstance(value, dict) else value for name, value in values.items()}


def print_table(rows: Sequence[Sequence[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print("  ".join(cells).rstrip())


class Bar:
    """A progress bar on stderr. It is shown only on a terminal and only for long operations."""

    def __init__(self, *, is_bytes: bool = True, is_wanted: bool = True, what: str = "queues") -> None:
        self._is_bytes = is_bytes
        self._what = what  # the unit to count, if not bytes
        self._is_shown = is_wanted and sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._has_line = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.2 or (self._is_bytes and total < _MIN_BAR_BYTES) or not total:
            return
        self._last = now
        rate = done / (now - self._begin)
        left = f", {(total - done) / rate:,.0f} s left" if rate else ""
        if self._is_bytes:
            text = f"{size_text(done)} of {size_text(total)}, {size_text(int(rate))}/s{left}"
        else:
            text = f"{done:,} of {total:,} {self._what}{left}"
        filled = 30 * done // total
        print(f"\r\033[K[{'#' * filled}{' ' * (30 - filled)}] {100 * done // total} %  {text}", end="", file=sys.stderr)
        sys.stderr.flush()
        self._has_line = True

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._has_line:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._has_line = False
