"""The name server on a socket, asked by the real client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import socket
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.common.files import replace_file
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.namesrv import kv_config
from spark_rocket.namesrv.large_registrations import LargeRegistrations
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.server.remoting_server import run
from tests.broker.wire import Wire
from tests.kit.loop_thread import LoopThread
from tests.kit.waiting import until

pytestmark = pytest.mark.live

REGISTRATION: dict[str, object] = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "c",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
}
BODY = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"},"U":{"topicName":"U"}}}}'


class Running(LoopThread):
    """A name server with a manual clock."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.now = 0.0
        self.server = NameServer("127.0.0.1", 0, clock=lambda: self.now, **options)
        self.do(self.server.start())

    @contextmanager
    def client(self) -> Iterator[Wire]:
        with RemotingClient() as client:
            yield Wire(client, self.server.address)

    def close(self) -> None:
        self.do(self.server.close())
        self.stop_loop()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running(scan_interval=0.01)
    yield running
    running.close()


def test_a_broker_and_a_client(running: Running) -> None:
    with running.client() as broker, running.client() as client:
        assert broker.ask(103, BODY, **REGISTRATION).code == 0
        assert client.ask(105, topic="T").code == 0
        assert client.ask(999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        wrong = client.ask(105)
        assert wrong.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in str(wrong.remark)


def test_a_broker_whose_connection_closes(running: Running) -> None:
    with running.client() as client:
        with running.client() as broker:
            broker.ask(103, BODY, **REGISTRATION)
            assert client.ask(105, topic="T").code == 0
        until(lambda: is_gone(client, "T"))


def test_a_broker_that_falls_silent(running: Running) -> None:
    with running.client() as client, running.client() as broker:
        broker.ask(103, BODY, **REGISTRATION)
        assert client.ask(105, topic="T").code == 0
        running.now = 121.0
        until(lambda: is_gone(client, "T"))
        until(lambda: not broker.client.is_connected(broker.address))
        assert broker.ask(103, BODY, **REGISTRATION).code == 0  # over a new connection
        assert client.ask(105, topic="T").code == 0


def test_two_masters_of_one_name(running: Running) -> None:
    with running.client() as first, running.client() as second:
        assert first.ask(103, BODY, **REGISTRATION).code == 0
        other = REGISTRATION | {"brokerAddr": "127.0.0.1:9"}
        answer = second.ask(103, BODY, **other)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "127.0.0.1:1 " in str(answer.remark)
        assert "127.0.0.1:9 " in str(answer.remark)
        first.client.close()
        until(lambda: is_gone(second, "T"))
        assert second.ask(103, BODY, **other).code == 0  # at once: its connection is closed


def large_registration(topics: int = 10_000) -> bytes:
    table = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(topics)}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(0, 1, 1))).encode(compressed=True)


