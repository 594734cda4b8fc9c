"""The endpoint that reads times as users write them: in the notation of ``rocket`` and of the options.

Pages send the text and the name of the browser's time zone, for times without one. So times are read in the zone in
which the page shows them.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spark_rocket.common.system import now_ms
from spark_rocket.common.units import moment
from spark_rocket.console.api.context import ApiRequest
from spark_rocket.console.responses import Refused


class _UnknownZone(tzinfo):
    """A time zone that this machine does not know. Times with a zone of their own do not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        raise Refused(
            f"Unknown time zone {self._name[:64]!r}.", remedy="Write the time with its offset: 2026-01-31T12:00:00Z."
        )

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return self._name


def read_time(request: ApiRequest) -> dict[str, Any]:
    """Return the milliseconds of ``text``. ``zone``: the time zone of a time without one, such as Europe/Berlin."""
    text = request.text("text", "")
    try:
        return {"time": moment(text, now_ms(), _zone(request.text("zone", "UTC"))).ms}
    except ValueError as error:
        raise Refused(f"Invalid time {text[:64]!r}.", remedy=f"Use {error}.") from None


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return _UnknownZone(name)
