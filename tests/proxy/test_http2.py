"""HTTP/2 sessions: with PyPI's h2 as the client, with frames by hand, and with anything at all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.proxy import frames, http2
from spark_rocket.proxy.frames import ErrorCode, Setting, block, frame
from spark_rocket.proxy.http2 import CLOSED, DATA, DRAINED, LAST, OVERSIZE, REQUEST, RESET, Session
from spark_rocket.proxy.http2_output import MAX_UNSENT, STREAM_WINDOW

HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
HEAD = block((b":status", b"200"), (b"content-type", b"application/grpc"))
TAIL = block((b"grpc-status", b"0"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """A session, and h2's client."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.session = Session(self.clock)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.client.initiate_connection()
        self.seen: list[h2.events.Event] = []
        self.turn()

    def turn(self) -> list[http2.Event]:
        """Everything that both want to say; what the session made of it."""
        events: list[http2.Event] = []
        while True:
            data = self.client.data_to_send()
            if data:
                events += self.session.receive(data)
            out = b"".join(self.session.take())
            if out:
                self.seen += self.client.receive_data(out)
            if not data and not out:
                return events

    def request(self, *bodies: bytes, headers: Iterable[tuple[bytes, bytes]] = HEADERS) -> list[http2.Event]:
        """A whole request."""
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, list(headers), end_stream=not bodies)
        for index, body in enumerate(bodies):
            self.client.send_data(number, body, end_stream=index == len(bodies) - 1)
        return self.turn()

    def got(self, kind: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]


def kinds(events: list[http2.Event]) -> list[int]:
    return [kind for kind, _, _ in events]


def test_a_request_and_its_answer() -> None:
    pair = Pair()
    (first, stream, whole), (second, _, payload) = pair.request(b"hello")
    assert (first, second, payload, whole) == (REQUEST, LAST, b"hello", False)
    assert stream.headers == dict(HEADERS)
    pair.session.respond(stream, HEAD, b"answer", TAIL)
    pair.turn()
    assert [event.data for event in pair.got(h2.events.DataReceived)] == [b"answer"]
    assert pair.got(h2.events.TrailersReceived)[0].headers == [(b"grpc-status", b"0")]
    assert pair.got(h2.events.StreamEnded)
    assert not pair.session.streams
    ((kind, _, whole),) = pair.request()
    assert (kind, whole) == (REQUEST, True)


def test_an_answer_that_comes_before_the_request_has_ended() -> None:
    pair = Pair()
    pair.client.send_headers(1, HEADERS)
    ((_, stream, _),) = pair.turn()
    pair.session.send_trailers(stream, block((b":status", b"200"), (b"grpc-status", b"12")))
    pair.turn()
    assert pair.got(h2.events.StreamReset)[0].error_code == ErrorCode.NO_ERROR
    # What was under way is ignored, and nothing written to the stream goes out.
    data = frame(frames.DATA, 0, 1, b"late") + frame(frames.HEADERS, 5, 1, hpack.Encoder().encode([(b"a", b"b")]))
    assert pair.session.receive(data) == []
    pair.session.send_headers(stream, HEAD)
    pair.session.send_data(stream, b"x")
    pair.session.respond(stream, HEAD, b"x", TAIL)
    pair.session.reset(stream, ErrorCode.CANCEL)
    assert not pair.session.has_output


def test_an_answer_waits_for_the_streams_window() -> None:
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    pair.turn()
    (_, stream, _), _ = pair.request(b"x")
    pair.session.respond(stream, HEAD, bytes(range(64)) * 2, TAIL)
    pair.turn()
    assert stream.pending is not None
    assert pair.session.unsent == 118
    pair.client.increment_flow_control_window(8, 1)
    assert pair.turn() == []
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    pair.turn()
    assert b"".join(event.data for event in pair.got(h2.events.DataReceived)) == bytes(range(64)) * 2
    assert pair.got(h2.events.StreamEnded)
    assert (pair.session.unsent, pair.session.streams) == (0, {})


