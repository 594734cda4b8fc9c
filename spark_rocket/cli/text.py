"""Values as people read and write them on the command line, and a bar that shows how far something is.

Thread-safety: for one thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from spark_rocket import units

_LARGE = 64 << 20  # a store from this size on has a progress bar


def size_text(count: int) -> str:
    if count < 1024:
        return f"{count:,} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def moment_text(milliseconds: int, precision: str = "milliseconds") -> str:
    """Local time with its offset from UTC, as ``moment`` reads it; a time beyond the calendar as a number."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(" ", precision)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def count_text(number: int) -> str:
    return f"{number:,}"


def duration_text(milliseconds: int) -> str:
    """As people say it, in two units at most: 4 s, 5 min 12 s, 3 d 2 h."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    units = (("d", seconds // 86_400), ("h", seconds // 3600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60))
    first = next(i for i, (_, count) in enumerate(units) if count)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count)


def second_text(milliseconds: int) -> str:
    """Local time to the second, "-" for none."""
    return moment_text(milliseconds, "seconds") if milliseconds > 0 else "-"


def percent_text(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def number(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise click.BadParameter(f"{text} is not a number of 0 or more")
    return int(text)


def limit(text: str) -> int:
    if not number(text):
        raise click.BadParameter("give at least 1")
    return int(text)


def moment(text: str) -> int:
    """A type: milliseconds since 1970 of a time, UTC unless it has a zone, of a number of them, or of how long ago."""
    try:
        return units.moment(text, int(time.time() * 1000)).ms
    except ValueError as problem:
        raise click.BadParameter(
            f"{text} is not a time; give {problem} (behind an = on the command line, as in --from=-2h; 2h will do too)"
        ) from None


def camel(values: dict[str, Any]) -> dict[str, Any]:
    return {
        head + "".join(part.capitalize() for part in rest): camel(value) if isinstance(value, dict) else value
        for name, value in values.items()
        for head, *rest in [name.split("_")]
    }


def fields(value: object, *names: str) -> dict[str, Any]:
    """Some attributes by their names in camel case, as JSON has them."""
    return camel({name: getattr(value, name) for name in names})


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def print_table(rows: Sequence[Sequence[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print("  ".join(cells).rstrip())


class Bar:
    """How far it is, on stderr: only where a person looks at it, and only for what takes long."""

    def __init__(self, *, is_bytes: bool = True, is_wanted: bool = True, what: str = "queues") -> None:
        self._is_bytes = is_bytes
        self._what = what  # is counted, if not bytes
        self._is_shown = is_wanted and sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._has_line = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.2 or (self._is_bytes and total < _LARGE) or not total:
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
        """Take the line away, so that something else can be printed."""
        if self._has_line:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._has_line = False
