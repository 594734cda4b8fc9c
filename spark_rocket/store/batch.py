"""A batch body (request 320) to a run of commit-log records, with no Python per message where messages are alike.

Batch body, one after another: int32 size, int32 magic, int32 CRC, int32 flag, int32 bodyLength, body,
int16 propertiesLength, properties. Of each the store makes one ordinary record, as if it had been sent alone: own body
CRC, next queue offset, own physical offset; the batch's properties (such as CLUSTER) are appended to the message's own,
with a separator between where it is missing.

``plan_batch`` checks everything and touches nothing. ``write_batch`` then fills the run in place; the first record's
size is written last, so that a process killed in between has stored nothing.
Pure but for the buffer handed to ``write_batch``. Corresponds to MessageExtEncoder.encode(MessageExtBatch) and
DefaultAppendMessageCallback.doAppend for batches.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.store.layout import MAX_PROPERTIES
from spark_rocket.store.results import PutStatus
from spark_rocket.store.tags import tags_code, tags_codes

_FIXED = 22  # of one message in a batch body, without body and properties
_INT = Struct(">i")
_SHORT = Struct(">h")
_CRC_AT, _FLAG_AT, _QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT = 8, 16, 20, 28

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

    raw: bytes
    count: int
    uniform: bool
    starts: Ints
    body_lengths: Ints
    property_lengths: Ints
    suffixes: tuple[bytes, bytes]
    """What is appended to properties that end with a separator or are empty, and to others."""
    needs_separator: npt.NDArray[np.bool_]
    sizes: Ints
    """Of the records."""
    total: int
    codes: list[int]


def plan_batch(raw: bytes, record_overhead: int, batch_properties: bytes) -> BatchPlan:
    """Check a batch body, or BatchError. ``record_overhead`` is a record's size without body and properties."""
    source = np.frombuffer(raw, np.uint8)
    starts, uniform = _starts(raw, source)
    count = len(starts)
    if uniform:
        body_length = _INT.unpack_from(raw, 16)[0]
        property_length = _SHORT.unpack_from(raw, 20 + body_length)[0]
        body_lengths = np.full(count, body_length, np.int64)
        property_lengths = np.full(count, property_length, np.int64)
    else:
        body_lengths, property_lengths = _lengths(source, starts, len(raw))
    ends = starts + _FIXED + body_lengths + property_lengths
    property_starts = ends - property_lengths
    if _has_nul(raw, source, property_starts, ends, uniform):
        raise BatchError(PutStatus.MESSAGE_ILLEGAL, "a message's properties contain a NUL character")
    needs_separator = np.zeros(count, np.bool_)
    if batch_properties:
        needs_separator = (property_lengths > 0) & (source[ends - 1] != 2)
    added = np.where(needs_separator, len(batch_properties) + 1, len(batch_properties))
    longest = int((property_lengths + added).max())
    if longest > MAX_PROPERTIES:
        reason = f"a message's properties have {longest} bytes, more than {MAX_PROPERTIES}"
        raise BatchError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
    sizes = record_overhead + body_lengths + property_lengths + added
    codes = _uniform_codes(raw, source, count, property_starts, ends) if uniform else []
    codes = codes or tags_codes(raw, property_starts, ends)
    return BatchPlan(
        raw,
        count,
        uniform and bool(needs_separator.all() or not needs_separator.any()),
        starts,
        body_lengths,
        property_lengths,
        (batch_properties, b"\x02" + batch_properties),
        needs_separator,
        sizes,
        int(sizes.sum()),
        codes,
    )


def _bad(reason: str) -> BatchError:
    return BatchError(PutStatus.MESSAGE_ILLEGAL, f"the batch body is malformed: {reason}")


