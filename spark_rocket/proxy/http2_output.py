"""What a server sends on an HTTP/2 connection: answers within the peer's windows, and what waits for them.

A stream's answer is a block of headers, data, and a block of trailers. Data that the windows do not take waits in
``stream.pending``, the trailers behind it; nothing else ever waits. Streams whose own window is open, but not the
connection's, go on in the order in which they were stopped. While the connection is ``corked``, because what was
written is not being read, all data waits.

Above ``MAX_UNSENT`` bytes that wait on one connection, the next answer that would have to wait is given up: its stream
is reset (ENHANCE_YOUR_CALM).

Thread-safety: none; see http2.py, whose ``Session`` this is half of.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from spark_rocket.proxy import frames
from spark_rocket.proxy.frames import Block, ErrorCode
from spark_rocket.proxy.hpack import EMPTY_TABLE

STREAM_WINDOW = 1024 * 1024
MAX_UNSENT = 64 * 1024 * 1024
PATIENCE = 10_000.0
_GAIN_OF_ANSWER = 20
_REMEMBERED_RESETS = 256


class Stream:
    """One request and its answer. ``owner`` is for whoever handles it."""

    __slots__ = (
        "_credit", "_expected", "_owed", "_tail", "ended", "headers", "id", "open", "owner", "pending", "stalls",
        "window",
    )  # fmt: skip

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.headers: dict[bytes, bytes] = {}  # of a name that came more than once, its last value
        self.owner: Any = None
        self.open = True  # neither answered nor reset
        self.ended = False  # the peer has sent all
        self.window = window  # what we may send
        self.pending: deque[bytes | memoryview] | None = None  # what we should send, but may not yet
        self.stalls = 0  # how often somebody looked since some of it went out
        self._tail: Block | None = None  # the trailers behind it
        self._credit = STREAM_WINDOW  # what the peer may send
        self._owed = 0  # granted, but not told yet
        self._expected = -1  # bytes still to come, if content-length has said

    def __repr__(self) -> str:
        return f"Stream({self.id})"


class Output:
    """The half of a session that writes."""

    __slots__ = (
        "_blocked", "_frame_size", "_out", "_patience", "_reset_ids", "_table_update", "corked", "gathered", "streams",
        "unsent", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.window = frames.DEFAULT_WINDOW  # what we may send on all streams together
        self.corked = False
        self.unsent = 0  # bytes that wait, of all streams
        self.gathered = 0  # bytes of data that :meth:`take` would give
        self._out: list[bytes] = []
        self._frame_size = frames.DEFAULT_FRAME_SIZE  # the peer's
        self._table_update = False  # the peer has lowered its table's size, and the next block is to say so
        self._blocked: dict[int, Stream] = {}  # have pending data and a window, but the connection has none
        self._reset_ids: dict[int, None] = {}  # reset by us lately: the peer may not know yet
        self._patience = PATIENCE  # see http2.py; answering gives it back

    def take(self) -> list[bytes]:
        """What is to be written now."""
        out = self._out
        self._out = []
        self.gathered = 0
        return out

    @property
    def has_output(self) -> bool:
        """Whether :meth:`take` would give anything."""
        return bool(self._out)

    def grant(self, stream: Stream, size: int) -> None:
        """So many bytes of a stream's body are out of the way: the peer may send as many more."""
        stream._owed += size
        if stream._owed >= STREAM_WINDOW // 2 and stream.open and not stream.ended:
            self._out.append(frames.window_update(stream.id, stream._owed))
            stream._credit += stream._owed
            stream._owed = 0

    def respond(self, stream: Stream, head: Block, data: bytes, tail: Block) -> None:
        """A whole answer: headers, one piece of data, trailers."""
        size = len(data)
        if (
            size > stream.window or size > self.window or size > self._frame_size
            or self._table_update or self.corked or not stream.open
        ):  # fmt: skip
            self.send_headers(stream, head)
            self.send_data(stream, data)
            self.send_trailers(stream, tail)
            return
        number = stream.id.to_bytes(4, "big")
        self.window -= size
        self._out.append(
            b"".join(
                (
                    head.head, number, head.fields,
                    size.to_bytes(3, "big"), b"\x00\x00", number, data,
                    tail.last, number, tail.fields,
                )
            )
        )  # fmt: skip
        self._finish(stream)

    def send_headers(self, stream: Stream, head: Block) -> None:
        """The first frame of an answer."""
        if stream.open:
            head = self._updating(head)
            self._out += head.head, stream.id.to_bytes(4, "big"), head.fields

    def send_data(self, stream: Stream, *data: bytes) -> None:
        """Some of an answer's body, none of it empty. What cannot go out yet waits in ``stream.pending``."""
        if not stream.open:
            return
        size = sum(map(len, data))
        self.unsent += size
        if stream.pending is None:
            stream.pending = deque(data)
            self._pump(stream)
        else:
            stream.pending += data
        if self.unsent > MAX_UNSENT + size and stream.pending is not None:
            self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

    def send_trailers(self, stream: Stream, tail: Block) -> None:
        """The end of an answer, behind all that waits."""
        if not stream.open:
            return
        if stream.pending is not None:
            stream._tail = tail
            return
        tail = self._updating(tail)
        self._out += tail.last, stream.id.to_bytes(4, "big"), tail.fields
        self._finish(stream)

    def reset(self, stream: Stream, reason: ErrorCode) -> None:
        """End a stream at once."""
        if stream.open:
            self._remember_reset(stream.id)
            self._out.append(frames.rst_stream(stream.id, reason))
            self._forget(stream)

    # --- inside -----------------------------------------------------------------------------------------------

    def _updating(self, block: Block) -> Block:
        if not self._table_update:
            return block
        self._table_update = False
        return frames.block_of(EMPTY_TABLE + block.fields)

    def _finish(self, stream: Stream) -> None:
        """The answer is complete: the stream is closed, if need be against a peer that is still sending."""
        if stream.ended:
            stream.open = False
            self.streams.pop(stream.id, None)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)
        self._patience = min(self._patience + _GAIN_OF_ANSWER, PATIENCE)

    def _pump(self, stream: Stream) -> bool:
        """Send what waits as far as the windows allow; whether that was all, but for the end of the stream."""
        pending = stream.pending
        assert pending is not None
        out = self._out
        number = b"\x00\x00" + stream.id.to_bytes(4, "big")
        while pending:
            data = pending[0]
            step = min(len(data), stream.window, self.window, self._frame_size)
            if step <= 0 or self.corked:
                if stream.window > 0:
                    self._blocked[stream.id] = stream
                return False
            stream.window -= step
            self.window -= step
            self.unsent -= step
            self.gathered += step
            stream.stalls = 0
            self._patience = min(self._patience + 1, PATIENCE)
            if step == len(data):
                out += step.to_bytes(3, "big") + number, bytes(data)
                pending.popleft()
            else:
                data = memoryview(data)
                out += step.to_bytes(3, "big") + number, bytes(data[:step])
                pending[0] = data[step:]
        stream.pending = None
        if stream._tail is None:
            return True
        self.send_trailers(stream, stream._tail)
        return False

    def _remember_reset(self, number: int) -> None:
        self._reset_ids[number] = None
        if len(self._reset_ids) > _REMEMBERED_RESETS:
            del self._reset_ids[next(iter(self._reset_ids))]

    def _forget(self, stream: Stream) -> None:
        stream.open = False
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        if stream.pending is not None:
            self.unsent -= sum(map(len, stream.pending))
            stream.pending = None
        stream._tail = None
