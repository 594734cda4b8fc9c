"""LocalCluster with several members, which are killed, stopped, restarted, paused and cut off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.errors import ConfigError, RemotingError, RemotingTimeoutError, StateError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until
from tests.proxy.caller import Caller, resource

pytestmark = pytest.mark.live

PATIENCE = 30.0


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, name_servers=2) as cluster:
        yield cluster


def brokers_of(client: RemotingClient, name_server: str, topic: str) -> set[str]:
    """The brokers that a name server names for a topic."""
    body = bytes(Wire(client, name_server).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic).body).decode()
    return {name for name in ("broker-a", "broker-b", "broker-c") if f'"{name}"' in body}


def test_both_brokers_store_messages_and_both_name_servers_have_routes(two: LocalCluster) -> None:
    two.create_topic("T", queues=2)
    with RemotingClient() as client:
        for name_server in two.name_servers:
            assert brokers_of(client, name_server.address, "T") == {"broker-a", "broker-b"}
    with Producer(name_server=two.name_server) as producer:
        sent = [producer.send(Message.of("T", b"%d" % number)).queue.broker_name for number in range(8)]
    assert set(sent) == {"broker-a", "broker-b"}
    with Caller(two.grpc_endpoint, "c") as caller:  # one endpoint for both
        route = caller.call("QueryRoute", topic=resource("T"))
        assert {queue.broker.name for queue in route.message_queues} == {"broker-a", "broker-b"}
    two.delete_topic("T")
    with RemotingClient() as client:
        assert brokers_of(client, two.name_servers[1].address, "T") == set()


def test_a_broker_killed_and_restarted(two: LocalCluster) -> None:
    second = two.brokers[1]
    two.create_topic("Kept")
    with RemotingClient() as client:
        wire = Wire(client, second.address)
        assert wire.send("Kept", b"x").code == ResponseCode.SUCCESS
        second.kill()
        assert not second.is_running
        with pytest.raises(RemotingError):
            wire.messages("Kept")
        with pytest.raises(StateError, match="broker-b is not running"):
            second.kill()
        assert Wire(client, two.brokers[0].address).send("Kept").code == ResponseCode.SUCCESS
        until(lambda: brokers_of(client, two.name_servers[0].address, "Kept") == {"broker-a"})
        second.restart()
        assert [message.body for message in wire.messages("Kept")] == [b"x"]
        assert brokers_of(client, two.name_servers[1].address, "Kept") == {"broker-a", "broker-b"}
    second.stop()
    assert check_store(second.store_dir) == []
    second.start()


def test_a_name_server_killed_and_restarted(two: LocalCluster) -> None:
    first = two.name_servers[0]
    two.create_topic("Known")
    first.kill()
    with Admin(two.name_server) as admin:
        assert len(admin.topic_route("Known").queue_datas) == 2  # the other name server answers
    first.restart()
    with RemotingClient() as client:
        until(lambda: brokers_of(client, first.address, "Known") == {"broker-a", "broker-b"})


def test_a_broker_cut_off_from_everyone_and_healed(two: LocalCluster) -> None:
    first = two.brokers[0]
    two.create_topic("Cut")
    with RemotingClient() as client:
        wire = Wire(client, first.address)
        wire.send("Cut", b"before")
        first.partition()
        answers: list[int] = []
        late = threading.Thread(target=lambda: answers.append(wire.send("Cut", b"during").code))
        late.start()
        with RemotingClient() as other, pytest.raises(RemotingTimeoutError):  # a new connection
            other.invoke(first.address, question(), 0.2)
        assert answers == []
        # Its process continues and is reachable without the relay.
        with RemotingClient() as direct:
            assert Wire(direct, f"127.0.0.1:{first.port}").send("Cut", b"direct").code == ResponseCode.SUCCESS
        first.heal()
        late.join(PATIENCE)
        assert answers == [ResponseCode.SUCCESS]
        assert sorted(message.body for message in wire.messages("Cut")) == [b"before", b"direct", b"during"]


def question() -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_BROKER_CONFIG, {})


def test_a_broker_cut_off_from_one_name_server_only(two: LocalCluster) -> None:
    first, second = two.name_servers
    two.brokers[0].partition(first)
    two.brokers[0].restart()  # unregisters from the reachable one and registers there again
    two.create_topic("Half")
    with RemotingClient() as client:
        assert brokers_of(client, second.address, "Half") == {"broker-a", "broker-b"}
        assert "broker-a" not in brokers_of(client, first.address, "Half")
        assert Wire(client, two.brokers[0].address).send("Half").code == ResponseCode.SUCCESS
        two.brokers[0].heal()
        until(lambda: brokers_of(client, first.address, "Half") == {"broker-a", "broker-b"})


def test_a_broker_paused(two: LocalCluster) -> None:
    first = two.brokers[0]
    with RemotingClient() as client:
        wire = Wire(client, first.address)
        wire.send("T0", b"x")
        first.pause()
        with pytest.raises(RemotingTimeoutError):
            client.invoke(first.address, question(), 0.2)
        first.resume()
        assert len(wire.messages("T0")) == 1


def test_large_messages_pass_a_relay(two: LocalCluster) -> None:
    two.create_topic("Much", queues=1)
    body = b"0123456789abcdef" * 60_000
    with Producer(name_server=two.name_server, compress_msg_body_over_howmuch=1 << 30) as producer:
        for _ in range(20):
            producer.send(Message.of("Much", body))
    with Reader(two.name_server) as reader:
        read = [
            message.body
            for queue in reader.queues("Much")
            for offset in range(10)
            for message in reader.messages(queue, offset, max_msgs=1)
        ]
    assert read == [body] * 20


def test_a_broker_added(two: LocalCluster) -> None:
    new = two.add_broker()
    assert (new.name, new.broker_name) == ("broker-c", "broker-c")
    two.create_topic("Three")
    with Admin(two.name_server) as admin:
        assert len(admin.topic_route("Three").queue_datas) == 3


def test_members_are_used_in_the_right_order() -> None:
    with pytest.raises(StateError, match="Several servers"):
        LocalCluster(brokers=2, in_process=True)
    with pytest.raises(ConfigError, match="flushDiskType"):
        LocalCluster(brokers=1, config={"flushDiskType": "SOMETIMES"}).start()
    with LocalCluster(in_process=True) as cluster, pytest.raises(StateError, match=r"LocalCluster\(brokers=1\)"):
        _ = cluster.brokers


def test_partitions_need_several_loopback_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.testing.network.HAS_MORE_LOOPBACK", False)
    with LocalCluster(brokers=1) as cluster, RemotingClient() as client:
        assert cluster.broker_address == f"127.0.0.1:{cluster.brokers[0].port}"
        assert Wire(client, cluster.broker_address).send("T").code == ResponseCode.SUCCESS
        with pytest.raises(StateError, match="on Linux only"):
            cluster.brokers[0].partition()


def test_close_removes_everything() -> None:
    with LocalCluster(brokers=1) as cluster:
        address, port, data = cluster.broker_address, cluster.brokers[0].port, cluster.data_dir
        cluster.kill_broker()
        cluster.restart_broker()
        cluster.create_topic("T")
        assert cluster.store_dir == data / "broker-a" / "store"
        assert "broker-a" in cluster.log
    assert not data.exists()
    for host in (address.partition(":")[0], "127.0.0.1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
