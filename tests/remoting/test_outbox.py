"""Requests that are written together and given up together."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from spark_rocket.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.client.timer import Deadline
from spark_rocket.remoting.server import outbox as module
from spark_rocket.remoting.server.outbox import FLUSH_SIZE, WINDOW, Outbox, no_answer

from .conftest import ECHO, SILENT, RawClient, ServerThread, request

Serve = Callable[..., ServerThread]


class Noted:
    """A waiter that keeps what it is told."""

    def __init__(self) -> None:
        self.told: SimpleQueue[RemotingCommand | RemotingError] = SimpleQueue()

    def complete(self, response: RemotingCommand) -> None:
        self.told.put(response)

    def fail(self, error: RemotingError) -> None:
        self.told.put(error)


class Exits(Noted):
    def fail(self, error: RemotingError) -> None:
        super().fail(error)
        sys.exit(1)


class Timer:
    """Keeps what is to be done at what time."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Deadline]] = []

    def call_at(self, when: float, deadline: Deadline) -> None:
        self.entries.append((when, deadline))

    def run(self) -> None:
        entries, self.entries = self.entries, []
        for _, deadline in entries:
            deadline.expire()


class Kernel:
    """Takes so many bytes at a time."""

    def __init__(self) -> None:
        self.taken = b""
        self.most = 1 << 30

    def write(self, data: Buffer) -> int:
        taken = bytes(data[: self.most])
        self.taken += taken
        return len(taken)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def box(kernel: Kernel, timer: Timer) -> Outbox:
    return Outbox("b:1", kernel.write, timer)  # type: ignore[arg-type]


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    with RemotingClient() as client:
        yield client


def fill(box: Outbox, count: int = WINDOW) -> None:
    """So many requests that are written and not answered."""
    for opaque in range(count):
        box.expect(opaque, Noted(), 1e9, 3.0, ECHO)
        assert not box.hold(b"%d," % opaque)
        box.take_held()


def test_few_are_written_at_once_and_many_are_held(box: Outbox, kernel: Kernel) -> None:
    fill(box)
    for opaque in (100, 101):
        box.expect(opaque, Noted(), 1e9, 3.0, ECHO)
        assert box.hold(b"%d," % opaque)
    box.flush()
    assert kernel.taken == b"100,101,"
    assert not box.held


def test_an_answer_makes_room(box: Outbox) -> None:
    fill(box)
    assert box.take(3) is not None
    assert box.take(3) is None
    box.expect(100, Noted(), 1e9, 3.0, ECHO)
    assert not box.hold(b"100,")


