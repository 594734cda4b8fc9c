"""The server's side of one connection: late responses, peers that do not read, requests to the peer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

from .conftest import ECHO, Dial, Serve, ServerThread, request, with_channel

pytestmark = pytest.mark.live


def test_a_late_response(serve: Serve, dial: Dial) -> None:
    held: list[tuple[Channel, RemotingCommand]] = []

    def hold(channel: Channel, command: RemotingCommand) -> None:
        held.append((channel, command))

    server = serve({9: hold})
    client = dial(server.address)
    client.send(request(9, 1), request(9, 2))
    assert client.ask(request(ECHO, 3)).opaque == 3
    (channel, first), (_, second) = held

    def response() -> None:
        channel.write(RemotingCommand.response(second, body=b"2"))
        channel.write(RemotingCommand.response(first, body=b"1" * 100_000))

    server.run(response)
    assert client.receive().opaque == 2
    assert client.receive().body == b"1" * 100_000


def test_a_late_reader_gets_all_responses_in_order(serve: Serve, dial: Dial, loop_factory: object) -> None:
    server = serve(loop_factory=loop_factory, high_water=64 * 1024)
    client = dial(server.address)
    count, size = 300, 100_000

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        server.note(command)
        return RemotingCommand.response(command, body=bytes(size))

    server.server.handlers[9] = big
    client.send(*(request(9, n) for n in range(count)))
    client.send(request(9, count))
    assert server.arrived.acquire(timeout=10)
    for n in range(count + 1):
        assert client.receive().opaque == n
    # Nearly all were handled only when there was room for their responses: the server never held them all.
    assert len(server.requests) == count + 1


def test_requests_of_a_peer_that_does_not_read_are_not_handled(serve: Serve, dial: Dial, loop_factory: object) -> None:
    paused = threading.Event()

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        server.note(command)
        assert channel.is_writable
        server.loop.call_soon(lambda: channel.is_writable or paused.set())
        return RemotingCommand.response(command, body=bytes(1_000_000))

    server = serve({9: big}, loop_factory=loop_factory, high_water=64 * 1024)
    client = dial(server.address)
    other = dial(server.address)
    client.send(*(request(9, n) for n in range(200)))
    assert paused.wait(10)
    assert other.ask(request(ECHO, 1)).opaque == 1
    assert (
        len(server.requests) < 100
    )  # 200 MB were requested; only responses for the kernel's buffers and one more were created
    for n in range(200):
        assert client.receive().opaque == n


def test_a_peer_far_behind_is_disconnected(serve: Serve, dial: Dial, loop_factory: object) -> None:
    gone = threading.Event()
    options = {"loop_factory": loop_factory, "high_water": 64 * 1024, "hard_limit": 4 << 20}
    server, _, channel = with_channel(serve, dial, on_close=lambda _: gone.set(), **options)
    push = RemotingCommand.response(request(9, 1))

    def flood() -> None:
        for _ in range(64):
            channel.write(RemotingCommand.response(push, body=bytes(1 << 20)))

    server.run(flood)
    assert gone.wait(10)
    assert not channel.is_active
    server.run(lambda: channel.write(push))  # after the close it does nothing


# --- requests to the peer -----------------------------------------------------------------------------------------


def invoke(server: ServerThread, channel: Channel, timeout: float) -> object:
    async def ask() -> RemotingCommand:
        return await channel.invoke(RemotingCommand.request(307), timeout)

    return asyncio.run_coroutine_threadsafe(ask(), server.loop)


def test_a_request_from_the_server_is_answered(serve: Serve, dial: Dial) -> None:
    server, client, channel = with_channel(serve, dial)
    asked = invoke(server, channel, 10)
    push = client.receive()
    assert push.code == 307
    assert not push.is_response
    stranger = RemotingCommand.response(push, body=b"nobody asked")
    stranger.opaque += 1000
    client.send(stranger, RemotingCommand.response(push, body=b"here"))
    assert bytes(asked.result(10).body) == b"here"  # type: ignore[attr-defined]


def test_a_request_from_the_server_times_out(serve: Serve, dial: Dial) -> None:
    server, client, channel = with_channel(serve, dial)
    with pytest.raises(RemotingTimeoutError, match="GET_CONSUMER_RUNNING_INFO"):
        invoke(server, channel, 0.01).result(10)  # type: ignore[attr-defined]
    lost = invoke(server, channel, 10)
    assert client.receive().code == 307
    assert client.receive().code == 307
    client.close()
    with pytest.raises(RemotingConnectError, match="lost"):
        lost.result(10)  # type: ignore[attr-defined]
    with pytest.raises(RemotingConnectError, match="lost"):
        invoke(server, channel, 10).result(10)  # type: ignore[attr-defined]


def test_one_way_requests_are_numbered(serve: Serve, dial: Dial) -> None:
    server, client, channel = with_channel(serve, dial)
    server.run(lambda: [channel.write(RemotingCommand.request(40, oneway=True)) for _ in range(2)])
    first, second = client.receive(), client.receive()
    assert first.is_oneway
    assert first.opaque != second.opaque
