"""Durations, sizes, times and whole numbers as people write and read them: the parser and the printer of each.

Options of the data source, arguments that accept text, commands and ``messageDelayLevel`` use one notation, and what
is printed can be given:

==========  ===========================================================================  ==========================
duration    integers with ``ms``, ``s``, ``m`` or ``min``, ``h``, ``d``, largest first   ``500ms``, ``1h30m``
size        a number with ``b``, ``k``, ``m``, ``g`` or ``t`` (``kb``, ``kib`` …)        ``64k`` is 65,536 bytes
time        milliseconds since 1970, ISO-8601, or a duration ago                         ``2026-01-31T12:00Z``, ``-2h``
number      digits, also with commas between thousands                                   ``1,234,567``
==========  ===========================================================================  ==========================

Letters may be of either case. A bare number of a duration or size has the unit of its option. A time without a zone is
UTC in options, because they are evaluated on several machines, and local time on the command line, which prints local
times: always with their zone, so that they mean the same everywhere. Settings of ``broker.conf`` are numbers without
units, as in RocketMQ.

Pure and thread-safe. RocketMQ has no equivalent; sizes are parsed like Spark's JavaUtils.byteStringAs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise

from spark_rocket.common.values import FrozenValue

_PART = re.compile(r"([0-9]{1,18})\s*(ms|min|[smhd])", re.I | re.A)
_DURATION = re.compile(r"(?:[0-9]{1,18}\s*(?:ms|min|[smhd])\s*)+", re.I | re.A)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHOWN_UNITS = ("d", "h", "min", "s")
_SIZE = re.compile(r"([0-9]{1,18})(?:\s*(b)|(?:\.([0-9]{1,9}))?\s*([kmgt])(?:i?b)?)", re.I | re.A)
_SIZE_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NUMBER = re.compile(r"[0-9]{1,19}|[0-9]{1,3}(?:,[0-9]{3}){1,6}", re.A)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

CLOCK_SKEW_MS = 60_000
"""A time is in the future if it is so much later than this machine's clock: clocks differ a little."""
DURATION = "a duration such as 500ms, 90s, 15m, 2h, 1d or 1h30m"
SIZE = "a size such as 64k, 4m or 1.5g"


@dataclass(frozen=True, eq=False, repr=False)
class Moment(FrozenValue):
    """A point in time, in ms since 1970."""

    ms: int
    is_relative: bool = False
    """Whether the time was given relative to now."""


# --- durations --------------------------------------------------------------------------------------------------------


def duration_ms(text: str, bare_ms: int | None = None) -> int | None:
    """Return the milliseconds of a duration; None for any other text.

    ``bare_ms``: the milliseconds of a bare number's unit; without it, a bare number is not a duration.
    """
    text = text.strip()
    if bare_ms is not None and (number := whole_number(text)) is not None:
        return number * bare_ms
    if not _DURATION.fullmatch(text):
        return None
    parts = [(int(count), _DURATION_MS[unit.lower()]) for count, unit in _PART.findall(text)]
    is_descending = all(larger > smaller for (_, larger), (_, smaller) in pairwise(parts))
    return sum(count * unit for count, unit in parts) if is_descending else None


def duration_text(milliseconds: int) -> str:
    """Format a duration with at most two units: 4 s, 5 min 12 s, 3 d 2 h."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    counts = {unit: milliseconds // _DURATION_MS[unit] for unit in _SHOWN_UNITS}
    counts = {"d": counts["d"], "h": counts["h"] % 24, "min": counts["min"] % 60, "s": counts["s"] % 60}
    first = next(at for at, unit in enumerate(_SHOWN_UNITS) if counts[unit])
    return " ".join(f"{counts[unit]} {unit}" for unit in _SHOWN_UNITS[first : first + 2] if counts[unit])


# --- sizes and numbers ------------------------------------------------------------------------------------------------


def size_bytes(text: str, bare_bytes: int | None = None) -> int | None:
    """Return the bytes of a size, ``k`` is 1024; None for any other text.

    ``bare_bytes``: the bytes of a bare number's unit; without it, a bare number is not a size.
    """
    text = text.strip()
    if bare_bytes is not None and (number := whole_number(text)) is not None:
        return number * bare_bytes
    if (found := _SIZE.fullmatch(text)) is None:
        return None
    unit = 1 << 10 * _SIZE_POWERS[(found[2] or found[4]).lower()]
    decimals = found[3] or "0"
    return int(found[1]) * unit + round(int(decimals) * unit / float(10 ** len(decimals)))


def size_text(count: int) -> str:
    """Format a number of bytes with a unit: 512 B, 1.5 KiB."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    if power < 4 and round(count / (1 << 10 * power), 1) >= 1024:
        power += 1
    return f"{count / (1 << 10 * power):.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def whole_number(text: str) -> int | None:
    """Return a number of at most 19 digits, with or without commas between thousands; None for any other text."""
    text = text.strip()
    return int(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def count_text(number: int) -> str:
    return f"{number:,}"


# --- times ------------------------------------------------------------------------------------------------------------


def moment(text: str, now_ms: int, zone: tzinfo | None = UTC) -> Moment:
    """Parse a point in time; ValueError lists the valid formats.

    ``zone``: the time zone of a time without one; None: the machine's.
    Microseconds are rounded up, so that a start time never skips a message. Times before 1970 become 1970.
    """
    text = text.strip()
    if (ago := duration_ms(text.removeprefix("-"))) is not None:
        return Moment(max(0, now_ms - ago), is_relative=True)
    formats = (
        "milliseconds since 1970, a time such as 2026-01-31T12:00:00Z "
        f"({'local time' if zone is None else 'UTC'} if it has no zone), or how long ago, such as -2h, -30m or -1d"
    )
    if text.isascii() and text.isdigit():
        return Moment(_milliseconds(text, formats))
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.astimezone() if zone is None else found.replace(tzinfo=zone)
        return Moment(max(0, -((_EPOCH - found) // _MILLISECOND)))
    except (ValueError, OverflowError):
        raise ValueError(formats) from None


def moment_text(milliseconds: int, precision: str = "milliseconds", zone: tzinfo | None = None) -> str:
    """Format a time with its zone, the machine's by default; one outside the calendar as a number, none as "-"."""
    if milliseconds < 0:
        return "-"
    try:
        text = (_EPOCH + milliseconds * _MILLISECOND).astimezone(zone).isoformat("T", precision)
    except (ValueError, OverflowError):
        return str(milliseconds)
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def second_text(milliseconds: int) -> str:
    """Format local time to the second; "-" for no time."""
    return moment_text(milliseconds, "seconds") if milliseconds > 0 else "-"


def future_text(milliseconds: int, now_ms: int) -> str:
    """How far a time is in the future, for errors; empty if it is not, or by no more than clocks may differ."""
    ahead = milliseconds - now_ms
    return f"{duration_text(ahead)} in the future" if ahead > CLOCK_SKEW_MS else ""


def are_seconds(number: int) -> bool:
    """Whether a number is probably a time in seconds (1973 to 5138); in ms it would be before March 1973."""
    return 10**8 <= number < 10**11


def _milliseconds(digits: str, formats: str) -> int:
    if len(digits) in (4, 8):
        raise ValueError(f"{formats}; for a date write 2026-01-31")
    if len(digits) > 19 or int(digits) >= 2**63:
        raise ValueError(f"{formats}, below 2^63")
    if are_seconds(int(digits)):
        raise ValueError(f"milliseconds since 1970 (did you mean {int(digits) * 1000}?)")
    return int(digits)
