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
from struct import error as StructError
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import BATCH_HEADER, CRC_MASK, HEADER_TO_PLACE, INT, PROPERTIES_LENGTH
from spark_rocket.protocol.record.spans import Ints
from spark_rocket.store.batch_columns import SEPARATOR, plan_many, refusal, shared_tags_code
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES, tags_code

_FEW = 80  # messages, if all are as large as the first one
_LARGE_BYTES = 1 << 20  # of a batch that is not copied first
_HEAD = Struct(">i8xii")  # size, flag and body length of a message


class BatchPlan(Protocol):
    """A checked batch, before its queue and physical offsets are known."""

    raw: Buffer
    sizes: Ints
    """Sizes of the records."""
    codes: Ints
    """Tags codes."""
    lengths: Ints
    """Lengths of the properties of the records, with the properties of the batch and the separator before them."""

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
class RowBatchPlan:
    """A checked batch, message by message; a ``BatchPlan``."""

    raw: Buffer
    sizes: Ints
    codes: Ints
    lengths: Ints
    messages: list[tuple[int, bytes | memoryview, bytes, bytes]]
    """Each message's flag, body, properties, and what is appended to these."""

    def may_have(self, *names: bytes) -> bool:
        text = b"\x02".join([properties for _, _, properties, _ in self.messages])
        return any(name in text for name in names)

    def write(self, out: memoryview, head: bytes, topic_field: bytes, queue_offset: int, physical_offset: int) -> Ints:
        _, magic, _, queue_id, _, _, _ = HEADER_TO_PLACE.unpack_from(head)
        rest = head[HEADER_TO_PLACE.size : -INT.size]
        pack, pack_length = Struct(f"{HEADER_TO_PLACE.format}{len(rest)}si").pack, PROPERTIES_LENGTH.pack
        pieces: list[bytes | memoryview] = []
        number, offset = queue_offset, physical_offset
        for (flag, body, properties, suffix), size in zip(self.messages, self.sizes.tolist(), strict=True):
            crc = crc32(body) & CRC_MASK
            record_head = pack(size, magic, crc, queue_id, flag, number, offset, rest, len(body))
            length = pack_length(len(properties) + len(suffix))
            pieces += (record_head, body, topic_field, length, properties, suffix)
            number += 1
            offset += size
        out[INT.size :] = memoryview(b"".join(pieces))[INT.size :]
        physical: Ints = self.sizes.cumsum() - self.sizes + physical_offset
        return physical


def plan_few(raw: Buffer, record_overhead: int, batch_properties: bytes) -> RowBatchPlan:
    """Check a batch body message by message, as ``plan_batch``."""
    data: Any = bytes(raw) if len(raw) < _LARGE_BYTES else memoryview(raw)
    at, end, heads, between = 0, len(data), BATCH_HEADER.size, PROPERTIES_LENGTH.size
    head_at, length_at = _HEAD.unpack_from, PROPERTIES_LENGTH.unpack_from
    shared_code = shared_tags_code(batch_properties)
    separated = SEPARATOR + batch_properties if batch_properties else b""
    messages: list[tuple[int, bytes | memoryview, bytes, bytes]] = []
    sizes: list[int] = []
    codes: list[int] = []
    lengths: list[int] = []
    try:
        while at < end:
            size, flag, body_length = head_at(data, at)
            body_end, stop = at + heads + body_length, at + size
            (length,) = length_at(data, body_end)
            properties = bytes(data[body_end + between : stop])
            is_good = body_length >= 0 <= length and body_end + between + length == stop <= end
            suffix = separated if length > 0 and properties[-1:] != SEPARATOR else batch_properties
            length += len(suffix)
            if not is_good or length > MAX_PROPERTIES_BYTES or b"\0" in properties:
                raise refusal(raw, batch_properties)
            messages.append((flag, data[at + heads : body_end], properties, suffix))
            sizes.append(record_overhead + body_length + length)
            lengths.append(length)
            codes.append(tags_code(properties) if shared_code is None else shared_code)
            at = stop
    except StructError:
        raise refusal(raw, batch_properties) from None
    if not messages:
        raise refusal(raw, batch_properties)
    sizes_of, codes_of, lengths_of = (np.array(column, np.int64) for column in (sizes, codes, lengths))
    return RowBatchPlan(raw, sizes_of, codes_of, lengths_of, messages)
