"""Byte layouts of the store's own files; ``protocol.record.layout`` has that of records. Big endian.

Consume-queue entry: physicalOffset i64, size i32, tagsCode i64.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.layout import AT, BORN_HOST_V6, MAX_TOPIC_LENGTH_V1, V6_SHIFT

Ints = npt.NDArray[np.int64]

ENTRY = Struct(">qiq")
ENTRY_SIZE = 20
ENTRY_TYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
FILLER = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""What stands before the first entry of a queue that does not begin at a file's beginning."""

FILLER_SIZE = 0x7FFFFFFF


def entries_of_run(physical: Ints, sizes: Ints, codes: Ints) -> bytes:
    """Consume-queue entries of records that follow one another."""
    entries = np.empty(len(sizes), ENTRY_TYPE)
    entries["physical_offset"] = physical
    entries["size"] = sizes
    entries["tags_code"] = codes
    return entries.tobytes()


_SYS_FLAG_LAST_BYTE = AT["sys_flag"] + 3
STORE_TIME_END = AT["store_timestamp"] + 8 + V6_SHIFT
"""The prefix of a record that contains its store time, whatever the kind of the born host."""


def store_time(head: bytes) -> int:
    """The store time of a record, from its first ``STORE_TIME_END`` bytes."""
    at = AT["store_timestamp"] + (V6_SHIFT if head[_SYS_FLAG_LAST_BYTE] & BORN_HOST_V6 else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def topic_field(topic: str) -> bytes:
    """A topic as it stands in a record: its length in one byte (v1), or in two when it is long (v2), and its bytes."""
    raw = topic.encode()
    return len(raw).to_bytes(1 if len(raw) <= MAX_TOPIC_LENGTH_V1 else 2, "big") + raw


MAX_PROPERTIES = 32767
MAX_TOPIC = 255
