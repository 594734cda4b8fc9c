"""Byte layouts that the store writes and reads, as ``struct`` formats and NumPy types. Big endian throughout.

Commit-log record, IPv4 hosts (``record.py`` of the protocol package has the whole table)::

    0 totalSize i32   4 magic u32    8 bodyCRC i32    12 queueId i32       16 flag i32       20 queueOffset i64
    28 physicalOffset i64            36 sysFlag i32   40 bornTimestamp i64 48 bornHost 8 B   56 storeTimestamp i64
    64 storeHost 8 B  72 reconsumeTimes i32           76 preparedTransactionOffset i64       84 bodyLength i32
    88 body, topicLength u8, topic, propertiesLength i16, properties

An IPv6 host takes 20 bytes and moves everything behind it by 12; magic v2 makes topicLength an i16.

Consume-queue entry: physicalOffset i64, size i32, tagsCode i64.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SIZE_AND_MAGIC = Struct(">iI")
"""Head of every record; of a blank record the whole of what is written."""

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


HEAD_STRUCTS: dict[tuple[int, int], Struct] = {
    (born, store): Struct(f">iIiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)
}
"""Everything before the body, by the sizes of the two hosts."""

BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
STORE_TIME_END = 76
"""A record's first so many bytes have its store time, whatever the kind of the sender's host."""


def store_time(head: bytes) -> int:
    """When a record was stored, by its first 76 bytes."""
    at = 68 if head[39] & BORN_HOST_V6 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_ROLLBACK = 0xC

TOPIC_V1_LIMIT = 127
"""Longer names need magic v2, whose length field has two bytes."""


def topic_field(topic: str) -> bytes:
    """A topic as it stands in a record: its length in one byte (v1), or in two when it is long (v2), and its bytes."""
    raw = topic.encode()
    return len(raw).to_bytes(1 if len(raw) <= TOPIC_V1_LIMIT else 2, "big") + raw


MAX_PROPERTIES = 32767
MAX_TOPIC = 255
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
END_FILE_MIN_BLANK_LENGTH = 8
"""A record leaves at least this much of its file free, so that the blank record always has room."""
