"""Where the records of a run are, and the parts of each: bodies, topics and properties.

The body of a pull response and a piece of the commit log are such runs. Positions are found for all records at once;
only their sizes are followed one by one. Without pyarrow, which servers do not load.

Pure functions. Corresponds to MessageDecoder.decode and CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.layout import (
    AT,
    BORN_HOST_V6,
    FIXED_SIZE,
    HEADER_DTYPE,
    HEADER_SIZE,
    HOSTS_MASK,
    INT,
    LONG,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    V6_SHIFT,
)
from spark_rocket.protocol.record.spans import ByteArray, Ints, blocks, gather, walk_sizes

HEADER = np.dtype(HEADER_DTYPE)
_REMEDY = "The response or file is damaged or cut short: read it again, or check the store."
_Any = np.ndarray[Any, Any]


def record_starts(raw: ByteArray) -> Ints:
    """Return the start of each record."""
    end = len(raw)
    if end == 0:
        return np.empty(0, np.int64)
    first = INT.unpack_from(raw.data, 0)[0] if end >= FIXED_SIZE else 0
    if first < FIXED_SIZE or first > end:
        raise ProtocolError(
            f"The record at byte 0 has an invalid size of {first} bytes, {end} received.", remedy=_REMEDY
        )
    starts, at = walk_sizes(raw.data, FIXED_SIZE)
    if at == end:
        return starts
    if at > end - FIXED_SIZE:
        raise ProtocolError(f"The run of {end} bytes ends inside the {_record(raw, int(starts[-1]))}.", remedy=_REMEDY)
    size = INT.unpack_from(raw.data, at)[0]
    after = f", after the {_record(raw, int(starts[-1]))},"
    raise ProtocolError(f"The record at byte {at}{after} has an invalid size of {size} bytes.", remedy=_REMEDY)


FAULTS = (
    "",
    "has an unknown magic number",
    "is shorter than its fixed fields",
    "has a body that does not fit",
    "has a topic that does not fit",
    "has properties that do not end where it ends",
)


class Parts(NamedTuple):
    """The positions of the parts of records, and the error of each, as an index of ``FAULTS``."""

    places: tuple[Ints, Ints, Ints, Ints, Ints]
    """Start and end of bodies, start and end of topics, start of properties; arbitrary within an invalid record."""
    faults: Ints
    plain: bool
    """Whether all have the v1 magic and IPv4 hosts."""
    born_extra: int | Ints
    """Extra bytes of IPv6 hosts: 0 or 12."""
    store_extra: int | Ints


def find_parts(raw: ByteArray, starts: Ints, ends: Ints, heads: _Any) -> Parts:
    """The parts of records of at least ``FIXED_SIZE`` bytes, whose other lengths may be anything.

    ``heads``: the records' first bytes, as ``heads_of`` has them.
    """
    faults = np.zeros(len(starts), np.int64)
    least = starts + HEADER_SIZE  # inside every record

    def inside(places: Ints, wrong: _Any, fault: int) -> Ints:
        if not wrong.any():
            return places
        faults[wrong & (faults == 0)] = fault
        return np.where(wrong, least, places)

    magic, sys_flags = heads["magic"], heads["sys_flag"]
    v2 = magic != MAGIC_V1
    plain = not v2.any() and not bool((sys_flags & HOSTS_MASK).any())
    topic_prefix: int | Ints = 1
    born_extra: int | Ints = 0
    store_extra: int | Ints = 0
    body_start = least
    if not plain:
        inside(least, v2 & (magic != MAGIC_V2), 1)
        topic_prefix = 1 + v2.astype(np.int64)
        born_extra = V6_SHIFT * ((sys_flags & BORN_HOST_V6) != 0)
        store_extra = V6_SHIFT * ((sys_flags & STORE_HOST_V6) != 0)
        body_start = least + born_extra + store_extra
        body_start = inside(body_start, body_start + topic_prefix + 2 > ends, 2)
    length = heads["body_length"].astype(np.int64) if plain else gather(raw, body_start - 4, ">i4")
    body_end = body_start + length
    body_end = inside(body_end, (length < 0) | (body_end + topic_prefix + 2 > ends), 3)
    length = raw[body_end].astype(np.int64)
    if not plain:
        length[v2] = gather(raw, body_end[v2], ">i2")
    topic_start = body_end + topic_prefix
    topic_end = topic_start + length
    topic_end = inside(topic_end, (length < 0) | (topic_end + 2 > ends), 4)
    length = gather(raw, topic_end, ">i2")
    properties_start = topic_end + 2
    inside(properties_start, (length < 0) | (properties_start + length != ends), 5)
    places = (body_start, body_end, topic_start, topic_end, properties_start)
    return Parts(places, faults, plain, born_extra, store_extra)


def heads_of(raw: ByteArray, starts: Ints) -> _Any:
    """Return the headers of records, up to the size with IPv4 hosts."""
    if not len(starts):
        return np.empty(0, HEADER)
    return blocks(raw, HEADER_SIZE)[starts].view(HEADER)


def damaged(raw: ByteArray, start: int, what: str) -> ProtocolError:
    return ProtocolError(f"The {_record(raw, start)}, {what}.", remedy=_REMEDY)


def _record(raw: ByteArray, start: int) -> str:
    return record_name(LONG.unpack_from(raw.data, start + AT["queue_offset"])[0], start)


def record_name(queue_offset: int, at: int) -> str:
    """Return the name of a record for errors."""
    return f"record with queue offset {queue_offset}, at byte {at}"