def test_answers_wait_for_the_connections_window() -> None:
    pair = Pair()
    streams = [pair.request(b"x")[0][1] for _ in range(3)]
    for stream in streams:
        pair.session.send_headers(stream, HEAD)
        pair.session.send_data(stream, bytes(40_000))
    pair.turn()
    assert [stream.pending is not None for stream in streams] == [False, True, True]
    pair.client.increment_flow_control_window(60_000)
    assert kinds(pair.turn()) == [DRAINED, DRAINED]
    pair.client.acknowledge_received_data(40_000, streams[0].id)
    pair.session.send_trailers(streams[0], TAIL)
    pair.turn()
    assert len(pair.got(h2.events.StreamEnded)) == 1
    pair.session.send_data(streams[1], bytes(30_000))
    pair.client.reset_stream(streams[1].id)
    assert kinds(pair.turn()) == [RESET]
    assert pair.session.unsent == 0


def test_a_corked_session_holds_data() -> None:
    pair = Pair()
    (_, stream, _), _ = pair.request(b"x")
    pair.session.corked = True
    pair.session.respond(stream, HEAD, b"answer", TAIL)
    pair.turn()
    assert pair.got(h2.events.DataReceived) == []
    assert pair.session.uncork() == []
    pair.turn()
    assert pair.got(h2.events.DataReceived)[0].data == b"answer"


def test_what_waits_is_bounded() -> None:
    pair = Pair()
    first, second, third = (pair.request(b"x")[0][1] for _ in range(3))
    for stream in (first, second, third):
        pair.session.send_headers(stream, HEAD)
    pair.session.send_data(first, bytes(65_535))
    pair.session.send_data(second, bytes(2 * MAX_UNSENT))  # one answer may be of any size
    assert second.open
    pair.session.send_data(second, b"more")
    pair.session.send_data(third, b"more")
    pair.turn()
    assert [stream.open for stream in (first, second, third)] == [True, False, True]
    assert pair.session.unsent == 4
    assert pair.got(h2.events.StreamReset)[0].error_code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_body_larger_than_the_window_needs_to_be_taken() -> None:
    pair = Pair()
    pair.client.send_headers(1, HEADERS)
    ((_, stream, _),) = pair.turn()
    sent = 0
    while (window := pair.client.local_flow_control_window(1)) > 0:
        size = min(window, pair.client.max_outbound_frame_size)
        pair.client.send_data(1, bytes(size))
        sent += size
        events = pair.turn()
        assert kinds(events) == [DATA]
    assert sent == STREAM_WINDOW
    pair.session.grant(stream, sent)
    pair.turn()
    assert pair.client.local_flow_control_window(1) == STREAM_WINDOW
    # The connection's is open whatever the streams do.
    assert pair.client.outbound_flow_control_window > http2.CONNECTION_WINDOW // 2


def test_the_connections_window_opens_by_itself() -> None:
    pair = Pair()
    total = 0
    while total < 2 * http2.CONNECTION_WINDOW:
        pair.request(*[bytes(60_000)] * 10)
        total += 600_000
    assert pair.session.receive(b"") == []


def test_padding_and_priority() -> None:
    pair = Pair()
    pair.client.send_headers(1, HEADERS, priority_weight=16, priority_depends_on=0, priority_exclusive=False)
    pair.client.send_data(1, b"abc", pad_length=100)
    pair.client.send_data(1, b"", end_stream=True, pad_length=3)
    pair.client.prioritize(1, weight=20, depends_on=7)
    events = pair.turn()
    assert [(kind, payload) for kind, _, payload in events] == [(REQUEST, False), (DATA, b"abc"), (LAST, b"")]


def test_long_headers() -> None:
    pair = Pair()
    long = [*HEADERS, *((b"x-%d" % n, b"v" * 900) for n in range(30))]
    (kind, stream, _), *_ = pair.request(b"x", headers=long)  # in CONTINUATION frames
    assert kind == REQUEST
    assert stream.headers == dict(long)
    for oversize in ([*HEADERS, *((b"x-%d" % n, b"v" * 900) for n in range(40))], [*HEADERS, *[(b"a", b"b")] * 200]):
        (kind, stream, _), *_ = pair.request(b"x", headers=oversize)
        assert (kind, stream.headers) == (OVERSIZE, {})
    assert pair.request(b"x")[0][0] == REQUEST  # the tables of both sides still agree


def test_a_client_without_a_table() -> None:
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    pair.turn()
    for _ in range(2):
        (_, stream, _), _ = pair.request(b"x")
        pair.session.respond(stream, HEAD, b"answer", TAIL)
        pair.turn()
    assert len(pair.got(h2.events.StreamEnded)) == 2


def test_pings_are_answered_and_pushes_are_not_made() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.turn()
    assert pair.got(h2.events.PingAckReceived)[0].ping_data == b"12345678"
    pair.session.ping(b"abcdefgh")
    assert pair.turn() == []