def test_what_is_much_is_written_by_who_brings_it(box: Outbox) -> None:
    fill(box)
    piece = bytes(FLUSH_SIZE // 4)
    held = []
    for opaque in range(100, 104):
        box.expect(opaque, Noted(), 1e9, 3.0, ECHO)
        held.append(box.hold(piece))
    assert held == [True, True, True, False]


def test_nothing_is_held_for_long(box: Outbox, kernel: Kernel, timer: Timer) -> None:
    fill(box)
    timer.entries.clear()
    for opaque in range(100, 103):
        box.expect(opaque, Noted(), 1e9, 3.0, ECHO)
        box.hold(b"%d," % opaque)
    assert len(timer.entries) == 1
    assert timer.entries[0][0] <= time.monotonic() + module.HOLD
    timer.run()
    assert kernel.taken == b"100,101,102,"
    assert not timer.entries


def test_what_the_kernel_does_not_take_keeps_its_place(box: Outbox, kernel: Kernel, timer: Timer) -> None:
    kernel.most = 5
    box.held.extend([b"one,", b"two,"])
    box.flush()
    box.held.append(b"three,")
    assert kernel.taken == b"one,t"
    while box.held:
        timer.run()
    assert kernel.taken == b"one,two,three,"


def test_while_somebody_writes_the_timer_comes_again(box: Outbox, kernel: Kernel, timer: Timer) -> None:
    fill(box)
    box.expect(100, Noted(), 1e9, 3.0, ECHO)
    assert box.hold(b"100,")
    with box.writing:
        timer.run()
        assert timer.entries
    timer.run()
    assert kernel.taken == b"100,"


def test_deadlines_are_watched_together(box: Outbox, timer: Timer, caplog: pytest.LogCaptureFixture) -> None:
    now = time.monotonic()
    late, exits, later = Noted(), Exits(), Noted()
    box.expect(1, later, now + 3600, 3600, ECHO)
    box.expect(2, exits, now - 2, 0.5, ECHO)
    box.expect(3, late, now - 1, 0.25, SILENT)
    assert [when for when, _ in timer.entries] == [now + 3600, now - 2]
    timer.run()
    assert isinstance(exits.told.get_nowait(), RemotingTimeoutError)
    error = late.told.get_nowait()
    assert isinstance(error, RemotingTimeoutError)
    assert "b:1 did not answer request code 2 within 0.25 s" in str(error)  # nobody's
    assert "b:1 did not answer PULL_MESSAGE within 5 s" in str(no_answer("b:1", 11, 5.0))
    assert later.told.empty()
    assert list(box.waiting) == [1]
    assert now + 3600 in [when for when, _ in timer.entries]
    assert "SystemExit: 1" in caplog.text
    timer.run()  # long before its time
    assert later.told.empty()


def test_a_nearer_deadline_that_comes_in_between_is_kept(box: Outbox, timer: Timer) -> None:
    """Two find that theirs is nearer than all others; the one with the later is the last to say so."""
    now = time.monotonic()
    near = Noted()
    box.expect(1, near, now - 1, 0.05, ECHO)
    box._deadlines.watch(now + 3600)
    timer.run()
    assert isinstance(near.told.get_nowait(), RemotingTimeoutError)


def test_posts_and_calls_of_many_threads_over_one_connection(serve: Serve, client: RemotingClient) -> None:
    """Everything is answered, and each thread's posts arrive in their order, with small and large bodies mixed."""
    server = serve()
    waiters: dict[int, list[Noted]] = {thread: [] for thread in range(4)}

    def work(thread: int) -> None:
        for n in range(300):
            waiter = Noted()
            waiters[thread].append(waiter)
            body = b"%d/%d" % (thread, n) + bytes(20_000 if n % 50 == 0 else n)
            client.post(server.address, request(ECHO, 0, body, thread=str(thread), n=str(n)), waiter, 30)
            if n % 40 == 0:
                assert client.invoke(server.address, request(ECHO, 0, b"sync"), 30).body == b"sync"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for thread, told in waiters.items():
        for n, waiter in enumerate(told):
            answer = waiter.told.get(timeout=30)
            assert isinstance(answer, RemotingCommand)
            assert (answer.ext_fields["n"], answer.ext_fields["thread"]) == (str(n), str(thread))
    for thread in waiters:
        arrived = [r.ext_fields["n"] for r in server.requests if r.ext_fields.get("thread") == str(thread)]
        assert arrived == [str(n) for n in range(300)]


def test_unanswered_requests_do_not_hold_up_others(serve: Serve, client: RemotingClient) -> None:
    server = serve()
    silent = [Noted() for _ in range(3 * WINDOW)]
    for waiter in silent:
        client.post(server.address, request(SILENT), waiter, 3600)
    answered = Noted()
    client.post(server.address, request(ECHO), answered, 3600)
    assert isinstance(answered.told.get(timeout=20), RemotingCommand)
    assert all(waiter.told.empty() for waiter in silent)


@pytest.mark.parametrize("end", ["closed", "lost"])
def test_who_waits_is_told_of_the_end(serve: Serve, end: str) -> None:
    server = serve()
    waiters = [Noted() for _ in range(3 * WINDOW)]
    with RemotingClient() as client:
        for waiter in waiters:
            client.post(server.address, request(SILENT), waiter, 3600)
        assert server.arrived.acquire(timeout=10)
        client.close() if end == "closed" else server.close()
        for waiter in waiters:
            assert isinstance(waiter.told.get(timeout=20), RemotingConnectError)
            assert waiter.told.empty()


def test_a_peer_that_does_not_read_is_left_in_time(client: RemotingClient) -> None:
    """What is held fails too: half a frame may be on its way, and nobody knows whose."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "127.0.0.1:%d" % listener.getsockname()[1]  # noqa: UP031
        waiters: list[Noted] = []
        body = bytes(10_000)

        def post() -> None:
            waiters.append(Noted())
            client.post(address, request(ECHO, 0, body), waiters[-1], 0.5)

        post()
        left = client._places[address].connection
        while client._places[address].connection is left:
            try:
                post()
            except RemotingError:  # the caller is told, the waiter is not
                waiters.pop()
        for waiter in waiters:
            assert isinstance(waiter.told.get(timeout=30), RemotingError)
        peer = RawClient(listener.accept()[0])
        peer.close()


def test_a_post_wakes_a_parked_reader(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.remoting.client.connection.PARK", 3600.0)
    address = serve().address
    for _ in range(50):
        while True:
            assert client.invoke(address, request()).code == 0
            connection = client._places[address].connection
            assert connection is not None
            if connection._parked:
                break
        waiter = Noted()
        client.post(address, request(), waiter, 20)
        assert isinstance(waiter.told.get(timeout=20), RemotingCommand)


def test_posts_while_a_caller_reads(serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller that reads, in vain, serves the posts and writes what they have left in the outbox."""
    monkeypatch.setattr("spark_rocket.remoting.client.connection.PARK", 3600.0)
    server = serve()
    while True:
        client.invoke(server.address, request())
        connection = client._places[server.address].connection
        assert connection is not None
        if connection._parked:
            break
    while server.arrived.acquire(blocking=False):
        pass
    with ThreadPoolExecutor(1) as pool:
        vain = pool.submit(client.invoke, server.address, request(SILENT), 0.5)
        assert server.arrived.acquire(timeout=10)
        waiters = [Noted() for _ in range(200)]
        for waiter in waiters:
            client.post(server.address, request(), waiter, 20)
        assert all(isinstance(waiter.told.get(timeout=20), RemotingCommand) for waiter in waiters)
        assert isinstance(vain.exception(20), RemotingTimeoutError)
