"""Tags codes: what a consume-queue entry carries, so that a broker filters without reading messages.

The code is Java's ``String.hashCode`` of the whole TAGS property, 0 without one. For a delayed message it is the time
of delivery instead: the record's store time plus its level's delay. Both follow from the record alone: a rebuilt
queue is the same as the first.

Pure functions and a bounded cache; used from the writer's and from the recovery's thread, never at once.
Corresponds to MessageExtBrokerInner.tagsString2tagsCode and CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_rocket.protocol.subscription import java_hash

_TAGS = b"TAGS\x01"
_DELAY = b"DELAY\x01"
_SEPARATOR = 2
_CACHE_LIMIT = 10_000
_codes: dict[bytes, int] = {b"": 0}


def code_of(tags: bytes) -> int:
    """Tags code of a TAGS value."""
    code = _codes.get(tags)
    if code is None:
        if len(_codes) > _CACHE_LIMIT:
            _codes.clear()
            _codes[b""] = 0
        code = _codes[tags] = java_hash(tags.decode("utf-8", "replace"))
    return code


def find_property(raw: bytes, name: bytes, start: int, end: int) -> bytes | None:
    """Value of a property (``name`` with its 0x01) between two positions of ``raw``; the last wins, as in a map."""
    found = None
    at = raw.find(name, start, end)
    while at >= 0:
        if at == start or raw[at - 1] == _SEPARATOR:
            at += len(name)
            stop = raw.find(b"\x02", at, end)
            found = raw[at : end if stop < 0 else stop]
        else:
            at += 1
        at = raw.find(name, at, end)
    return found


def tags_code(properties: bytes) -> int:
    """Tags code of an ordinary message with these properties."""
    value = find_property(properties, _TAGS, 0, len(properties))
    return code_of(value) if value else 0


def tags_codes(raw: bytes, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Tags codes of many messages whose property strings stand in one buffer."""
    count = raw.count(_TAGS)
    codes = [0] * len(starts)
    if not count:
        return codes
    find, get = raw.find, _codes.get
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        at = find(_TAGS, start, end)
        if at < 0:
            continue
        count -= 1
        if at != start and raw[at - 1] != _SEPARATOR:
            count = -1
            break
        stop = find(b"\x02", at, end)
        tags = raw[at + 5 : end if stop < 0 else stop]
        code = get(tags)
        codes[i] = code_of(tags) if code is None else code
    if not count:
        return codes
    # TAGS stands in a name, in a value, in a body, or twice in a message: each is looked at with care.
    careful = find_property
    return [
        code_of(value) if (value := careful(raw, _TAGS, start, end)) else 0
        for start, end in zip(starts, ends, strict=True)
    ]


class DelayLevels:
    """The table of ``messageDelayLevel``."""

    def __init__(self, delays: Sequence[int]) -> None:
        self._delays = delays

    def deliver_time(self, properties: bytes, store_timestamp: int) -> int | None:
        """When a message of the schedule topic is due; None if it has no delay level."""
        value = find_property(properties, _DELAY, 0, len(properties))
        if not value or not value.isdigit():
            return None
        level = min(int(value[:9]), len(self._delays))  # as many digits as one likes may be sent
        return store_timestamp + self._delays[level - 1] if level > 0 else None
