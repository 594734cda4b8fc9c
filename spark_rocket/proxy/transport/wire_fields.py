"""Counts the fields of a serialized protobuf message without building it.

An empty submessage has two bytes on the wire and about a hundred in memory, so a request's size does not bound what
parsing it costs. A message has at most half as many fields as bytes: only larger requests are counted at all.

Pure and stateless.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)


def has_more_fields(raw: bytes, message_class: Any, limit: int) -> bool:
    """Whether ``raw`` has more than ``limit`` fields, those of submessages included.

    Malformed input counts as far as it can be read; parsing refuses it.
    """
    return len(raw) > 2 * limit and _count(raw, 0, len(raw), message_class.DESCRIPTOR, limit) > limit


def _count(raw: bytes, at: int, end: int, descriptor: Any, limit: int) -> int:
    """Fields from ``at`` to ``end``; stops above ``limit``."""
    submessages = _submessages(descriptor)
    count = 0
    while at < end and count <= limit:
        count += 1
        tag, at = _varint(raw, at, end)
        kind = tag & 7
        if kind == _LENGTH:
            size, at = _varint(raw, at, end)
            after = min(at + size, end)
            inner = submessages.get(tag >> 3)
            if inner is not None:
                count += _count(raw, at, after, inner, limit - count)
            at = after
        elif kind == _VARINT:
            _, at = _varint(raw, at, end)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind not in (_START_GROUP, _END_GROUP):
            break
    return count


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


@cache
def _submessages(descriptor: Any) -> dict[int, Any]:
    """Descriptors of the fields that are messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