class Gate:
    """Blocks the decoding of large registrations until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        decode = RegisterBrokerBody.decode

        def stopped(body: bytes, *, compressed: bool = False) -> RegisterBrokerBody:
            if len(body) > 1024:
                self.reached.set()
                assert self.opened.wait(5)
            return decode(body, compressed=compressed)

        monkeypatch.setattr(RegisterBrokerBody, "decode", stopped)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def is_gone(client: Wire, topic: str) -> bool:
    return client.ask(105, topic=topic).code == ResponseCode.TOPIC_NOT_EXIST


LARGE = REGISTRATION | {"brokerName": "large", "brokerAddr": "127.0.0.1:5", "compressed": "true"}


def test_others_are_answered_while_a_large_registration_is_read(running: Running, gate: Gate) -> None:
    with running.client() as broker, running.client() as other:
        waiting = broker.ask_later(103, large_registration(), **LARGE)
        assert gate.reached.wait(10)
        assert other.ask(103, BODY, **REGISTRATION).code == 0  # a small one does not wait for it
        assert other.ask(105, topic="T").code == 0
        assert other.ask(105, topic="topic-9999").code == ResponseCode.TOPIC_NOT_EXIST
        again = broker.ask(103, large_registration(), **LARGE)  # one waits for each connection
        assert again.code == ResponseCode.SYSTEM_BUSY
        assert broker.ask(105, topic="T").code == 0
        assert not waiting.done()
        gate.opened.set()
        assert waiting.result(10).code == 0
        assert other.ask(105, topic="topic-9999").code == 0


def test_few_large_registrations_of_an_address_wait(running: Running, gate: Gate) -> None:
    body = large_registration()
    with ExitStack() as stack:
        brokers = [stack.enter_context(running.client()) for _ in range(5)]
        answers = [
            broker.ask_later(103, body, **(LARGE | {"brokerName": f"b{at}", "brokerAddr": f"127.0.0.1:{at}"}))
            for at, broker in enumerate(brokers)
        ]
        first = next(iter(concurrent.futures.as_completed(answers, timeout=10)))
        assert first.result().code == ResponseCode.SYSTEM_BUSY
        gate.opened.set()
        assert sorted(one.result(30).code for one in answers) == [0] * 4 + [ResponseCode.SYSTEM_BUSY]


def test_few_large_registrations_of_all_wait(gate: Gate) -> None:
    """From many addresses, one registration each."""
    request = RemotingCommand.request(103, {}, large_registration())
    read: list[object] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        large = LargeRegistrations(max_waiting=3, max_per_host=1)

        def done(body: object) -> None:
            read.append(body)
            if len(read) == 3:
                ended.set_result(None)

        for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            large.read(object(), host, request, True, done)
            with pytest.raises(RefusedError, match=f"1 of {host}"):
                large.read(object(), host, request, True, done)
        with pytest.raises(RefusedError, match="3 large registrations are pending"):
            large.read(object(), "10.0.0.4", request, True, done)
        gate.opened.set()
        await ended
        large.read(object(), "10.0.0.4", request, True, done)  # there is room again
        large.close()

    asyncio.run(asyncio.wait_for(work(), 30))
    assert all(isinstance(body, RegisterBrokerBody) for body in read)


@pytest.mark.parametrize("unregisters", [False, True])
def test_a_broker_that_disconnects_during_its_registration(running: Running, gate: Gate, unregisters: bool) -> None:
    with running.client() as other, running.client() as broker:
        broker.ask_later(103, large_registration(), **LARGE)
        assert gate.reached.wait(10)
        if unregisters:
            assert broker.ask(104, **LARGE).code == 0
        else:
            broker.client.close()
            until(lambda: running.server.connections == 0)
        gate.opened.set()
        body = large_registration(5_000)  # is read after the one that was given up
        assert other.ask(103, body, **(LARGE | {"brokerName": "next"})).code == 0
        assert other.ask(105, topic="topic-4999").code == 0
        assert other.ask(105, topic="topic-9999").code == ResponseCode.TOPIC_NOT_EXIST


def test_withdrawn_registrations_take_no_memory(gate: Gate) -> None:
    """Otherwise a peer could fill it with repeated registrations while another one is decoded."""

    class Body(bytearray):
        """A body with weak references."""

    async def work() -> None:
        large = LargeRegistrations()
        large.read("first", "10.0.0.1", RemotingCommand.request(103, {}, large_registration()), True, lambda read: None)
        await asyncio.to_thread(gate.reached.wait, 10)
        body = Body(large_registration())
        watched = weakref.ref(body)
        request = RemotingCommand.request(103, {}, body)
        del body
        large.read("second", "10.0.0.1", request, True, lambda read: None)
        large.withdraw("second")
        del request
        gc.collect()
        assert watched() is None
        gate.opened.set()
        large.close()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_large_registration_that_is_malformed(running: Running) -> None:
    with running.client() as broker:
        answer = broker.ask(103, zlib.compress(bytes(17 << 20)), **LARGE)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "exceeds 16,777,216 bytes" in str(answer.remark)
        assert broker.ask(103, BODY, **REGISTRATION).code == 0


def test_the_kv_file_is_read_at_start(tmp_path: Path) -> None:
    for code, fields, found in ((100, {"value": "v"}, {}), (101, {}, {"value": "v"})):
        running = Running(kv_config_path=tmp_path / "kvConfig.json")
        with running.client() as client:
            assert client.ask(code, namespace="n", key="k", **fields).ext_fields == found
        running.close()


def test_changes_of_the_kv_file_that_arrive_together_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kvConfig.json"
    writes: list[int] = []

    def note(target: Path, content: bytes) -> None:
        writes.append(len(content))
        replace_file(target, content)

    monkeypatch.setattr(kv_config, "replace_file", note)
    running = Running(kv_config_path=path)
    frames = [
        RemotingCommand.request(100, {"namespace": "n", "key": f"k{number}", "value": "v"}).encode()
        for number in range(500)
    ]
    with socket.create_connection(("127.0.0.1", running.server.port), 10) as peer:
        peer.sendall(b"".join(map(bytes, frames)))
        with peer.makefile("rb") as stream:
            for _ in frames:
                answer = RemotingCommand.decode(stream.read(int.from_bytes(stream.read(4), "big")))
                assert (answer.code, answer.remark) == (0, None)
                if len(writes) == 1:  # durable before the first response
                    assert b'"k0"' in path.read_bytes()
    assert 1 <= len(writes) <= 50
    assert len(json.loads(path.read_text())["configTable"]["n"]) == 500
    running.close()


def test_a_kv_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "kvConfig.json"
    path.parent.unlink()
    running = Running(kv_config_path=path)
    path.parent.write_text("")
    with running.client() as client:
        for _ in range(2):  # the second attempt changes nothing in memory, and is not on disk either
            failed = client.ask(100, namespace="n", key="k", value="v")
            assert failed.code == ResponseCode.SYSTEM_ERROR
            assert "NotADirectoryError" in str(failed.remark) or "FileExistsError" in str(failed.remark)
        path.parent.unlink()
        assert client.ask(102, namespace="n", key="unknown").code == 0
    assert json.loads(path.read_text()) == {"configTable": {"n": {"k": "v"}}}
    running.close()


def test_a_port_in_use(running: Running) -> None:
    with pytest.raises(ConfigError, match=rf"name server cannot listen on 127.0.0.1:{running.server.port}"):
        run(NameServer("127.0.0.1", running.server.port).start())


def test_a_broken_kv_file(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="line 1"):
        run(NameServer("127.0.0.1", 0, kv_config_path=path).start())


def test_closing_what_never_started() -> None:
    run(NameServer("127.0.0.1", 0).close())


def test_brokers_precede_clients_under_overload() -> None:
    limits = NameServer(port=0)._server.limits
    assert list(limits.queues) == ["broker", "admin", "client"]
    assert limits.queues["client"].capacity == 50_000
    found = [
        limits.kind_of(code)
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.GET_BROKER_CLUSTER_INFO,
        )
    ]
    assert found == ["broker", "client", "admin"]
    assert limits.max_connections <= 20_000
