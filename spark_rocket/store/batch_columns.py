"""A batch of many messages as commit-log records, by columns (record/spans.py). batch_plan.py decides which batches.

Python runs per message only to follow the sizes and for the CRC of each body, which no client sends. Time and memory
are linear in the batch's bytes.

Pure but for ``ColumnBatchPlan.write``. Corresponds to MessageExtEncoder.encode(MessageExtBatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.layout import (
    AT,
    BATCH_HEADER,
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

SEPARATOR = b"\x02"
_RECORD_HEAD = np.dtype(HEADER_DTYPE)
_INTS = np.dtype(">i4")


class _Messages(NamedTuple):
    """The messages of a batch body, in columns."""

    flags: Ints
    body_starts: Ints
    bodies: Ints
    """Lengths of the bodies."""
    body_ends: Ints
    properties: Ints
    """Lengths of the properties."""


@dataclass(slots=True)
class ColumnBatchPlan:
    """A checked batch in columns; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    lengths: Ints
    messages: _Messages
    properties: PropertySpans
    """Properties of the messages, without the properties of the batch."""
    suffix: bytes
    """Properties of the batch."""

    def may_have(self, *names: bytes) -> bool:
        return self.properties.may_have(*names)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        source, target, count = np.frombuffer(self.raw, np.uint8), np.frombuffer(out, np.uint8), len(self.sizes)
        messages = self.messages
        ends = self.sizes.cumsum()
        starts = ends - self.sizes
        physical = starts + physical_offset

        heads = np.frombuffer(bytearray(head * count), _head_type(len(head)))
        heads["size"][1:] = self.sizes[1:]  # the log writes the first one
        heads["body_crc"] = body_crcs(self.raw, messages.body_starts, messages.body_ends)
        heads["flag"] = messages.flags
        heads["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        heads["physical_offset"] = physical
        heads["body_length"] = messages.bodies
        blocks(target, len(head))[starts] = heads.view(void_type(len(head)))

        places = starts + len(head)
        copy_spans(source, messages.body_starts, messages.bodies, target, places)
        if self.suffix:  # with a separator, which what is written later overwrites where there is none
            suffix = SEPARATOR + self.suffix
            blocks(target, len(suffix))[ends - len(suffix)] = np.frombuffer(suffix, void_type(len(suffix)))[0]

        between = topic_field + bytes(PROPERTIES_LENGTH.size)
        rows = np.frombuffer(bytearray(between * count), _between_type(len(topic_field)))
        rows["properties_length"] = self.lengths
        places += messages.bodies
        blocks(target, len(between))[places] = rows.view(void_type(len(between)))

        places += len(between)
        copy_spans(source, messages.body_ends + PROPERTIES_LENGTH.size, messages.properties, target, places)
        return physical


@cache
def _head_type(size: int) -> np.dtype[np.void]:
    """Return the fields of a record's head that depend on the message; ``size``: with hosts of either kind."""
    names = ("size", "body_crc", "flag", "queue_offset", "physical_offset")
    return np.dtype(
        {
            "names": [*names, "body_length"],
            "formats": [*(_RECORD_HEAD[name] for name in names), INT.format],
            "offsets": [*(AT[name] for name in names), size - INT.size],
            "itemsize": size,
        }
    )


@cache
def _between_type(topic_field: int) -> np.dtype[np.void]:
    """Return the fields between the body and the properties of a record."""
    return np.dtype([("topic", f"V{topic_field}"), ("properties_length", PROPERTIES_LENGTH.format)])


def refusal(raw: Buffer, batch_properties: bytes) -> PutError:
    """Return the error for the first invalid message of a batch that has one, found one by one.

    A NUL is one: torn pages read as zeros, and recovery detects them because properties have no zero byte.
    """
    try:
        messages = decode_batch_body(raw)
    except ProtocolError as error:
        return _malformed(error.message)
    for _, _, properties in messages:
        if b"\0" in properties:
            return PutError(PutStatus.MESSAGE_ILLEGAL, "a message's properties contain a NUL character")
        is_separated = batch_properties and properties and not properties.endswith(SEPARATOR)
        length = len(properties) + len(batch_properties) + bool(is_separated)
        if length > MAX_PROPERTIES_BYTES:
            reason = f"a message's properties have {length} bytes, more than {MAX_PROPERTIES_BYTES}"
            return PutError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
    return _malformed("It is empty.")


def _malformed(reason: str) -> PutError:
    """Error for bytes that are not messages."""
    return PutError(PutStatus.MESSAGE_ILLEGAL, f"the batch body is malformed: {reason}")


def shared_tags_code(batch_properties: bytes) -> int | None:
    """Return the tags code of all messages of a batch; None if its properties have no tags."""
    return None if find_property(batch_properties, b"TAGS") is None else tags_code(batch_properties)


def plan_many(raw: Buffer, record_overhead: int, batch_properties: bytes) -> ColumnBatchPlan:
    """Check a batch body, as ``plan_batch``."""
    source = np.frombuffer(raw, np.uint8)
    messages = _messages(raw, source)
    if messages is None:
        raise refusal(raw, batch_properties)
    places = messages.body_ends + PROPERTIES_LENGTH.size
    properties = PropertySpans(source, places, messages.properties)
    lengths = messages.properties + len(batch_properties)
    if batch_properties:
        lengths += (messages.properties > 0) & (source[places + messages.properties - 1] != SEPARATOR[0])
    if properties.has_nul or np.maximum.reduce(lengths) > MAX_PROPERTIES_BYTES:
        raise refusal(raw, batch_properties)
    shared = shared_tags_code(batch_properties)
    codes = tags_codes(properties) if shared is None else np.full(len(lengths), shared, np.int64)
    sizes = messages.bodies + lengths + record_overhead
    return ColumnBatchPlan(raw, sizes, codes, lengths, messages, properties, batch_properties)


def _messages(raw: Buffer, source: ByteArray) -> _Messages | None:
    """Find the messages; return None if one is invalid, or if there are none."""
    starts, end = walk_sizes(raw, BATCH_OVERHEAD)
    if not len(starts) or end != len(source):
        return None
    heads = blocks(source, BATCH_HEADER.size)[starts].view(_INTS).reshape(len(starts), -1).astype(np.int64)
    sizes, _, _, flags, bodies = heads.T
    properties = sizes - bodies - BATCH_OVERHEAD
    if np.minimum.reduce(bodies) < 0 or np.minimum.reduce(properties) < 0:
        return None
    body_starts = starts + BATCH_HEADER.size
    body_ends = body_starts + bodies
    if (gather(source, body_ends, PROPERTIES_LENGTH.format) != properties).any():
        return None
    return _Messages(flags, body_starts, bodies, body_ends, properties)
