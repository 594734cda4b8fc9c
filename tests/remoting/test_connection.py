"""Connections: batched requests, interrupts, and their end."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from spark_rocket.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import connection as module
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.client.connection import WINDOW, Connection
from spark_rocket.remoting.client.promise import Promise, Request, no_answer, resolve_each

from .conftest import ECHO, SILENT, RawClient, ServerThread, request

Serve = Callable[..., ServerThread]
FOR_EVER = 3600.0


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    with RemotingClient() as client:
        yield client


def post(client: RemotingClient, address: str, command: RemotingCommand, timeout: float) -> Request:
    promise = Request(int(command.code), timeout, batch=True)
    client.submit(address, command, promise)
    return promise


def test_the_first_outcome_of_a_promise_counts(caplog: pytest.LogCaptureFixture) -> None:
    promise: Promise[int] = Promise()
    called: list[int] = []
    promise.add_done_callback(lambda done: called.append(done.result()))
    promise.add_done_callback(lambda _: sys.exit(1))
    assert not promise.cancel()
    assert promise.resolve(1)
    assert not promise.resolve(2)
    assert not promise.fail(ValueError())
    assert promise.result() == 1
    assert called == [1]
    assert "SystemExit: 1" in caplog.text


def test_promises_that_are_settled_together() -> None:
    promises: list[Promise[int]] = [Promise() for _ in range(3)]
    called: list[int] = []
    promises[1].add_done_callback(lambda done: called.append(done.result()))
    promises[2].fail(ValueError("before"))
    resolve_each(promises, [0, 1, 2])
    assert [promise.done() for promise in promises] == [True] * 3
    assert (promises[0].result(), promises[1].result(), called) == (0, 1, [1])
    with pytest.raises(ValueError, match="before"):
        promises[2].result()


def test_all_kinds_of_calls_from_many_threads(serve: Serve, client: RemotingClient) -> None:
    address = serve().address

    def work(thread: int) -> None:
        for n in range(150):
            body = b"%d/%d" % (thread, n) * (1 + 500 * (n % 50))
            if (n + thread) % 3:
                assert client.invoke(address, request(ECHO, 0, body), 20).body == body
            else:
                futures = [client.invoke_async(address, request(ECHO, 0, body), 20) for _ in range(n % 4 + 1)]
                assert all(future.result(20).body == body for future in futures)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# --- batching -----------------------------------------------------------------------------------------------------


def test_batched_requests_and_calls_of_many_threads_over_one_connection(serve: Serve, client: RemotingClient) -> None:
    """Everything is answered, and each thread's requests arrive in their order, small and large bodies mixed."""
    server = serve()
    promises: dict[int, list[Request]] = {thread: [] for thread in range(4)}

    def work(thread: int) -> None:
        for n in range(300):
            body = b"%d/%d" % (thread, n) + bytes(20_000 if n % 50 == 0 else n)
            command = request(ECHO, 0, body, thread=str(thread), n=str(n))
            promises[thread].append(post(client, server.address, command, 30))
            if n % 40 == 0:
                assert client.invoke(server.address, request(ECHO, 0, b"sync"), 30).body == b"sync"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for thread, each in promises.items():
        answers = [promise.result(30).ext_fields for promise in each]
        assert answers == [{"thread": str(thread), "n": str(n)} for n in range(300)]
        arrived = [r.ext_fields["n"] for r in server.requests if r.ext_fields.get("thread") == str(thread)]
        assert arrived == [str(n) for n in range(300)]


