"""Our gRPC server, called by grpcio and by a client that breaks the rules."""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import socket
import time
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import h2.events
import hpack
import pytest

from spark_rocket.errors import ConfigError
from spark_rocket.proxy import frames, health, reflection
from spark_rocket.proxy.context import GrpcCode
from spark_rocket.proxy.grpc_server import Http2Server
from spark_rocket.proxy.http2 import STREAM_WINDOW
from spark_rocket.remoting.overload import Limits
from tests.proxy.grpc_world import HEADERS, LIMIT, Peer, World, framed, world
from tests.proxy.test_http2 import FATAL, START


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    with world() as running:
        yield running


@pytest.fixture
def server(shared: World) -> Iterator[World]:
    """The server, of which nothing is left behind a test."""
    shared.wait(lambda: not shared.server.connections)
    shared.seen.clear()
    shared.cancelled = 0
    shared.on_loop(shared.released.clear)
    yield shared
    shared.wait(shared.idle)


@pytest.fixture
def channel(server: World) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.target, options) as opened:
        yield opened


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


# --- as it should be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5, 16_384, 65_536, 300_000, 5_000_000])
def test_single_calls(channel: grpc.Channel, size: int) -> None:
    message = random.Random(size).randbytes(size)
    assert channel.unary_unary("/t.T/Echo")(message, timeout=LIMIT) == message
    assert channel.unary_unary("/t.T/Later")(message) == message


def test_what_a_handler_sees(server: World, channel: grpc.Channel) -> None:
    before = time.monotonic()
    metadata = [("x-mq-client-id", "host@1"), ("x-twice", "1"), ("x-twice", "2"), ("x-empty", "")]
    channel.unary_unary("/t.T/Echo")(b"", timeout=600, metadata=metadata)
    channel.unary_unary("/t.T/Echo")(b"")
    (seen, peer, deadline), (_, _, never) = server.seen
    assert {name: value for name, value in seen.items() if name.startswith("x-")} == {
        "x-mq-client-id": "host@1",
        "x-twice": "2",
        "x-empty": "",
    }
    assert not any(name.startswith(":") for name in seen)
    assert peer.startswith("127.0.0.1:")
    assert before < deadline < time.monotonic() + 600
    assert never is None


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests(channel: grpc.Channel, compression: grpc.Compression) -> None:
    message = b"abc" * 10_000
    assert channel.unary_unary("/t.T/Echo")(message, compression=compression) == message
    assert list(channel.stream_stream("/t.T/Both")(iter([message]), compression=compression)) == [message, b"end"]


def test_streams(channel: grpc.Channel) -> None:
    count = channel.unary_stream("/t.T/Count")
    assert list(count(b"3 5 0")) == [b"    0", b"    1", b"    2"]
    assert list(count(b"0 5 0")) == []
    assert [len(one) for one in count(b"40 200000 0")] == [200_000] * 40
    messages = [bytes([n]) * n * 1000 for n in range(200)]
    assert list(channel.stream_stream("/t.T/Both")(iter(messages))) == [*messages, b"end"]


def test_failures(channel: grpc.Channel, server: World, caplog: pytest.LogCaptureFixture) -> None:
    fail = channel.unary_unary("/t.T/Fail")
    code, details = refused(lambda: fail(b"rpc"))
    assert code == grpc.StatusCode.NOT_FOUND
    assert details.startswith("käse: 100 %\nxxx")
    with caplog.at_level(logging.CRITICAL):
        assert refused(lambda: fail(b"oh")) == (grpc.StatusCode.UNKNOWN, "ValueError: oh")
    assert refused(lambda: fail(b"cancel"))[0] == grpc.StatusCode.CANCELLED
    assert refused(lambda: fail(b"suicide"))[0] == grpc.StatusCode.CANCELLED
    server.on_loop(server.released.set)
    assert fail(b"suicide") == b"alive"
    assert channel.unary_unary("/t.T/Later")(b"and others go on") == b"and others go on"
    assert refused(lambda: channel.unary_unary("/t.T/None")(b"")) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "there is no method /t.T/None",
    )
    count = channel.unary_stream("/t.T/Count")
    assert refused(lambda: list(count(b"3 1 1"))) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    assert refused(lambda: list(count(b"0 1 1"))) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")


