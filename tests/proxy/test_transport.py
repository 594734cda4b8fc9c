"""The gRPC server: handlers, limits of calls, and its stop."""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import h2.events
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ConfigError
from spark_rocket.proxy import definitions
from spark_rocket.proxy.transport import calls
from spark_rocket.proxy.transport.grpc_server import GrpcServer
from spark_rocket.proxy.transport.limits import MIB, GrpcLimits, send_request_bytes
from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, Rpc, RpcError
from spark_rocket.proxy.transport.tool_services import ToolServices
from tests.proxy.grpc_world import LIMIT, Peer, World, framed, world

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    limits = GrpcLimits(method_request_bytes={"/t.T/Size": 16 * MIB})
    with world(limits=limits, tools=ToolServices(definitions.messaging().descriptor)) as running:
        yield running


@pytest.fixture
def server(shared: World) -> Iterator[World]:
    """The server, with no call left after the test."""
    shared.seen.clear()
    shared.cancelled = 0
    shared.run(shared.released.clear)
    yield shared
    shared.wait(shared.idle)


@pytest.fixture
def channel(server: World) -> Iterator[grpc.Channel]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(server.target, options) as opened:
        yield opened


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


# --- calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5, 16_384, 65_536, 300_000, 4 * MIB])
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
    assert peer.startswith("127.0.0.1:")
    assert before < deadline < time.monotonic() + 601  # gRPC may round a timeout up to seconds
    assert never is None


def test_streams(channel: grpc.Channel) -> None:
    count = channel.unary_stream("/t.T/Count")
    assert list(count(b"3 5 0")) == [b"    0", b"    1", b"    2"]
    assert list(count(b"0 5 0")) == []
    assert [len(one) for one in count(b"40 200000 0")] == [200_000] * 40
    messages = [bytes([n]) * n * 1000 for n in range(200)]
    assert list(channel.stream_stream("/t.T/Both")(iter(messages))) == [*messages, b"end"]


def test_failures(channel: grpc.Channel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_often", RateLimited(calls._log))  # another test has the same failure
    fail = channel.unary_unary("/t.T/Fail")
    code, details = refused(lambda: fail(b"rpc"))
    assert code == grpc.StatusCode.NOT_FOUND
    assert details.startswith("käse: 100 %\nxxx")
    assert not caplog.records
    with caplog.at_level(logging.ERROR):
        assert refused(lambda: fail(b"oh")) == (grpc.StatusCode.UNKNOWN, "ValueError: oh")
    assert "/t.T/Fail failed" in caplog.text
    assert refused(lambda: fail(b"cancel"))[0] == grpc.StatusCode.CANCELLED
    assert refused(lambda: channel.unary_unary("/t.T/None")(b""))[0] == grpc.StatusCode.UNIMPLEMENTED
    count = channel.unary_stream("/t.T/Count")
    assert refused(lambda: list(count(b"3 1 1"))) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    assert refused(lambda: list(count(b"0 1 1"))) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")


def test_a_request_without_a_message(server: World) -> None:
    with Peer(server.server.port) as peer:
        assert peer.ended(peer.request("/t.T/Echo"))[0]["grpc-status"] == str(int(GrpcCode.INTERNAL))


def test_a_deadline_ends_a_call(server: World) -> None:
    with Peer(server.server.port) as peer:  # one that leaves it to the server
        held = peer.request("/t.T/Hold", framed(b""), headers=[("grpc-timeout", "50m")])
        stays = peer.request("/t.T/Stay", framed(b""), headers=[("grpc-timeout", "50000u")])
        for stream in (held, stays):
            peer.until(h2.events.StreamEnded, stream)
    server.wait(lambda: server.cancelled == 2)


def test_a_client_cancels(server: World, channel: grpc.Channel) -> None:
    held = channel.unary_unary("/t.T/Hold").future(b"x")
    stays = channel.unary_stream("/t.T/Stay")(b"")
    assert next(stays) == b"here"
    server.wait(lambda: bool(server.seen))
    held.cancel()
    stays.cancel()
    server.wait(lambda: server.cancelled == 2)


def test_a_client_is_removed(server: World) -> None:
    with Peer(server.server.port) as peer:
        for _ in range(3):
            peer.request("/t.T/Hold", framed(b""))
        stays = peer.request("/t.T/Stay", framed(b""))
        peer.until(h2.events.DataReceived, stays)
        peer.request("/t.T/Both", framed(b"x"), end=False)
        server.wait(lambda: server.server.calls.running == 5)
    server.wait(lambda: server.cancelled == 4)


def test_a_thousand_calls_at_once(server: World) -> None:
    async def call_all() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.target) as opened:
            hold = opened.unary_unary("/t.T/Hold")
            calls = [hold(b"%d" % n) for n in range(1000)]
            waiting = asyncio.gather(*calls)
            await asyncio.to_thread(server.wait, lambda: len(server.seen) == 1000)
            server.run(server.released.set)
            return list(await waiting)

    assert asyncio.run(call_all()) == [b"%d" % n for n in range(1000)]


