"""Byte layouts of the store's own files. Big endian. Record layouts are in ``protocol.record.layout``.

Consume-queue entry: physicalOffset i64, size i32, tagsCode i64. A broker filters by the tags code without reading
messages. The code is Java's ``String.hashCode`` of the complete TAGS property, or 0 without one. For a delayed message
it is the delivery time instead: the record's store time plus its level's delay. All fields follow from the record
alone, so a rebuilt queue equals the original.

Pure functions. Corresponds to MessageExtBrokerInner.tagsString2tagsCode and CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.layout import AT, BORN_HOST_V6, MAX_TOPIC_LENGTH_V1, V6_SHIFT
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.property_spans import PropertySpans

Ints = npt.NDArray[np.int64]

ENTRY = Struct(">qiq")
ENTRY_SIZE = 20
ENTRY_TYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
FILLER = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""Fills a file before the first entry of a queue that does not start at the file's beginning."""

FILLER_SIZE = 0x7FFFFFFF


def entries_of_run(physical: Ints, sizes: Ints, codes: Ints) -> bytes:
    """Return the consume-queue entries of consecutive records."""
    entries = np.empty(len(sizes), ENTRY_TYPE)
    entries["physical_offset"] = physical
    entries["size"] = sizes
    entries["tags_code"] = codes
    return entries.tobytes()


@lru_cache(maxsize=16_384)
def _code_of(tags: bytes) -> int:
    return java_hash(tags.decode("utf-8", "replace"))


def tags_code(properties: bytes) -> int:
    """Return the tags code of an ordinary message with these properties."""
    start = properties.rfind(b"\x02TAGS\x01") + 1  # find_property() for one name: faster without its call
    if not start and not properties.startswith(b"TAGS\x01"):
        return 0
    end = properties.find(b"\x02", start)
    return _code_of(properties[start + 5 : end if end >= 0 else None])


def tags_codes(properties: PropertySpans) -> Ints:
    """Return the tags codes of many ordinary messages."""
    codes = np.zeros(properties.count, np.int64)
    messages, starts, ends = properties.values(b"TAGS")
    same = properties.same_value(starts, ends)
    codes[messages] = properties.hashes(starts, ends).view(np.int32) if same is None else _code_of(same)
    return codes


class DelayLevels:
    """The delays of ``messageDelayLevel``."""

    def __init__(self, delays: Sequence[int]) -> None:
        self._delays = delays

    def deliver_time(self, properties: bytes, store_timestamp: int) -> int | None:
        """Return the delivery time of a message of the schedule topic; None without a delay level."""
        value = find_property(properties, b"DELAY")
        if not value or not value.isdigit():
            return None
        level = min(int(value[:9]), len(self._delays))  # clients may send any number of digits
        return store_timestamp + self._delays[level - 1] if level > 0 else None


_SYS_FLAG_LAST_BYTE = AT["sys_flag"] + 3
STORE_TIME_END = AT["store_timestamp"] + 8 + V6_SHIFT
"""Length of the prefix of a record that contains its store time, with an IPv4 or IPv6 born host."""


def store_time(head: bytes) -> int:
    """Return the store time of a record, from its first ``STORE_TIME_END`` bytes."""
    at = AT["store_timestamp"] + (V6_SHIFT if head[_SYS_FLAG_LAST_BYTE] & BORN_HOST_V6 else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def topic_field(topic: str) -> bytes:
    """Encode a topic as in a record: its length in one byte (v1), or two if it is long (v2), then its bytes."""
    raw = topic.encode()
    return len(raw).to_bytes(1 if len(raw) <= MAX_TOPIC_LENGTH_V1 else 2, "big") + raw


MAX_PROPERTIES_BYTES = 32767
MAX_TOPIC_BYTES = 255