def test_a_deadline_ends_a_call(server: World) -> None:
    with Peer(server.server.port) as peer:  # one that leaves it to the server
        held = peer.request("/t.T/Hold", framed(b""), headers=[("grpc-timeout", "20m")])
        stays = peer.request("/t.T/Stay", framed(b""), headers=[("grpc-timeout", "30000u")])
        for stream in (held, stays):
            assert peer.ended(stream)[0]["grpc-status"] == "4"
    server.wait(lambda: server.cancelled == 2)


def test_a_client_cancels(server: World, channel: grpc.Channel) -> None:
    held = channel.unary_unary("/t.T/Hold").future(b"x")
    stays = channel.unary_stream("/t.T/Stay")(b"")
    assert next(stays) == b"here"
    server.wait(lambda: bool(server.seen))
    held.cancel()
    stays.cancel()
    server.wait(lambda: server.cancelled == 2)


def test_a_client_is_gone(server: World) -> None:
    with Peer(server.server.port) as peer:
        for _ in range(3):
            peer.request("/t.T/Hold", framed(b""))
        stays = peer.request("/t.T/Stay", framed(b""))
        peer.until(h2.events.DataReceived, stays)
        peer.request("/t.T/Both", framed(b"x"), end=False)
        server.wait(lambda: len(server.server.tasks) == 5)
    server.wait(lambda: server.cancelled == 4)


def test_a_thousand_calls_at_once(server: World) -> None:
    async def call_all() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.target) as opened:
            hold = opened.unary_unary("/t.T/Hold")
            calls = [hold(b"%d" % n) for n in range(1000)]
            waiting = asyncio.gather(*calls)
            await asyncio.to_thread(server.wait, lambda: len(server.seen) == 1000)
            server.on_loop(server.released.set)
            return list(await waiting)

    assert asyncio.run(call_all()) == [b"%d" % n for n in range(1000)]


def test_a_request_of_100_mib(channel: grpc.Channel) -> None:
    assert channel.unary_unary("/t.T/Size")(bytes(100 * 1024 * 1024)) == b"%d" % (100 * 1024 * 1024)


def test_health_and_reflection(server: World, channel: grpc.Channel) -> None:
    saved = server.server.rpcs
    more = health.rpcs(["t.T"]) | reflection.rpcs([health.definitions()])
    server.server.rpcs = saved | {path.encode(): rpc for path, rpc in more.items()}
    types = health.definitions().types
    check = channel.unary_unary(f"/{health.SERVICE}/Check")
    for service in ("", "t.T"):
        answer = types["HealthCheckResponse"].FromString(
            check(types["HealthCheckRequest"](service=service).SerializeToString())
        )
        assert answer.status == 1
    unknown = types["HealthCheckRequest"](service="x").SerializeToString()
    assert refused(lambda: check(unknown))[0] == grpc.StatusCode.NOT_FOUND
    assert refused(lambda: check(b"\xff"))[0] == grpc.StatusCode.INVALID_ARGUMENT
    watching = channel.unary_stream(f"/{health.SERVICE}/Watch")(unknown)
    assert types["HealthCheckResponse"].FromString(next(watching)).status == 3
    watching.cancel()
    for package in reflection.PACKAGES:
        types = reflection.definitions(package).types
        requests = [
            {"list_services": ""},
            {"file_containing_symbol": "grpc.health.v1.Health.Check"},
            {"file_by_filename": "grpc/health/v1/health.proto"},
            {"file_by_filename": "none.proto"},
            {"file_containing_symbol": "none"},
            {"all_extension_numbers_of_type": "grpc.health.v1.Health"},
            {},
        ]
        info = channel.stream_stream(f"/{package}.ServerReflection/ServerReflectionInfo")
        raw = [types["ServerReflectionRequest"](**request).SerializeToString() for request in requests]
        answers = [types["ServerReflectionResponse"].FromString(answer) for answer in info(iter(raw))]
        assert [service.name for service in answers[0].list_services_response.service] == [
            health.SERVICE,
            *(f"{one}.ServerReflection" for one in reflection.PACKAGES),
        ]
        (file,) = answers[1].file_descriptor_response.file_descriptor_proto
        assert b"grpc/health/v1/health.proto" in file
        assert list(answers[2].file_descriptor_response.file_descriptor_proto) == [file]
        assert [answer.error_response.error_code for answer in answers[3:]] == [5, 5, 5, 5]
        assert refused(lambda info=info: list(info(iter([b"\xff"]))))[0] == grpc.StatusCode.INVALID_ARGUMENT
    server.server.rpcs = saved


