"""An overloaded broker: refused requests, their remarks, and the end of the overload."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

import spark_rocket.broker.broker_overload as overload_module
from spark_rocket.broker.broker_overload import KINDS, BrokerOverload, anonymous_memory, default_limit
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.client import Producer
from spark_rocket.errors import BrokerError, RefusedError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.remoting.server.sockets import connections_possible
from spark_rocket.store.results import PutResult
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock

BUSY = ResponseCode.SYSTEM_BUSY
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
FULL = "[OVERLOAD]system busy, start flow control for a while"


def heartbeat(wire: Wire) -> int:
    return wire.beat(producers=["producers"]).code


# --- the disk -------------------------------------------------------------------------------------------------------


class Disk:
    """A broker's appends take a given time on the broker's clock."""

    def __init__(self, server: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.takes = 0
        store = server.broker.parts.store
        for name in ("put_message", "put_batch"):
            put = getattr(store, name)

            def slow(*given: object, put: object = put, **more: object) -> PutResult:
                result: PutResult = put(*given, **more)  # type: ignore[operator]
                clock.now += self.takes
                return result

            monkeypatch.setattr(store, name, slow)


@pytest.mark.live
def test_a_disk_that_does_not_keep_up(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, clock) as (server, wire):
        disk = Disk(server, clock, monkeypatch)
        disk.takes = 1_000
        assert [wire.send("T").code for _ in range(3)] == [0, 0, 0]  # not longer than osPageCacheBusyTimeOutMills
        disk.takes = 1_001
        assert [wire.send("T").code for _ in range(2)] == [0, 0]  # one alone may be a process that was stopped
        refused = wire.send("T")
        assert refused.code == BUSY
        assert refused.remark == (
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1001ms, size of queue: 0"
        )
        assert heartbeat(wire) == 0
        assert wire.pull("T", 0).code == 0
        clock.now += 1_000
        assert wire.send("T").code == BUSY
        clock.now += 1
        assert wire.send("T").code == 0  # which shows that it is as slow as before
        assert wire.send("T").code == BUSY
        disk.takes = 0
        clock.now += 1_001
        assert [wire.send("T").code for _ in range(3)] == [0, 0, 0]
        stats = server.broker.parts.overload.stats
        assert (stats.page_cache_busy, stats.refused["send", "page_cache"]) == (3, 3)
        disk.takes = 30_001
        assert [wire.send("T").code for _ in range(3)] == [0, 0, 0]  # no two within half a minute


@pytest.mark.live
def test_a_broker_that_is_to_fail_slowly(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, clock, brokerFastFailureEnable=False, osPageCacheBusyTimeOutMills=5) as (server, wire):
        disk = Disk(server, clock, monkeypatch)
        disk.takes = 6
        assert [wire.send("T").code for _ in range(4)] == [0] * 4
        limits = server.broker.parts.overload.limits
        assert {queue.max_wait for queue in limits.queues.values()} == {0.0}
        assert wire.configure(brokerFastFailureEnable=True, maxConnections=7).code == 0
        assert limits.queues["send"].max_wait == 2.0
        assert limits.max_connections == 7
        assert [wire.send("T").code for _ in range(3)] == [0, 0, BUSY]


@pytest.mark.live
def test_senders_that_wait_for_the_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with served(tmp_path, clock, flushDiskType="SYNC_FLUSH", putThreadPoolQueueCapacity=3) as (server, wire):
        store = server.broker.parts.store
        waiting = []
        real = store.when_flushed
        wire.send("T")
        monkeypatch.setattr(store, "when_flushed", lambda *given: waiting.append(given))
        sends = [wire.send_later("T", b"%d" % n) for n in range(5)]
        assert [sends[n].result(30).code for n in (3, 4)] == [BUSY, BUSY]
        assert sends[3].result().remark == FULL
        assert heartbeat(wire) == 0
        monkeypatch.setattr(store, "when_flushed", real)
        for given in waiting:
            server.run(lambda given=given: real(*given))  # type: ignore[misc]
        assert [sends[n].result(30).code for n in range(3)] == [0, 0, 0]
        assert wire.send("T").code == 0
        assert server.broker.parts.responses.waiting == 0
        assert server.broker.parts.overload.stats.refused == {("send", "put"): 2}


@pytest.mark.live
def test_each_kind_of_request_is_queued(tmp_path: Path, clock: Clock) -> None:
    """The broker sets the kinds after it has created its server, and before the start."""
    with served(tmp_path, clock) as (server, wire):
        server.broker._server.turns.length_s = -1.0  # type: ignore[union-attr]
        sends = [wire.send_later("T", b"%d" % n) for n in range(20)]
        assert [send.result(30).code for send in sends] == [0] * 20
        assert (wire.pull("T", 0).code, heartbeat(wire)) == (0, 0)


# --- memory ---------------------------------------------------------------------------------------------------------


class Trouble:
    """The shared broker's memory and unread responses, set by the test."""

    def __init__(self, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.overload = parts.overload
        self._loop = parts.loop
        self._monkeypatch = monkeypatch

    def on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        done: Future[object] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(call(*arguments)))
        done.result(30)

    def memory(self, size: int) -> None:
        self._monkeypatch.setattr(self.overload, "_memory", lambda: size)
        self.on_loop(self.overload.check_memory)

    def unread(self, too_much: bool) -> None:
        self.on_loop(self.overload.unread, too_much)


