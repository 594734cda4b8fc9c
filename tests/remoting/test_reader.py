"""The reader of a connection: its thread, or a caller that waits for a response."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import reader as module
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.client.connection import Connection
from spark_rocket.remoting.client.promise import Request
from spark_rocket.remoting.server.channel import Channel

from .conftest import ECHO, SILENT, ServerThread, request

pytestmark = pytest.mark.live

Serve = Callable[..., ServerThread]
FOR_EVER = 3600.0


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemotingClient]:
    """A client whose readers stay parked until they are woken."""
    monkeypatch.setattr(module, "PARK_S", FOR_EVER)
    with RemotingClient() as client:
        yield client


def parked(client: RemotingClient, address: str) -> Connection:
    """Make a connection with synchronous calls only, so that its reader thread parks."""
    for _ in range(3):
        promise = Request(ECHO, 20)
        promise.is_waited = True
        assert client.invoke_async(address, request(), 20, promise).wait().code == 0
    assert isinstance(promise.carrier, Connection)
    return promise.carrier


def drain(arrived: threading.Semaphore) -> None:
    while arrived.acquire(blocking=False):
        pass


def test_a_caller_reads_its_own_response(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    parked(client, address)
    for size in (1, 100_000, 5_000_000):
        body = bytes(size)
        assert client.invoke(address, request(ECHO, 0, body), 20).body == body


def test_an_async_call_wakes_the_reader(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    for _ in range(50):
        parked(client, address)
        assert client.invoke_async(address, request(), 20).result(20).code == 0


def test_a_pushed_request_is_served_after_a_park(serve: Serve) -> None:
    channels: list[Channel] = []

    def keep(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        channels.append(channel)
        return RemotingCommand.response(command)

    server = serve({9: keep})
    pushed = threading.Event()
    with RemotingClient(request_handler=lambda address, command: pushed.set()) as client:
        for _ in range(3):
            assert client.invoke(server.address, request(9)).code == 0
        server.run(lambda: channels[0].write(RemotingCommand.request(40, oneway=True)))
        assert pushed.wait(10)


def test_close_while_parked(serve: Serve, client: RemotingClient) -> None:
    connection = parked(client, serve().address)
    client.close()
    assert connection.join(10)


def test_a_reading_caller_serves_the_others_and_hands_over(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    parked(client, server.address)
    drain(server.arrived)
    with ThreadPoolExecutor(1) as pool:
        # It reads until its timeout, and leaves the request of another thread unanswered when it stops.
        vain = pool.submit(client.invoke, server.address, request(SILENT), 0.2)
        assert server.arrived.acquire(timeout=10)
        assert client.invoke_async(server.address, request(), 20).result(20).code == 0
        assert client.invoke(server.address, request(), 20).code == 0
        with pytest.raises(RemotingTimeoutError):
            vain.result(10)
    assert client.invoke_async(server.address, request(), 20).result(20).code == 0


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("end", ["closed", "lost", "garbage", "late"])
def test_events_during_a_callers_read(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, polls: bool, end: str
) -> None:
    """With and without polling; other callers fail only when the connection does."""
    monkeypatch.setattr(module, "FAST_RESPONSES", 0 if polls else 1_000_000)
    monkeypatch.setattr(module, "SPIN_S", 0.2)
    channels: list[Channel] = []
    came = threading.Event()

    def keep(channel: Channel, command: RemotingCommand) -> None:
        channels.append(channel)
        came.set()

    server = serve({9: keep})
    parked(client, server.address)
    with ThreadPoolExecutor(2) as pool:
        drain(server.arrived)
        reads = pool.submit(client.invoke, server.address, request(9), 0.3 if end == "late" else 30)
        assert came.wait(10)
        waits = pool.submit(client.invoke, server.address, request(SILENT), 30)
        assert server.arrived.acquire(timeout=10)
        if end == "closed":
            client.close()
        elif end == "lost":
            server.close()
        elif end == "garbage":
            server.run(lambda: channels[0]._transport.write(b"HTTP/1.1 400 Bad Request\r\n"))
        error = reads.exception(10)
        assert type(error) is (RemotingTimeoutError if end == "late" else RemotingConnectError)
        if end == "late":
            assert not waits.done()
            assert client.invoke(server.address, request(), 10).code == 0
            server.close()
        assert type(waits.exception(10)) is RemotingConnectError


def test_an_interrupted_reading_caller_closes_the_connection(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Received but unprocessed bytes are lost, so later frames cannot be separated."""
    address = serve().address
    connection = parked(client, address)

    def interrupt() -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "read_some", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.invoke(address, request(), 20)
    assert not client.is_connected(address)
    assert client.invoke(address, request(), 20).code == 0
    assert connection.join(10)


def test_errors_in_the_reader_thread_fail_its_requests(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any error in the reader thread, all requests of its connection fail."""
    address = serve().address
    other = client.invoke_async(address, request(SILENT), FOR_EVER)
    client.connect(address, 10)
    connection = other.carrier
    assert isinstance(connection, Connection)

    def end() -> bool:
        raise SystemExit

    monkeypatch.setattr(connection, "read_some", end)
    assert client.invoke_async(address, request(), 20).exception(20) is None
    client.invoke_async(address, request(), 20)
    assert isinstance(other.exception(20), RemotingConnectError)
    assert connection.join(10)
