"""Who reads: the reader, or a synchronous caller while the reader is parked."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest

from spark_rocket.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import connection as module
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.client.connection import Connection
from spark_rocket.remoting.client.waiters import FutureWaiter, SyncWaiter
from spark_rocket.remoting.server.server import Channel

from .conftest import ECHO, SILENT, ServerThread, request

Serve = Callable[..., ServerThread]
FOR_EVER = 3600.0


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    with RemotingClient() as client:
        yield client


def parked(client: RemotingClient, address: str) -> Connection:
    """Call until the reader has parked."""
    for _ in range(10_000):
        assert client.invoke(address, request()).code == 0
        connection = client._places[address].connection
        assert connection is not None
        if connection._parked:
            return connection
    pytest.fail("the reader does not park")


@pytest.mark.parametrize("park", [0.0, module.PARK, FOR_EVER])
def test_all_kinds_of_calls_from_many_threads(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, park: float
) -> None:
    monkeypatch.setattr(module, "PARK", park)
    address = serve().address

    def work(thread: int) -> None:
        for n in range(150):
            body = b"%d/%d" % (thread, n) * (1 + 500 * (n % 50))
            if (n + thread) % 3:
                assert client.invoke(address, request(ECHO, 0, body), 20).body == body
            else:
                futures = [client.invoke_async(address, request(ECHO, 0, body), 20) for _ in range(n % 4 + 1)]
                assert all(future.result(20).body == body for future in futures)

    work(0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_caller_reads_its_own_answer(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    address = serve().address
    connection = parked(client, address)
    turns = connection._turns
    for size in (1, 100_000, 5_000_000):
        body = bytes(size)
        assert client.invoke(address, request(ECHO, 0, body), 20).body == body
    assert connection._turns == turns + 3
    assert connection._parked


def test_an_async_call_wakes_the_reader(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    address = serve().address
    for _ in range(50):
        parked(client, address)
        assert client.invoke_async(address, request(), 20).result(20).code == 0


def test_who_reads_serves_the_others_and_hands_over(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    server = serve()
    parked(client, server.address)
    with ThreadPoolExecutor(1) as pool:
        while server.arrived.acquire(blocking=False):
            pass
        # It reads while it waits in vain, and leaves somebody else's request unanswered when it stops.
        vain = pool.submit(client.invoke, server.address, request(SILENT), 0.2)
        assert server.arrived.acquire(timeout=10)
        assert client.invoke_async(server.address, request(), 20).result(20).code == 0
        assert client.invoke(server.address, request(), 20).code == 0
        with pytest.raises(RemotingTimeoutError):
            vain.result(10)
    assert client.invoke_async(server.address, request(), 20).result(20).code == 0


def test_a_pushed_request_is_served_after_a_park(serve: Serve) -> None:
    channels: list[Channel] = []

    def keep(channel: Channel, command: RemotingCommand) -> RemotingCommand:
        channels.append(channel)
        return RemotingCommand.response(command)

    server = serve({9: keep})
    pushed = threading.Event()
    with RemotingClient(request_handler=lambda address, command: pushed.set()) as client:
        assert client.invoke(server.address, request(9)).code == 0
        parked(client, server.address)
        server.run(lambda: channels[0].write(RemotingCommand.request(40, oneway=True)))
        assert pushed.wait(10)


@pytest.mark.parametrize("park", [module.PARK, FOR_EVER])
def test_close_while_parked(serve: Serve, monkeypatch: pytest.MonkeyPatch, park: float) -> None:
    monkeypatch.setattr(module, "PARK", park)
    server = serve()
    client = RemotingClient()
    connection = parked(client, server.address)
    client.close()
    connection._reader.join(10)
    assert not connection._reader.is_alive()
    assert connection._socket.fileno() == -1


def test_the_end_while_a_caller_reads(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    server = serve()
    parked(client, server.address)
    while server.arrived.acquire(blocking=False):
        pass
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(client.invoke, server.address, request(SILENT), 60) for _ in range(2)]
        assert server.arrived.acquire(timeout=10)
        assert server.arrived.acquire(timeout=10)
        server.close()
        for call in calls:
            with pytest.raises(RemotingConnectError, match="closed by the peer"):
                call.result(10)


def test_an_interrupted_caller_ends_the_connection(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were received and not served are lost, so nothing that follows can be told apart."""
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    address = serve().address
    connection = parked(client, address)

    def interrupt(data: bytes) -> list[memoryview]:
        raise KeyboardInterrupt

    connection.session.receive = interrupt  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        client.invoke(address, request())
    assert not client.is_connected(address)
    assert client.invoke(address, request()).code == 0
    assert client._places[address].connection is not connection


def ask(client: RemotingClient, how: str, address: str) -> None:
    """One call of any kind."""
    if how == "post":
        client.post(address, request(), SyncWaiter(), 60)
    else:
        getattr(client, how)(address, request(), 60)


class Interrupts:
    """A lock: whoever takes it is interrupted before he can note it."""

    def __init__(self, lock: threading.Lock, armed: bool = True) -> None:
        self.lock = lock
        self.armed = armed

    def acquire(self, *args: Any, **options: Any) -> bool:
        taken = self.lock.acquire(*args, **options)
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            raise KeyboardInterrupt
        return taken

    def release(self) -> None:
        self.lock.release()

    def locked(self) -> bool:
        return self.lock.locked()


