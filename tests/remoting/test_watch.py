"""Limits for connections that use resources without requests."""

from __future__ import annotations

import logging
import threading

import pytest

from spark_rocket.errors import RemotingTooMuchRequestError
from spark_rocket.namesrv.name_server import name_server_limits
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import Limits

from .conftest import ECHO, Dial, RawClient, Serve, ServerThread, request, with_channel

pytestmark = pytest.mark.live


class Time:
    """A clock for the checks of connections."""

    def __init__(self, server: ServerThread) -> None:
        self.now = 100.0
        self.server = server
        server.server.watch.clock = lambda: self.now

    def passes(self, seconds: int) -> None:
        """Check the connections every second."""
        for _ in range(seconds):
            self.now += 1
            self.look()

    def look(self) -> None:
        self.server.run(self.server.server.watch.check)


def served(serve: Serve, **options: object) -> tuple[ServerThread, Time]:
    server = serve(limits=Limits(**options))  # type: ignore[arg-type]
    return server, Time(server)


def test_connections_per_address_are_limited(serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    server, time = served(serve, max_connections_per_address=2)
    clients = [dial(server.address) for _ in range(2)]
    for client in clients:
        client.ask(request(ECHO))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert dial(server.address).at_end()
        assert len([line for line in caplog.messages if "maxConnectionsPerAddress" in line]) == 1
        time.passes(11)
        assert dial(server.address).at_end()
    assert "5 connections" not in caplog.text
    assert caplog.messages[-1].endswith("(suppressed 4 more since the last such line)")
    assert server.server.overload.connections_refused == {"address": 6}
    clients[0].close()
    while server.run(lambda: len(server.server.channels)) > 1:
        assert clients[1].ask(request(ECHO)).code == 0
    assert dial(server.address).ask(request(ECHO)).code == 0


def test_silent_connections_are_closed_earlier(serve: Serve, dial: Dial) -> None:
    server, time = served(serve, first_request=30)
    silent, half, speaks = [dial(server.address) for _ in range(3)]
    speaks.ask(request(ECHO))
    half.socket.sendall(b"\0")
    while not server.run(lambda: len(server.server.watch.newcomers) == 1 and len(server.server.channels) == 3):
        speaks.ask(request(ECHO))
    time.passes(29)
    assert server.server.overload.silent == 0
    time.passes(1)
    assert silent.at_end()
    assert speaks.ask(request(ECHO)).code == 0
    assert server.server.overload.silent == 1
    time.passes(1)
    assert half.at_end()  # a byte is not a request
    assert server.server.overload.slow_writers == 1


def test_a_name_server_closes_silent_connections_after_120_s(serve: Serve, dial: Dial) -> None:
    """Java clients of 5.x connect to each name server and reconnect at once when closed."""
    server = serve(limits=name_server_limits())
    time = Time(server)
    idle, speaks = dial(server.address), dial(server.address)
    while not server.run(lambda: len(server.server.watch.newcomers) == 1 and len(server.server.channels) == 2):
        speaks.ask(request(ECHO))
    time.passes(119)
    assert server.server.overload.silent == 0
    time.passes(1)
    assert idle.at_end()


def test_an_incomplete_frame(serve: Serve, dial: Dial) -> None:
    """A large frame has more time: a second for each 16 KiB received."""
    server, time = served(serve, slow_writer=30)
    slow, large, other = [dial(server.address) for _ in range(3)]
    other.ask(request(ECHO))
    frame = request(ECHO, 1, bytes(400_000)).encode()
    slow.socket.sendall(frame[:10])
    large.socket.sendall(frame[: 10 * 16 * 1024])
    stats = server.server.overload
    while server.run(lambda: stats.unfinished_bytes) < 10 * 16 * 1024 + 10:
        other.ask(request(ECHO))
    time.passes(31)
    assert slow.at_end()
    assert stats.slow_writers == 1
    large.socket.sendall(frame[10 * 16 * 1024 :])
    assert large.receive().opaque == 1
    assert stats.unfinished_bytes == 0
    time.passes(1000)
    assert large.ask(request(ECHO, 2)).opaque == 2
    assert stats.slow_writers == 1


def test_an_incomplete_frame_after_a_complete_one(serve: Serve, dial: Dial) -> None:
    """It is detected when all connections are checked, four times per idle timeout."""
    server, time = served(serve, slow_writer=30)
    client = dial(server.address)
    client.socket.sendall(request(ECHO, 1).encode() + b"\0\0\1")
    assert client.receive().opaque == 1
    server.run(server.server.watch.sweep)
    assert server.server.overload.unfinished_bytes == 3
    time.passes(31)
    assert client.at_end()
    assert server.server.overload.unfinished_bytes == 0


def big_answers(serve: Serve, size: int, **options: object) -> tuple[ServerThread, Time, threading.Semaphore]:
    """A server whose responses to code 9 exceed a peer's buffers; the semaphore counts peers that fell behind."""
    paused = threading.Semaphore(0)

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        server.loop.call_soon(lambda: channel.is_writable or paused.release())
        return RemotingCommand.response(command, body=bytes(size))

    server = serve({9: big}, high_water=64 * 1024, limits=Limits(**options))  # type: ignore[arg-type]
    return server, Time(server), paused


def is_cut_off(client: RawClient) -> bool:
    """Whether a large response is truncated."""
    try:
        client.receive()
    except (EOFError, ConnectionResetError):
        return True
    return False


def test_a_peer_that_reads_nothing_is_disconnected(serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    server, time, paused = big_answers(serve, 15_000_000, slow_reader=30)
    client, other = dial(server.address), dial(server.address)
    other.ask(request(ECHO))
    client.send(request(9, 1))
    assert paused.acquire(timeout=30)
    time.look()  # the kernel's buffers fill up soon
    unread = -1
    while unread != server.run(lambda: server.server.overload.unread_bytes):
        unread = server.run(lambda: server.server.overload.unread_bytes)
        other.ask(request(ECHO))
        time.look()
    assert unread > 1_000_000
    with caplog.at_level(logging.WARNING):
        time.passes(30)
    assert "not reading" in caplog.text
    assert server.server.overload.slow_readers == 1
    assert server.server.overload.unread_bytes == 0
    assert is_cut_off(client)
    assert other.ask(request(ECHO)).code == 0


def test_a_slow_reader_is_not_disconnected(serve: Serve, dial: Dial) -> None:
    server, time, paused = big_answers(serve, 15_000_000, slow_reader=30)
    client, other = dial(server.address), dial(server.address)
    other.ask(request(ECHO))
    client.send(request(9, 1))
    assert paused.acquire(timeout=30)
    for _ in range(2):
        before = server.run(lambda: server.server.overload.unread_bytes)
        while server.run(lambda: next(iter(server.server.watch.behind)).unread) >= before:
            client.frames.extend(client.splitter.feed(client.socket.recv(1 << 18)))
        time.passes(29)
    assert client.receive().opaque == 1
    assert server.server.overload.slow_readers == 0
    while server.run(lambda: server.server.overload.unread_bytes):
        other.ask(request(ECHO))


def test_unread_responses_are_bounded(serve: Serve, dial: Dial) -> None:
    server, time, paused = big_answers(serve, 15_000_000, max_answer_bytes=15_000_000)
    told: list[bool] = []
    server.server.watch.on_unread = told.append
    clients = [dial(server.address) for _ in range(6)]
    stats = server.server.overload
    for client in clients:
        client.send(request(9, 1))
        assert paused.acquire(timeout=30)
        time.now += 1
        assert server.run(lambda: stats.unread_bytes) <= 30_000_000
    assert stats.slow_readers >= 2
    assert told[0] is True
    assert is_cut_off(clients[0])  # the peer that has read nothing for the longest time
    assert clients[-1].receive().opaque == 1
    for client in clients:
        client.close()
    while server.run(lambda: bool(server.server.channels)):
        pass
    assert told[-1] is False
    assert stats.unread_bytes == 0


def test_a_stalled_large_frame_does_not_block_other_requests(serve: Serve, dial: Dial) -> None:
    """Sixteen such frames would occupy all memory for requests for a quarter of an hour."""
    server, time = served(serve, max_request_bytes=1_000_000)
    stats = server.server.overload
    frame = request(ECHO, 1, bytes(1_000_000)).encode()
    hoard, other = dial(server.address), dial(server.address)
    hoard.socket.sendall(frame[:900_000])
    while server.run(lambda: stats.unfinished_bytes) < 900_000:
        pass
    time.now += 10
    other.socket.sendall(frame[:500_000])
    assert hoard.at_end()
    other.socket.sendall(frame[500_000:])
    assert other.receive().code == 0
    assert (stats.slow_writers, stats.unfinished_bytes, sum(stats.refused.values())) == (1, 0, 0)


def test_a_suspended_process_closes_no_connections(serve: Serve, dial: Dial) -> None:
    """Like a suspended laptop: data that arrived meanwhile is in the sockets and is read after the check."""
    server, time, paused = big_answers(serve, 15_000_000)
    reader, half, silent = [dial(server.address) for _ in range(3)]
    reader.send(request(9, 1))
    frame = request(ECHO, 2).encode()
    half.socket.sendall(frame[:10])
    assert paused.acquire(timeout=30)
    while server.run(lambda: server.server.overload.unfinished_bytes) < 10:
        pass
    time.look()
    time.now += 1000
    time.look()
    half.socket.sendall(frame[10:])
    assert (half.receive().opaque, reader.receive().opaque, silent.ask(request(ECHO, 3)).opaque) == (2, 1, 3)


def test_one_way_requests_to_a_slow_reader_are_bounded(serve: Serve, dial: Dial) -> None:
    channels: list[Channel] = []

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        channels.append(channel)
        server.loop.call_soon(lambda: channel.is_writable or paused.set())
        return RemotingCommand.response(command, body=bytes(15_000_000))

    paused = threading.Event()
    server = serve({9: big}, high_water=64 * 1024, limits=Limits(max_oneway=3))
    client = dial(server.address)
    client.send(request(9, 1))
    assert paused.wait(30)

    def tell() -> None:
        for _ in range(10):
            channels[0].write(RemotingCommand.request(40, oneway=True))

    server.run(tell)
    assert server.server.overload.oneway_dropped == 7
    assert [client.receive().code for _ in range(4)] == [0, 40, 40, 40]
    client.ask(request(ECHO))
    server.run(tell)
    assert [client.receive().code for _ in range(10)] == [40] * 10
    assert server.server.oneways_waiting == 0


def test_requests_to_a_peer_that_does_not_answer_are_bounded(serve: Serve, dial: Dial) -> None:
    server, client, channel = with_channel(serve, dial, limits=Limits(max_async=2))
    futures = [server.run(lambda: channel.invoke(RemotingCommand.request(307))) for _ in range(3)]
    assert isinstance(futures[2].exception(), RemotingTooMuchRequestError)
    assert server.server.overload.async_refused == 1
    client.send(*(RemotingCommand.response(client.receive()) for _ in range(2)))
    client.ask(request(ECHO, 5))
    assert all(future.done() for future in futures)
    third = server.run(lambda: channel.invoke(RemotingCommand.request(307)))
    client.send(RemotingCommand.response(client.receive()))
    client.ask(request(ECHO, 6))
    assert third.result().code == 0
