"""Rewrites compressed records and inner batches into plain records, so that columnar decoding sees only those.

===========  ===================================================================================================
sysFlag      what is done
===========  ===================================================================================================
0x1          the body is decompressed (``compression.py``)
0x80 + 0x40  the body is a batch body (``record.py``); each of its messages becomes a record of its own, with
             consecutive queue offsets from the outer record's INNER_BASE on, and its hosts and times
===========  ===================================================================================================

Records without these bits are copied as they are. Sizes are bounded: few received bytes must not fill the memory.

Thread-safety: pure functions. Corresponds to MessageDecoder.decode and decodeMessage.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.compression import decompress_body
from spark_rocket.protocol.properties import find_property
from spark_rocket.protocol.record import (
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    decode_batch_body,
)

MAX_RUN = 1024 * 1024 * 1024

_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_UNWRAP = INNER_BATCH | NEED_UNWRAP
_NOT_INNER = ~(_UNWRAP | COMPRESSED | COMPRESSION_MASK)
_I64 = np.ndarray[Any, np.dtype[np.int64]]


def needs_unwrap(sys_flags: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which records are not plain, from their system flags."""
    wrapped: np.ndarray[Any, Any] = ((sys_flags & COMPRESSED) != 0) | ((sys_flags & _UNWRAP) == _UNWRAP)
    return wrapped


def unwrap_records(
    buffer: memoryview,
    sys_flags: np.ndarray[Any, Any],
    starts: _I64,
    sizes: _I64,
    body_starts: _I64,
    body_ends: _I64,
    properties_starts: _I64,
) -> bytearray:
    """The same records, all plain, in a new buffer. The positions are those of whole, checked records."""
    view = memoryview(buffer).cast("B")
    out = bytearray()
    copied = 0  # everything before this byte is in ``out``
    columns = [part.tolist() for part in (sys_flags, starts, sizes, body_starts, body_ends, properties_starts)]
    for row in np.flatnonzero(needs_unwrap(sys_flags)).tolist():
        flag, start, size, body_start, body_end, properties_start = (column[row] for column in columns)
        out += view[copied:start]
        copied = start + size
        body: bytes | memoryview = view[body_start:body_end]
        try:
            if flag & COMPRESSED:
                body = decompress_body(body, flag)
            parts = decode_batch_body(body) if flag & _UNWRAP == _UNWRAP else None
        except ProtocolError as error:
            raise ProtocolError(f"Record {row}, at byte {start}: {error.message}", remedy=error.remedy) from None
        head = view[start:body_start]
        if parts is None:
            _append(out, head, body, view[body_end:copied])
        else:
            properties = bytes(view[properties_start:copied])
            _append_parts(out, head, parts, view[body_end : properties_start - 2], properties)
        if len(out) > MAX_RUN:
            break
    out += view[copied:]
    if len(out) > MAX_RUN:
        raise ProtocolError(
            f"Records of {len(view):,} bytes decompress to more than {MAX_RUN:,}.", remedy="Pull fewer at a time."
        )
    return out


def _append(out: bytearray, head: memoryview, body: bytes | memoryview, tail: memoryview | bytes) -> int:
    """``head`` ends with the body's length, ``tail`` is topic and properties with theirs."""
    at = len(out)
    out += head
    out += body
    out += tail
    _INT.pack_into(out, at, len(out) - at)
    _INT.pack_into(out, at + len(head) - 4, len(body))
    return at


def _append_parts(
    out: bytearray,
    head: memoryview,
    parts: list[tuple[int, memoryview, bytes]],
    topic: memoryview,
    outer_properties: bytes,
) -> None:
    (queue_offset,) = _LONG.unpack_from(head, 20)
    (sys_flag,) = _INT.unpack_from(head, 36)
    base = find_property(outer_properties, b"INNER_BASE") or b""
    if base.isdigit() and len(base) < 20:
        queue_offset = int(base)
    for offset, (flag, body, properties) in enumerate(parts, queue_offset):
        at = _append(out, head, body, b"".join((topic, _SHORT.pack(len(properties)), properties)))
        _INT.pack_into(out, at + 16, flag)
        _LONG.pack_into(out, at + 20, (offset + 2**63) % 2**64 - 2**63)
        _INT.pack_into(out, at + 36, sys_flag & _NOT_INNER)
        if len(out) > MAX_RUN:
            return