def _starts(raw: bytes, source: npt.NDArray[np.uint8]) -> tuple[Ints, bool]:
    """Where each message starts, and whether all have the same three lengths (checked, not guessed)."""
    total = len(raw)
    if total < _FIXED:
        raise _bad(f"{total} bytes are fewer than one message has")
    size = _INT.unpack_from(raw, 0)[0]
    if size >= _FIXED and total % size == 0:
        body_length = _INT.unpack_from(raw, 16)[0]
        at = 20 + body_length
        if body_length >= 0 and at + 2 <= size and at + 2 + _SHORT.unpack_from(raw, at)[0] == size:
            rows = source.reshape(-1, size)
            same = rows == rows[0] if size <= 64 else None
            columns = (slice(0, 4), slice(16, 20), slice(at, at + 2))
            if all(
                bool((same[:, column] if same is not None else rows[:, column] == rows[0, column]).all())
                for column in columns
            ):
                return np.arange(0, total, size, dtype=np.int64), True
    starts = []
    unpack = _INT.unpack_from
    at = 0
    while at + _FIXED <= total:
        starts.append(at)
        size = unpack(raw, at)[0]
        if size < _FIXED:
            raise _bad(f"message {len(starts) - 1} says it has {size} bytes")
        at += size
    if at != total:
        raise _bad(f"message {len(starts) - 1} does not end where the batch does")
    return np.array(starts, np.int64), False


def _lengths(source: npt.NDArray[np.uint8], starts: Ints, total: int) -> tuple[Ints, Ints]:
    sizes = np.diff(starts, append=total)
    body_lengths = _gather(source, starts + 16, ">i4")
    if bool(((body_lengths < 0) | (body_lengths > sizes - _FIXED)).any()):
        raise _bad("a body is longer than its message")
    property_lengths = _gather(source, starts + 20 + body_lengths, ">i2")
    if bool((property_lengths != sizes - _FIXED - body_lengths).any()):
        raise _bad("lengths of body and properties do not make up a message's size")
    return body_lengths, property_lengths


def _gather(source: npt.NDArray[np.uint8], at: Ints, kind: str) -> Ints:
    width = np.dtype(kind).itemsize
    values: Ints = source[at[:, None] + np.arange(width)].view(kind)[:, 0].astype(np.int64)
    return values


def _has_nul(raw: bytes, source: npt.NDArray[np.uint8], starts: Ints, ends: Ints, uniform: bool) -> bool:
    """Torn pages read as zeros: recovery can tell them from properties only because no property has a zero byte."""
    if uniform:
        size = int(ends[0])
        return not bool(source.reshape(-1, size)[:, int(starts[0]) :].all())
    find = raw.find
    return any(find(b"\0", start, end) >= 0 for start, end in zip(starts.tolist(), ends.tolist(), strict=True))


def _uniform_codes(raw: bytes, source: npt.NDArray[np.uint8], count: int, starts: Ints, ends: Ints) -> list[int]:
    """The one tags code of messages that all have the same tag in the same place; empty if they do not."""
    first, stop = int(starts[0]), int(ends[0])
    at = raw.find(b"TAGS\x01", first, stop)
    if at < 0 or (at != first and raw[at - 1] != 2) or raw.find(b"TAGS\x01", at + 5, stop) >= 0:
        return []
    end = raw.find(b"\x02", at, stop)
    place = slice(at - (at != first), stop if end < 0 else end + 1)
    rows = source.reshape(count, stop)
    if not bool((rows[:, place] == rows[0, place]).all()):
        return []
    if count > 1 and raw.count(b"TAGS\x01") != count:  # a second one somewhere: in a body, or another property
        return []
    return [tags_code(raw[first:stop])] * count


def write_batch(
    plan: BatchPlan,
    target: mmap.mmap,
    position: int,
    head: bytes,
    topic_field: bytes,
    queue_offset: int,
    physical_offset: int,
) -> Ints:
    """Write the records at ``position``; ``head`` is a record's head without sizes, CRC, flag and offsets.

    Returns the physical offset of each record.
    """
    count = plan.count
    physical = physical_offset + np.cumsum(plan.sizes) - plan.sizes
    queue_offsets = queue_offset + np.arange(count)
    writer = _write_uniform if plan.uniform else _write_general
    writer(plan, target, position, head, topic_field, queue_offsets, physical)
    return physical