# --- as it should not be --------------------------------------------------------------------------------------

BOMB = gzip.compress(bytes(131 * 1024 * 1024), 1)
WRONG: dict[str, tuple[str, tuple[bytes, ...], dict[str, str], int]] = {
    "no message": ("/t.T/Echo", (), {}, GrpcCode.INTERNAL),
    "nothing in the data": ("/t.T/Echo", (b"",), {}, GrpcCode.INTERNAL),
    "half a prefix": ("/t.T/Echo", (b"\0\0",), {}, GrpcCode.INTERNAL),
    "half a message": ("/t.T/Echo", (framed(b"abc")[:-1],), {}, GrpcCode.INTERNAL),
    "half a message of a stream": ("/t.T/Both", (framed(b"abc")[:-1],), {}, GrpcCode.INTERNAL),
    "two messages": ("/t.T/Echo", (framed(b"a"), framed(b"b")), {}, GrpcCode.INTERNAL),
    "two messages at once": ("/t.T/Count", (framed(b"a") + framed(b"b"),), {}, GrpcCode.INTERNAL),
    "a message and a half": ("/t.T/Echo", (framed(b"a") + b"\0",), {}, GrpcCode.INTERNAL),
    "too large": ("/t.T/Echo", (b"\0\x10\0\0\0",), {}, GrpcCode.RESOURCE_EXHAUSTED),
    "too large for a stream": ("/t.T/Both", (b"\0\x10\0\0\0",), {}, GrpcCode.RESOURCE_EXHAUSTED),
    "too large when it is unpacked": ("/t.T/Size", (framed(BOMB, 1),), {"grpc-encoding": "gzip"}, 8),
    "compressed somehow": ("/t.T/Echo", (framed(b"a", 1),), {}, GrpcCode.INTERNAL),
    "compressed and not": ("/t.T/Echo", (framed(b"a", 1),), {"grpc-encoding": "identity"}, GrpcCode.INTERNAL),
    "compressed by half": ("/t.T/Echo", (framed(zlib.compress(b"a")[:-1], 1),), {"grpc-encoding": "deflate"}, 13),
    "compressed otherwise": ("/t.T/Echo", (framed(b"a"),), {"grpc-encoding": "snappy"}, GrpcCode.UNIMPLEMENTED),
    "no time": ("/t.T/Echo", (framed(b"a"),), {"grpc-timeout": "soon"}, GrpcCode.INTERNAL),
    "headers too large": ("/t.T/Echo", (framed(b"a"),), {"x-large": "y" * 40_000}, GrpcCode.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests(server: World, case: str) -> None:
    path, bodies, headers, code = WRONG[case]
    with Peer(server.server.port) as peer:
        fields, data = peer.ended(peer.request(path, *bodies, headers=headers.items()))
        assert (fields[":status"], fields["grpc-status"], data) == ("200", str(int(code)), b"")
        assert fields["grpc-message"]
        if code == GrpcCode.UNIMPLEMENTED:
            assert fields["grpc-accept-encoding"] == "identity,gzip,deflate"
        assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")


def test_requests_that_are_no_grpc(server: World) -> None:
    with Peer(server.server.port) as peer:
        for content_type in ("application/json", "application/grpc-web", ""):
            stream = peer.request("/t.T/Echo", framed(b""), headers=[("content-type", content_type)])
            assert peer.ended(stream)[0][":status"] == "415"
        assert peer.ended(peer.request("/t.T/Echo", headers=[(":method", "GET")]))[0][":status"] == "405"
        for content_type in ("application/grpc+proto", "application/grpc;charset=utf-8"):
            stream = peer.request("/t.T/Echo", framed(b"x"), headers=[("content-type", content_type)])
            assert peer.ended(stream)[1] == framed(b"x")


def test_an_error_comes_before_the_request_has_ended(server: World) -> None:
    with Peer(server.server.port) as peer:
        stream = peer.request("/t.T/None", b"\0\x01\0\0\0", end=False)
        assert peer.ended(stream)[0]["grpc-status"] == "12"
        assert peer.until(h2.events.StreamReset, stream).error_code == 0


def test_half_requests_leave_nothing(server: World) -> None:
    with Peer(server.server.port) as peer:
        half = peer.request("/t.T/Echo", b"\0\0\x01\0\0" + bytes(50_000), end=False)
        peer.request("/t.T/Echo", end=False)
        peer.request("/t.T/Both", b"\0\0\x01\0\0" + bytes(10_000), end=False)
        server.wait(lambda: server.server.held == 60_010)
        peer.h2.reset_stream(half)
        peer.flush()
        server.wait(lambda: server.server.held == 10_005)
    server.wait(lambda: server.server.held == 0)


def test_half_requests_are_ended(server: World) -> None:
    with Peer(server.server.port) as peer:
        expires = peer.request("/t.T/Echo", end=False, headers=[("grpc-timeout", "1m")])
        forgotten = peer.request("/t.T/Echo", framed(b"abc")[:-1], end=False)
        server.wait(lambda: server.server.held == 7)
        (connection,) = server.server.connections
        server.on_loop(lambda: connection.look(time.monotonic() + 60, 120.0))
        assert peer.ended(expires)[0]["grpc-status"] == "4"
        server.on_loop(lambda: connection.look(time.monotonic() + 121, 120.0))
        assert peer.ended(forgotten)[0]["grpc-status"] == "1"


def test_bytes_that_trickle(server: World) -> None:
    with Peer(server.server.port) as peer:
        number = peer.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/t.T/Echo"),
            ("content-type", "application/grpc"),
        ]
        peer.h2.send_headers(number, headers)
        peer.h2.send_data(number, framed(b"trickle"), end_stream=True)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in peer.h2.data_to_send():
            peer.socket.sendall(bytes((byte,)))
        assert peer.ended(number)[1] == framed(b"trickle")


def test_a_client_that_does_not_read(server: World) -> None:
    with Peer(server.server.port) as peer:
        peer.request("/t.T/Flood", framed(b""))
        server.wait(
            lambda: any(stream.pending for one in server.server.connections for stream in one.session.streams.values())
        )
        assert len(server.seen) <= 3
        # With all windows open it is the connection itself that is full.
        peer.h2.increment_flow_control_window(2**30)
        peer.h2.increment_flow_control_window(2**30, 1)
        peer.flush()
        server.wait(lambda: all(one.session.corked for one in server.server.connections))
        server.wait(
            lambda: any(stream.pending for one in server.server.connections for stream in one.session.streams.values())
        )
        assert all(one.session.unsent <= 100_005 for one in server.server.connections)
    server.wait(lambda: server.cancelled == 1)


def test_a_slow_reader_gets_everything(server: World) -> None:
    with Peer(server.server.port) as peer:
        peer.h2.increment_flow_control_window(2**30)
        streams = [peer.request("/t.T/Count", framed(b"30 100000 0")) for _ in range(3)]
        for stream in streams:
            peer.h2.increment_flow_control_window(2**30, stream)
        peer.flush()
        server.wait(lambda: all(one.session.corked for one in server.server.connections) or server.idle())
        for stream in streams:
            fields, data = peer.ended(stream)
            assert fields["grpc-status"] == "0"
            assert len(data) == 30 * 100_005


def test_a_handler_that_does_not_read(server: World) -> None:
    with Peer(server.server.port) as peer:
        stream = peer.request("/t.T/Deaf", end=False)
        sent = 0
        while window := peer.h2.local_flow_control_window(stream):
            piece = framed(bytes(min(window, 16_384) - 5)) if window > 5 else bytes(window)
            peer.h2.send_data(stream, piece)
            peer.flush()
            sent += len(piece)
        assert sent == STREAM_WINDOW
        server.on_loop(server.released.set)
        peer.until(h2.events.WindowUpdated, stream)
        assert len([event for event in peer.events if isinstance(event, h2.events.WindowUpdated)]) >= 1


def test_very_much_at_once(server: World) -> None:
    with Peer(server.server.port) as peer:
        peer.until(h2.events.RemoteSettingsChanged)
        numbers = []
        for _ in range(1500):
            number = peer.h2.get_next_available_stream_id()
            peer.h2.send_headers(number, [*((name, value) for name, value in HEADERS_OF_ECHO)])
            peer.h2.send_data(number, framed(b"x"), end_stream=True)
            numbers.append(number)
        peer.flush()
        for number in numbers[::100]:
            assert peer.ended(number)[1] == framed(b"x")


HEADERS_OF_ECHO = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    ("content-type", "application/grpc"),
]


