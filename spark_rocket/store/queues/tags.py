"""Tags codes: what a consume-queue entry carries, so that a broker filters without reading messages.

The code is Java's ``String.hashCode`` of the whole TAGS property, 0 without one. For a delayed message it is the time
of delivery instead: the record's store time plus its level's delay. Both follow from the record alone: a rebuilt
queue is the same as the first.

Pure functions. Corresponds to MessageExtBrokerInner.tagsString2tagsCode and CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.uniform import layout_of, rows_of

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=16_384)
def _code_of(tags: bytes) -> int:
    return java_hash(tags.decode("utf-8", "replace"))


def tags_code(properties: bytes) -> int:
    """Tags code of an ordinary message with these properties."""
    value = find_property(properties, b"TAGS")
    return _code_of(value) if value else 0


def tags_codes(data: bytes, starts: Ints, ends: Ints) -> Ints:
    """Tags codes of many messages, whose property strings are these ranges."""
    rows = rows_of(data, starts, ends)
    layout = layout_of(rows) if rows is not None else None
    if rows is not None and layout is not None and not rows.vary(*layout.values.get(b"TAGS", (0, 0))):
        return np.full(len(starts), tags_code(rows.first), np.int64)
    ranges = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([tags_code(data[start:end]) for start, end in ranges], np.int64)


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
