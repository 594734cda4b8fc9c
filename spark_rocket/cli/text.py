"""Text, tables and a progress bar for the command line. ``spark_rocket.common.units`` formats values.

Thread-safety: one thread.
"""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

from spark_rocket.common.attributes import camel_case
from spark_rocket.common.units import size_text

#: What stays on one line: a word or a Chinese character, with its punctuation; or blanks.
_PIECE = re.compile(r"（?(?:[^\s\u2e80-\uffff]+|[\u2e80-\uffff])[，。；：、）]*|\s+")
_MIN_BAR_BYTES = 64 << 20  # smaller stores have no progress bar


def percent_text(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def wrapped(text: str, width: int, indent: str) -> str:
    """Break a text into lines of at most ``width`` columns, all but the first with ``indent``."""
    lines, free = [""], width
    for piece in _PIECE.findall(text):
        columns = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in piece)
        if columns > free:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
            free = width - len(indent)
            if piece.isspace():
                continue
        lines[-1] += piece
        free -= columns
    return "\n".join(lines)


def camel(values: dict[str, Any]) -> dict[str, Any]:
    return {camel_case(name): camel(value) if isinstance(value, dict) else value for name, value in values.items()}


def escape_controls(text: str, out: TextIO | None = None) -> str:
    """Escape control characters if the output (default: stdout) is a terminal: peers choose names, ids and texts.

    As in JSON, so that JSON stays valid.
    """
    if text.isprintable() or not (out or sys.stdout).isatty():
        return text
    hidden = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {*"\n\t"}
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in hidden})


def print_problem(text: str) -> None:
    """Print a line on stderr."""
    print(f"rocket: {escape_controls(text, sys.stderr)}", file=sys.stderr)


def print_table(rows: Sequence[Sequence[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print(escape_controls("  ".join(cells).rstrip()))


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