@pytest.mark.parametrize("case", ["no preface", "no settings", "pings", "rapid resets", "large headers"])
def test_a_peer_that_breaks_the_protocol_is_closed(server: World, case: str) -> None:
    with socket.create_connection(("127.0.0.1", server.server.port), timeout=LIMIT) as raw:
        raw.sendall(FATAL[case][0] if case != "no preface" else b"GARBAGE" * 5)
        received = b""
        while data := _receive(raw):
            received += data
    if case != "rapid resets":  # there the kernel resets the connection, since not all of it was read
        assert received.endswith(b".")  # the reason, in GOAWAY


def anything(chance: random.Random) -> bytes:
    """Requests right and wrong, frames between them that nobody should send, and some wrong bytes."""
    encoder = hpack.Encoder()
    window = chance.choice([0, 1, 100, 65_535, 2**31 - 1])
    parts = [frames.PREFACE, frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: window})]
    number = 1
    for _ in range(chance.randint(1, 25)):
        kind = chance.randint(0, 11)
        if kind == 6:
            parts.append(frames.rst_stream(chance.randint(1, number), 8))
        elif kind == 7:
            parts.append(frames.window_update(chance.choice([0, 1, number]), chance.choice([0, 1, 1000, 2**30])))
        elif kind == 8:
            parts.append(frames.ping(b"12345678", chance.choice([0, 1])))
        elif kind == 9:
            parts.append(
                frames.frame(0, chance.choice([0, 1, 8, 9]), chance.randint(1, number + 1), chance.randbytes(20))
            )
        elif kind == 10:
            parts.append(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: chance.choice([0, 1, 100_000])}))
        elif kind == 11:
            parts.append(frames.frame(chance.randint(0, 12), chance.randint(0, 255), chance.randint(0, 5), bytes(8)))
        else:
            method = chance.choice(["Echo", "Later", "Hold", "Fail", "Count", "Flood", "Stay", "Both", "Deaf", "None"])
            fields = [*HEADERS_OF_ECHO[:2], (":path", f"/t.T/{method}"), HEADERS_OF_ECHO[3]]
            if chance.random() < 0.3:
                fields.append(("grpc-timeout", chance.choice(["1m", "1u", "99999999H", "0S", "5S"])))
            message = chance.choice([b"", b"x", b"rpc", b"cancel", b"suicide", b"5 10 0", b"2 100000 1"])
            parts.append(frames.frame(frames.HEADERS, 4, number, encoder.encode(fields)))
            parts.append(
                frames.frame(frames.DATA, chance.choice([0, 1]), number, framed(message, chance.randint(0, 1)))
            )
            number += 2
    data = bytearray(b"".join(parts))
    for _ in range(chance.choice([0, 0, 1, 4])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def test_many_that_break_the_protocol_are_told_of_once(server: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.server.port), LIMIT) as raw:
                raw.sendall(b"what is this?")
                while raw.recv(65_536):
                    pass
    assert caplog.text.count("is not the preface") <= 1


