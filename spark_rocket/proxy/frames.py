"""Frames of HTTP/2 (RFC 9113, sections 4, 6 and 7): their numbers, and those that are written here as bytes.

=======  =============================================
bytes    frame
=======  =============================================
3        length of the payload
1        type
1        flags
4        stream (31 bits, the first is reserved)
n        payload
=======  =============================================

=============  ====  ===========================================================================================
type           no.   payload
=============  ====  ===========================================================================================
DATA           0     [padding's length 1] data [padding]; END_STREAM 1, PADDED 8
HEADERS        1     [padding's length 1] [priority 5] block [padding]; END_STREAM 1, END_HEADERS 4, PADDED 8,
                     PRIORITY 0x20
PRIORITY       2     stream 4, weight 1; of no meaning any more
RST_STREAM     3     error code 4
SETTINGS       4     (identifier 2, value 4)*, or ACK 1 and nothing
PUSH_PROMISE   5     only servers send it; ours does not
PING           6     8 bytes, which ACK 1 repeats
GOAWAY         7     last stream 4, error code 4, text
WINDOW_UPDATE  8     increment 4
CONTINUATION   9     more of a block; END_HEADERS 4
=============  ====  ===========================================================================================

Values only.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.proxy import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
WITH_PRIORITY = 0x20

MAX_STREAM_ID = MAX_WINDOW = 0x7FFFFFFF
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
MAX_FRAME_SIZE = (1 << 24) - 1

#: The high 8 and low 16 bits of the length, type, flags, stream with its reserved bit.
HEAD = Struct(">BHBBI")
_REST = Struct(">BBI")
_SETTING = Struct(">HI")


class ErrorCode(IntEnum):
    """Of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Identifiers of SETTINGS."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2Error(ProtocolError):
    """The connection is over: what the peer sent is not HTTP/2, or too much of it. ``reason`` goes into GOAWAY."""

    code = "HTTP2_ERROR"

    def __init__(self, reason: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Block(NamedTuple):
    """Header fields to be sent, as a HEADERS frame around its stream's number."""

    head: bytes  # up to the stream's number
    last: bytes  # the same with END_STREAM
    fields: bytes


def block(*fields: hpack.Field, prefix: bytes = b"") -> Block:
    """These fields, without a dynamic table: the same for all connections and streams."""
    return block_of(prefix + hpack.literal(*fields))


def block_of(encoded: bytes) -> Block:
    """A block of header fields, of at most DEFAULT_FRAME_SIZE bytes, which every peer takes."""
    length = len(encoded).to_bytes(3, "big")
    return Block(
        length + bytes((HEADERS, END_HEADERS)),
        length + bytes((HEADERS, END_HEADERS | END_STREAM)),
        encoded,
    )


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame."""
    return len(payload).to_bytes(3, "big") + _REST.pack(kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return b"\x00\x00\x04\x08\x00" + stream.to_bytes(4, "big") + increment.to_bytes(4, "big")


def rst_stream(stream: int, reason: int) -> bytes:
    return b"\x00\x00\x04\x03\x00" + stream.to_bytes(4, "big") + reason.to_bytes(4, "big")


def ping(payload: bytes, flags: int = 0) -> bytes:
    return frame(PING, flags, 0, payload)


def goaway(last_stream: int, reason: int, text: str = "") -> bytes:
    payload = last_stream.to_bytes(4, "big") + reason.to_bytes(4, "big") + text.encode(errors="replace")
    return frame(GOAWAY, 0, 0, payload)


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Identifiers and values; the payload's length is a multiple of 6."""
    return [(key, value) for key, value in _SETTING.iter_unpack(payload)]
