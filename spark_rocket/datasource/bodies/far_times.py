"""Dates and times of any year as text. Python's ``date`` and Arrow's format know the years 1 to 9999 only.

Pure.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

DAY_MICROS = 86_400_000_000
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats


def moment_text(micros: int) -> str:
    """Format microseconds since 1970, with six decimals and without a zone."""
    days, rest = divmod(micros, DAY_MICROS)
    clock = (datetime.min + timedelta(microseconds=rest)).time()
    return f"{day_text(days)}T{clock.isoformat('microseconds')}"


def day_text(days: int) -> str:
    """Format days since 1970. Years before 0 and after 9999 have a sign."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = date(1970, 1, 1) + timedelta(days=rest)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{'+' if year > 9999 else ''}{year:0{5 if year < 0 else 4}d}-{day:%m-%d}"
