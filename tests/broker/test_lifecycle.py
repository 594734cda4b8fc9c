"""Start, stop and restart: stored state, refusals, notifications."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.addresses import advertised_ip
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import ConfigError, RocketError, StateError, StoreError, StoreLockedError
from spark_rocket.model import Message
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire, bodies_of, held_by, held_pulls
from tests.kit.brokers import served
from tests.kit.clock import Clock
from tests.kit.ports import free_port
from tests.kit.waiting import until

pytestmark = pytest.mark.live


def config(directory: Path, **settings: object) -> BrokerConfig:
    return BrokerConfig.from_properties({"storePathRootDir": directory, "listenPort": 0, **settings})


async def ask(broker: Broker, ask_it: Callable[[Wire], Any]) -> Any:
    """Send requests from a thread to a broker of this loop."""

    def talk() -> Any:
        with RemotingClient() as client:
            return ask_it(Wire(client, broker.address))

    return await asyncio.to_thread(talk)


# --- kept over a restart ----------------------------------------------------------------------------------------


def test_messages_topics_groups_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path, in_process=True) as cluster:
        cluster.create_topic("Kept", 3)
        address = cluster.broker_address
        with RemotingClient() as client:
            wire = Wire(client, address)
            wire.send_batch("Kept", [Message.of("Kept", b"%d" % number) for number in range(10)], queue_id=2)
            wire.send("Automatic", b"x")
            wire.create_group("g", retryMaxTimes=3)
            wire.commit("g", "Kept", 6, 2)
        cluster.restart_broker()
        assert cluster.broker_address == address
        with RemotingClient() as client:  # the other one may send to its closed connection once more
            wire = Wire(client, address)
            assert wire.bodies("Kept", 6, queue_id=2) == [b"6", b"7", b"8", b"9"]
            assert wire.committed("g", "Kept", 2) == 6
            group = wire.read(SubscriptionGroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
            assert group.retry_max_times == 3
            assert wire.send("Kept", b"more", queue_id=2).ext_fields["queueOffset"] == "10"
            assert wire.bodies("Automatic") == [b"x"]


def test_a_stop_sends_no_wrong_response_and_leaves_no_thread(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path, in_process=True) as cluster, RemotingClient() as client:
        cluster.create_topic("T")
        later = Wire(client, cluster.broker_address).hold("T", 0)
        cluster.stop()
        with pytest.raises(RocketError):
            later.result(20)  # the connection was closed, rather than a "nothing found" that would be a lie


def test_a_broker_with_log_queues_and_index_on_separate_disks(tmp_path: Path) -> None:
    settings = {"storePathCommitLog": "log", "storePathConsumeQueue": "queues", "storePathIndex": "keys"}
    settings = {name: f"{tmp_path}/{directory}" for name, directory in settings.items()}
    with LocalCluster(data_dir=tmp_path, config=settings, in_process=True) as cluster, RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        wire.send("T", b"first")
        cluster.restart_broker()
        wire.send("T", b"second")
        assert wire.bodies("T") == [b"first", b"second"]
        assert wire.shown()["storePathCommitLog"] == f"{tmp_path}/log"
    assert {path.name for path in (tmp_path / "queues").iterdir()} == {"T"}
    assert not (tmp_path / "store" / "commitlog").exists()
    assert check_store(tmp_path / "store") == []
    again = LocalCluster(data_dir=tmp_path, in_process=True)
    with pytest.raises(StoreError, match="the broker would start empty there"), again:
        pass


# --- what is refused --------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = Broker(config(tmp_path / "store", listenPort=taken.getsockname()[1]))
        with pytest.raises(ConfigError, match="port is in use"):
            await broker.start()
    assert not (tmp_path / "store").exists()


async def test_a_failed_start_releases_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spark_rocket.broker.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as without opentelemetry-api
    with pytest.raises(ConfigError, match="requires the package opentelemetry, which is not installed"):
        await Broker(config(tmp_path, openTelemetryEnable=True)).start()
    broker = Broker(config(tmp_path))
    await broker.start()
    await broker.close()


async def test_a_directory_in_use_is_refused_and_its_owner_unharmed(tmp_path: Path) -> None:
    first, second = Broker(config(tmp_path)), Broker(config(tmp_path))
    await first.start()
    assert first.address == f"127.0.0.1:{first.port}"
    with pytest.raises(StoreLockedError, match=str(tmp_path)):
        await second.start()
    with pytest.raises(StateError):
        await first.start()
    assert (await ask(first, lambda wire: wire.send("T", b"x"))).code == ResponseCode.SUCCESS
    await first.close()
    await second.start()
    await second.close()
    await second.close()


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "subscriptionGroup.json"])
async def test_a_broken_state_file_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text('{\n\t"dataVersion":{\n')
    broker = Broker(config(tmp_path))
    with pytest.raises(ConfigError, match=rf"{name}, line 3: "):
        await broker.start()
    with pytest.raises(StateError):
        _ = broker.address
    (tmp_path / "config" / name).unlink()
    await broker.start()  # the first attempt has left nothing
    await broker.close()


def test_addresses_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**settings: object) -> str:
        return advertised_ip(BrokerConfig.from_properties(settings))

    assert told() == "127.0.0.1"
    assert told(brokerIP1="192.0.2.1") == "192.0.2.1"
    assert told(brokerIP1="localhost") == "127.0.0.1"
    assert told(bindAddress="0.0.0.0") not in ("", "0.0.0.0")

    def unknown(*_: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"Invalid brokerIP1=no\.such\.host: neither an IP address nor a host name"):
        told(brokerIP1="no.such.host")


# --- name servers -----------------------------------------------------------------------------------------------


async def test_unresponsive_name_servers_delay_no_registration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [NameServer("127.0.0.1", 0), NameServer("127.0.0.1", 0)]
    for server in servers:
        await server.start()
    dead = f"127.0.0.1:{free_port()}"
    addresses = ";".join([dead, *(server.address for server in servers)])
    broker = Broker(config(tmp_path, namesrvAddr=addresses))
    await broker.start()
    sent = await ask(broker, lambda wire: wire.send("Fresh", b"x"))
    assert sent.code == ResponseCode.SUCCESS
    await broker.parts.registration.register()
    assert all(server.routes.route("Fresh") is not None for server in servers)
    await broker.close()
    assert all(server.routes.route("Fresh") is None for server in servers)  # unregistered, not only silent
    for server in servers:
        await server.close()
    assert f"Registration with name server {dead} failed" in caplog.text


async def test_a_later_name_server_gets_a_registration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    broker = Broker(config(tmp_path, namesrvAddr=f"127.0.0.1:{port}"))
    await broker.start()
    await broker.parts.registration.register()
    assert (await ask(broker, lambda wire: wire.send("T", b"served all the same"))).code == ResponseCode.SUCCESS
    server = NameServer("127.0.0.1", port)
    told = asyncio.Event()
    register = server.routes.register_broker

    def note(*arguments: Any, **named: Any) -> Any:
        told.set()
        return register(*arguments, **named)

    server.routes.register_broker = note  # type: ignore[method-assign]
    await server.start()
    await told.wait()
    assert server.routes.route("T") is not None
    await broker.close()
    await server.close()
    assert caplog.text.count("Registration with name server") == 1  # logged once, not every period
    assert "again" in caplog.text


async def test_a_name_server_without_single_registrations_gets_all_topics(tmp_path: Path) -> None:
    """Like those of Apache's 4.x, which do not support code 217."""
    asked: list[int] = []

    def respond(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        asked.append(request.code)
        if request.code == RequestCode.REGISTER_BROKER:
            return RemotingCommand.response(request)
        return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")

    old = RemotingServer("127.0.0.1", 0, {}, default_handler=respond)
    await old.start()
    broker = Broker(config(tmp_path, namesrvAddr=old.address))
    await broker.start()
    await broker.parts.registration.register()
    del asked[:]
    for topic in ("One", "Two"):
        assert (await ask(broker, methodcaller("send", topic))).code == ResponseCode.SUCCESS
    assert asked == [RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.REGISTER_BROKER, RequestCode.REGISTER_BROKER]
    await broker.close()
    await old.close()


# --- on disk before the answer ----------------------------------------------------------------------------------


def test_with_synchronous_flush_a_response_waits_for_the_disk(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, flushDiskType="SYNC_FLUSH") as (server, wire):
        store = server.broker.parts.store
        answers = [wire.send("T", b"x", queue_id=number % 4) for number in range(20)]
        for answer in (*answers, wire.send_batch("T", [Message.of("T", b"x")] * 10)):
            assert answer.code == ResponseCode.SUCCESS
            _, physical = decode_offset_msg_id(answer.ext_fields["msgId"].split(",")[-1])
            assert store.flushed_where > physical


def test_a_slow_flush_is_reported_though_the_message_is_stored(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[bool], None]] = []
    with served(tmp_path, clock, flushDiskType="SYNC_FLUSH") as (server, wire):
        store = server.broker.parts.store
        monkeypatch.setattr(store, "when_flushed", lambda offset, callback: waiting.append(callback))
        later = [wire.send_later("T", b"%d" % number) for number in range(3)]
        # WAIT=false asks not to wait for the disk, and its answer overtakes the others.
        assert wire.send("T", b"careless", {"WAIT": "false"}).code == ResponseCode.SUCCESS
        later.append(wire.send_later("T", b"careful", {"XWAIT": "false"}))
        assert wire.send("T", b"careless", {"WAIT": "false"}).code == ResponseCode.SUCCESS
        assert [answer.done() for answer in later] == [False] * 4
        for callback, ok in zip(waiting, (True, False, True, True), strict=True):
            callback(ok)  # on a thread that is not the loop's, as the flush thread's are
        assert len(wire.messages("T")) == 6
        assert [answer.result(20).code for answer in later] == [0, ResponseCode.FLUSH_DISK_TIMEOUT, 0, 0]
        monkeypatch.undo()