def test_anything_at_all(server: World, channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    chance = random.Random(6)
    for _ in range(300):
        data = anything(chance)
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=LIMIT) as raw:
            try:
                for at in range(0, len(data), 500):
                    raw.sendall(data[at : at + 500])
            except OSError:  # it has been closed
                continue
            if chance.random() < 0.3:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert channel.unary_unary("/t.T/Echo")(b"alive") == b"alive"
    server.wait(lambda: len(server.server.connections) <= 1)


# --- the server's own end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [True, False])
def test_idle_connections_are_closed(server: World, answers: bool) -> None:
    """A client that calls in that moment is served: it is told to open no more streams, and then asked by a PING."""
    with socket.create_connection(("127.0.0.1", server.server.port), LIMIT) as peer:
        peer.sendall(START)
        server.wait(lambda: any(one.session.greeted for one in server.server.connections))
        (connection,) = server.server.connections
        for _ in range(5):
            server.on_loop(lambda: connection.look(0.0, 120.0))
        call = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.Encoder().encode(HEADERS))
        peer.sendall(call + frames.frame(frames.DATA, frames.END_STREAM, 1, framed(b"late")))
        data = b""
        while b"late" not in data:
            data += peer.recv(65_536)
        assert data.index(b"closing") < data.index(b"draining") < data.index(b"late")
        if answers:
            peer.sendall(frames.ping(b"draining", frames.ACK))
        else:
            for _ in range(6):
                server.on_loop(lambda: connection.look(0.0, 120.0))
        while piece := peer.recv(65_536):
            data += piece
        assert frames.goaway(1, 0, "closing") in data


