"""Connections: promises, callbacks, interrupts, closing, and slow connection attempts."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spark_rocket.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client import connection
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.client.request import Request
from spark_rocket.remoting.event_loop import loop_thread
from spark_rocket.remoting.future_requests import no_response
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.socket_options import set_caller_options
from tests.kit.waiting import until

from .conftest import ECHO, SILENT, RawClient, Serve, request

pytestmark = pytest.mark.live

FOR_EVER = 3600.0


def post(client: RemotingClient, address: str, command: RemotingCommand, timeout: float) -> Request:
    promise = Request(int(command.code), timeout)
    client.submit(address, command, promise)
    return promise


def test_the_first_outcome_of_a_promise_counts(caplog: pytest.LogCaptureFixture) -> None:
    promise: Promise[int] = Promise()
    called: list[int] = []
    promise.add_done_callback(lambda done: called.append(done.result()))
    promise.add_done_callback(lambda _: sys.exit(1))
    assert not promise.cancel()
    promise.resolve(1)
    promise.resolve(2)
    promise.fail(ValueError())
    assert promise.result() == 1
    assert called == [1]
    assert "SystemExit: 1" in caplog.text


def test_one_of_two_threads_settles_a_promise() -> None:
    promises: list[Promise[str]] = [Promise() for _ in range(20_000)]
    called: list[str] = []
    start = threading.Barrier(3)

    def settle(name: str) -> list[str]:
        start.wait()
        seen = []
        for promise in promises:
            promise.resolve(name)
            seen.append(promise.result())
        return seen

    def register() -> None:
        start.wait()
        for promise in promises:
            promise.when_settled(lambda done: called.append(done.result()))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            first, second, _ = (
                threads.submit(settle, "first"),
                threads.submit(settle, "second"),
                threads.submit(register),
            )
    finally:
        sys.setswitchinterval(before)
    won = [promise.result() for promise in promises]
    assert first.result() == second.result() == won
    assert sorted(called) == sorted(won)


def test_a_promise_is_a_future_for_the_standard_library() -> None:
    early, late, never = Promise[int](), Promise[int](), Promise[int]()
    early.resolve(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: {future.result() for future in as_completed([early, late], 20)})
        late.resolve(2)
        assert waiting.result(20) == {1, 2}
    done, pending = wait([early, never], 0)
    assert (done, pending) == ({early}, {never})
    assert (never.cancelled(), never.running(), never.done()) == (False, False, False)
    with pytest.raises(TimeoutError):
        never.result(0)
    failed: Promise[int] = Promise()
    failed.fail(ValueError("no"))
    assert (str(failed.exception()), wait([failed], 0).done) == ("no", {failed})


def test_a_handler_settles_what_the_interrupted_thread_registers() -> None:
    """At each line of a promise: a handler on the same thread settles it, and nothing waits for anything."""
    for at in range(1, 200):
        promise, called, lines = Promise[int](), [], count(1)

        def settle(frame: FrameType, event: str, arg: object) -> Any:
            if not frame.f_code.co_filename.endswith("promise.py"):
                return None  # the lines of concurrent.futures hold its locks
            if event == "line" and next(lines) == at:  # noqa: B023
                promise.resolve(7)  # noqa: B023
            return settle

        before = sys.gettrace()
        sys.settrace(settle)
        try:
            promise.when_settled(lambda done: called.append(done.result()))  # noqa: B023
            wait([promise], 0)
        finally:
            sys.settrace(before)
        if next(lines) <= at:
            break
        assert (promise.result(0), called, wait([promise], 0).done) == (7, [7], {promise})
    else:
        pytest.fail("more lines than expected")


# --- requests in flight ---------------------------------------------------------------------------------------------


def test_batched_requests_and_calls_of_many_threads_over_one_connection(serve: Serve, client: RemotingClient) -> None:
    """All requests are answered, and those of a thread arrive in order, with small and large bodies."""
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
        responses = [promise.result(30).ext_fields for promise in each]
        assert responses == [{"thread": str(thread), "n": str(n)} for n in range(300)]
        arrived = [r.ext_fields["n"] for r in server.requests if r.ext_fields.get("thread") == str(thread)]
        assert arrived == [str(n) for n in range(300)]


@pytest.mark.parametrize("end", ["closed", "lost"])
def test_close_fails_all_requests(serve: Serve, end: str) -> None:
    server = serve()
    with RemotingClient() as client:
        promises = [post(client, server.address, request(SILENT), FOR_EVER) for _ in range(50)]
        assert server.arrived.acquire(timeout=10)
        client.close() if end == "closed" else server.close()
        for promise in promises:
            assert isinstance(promise.exception(20), RemotingConnectError)


def test_requests_to_a_peer_that_does_not_read_time_out(
    client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued requests fail too, and the connection is closed."""
    monkeypatch.setattr(connection, "STALL_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        promises: list[Request] = []
        body = bytes(10_000)
        client.connect(address, 10)
        while client.is_connected(address):
            try:
                promises.append(post(client, address, request(ECHO, 0, body), 0.1))
            except RemotingError:
                pass
        for promise in promises:
            assert isinstance(promise.exception(30), RemotingError)
        RawClient(listener.accept()[0]).close()


def test_timeouts_name_the_request() -> None:
    assert "b:1 did not respond to request code 2 within 0.25 s" in str(no_response("b:1", Request(SILENT, 0.25)))
    assert "b:1 did not respond to PULL_MESSAGE within 5 s" in str(no_response("b:1", Request(11, 5.0)))
    assert "within 3 s" in str(no_response("b:1", Request(11, 2.99994)))  # what is left of a deadline


class Exits(Request):
    """Raises SystemExit in the thread that settles it."""

    def __init__(self, timeout: float) -> None:
        super().__init__(ECHO, timeout)
        self.told: SimpleQueue[RemotingCommand | BaseException] = SimpleQueue()
        self.add_done_callback(lambda _: self._exit())

    def _exit(self) -> None:
        self.told.put(self.exception() or self.result())
        sys.exit(1)


def test_system_exit_in_a_callback_affects_no_other_request(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    "ask", [RemotingClient.invoke, RemotingClient.invoke_async, post, RemotingClient.invoke_oneway]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_a_request_is_passed_to_the_loop(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., object], when: str
) -> None:
    """The connection and its other requests are not affected."""
    address = serve().address
    other = client.invoke_async(address, request(SILENT), FOR_EVER)
    assert client.invoke(address, request()).code == 0  # the loop has taken all requests
    loop = loop_thread().loop
    wake = loop.call_soon_threadsafe

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        if when == "after":
            wake(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(client, address, request(), 60)
    assert client.is_connected(address)
    assert client.invoke(address, request()).code == 0
    assert not other.done()


def test_an_attempt_abandoned_before_it_was_sent_takes_away_no_other_request(
    serve: Serve, client: RemotingClient
) -> None:
    """A second attempt waits for a peer that does not read; the server of the first has a request with its number."""
    held: list[Callable[[], object]] = []

    def hold(channel: Channel, command: RemotingCommand) -> None:
        held.append(lambda: channel.write(RemotingCommand.response(command)))

    server = serve({9: hold})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mute = f"127.0.0.1:{listener.getsockname()[1]}"
        attempts = post(client, server.address, request(), 10)
        assert attempts.result(10).code == 0
        first = attempts.connection
        post(client, mute, request(ECHO, 0, bytes(1 << 26)), FOR_EVER)
        until(lambda: client.is_paused)
        other = client.invoke_async(server.address, request(9), FOR_EVER)
        attempts.begin(0.01, time.monotonic())
        with pytest.raises(RemotingTimeoutError, match="reads too slowly"):
            client.submit(mute, request(), attempts)
        assert attempts.opaque == other.opaque
        assert attempts.connection is not first
        attempts.abandon()
        until(lambda: held)
        server.run(held[0])
        assert other.result(10).code == 0


def test_an_interrupted_wait_cancels_its_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with RemotingClient(max_in_flight=1) as client:
        monkeypatch.setattr(Request, "result", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            client.invoke(server.address, request(SILENT), FOR_EVER)
        monkeypatch.undo()
        assert client.invoke(server.address, request()).code == 0  # its permit was released


# --- slow connection attempts -------------------------------------------------------------------------------------


class SlowConnect:
    """Replaces ``create_connection`` of the loop: waits for a release, then fails or connects to ``to``."""

    def __init__(self, connect: Callable[..., Awaitable[Any]]) -> None:
        self._connect = connect
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.attempts = 0
        self.error: Exception | None = ConnectionRefusedError("unreachable")
        self.to = ""

    async def __call__(self, factory: object, host: str, port: int, **options: object) -> object:
        if host != "x":
            return await self._connect(factory, host, port, **options)
        self.attempts += 1
        self.started.release()
        await asyncio.get_running_loop().run_in_executor(None, self.go.wait, 10)
        if self.error is not None:
            raise self.error
        host, _, to = self.to.rpartition(":")
        return await self._connect(factory, host, int(to), **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowConnect:
    loop = loop_thread().loop
    slow = SlowConnect(loop.create_connection)
    monkeypatch.setattr(loop, "create_connection", slow)
    return slow


def test_callers_share_one_attempt_and_keep_their_deadlines(
    serve: Serve, client: RemotingClient, slow: SlowConnect
) -> None:
    server = serve()
    futures = [client.invoke_async("x:1", request(), timeout=60) for _ in range(3)]
    assert slow.started.acquire(timeout=10)
    for call in (client.invoke, client.invoke_oneway):
        with pytest.raises(RemotingConnectError, match="No connection to x:1 within 0"):
            call("x:1", request(), 0.01)
    assert not client.is_connected("x:1")
    assert client.invoke(server.address, request()).code == 0  # other addresses are not delayed
    assert not any(future.done() for future in futures)
    slow.go.set()
    for future in futures:
        with pytest.raises(RemotingConnectError, match="unreachable"):
            future.result(10)
    assert slow.attempts == 1
    with pytest.raises(RemotingConnectError, match="unreachable"):
        client.invoke("x:1", request())
    assert slow.attempts == 2


def test_pending_requests_are_sent_in_order_after_connecting(
    serve: Serve, client: RemotingClient, slow: SlowConnect
) -> None:
    server = serve()
    slow.error, slow.to = None, server.address
    futures = [client.invoke_async("x:1", request(n=str(n)), timeout=60) for n in range(20)]
    with pytest.raises(RemotingConnectError):
        client.invoke("x:1", request(n="late"), 0.01)
    large = client.invoke_async("x:1", request(ECHO, 0, bytes(100_000), n="20"), timeout=60)
    slow.go.set()
    assert [future.result(10).ext_fields["n"] for future in futures] == [str(n) for n in range(20)]
    assert large.result(10).body == bytes(100_000)
    assert [each.ext_fields["n"] for each in server.requests] == [str(n) for n in range(21)]  # not the late one


def test_a_failed_attempt_is_reported_and_the_next_request_retries(
    serve: Serve, client: RemotingClient, slow: SlowConnect
) -> None:
    slow.error = ValueError("no such luck")
    slow.go.set()
    with pytest.raises(RemotingConnectError, match="no such luck"):
        client.invoke_async("x:1", request(), timeout=60).result(10)
    slow.error, slow.to = None, serve().address
    assert client.invoke_async("x:1", request(), timeout=60).result(10).code == 0


def test_no_thread_for_callbacks(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later callbacks run, also the delayed ones."""
    address = serve().address
    client.invoke(address, request())
    called: SimpleQueue[str] = SimpleQueue()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        first = client.invoke_async(address, request())
        first.add_done_callback(lambda _: called.put("first"))
        assert first.result(10).code == 0
    client.invoke_async(address, request()).add_done_callback(lambda _: called.put("second"))
    assert {called.get(timeout=10), called.get(timeout=10)} == {"first", "second"}


def test_a_blocked_callback_delays_neither_responses_nor_other_connections(
    serve: Serve, client: RemotingClient
) -> None:
    blocked, free = serve(), serve()
    entered, release = threading.Event(), threading.Event()
    held = client.invoke_async(blocked.address, request(SILENT), timeout=0.05)
    held.add_done_callback(lambda _: (entered.set(), release.wait(20)))
    assert entered.wait(10)
    assert client.invoke(blocked.address, request()).code == 0
    called: SimpleQueue[int] = SimpleQueue()
    client.invoke_async(free.address, request()).add_done_callback(lambda done: called.put(done.result().code))
    assert called.get(timeout=10) == 0
    release.set()


def tasks() -> set[asyncio.Task[Any]]:
    """The tasks on the clients' loop."""
    found: Future[set[asyncio.Task[Any]]] = Future()
    loop_thread().post(lambda: found.set_result(asyncio.all_tasks(loop_thread().loop)))
    return found.result(10)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_connections_leave_nothing_behind(serve: Serve, count: int) -> None:
    server = serve()
    with RemotingClient() as client:
        client.invoke(server.address, request())
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    before = tasks()  # of other clients of this process
    for _ in range(count):
        with RemotingClient() as client:
            client.invoke_async(server.address, request()).result(10)
    until(lambda: tasks() <= before, "no new task")
    until(lambda: threading.active_count() <= threads and len(list(Path("/proc/self/fd").iterdir())) <= files)


def test_a_client_closed_while_it_connects(serve: Serve, slow: SlowConnect) -> None:
    client = RemotingClient()
    slow.error, slow.to = None, serve().address
    future = client.invoke_async("x:1", request(), timeout=60)
    assert slow.started.acquire(timeout=10)
    client.close()
    with pytest.raises(RemotingConnectError, match="the client is closed"):
        future.result(10)
    slow.go.set()
    assert not client.is_connected("x:1")


@pytest.mark.parametrize(("error", "attempts"), [(ConnectionRefusedError, 3), (TimeoutError, 1)])
def test_a_slow_failed_attempt_is_cached_for_its_duration(
    client: RemotingClient,
    slow: SlowConnect,
    monkeypatch: pytest.MonkeyPatch,
    error: type[OSError],
    attempts: int,
) -> None:
    """A refused attempt is not cached: the machine was busy, and the server may be running."""
    slow.error = error("unreachable")
    slow.go.set()
    for name in ("async_client", "remoting_client", "connection"):  # each attempt takes 3 s
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + 3.0 * slow.attempts)
        monkeypatch.setattr(f"spark_rocket.remoting.client.{name}.time", clock)
    for _ in range(3):
        with pytest.raises(RemotingConnectError, match="unreachable"):
            client.invoke_async("x:1", request(), timeout=60).result(10)
    assert slow.attempts == attempts


def test_a_port_that_connects_to_itself(client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a listener, the kernel may choose the called port as the local one."""
    loop = loop_thread().loop
    connect = loop.create_connection
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    def from_same_port(factory: object, host: str, port: int) -> Awaitable[Any]:
        return connect(factory, host, port, local_addr=(host, port))  # type: ignore[call-overload]

    monkeypatch.setattr(loop, "create_connection", from_same_port)
    with pytest.raises(RemotingConnectError, match="no server listens"):
        client.invoke(f"127.0.0.1:{port}", request())


def test_unknown_addresses_are_not_connected(client: RemotingClient) -> None:
    assert not client.is_connected("missing:1")
    client.disconnect("missing:1")


# --- dead connections -----------------------------------------------------------------------------------------------


def test_a_peer_that_is_silent_gets_a_new_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads, and responds to nothing: its connection is closed, and the requests that are not late yet fail with it.

    Timeouts shorter than the limit count together.
    """
    monkeypatch.setattr(connection, "STALL_S", 0.2)
    server = serve()
    with RemotingClient() as client:
        client.invoke(server.address, request())
        (first,) = client.requests.connections
        waiting = post(client, server.address, request(SILENT), FOR_EVER)
        while first.lost is None:
            with pytest.raises(RemotingError):
                client.invoke(server.address, request(SILENT), 0.05)
        error = waiting.exception(20)
        assert isinstance(error, RemotingConnectError)
        assert error.retriable
        assert "no response to any request" in str(error)
        assert client.invoke(server.address, request()).code == 0


def test_a_slow_peer_that_responds_to_others_keeps_its_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.0)
    server = serve()
    with RemotingClient() as client:
        client.invoke(server.address, request())
        (first,) = client.requests.connections
        for _ in range(5):
            late = post(client, server.address, request(SILENT), 0.2)
            client.invoke(server.address, request(), 20)
            assert isinstance(late.exception(20), RemotingTimeoutError)
        client.invoke(server.address, request(), 20)
        assert first.lost is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
def test_the_system_ends_connections_of_a_lost_peer() -> None:
    names = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with socket.socket() as sock:
        set_caller_options(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [sock.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [1, 30, 10, 3, 20_000]