@pytest.fixture
def trouble(parts: BrokerParts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    found = Trouble(parts, monkeypatch)
    yield found
    monkeypatch.undo()
    found.on_loop(found.overload.check_memory)
    found.unread(False)


@pytest.mark.live
def test_memory_above_its_limit(
    cluster: LocalCluster, wire: Wire, topic: str, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    limit = default_limit()
    assert wire.send(topic).code == 0
    trouble.memory(limit + 1)
    refused = (
        wire.send(topic),
        wire.pull(topic, 0),
        wire.ask(RequestCode.PEEK_MESSAGE),
        wire.ask(RequestCode.POP_MESSAGE),
    )
    assert {(answer.code, answer.remark) for answer in refused} == {(BUSY, REJECTED)}
    assert heartbeat(wire) == 0
    assert wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    with Producer("producers", name_server=cluster.name_server) as producer, pytest.raises(BrokerError) as caught:
        producer.send(Message.of(topic, "body"))
    assert caught.value.response_code == BUSY
    assert caught.value.retriable
    trouble.memory(limit * 95 // 100)
    assert wire.send(topic).code == BUSY  # nearly is not enough
    trouble.memory(limit // 2)
    assert wire.send(topic).code == 0
    assert wire.pull(topic, 0).code == 0
    assert "maxMemoryBytes" in caplog.text
    assert "sends and pulls are accepted" in caplog.text
    assert trouble.overload.stats.memory_high == 1


@pytest.mark.live
def test_too_many_unread_responses(wire: Wire, topic: str, trouble: Trouble) -> None:
    wire.send(topic)
    trouble.unread(True)
    assert (wire.pull(topic, 0).code, wire.send(topic).code) == (BUSY, 0)
    trouble.unread(False)
    assert wire.pull(topic, 0).code == 0


def test_metrics_of_the_process() -> None:
    assert 0 < anonymous_memory() < default_limit()


# --- settings -------------------------------------------------------------------------------------------------------


def settled(clock: Clock, **settings: object) -> tuple[BrokerOverload, RemotingServer]:
    server = RemotingServer("127.0.0.1", 0, {})
    return BrokerOverload(BrokerConfig.from_properties(settings), server, clock), server


def test_apaches_defaults() -> None:
    _, server = settled(Clock())
    found = {kind: (queue.capacity, queue.max_wait) for kind, queue in server.limits.queues.items()}
    assert found == {
        "heartbeat": (50_000, 31.0),
        "admin": (10_000, 5.0),
        "ack": (100_000, 3.0),
        "transaction": (100_000, 3.0),
        "pull": (100_000, 5.0),
        "query": (20_000, 5.0),
        "send": (10_000, 2.0),  # Apache: 0.2, which a laptop's pause is longer than
    }
    assert set(KINDS.values()) | {"admin"} == set(found)
    assert (server.limits.max_oneway, server.limits.max_async) == (256, 64)


def test_a_low_descriptor_limit_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(overload_module, "connections_possible", lambda: 900)
    _, server = settled(Clock())
    assert server.limits.max_connections == 20_000
    assert "at most 900 connections" in caplog.text
    assert "ulimit -Hn" in caplog.text
    caplog.clear()
    settled(Clock(), maxConnections=900)
    assert caplog.text == ""


@pytest.mark.parametrize(("soft", "possible"), [(1000, 900), (100, 68), (1, 1), (-1, sys.maxsize)])
def test_how_many_connections_are_possible(soft: int, possible: int, monkeypatch: pytest.MonkeyPatch) -> None:
    system = SimpleNamespace(getrlimit=lambda _: (soft, 5000), RLIMIT_NOFILE=7, RLIM_INFINITY=-1)
    monkeypatch.setattr("spark_rocket.remoting.server.sockets.resource", system)
    assert connections_possible() == possible


def test_the_clock_may_be_set(clock: Clock) -> None:
    """A clock set ahead is not a slow append, and one set back ends a pause."""
    overload, _ = settled(clock)
    overload.append_took(10_000_001)
    assert overload.stats.page_cache_busy == 0
    overload.append_took(2_000)
    overload.append_took(2_000)
    with pytest.raises(RefusedError):
        overload.check_send()
    clock.now -= 3_600_000
    overload.check_send()
    assert overload.sends is None
