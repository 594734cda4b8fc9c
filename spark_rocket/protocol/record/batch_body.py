"""Batch bodies row by row: the content of a batch send (request 320) and of an inner-batch record.

``layout.py`` has the byte table; ``encoder.py`` encodes columns. Pure functions.
Corresponds to common.message.MessageDecoder.{encodeMessages, decodeMessages}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from spark_rocket.errors import ProtocolError
from spark_rocket.model import Message
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import BATCH_HEADER, BATCH_OVERHEAD, PROPERTIES_LENGTH
from spark_rocket.protocol.record.properties import encode_properties, find_property


def encode_batch_message(flag: int, body: Buffer, properties: bytes) -> bytes:
    """One message of a batch body; ``properties`` is its property string."""
    size, length = len(body), len(properties)
    try:
        head = BATCH_HEADER.pack(BATCH_OVERHEAD + size + length, 0, 0, flag, size)
        return b"".join((head, body, PROPERTIES_LENGTH.pack(length), properties))
    except struct.error as error:
        raise ProtocolError(
            f"A message of {size:,} body bytes and {length:,} property bytes does not fit into a batch: {error}.",
            remedy="Limits: 32,767 bytes of properties, a 32-bit flag.",
        ) from None


def encode_batch_body(messages: Iterable[Message | tuple[int, Buffer, bytes]]) -> bytes:
    """Encode the body of a batch send, from messages or from (flag, body, property string)."""
    return b"".join(
        [
            encode_batch_message(message.flag, message.body, encode_properties(message.properties))
            if isinstance(message, Message)
            else encode_batch_message(*message)
            for message in messages
        ]
    )


def decode_batch_body(buffer: Buffer) -> list[tuple[int, memoryview, bytes]]:
    """Yield (flag, body, property string) of each message; bodies are views into the buffer."""
    view = memoryview(buffer)
    end = len(view)
    position = 0
    messages: list[tuple[int, memoryview, bytes]] = []
    try:
        while position < end:
            size, _, _, flag, body_length = BATCH_HEADER.unpack_from(view, position)
            body_at = position + BATCH_HEADER.size
            properties_at = body_at + body_length + PROPERTIES_LENGTH.size
            if body_length < 0 or properties_at > end:
                raise _bad_batch(position)
            (properties_length,) = PROPERTIES_LENGTH.unpack_from(view, properties_at - PROPERTIES_LENGTH.size)
            if properties_length < 0 or properties_at + properties_length != position + size or position + size > end:
                raise _bad_batch(position)
            position += size
            messages.append((flag, view[body_at : body_at + body_length], bytes(view[properties_at:position])))
    except struct.error:
        raise _bad_batch(position) from None
    return messages


def _bad_batch(position: int) -> ProtocolError:
    """Return the error for a batch body without a complete message at a position."""
    return ProtocolError(
        f"A batch has no complete message at byte {position}.",
        remedy="The batch is damaged or truncated: send it again.",
    )


def inner_base(properties: bytes, queue_offset: int) -> int:
    """Return the queue offset of the first message of an inner-batch record; the others are consecutive."""
    base = find_property(properties, b"INNER_BASE") or b""
    return int(base) if base.isdigit() and len(base) < 20 else queue_offset
