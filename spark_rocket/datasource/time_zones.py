"""Local times: the instants of times without a zone, as Spark computes them (``java.time``).

A local time that exists twice, when clocks are set back, is the first of the two. One that does not exist, when clocks
are set forward, is as long after the change as it would be without it. Both are Python's rules for ``fold=0``.

Offsets are looked up once for each hour of a batch. Times in an hour in which the offset changes are looked up one by
one. Python's zones know the years 1 to 9999; other years have the offsets of a year with the same calendar.

Pure, but for the files of the time zones and, in ``machine_zone``, the machine's settings.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

I64 = np.ndarray[Any, np.dtype[np.int64]]
_SECOND, _HOUR = 1_000_000, 3_600_000_000
_ZONED = r"(Z|:\S*[+-]\d\d(:?\d\d)?)$"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?", re.ASCII)
_CYCLE_S = 146_097 * 86_400  # 400 years, after which the calendar repeats
_FIRST_S, _LAST_S = -1_000 * 31_556_952, 7_000 * 31_556_952  # well within the years 1 to 9999
_FAR = 1 << 62
_ZERO = timezone(timedelta())
_UTC_NAMES = frozenset({"UTC", "UT", "Z", "GMT", "Etc/UTC", "Zulu"})  # which need no file of time zones
# Abbreviations that Java knows (ZoneId.SHORT_IDS), and Python does not or differently.
_SHORT = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


class Zone:
    """A time zone by the names that Spark accepts: ``Asia/Shanghai``, ``+08:00``, ``UTC+8``. ValueError otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._info = _info(_SHORT.get(name, name))
        self.is_utc = self._info == _ZERO

    def instant(self, local: int) -> int:
        """Return the instant of a local time. Both are microseconds since 1970."""
        return local - self._offset(local // _SECOND) * _SECOND

    def instants(self, local: I64) -> I64:
        """Return the instants of many local times; OverflowError if one is too far away."""
        if not len(local):
            return local
        if local.min() < -_FAR or local.max() > _FAR:
            raise OverflowError("some time is far from 1970")
        hours, places = np.unique(local // _HOUR, return_inverse=True)
        edges = [(self._offset(hour * 3600), self._offset(hour * 3600 + 3599)) for hour in hours.tolist()]
        offsets = np.array([first for first, _ in edges], np.int64)[places]
        changes = np.array([first != last for first, last in edges], np.bool_)[places]
        for at in np.flatnonzero(changes).tolist():
            offsets[at] = self._offset(int(local[at]) // _SECOND)
        found: I64 = local - offsets * _SECOND
        return found

    def parse(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Convert ISO-8601 strings to timestamps of ``kind``, at once. Raises if Arrow cannot read one."""
        zoned = pc.match_substring_regex(texts, _ZONED)
        null = pa.scalar(None, texts.type)
        with_zone = pc.if_else(zoned, texts, null).cast(kind).cast(pa.int64())
        without = pc.if_else(zoned, null, texts).cast(pa.timestamp(kind.unit)).cast(pa.int64())
        if not self.is_utc and without.null_count < len(without):
            local: Any = pc.fill_null(without, 0).to_numpy()
            without = pa.array(self.instants(local), mask=without.is_null().to_numpy(zero_copy_only=False))
        return pc.coalesce(with_zone, without).cast(kind)

    def _offset(self, second: int) -> int:
        """Return the seconds that a local time is ahead of UTC."""
        if second > _LAST_S:
            second -= -(-(second - _LAST_S) // _CYCLE_S) * _CYCLE_S
        elif second < _FIRST_S:
            second += -(-(_FIRST_S - second) // _CYCLE_S) * _CYCLE_S
        at = datetime(1970, 1, 1, tzinfo=self._info) + timedelta(seconds=second)
        offset = at.utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)


def _info(name: str) -> tzinfo:
    if name in _UTC_NAMES:
        return _ZERO
    match = _OFFSET.fullmatch(name)
    if match is None:
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            raise ValueError(f"unknown time zone {name!r}") from None
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    if minutes > 59 or seconds > 59 or hours * 3600 + minutes * 60 + seconds > 18 * 3600:
        raise ValueError(f"unknown time zone {name!r}")
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if match[1] == "-" else offset)


@lru_cache(16)
def zone_of(name: str) -> Zone:
    """Return a zone by its name; ValueError if it is unknown."""
    return Zone(name)


UTC = zone_of("UTC")


def machine_zone() -> str:
    """Return the name of this machine's time zone as Java finds it: ``TZ``, then ``/etc/localtime``, then UTC."""
    places = (os.environ.get("TZ", "").removeprefix(":"), str(Path("/etc/localtime").resolve()))
    for name in (place.rpartition("zoneinfo/")[2] for place in places):
        try:
            return zone_of(name).name
        except ValueError:
            continue
    return UTC.name