def test_draining() -> None:
    pair = Pair()
    (_, stream, _), _ = pair.request(b"x")
    pair.session.drain()
    late = pair.client.get_next_available_stream_id()
    pair.client.send_headers(late, HEADERS, end_stream=True)  # under way when the first GOAWAY comes
    assert kinds(pair.session.receive(pair.client.data_to_send())) == [REQUEST]
    assert not pair.session.leaving
    out = b"".join(pair.session.take())
    assert out.startswith(frames.goaway(frames.MAX_STREAM_ID, 0, "closing"))
    ack = frames.ping(out[-8:], frames.ACK)
    assert pair.session.receive(ack) == []
    assert pair.session.leaving
    assert pair.session.take() == [frames.goaway(late, 0, "closing")]
    headers = frame(frames.HEADERS, 5, late + 2, hpack.Encoder().encode(HEADERS))
    assert pair.session.receive(headers + frame(frames.DATA, 1, late + 2, b"x")) == []
    assert not pair.session.closed
    pair.session.respond(stream, HEAD, b"", TAIL)
    assert pair.session.has_output
    assert len(pair.session.streams) == 1


# --- frames by hand -------------------------------------------------------------------------------------------

START = frames.PREFACE + frames.settings({})
REQUEST_1 = frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.Encoder().encode(HEADERS))
WHOLE_1 = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, hpack.Encoder().encode(HEADERS))


def _headers(number: int, *fields: tuple[bytes, bytes], flags: int = 5) -> bytes:
    return frame(frames.HEADERS, flags, number, hpack.Encoder().encode(fields))


SELF = b"\0\0\0\x01\0"

