"""Cutting a byte stream into frames.

====== ==== =======================================================================
offset size content
====== ==== =======================================================================
0      4    length of what follows (big endian): 4 + header + body
4      1    serialize type of the header: 0 JSON, 1 ROCKETMQ
5      3    header length
8      …    header, then body
====== ==== =======================================================================

``FrameSplitter`` takes bytes as they come off a connection and gives whole frames, without the length field.
Bytes that arrive as ``bytes`` and hold whole frames are not copied; a frame spread over many reads is gathered in one
buffer that grows in place, so the work stays linear however small the pieces are.

Thread-safety: one splitter per connection, one thread at a time. Frames handed out stay valid for ever.
Corresponds to remoting.netty.NettyDecoder (Netty's LengthFieldBasedFrameDecoder).
"""

from __future__ import annotations

import struct

from spark_rocket.errors import ProtocolError

MAX_FRAME_LENGTH = 16_777_216  # the whole frame with its length field, as in every Apache release
LENGTH_SIZE = 4
MIN_LENGTH = 4  # the word that says the header's type and length is always there

_LENGTH = struct.Struct(">I")


class FrameSplitter:
    """Incremental splitter of one connection's incoming bytes."""

    __slots__ = ("_max_length", "_needed", "_pending")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max_length = max_frame_length - LENGTH_SIZE
        self._pending = bytearray()  # the start of a frame that is not whole yet
        self._needed = LENGTH_SIZE  # no frame can be cut before so many bytes are pending

    @property
    def pending(self) -> int:
        """Bytes held back because their frame is not whole: not 0 at the end of a connection means a torn frame."""
        return len(self._pending)

    def begun(self, most: int) -> tuple[memoryview, int]:
        """At most so many bytes of the frame in progress, without its length field, and how many of it are missing."""
        start = memoryview(bytes(self._pending[LENGTH_SIZE : LENGTH_SIZE + most]))
        return start, self._needed - len(self._pending) if len(self._pending) >= LENGTH_SIZE else 0

    def abandon(self) -> None:
        """Forget the frame in progress; whoever calls this throws away what is missing of it."""
        self._pending = bytearray()
        self._needed = LENGTH_SIZE

    def detach(self, at_least: int) -> tuple[memoryview, int] | None:
        """Give up the frame in progress if at least so many bytes of it are missing, else None.

        Returns the frame without its length field, as long as it will be, and how much of it is filled: whoever owns
        the socket receives the rest straight into it, which saves a large body from being copied. The splitter then
        expects the next frame.
        """
        have = len(self._pending)
        if have < LENGTH_SIZE or self._needed - have < at_least:
            return None
        from numpy import empty  # not before it is needed: a client of small frames does without

        frame = empty(self._needed - LENGTH_SIZE, "B").data  # a bytearray would be zeroed first
        frame[: have - LENGTH_SIZE] = self._pending[LENGTH_SIZE:]
        self._pending = bytearray()
        self._needed = LENGTH_SIZE
        return frame, have - LENGTH_SIZE

    def feed(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """Take more bytes; return the frames that they complete, each from its header word on.

        Raises ``ProtocolError`` when a length cannot be right. Nothing after that can be trusted: close the connection.
        """
        buffer: bytes | bytearray
        if not self._pending and isinstance(data, bytes) and len(data) >= LENGTH_SIZE + MIN_LENGTH:
            (length,) = _LENGTH.unpack_from(data)
            if length + LENGTH_SIZE == len(data) and length <= self._max_length:  # one whole frame: the usual case
                return [memoryview(data)[LENGTH_SIZE:]]
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return []
            buffer = self._pending
        else:
            # Callers may reuse a mutable buffer as soon as this returns, and the frames are views: copy those once.
            buffer = data if isinstance(data, bytes) else bytes(data)
        view = memoryview(buffer)
        size = len(buffer)
        frames: list[memoryview] = []
        start = 0
        needed = LENGTH_SIZE
        while size - start >= LENGTH_SIZE:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if not MIN_LENGTH <= length <= self._max_length:
                raise _bad_length(length, self._max_length)
            end = start + LENGTH_SIZE + length
            if end > size:
                needed = LENGTH_SIZE + length
                break
            frames.append(view[start + LENGTH_SIZE : end])
            start = end
        self._needed = needed
        if start or buffer is not self._pending:
            self._pending = bytearray(view[start:])
        return frames


def _bad_length(length: int, max_length: int) -> ProtocolError:
    shown = length.to_bytes(4, "big")
    return ProtocolError(
        f"A frame announces {length:,} bytes ({shown!r}); {MIN_LENGTH} to {max_length:,} are possible.",
        remedy="The peer does not speak RocketMQ's remoting protocol here (HTTP or TLS on this port?) or its frames "
        "are above the limit: check the address, or send less in one request.",
    )