# --- a client that is slow to read ------------------------------------------------------------------------------


def test_a_held_pull_waits_until_its_client_reads_again(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire), RemotingClient() as client:
        parts, slow = server.broker.parts, Wire(client, wire.address)
        wire.send("T")
        later = slow.hold("T", 1)
        assert held_pulls(slow, parts, "T") == 1
        (pull,) = held_by(parts, "T")
        pull.channel.is_paused = True
        wire.send("T", b"meanwhile")
        assert not later.done()
        until(
            lambda: parts.held_requests.pulls.count == 1
        )  # held again and again, instead of written to a full connection
        pull.channel.is_paused = False
        assert bodies_of(later.result(30)) == [b"meanwhile"]


# --- invalid bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
        b"\xff" * 100,
        b"\x01\x00\x00\x01" + b"\x00" * 50,  # one byte more than a frame may have
        b"\x00\x00\x00\x10\x00\x00\x00\x08not json....",
        b"\x00\x00\x00\x08\x05\x00\x00\x04....",
    ],
)
def test_garbage_closes_its_connection_and_no_other(cluster: LocalCluster, wire: Wire, garbage: bytes) -> None:
    host, _, port = cluster.broker_address.partition(":")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(garbage)
        rude.settimeout(20)
        assert rude.recv(1) == b""
    assert wire.send("T", b"after").code == ResponseCode.SUCCESS
