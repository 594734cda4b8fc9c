"""Convert a batch body (request 320) into a run of commit-log records.

The store writes each message of a batch body (bytes: ``protocol.record.layout``) as one ordinary record, as if it had
been sent alone: with its own body CRC, queue offset and physical offset. The batch's properties (such as CLUSTER) are
appended to the message's own, after a separator if it is missing.

``plan_batch`` checks everything. The plan then writes the run straight into the mapped log. Many messages are handled
by columns (batch_columns.py), few one by one: array operations take as long for one message as for dozens
(``make bench``: store.batch10).

Pure but for ``BatchPlan.write``. Corresponds to MessageExtEncoder.encode(MessageExtBatch) and
DefaultAppendMessageCallback.doAppend for batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Protocol
from zlib import crc32

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.buffers import Buffer
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.layout import CRC_MASK, HEADER_TO_PLACE, INT, PROPERTIES_LENGTH
from spark_rocket.protocol.record.spans import Ints
from spark_rocket.store.batch_columns import has_nul, malformed, plan_many, suffix_of, too_long
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code

_FEW = 64  # messages, if all are as large as the first one


class BatchPlan(Protocol):
    """A checked batch, before its queue and physical offsets are known."""

    raw: Buffer
    sizes: Ints
    """Sizes of the records."""
    codes: Ints
    """Tags codes."""

    def may_have(self, *names: bytes) -> bool:
        """Return whether a message may have a property whose name begins with one of ``names``."""

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        """Write the run to ``out``, except its first four bytes; return the physical offset of each record.

        These are the first record's size, which the log writes last.
        ``head``: a record's head without sizes, CRC, flag and offsets.
        """


def plan_batch(raw: Buffer, record_overhead: int, batch_properties: bytes) -> BatchPlan:
    """Check a batch body. ``record_overhead``: a record's size without body and properties. PutError if invalid."""
    first = INT.unpack_from(raw)[0] if len(raw) >= INT.size else 0
    plan = plan_few if len(raw) <= _FEW * first else plan_many
    return plan(raw, record_overhead, batch_properties)


@dataclass(slots=True)
class FewMessages:
    """A checked batch; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    messages: list[tuple[int, memoryview, bytes]]
    """Each message's flag, body, and properties including the batch's."""

    def may_have(self, *names: bytes) -> bool:
        return any(name in properties for name in names for _, _, properties in self.messages)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        physical = physical_offset + np.cumsum(self.sizes) - self.sizes
        _, magic, _, queue_id, _, _, _ = HEADER_TO_PLACE.unpack_from(head)
        rest = head[HEADER_TO_PLACE.size : -INT.size]
        pack = Struct(f"{HEADER_TO_PLACE.format}{len(rest)}si").pack
        pieces: list[bytes | memoryview] = []
        columns = zip(self.messages, self.sizes.tolist(), physical.tolist(), strict=True)
        for number, ((flag, body, properties), size, offset) in enumerate(columns, queue_offset):
            crc = crc32(body) & CRC_MASK
            record_head = pack(size, magic, crc, queue_id, flag, number, offset, rest, len(body))
            pieces += (record_head, body, topic_field, PROPERTIES_LENGTH.pack(len(properties)), properties)
        out[INT.size :] = memoryview(b"".join(pieces))[INT.size :]
        return physical


def plan_few(raw: Buffer, record_overhead: int, batch_properties: bytes) -> FewMessages:
    """Check a batch body message by message, as ``plan_batch``."""
    try:
        found = decode_batch_body(raw)
    except ProtocolError as error:
        raise malformed(error.message) from None
    if not found:
        raise malformed("It is empty.")
    messages: list[tuple[int, memoryview, bytes]] = []
    for flag, body, properties in found:
        if b"\0" in properties:
            raise has_nul()
        properties += suffix_of(properties, batch_properties)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise too_long(len(properties))
        messages.append((flag, body, properties))
    sizes = np.array([record_overhead + len(body) + len(properties) for _, body, properties in messages], np.int64)
    codes = np.array([tags_code(properties) for _, _, properties in messages], np.int64)
    return FewMessages(raw, sizes, codes, messages)
