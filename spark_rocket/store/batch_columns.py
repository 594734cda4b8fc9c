"""A batch of many messages as commit-log records, by columns (record/spans.py). batch_plan.py decides which batches.

Python runs per message only to follow the sizes and for the CRC of each body, which no client sends. Time and memory
are linear in the batch's bytes.

Pure but for ``ManyMessages.write``. Corresponds to MessageExtEncoder.encode(MessageExtBatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_rocket.protocol.buffers import Buffer
from spark_rocket.protocol.record.batch_body import bad_batch
from spark_rocket.protocol.record.layout import (
    BATCH_HEADER,
    BATCH_HEADER_DTYPE,
    BATCH_OVERHEAD,
    HEADER_DTYPE,
    INT,
    PROPERTIES_LENGTH,
)
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.property_spans import PropertySpans
from spark_rocket.protocol.record.spans import (
    ByteArray,
    Ints,
    blocks,
    body_crcs,
    copy_spans,
    gather,
    void_type,
    walk_sizes,
)
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code, tags_codes
from spark_rocket.store.results import PutError, PutStatus

_SEPARATOR = b"\x02"
_RECORD_HEAD = np.dtype(HEADER_DTYPE)
_MESSAGE_HEAD = np.dtype(BATCH_HEADER_DTYPE)
_INT, _SHORT = np.dtype(">i4"), np.dtype(">i2")
_Any = np.ndarray[Any, Any]


class _Messages(NamedTuple):
    """The messages of a batch body, in columns."""

    heads: _Any
    body_starts: Ints
    bodies: Ints
    """Lengths of the bodies."""
    body_ends: Ints
    properties: Ints
    """Lengths of the properties."""


@dataclass(slots=True)
class ManyMessages:
    """A checked batch; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    messages: _Messages
    properties: PropertySpans
    """Properties of the messages, without those of the batch."""
    lengths: Ints
    """Lengths of the properties of the records, with those of the batch and the separator before them."""
    suffix: bytes
    """Properties of the batch."""

    def may_have(self, *names: bytes) -> bool:
        return self.properties.may_have(*names)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        source, target, count = np.frombuffer(self.raw, np.uint8), np.frombuffer(out, np.uint8), len(self.sizes)
        messages = self.messages
        ends = np.cumsum(self.sizes)
        starts = ends - self.sizes
        physical = starts + physical_offset

        rows = _repeated(head, count)
        fields = _fields(rows, 0, _RECORD_HEAD)
        fields["size"][1:] = self.sizes[1:]  # the log writes the first one
        fields["body_crc"] = body_crcs(self.raw, messages.body_starts, messages.body_ends)
        fields["flag"] = messages.heads["flag"]
        fields["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        fields["physical_offset"] = physical
        _fields(rows, len(head) - INT.size, _INT)[:] = messages.bodies
        blocks(target, len(head))[starts] = _items(rows)

        places = starts + len(head)
        copy_spans(source, messages.body_starts, messages.bodies, target, places)

        rows = _repeated(topic_field + bytes(PROPERTIES_LENGTH.size), count)
        _fields(rows, len(topic_field), _SHORT)[:] = self.lengths
        places += messages.bodies
        blocks(target, rows.shape[1])[places] = _items(rows)

        places += rows.shape[1]
        copy_spans(source, messages.body_ends + PROPERTIES_LENGTH.size, messages.properties, target, places)
        if self.suffix:
            suffixes_at = ends - len(self.suffix)
            is_separated = self.lengths > messages.properties + len(self.suffix)
            target[suffixes_at[is_separated] - 1] = _SEPARATOR[0]
            blocks(target, len(self.suffix))[suffixes_at] = np.frombuffer(self.suffix, f"V{len(self.suffix)}")[0]
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
    messages = _messages(raw, source)
    places = messages.body_ends + PROPERTIES_LENGTH.size
    properties = PropertySpans(source, places, messages.properties)
    lengths = messages.properties + len(batch_properties)
    if batch_properties:
        lengths += (messages.properties > 0) & (source[places + messages.properties - 1] != _SEPARATOR[0])
    if properties.has_nul or int(lengths.max()) > MAX_PROPERTIES_BYTES:
        first_nul, too_long_at = properties.first_with_nul(), np.flatnonzero(lengths > MAX_PROPERTIES_BYTES)
        if not len(too_long_at) or first_nul <= too_long_at[0]:
            raise has_nul()
        raise too_long(int(lengths[too_long_at[0]]))
    if find_property(batch_properties, b"TAGS") is None:
        codes = tags_codes(properties)
    else:
        codes = np.full(len(lengths), tags_code(batch_properties), np.int64)
    sizes = messages.bodies + lengths + record_overhead
    return ManyMessages(raw, sizes, codes, messages, properties, lengths, batch_properties)


def _messages(raw: Buffer, source: ByteArray) -> _Messages:
    """Find the messages. PutError if one is invalid."""
    starts, end = walk_sizes(raw, BATCH_OVERHEAD)
    if not len(starts):
        raise malformed(bad_batch(0).message if len(source) else "It is empty.")
    heads = blocks(source, BATCH_HEADER.size)[starts].view(_MESSAGE_HEAD)
    bodies = heads["body_length"].astype(np.int64)
    body_starts = starts + BATCH_HEADER.size
    rooms = np.append(starts[1:], end) - (body_starts + PROPERTIES_LENGTH.size)
    if end > len(source):
        rooms[-1] = -1
    body_ends = body_starts + np.minimum(bodies, rooms)
    lengths = gather(source, body_ends, ">i2")
    is_good = (bodies <= rooms) & (bodies + lengths == rooms)
    if end != len(source) or not is_good.all():
        raise malformed(bad_batch(end if is_good.all() else int(starts[is_good.argmin()])).message)
    return _Messages(heads, body_starts, bodies, body_ends, lengths)


def _repeated(row: bytes, count: int) -> ByteArray:
    rows = np.empty((count, len(row)), np.uint8)
    rows[:] = np.frombuffer(row, np.uint8)
    return rows


def _fields(rows: ByteArray, at: int, kind: np.dtype[Any]) -> _Any:
    """Return a view of a value in each row."""
    return np.ndarray((len(rows),), kind, rows, at, (rows.shape[1],))


def _items(rows: ByteArray) -> npt.NDArray[np.void]:
    return rows.view(void_type(rows.shape[1]))[:, 0]