def test_health(server: World, channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", definitions.SERVICE):
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == serving
    unknown = health_pb2.HealthCheckRequest(service="x")
    assert refused(lambda: stub.Check(unknown))[0] == grpc.StatusCode.NOT_FOUND
    assert refused(lambda: channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff"))[0] == (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    watching = stub.Watch(unknown)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_reflection(server: World, channel: grpc.Channel, package: str) -> None:
    request = reflection_pb2.ServerReflectionRequest
    info = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=request.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    listed, method, health, unknown = info(
        iter(
            [
                request(list_services=""),
                request(file_containing_symbol=f"{definitions.SERVICE}.SendMessage"),
                request(file_containing_symbol="grpc.health.v1.Health"),
                request(file_by_filename="none.proto"),
            ]
        )
    )
    names = [service.name for service in listed.list_services_response.service]
    assert {definitions.SERVICE, "grpc.health.v1.Health", f"{package}.ServerReflection"} <= set(names)
    files = method.file_descriptor_response.file_descriptor_proto
    assert any(b"messaging_service.proto" in file for file in files)
    assert any(b"timestamp.proto" in file for file in files)
    assert len(health.file_descriptor_response.file_descriptor_proto) == 1
    assert unknown.error_response.error_code == GrpcCode.NOT_FOUND


# --- limits ---------------------------------------------------------------------------------------------------


def test_size_limits_of_methods(channel: grpc.Channel) -> None:
    size = channel.unary_unary("/t.T/Size")
    assert size(bytes(16 * MIB)) == b"%d" % (16 * MIB)
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused(lambda: size(bytes(16 * MIB + 1)))[0] == exhausted
    code, details = refused(lambda: channel.unary_unary("/t.T/Echo")(bytes(4 * MIB + 1)))
    assert (code, details) == (
        exhausted,
        "the request has 4194305 bytes, /t.T/Echo accepts at most 4194304",
    )
    both = channel.stream_stream("/t.T/Both")
    assert refused(lambda: list(both(iter([b"x", bytes(4 * MIB + 1)]))))[0] == exhausted
    assert refused(lambda: size(bytes(33 * MIB)))[0] == exhausted


def test_the_size_limit_of_sends() -> None:
    assert send_request_bytes(4 * MIB, 1) == 5 * MIB
    assert send_request_bytes(4 * MIB, 32) == 32 * MIB


def test_compressed_messages_are_not_decompressed(server: World) -> None:
    with Peer(server.server.port) as peer:
        packed = framed(gzip.compress(b"x"), 1)
        fields, _ = peer.ended(peer.request("/t.T/Echo", packed, headers=[("grpc-encoding", "gzip")]))
        assert fields["grpc-status"] == str(int(GrpcCode.UNIMPLEMENTED))
        assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")


def test_too_large_metadata(server: World) -> None:
    with Peer(server.server.port) as peer:
        fields, _ = peer.ended(peer.request("/t.T/Echo", framed(b""), headers=[("x-large", "y" * 40_000)]))
        assert fields["grpc-status"] == str(int(GrpcCode.RESOURCE_EXHAUSTED))
        assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")


class Guarded(World):
    """Methods that need a password."""

    def __init__(self, **options: Any) -> None:
        super().__init__(authenticate=self.authenticate, **options)

    async def authenticate(self, context: ProxyContext, method: str) -> None:
        password = context.metadata.get("password")
        if password is None:
            raise RpcError(GrpcCode.PERMISSION_DENIED, f"no password for {method}")
        if password != "right":
            raise ValueError(password)

    def rpcs(self) -> dict[str, Rpc]:
        def failed(context: ProxyContext, error: Exception) -> bytes:
            return b"failed: " + str(error).encode()

        return {
            "/t.T/Echo": Rpc(self.echo, failed=failed),
            "/t.T/Count": Rpc(self.count, response_streaming=True, failed=failed),
            "/t.T/Both": Rpc(self.both, request_streaming=True, response_streaming=True),
        }


@pytest.mark.parametrize("path", ["/t.T/Echo", "/t.T/Count", "/t.T/Both"])
def test_authentication_comes_before_the_message(path: str) -> None:
    with Guarded() as guarded, Peer(guarded.server.port) as peer:
        # The message never arrives: the answer does not wait for it.
        denied = peer.request(path, b"\0\0\x10\0\0", end=False)
        assert peer.ended(denied)[0]["grpc-status"] == str(int(GrpcCode.PERMISSION_DENIED))
        wrong = peer.request(path, b"\0\0\x10\0\0", end=False, headers=[("password", "wrong")])
        fields, data = peer.ended(wrong)
        if path == "/t.T/Both":
            assert fields["grpc-status"] == str(int(GrpcCode.UNAUTHENTICATED))
        else:
            assert (fields["grpc-status"], data) == ("0", framed(b"failed: wrong"))
        right = peer.request(path, framed(b"1 1 0"), headers=[("password", "right")])
        assert peer.ended(right)[0]["grpc-status"] == "0"


def test_too_many_calls() -> None:
    with world(limits=GrpcLimits(max_calls=2)) as running, Peer(running.server.port) as peer:
        held = [peer.request("/t.T/Hold", framed(b"")) for _ in range(2)]
        running.wait(lambda: len(running.seen) == 2)
        exhausted = peer.ended(peer.request("/t.T/Hold", framed(b"")))[0]
        assert exhausted["grpc-status"] == str(int(GrpcCode.RESOURCE_EXHAUSTED))
        running.run(running.released.set)
        for stream in held:
            peer.ended(stream)
        running.wait(running.idle)
        assert peer.ended(peer.request("/t.T/Echo", framed(b"x")))[1] == framed(b"x")


# --- clients that do not read ---------------------------------------------------------------------------------


def test_a_client_that_does_not_read(server: World) -> None:
    with Peer(server.server.port) as peer:
        peer.h2.update_settings({4: 0})
        peer.flush()
        peer.request("/t.T/Flood", framed(b""))
        server.wait(lambda: bool(server.seen))
        peer.ended(peer.request("/t.T/None", framed(b"")))
        assert len(server.seen) == 1  # the first response waits for the window
    server.wait(lambda: server.cancelled == 1)


# --- the server's end -----------------------------------------------------------------------------------------


def test_idle_connections_are_closed() -> None:
    with world(limits=GrpcLimits(idle_timeout=0.2)) as running, Peer(running.server.port) as peer:
        while peer.read():
            pass


def test_old_connections_are_closed() -> None:
    with world(limits=GrpcLimits(max_age=0.2)) as running, Peer(running.server.port) as peer:
        data = b""
        while b"max_age" not in data:  # in the GOAWAY
            data += peer.socket.recv(65_536)


def test_closing_waits_for_calls() -> None:
    with world() as running, grpc.insecure_channel(running.target) as channel:
        held = channel.unary_unary("/t.T/Hold").future(b"x")
        running.wait(lambda: bool(running.seen))
        closing = asyncio.run_coroutine_threadsafe(running.server.close(LIMIT), running.loop)
        while listens(running.server.port):
            pass
        running.run(running.released.set)
        assert held.result(LIMIT) == b"x"
        closing.result(LIMIT)
        with pytest.raises(OSError):
            Peer(running.server.port)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT).close()
    except ConnectionError:
        return False
    return True


def test_closing_ends_calls() -> None:
    with world() as running, Peer(running.server.port) as peer:
        stays = peer.request("/t.T/Stay", framed(b""))
        peer.request("/t.T/Hold", framed(b""))
        peer.until(h2.events.DataReceived, stays)
        running.wait(lambda: bool(running.seen))
        running.do(running.server.close(0.0))
        peer.rest()
        assert running.cancelled == 2


def test_an_occupied_port(server: World) -> None:
    with pytest.raises(ConfigError, match="in use"):
        asyncio.run(GrpcServer({}, "127.0.0.1", server.server.port).start())