def test_unanswered_requests_do_not_hold_up_others(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    silent = [post(client, server.address, request(SILENT), FOR_EVER) for _ in range(3 * WINDOW)]
    assert post(client, server.address, request(ECHO), FOR_EVER).result(20).code == 0
    assert not any(promise.done() for promise in silent)


@pytest.mark.parametrize("end", ["closed", "lost"])
def test_the_end_fails_all_requests(serve: Serve, end: str) -> None:
    server = serve()
    with RemotingClient() as client:
        promises = [post(client, server.address, request(SILENT), FOR_EVER) for _ in range(3 * WINDOW)]
        assert server.arrived.acquire(timeout=10)
        client.close() if end == "closed" else server.close()
        for promise in promises:
            assert isinstance(promise.exception(20), RemotingConnectError)


def test_a_peer_that_does_not_read_is_left_in_time(client: RemotingClient) -> None:
    """What is held fails too: half a frame may be on its way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "127.0.0.1:%d" % listener.getsockname()[1]  # noqa: UP031
        promises: list[Request] = []
        body = bytes(10_000)
        client.connect(address, 10)
        while client.is_connected(address):
            try:
                promises.append(post(client, address, request(ECHO, 0, body), 0.5))
            except RemotingError:
                pass
        for promise in promises:
            assert isinstance(promise.exception(30), RemotingError)
        RawClient(listener.accept()[0]).close()


def test_timeouts_name_the_request() -> None:
    assert "b:1 did not answer request code 2 within 0.25 s" in str(no_answer("b:1", SILENT, 0.25))
    assert "b:1 did not answer PULL_MESSAGE within 5 s" in str(no_answer("b:1", 11, 5.0))


class Exits(Request):
    """Ends whatever thread settles it."""

    def __init__(self, timeout: float) -> None:
        super().__init__(ECHO, timeout, batch=True)
        self.told: SimpleQueue[RemotingCommand | BaseException] = SimpleQueue()
        self.add_done_callback(lambda _: self._exit())

    def _exit(self) -> None:
        self.told.put(self.exception() or self.result())
        sys.exit(1)


def test_a_callbacks_system_exit_is_its_own_affair(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    address = serve().address
    with RemotingClient() as client:
        client.invoke(address, request())
        kinds = []
        for code, timeout in ((ECHO, 20), (SILENT, FOR_EVER), (SILENT, 0.01)):
            kinds.append([Exits(timeout) for _ in range(3)])
            for promise in kinds[-1]:
                client.submit(address, request(code), promise)
        answered, lost, expired = kinds
        assert {type(promise.told.get(timeout=20)) for promise in answered} == {RemotingCommand}
        assert {type(promise.told.get(timeout=20)) for promise in expired} == {RemotingTimeoutError}
        assert client.invoke(address, request()).code == 0
        assert all(promise.told.empty() for promise in lost)
    assert {type(promise.told.get(timeout=20)) for promise in lost} == {RemotingConnectError}
    assert "SystemExit: 1" in caplog.text


# --- interrupts and the end ---------------------------------------------------------------------------------------


class Interrupts:
    """A lock: its first taker on the main thread is interrupted before noting it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.armed = True

    def acquire(self, *args: Any, **options: Any) -> bool:
        taken = self.lock.acquire(*args, **options)
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            raise KeyboardInterrupt
        return taken

    def release(self) -> None:
        self.lock.release()


@pytest.mark.parametrize(
    "ask", [RemotingClient.invoke, RemotingClient.invoke_async, post, RemotingClient.invoke_oneway]
)
def test_a_lock_that_an_interrupted_caller_leaves_taken(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., object]
) -> None:
    """The other requests fail, and the next call makes a connection of its own."""
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.01)
    address = serve().address
    other = client.invoke_async(address, request(SILENT), FOR_EVER)
    client.connect(address, 10)
    connection = other.carrier
    assert isinstance(connection, Connection)
    connection._writing = Interrupts(connection._writing)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        ask(client, address, request(), 60)
    assert not client.is_connected(address)
    assert isinstance(other.exception(0), RemotingConnectError)
    assert client.invoke(address, request()).code == 0
    assert connection.join(10)


def test_an_interrupted_wait_gives_its_request_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with RemotingClient(max_in_flight=1) as client:
        monkeypatch.setattr(Request, "result", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            client.invoke(server.address, request(SILENT), FOR_EVER)
        monkeypatch.undo()
        assert client.invoke(server.address, request()).code == 0  # its permit has come back
