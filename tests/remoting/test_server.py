"""The server against raw sockets, on both event loops."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.errors import BrokerError, ConfigError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import Limits
from spark_rocket.remoting.server.remoting_server import RemotingServer, run

from .conftest import ECHO, FAIL, Dial, RawClient, Serve, ServerThread, request, with_channel

pytestmark = pytest.mark.live


def test_an_echo(serve: Serve, dial: Dial, loop_factory: object) -> None:
    client = dial(serve(loop_factory=loop_factory).address)
    response = client.ask(request(ECHO, 42, b"body", topic="T"))
    assert (response.code, response.opaque, response.flag) == (0, 42, 1)
    assert response.ext_fields == {"topic": "T"}
    assert bytes(response.body) == b"body"


def test_the_response_has_the_encoding_of_the_request(serve: Serve, dial: Dial) -> None:
    client = dial(serve().address)
    command = request(ECHO, 7, b"x", a="b")
    command.serialize_type = SerializeType.ROCKETMQ
    response = client.ask(command)
    assert response.serialize_type is SerializeType.ROCKETMQ
    assert (response.opaque, response.ext_fields) == (7, {"a": "b"})


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_large_requests_among_small_ones(serve: Serve, dial: Dial, loop_factory: object, size: int) -> None:
    """Their bytes are received directly into their buffer."""
    client = dial(serve(loop_factory=loop_factory).address)
    bodies = [b"first", random.Random(size).randbytes(size), b"", random.Random(1).randbytes(size), b"last"]
    stream = b"".join(request(ECHO, n, body).encode() for n, body in enumerate(bodies))
    sender = threading.Thread(target=client.socket.sendall, args=(stream,))
    sender.start()
    for n, body in enumerate(bodies):
        response = client.receive()
        assert (response.opaque, bytes(response.body)) == (n, body)
    sender.join(30)


def test_a_connection_closed_within_a_large_request(serve: Serve, dial: Dial, loop_factory: object) -> None:
    server = serve(loop_factory=loop_factory)
    client, other = dial(server.address), dial(server.address)
    client.socket.sendall(request(ECHO, 1, bytes(2_000_000)).encode()[:1_500_000])
    client.socket.shutdown(socket.SHUT_WR)
    assert client.socket.recv(1) == b"", "the server closed it"
    assert other.ask(request(ECHO, 2, b"x")).opaque == 2


def test_many_requests_in_one_write_are_answered_in_order(serve: Serve, dial: Dial, loop_factory: object) -> None:
    client = dial(serve(loop_factory=loop_factory).address)
    sizes = [0, 1, 20_000, 3, 400_000, 5] * 3  # only small bodies are joined with their headers
    client.send(*(request(ECHO, n, bytes([n]) * size) for n, size in enumerate(sizes)))
    for n, size in enumerate(sizes):
        response = client.receive()
        assert response.opaque == n
        assert response.body == bytes([n]) * size


def test_a_frame_of_the_maximum_size(serve: Serve, dial: Dial, loop_factory: object) -> None:
    client = dial(serve(loop_factory=loop_factory).address)
    body = random.Random(1).randbytes(16_000_000)
    assert client.ask(request(ECHO, 1, body)).body == body


def test_a_one_way_request_is_handled_and_not_answered(serve: Serve, dial: Dial) -> None:
    server = serve()
    client = dial(server.address)
    for code in (ECHO, FAIL, 999):
        oneway = RemotingCommand.request(code, {}, b"quiet", oneway=True)
        client.send(oneway)
    assert client.ask(request(ECHO, 5)).opaque == 5
    assert [bytes(seen.body) for seen in server.requests] == [b"quiet", b""]


def refusing(channel: Channel, command: RemotingCommand) -> RemotingCommand:
    raise BrokerError("no permission", remedy="Ask.", response_code=ResponseCode.NO_PERMISSION)


def with_surrogate(channel: Channel, command: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(command, 0, "\ud800")


@pytest.mark.parametrize(
    ("code", "answered", "remark"),
    [
        (31_999, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 31999 not supported$"),
        (FAIL, ResponseCode.SYSTEM_ERROR, "ValueError: no such luck$"),
        (8, ResponseCode.NO_PERMISSION, "no permission Ask.$"),
        (9, ResponseCode.SYSTEM_ERROR, "."),
    ],
    ids=["unknown code", "raises", "refuses", "response that no header can carry"],
)
def test_failed_requests(serve: Serve, dial: Dial, code: int, answered: int, remark: str) -> None:
    client = dial(serve({8: refusing, 9: with_surrogate}).address)
    response = client.ask(request(code, 3))
    assert (response.code, response.opaque) == (answered, 3)
    assert re.match(remark, str(response.remark))
    assert client.ask(request(ECHO, 4)).code == 0


HTTP = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GARBAGE = {
    "HTTP": HTTP,
    "TLS": bytes.fromhex("160301020001000001fc0303") + bytes(64),
    "no length": bytes(64),
    "negative length": b"\xff\xff\xff\xff" + bytes(8),
    "too long": (1 << 20).to_bytes(4, "big"),
    "header longer than frame": bytes.fromhex("00000008 000000ff 00000000"),
    "unknown serialize type": bytes.fromhex("00000008 09000004 00000000"),
    "no JSON": bytes.fromhex("00000008 00000004") + b"{!!}",
    "no object": bytes.fromhex("00000006 00000002") + b"[]",
    "short binary header": bytes.fromhex("00000008 01000004 00000000"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_an_invalid_frame_closes_only_its_connection(
    name: str, serve: Serve, dial: Dial, loop_factory: object, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(max_frame_length=1 << 16, loop_factory=loop_factory)
    good, bad = dial(server.address), dial(server.address)
    assert bad.ask(request(ECHO, 1)).opaque == 1
    bad.socket.sendall(GARBAGE[name])
    assert bad.at_end()
    assert good.ask(request(ECHO, 2)).opaque == 2
    assert "invalid frame" in caplog.text


@pytest.fixture(scope="module")
def fuzzed() -> object:
    server = ServerThread(max_frame_length=1 << 16)
    yield server
    server.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=300), st.booleans(), st.integers(0, 120))
def test_fuzz(fuzzed: ServerThread, noise: bytes, framed: bool, cut: int) -> None:
    """Noise, noise in a valid frame, and a valid frame with noise: the server still serves the next connection."""
    good = request(ECHO, 1, b"body", topic="T").encode()
    sent = len(noise).to_bytes(4, "big") + noise if framed else good[:cut] + noise + good[cut:]
    bad = RawClient(fuzzed.address)
    bad.socket.sendall(sent)
    bad.socket.shutdown(socket.SHUT_WR)
    try:
        while bad.socket.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    bad.close()
    client = RawClient(fuzzed.address)
    assert client.ask(request(ECHO, 2)).opaque == 2
    client.close()


# --- bounds -------------------------------------------------------------------------------------------------------


def test_a_flood_does_not_starve_others(serve: Serve, dial: Dial, loop_factory: object) -> None:
    asked = threading.Event()
    order: list[str] = []

    def one_of_many(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        assert asked.wait(10)  # the flood is served until the bystander's request arrives
        order.append("flood")
        return RemotingCommand.response(command)

    def bystander(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        order.append("bystander")
        return RemotingCommand.response(command)

    server = serve({8: one_of_many, 9: bystander}, loop_factory=loop_factory, time_slice=0.0)
    flood, other = dial(server.address), dial(server.address)
    assert flood.ask(request(ECHO)).code == other.ask(request(ECHO)).code == 0
    flood.send(*(request(8, n) for n in range(500)))
    other.send(request(9, 1))
    asked.set()
    assert other.receive().opaque == 1
    assert [flood.receive().opaque for _ in range(500)] == list(range(500))
    assert len(order) == 501
    assert order.index("bystander") < 400
    assert flood.ask(request(ECHO, 7)).opaque == 7  # reading continues


def test_one_way_requests_are_handled_after_their_sender_closes(serve: Serve, dial: Dial, loop_factory: object) -> None:
    server = serve(loop_factory=loop_factory, time_slice=0.0)
    client = dial(server.address)
    client.send(*(RemotingCommand.request(ECHO, {}, b"%d" % n, oneway=True) for n in range(500)))
    client.close()
    for _ in range(500):
        assert server.arrived.acquire(timeout=10)
    assert [bytes(seen.body) for seen in server.requests] == [b"%d" % n for n in range(500)]


def test_requests_before_an_invalid_frame_are_answered_in_slices(
    serve: Serve, dial: Dial, loop_factory: object
) -> None:
    client = dial(serve(loop_factory=loop_factory, time_slice=0.0).address)
    frames = b"".join(request(ECHO, n).encode() for n in range(50))
    client.socket.sendall(frames + GARBAGE["no JSON"] + request(ECHO, 99).encode())
    assert [client.receive().opaque for _ in range(50)] == list(range(50))
    assert client.at_end()


def test_a_silent_peer_is_closed(serve: Serve, dial: Dial, loop_factory: object) -> None:
    client = dial(serve(idle_timeout=0.05, loop_factory=loop_factory).address)
    assert client.at_end()


def test_a_peer_may_be_silent_for_120_s(serve: Serve, dial: Dial) -> None:
    """Checked every 30 s, simulated here: closed at the fifth check after its last byte."""
    server = serve()
    client = dial(server.address)
    client.ask(request(ECHO, 1))
    (channel,) = server.server.channels
    for _ in range(4):
        server.run(server.server.watch.sweep)
    client.ask(request(ECHO, 2))  # a byte in time
    for _ in range(4):
        server.run(server.server.watch.sweep)
    assert server.server.channels == {channel}
    server.run(server.server.watch.sweep)
    assert client.at_end()


def test_connections_above_the_limit_are_refused(serve: Serve, dial: Dial) -> None:
    server = serve(limits=Limits(max_connections=1))
    first = dial(server.address)
    assert first.ask(request(ECHO, 1)).opaque == 1
    assert dial(server.address).at_end()
    assert first.ask(request(ECHO, 2)).opaque == 2
    first.close()


# --- start and close ----------------------------------------------------------------------------------------------


def test_each_close_is_reported_once(serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []
    told = threading.Semaphore(0)

    def on_close(channel: Channel) -> None:
        closed.append(channel.remote_addr)
        told.release()
        raise RuntimeError("must not harm the server")

    server = serve(on_close=on_close)
    clients = [dial(server.address) for _ in range(3)]
    names = ["{}:{}".format(*client.socket.getsockname()) for client in clients]
    for client in clients:
        client.ask(request(ECHO))
        client.close()
        assert told.acquire(timeout=10)
    assert closed == names
    assert "close handler of" in caplog.text
    server.close()
    assert closed == names


def test_close_flushes_responses(serve: Serve, dial: Dial) -> None:
    server = serve()
    client = dial(server.address)
    client.send(request(ECHO, 1, b"last"))
    assert server.arrived.acquire(timeout=10)
    server.close()
    assert bytes(client.receive().body) == b"last"
    assert client.at_end()
    with pytest.raises(ConnectionRefusedError):
        dial(server.address)


def test_close_does_not_wait_for_a_peer_that_reads_nothing(serve: Serve, dial: Dial) -> None:
    server, client, channel = with_channel(serve, dial)
    response = RemotingCommand.response(request(), body=bytes(32 << 20))
    server.run(lambda: channel.write(response))
    server.do(server.server.close(grace=0.01))
    assert not channel.is_active
    assert client.socket.fileno() >= 0


def test_a_port_in_use() -> None:
    async def main() -> None:
        first = RemotingServer("127.0.0.1", 0, {})
        await first.start()
        second = RemotingServer("127.0.0.1", first.port, {}, name="name server")
        with pytest.raises(ConfigError, match=rf"name server cannot listen on 127.0.0.1:{first.port}.*in use"):
            await second.start()
        await second.close()
        await first.close()
        await first.close()

    run(main())


@pytest.mark.parametrize("host", ["192.0.2.1", "no host at all"])
def test_an_address_of_another_host(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        run(RemotingServer(host, 0, {}).start())


def test_a_port_can_be_reused_at_once(serve: Serve, dial: Dial) -> None:
    first = serve()
    client = dial(first.address)
    client.ask(request(ECHO))
    port = first.server.port
    first.close()
    second = serve(port=port)
    assert dial(second.address).ask(request(ECHO, 2)).opaque == 2


def test_ipv6(serve: Serve, dial: Dial) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server, client, channel = with_channel(serve, dial, host="::1")
    assert server.address.startswith("[::1]:")
    assert channel.remote_addr == f"[::1]:{client.socket.getsockname()[1]}"
    assert "::1" in repr(channel)


@pytest.mark.parametrize("busy_poll", [0.0, 1e-6, 3600.0])
def test_all_requests_are_served_for_any_busy_poll(serve: Serve, dial: Dial, busy_poll: float) -> None:
    client = dial(serve(busy_poll=busy_poll).address)
    for opaque in range(200):
        assert client.ask(request(ECHO, opaque)).opaque == opaque


def test_a_bound_server_refuses_connections_until_its_start() -> None:
    async def scene() -> None:
        server = RemotingServer("127.0.0.1", 0, {})
        await server.bind()
        address = ("127.0.0.1", server.port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await server.start()
        _, writer = await asyncio.open_connection(*address)
        writer.close()
        await writer.wait_closed()
        await server.close()
        bound = RemotingServer("127.0.0.1", address[1], {})
        await bound.bind()
        await bound.close()  # releases the port
        with socket.create_server(address), pytest.raises(ConfigError, match="the port is in use"):
            await RemotingServer("127.0.0.1", address[1], {}).bind()

    run(scene())


async def bind_two(server: RemotingServer, step: int) -> None:
    """A free port whose neighbour is free too."""
    while True:
        await server.bind()
        try:
            return await server.bind_second(step, "")
        except ConfigError:
            await server.close()


def test_two_ports_are_served() -> None:
    async def scene() -> None:
        echo = {ECHO: lambda channel, command: RemotingCommand.response(command)}
        server = RemotingServer("127.0.0.1", 0, echo, limits=Limits(max_connections=1))
        await bind_two(server, -2)
        second = RawClient(f"127.0.0.1:{server.port - 2}")  # queued in the kernel
        second.send(request(ECHO, 3))
        await server.start()
        await server.serve_second()
        assert (await asyncio.to_thread(second.receive)).opaque == 3
        first = RawClient(server.address)
        assert await asyncio.to_thread(first.at_end), "both ports have one limit"
        await server.close()
        assert await asyncio.to_thread(second.at_end)
        with pytest.raises(ConnectionRefusedError):
            RawClient(f"127.0.0.1:{server.port - 2}")
        first.close()
        second.close()

    run(scene())


def test_a_second_port_in_use() -> None:
    async def scene() -> None:
        other = RemotingServer("127.0.0.1", 0, {})
        await other.start()
        server = RemotingServer("127.0.0.1", 0, {})
        await server.bind()
        with pytest.raises(ConfigError, match=f"{other.port}: the port is in use"):
            await server.bind_second(other.port - server.port, "")
        await server.start()
        socket.create_connection(("127.0.0.1", server.port), 30).close()  # the first port is still served
        await server.close()
        await other.close()

    run(scene())