def test_silent_peers_are_asked_and_dropped(server: World) -> None:
    with Peer(server.server.port) as peer:
        stream = peer.request("/t.T/Stay", framed(b""))
        peer.until(h2.events.DataReceived, stream)
        (connection,) = server.server.connections
        for _ in range(3):
            server.on_loop(lambda: connection.look(0.0, 120.0))
        peer.until(h2.events.PingReceived)  # and answered
        peer.ended(peer.request("/t.T/Echo", framed(b"")))
        for _ in range(3):
            server.on_loop(lambda: connection.look(0.0, 120.0))
        assert connection in server.server.connections
        for _ in range(2):
            server.on_loop(lambda: connection.look(0.0, 120.0))
        while peer.socket.recv(65_536):
            pass
    server.wait(lambda: server.cancelled == 1)


def test_answers_that_nobody_takes_are_given_up(server: World) -> None:
    with Peer(server.server.port) as peer:
        peer.h2.update_settings({4: 0})  # no window at all
        peer.flush()
        stream = peer.request("/t.T/Count", framed(b"1 10 0"))
        server.wait(lambda: any(one.session.unsent for one in server.server.connections))
        (connection,) = server.server.connections
        for number in range(5):
            peer.h2.ping(b"%08d" % number)
            peer.flush()
            peer.until(h2.events.PingAckReceived)
            peer.events.clear()
            server.on_loop(lambda: connection.look(0.0, 120.0))
        peer.until(h2.events.StreamReset, stream)


def test_closing_waits_for_calls() -> None:
    with world() as running, Peer(running.server.port) as peer:
        peer.request("/t.T/Hold", framed(b"x"))
        running.wait(lambda: bool(running.seen))
        closing = asyncio.run_coroutine_threadsafe(running.server.close(LIMIT), running.loop)
        data = b""
        while b"draining" not in data:  # a GOAWAY that takes all streams, and a PING
            data += peer.socket.recv(65_536)
        late = peer.request("/t.T/Echo", framed(b""))  # was under way
        peer.socket.sendall(frames.ping(b"draining", frames.ACK))
        while frames.goaway(late, 0, "closing") not in data:
            data += peer.socket.recv(65_536)
        running.on_loop(running.released.set)
        while chunk := _receive(peer.socket):
            data += chunk
        assert b"grpc-status\x0214" in data  # too late
        assert framed(b"x") in data  # the call under way was answered
        closing.result(LIMIT)
        with pytest.raises(OSError):
            Peer(running.server.port)


