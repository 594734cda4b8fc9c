"""The gRPC endpoint when there is too much to do: who is served, who is told to come again, what is left of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_rocket.broker.service import BrokerService
from spark_rocket.proxy import definitions, grpc_connection
from spark_rocket.proxy.context import Context, Rpc
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.remoting.overload import OVERLOAD, Limits, Queue
from tests.proxy.caller import Caller
from tests.proxy.grpc_world import LIMIT, Peer, World, framed
from tests.proxy.outgoing import message, send
from tests.proxy.test_http2 import START

BUSY = b"come again"


class Busy(World):
    """Methods that take a second each, by the server's clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        super().__init__(**options)
        self.server.clock = lambda: self.now

    def rpcs(self) -> dict[str, Rpc]:
        async def work(context: Context, request: bytes) -> bytes:
            self.now += 1.0
            self.seen.append(request)
            return request

        return {"/t.T/Send": Rpc(work, kind="send", busy=BUSY), "/t.T/Beat": Rpc(work)}


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "TIME_SLICE", 0.0)
    monkeypatch.setattr(grpc_connection, "_SHORTEST", 0.0)


@pytest.fixture
def busy() -> Iterator[Callable[..., Busy]]:
    started: list[Busy] = []

    def start(patience: float, **limits: int) -> Busy:
        started.append(Busy(limits=Limits(queues={"send": Queue(10, patience)}, **limits)))
        return started[-1]

    yield start
    for world in started:
        world.wait(world.idle)
        assert world.server.waiting == world.server.overload.waiting_bytes == 0
        world.close()


def at_once(peer: Peer, *paths: str) -> list[int]:
    """Many requests in one write; their streams."""
    flush, peer.flush = peer.flush, lambda: None  # type: ignore[method-assign]
    streams = [peer.request(path, framed(b"%d" % number)) for number, path in enumerate(paths)]
    peer.flush = flush  # type: ignore[method-assign]
    peer.flush()
    return streams


def test_who_waited_too_long_is_told_to_come_again(busy: Callable[..., Busy]) -> None:
    world = busy(3.5)
    paths = ["/t.T/Send"] * 30
    paths[20] = "/t.T/Beat"
    with Peer(world.server.port) as peer:
        answers = [peer.ended(stream) for stream in at_once(peer, *paths)]
    assert {fields["grpc-status"] for fields, _ in answers} == {"0"}
    served = [number for number, (_, data) in enumerate(answers) if data != framed(BUSY)]
    assert 20 in served
    assert 4 <= len(served) <= 8
    assert [int(request) for request in world.seen] == served
    assert world.server.overload.refused == {("send", "timeout"): 30 - len(served)}


def test_what_waits_is_bounded(busy: Callable[..., Busy]) -> None:
    world = busy(0.0, max_request_bytes=1)
    with Peer(world.server.port) as peer:
        answers = [peer.ended(stream)[1] for stream in at_once(peer, *["/t.T/Send"] * 30)]
        assert answers.count(framed(BUSY)) >= 20
        stream = peer.request("/t.T/Send", framed(b"later"))
        assert peer.ended(stream)[1] == framed(b"later")
    assert set(world.server.overload.refused) == {("send", "overload")}


def test_a_connection_that_ends_while_it_waits(busy: Callable[..., Busy]) -> None:
    world = busy(0.0)
    for _ in range(3):
        with Peer(world.server.port) as peer:
            at_once(peer, *["/t.T/Send"] * 200)
    with Peer(world.server.port) as peer:
        assert peer.ended(peer.request("/t.T/Beat", framed(b"on")))[1] == framed(b"on")


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_of_one_address(busy: Callable[..., Busy]) -> None:
    world = busy(0.0, max_connections_per_address=1)
    with Peer(world.server.port):
        with socket.create_connection(("127.0.0.1", world.server.port), timeout=LIMIT) as second:
            second.sendall(START)
            assert is_closed(second)
        assert world.server.overload.connections_refused == {"address": 1}
    world.wait(lambda: not world.server.connections)
    with Peer(world.server.port) as peer:
        assert peer.ended(peer.request("/t.T/Beat", framed(b"on")))[1] == framed(b"on")


def test_a_broker_in_trouble(client: Caller, proxy: ProxyServer, service: BrokerService, topic: str) -> None:
    """Its SYSTEM_BUSY is TOO_MANY_REQUESTS here, as is what has waited too long."""
    code = definitions.Code
    assert send(client, message(topic)).status.code == code.OK
    service.overload.sends = "busy"
    try:
        assert send(client, message(topic)).status.code == code.TOO_MANY_REQUESTS
        assert service.overload.stats.refused["send", "page_cache"] >= 1
    finally:
        service.overload.sends = None
    assert send(client, message(topic)).status.code == code.OK
    assert proxy.families is not None
    methods = {path.rpartition("/")[2]: rpc for path, rpc in proxy.families.rpcs().items()}
    assert {name: rpc.kind for name, rpc in methods.items() if rpc.kind} == {
        "SendMessage": "send",
        "ReceiveMessage": "pull",
    }
    answer = definitions.SendMessageResponse.FromString(methods["SendMessage"].busy)
    assert (answer.status.code, answer.status.message) == (code.TOO_MANY_REQUESTS, OVERLOAD)
