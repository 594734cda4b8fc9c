"""Requests that a server refuses: answered without a handler, and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import OVERLOAD, Limits, QueueCapacity
from spark_rocket.remoting.server.remoting_server import Handler
from tests.kit.waiting import until

from .conftest import ECHO, Dial, RawClient, Serve, ServerThread, request

pytestmark = pytest.mark.live


SEND, BEAT = 8, 9
KINDS = {SEND: "send", BEAT: "heartbeat"}
NO_LIMIT = 1 << 40


# --- an overloaded server -------------------------------------------------------------------------------------------


class Work:
    """Handlers that record their requests, and a clock that advances with every send."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0
        self.served: list[int] = []
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def handle(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        self.served.append(command.opaque)
        self.now += self.step
        return RemotingCommand.response(command)

    def wait(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        self.begun.set()
        assert self.go_on.wait(30)
        return RemotingCommand.response(command)

    def handlers(self) -> dict[int, Handler]:
        return {SEND: self.handle, BEAT: self.handle, 7: self.wait}


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.go_on.set()


def limits(capacity: int = 10_000, max_wait: float = 0.0, **more: int) -> Limits:
    queues = {"heartbeat": QueueCapacity(), "admin": QueueCapacity(), "send": QueueCapacity(capacity, max_wait)}
    return Limits(queues=queues, kinds=KINDS, **more)


def busy_server(serve: Serve, work: Work, limits: Limits) -> ServerThread:
    """A server that handles one request at a time and uses the clock of ``work``."""
    server = serve(work.handlers(), limits=limits, time_slice=0.0)
    server.server.request_queue.clock = lambda: work.now
    server.server.turns.length_s = -1.0
    return server


def at_rest(server: ServerThread) -> None:
    """No request is queued any more."""
    stats = server.server.overload
    assert server.run(lambda: (sum(stats.waiting.values()), stats.waiting_bytes, stats.unfinished_bytes)) == (0, 0, 0)
    assert server.run(lambda: all(count >= 0 for count in stats.waiting.values()))


def oneway(code: int) -> RemotingCommand:
    return RemotingCommand.request(code, {}, b"", oneway=True)


def test_requests_that_waited_too_long_are_rejected(serve: Serve, dial: Dial, work: Work) -> None:
    server = busy_server(serve, work, limits(max_wait=0.2))
    client = dial(server.address)
    client.ask(request(ECHO))
    work.step = 1.0
    asked = [request(SEND, n) for n in range(100)]
    asked[50] = request(BEAT, 50)
    client.send(*asked[:60], oneway(SEND), *asked[60:])
    responses = {response.opaque: response for response in (client.receive() for _ in range(100))}
    assert [n for n in range(100) if responses[n].code == 0] == work.served == [0, 1, 50]
    assert responses[2].code == ResponseCode.SYSTEM_BUSY
    assert responses[2].remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1000ms, size of queue: 99"
    )
    assert server.server.overload.refused == {("send", "timeout"): 98}
    assert client.ask(request(ECHO, 7)).opaque == 7
    at_rest(server)


def test_waiting_time_of_the_first_queued_request(serve: Serve, dial: Dial, work: Work) -> None:
    server = busy_server(serve, work, limits())
    seen: list[float] = []

    def look(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        seen.append(server.server.request_queue.head_waited("send"))
        return work.handle(channel, command)

    server.server.handlers[SEND] = look
    work.step = 1.0
    blocker, one, other = dial(server.address), dial(server.address), dial(server.address)
    for client in (blocker, one, other):
        client.ask(request(ECHO))
    blocker.send(request(7))
    assert work.begun.wait(30)
    for client in (one, other):
        client.send(*(request(SEND, n) for n in range(10)))
    work.go_on.set()
    for client in (one, other):
        assert [client.receive().code for _ in range(10)] == [0] * 10
    assert max(seen) >= 1.0, "the other connection's have waited while this one's were served"
    assert server.run(lambda: server.server.request_queue.head_waited("send")) == 0.0
    assert server.run(lambda: server.server.request_queue.head_waited("no such kind")) == 0.0


def test_a_full_queue_rejects_its_oldest_requests(serve: Serve, dial: Dial, work: Work) -> None:
    server = busy_server(serve, work, limits(capacity=10))
    client = dial(server.address)
    client.ask(request(ECHO))
    client.send(*(request(SEND, n) for n in range(100)))
    responses = [client.receive() for _ in range(100)]
    assert sorted(response.opaque for response in responses) == list(range(100))
    assert work.served == [0, *range(95, 100)]  # then half of the capacity is free
    assert {response.remark for response in responses if response.code} == {OVERLOAD}
    assert server.server.overload.refused == {("send", "overload"): 94}
    at_rest(server)


def test_heartbeats_overtake_a_flood_of_sends(serve: Serve, dial: Dial, work: Work) -> None:
    server = busy_server(serve, work, limits())
    first, *flood, other = [dial(server.address) for _ in range(12)]
    for client in (first, *flood, other):
        client.ask(request(ECHO))
    first.send(request(7, 1))
    assert work.begun.wait(30)  # the loop reads nothing until all requests have arrived
    for client in flood:
        client.send(*(request(SEND, n) for n in range(50)))
    other.send(request(BEAT, 777))
    work.go_on.set()
    assert other.receive().opaque == 777
    for client in flood:
        assert [client.receive().opaque for _ in range(50)] == list(range(50))
    assert work.served.index(777) <= len(flood) + 1
    at_rest(server)


def test_bytes_of_requests_are_bounded(serve: Serve, dial: Dial, work: Work) -> None:
    server = busy_server(serve, work, limits(max_request_bytes=1))
    client = dial(server.address)
    client.ask(request(ECHO))
    client.send(*(request(SEND, n, bytes(100)) for n in range(50)), oneway(SEND))
    responses = {response.opaque: response.code for response in (client.receive() for _ in range(50))}
    assert responses[0] == 0
    assert set(responses) == set(range(50))
    assert set(responses.values()) == {0, ResponseCode.SYSTEM_BUSY}
    assert len(work.served) + server.server.overload.refused.total() == 51
    assert client.ask(request(ECHO, 7)).code == 0
    at_rest(server)


@pytest.mark.parametrize("kind", SerializeType)
def test_a_large_frame_above_the_memory_limit_is_rejected_and_discarded(
    serve: Serve, dial: Dial, work: Work, kind: SerializeType
) -> None:
    server = busy_server(serve, work, limits(max_request_bytes=100_000))
    client = dial(server.address)
    large = request(SEND, 5, bytes(5_000_000))
    large.serialize_type = kind
    data = large.encode()
    client.socket.sendall(data[:400_000])
    response = client.receive()  # before the rest is sent
    assert (response.code, response.opaque, response.remark) == (ResponseCode.SYSTEM_BUSY, 5, OVERLOAD)
    client.socket.sendall(data[400_000:-1])
    client.socket.sendall(data[-1:] + request(ECHO, 6).encode())
    assert client.receive().opaque == 6
    quiet = RemotingCommand.request(SEND, {}, bytes(300_000), oneway=True).encode()
    client.socket.sendall(quiet[:200_000])
    until(lambda: server.server.overload.refused == {("send", "overload"): 2})  # a complete frame would be served
    client.socket.sendall(quiet[200_000:] + request(ECHO, 7).encode())
    assert client.receive().opaque == 7
    assert work.served == []
    at_rest(server)


@pytest.mark.parametrize("end", ["garbage", "gone"])
def test_queued_requests_of_a_closed_connection_are_dropped(serve: Serve, dial: Dial, work: Work, end: str) -> None:
    server = busy_server(serve, work, limits())
    first, client = dial(server.address), dial(server.address)
    assert first.ask(request(ECHO)).code == client.ask(request(ECHO)).code == 0
    first.send(request(7, 1))
    assert work.begun.wait(30)
    frames = b"".join(request(SEND, n).encode() for n in range(20))
    client.socket.sendall(frames + b"\0\0\0\6\0\0\0\2{{" + frames)
    if end == "gone":
        client.close()
    work.go_on.set()
    assert first.receive().opaque == 1
    if end == "garbage":
        assert [client.receive().opaque for _ in range(20)] == list(range(20))
        assert client.at_end()
    while first.ask(request(ECHO)).code == 0 and len(server.server.channels) > 1:
        pass
    at_rest(server)


def test_time_waiting_for_the_peer_to_read_does_not_count(serve: Serve, dial: Dial, work: Work) -> None:
    """Only queued requests are rejected."""
    paused = threading.Event()

    def big(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        work.now += 0.15
        server.loop.call_soon(lambda: channel.is_writable or paused.set())
        return RemotingCommand.response(command, body=bytes(8_000_000))

    server = serve({SEND: big}, limits=limits(max_wait=0.2), high_water=64 * 1024, time_slice=0.0)
    server.server.request_queue.clock = lambda: work.now
    client = dial(server.address)
    client.send(request(SEND, 1), request(SEND, 2))
    assert paused.wait(30)
    work.now += 1000
    assert [client.receive().code for _ in range(2)] == [0, 0]


@pytest.fixture(scope="module")
def small() -> Iterator[ServerThread]:
    work = Work()
    work.step = 0.1
    server = ServerThread(work.handlers(), limits=limits(5, 0.35, max_request_bytes=5_000), time_slice=0.0)
    server.server.request_queue.clock = lambda: work.now
    server.server.turns.length_s = -1.0
    yield server
    server.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([SEND, BEAT, ECHO]), st.integers(0, 3_000)), max_size=30),
        min_size=1,
        max_size=4,
    )
)
def test_each_request_gets_one_response(small: ServerThread, floods: list[list[tuple[int, int]]]) -> None:
    clients = [RawClient(small.address) for _ in floods]
    try:
        for client, flood in zip(clients, floods, strict=True):
            client.send(*(request(code, n, bytes(size)) for n, (code, size) in enumerate(flood)))
        for client, flood in zip(clients, floods, strict=True):
            responses = [client.receive() for _ in flood]
            assert sorted(response.opaque for response in responses) == list(range(len(flood)))
            assert {response.code for response in responses} <= {0, ResponseCode.SYSTEM_BUSY}
            assert client.ask(request(ECHO, 9_999)).opaque == 9_999
    finally:
        for client in clients:
            client.close()
    at_rest(small)