def test_closing_ends_calls() -> None:
    with world() as running, Peer(running.server.port) as peer:
        stays = peer.request("/t.T/Stay", framed(b""))
        peer.request("/t.T/Hold", framed(b""))
        peer.until(h2.events.DataReceived, stays)
        running.run(running.server.close(0.0))
        data = b""
        while chunk := _receive(peer.socket):
            data += chunk
        assert data.count(b"grpc-status\x0214") == 2
        assert running.cancelled == 2


def _receive(raw: socket.socket) -> bytes:
    try:
        return raw.recv(65_536)
    except ConnectionResetError:
        return b""


def test_a_port_that_is_taken(server: World) -> None:
    with pytest.raises(ConfigError, match="in use"):
        asyncio.run(Http2Server("127.0.0.1", server.server.port, {}).start())


def test_too_many_connections() -> None:
    with world(limits=Limits(max_connections=1)) as running, Peer(running.server.port) as first:
        first.ended(first.request("/t.T/Echo", framed(b"")))
        with socket.create_connection(("127.0.0.1", running.server.port), timeout=LIMIT) as second:
            second.sendall(START)
            assert not _receive(second)
        assert first.ended(first.request("/t.T/Echo", framed(b"")))


def test_too_many_half_requests() -> None:
    with world(max_held=100_000) as running, Peer(running.server.port) as peer:
        first = peer.request("/t.T/Echo", b"\0\0\x01\0\0" + bytes(60_000), end=False)
        second = peer.request("/t.T/Echo", b"\0\0\x01\0\0" + bytes(60_000), end=False)
        assert peer.ended(second)[0]["grpc-status"] == "8"
        peer.h2.send_data(first, bytes(5_536), end_stream=True)
        peer.flush()
        assert peer.ended(first)[0]["grpc-status"] == "0"


def test_too_much_that_is_not_taken() -> None:
    with world(max_held=1_000_000) as running, Peer(running.server.port) as peer:
        bomb = framed(gzip.compress(bytes(600_000)), 1)
        stream = peer.request("/t.T/Deaf", bomb, bomb, end=False, headers=[("grpc-encoding", "gzip")])
        assert peer.ended(stream)[0]["grpc-status"] == "8"
        taken = peer.request("/t.T/Both", bomb, end=False, headers=[("grpc-encoding", "gzip")])
        peer.until(h2.events.DataReceived, taken)
        peer.h2.send_data(taken, bomb, end_stream=True)
        peer.flush()
        assert len(peer.ended(taken)[1]) == 2 * 600_005 + 8
        running.wait(running.idle)


def test_calls_that_end_as_soon_as_they_have_begun(server: World, caplog: pytest.LogCaptureFixture) -> None:
    with Peer(server.server.port) as peer:
        for _ in range(50):
            stream = peer.h2.get_next_available_stream_id()
            peer.h2.send_headers(stream, [*HEADERS_OF_ECHO[:2], (":path", "/t.T/Stay"), HEADERS_OF_ECHO[3]])
            peer.h2.send_data(stream, framed(b""), end_stream=True)
            both = peer.h2.get_next_available_stream_id()
            peer.h2.send_headers(both, [*HEADERS_OF_ECHO[:2], (":path", "/t.T/Both"), HEADERS_OF_ECHO[3]])
            peer.h2.send_data(both, b"\x00\xff\xff\xff\xff")  # too large
        peer.flush()
        peer.ended(both)
    server.wait(lambda: server.cancelled == 50)
    server.wait(server.idle)
    assert not caplog.records


def test_a_stream_that_never_waits_lets_others_in(server: World, channel: grpc.Channel) -> None:
    with Peer(server.server.port) as peer:
        peer.h2.increment_flow_control_window(2**30)
        stream = peer.request("/t.T/Flood", framed(b""))
        peer.h2.increment_flow_control_window(2**30, stream)
        peer.flush()
        for _ in range(20):
            assert channel.unary_unary("/t.T/Echo")(b"x", timeout=LIMIT) == b"x"
            assert peer.read()
        peer.request("/t.T/Flood", framed(b""), headers=[("grpc-timeout", "5m")])
        while server.on_loop(lambda: server.cancelled) < 1:
            assert peer.read()
        peer.h2.reset_stream(stream)
        peer.flush()
        while server.on_loop(lambda: server.cancelled) < 2:
            assert peer.read()
