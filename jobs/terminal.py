"""Terminal output: a progress line, and a table.

On a terminal the progress line is overwritten; in a file or a pipe, a new line is written every few seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType


def rate(rows: int, seconds: float) -> str:
    """Format a rate: `336,776 rows in 2.1 s (160,000 rows/s)`."""
    per_second = round(rows / seconds) if seconds > 0 else 0
    return f"{rows:,} rows in {seconds:.1f} s ({per_second:,} rows/s)"


class Progress:
    """Shows ``describe()`` while the block runs. It is called from a thread; if it fails, nothing is shown."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._terminal = sys.stdout.isatty()
        self._interval = 0.25 if self._terminal else 2.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._terminal:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            try:
                line = self._describe()
            except Exception:
                continue  # for example if the topic does not exist yet: retry in the next round
            if not line:
                continue
            line = f"  {time.monotonic() - self._started:5.1f} s  {line}"
            sys.stdout.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
            sys.stdout.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Format a plain table; the first ``left`` columns are left-aligned, the others (numbers) right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), "  ".join("─" * width for width in widths), *(line(row) for row in rows)])
