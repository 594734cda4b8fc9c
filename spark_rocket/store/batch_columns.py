"""A batch of many messages as commit-log records, by columns (spans.py). batch_plan.py decides which batches.

Python runs per message only to follow the sizes and for the CRC of each body, which no client sends. Time and memory
are linear in the batch's bytes.

Pure but for ``ManyMessages.write``. Corresponds to MessageExtEncoder.encode(MessageExtBatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.buffers import Buffer
from spark_rocket.protocol.record.batch_body import bad_batch
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
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.protocol.record.spans import ByteArray, Ints, blocks, copy_spans, gather, walk_sizes
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code, tags_codes
from spark_rocket.store.results import PutError, PutStatus

_SEPARATOR = b"\x02"


@dataclass(slots=True)
class ManyMessages:
    """A checked batch; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    properties: PropertySpans
    """Properties of the messages, without those of the batch."""
    starts: Ints
    """Where the messages begin."""
    bodies: Ints
    """Lengths of the bodies."""
    lengths: Ints
    """Lengths of the properties, without those of the batch."""
    suffix: bytes
    """Properties of the batch."""
    is_separated: npt.NDArray[np.bool_]
    """Whether a separator is needed before the suffix."""

    def may_have(self, *names: bytes) -> bool:
        return self.properties.may_have(*names)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        source, target, count = np.frombuffer(self.raw, np.uint8), np.frombuffer(out, np.uint8), len(self.sizes)
        ends = np.cumsum(self.sizes)
        starts = ends - self.sizes
        physical = physical_offset + starts
        bodies_at = self.starts + BATCH_HEADER.size

        heads = _repeated(head, count)
        _set(heads, AT["size"], ">i4", self.sizes)
        _set(heads, AT["body_crc"], ">i4", _crcs(self.raw, bodies_at, self.bodies))
        _set(heads, AT["flag"], ">i4", gather(source, self.starts + BATCH_FLAG_AT, ">i4"))
        _set(heads, AT["queue_offset"], ">i8", queue_offset + np.arange(count))
        _set(heads, AT["physical_offset"], ">i8", physical)
        _set(heads, len(head) - INT.size, ">i4", self.bodies)
        heads[0, : INT.size] = 0
        blocks(target, len(head))[starts] = _rows(heads)

        places = starts + len(head)
        copy_spans(source, bodies_at, self.bodies, target, places)

        middles = _repeated(topic_field + bytes(PROPERTIES_LENGTH.size), count)
        _set(middles, len(topic_field), ">i2", self.lengths + self.is_separated + len(self.suffix))
        places += self.bodies
        blocks(target, middles.shape[1])[places] = _rows(middles)

        places += middles.shape[1]
        copy_spans(source, bodies_at + self.bodies + PROPERTIES_LENGTH.size, self.lengths, target, places)
        if self.suffix:
            suffixes_at = ends - len(self.suffix)
            target[suffixes_at[self.is_separated] - 1] = _SEPARATOR[0]
            blocks(target, len(self.suffix))[suffixes_at] = np.frombuffer(self.suffix, f"V{len(self.suffix)}")[0]
        out[: INT.size] = INT.pack(int(self.sizes[0]))
        return physical


def has_nul() -> PutError:
    """Error for a NUL: torn pages read as zeros, and recovery detects them because properties have no zero byte."""
    return PutError(PutStatus.MESSAGE_ILLEGAL, "a message's properties contain a NUL character")


def too_long(length: int) -> PutError:
    """Error for the properties of a message, including those of the batch."""
    reason = f"a message's properties have {length} bytes, more than {MAX_PROPERTIES_BYTES}"
    return PutError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)


def malformed(reason: str) -> PutError:
    """Error for bytes that are not messages."""
    return PutError(PutStatus.MESSAGE_ILLEGAL, f"the batch body is malformed: {reason}")


def suffix_of(properties: bytes, batch_properties: bytes) -> bytes:
    """Return what is appended to the properties of a message."""
    needs_separator = batch_properties and properties and not properties.endswith(_SEPARATOR)
    return _SEPARATOR + batch_properties if needs_separator else batch_properties


def plan_many(raw: Buffer, record_overhead: int, batch_properties: bytes) -> ManyMessages:
    """Check a batch body, as ``plan_batch``."""
    source = np.frombuffer(raw, np.uint8)
    starts, bodies, lengths = _messages(raw, source)
    places = starts + bodies + BATCH_OVERHEAD
    properties = PropertySpans(source, places, lengths)
    is_separated = np.zeros(len(starts), np.bool_)
    if batch_properties:
        is_separated = (lengths > 0) & (source[places + lengths - 1] != _SEPARATOR[0])
    whole = lengths + is_separated + len(batch_properties)
    first_nul = properties.first_with_nul()
    too_long_at = np.flatnonzero(whole[: first_nul + 1] > MAX_PROPERTIES_BYTES)
    if first_nul < len(starts) and (not len(too_long_at) or too_long_at[0] == first_nul):
        raise has_nul()
    if len(too_long_at):
        raise too_long(int(whole[too_long_at[0]]))
    if find_property(batch_properties, b"TAGS") is None:
        codes = tags_codes(properties)
    else:
        codes = np.full(len(starts), tags_code(batch_properties), np.int64)
    sizes = record_overhead + bodies + whole
    return ManyMessages(raw, sizes, codes, properties, starts, bodies, lengths, batch_properties, is_separated)


def _messages(raw: Buffer, source: ByteArray) -> tuple[Ints, Ints, Ints]:
    """Return where the messages begin, and the lengths of their bodies and properties. PutError if one is invalid."""
    starts, end = walk_sizes(raw, BATCH_OVERHEAD)
    rooms = np.diff(starts, append=end) - BATCH_OVERHEAD
    bodies = gather(source, starts + BATCH_BODY_LENGTH_AT, ">i4")
    is_good = (bodies >= 0) & (bodies <= rooms)
    is_good[-1:] &= end <= len(source)
    places = starts + BATCH_HEADER.size + np.where(is_good, bodies, 0)
    lengths = gather(source, places, ">i2")
    is_good &= lengths == rooms - bodies
    if not is_good.all():
        end = int(starts[is_good.argmin()])
    elif end == len(source) > 0:
        return starts, bodies, lengths
    reason = bad_batch(end).message if len(source) else "It is empty."
    raise malformed(reason)


def _repeated(row: bytes, count: int) -> ByteArray:
    rows = np.empty((count, len(row)), np.uint8)
    rows[:] = np.frombuffer(row, np.uint8)
    return rows


def _set(rows: ByteArray, at: int, kind: str, values: Ints) -> None:
    """Set a number in each row."""
    np.ndarray((len(rows),), kind, rows, at, (rows.shape[1],))[:] = values


def _rows(rows: ByteArray) -> npt.NDArray[np.void]:
    return rows.view(f"V{rows.shape[1]}")[:, 0]


def _crcs(raw: Buffer, starts: Ints, lengths: Ints) -> Ints:
    view = memoryview(raw)
    ranges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.array([crc32(view[start:end]) for start, end in ranges], np.int64) & CRC_MASK
