"""Cutting a byte stream into frames.

====== ==== =======================================================================
offset size content
====== ==== =======================================================================
0      4    length of the rest (big endian): 4 + header + body
4      1    serialize type of the header: 0 JSON, 1 ROCKETMQ
5      3    header length
8      …    header, then body
====== ==== =======================================================================

``FrameSplitter`` receives bytes of a connection and returns complete frames, without the length field. ``bytes`` with
complete frames are not copied. A frame in several reads is collected in a growing buffer; a large frame gets a buffer
of its full size when an eighth of it has arrived, and the rest can be received directly into it. So memory is bounded
by the bytes received, and time is linear for reads of any size.

Thread-safety: one splitter per connection, one thread at a time. Returned frames stay valid permanently.
Corresponds to remoting.netty.NettyDecoder (Netty's LengthFieldBasedFrameDecoder).
"""

from __future__ import annotations

import struct

from spark_rocket.errors import ProtocolError

MAX_FRAME_LENGTH = 16_777_216  # the whole frame with its length field, as in every Apache release
LENGTH_SIZE = 4
LARGE_FRAME_BYTES = 128 * 1024  # smallest frame that gets a buffer of its own,
ALLOCATION_FRACTION = 8  # when this fraction of it has arrived
MIN_LENGTH = 4  # the word with the header's type and length

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
        self._pending = bytearray()  # the start of an incomplete frame
        self._needed = LENGTH_SIZE  # bytes that must be pending before the next frame is complete
        self._frame: memoryview | None = None  # the buffer of a large frame; only its length field is pending then
        self._filled = 0  # bytes in it

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame. If not 0 at the end of a connection, the last frame is truncated."""
        return len(self._pending) + self._filled

    def begun(self, most: int) -> tuple[memoryview, int]:
        """Return at most ``most`` bytes of the frame in progress, without its length field, and the number missing."""
        if self._frame is not None:
            return self._frame[: min(most, self._filled)], len(self._frame) - self._filled
        start = memoryview(bytes(self._pending[LENGTH_SIZE : LENGTH_SIZE + most]))
        return start, self._needed - len(self._pending) if len(self._pending) >= LENGTH_SIZE else 0

    def abandon(self) -> None:
        """Drop the frame in progress; the caller must discard the missing bytes of it."""
        self._pending = bytearray()
        self._needed = LENGTH_SIZE
        self._frame = None
        self._filled = 0

    def place(self) -> memoryview | None:
        """Return the buffer for the rest of a large frame in progress, else None. See :meth:`filled`."""
        return None if self._frame is None else self._frame[self._filled :]

    def filled(self, count: int) -> memoryview | None:
        """Report that ``count`` bytes were received into ``place()``; return the frame if it is complete."""
        self._filled += count
        frame = self._frame
        if frame is None or self._filled < len(frame):
            return None
        self.abandon()
        return frame

    def _give_place(self, begun: memoryview) -> None:
        """Allocate the buffer of a large frame, whose start has arrived."""
        self._frame = _allocate(self._needed - LENGTH_SIZE)
        self._filled = len(begun) - LENGTH_SIZE
        self._frame[: self._filled] = begun[LENGTH_SIZE:]
        self._pending = bytearray(begun[:LENGTH_SIZE])

    def feed(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """Add bytes; return the frames that they complete, each from its header word on.

        Raises ``ProtocolError`` for an invalid length. No later byte can be trusted: close the connection.
        """
        buffer: bytes | bytearray
        if not self._pending and isinstance(data, bytes) and len(data) >= LENGTH_SIZE + MIN_LENGTH:
            (length,) = _LENGTH.unpack_from(data)
            if length + LENGTH_SIZE == len(data) and length <= self._max_length:  # one complete frame: the usual case
                return [memoryview(data)[LENGTH_SIZE:]]
        if self._pending:
            if self._frame is not None:
                return self._fill(self._frame, data)
            self._pending += data
            if len(self._pending) < self._needed:
                if self._needed >= LARGE_FRAME_BYTES and len(self._pending) * ALLOCATION_FRACTION >= self._needed:
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
        if needed >= LARGE_FRAME_BYTES and (size - start) * ALLOCATION_FRACTION >= needed:
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
