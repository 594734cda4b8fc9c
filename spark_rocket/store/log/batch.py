"""A batch body (request 320) to a run of commit-log records, with no Python per message where messages are alike.

Batch body, one after another: int32 size, int32 magic, int32 CRC, int32 flag, int32 bodyLength, body,
int16 propertiesLength, properties. Of each the store makes one ordinary record, as if it had been sent alone: own body
CRC, next queue offset, own physical offset; the batch's properties (such as CLUSTER) are appended to the message's own,
with a separator between where it is missing.

``plan_batch`` checks everything; ``build_records`` then makes the run's bytes, which the log writes.

Messages whose three lengths are the same lie in the batch like the rows of a matrix. If their properties have the same
names in the same places too (as those of one data frame mostly have), one look at each column tells all about them.
Pure functions. Corresponds to MessageExtEncoder.encode(MessageExtBatch) and DefaultAppendMessageCallback.doAppend for
batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.record.layout import AT, BATCH_HEADER, BATCH_OVERHEAD, CRC_MASK, INT, PROPERTIES_LENGTH
from spark_rocket.store.layout import MAX_PROPERTIES
from spark_rocket.store.log.alike import layout_of
from spark_rocket.store.queues.tags import code_of, tags_codes
from spark_rocket.store.results import PutStatus

_BODY_AT = BATCH_HEADER.size
_SEPARATOR = 2
_SMALL = 2_048  # bytes of a message

Bytes = bytes | bytearray | memoryview
Ints = npt.NDArray[np.int64]


class BatchError(Exception):
    """A batch that cannot be stored; carries the put's status. Never leaves the store."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class BatchPlan:
    """A checked batch: what goes where, before queue and physical offsets are known."""

    raw: Bytes
    count: int
    uniform: bool
    names: frozenset[bytes] | None
    """The properties' names if all messages have the same; None if nobody looked at each."""
    starts: Ints
    body_lengths: Ints
    property_lengths: Ints
    suffixes: tuple[bytes, bytes]
    """What is appended to properties that end with a separator or are empty, and to others."""
    needs_separator: npt.NDArray[np.bool_]
    sizes: Ints
    """Of the records."""
    total: int
    codes: Ints
    properties: list[bytes] | None
    """Of each message, if they are not alike."""


def plan_batch(raw: Bytes, record_overhead: int, batch_properties: bytes) -> BatchPlan:
    """Check a batch body, or BatchError. ``record_overhead`` is a record's size without body and properties."""
    source = np.frombuffer(raw, np.uint8)
    starts, uniform = _starts(raw, source)
    count = len(starts)
    names: frozenset[bytes] | None = None
    if uniform:
        body_length = INT.unpack_from(raw, 16)[0]
        property_length = PROPERTIES_LENGTH.unpack_from(raw, _BODY_AT + body_length)[0]
        body_lengths = np.full(count, body_length, np.int64)
        property_lengths = np.full(count, property_length, np.int64)
        names, codes = _matrix_properties(
            np.ascontiguousarray(source.reshape(count, -1)[:, BATCH_OVERHEAD + body_length :])
        )
        properties = None
    else:
        raw = text = bytes(raw)
        body_lengths, property_lengths = _lengths(source, starts, len(raw))
    ends = starts + BATCH_OVERHEAD + body_lengths + property_lengths
    if not uniform:
        spans = zip((ends - property_lengths).tolist(), ends.tolist(), strict=True)
        properties = [text[start:end] for start, end in spans]
        joined = b"".join(properties)
        if b"\0" in joined:
            raise _nul()
        property_ends = np.cumsum(property_lengths)
        codes = np.array(tags_codes(joined, property_ends - property_lengths, property_ends), np.int64)
    needs_separator = np.zeros(count, np.bool_)
    if batch_properties:
        needs_separator = (property_lengths > 0) & (source[ends - 1] != _SEPARATOR)
    added = np.where(needs_separator, len(batch_properties) + 1, len(batch_properties))
    longest = int((property_lengths + added).max())
    if longest > MAX_PROPERTIES:
        reason = f"a message's properties have {longest} bytes, more than {MAX_PROPERTIES}"
        raise BatchError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
    sizes = record_overhead + body_lengths + property_lengths + added
    return BatchPlan(
        raw,
        count,
        uniform and bool(needs_separator.all() or not needs_separator.any()),
        names,
        starts,
        body_lengths,
        property_lengths,
        (batch_properties, b"\x02" + batch_properties),
        needs_separator,
        sizes,
        int(sizes.sum()),
        codes,
        properties,
    )


