"""Tags codes: what a consume-queue entry carries, so that a broker filters without reading messages.

The code is Java's ``String.hashCode`` of the whole TAGS property, 0 without one. For a delayed message it is the time
of delivery instead: the record's store time plus its level's delay. Both follow from the record alone: a rebuilt
queue is the same as the first.

Pure functions and a bounded cache; used from the writer's and from the recovery's thread, never at once.
Corresponds to MessageExtBrokerInner.tagsString2tagsCode and CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.store.log.byte_search import find_all

_TAGS = b"TAGS\x01"
_SEPARATOR = 2
_SPARSE = 512  # bytes of a record
_WINDOW = 64  # bytes of a value that are looked at together with those of other messages
_COMMON = 12  # different values of a block that are
_CACHE_LIMIT = 10_000
_codes: dict[bytes, int] = {b"": 0}

Ints = npt.NDArray[np.int64]


def code_of(tags: bytes) -> int:
    """Tags code of a TAGS value."""
    code = _codes.get(tags)
    if code is None:
        if len(_codes) > _CACHE_LIMIT:
            _codes.clear()
            _codes[b""] = 0
        code = _codes[tags] = java_hash(tags.decode("utf-8", "replace"))
    return code


def tags_code(properties: bytes) -> int:
    """Tags code of an ordinary message with these properties."""
    value = find_property(properties, b"TAGS")
    return code_of(value) if value else 0


def tags_codes(raw: bytes, starts: Ints, ends: Ints) -> list[int]:
    """Tags codes of many messages whose property strings stand in one buffer, one after another."""
    codes = [0] * len(starts)
    if len(raw) > _SPARSE * len(starts):  # nearly all of it are bodies, and need not be looked through
        parts = [raw[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        raw = b"".join(parts)
        ends = np.cumsum([len(part) for part in parts])
        starts = np.append(np.int64(0), ends[:-1])
    source = np.frombuffer(raw + bytes(_WINDOW), np.uint8)
    found = find_all(source, _TAGS, 2)
    if not len(found) or not codes:
        return codes
    records = np.maximum(np.searchsorted(starts, found, side="right") - 1, 0)
    begins, stops, values = starts[records], ends[records], found + len(_TAGS)
    # Not those in bodies, in other names and in values; of two in a message the last counts.
    real = (found >= begins) & (values <= stops) & ((found == begins) | (source[found - 1] == _SEPARATOR))
    records, values, stops = records[real], values[real], stops[real]
    last = np.append(records[1:] != records[:-1], True) if len(records) else real[:0]
    records, values, stops = records[last], values[last], stops[last]
    rows = np.lib.stride_tricks.sliding_window_view(source, _WINDOW)[values]
    separated = rows == _SEPARATOR
    lengths = np.where(separated.any(axis=1), separated.argmax(axis=1), _WINDOW)
    lengths = np.minimum(lengths, stops - values)
    left = np.flatnonzero(lengths < _WINDOW)
    for at in np.flatnonzero(lengths == _WINDOW).tolist():
        start, end = int(values[at]), int(stops[at])
        stop = raw.find(b"\x02", start, end)
        codes[records[at]] = code_of(raw[start : end if stop < 0 else stop])
    for _ in range(_COMMON):  # messages mostly share a few tags
        if not len(left):
            return codes
        length = int(lengths[left[0]])
        value = rows[left[0], :length]
        same = (lengths[left] == length) & (rows[left, :length] == value).all(axis=1)
        code = code_of(value.tobytes())
        for record in records[left[same]].tolist():
            codes[record] = code
        left = left[~same]
    for at in left.tolist():
        codes[records[at]] = code_of(rows[at, : lengths[at]].tobytes())
    return codes


class DelayLevels:
    """The table of ``messageDelayLevel``."""

    def __init__(self, delays: Sequence[int]) -> None:
        self._delays = delays

    def deliver_time(self, properties: bytes, store_timestamp: int) -> int | None:
        """When a message of the schedule topic is due; None if it has no delay level."""
        value = find_property(properties, b"DELAY")
        if not value or not value.isdigit():
            return None
        level = min(int(value[:9]), len(self._delays))  # as many digits as one likes may be sent
        return store_timestamp + self._delays[level - 1] if level > 0 else None
