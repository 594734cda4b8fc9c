"""A server's end of an HTTP/2 connection (RFC 9113), without the connection: bytes in, events and bytes out.

:meth:`Session.receive` takes what was read, cut anywhere, and gives events in their order; what is to be written is
gathered, and :meth:`Session.take` has it. It never raises: when the peer breaks the protocol the last event is CLOSED,
GOAWAY is among what is to be written, and everything received later is ignored.

========  =======================  ================================================================================
event     payload                  meaning
========  =======================  ================================================================================
REQUEST   bool                     a stream begins with ``stream.headers``; true if that is all of it
OVERSIZE  bool                     likewise, but its headers are above the limit and are gone
DATA      bytes                    some of its body: :meth:`Session.grant` when it is out of the way
LAST      bytes, maybe none        its end
RESET     error code               the stream is over, by the peer or by a mistake of the peer's
DRAINED   None                     of what was to be written to it nothing waits any more
CLOSED    Http2Error               the connection is over; all streams are
========  =======================  ================================================================================

What a peer can do to us is bounded:

=============================  ===================================================================================
peer                           we
=============================  ===================================================================================
sends data                     as much as the windows allow: ``STREAM_WINDOW``, opened again by ``grant``, and
                               ``CONNECTION_WINDOW``, opened again at once
does not open its windows      what is written waits in ``stream.pending``: the writer waits for DRAINED, and in all
                               not much more than ``MAX_UNSENT`` waits
opens streams                  ``MAX_STREAMS`` at a time, others are refused
sends long headers             above the limits of request_headers.py the request is OVERSIZE; above
                               ``MAX_BLOCK`` bytes or ``MAX_CONTINUATIONS`` frames the connection is closed
resets, pings, sets, wastes    ``PATIENCE``: every such frame takes some of it, time and answered requests give it
                               back, and when it is used up the connection is closed (ENHANCE_YOUR_CALM)
=============================  ===================================================================================

Thread-safety: none; a session belongs to the event loop.
Corresponds to io.netty.handler.codec.http2.Http2ConnectionHandler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from spark_rocket.proxy import frames, request_headers
from spark_rocket.proxy.frames import ErrorCode, Http2Error, Setting
from spark_rocket.proxy.hpack import DEFAULT_TABLE_SIZE, Decoder, HpackError
from spark_rocket.proxy.http2_output import PATIENCE, STREAM_WINDOW, Output, Stream
from spark_rocket.proxy.request_headers import MAX_HEADER_LIST, MalformedError, OversizeError

REQUEST, OVERSIZE, DATA, LAST, RESET, DRAINED, CLOSED = range(7)

CONNECTION_WINDOW = 16 * 1024 * 1024
FRAME_SIZE = 64 * 1024
MAX_STREAMS = 2048
MAX_BLOCK = 128 * 1024
MAX_CONTINUATIONS = 16

PATIENCE_PER_SECOND = 1_000
_COST_OF_CONTROL = 10  # PING, SETTINGS
_COST_OF_RESET = 10
_COST_OF_WASTE = 1  # frames that carry nothing: WINDOW_UPDATE, PRIORITY, empty DATA, unknown ones
_DRAIN_PING = b"draining"

_HEAD = frames.HEAD.unpack_from
_OUR_SETTINGS = frames.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_FRAME_SIZE: FRAME_SIZE,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
_SETTINGS_ACK = frames.frame(frames.SETTINGS, frames.ACK, 0)
_HTTP_1 = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This port speaks gRPC, which is HTTP/2.\n"
)

Event = tuple[int, Stream, Any]


_CONNECTION = Stream(0, 0)


class Session(Output):
    """One connection. ``clock`` counts seconds."""

    __slots__ = (
        "_block", "_block_flags", "_block_frames", "_block_stream", "_buffer", "_clock", "_credit", "_decoder",
        "_events", "_initial_window", "_last_id", "_limit_id", "_needed", "_patience_at", "_settled",
        "_table_size", "closed", "greeted", "leaving",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.closed = False
        self.leaving = False  # one side has said that no more streams are served or opened
        self._events: list[Event] = []
        self._decoder = Decoder()
        # What came of a frame so far, and how much there must be before it is worth a look.
        self._buffer = bytearray()
        self._needed = len(frames.PREFACE)
        self.greeted = False  # the preface has come
        self._settled = False  # the peer's first SETTINGS have
        self._last_id = 0
        self._limit_id = frames.MAX_STREAM_ID  # streams above are not served
        self._block = bytearray()
        self._block_stream = 0  # a block of headers goes on in the next frame
        self._block_flags = 0
        self._block_frames = 0
        self._credit = CONNECTION_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._table_size = DEFAULT_TABLE_SIZE
        self._clock = clock
        self._patience_at = clock()

    # --- in ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What these bytes complete."""
        if self.closed:
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        events: list[Event] = []
        self._events = events
        try:
            at = self._frames(data) if self.greeted else self._greeting(data)
        except Http2Error as error:
            self._close(error)
        except HpackError as error:
            self._close(Http2Error(ErrorCode.COMPRESSION_ERROR, error.message))
        else:
            if at < len(data):
                self._buffer += memoryview(data)[at:]
        return events

    def _greeting(self, data: bytes) -> int:
        preface = frames.PREFACE
        if not data.startswith(preface[: len(data)]):
            if re.match(rb"[A-Z]{3,7} [/*]", data):
                self._out.append(_HTTP_1)
                self.closed = True
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "What came first is not the preface of HTTP/2.")
        if len(data) < len(preface):
            return 0
        self.greeted = True
        self._out.append(_OUR_SETTINGS)
        return self._frames(data, len(preface))

    def _frames(self, data: bytes, at: int = 0) -> int:
        """Take all whole frames; where the rest begins."""
        end = len(data)
        streams = self.streams
        events = self._events
        while end - at >= 9:
            high, low, kind, flags, number = _HEAD(data, at)
            length = high << 16 | low
            if length > FRAME_SIZE:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A frame has {length} bytes.")
            stop = at + 9 + length
            if stop > end:
                self._needed = stop - at
                return at
            if number > frames.MAX_STREAM_ID:
                number &= frames.MAX_STREAM_ID
            if self._block_stream and (kind != frames.CONTINUATION or number != self._block_stream):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A block of headers is interrupted.")
            if kind == frames.DATA and self._settled:
                stream = streams.get(number)
                self._credit -= length
                if self._credit < CONNECTION_WINDOW // 2:
                    self._open_connection()
                if stream is None or stream.ended:
                    self._unwanted(number)
                    at = stop
                    continue
                stream._credit -= length
                if flags & frames.PADDED:
                    payload = self._unpad(data[at + 9 : stop])
                    self.grant(stream, length - len(payload))
                else:
                    payload = data[at + 9 : stop]
                if stream._credit < 0:
                    self._break(stream, ErrorCode.FLOW_CONTROL_ERROR)
                elif stream._expected >= 0 and not self._as_announced(stream, len(payload), flags):
                    self._break(stream, ErrorCode.PROTOCOL_ERROR)
                elif flags & frames.END_STREAM:
                    stream.ended = True
                    events.append((LAST, stream, payload))
                elif payload:
                    events.append((DATA, stream, payload))
                else:
                    self._spend(_COST_OF_WASTE)
            elif kind == frames.HEADERS and self._settled:
                payload = data[at + 9 : stop]
                if flags & (frames.PADDED | frames.WITH_PRIORITY):
                    payload = self._without_extras(payload, flags, number)
                if flags & frames.END_HEADERS:
                    self._headers(number, flags, payload)
                else:
                    if not number:
                        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream.")
                    self._block += payload
                    self._block_stream = number
                    self._block_flags = flags
                    self._block_frames = 0
            else:
                self._control(kind, flags, number, data[at + 9 : stop])
            at = stop
        self._needed = 9
        return at

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Every frame but DATA and HEADERS."""
        if kind == frames.SETTINGS:
            self._settings(flags, number, payload)
            return
        if not self._settled:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "What came behind the preface are not SETTINGS.")
        if kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.PING:
            if len(payload) != 8:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A PING of {len(payload)} bytes.")
            if number:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A PING on a stream.")
            self._spend(_COST_OF_CONTROL)
            if not flags & frames.ACK:
                self._out.append(frames.ping(payload, frames.ACK))
            elif payload == _DRAIN_PING and self._limit_id == frames.MAX_STREAM_ID:
                self.refuse_more()
        elif kind == frames.RST_STREAM:
            if len(payload) != 4:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A RST_STREAM of {len(payload)} bytes.")
            self._not_idle(number, "RST_STREAM")
            self._spend(_COST_OF_RESET)
            stream = self.streams.get(number)
            if stream is not None:
                self._forget(stream)
                self._events.append((RESET, stream, int.from_bytes(payload, "big")))
        elif kind == frames.PRIORITY:
            if not number:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream.")
            if len(payload) != 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A PRIORITY of {len(payload)} bytes.")
            self._check_dependency(payload, number)
            self._spend(_COST_OF_WASTE)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.GOAWAY:
            if number:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A GOAWAY on a stream.")
            if len(payload) < 8:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A GOAWAY of {len(payload)} bytes.")
            self._spend(_COST_OF_CONTROL)
            self.leaving = True
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A client pushes nothing.")
        else:  # an extension that we do not know
            self._spend(_COST_OF_WASTE)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream.")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes.")
        if flags & frames.ACK:
            if not self._settled:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS are acknowledged before they came.")
            self._spend(_COST_OF_CONTROL)
            return
        self._settled = True
        self._spend(_COST_OF_CONTROL + len(payload) // 6)
        self._out.append(_SETTINGS_ACK)  # before what a wider window lets out: the peer widens it when it sees this
        for key, value in frames.settings_of(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"A window of {value} bytes.")
                change = value - self._initial_window
                self._initial_window = value
                self._spend(len(self.streams) // 10)
                for stream in list(self.streams.values()):
                    self._widen(stream, change)
            elif key == Setting.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value <= frames.MAX_FRAME_SIZE:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"Frames of {value} bytes.")
                self._frame_size = value
            elif key == Setting.HEADER_TABLE_SIZE:
                self._table_update |= value < self._table_size
                self._table_size = value
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}.")

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"A WINDOW_UPDATE of {len(payload)} bytes.")
        self._spend(_COST_OF_WASTE)
        increment = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if not number:
            self.window += increment
            if not increment:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "The connection's window is opened by nothing.")
            if self.window > frames.MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "The connection's window is opened too far.")
            self._go_on_all()
            return
        stream = self.streams.get(number)
        if stream is None:
            self._not_idle(number, "WINDOW_UPDATE")
        elif not increment:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._widen(stream, increment)

    def _widen(self, stream: Stream, by: int) -> None:
        stream.window += by
        if stream.window > frames.MAX_WINDOW:
            self._break(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.pending is not None and stream.window > 0:
            self._go_on(stream)

    def _go_on_all(self) -> None:
        while self._blocked and self.window > 0 and not self.corked:
            self._go_on(self._blocked.pop(next(iter(self._blocked))))

    def _go_on(self, stream: Stream) -> None:
        if self._pump(stream):
            self._events.append((DRAINED, stream, None))

    # --- headers ----------------------------------------------------------------------------------------------

    def _unpad(self, payload: bytes) -> bytes:
        if not payload or payload[0] >= len(payload):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A frame is padded beyond its end.")
        return payload[1 : len(payload) - payload[0]]

    def _without_extras(self, payload: bytes, flags: int, number: int) -> bytes:
        if flags & frames.PADDED:
            payload = self._unpad(payload)
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority.")
            self._check_dependency(payload, number)
            payload = payload[5:]
        return payload

    def _check_dependency(self, payload: bytes, number: int) -> None:
        if int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID == number:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"Stream {number} depends on itself.")

    def _continuation(self, flags: int, payload: bytes) -> None:
        if not self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "A CONTINUATION of nothing.")
        self._block += payload
        self._block_frames += 1
        if flags & frames.END_HEADERS:
            number, self._block_stream = self._block_stream, 0
            encoded = bytes(self._block)
            self._block.clear()
            self._headers(number, self._block_flags, encoded)
        elif len(self._block) > MAX_BLOCK or self._block_frames >= MAX_CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "A block of headers has no end.")

    def _headers(self, number: int, flags: int, encoded: bytes) -> None:
        """A whole block: a request, or the trailers of one."""
        if len(encoded) > MAX_BLOCK:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"A block of headers has {len(encoded)} bytes.")
        fields = self._decoder.decode(encoded)
        if not number & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"A client's stream has the number {number}.")
        if number <= self._last_id:
            self._trailers(number, flags)
            return
        self._last_id = number
        if number > self._limit_id:
            self._spend(_COST_OF_RESET)
            self._remember_reset(number)
            return
        if len(self.streams) >= MAX_STREAMS:
            self._refuse(number, ErrorCode.REFUSED_STREAM)
            return
        stream = Stream(number, self._initial_window)
        stream.ended = bool(flags & frames.END_STREAM)
        kind = REQUEST
        try:
            stream.headers = headers = request_headers.read(fields)
            if b"content-length" in headers and not _announce(stream, headers[b"content-length"]):
                raise MalformedError("There is not as much data as content-length says.")
        except MalformedError:
            self._refuse(number, ErrorCode.PROTOCOL_ERROR)
            return
        except OversizeError:
            kind = OVERSIZE
        self.streams[number] = stream
        self._events.append((kind, stream, stream.ended))

    def _trailers(self, number: int, flags: int) -> None:
        stream = self.streams.get(number)
        if stream is None:
            if number not in self._reset_ids:
                raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {number}, which is closed.")
            self._spend(_COST_OF_WASTE)
        elif stream.ended:
            self._break(stream, ErrorCode.STREAM_CLOSED)
        elif not flags & frames.END_STREAM or stream._expected > 0:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.ended = True
            self._events.append((LAST, stream, b""))

    # --- bounds -----------------------------------------------------------------------------------------------

    def _spend(self, cost: float) -> None:
        self._patience -= cost
        if self._patience < 0:
            now = self._clock()
            self._patience = min(self._patience + (now - self._patience_at) * PATIENCE_PER_SECOND, PATIENCE)
            self._patience_at = now
            if self._patience < 0:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "Too many frames that ask for nothing.")

    def _not_idle(self, number: int, what: str) -> None:
        if not number or number > self._last_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {number}, which was never opened.")

    def _unwanted(self, number: int) -> None:
        """DATA on a stream that is closed, or closed on the peer's side."""
        self._not_idle(number, "DATA")
        self._spend(_COST_OF_WASTE)
        stream = self.streams.get(number)
        if stream is not None:
            self._break(stream, ErrorCode.STREAM_CLOSED)
        elif number not in self._reset_ids:
            self._refuse(number, ErrorCode.STREAM_CLOSED)

    def _as_announced(self, stream: Stream, size: int, flags: int) -> bool:
        if size > stream._expected:
            return False
        stream._expected -= size
        return not (flags & frames.END_STREAM and stream._expected)

    def _open_connection(self) -> None:
        if self._credit < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "More data than the connection's window allows.")
        self._out.append(frames.window_update(0, CONNECTION_WINDOW - self._credit))
        self._credit = CONNECTION_WINDOW

    def _close(self, error: Http2Error) -> None:
        if not self.closed:
            self._out.append(frames.goaway(min(self._last_id, self._limit_id), error.reason, error.message))
        self.closed = True
        self._buffer.clear()
        self._events.append((CLOSED, _CONNECTION, error))

    def _refuse(self, number: int, reason: ErrorCode) -> None:
        self._spend(_COST_OF_RESET)
        self._remember_reset(number)
        self._out.append(frames.rst_stream(number, reason))

    def _break(self, stream: Stream, reason: ErrorCode) -> None:
        """The stream is over by a mistake of the peer's."""
        self._refuse(stream.id, reason)
        self._forget(stream)
        self._events.append((RESET, stream, reason))

    # --- the owner's ------------------------------------------------------------------------------------------

    def uncork(self) -> list[Event]:
        """What was written has been read: go on with what waits."""
        events: list[Event] = []
        self._events = events
        self.corked = False
        self._go_on_all()
        return events

    def ping(self, payload: bytes) -> None:
        """Ask whether the peer is still there."""
        self._out.append(frames.ping(payload))

    def drain(self) -> None:
        """Ask the peer to open no more streams; those that are on their way are served."""
        if self.greeted and not self.closed:
            self._out += frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "closing"), frames.ping(_DRAIN_PING)

    def refuse_more(self) -> None:
        """Serve no streams but those that are open."""
        if self.greeted and not self.closed and self._limit_id == frames.MAX_STREAM_ID:
            self.leaving = True
            self._limit_id = self._last_id
            self._out.append(frames.goaway(self._last_id, ErrorCode.NO_ERROR, "closing"))


def _announce(stream: Stream, length: bytes) -> bool:
    if not length.isdigit() or len(length) > 18:
        return False
    stream._expected = int(length)
    return not (stream.ended and stream._expected)
