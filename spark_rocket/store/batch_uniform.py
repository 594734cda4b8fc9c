"""A batch of messages with equal lengths as commit-log records, as the rows of a matrix (uniform.py). See batch.py.

Half the CPU of batch_columns.py: no sizes to follow, no separators to look for, no strings to place one by one
(``make bench``: store.batch500 and spark.write.128).

Pure but for ``UniformMessages.write``. Corresponds to MessageExtEncoder.encode(MessageExtBatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.layout import (
    AT,
    BATCH_BODY_LENGTH_AT,
    BATCH_FLAG_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    CRC_MASK,
    INT,
    PROPERTIES_LENGTH,
)
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.spans import Ints
from spark_rocket.protocol.record.uniform import layout_of, value_range
from spark_rocket.store.batch_columns import Buffer, has_nul, suffix_of, too_long
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code

_BODY_AT = BATCH_HEADER.size


@dataclass(slots=True)
class UniformMessages:
    """A checked batch; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    names: frozenset[bytes]
    """Property names of each message."""
    body_length: int
    property_length: int
    suffix: bytes
    """Appended to the properties of each message."""

    def may_have(self, *names: bytes) -> bool:
        return any((own + b"\x01").startswith(names) for own in self.names)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        """Write all records at once, field by field. NumPy copies structure items faster than matrix rows."""
        size, count = int(self.sizes[0]), len(self.sizes)
        physical = physical_offset + np.arange(count) * size
        body_length, property_length, suffix = self.body_length, self.property_length, self.suffix
        middle = topic_field + PROPERTIES_LENGTH.pack(property_length + len(suffix))
        message_type, body_of = _message_type(body_length, property_length)
        source = np.frombuffer(self.raw, message_type)
        template = head[INT.size : -INT.size] + INT.pack(body_length)
        kind = _record_type(len(head), body_length, len(middle), property_length, len(suffix))
        records = np.frombuffer(out, kind, count)
        crcs = np.fromiter(map(crc32, chain.from_iterable(body_of.iter_unpack(self.raw))), np.int64, count)
        records["head"][:1] = _item(bytes(INT.size) + template)
        records["head"][1:] = _item(INT.pack(size) + template)
        records["crc"] = crcs & CRC_MASK
        records["flag"] = source["flag"]
        records["queue"] = queue_offset + np.arange(count)
        records["log"] = physical
        records["middle"] = _item(middle)
        if body_length:
            records["body"] = source["body"]
        if property_length:
            records["properties"] = source["properties"]
        if suffix:
            records["suffix"] = _item(suffix)
        out[: INT.size] = INT.pack(size)
        return physical


def plan_uniform(raw: Buffer, overhead: int, batch_properties: bytes) -> UniformMessages | None:
    """Check a batch body, as ``plan_batch``; return None for any other batch."""
    total = len(raw)
    size = INT.unpack_from(raw, 0)[0] if total >= BATCH_OVERHEAD else 0
    if size < BATCH_OVERHEAD or total % size:
        return None
    body_length = INT.unpack_from(raw, BATCH_BODY_LENGTH_AT)[0]
    at = _BODY_AT + body_length
    property_length = size - at - 2
    if body_length < 0 or property_length < 0 or PROPERTIES_LENGTH.unpack_from(raw, at)[0] != property_length:
        return None
    count = total // size
    for place, kind in ((0, "=i4"), (BATCH_BODY_LENGTH_AT, "=i4"), (at, "=i2")):
        field = np.ndarray((count,), kind, raw, place, (size,))
        if (field != field[0]).any():
            return None
    codes, names, suffix = np.zeros(count, np.int64), frozenset[bytes](), batch_properties
    if property_length:
        rows = value_range(np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(count, size)[:, at + 2 :]))
        if not rows.low.all():
            raise has_nul()
        layout = layout_of(rows)
        if layout is None:
            return None
        names, suffix = layout.names, suffix_of(rows.first, batch_properties)
        if rows.vary(*layout.values.get(b"TAGS", (0, 0))):
            every = Struct(f"{property_length}s").iter_unpack(rows.cells.data)
            codes[:] = [tags_code(properties) for (properties,) in every]
        else:
            codes[:] = tags_code(rows.first)
    if find_property(batch_properties, b"TAGS") is not None:
        codes[:] = tags_code(batch_properties)
    if property_length + len(suffix) > MAX_PROPERTIES_BYTES:
        raise too_long(property_length + len(suffix))
    sizes = np.full(count, overhead + body_length + property_length + len(suffix), np.int64)
    return UniformMessages(raw, sizes, codes, names, body_length, property_length, suffix)


@lru_cache(maxsize=256)
def _message_type(body: int, properties: int) -> tuple[np.dtype[np.void], Struct]:
    """Return the type of a message of a batch body, and a Struct that extracts only the body."""
    kind = np.dtype(
        {
            "names": ["flag", "body", "properties"],
            "formats": ["V4", f"V{body}", f"V{properties}"],
            "offsets": [BATCH_FLAG_AT, _BODY_AT, BATCH_OVERHEAD + body],
            "itemsize": BATCH_OVERHEAD + body + properties,
        }
    )
    return kind, Struct(f"{_BODY_AT}x{body}s{PROPERTIES_LENGTH.size + properties}x")


@lru_cache(maxsize=256)
def _record_type(head: int, body: int, middle: int, properties: int, suffix: int) -> np.dtype[np.void]:
    """Return the type of a record; ``head`` overlaps the header fields that differ per record."""
    body_at, middle_at, properties_at, suffix_at, size = accumulate((head, body, middle, properties, suffix))
    return np.dtype(
        {
            "names": ["head", "crc", "flag", "queue", "log", "body", "middle", "properties", "suffix"],
            "formats": [
                f"V{head}", ">i4", "V4", ">i8", ">i8", f"V{body}", f"V{middle}", f"V{properties}", f"V{suffix}",
            ],
            "offsets": [
                0, AT["body_crc"], AT["flag"], AT["queue_offset"], AT["physical_offset"],
                body_at, middle_at, properties_at, suffix_at,
            ],
            "itemsize": size,
        }
    )  # fmt: skip


def _item(value: bytes) -> npt.NDArray[np.void]:
    return np.frombuffer(value, f"V{len(value)}")
