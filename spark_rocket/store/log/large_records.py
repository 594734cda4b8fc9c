"""Large records without their bodies: for the index, which wants topics and properties of gigabytes it need not read.

A record's head says how long its body is, and so where its topic and properties are: two short reads for each record,
whatever its size. From some 8 KiB on that is quicker than to read it whole.

Thread-safety: reads files only; for what the writer has shown. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import os

import numpy as np

from spark_rocket.protocol.record.layout import HEADERS, HOSTS_MASK, MAGIC_V1, MAGIC_V2, header_struct
from spark_rocket.store.layout import MAX_PROPERTIES, MAX_TOPIC, store_time
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import RecordBlock

LARGE = 8 << 10
_MOST = 256  # records at a time
_HEAD = header_struct("size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag")
_HEAD_SIZE = HEADERS[HOSTS_MASK].size
_LONGEST_END = 2 + MAX_TOPIC + 2 + MAX_PROPERTIES


def large_records(file: MappedFile, position: int, end: int) -> tuple[RecordBlock, int] | None:
    """A block of the large records that stand one after another from a position on, and the position behind them.

    The block's data has their topics and properties only. None if the first is small, or no good record: who reads it
    whole finds out. ``end``: nothing is written from there on.
    """
    ends: list[bytes] = []
    rows: list[tuple[int, ...]] = []
    length = 0
    with file.descriptor() as fd:
        while len(rows) < _MOST and position + _HEAD_SIZE <= end:
            head = os.pread(fd, _HEAD_SIZE, position)
            size, magic, queue_id, queue_offset, physical, flags = _HEAD.unpack_from(head)
            if magic not in (MAGIC_V1, MAGIC_V2) or not LARGE < size <= end - position:
                break
            stored = store_time(head)
            body_at = HEADERS[flags & HOSTS_MASK].size
            topic_at = body_at + int.from_bytes(head[body_at - 4 : body_at], "big", signed=True)
            if physical != file.file_from_offset + position:
                break
            if not body_at <= topic_at < size <= topic_at + _LONGEST_END:
                break
            part = os.pread(fd, size - topic_at, position + topic_at)
            width = 1 if magic == MAGIC_V1 else 2
            topic_end = width + int.from_bytes(part[:width], "big")
            if topic_end + 2 + int.from_bytes(part[topic_end : topic_end + 2], "big") != len(part):
                break
            rows.append(
                (
                    physical,
                    size,
                    queue_id,
                    queue_offset,
                    flags,
                    stored,
                    length + width,
                    length + topic_end,
                    length + topic_end + 2,
                    length + len(part),
                )
            )
            ends.append(part)
            length += len(part)
            position += size
    if not rows:
        return None
    return RecordBlock(b"".join(ends), 0, *np.array(rows, np.int64).T), position