def test_a_suspended_process_rejects_no_requests(serve: Serve, dial: Dial) -> None:
    """Only a thread that cannot finish its backlog lets requests wait."""

    def stopped(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        time.sleep(0.3)
        return RemotingCommand.response(command)

    server = serve({**Work().handlers(), 7: stopped}, limits=limits(max_wait=0.2), time_slice=0.0)
    server.server.turns.length_s = -1.0
    clients = [dial(server.address) for _ in range(3)]
    for client in clients:
        client.ask(request(ECHO))
    clients[0].send(*(request(SEND, n) for n in range(10)), request(7, 10), *(request(SEND, n) for n in range(11, 20)))
    for client in clients[1:]:
        client.send(*(request(SEND, n) for n in range(20)))
    for client in clients:
        assert {client.receive().code for _ in range(20)} == {0}
    assert not server.server.overload.refused


def test_an_error_of_one_connection_does_not_affect_others(
    serve: Serve, dial: Dial, work: Work, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = busy_server(serve, work, limits())
    clients = [dial(server.address) for _ in range(2)]
    real = server.server.request_queue._serve

    def fail_once(channel: Channel, piece: float) -> None:
        monkeypatch.setattr(server.server.request_queue, "_serve", real)
        raise RuntimeError("broken")

    for client in clients:
        client.ask(request(ECHO))
    monkeypatch.setattr(server.server.request_queue, "_serve", fail_once)
    clients[0].send(*(request(SEND, n) for n in range(20)))
    clients[0].receive()
    assert clients[0].at_end()
    clients[1].send(*(request(SEND, n) for n in range(20)))
    assert [clients[1].receive().opaque for _ in range(20)] == list(range(20))
    assert "broken" in caplog.text
    at_rest(server)
