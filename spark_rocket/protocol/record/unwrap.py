"""Rewrites compressed records and inner batches into plain records, so that columnar decoding sees only those.

===========  ===================================================================================================
sysFlag      action
===========  ===================================================================================================
0x1          the body is decompressed (``compression.py``)
0x80 + 0x40  the body is a batch body (``record.py``); each of its messages becomes a separate record, with
             consecutive queue offsets from the outer record's INNER_BASE on, and its hosts and times
===========  ===================================================================================================

Records without these bits are copied unchanged. Sizes are limited: few received bytes must not fill the memory.

Corresponds to MessageDecoder.decode and decodeMessage.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.protocol.record.batch_body import decode_batch_body, inner_base
from spark_rocket.protocol.record.compression import MAX_BATCH_LENGTH, MAX_BODY_LENGTH, MAX_RUN_BYTES, decompress_body
from spark_rocket.protocol.record.layout import (
    AT,
    COMPRESSED,
    COMPRESSION_MASK,
    CRC_MASK,
    INT,
    LONG,
    PROPERTIES_LENGTH,
    UNWRAP_MASK,
)
from spark_rocket.protocol.record.parts import record_name
from spark_rocket.protocol.record.run import RecordRun

_NOT_INNER = ~(UNWRAP_MASK | COMPRESSED | COMPRESSION_MASK)
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


def wrapped_records(run: RecordRun, *, bodies: bool) -> _Flags | None:
    """Return which records are not plain, None if all are. Without ``bodies`` compressed bodies count as plain."""
    same = run.same_number("sys_flag")
    flags = run.number("sys_flag") if same is None else np.array([same])
    wrapped: _Flags = (flags & UNWRAP_MASK) == UNWRAP_MASK
    if bodies:
        wrapped |= (flags & COMPRESSED) != 0
    if not wrapped.any():
        return None
    return np.broadcast_to(wrapped, len(run))


def unwrap_records(
    run: RecordRun,
    wrapped: _Flags,
    first_offset: int | None,
    end_offset: int | None,
    faults: dict[int, str] | None = None,
) -> bytearray:
    """The same records in a new buffer, with those that are ``wrapped`` made plain.

    Of inner batches only those that may have messages within the offsets are looked into. Records whose bodies cannot
    be decompressed stay unchanged if ``faults`` is given: it receives the reason, by the record's place in the result.
    """
    view = run.raw.data.cast("B")
    out = bytearray()
    numbers = (run.number("sys_flag"), run.number("queue_offset"), run.starts, run.sizes)
    columns = (wrapped, *numbers, run.body_start, run.body_end, run.properties_start)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for undo, flag, queue_offset, start, size, body_start, body_end, properties_start in rows:
        end = start + size
        if not undo:
            out += view[start:end]
            continue
        inner = flag & UNWRAP_MASK == UNWRAP_MASK
        properties = bytes(view[properties_start:end])
        offset = inner_base(properties, queue_offset) if inner else queue_offset
        if inner and end_offset is not None and offset >= end_offset:
            continue
        before = len(out)
        head = view[start:body_start]
        body: bytes | memoryview = view[body_start:body_end]
        try:
            if flag & COMPRESSED:
                body = decompress_body(body, flag, MAX_BATCH_LENGTH if inner else MAX_BODY_LENGTH)
            parts = decode_batch_body(body) if inner else None
        except ProtocolError as error:
            if faults is not None and not inner:
                faults[len(out)] = error.message
                out += view[start:end]
                continue
            name = record_name(queue_offset, start)
            raise ProtocolError(f"The {name}: {error.message}", remedy=error.remedy) from None
        if parts is None:
            _append(out, head, body, view[body_end:end])
        elif first_offset is None or offset + len(parts) > first_offset:
            _append_parts(out, head, offset, parts, view[body_end : properties_start - 2])
        if len(out) > MAX_RUN_BYTES:
            raise _too_large(offset, start, before)
    return out


def _too_large(queue_offset: int, at: int, before: int) -> ProtocolError:
    name = record_name(queue_offset, at)
    if not before:
        return ProtocolError(f"The {name}, exceeds {MAX_RUN_BYTES:,} decompressed bytes.", remedy="Skip it.")
    return RunTooLargeError(
        f"Too many decompressed bytes: {before:,} before the {name}, more than {MAX_RUN_BYTES:,} with it.",
        queue_offset=queue_offset,
        remedy="Pull fewer messages at a time.",
    )


def _append(out: bytearray, head: memoryview, body: bytes | memoryview, tail: memoryview | bytes) -> int:
    """Build a record: ``head`` ends with the body's length, ``tail`` is topic and properties with theirs."""
    at = len(out)
    out += head
    out += body
    out += tail
    INT.pack_into(out, at, len(out) - at)
    INT.pack_into(out, at + len(head) - 4, len(body))
    return at


def _append_parts(
    out: bytearray,
    head: memoryview,
    queue_offset: int,
    parts: list[tuple[int, memoryview, bytes]],
    topic: memoryview,
) -> None:
    (sys_flag,) = INT.unpack_from(head, AT["sys_flag"])
    for offset, (flag, body, properties) in enumerate(parts, queue_offset):
        at = _append(out, head, body, b"".join((topic, PROPERTIES_LENGTH.pack(len(properties)), properties)))
        INT.pack_into(out, at + AT["body_crc"], crc32(body) & CRC_MASK)
        INT.pack_into(out, at + AT["flag"], flag)
        LONG.pack_into(out, at + AT["queue_offset"], (offset + 2**63) % 2**64 - 2**63)
        INT.pack_into(out, at + AT["sys_flag"], sys_flag & _NOT_INNER)
        if len(out) > MAX_RUN_BYTES:
            return