def _write_uniform(
    plan: BatchPlan,
    target: mmap.mmap,
    position: int,
    head: bytes,
    topic_field: bytes,
    queue_offsets: Ints,
    physical: Ints,
) -> None:
    count = plan.count
    body_length, property_length, size = int(plan.body_lengths[0]), int(plan.property_lengths[0]), int(plan.sizes[0])
    rows = np.frombuffer(plan.raw, np.uint8).reshape(count, -1)
    record = np.ndarray((count, size), np.uint8, target, position)
    suffix = plan.suffixes[int(plan.needs_separator[0])]
    bodies = rows[:, 20 : 20 + body_length].tobytes()
    at = len(head)
    # The size stays zero till the end: a whole row of template first, then what differs.
    template = head[4:-4] + _INT.pack(body_length)
    record[:, 4:at] = np.frombuffer(template, np.uint8)
    crcs = [crc32(bodies[i : i + body_length]) for i in range(0, count * body_length, body_length or 1)] or [0] * count
    _column(record, _CRC_AT, np.array(crcs, np.int64) & 0x7FFFFFFF, ">i4")
    record[:, _FLAG_AT : _FLAG_AT + 4] = rows[:, 12:16]
    _column(record, _QUEUE_OFFSET_AT, queue_offsets, ">i8")
    _column(record, _PHYSICAL_OFFSET_AT, physical, ">i8")
    record[:, at : at + body_length] = rows[:, 20 : 20 + body_length]
    at += body_length
    middle = topic_field + _SHORT.pack(property_length + len(suffix))
    record[:, at : at + len(middle)] = np.frombuffer(middle, np.uint8)
    at += len(middle)
    record[:, at : at + property_length] = rows[:, 22 + body_length :]
    at += property_length
    if suffix:
        record[:, at:] = np.frombuffer(suffix, np.uint8)
    packed = np.frombuffer(_INT.pack(size), np.uint8)
    record[1:, :4] = packed
    record[0, :4] = packed


def _column(record: npt.NDArray[np.uint8], at: int, values: Ints, kind: str) -> None:
    raw = values.astype(kind).view(np.uint8).reshape(len(values), -1)
    record[:, at : at + raw.shape[1]] = raw


def _write_general(
    plan: BatchPlan,
    target: mmap.mmap,
    position: int,
    head: bytes,
    topic_field: bytes,
    queue_offsets: Ints,
    physical: Ints,
) -> None:
    count, raw, width = plan.count, plan.raw, len(head)
    source = np.frombuffer(raw, np.uint8)
    heads = np.empty((count, width), np.uint8)
    heads[:] = np.frombuffer(head, np.uint8)
    starts = plan.starts
    body_ends = starts + 20 + plan.body_lengths
    lengths = plan.property_lengths + len(plan.suffixes[0]) + (plan.needs_separator if plan.suffixes[0] else 0)
    views = memoryview(raw)
    body_spans = list(zip((starts + 20).tolist(), body_ends.tolist(), strict=True))
    _column(heads, 0, plan.sizes, ">i4")
    _column(heads, _CRC_AT, np.array([crc32(views[a:b]) for a, b in body_spans], np.int64) & 0x7FFFFFFF, ">i4")
    heads[:, _FLAG_AT : _FLAG_AT + 4] = source[(starts + 12)[:, None] + np.arange(4)]
    _column(heads, _QUEUE_OFFSET_AT, queue_offsets, ">i8")
    _column(heads, _PHYSICAL_OFFSET_AT, physical, ">i8")
    _column(heads, width - 4, plan.body_lengths, ">i4")
    flat = heads.tobytes()
    packed = lengths.astype(">i2").tobytes()
    pieces: list[bytes | memoryview] = []
    suffixes = plan.suffixes
    ends = (body_ends + 2 + plan.property_lengths).tolist()
    separates = plan.needs_separator.tolist()
    for i, ((start, stop), end, separate) in enumerate(zip(body_spans, ends, separates, strict=True)):
        pieces += (
            flat[i * width : i * width + width],
            views[start:stop],
            topic_field,
            packed[2 * i : 2 * i + 2],
            views[stop + 2 : end],
            suffixes[separate],
        )
    blob = b"".join(pieces)
    target[position + 4 : position + len(blob)] = blob[4:]
    target[position : position + 4] = blob[:4]