FATAL = {
    "no preface": (b"\x16\x03\x01\x00\x00\x00", ErrorCode.PROTOCOL_ERROR),
    "no settings": (frames.PREFACE + WHOLE_1, ErrorCode.PROTOCOL_ERROR),
    "data first": (frames.PREFACE + frame(frames.DATA, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings are acknowledged first": (frames.PREFACE + frame(frames.SETTINGS, 1, 0), ErrorCode.PROTOCOL_ERROR),
    "settings on a stream": (START + frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings of 5 bytes": (START + frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "settings acknowledged with more": (START + frame(frames.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "push is 2": (START + frames.settings({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
    "window too large": (START + frames.settings({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "frames too small": (START + frames.settings({Setting.MAX_FRAME_SIZE: 16383}), ErrorCode.PROTOCOL_ERROR),
    "frames too large": (START + frames.settings({Setting.MAX_FRAME_SIZE: 2**24}), ErrorCode.PROTOCOL_ERROR),
    "ping of 7 bytes": (START + frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "ping on a stream": (START + frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "goaway on a stream": (START + frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "short goaway": (START + frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "push promise": (START + frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "short reset": (START + WHOLE_1 + frame(frames.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "reset of an idle stream": (START + frames.rst_stream(1, 8), ErrorCode.PROTOCOL_ERROR),
    "reset of the connection": (START + frames.rst_stream(0, 8), ErrorCode.PROTOCOL_ERROR),
    "window of an idle stream": (START + frames.window_update(1, 8), ErrorCode.PROTOCOL_ERROR),
    "window opened by nothing": (START + frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "window opened too far": (START + frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "short window update": (START + frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "data on an idle stream": (START + frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data on the connection": (START + frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data with too much padding": (START + REQUEST_1 + frame(frames.DATA, 8, 1, b"\x02x"), ErrorCode.PROTOCOL_ERROR),
    "padded data without a length": (START + REQUEST_1 + frame(frames.DATA, 8, 1), ErrorCode.PROTOCOL_ERROR),
    "headers on the connection": (START + _headers(0, *HEADERS), ErrorCode.PROTOCOL_ERROR),
    "a block on the connection": (START + _headers(0, *HEADERS, flags=0), ErrorCode.PROTOCOL_ERROR),
    "headers on an even stream": (START + _headers(2, *HEADERS), ErrorCode.PROTOCOL_ERROR),
    "headers on a lower stream": (START + _headers(5, *HEADERS) + _headers(3, *HEADERS), ErrorCode.STREAM_CLOSED),
    "headers too short for priority": (START + frame(frames.HEADERS, 0x24, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "headers that depend on themselves": (START + frame(frames.HEADERS, 0x24, 1, SELF), ErrorCode.PROTOCOL_ERROR),
    "priority that depends on itself": (START + frame(frames.PRIORITY, 0, 1, SELF), ErrorCode.PROTOCOL_ERROR),
    "priority of the connection": (START + frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "short priority": (START + frame(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "no block of headers": (START + frame(frames.HEADERS, 5, 1, b"\x80"), ErrorCode.COMPRESSION_ERROR),
    "an index beyond the table": (START + frame(frames.HEADERS, 5, 1, b"\xff\x64"), ErrorCode.COMPRESSION_ERROR),
    "continuation of nothing": (START + frame(frames.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
    "an interrupted block": (START + frame(frames.HEADERS, 1, 1) + frames.ping(bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a block goes on elsewhere": (
        START + frame(frames.HEADERS, 1, 1, b"\x82") + frame(frames.CONTINUATION, 4, 3),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a large frame": (START + b"\x01\x00\x01\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    "endless headers": (
        START + frame(frames.HEADERS, 1, 1) + frame(frames.CONTINUATION, 0, 1) * 16,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "large headers": (
        START + frame(frames.HEADERS, 1, 1, bytes(60000)) + frame(frames.CONTINUATION, 0, 1, bytes(60000)) * 2,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "large whole headers": (
        START + frame(frames.HEADERS, 1, 1, bytes(60000)) + frame(frames.CONTINUATION, 0, 1, bytes(60000))
        + frame(frames.CONTINUATION, 4, 1, bytes(60000)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "pings": (START + frames.ping(bytes(8)) * 1100, ErrorCode.ENHANCE_YOUR_CALM),
    "settings": (START + frames.settings({}) * 1100, ErrorCode.ENHANCE_YOUR_CALM),
    "long settings": (START + frame(frames.SETTINGS, 0, 0, bytes(60_000)) * 2, ErrorCode.ENHANCE_YOUR_CALM),
    "empty data": (START + REQUEST_1 + frame(frames.DATA, 0, 1) * 11000, ErrorCode.ENHANCE_YOUR_CALM),
    "priorities": (START + frame(frames.PRIORITY, 0, 3, bytes(5)) * 11000, ErrorCode.ENHANCE_YOUR_CALM),
    "unknown frames": (START + frame(0x77, 0, 3) * 11000, ErrorCode.ENHANCE_YOUR_CALM),
    "window updates": (START + REQUEST_1 + frames.window_update(1, 1) * 11000, ErrorCode.ENHANCE_YOUR_CALM),
    "rapid resets": (
        START + b"".join(_headers(n, *HEADERS) + frames.rst_stream(n, 8) for n in range(1, 2400, 2)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "malformed requests": (
        START + b"".join(_headers(n, (b"x", b"y")) for n in range(1, 2400, 2)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}  # fmt: skip


def _new() -> Session:
    return Session(Clock())


@pytest.mark.parametrize("case", list(FATAL))
def test_what_ends_a_connection(case: str) -> None:
    data, reason = FATAL[case]
    session = _new()
    events = session.receive(data)
    kind, _, error = events[-1]
    assert kind == CLOSED
    assert error.reason == reason
    assert session.closed
    out = b"".join(session.take())
    assert reason.to_bytes(4, "big") + error.message.encode() in out
    assert session.receive(data) == []
    assert session.take() == []


def test_http_1_gets_an_answer() -> None:
    session = _new()
    assert kinds(session.receive(b"GET / HTTP/1.1\r\n")) == [CLOSED]
    assert b"".join(session.take()).startswith(b"HTTP/1.1 505 ")


BROKEN = {
    "data behind the end": (WHOLE_1 + frame(frames.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
    "headers behind the end": (WHOLE_1 + _headers(1, (b"a", b"b")), ErrorCode.STREAM_CLOSED),
    "trailers that end nothing": (REQUEST_1 + _headers(1, (b"a", b"b"), flags=4), ErrorCode.PROTOCOL_ERROR),
    "window opened by nothing": (REQUEST_1 + frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
    "window opened too far": (REQUEST_1 + frames.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "more data than the window": (
        REQUEST_1 + frame(frames.DATA, 0, 1, bytes(65536)) * 17,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "settings open a window too far": (
        REQUEST_1 + frames.window_update(1, 2**31 - 1 - 65535) + frames.settings({Setting.INITIAL_WINDOW_SIZE: 65536}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "upper case": (_headers(1, *HEADERS, (b"X-Up", b"1")), ErrorCode.PROTOCOL_ERROR),
    "a name with a space": (_headers(1, *HEADERS, (b"a b", b"1")), ErrorCode.PROTOCOL_ERROR),
    "a name with a line feed": (_headers(1, *HEADERS, (b"a\nb", b"1")), ErrorCode.PROTOCOL_ERROR),
    "a name that ends so": (_headers(1, *HEADERS, (b"a\n", b"1")), ErrorCode.PROTOCOL_ERROR),
    "no name": (_headers(1, *HEADERS, (b"", b"1")), ErrorCode.PROTOCOL_ERROR),
    "no name at first": (_headers(1, (b"", b"1"), *HEADERS), ErrorCode.PROTOCOL_ERROR),
    "a value with a line feed": (_headers(1, *HEADERS, (b"a", b"1\n2")), ErrorCode.PROTOCOL_ERROR),
    "an unknown pseudo header": (_headers(1, *HEADERS, (b":a", b"1")), ErrorCode.PROTOCOL_ERROR),
    "a pseudo header behind others": (_headers(1, *HEADERS[1:], HEADERS[0]), ErrorCode.PROTOCOL_ERROR),
    "a pseudo header twice": (_headers(1, HEADERS[0], *HEADERS), ErrorCode.PROTOCOL_ERROR),
    "a pseudo header again at the end": (_headers(1, *HEADERS, HEADERS[2]), ErrorCode.PROTOCOL_ERROR),
    "no path": (_headers(1, *HEADERS[:2], *HEADERS[3:]), ErrorCode.PROTOCOL_ERROR),
    "an empty path": (_headers(1, *HEADERS[:2], (b":path", b""), *HEADERS[3:]), ErrorCode.PROTOCOL_ERROR),
    "no method": (_headers(1, *HEADERS[1:]), ErrorCode.PROTOCOL_ERROR),
    "no scheme": (_headers(1, HEADERS[0], *HEADERS[2:]), ErrorCode.PROTOCOL_ERROR),
    "an answer's header": (_headers(1, (b":status", b"200"), *HEADERS), ErrorCode.PROTOCOL_ERROR),
    "connection": (_headers(1, *HEADERS, (b"connection", b"close")), ErrorCode.PROTOCOL_ERROR),
    "transfer-encoding": (_headers(1, *HEADERS, (b"transfer-encoding", b"chunked")), ErrorCode.PROTOCOL_ERROR),
    "te": (_headers(1, *HEADERS, (b"te", b"gzip")), ErrorCode.PROTOCOL_ERROR),
    "a length of nothing": (_headers(1, *HEADERS, (b"content-length", b"5")), ErrorCode.PROTOCOL_ERROR),
    "no length": (_headers(1, *HEADERS, (b"content-length", b"-5")), ErrorCode.PROTOCOL_ERROR),
    "less than its length": (
        _headers(1, *HEADERS, (b"content-length", b"5"), flags=4) + frame(frames.DATA, 1, 1, b"1234"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "more than its length": (
        _headers(1, *HEADERS, (b"content-length", b"5"), flags=4) + frame(frames.DATA, 0, 1, b"123456"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "trailers before its length": (
        _headers(1, *HEADERS, (b"content-length", b"5"), flags=4) + _headers(1, (b"a", b"b")),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_ends_a_stream(case: str) -> None:
    data, reason = BROKEN[case]
    session = _new()
    session.receive(START)
    session.take()
    events = session.receive(data)
    assert frames.rst_stream(1, reason) in session.take()
    assert events == [] or events[-1][0] == RESET
    assert not session.streams
    assert kinds(session.receive(_headers(3, *HEADERS))) == [REQUEST]


def test_data_on_a_stream_that_is_long_closed() -> None:
    session = _new()
    ((_, stream, _),) = session.receive(START + WHOLE_1)
    session.respond(stream, HEAD, b"", TAIL)
    session.take()
    assert session.receive(frame(frames.DATA, 0, 1, b"x") + frames.window_update(1, 5) + frames.rst_stream(1, 8)) == []
    assert session.take() == [frames.rst_stream(1, ErrorCode.STREAM_CLOSED)]


def test_too_many_streams_are_refused() -> None:
    session = _new()
    opened = b"".join(_headers(n, *HEADERS, flags=4) for n in range(1, 2 * http2.MAX_STREAMS, 2))
    assert len(session.receive(START + opened)) == http2.MAX_STREAMS
    session.take()
    assert session.receive(_headers(2 * http2.MAX_STREAMS + 1, *HEADERS)) == []
    assert session.take() == [frames.rst_stream(2 * http2.MAX_STREAMS + 1, ErrorCode.REFUSED_STREAM)]


def test_patience_comes_back_with_time_and_answers() -> None:
    clock = Clock()
    session = Session(clock)
    session.receive(START)
    for _ in range(50):
        session.receive(frames.ping(bytes(8)) * 500)
        clock.now += 5.0
        session.take()
    assert not session.closed
    for number in range(1, 8000, 2):  # each answer is worth more than what a client says beside its request
        ((_, stream, _),) = session.receive(_headers(number, *HEADERS) + frames.ping(bytes(8)))
        session.respond(stream, HEAD, b"", TAIL)
        session.take()
    assert not session.closed


def _plain(events: list[http2.Event]) -> list[Any]:
    """Events that can be compared; data in pieces as one."""
    found: list[Any] = []
    for kind, stream, payload in events:
        if kind == CLOSED:
            payload = str(payload)
        found.append((kind, stream.id, payload))
    return found


@pytest.mark.parametrize("data", [data for data, _ in FATAL.values() if len(data) < 2000])
def test_bytes_one_at_a_time(data: bytes) -> None:
    at_once = _new()
    trickled = _new()
    expected = at_once.receive(data)
    found = [event for byte in data for event in trickled.receive(bytes((byte,)))]
    assert _plain(found) == _plain(expected)
    assert b"".join(trickled.take()) == b"".join(at_once.take())


_some_frames = st.builds(
    frame,
    st.one_of(st.integers(0, 10), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D]), st.integers(0, 255)),
    st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)),
    st.one_of(st.sampled_from([b"", bytes(4), bytes(8), hpack.Encoder().encode(HEADERS)]), st.binary(max_size=80)),
)


@settings(max_examples=200)
@given(st.lists(st.one_of(_some_frames, st.just(REQUEST_1), st.binary(max_size=20)), max_size=12), st.randoms())
def test_any_frames(parts: list[bytes], chance: random.Random) -> None:
    drive(START + b"".join(parts), chance)


@settings(max_examples=200)
@given(st.data())
def test_frames_with_wrong_bytes(data: st.DataObject) -> None:
    stream = bytearray(
        START
        + REQUEST_1
        + frame(frames.DATA, 0, 1, b"abc")
        + frames.window_update(1, 100)
        + frame(frames.DATA, 1, 1, b"def")
        + _headers(3, *HEADERS, flags=0x0C + 1)
        + frames.settings({Setting.INITIAL_WINDOW_SIZE: 3})
        + frames.ping(bytes(8))
        + frames.rst_stream(3, 8)
        + WHOLE_1
    )
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    drive(bytes(stream), data.draw(st.randoms()))


def drive(data: bytes, chance: random.Random) -> None:
    """Feed a session in pieces and answer what comes, now or later: it keeps its books whatever comes."""
    session = _new()
    open_streams: list[Any] = []
    at = 0
    while at < len(data):
        step = chance.randint(1, 60)
        for kind, stream, payload in session.receive(data[at : at + step]):
            if kind == REQUEST:
                open_streams.append(stream)
            elif kind == RESET:
                assert not stream.open
            elif kind == DATA:
                session.grant(stream, len(payload))
        at += step
        for stream in list(open_streams):
            chosen = chance.randint(0, 5)
            if chosen == 0 and stream.owner is None:
                session.respond(stream, HEAD, bytes(chance.choice([0, 5, 100_000])), TAIL)
            elif chosen == 0:
                session.send_trailers(stream, TAIL)
            elif chosen == 1:
                if stream.owner is None:
                    session.send_headers(stream, HEAD)
                stream.owner = "begun"
                session.send_data(stream, bytes(chance.randint(1, 70_000)))
                continue
            elif chosen == 2:
                session.reset(stream, ErrorCode.CANCEL)
            else:
                continue
            open_streams.remove(stream)
        assert session.unsent == sum(
            sum(map(len, stream.pending)) for stream in session.streams.values() if stream.pending is not None
        )
        assert all(stream.open for stream in session.streams.values())
        session.take()
    for stream in list(session.streams.values()):
        session.reset(stream, ErrorCode.CANCEL)
    assert (session.unsent, session.streams, session._blocked) == (0, {}, {})