def _bad(reason: str) -> BatchError:
    return BatchError(PutStatus.MESSAGE_ILLEGAL, f"the batch body is malformed: {reason}")


def _nul() -> BatchError:
    """Torn pages read as zeros: recovery can tell them from properties only because no property has a zero byte."""
    return BatchError(PutStatus.MESSAGE_ILLEGAL, "a message's properties contain a NUL character")


def _starts(raw: Bytes, source: npt.NDArray[np.uint8]) -> tuple[Ints, bool]:
    """Where each message starts, and whether all have the same three lengths (checked, not guessed)."""
    total = len(raw)
    if total < BATCH_OVERHEAD:
        raise _bad(f"{total} bytes are fewer than one message has")
    size = INT.unpack_from(raw, 0)[0]
    if size >= BATCH_OVERHEAD and total % size == 0:
        body_length = INT.unpack_from(raw, 16)[0]
        at = _BODY_AT + body_length
        if body_length >= 0 and at + 2 <= size and at + 2 + PROPERTIES_LENGTH.unpack_from(raw, at)[0] == size:
            fields = (
                np.ndarray((total // size,), kind, source, place, (size,))
                for place, kind in ((0, "=i4"), (16, "=i4"), (at, "=i2"))
            )
            if all(bool((field == field[0]).all()) for field in fields):
                return np.arange(0, total, size, dtype=np.int64), True
    starts = []
    unpack = INT.unpack_from
    at = 0
    while at + BATCH_OVERHEAD <= total:
        starts.append(at)
        size = unpack(raw, at)[0]
        if size < BATCH_OVERHEAD:
            raise _bad(f"message {len(starts) - 1} says it has {size} bytes")
        at += size
    if at != total:
        raise _bad(f"message {len(starts) - 1} does not end where the batch does")
    return np.array(starts, np.int64), False


def _lengths(source: npt.NDArray[np.uint8], starts: Ints, total: int) -> tuple[Ints, Ints]:
    sizes = np.diff(starts, append=total)
    body_lengths = _gather(source, starts + 16, ">i4")
    if bool(((body_lengths < 0) | (body_lengths > sizes - BATCH_OVERHEAD)).any()):
        raise _bad("a body is longer than its message")
    property_lengths = _gather(source, starts + _BODY_AT + body_lengths, ">i2")
    if bool((property_lengths != sizes - BATCH_OVERHEAD - body_lengths).any()):
        raise _bad("lengths of body and properties do not make up a message's size")
    return body_lengths, property_lengths


def _gather(source: npt.NDArray[np.uint8], at: Ints, kind: str) -> Ints:
    width = np.dtype(kind).itemsize
    values: Ints = source[at[:, None] + np.arange(width)].view(kind)[:, 0].astype(np.int64)
    return values


def _matrix_properties(rows: npt.NDArray[np.uint8]) -> tuple[frozenset[bytes] | None, Ints]:
    """The names if every row has the same ones in the same places, and the tags codes; BatchError for a NUL."""
    count, width = rows.shape
    if not width:
        return frozenset(), np.zeros(count, np.int64)
    layout = layout_of(rows)
    if layout.has_nul:
        raise _nul()
    ends = np.arange(1, count + 1, dtype=np.int64) * width
    if layout.values is None:
        return None, np.array(tags_codes(rows.tobytes(), ends - width, ends), np.int64)
    start, end = layout.values.get(b"TAGS", (0, 0))
    if layout.same[start:end].all():
        return layout.names, np.full(count, code_of(rows[0, start:end].tobytes()), np.int64)
    return layout.names, np.array(tags_codes(rows.tobytes(), ends - width, ends), np.int64)


def build_records(
    plan: BatchPlan, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int
) -> tuple[Bytes, Ints]:
    """The run's bytes, and the physical offset of each record.

    ``head`` is a record's head without sizes, CRC, flag and offsets.
    """
    physical = physical_offset + np.cumsum(plan.sizes) - plan.sizes
    queue_offsets = queue_offset + np.arange(plan.count)
    build = _build_uniform if plan.uniform else _build_general
    return build(plan, head, topic_field, queue_offsets, physical), physical


def _build_uniform(plan: BatchPlan, head: bytes, topic_field: bytes, queue_offsets: Ints, physical: Ints) -> Bytes:
    """Field by field, all records at once; NumPy copies items of a structure faster than rows of a matrix."""
    count, width = plan.count, len(head)
    body_length, property_length, size = int(plan.body_lengths[0]), int(plan.property_lengths[0]), int(plan.sizes[0])
    suffix = plan.suffixes[int(plan.needs_separator[0])]
    middle = topic_field + PROPERTIES_LENGTH.pack(property_length + len(suffix))
    message_type, body_of = _message_type(body_length, property_length)
    source = np.frombuffer(plan.raw, message_type)
    template = INT.pack(size) + head[4:-4] + INT.pack(body_length)
    records = np.empty(count, _record_type(width, body_length, len(middle), property_length, len(suffix)))
    crcs = np.fromiter(map(crc32, chain.from_iterable(body_of.iter_unpack(plan.raw))), np.int64, count)
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
    """A message of a batch body, and what takes the body alone."""
    kind = np.dtype(
        {
            "names": ["flag", "body", "properties"],
            "formats": ["V4", f"V{body}", f"V{properties}"],
            "offsets": [12, _BODY_AT, BATCH_OVERHEAD + body],
            "itemsize": BATCH_OVERHEAD + body + properties,
        }
    )
    return kind, Struct(f"{_BODY_AT}x{body}s{2 + properties}x")


@lru_cache(maxsize=256)
def _record_type(head: int, body: int, middle: int, properties: int, suffix: int) -> np.dtype[np.void]:
    """A record; its ``head`` lies under the fields of the head that differ."""
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


def _column(record: npt.NDArray[np.uint8], at: int, values: Ints, kind: str) -> None:
    raw = values.astype(kind).view(np.uint8).reshape(len(values), -1)
    record[:, at : at + raw.shape[1]] = raw


def _build_general(plan: BatchPlan, head: bytes, topic_field: bytes, queue_offsets: Ints, physical: Ints) -> Bytes:
    """Piece by piece, but the same piece of all records at once."""
    count, raw, width = plan.count, bytes(plan.raw), len(head)
    body_ends = plan.starts + _BODY_AT + plan.body_lengths
    # A copy of a small body costs less than a view of it.
    text: bytes | memoryview = raw if len(raw) < count * _SMALL else memoryview(raw)
    bodies = [text[a:b] for a, b in zip((plan.starts + _BODY_AT).tolist(), body_ends.tolist(), strict=True)]
    properties = plan.properties
    if properties is None:
        ends = body_ends + 2 + plan.property_lengths
        properties = [raw[a:b] for a, b in zip((body_ends + 2).tolist(), ends.tolist(), strict=True)]
    source = np.frombuffer(raw, np.uint8)
    heads = np.empty((count, width), np.uint8)
    heads[:] = np.frombuffer(head, np.uint8)
    _column(heads, 0, plan.sizes, ">i4")
    _column(heads, AT["body_crc"], np.fromiter(map(crc32, bodies), np.int64, count) & CRC_MASK, ">i4")
    heads[:, AT["flag"] : AT["flag"] + 4] = source[(plan.starts + 12)[:, None] + np.arange(4)]
    _column(heads, AT["queue_offset"], queue_offsets, ">i8")
    _column(heads, AT["physical_offset"], physical, ">i8")
    _column(heads, width - 4, plan.body_lengths, ">i4")
    topic_width = len(topic_field)
    middles = np.empty((count, topic_width + 2), np.uint8)
    middles[:, :topic_width] = np.frombuffer(topic_field, np.uint8)
    lengths = plan.property_lengths + len(plan.suffixes[0]) + (plan.needs_separator if plan.suffixes[0] else 0)
    _column(middles, topic_width, lengths, ">i2")
    suffixes = plan.suffixes
    pieces: list[bytes | memoryview] = [b""] * (5 * count)
    pieces[0::5] = _rows(heads)
    pieces[1::5] = bodies
    pieces[2::5] = _rows(middles)
    pieces[3::5] = properties
    pieces[4::5] = [suffixes[separate] for separate in plan.needs_separator.tolist()]
    return b"".join(pieces)


def _rows(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    return list(chain.from_iterable(Struct(f"{matrix.shape[1]}s").iter_unpack(matrix.reshape(-1).data)))
