"""Convert a batch body (request 320) into a run of commit-log records.

The store writes each message of a batch body (bytes: ``protocol.record.layout``) as one ordinary record, as if it had
been sent alone: with its own body CRC, queue offset and physical offset. The batch's properties (such as CLUSTER) are
appended to the message's own, after a separator if it is missing.

``plan_batch`` checks everything. ``build_records`` then returns the run's bytes, which the log writes. A uniform batch
(uniform.py) is decoded and built by columns, at half the cost; any other batch message by message.

Pure functions. Corresponds to MessageExtEncoder.encode(MessageExtBatch) and DefaultAppendMessageCallback.doAppend for
batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.batch import decode_batch_body
from spark_rocket.protocol.record.layout import (
    AT,
    BATCH_BODY_LENGTH_AT,
    BATCH_FLAG_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    CRC_MASK,
    HEADER_TO_PLACE,
    INT,
    PROPERTIES_LENGTH,
)
from spark_rocket.protocol.record.uniform import layout_of, value_range
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code
from spark_rocket.store.results import PutError, PutStatus

_BODY_AT = BATCH_HEADER.size
_SEPARATOR = b"\x02"

Bytes = bytes | bytearray | memoryview
Ints = npt.NDArray[np.int64]


class _Uniform(NamedTuple):
    """Lengths and suffix common to the messages of a uniform batch."""

    body_length: int
    property_length: int
    suffix: bytes
    """Appended to the properties of each message."""


@dataclass(slots=True)
class BatchPlan:
    """A checked batch, before its queue and physical offsets are known."""

    raw: Bytes
    count: int
    sizes: Ints
    """Sizes of the records."""
    codes: Ints
    names: frozenset[bytes] | None
    """Property names if all messages have the same; None if they were not compared."""
    parts: _Uniform | list[tuple[int, memoryview, bytes]]
    """Of a general batch: each message's flag, body, and properties including the batch's."""

    @property
    def properties(self) -> list[bytes] | None:
        """Properties of each message; None for a uniform batch, whose names are known."""
        return None if isinstance(self.parts, _Uniform) else [properties for _, _, properties in self.parts]

    @property
    def total(self) -> int:
        """Size of all records in bytes."""
        return int(self.sizes.sum())


def plan_batch(raw: Bytes, record_overhead: int, batch_properties: bytes) -> BatchPlan:
    """Check a batch body. ``record_overhead``: a record's size without body and properties. PutError if invalid."""
    plan = _plan_uniform(raw, record_overhead, batch_properties)
    return plan if plan is not None else _plan_any(bytes(raw), record_overhead, batch_properties)


def _malformed(reason: str) -> PutError:
    return PutError(PutStatus.MESSAGE_ILLEGAL, f"the batch body is malformed: {reason}")


def _too_long(length: int) -> PutError:
    reason = f"a message's properties have {length} bytes, more than {MAX_PROPERTIES_BYTES}"
    return PutError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)


def _nul() -> PutError:
    """Error for a NUL: torn pages read as zeros, and recovery detects them because properties have no zero byte."""
    return PutError(PutStatus.MESSAGE_ILLEGAL, "a message's properties contain a NUL character")


def _plan_any(raw: bytes, overhead: int, batch_properties: bytes) -> BatchPlan:
    try:
        found = decode_batch_body(raw)
    except ProtocolError as error:
        raise _malformed(error.message) from None
    if not found:
        raise _malformed("It is empty.")
    messages: list[tuple[int, memoryview, bytes]] = []
    for flag, body, properties in found:
        if b"\0" in properties:
            raise _nul()
        properties += _suffix(properties, batch_properties)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise _too_long(len(properties))
        messages.append((flag, body, properties))
    sizes = np.array([overhead + len(body) + len(properties) for _, body, properties in messages], np.int64)
    codes = np.array([tags_code(properties) for _, _, properties in messages], np.int64)
    return BatchPlan(raw, len(messages), sizes, codes, None, messages)


def _suffix(properties: bytes, batch_properties: bytes) -> bytes:
    needs_separator = batch_properties and properties and not properties.endswith(_SEPARATOR)
    return _SEPARATOR + batch_properties if needs_separator else batch_properties


def _plan_uniform(raw: Bytes, overhead: int, batch_properties: bytes) -> BatchPlan | None:
    """Plan a uniform batch by columns; None for any other batch."""
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
            raise _nul()
        layout = layout_of(rows)
        if layout is None:
            return None
        names, suffix = layout.names, _suffix(rows.first, batch_properties)
        if rows.vary(*layout.values.get(b"TAGS", (0, 0))):
            every = Struct(f"{property_length}s").iter_unpack(rows.cells.data)
            codes[:] = [tags_code(properties) for (properties,) in every]
        else:
            codes[:] = tags_code(rows.first)
    if property_length + len(suffix) > MAX_PROPERTIES_BYTES:
        raise _too_long(property_length + len(suffix))
    sizes = np.full(count, overhead + body_length + property_length + len(suffix), np.int64)
    return BatchPlan(raw, count, sizes, codes, names, _Uniform(body_length, property_length, suffix))


def build_records(
    plan: BatchPlan, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int
) -> tuple[Bytes, Ints]:
    """Return the run's bytes and the physical offset of each record.

    ``head``: a record's head without sizes, CRC, flag and offsets.
    """
    physical = physical_offset + np.cumsum(plan.sizes) - plan.sizes
    if isinstance(plan.parts, _Uniform):
        queue_offsets = queue_offset + np.arange(plan.count)
        return _build_uniform(plan, plan.parts, head, topic_field, queue_offsets, physical), physical
    _, magic, _, queue_id, _, _, _ = HEADER_TO_PLACE.unpack_from(head)
    rest = head[HEADER_TO_PLACE.size : -4]
    pack = Struct(f"{HEADER_TO_PLACE.format}{len(rest)}si").pack
    pieces: list[bytes | memoryview] = []
    columns = zip(plan.parts, plan.sizes.tolist(), physical.tolist(), strict=True)
    for number, ((flag, body, properties), size, offset) in enumerate(columns, queue_offset):
        crc = crc32(body) & CRC_MASK
        record_head = pack(size, magic, crc, queue_id, flag, number, offset, rest, len(body))
        pieces += (record_head, body, topic_field, PROPERTIES_LENGTH.pack(len(properties)), properties)
    return b"".join(pieces), physical


def _build_uniform(
    plan: BatchPlan, parts: _Uniform, head: bytes, topic_field: bytes, queue_offsets: Ints, physical: Ints
) -> Bytes:
    """Build all records at once, field by field. NumPy copies structure items faster than matrix rows."""
    body_length, property_length, suffix = parts
    middle = topic_field + PROPERTIES_LENGTH.pack(property_length + len(suffix))
    message_type, body_of = _message_type(body_length, property_length)
    source = np.frombuffer(plan.raw, message_type)
    template = INT.pack(int(plan.sizes[0])) + head[4:-4] + INT.pack(body_length)
    records = np.empty(plan.count, _record_type(len(head), body_length, len(middle), property_length, len(suffix)))
    crcs = np.fromiter(map(crc32, chain.from_iterable(body_of.iter_unpack(plan.raw))), np.int64, plan.count)
    records["head"] = _item(template)
    records["crc"] = crcs & CRC_MASK
    records["flag"] = source["flag"]
    records["queue"] = queue_offsets
    records["log"] = physical
    records["middle"] = _item(middle)
    if body_length:
        records["body"] = source["body"]
    if property_length:
        records["properties"] = source["properties"]
    if suffix:
        records["suffix"] = _item(suffix)
    return records.view(np.uint8).data


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