@pytest.mark.parametrize(
    ("which", "how"),
    [("_reading", "invoke"), *(("writing", how) for how in ("invoke", "invoke_async", "post", "invoke_oneway"))],
)
def test_a_lock_that_an_interrupted_caller_leaves_taken(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, which: str, how: str
) -> None:
    """Nobody waits for it: the others are told, and the next call makes a connection of its own."""
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    monkeypatch.setattr(module, "LEFT", 0.01)
    address = serve().address
    connection = parked(client, address)
    other = FutureWaiter(lambda: None)
    connection.session.expect(0, other)
    owner: Any = connection if which == "_reading" else connection._outbox
    setattr(owner, which, Interrupts(getattr(owner, which)))
    with pytest.raises(KeyboardInterrupt):
        ask(client, how, address)
    assert not client.is_connected(address)
    assert isinstance(other.future.exception(0), RemotingConnectError)
    assert client.invoke(address, request()).code == 0
    assert client._places[address].connection is not connection
    connection.join(10)
    assert not connection._reader.is_alive()
    assert connection._socket.fileno() == -1


@pytest.mark.parametrize("how", ["invoke", "invoke_async", "post"])
def test_a_ctrl_c_is_not_swallowed_when_the_connection_is_lost_meanwhile(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    address = serve().address
    connection = parked(client, address)

    def interrupt(*_: object) -> None:
        connection.close()
        connection.join(10)  # everybody has been told
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(client, how, address)
    assert client._permits._places.qsize() == 4096
    assert client.invoke(address, request()).code == 0


def test_an_answer_whose_delivery_is_interrupted_counts_as_lost(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    connection = parked(client, address)
    waiter = FutureWaiter(lambda: None)
    interrupted = Mock(wraps=waiter, complete=Mock(side_effect=KeyboardInterrupt))
    connection.session.expect(7, interrupted)
    answer = request(opaque=7)
    answer.flag |= 1
    with pytest.raises(KeyboardInterrupt):
        connection._dispatch(answer)
    with pytest.raises(RemotingConnectError, match="interrupted"):
        waiter.future.result(0)


def test_who_fails_to_write_says_that_the_connection_is_lost(serve: Serve, client: RemotingClient) -> None:
    address = serve().address
    connection = parked(client, address)
    with connection._reading:  # so that nobody else notices
        connection._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(RemotingConnectError):
            client.invoke_oneway(address, request())
        assert not client.is_connected(address)
    assert client.invoke(address, request()).code == 0


def test_no_thread_for_a_reader(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    address = serve().address
    with monkeypatch.context() as patch:
        patch.setattr(module.threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RemotingConnectError, match="can't start new thread"):
            client.invoke(address, request())
    assert client.invoke(address, request()).code == 0


class Exits:
    """A waiter that ends whatever thread tells it."""

    def __init__(self) -> None:
        self.told: SimpleQueue[RemotingCommand | RemotingError] = SimpleQueue()

    def complete(self, response: RemotingCommand) -> None:
        self.fail(response)

    def fail(self, error: RemotingCommand | RemotingError) -> None:
        self.told.put(error)
        sys.exit(1)


def test_a_callbacks_system_exit_is_its_own_affair(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    address = serve().address
    answered, lost, expired = [[Exits() for _ in range(3)] for _ in range(3)]
    with RemotingClient() as client:
        for waiters, code, timeout in ((answered, ECHO, 20), (lost, SILENT, FOR_EVER), (expired, SILENT, 0.01)):
            for waiter in waiters:
                client.post(address, request(code), waiter, timeout)
        assert {type(waiter.told.get(timeout=20)) for waiter in answered} == {RemotingCommand}
        assert {type(waiter.told.get(timeout=20)) for waiter in expired} == {RemotingTimeoutError}
        assert client.invoke(address, request()).code == 0
        assert all(waiter.told.empty() for waiter in lost)
    assert {type(waiter.told.get(timeout=20)) for waiter in lost} == {RemotingConnectError}
    assert "SystemExit: 1" in caplog.text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("end", ["closed", "garbage", "late"])
def test_what_may_happen_to_who_reads(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quick: bool, end: str
) -> None:
    """With and without looking for the answer again and again; others who wait do not suffer more than they must."""
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    monkeypatch.setattr(module, "SPIN", 0.2)
    channels: list[Channel] = []

    def keep(channel: Channel, command: RemotingCommand) -> None:
        channels.append(channel)

    server = serve({9: keep})
    with RemotingClient() as client, ThreadPoolExecutor(2) as pool:
        connection = parked(client, server.address)
        connection._quick = module.QUICK_ANSWERS * quick
        while server.arrived.acquire(blocking=False):
            pass
        reads = pool.submit(client.invoke, server.address, request(9), 0.3 if end == "late" else 30)
        while connection._reading_thread is None or not channels:
            pass
        waits = pool.submit(client.invoke, server.address, request(SILENT), 30)
        assert server.arrived.acquire(timeout=10)
        if end == "closed":
            client.close()
        elif end == "garbage":
            server.run(lambda: channels[0]._transport.write(b"HTTP/1.1 400 Bad Request\r\n"))
        error = reads.exception(10)
        assert type(error) is (RemotingTimeoutError if end == "late" else RemotingConnectError)
        if end == "late":
            assert not waits.done()
            assert client.invoke(server.address, request(), 10).code == 0
            server.close()
        assert type(waits.exception(10)) is RemotingConnectError


def test_a_slow_answer_ends_the_looking(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARK", FOR_EVER)
    server = serve()
    connection = parked(client, server.address)
    monkeypatch.setattr(module, "QUICK", FOR_EVER)
    connection._quick = 5
    client.invoke(server.address, request())
    assert connection._quick == 6
    monkeypatch.setattr(module, "QUICK", 0.0)
    client.invoke(server.address, request())
    assert connection._quick == 0
