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
Bytes that arrive as ``bytes`` and hold whole frames are not copied. A frame spread over many reads is gathered in one
buffer that grows; a large one gets a place of its full size as soon as an eighth of it has come, which is not moved any
more and can be received into. So memory follows the bytes that have come, and the work stays linear however small the
pieces are.

Thread-safety: one splitter per connection, one thread at a time. Frames handed out stay valid for ever.
Corresponds to remoting.netty.NettyDecoder (Netty's LengthFieldBasedFrameDecoder).
"""

from __future__ import annotations

import struct

from spark_rocket.errors import ProtocolError

MAX_FRAME_LENGTH = 16_777_216  # the whole frame with its length field, as in every Apache release
LENGTH_SIZE = 4
LARGE = 128 * 1024  # bytes from which on a frame gets a place of its own,
PART = 8  # and the part of it that must have come before
MIN_LENGTH = 4  # the word that says the header's type and length is always there

_LENGTH = struct.Struct(">I")


def _allocate(length: int) -> memoryview:
    try:
        from numpy import empty  # does not zero the memory; imported here because clients may not have it
    except ModuleNotFoundError:
        return memoryview(bytearray(length))
    return empty(length, "B").data


class FrameSplitter:
    """Incremental splitter of one connection's incoming bytes."""

    __slots__ = ("_filled", "_frame", "_max_length", "_needed", "_pending")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max_length = max_frame_length - LENGTH_SIZE
        self._pending = bytearray()  # the start of a frame that is not whole yet
        self._needed = LENGTH_SIZE  # no frame can be cut before so many bytes are pending
        self._frame: memoryview | None = None  # a large frame's place; its length field alone is pending then
        self._filled = 0  # bytes of it

    @property
    def pending(self) -> int:
        """Bytes held back because their frame is not whole: not 0 at the end of a connection means a torn frame."""
        return len(self._pending) + self._filled

    def begun(self, most: int) -> tuple[memoryview, int]:
        """At most so many bytes of the frame in progress, without its length field, and how many of it are missing."""
        if self._frame is not None:
            return self._frame[: min(most, self._filled)], len(self._frame) - self._filled
        start = memoryview(bytes(self._pending[LENGTH_SIZE : LENGTH_SIZE + most]))
        return start, self._needed - len(self._pending) if len(self._pending) >= LENGTH_SIZE else 0

    def abandon(self) -> None:
        """Forget the frame in progress; whoever calls this throws away what is missing of it."""
        self._pending = bytearray()
        self._needed = LENGTH_SIZE
        self._frame = None
        self._filled = 0

    def place(self) -> memoryview | None:
        """Where the rest of a large frame belongs, if one is in progress. See :meth:`filled`."""
        return None if self._frame is None else self._frame[self._filled :]

    def filled(self, count: int) -> memoryview | None:
        """So many bytes were received into ``place()``; the frame if that is all of it."""
        self._filled += count
        frame = self._frame
        if frame is None or self._filled < len(frame):
            return None
        self.abandon()
        return frame

    def detach(self, at_least: int) -> tuple[memoryview, int] | None:
        """Give up the frame in progress if at least so many bytes of it are missing, else None.

        Returns the frame without its length field, as long as it will be, and how much of it is filled: whoever owns
        the socket receives the rest straight into it, which saves a large body from being copied. The splitter then
        expects the next frame.
        """
        have = self.pending
        if have < LENGTH_SIZE or self._needed - have < at_least:
            return None
        if self._frame is None:
            self._give_place(memoryview(self._pending))
        frame = self._frame
        assert frame is not None
        self.abandon()
        return frame, have - LENGTH_SIZE

    def _give_place(self, begun: memoryview) -> None:
        """A place for a frame of which the beginning has come."""
        self._frame = _allocate(self._needed - LENGTH_SIZE)
        self._filled = len(begun) - LENGTH_SIZE
        self._frame[: self._filled] = begun[LENGTH_SIZE:]
        self._pending = bytearray(begun[:LENGTH_SIZE])

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
            if self._frame is not None:
                return self._fill(self._frame, data)
            self._pending += data
            if len(self._pending) < self._needed:
                if self._needed >= LARGE and len(self._pending) * PART >= self._needed:
                    self._give_place(memoryview(self._pending))
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
        if needed >= LARGE and (size - start) * PART >= needed:
            self._give_place(view[start:])
        elif start or buffer is not self._pending:
            self._pending = bytearray(view[start:])
        return frames

    def _fill(self, frame: memoryview, data: bytes | bytearray | memoryview) -> list[memoryview]:
        room = len(frame) - self._filled
        if len(data) < room:
            frame[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
            return []
        frame[self._filled :] = memoryview(data)[:room]
        self.abandon()
        return [frame, *self.feed(data[room:])]


def _bad_length(length: int, max_length: int) -> ProtocolError:
    shown = length.to_bytes(4, "big")
    return ProtocolError(
        f"Invalid frame length {length:,} ({shown!r}): {MIN_LENGTH} to {max_length:,} are allowed.",
        remedy="The peer does not speak RocketMQ's remoting protocol here (HTTP or TLS on this port?) or its frames "
        "are above the limit: check the address, or send less in one request.",
    )
