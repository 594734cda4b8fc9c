"""Durations, sizes and points in time as users write them, in options of the data source and on the command line.

Both use one grammar, so that a value means the same everywhere:

==========  ===========================================================================  ==========================
duration    an integer with ``ms``, ``s``, ``m`` or ``min``, ``h`` or ``d``              ``500ms``, ``90s``, ``15m``
size        an integer with ``b``, ``k``, ``m``, ``g`` or ``t`` (``kb``, ``kib`` …)      ``64k`` is 65,536 bytes
time        milliseconds since 1970, ISO-8601, or a duration ago                         ``2026-01-31T12:00``, ``-2h``
==========  ===========================================================================  ==========================

Letters may be of either case. A date, or a time without a zone, is UTC, independent of the local machine. A bare number
has the unit of its option, so the caller parses it.

Pure and thread-safe. RocketMQ has no equivalent; sizes are parsed like Spark's JavaUtils.byteStringAs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"([0-9]{1,18})\s*(ms|s|min|m|h|d)", re.I | re.A)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"([0-9]{1,18})\s*(?:(b)|([kmgt])(?:i?b)?)", re.I | re.A)
_SIZE_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

TIME = (
    "milliseconds since 1970, a time such as 2026-01-31T12:00:00Z (UTC if it has no zone), or how long ago, such as "
    "-2h, -30m or -1d"
)


@dataclass(frozen=True)
class Moment:
    """A point in time, in ms since 1970."""

    ms: int
    is_relative: bool = False
    """Whether the time was given relative to now."""


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a number with a unit; None for any other text, including a bare number."""
    found = _DURATION.fullmatch(text.strip())
    return int(found[1]) * _DURATION_MS[found[2].lower()] if found else None


def size_bytes(text: str) -> int | None:
    """Return the bytes of a number with a unit; None for any other text, including a bare number. ``k`` is 1024."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) << 10 * _SIZE_POWERS[(found[2] or found[3]).lower()] if found else None


def moment(text: str, now_ms: int) -> Moment:
    """Parse a point in time; ValueError lists the valid formats.

    Microseconds are rounded up, so that a start time never skips a message. Times before 1970 become 1970.
    """
    text = text.strip()
    if (ago := duration_ms(text.removeprefix("-"))) is not None:
        return Moment(max(0, now_ms - ago), is_relative=True)
    if text.isascii() and text.isdigit():
        return Moment(_milliseconds(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(TIME) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return Moment(max(0, -((_EPOCH - found) // _MILLISECOND)))


def are_seconds(number: int) -> bool:
    """Whether a number is probably a time in seconds (1973 to 5138); in ms it would be before March 1973."""
    return 10**8 <= number < 10**11


def _milliseconds(digits: str) -> int:
    if len(digits) in (4, 8):
        raise ValueError(f"{TIME}; for a date write 2026-01-31")
    if len(digits) > 19 or int(digits) >= 2**63:
        raise ValueError(f"{TIME}, below 2^63")
    if are_seconds(int(digits)):
        raise ValueError(f"milliseconds since 1970 (did you mean {int(digits) * 1000}?)")
    return int(digits)
