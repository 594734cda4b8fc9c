"""LocalCluster: in a process and on a thread, with kept and temporary data, killed and restarted."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import BrokerError, ConfigError, StateError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import parts_of

pytestmark = pytest.mark.live


@pytest.mark.parametrize("in_process", [False, True])
def test_a_cluster_serves_and_removes_its_data(in_process: bool) -> None:
    with LocalCluster(in_process=in_process) as cluster, RemotingClient() as client:
        data = cluster.data_dir
        assert (cluster.pid == os.getpid()) is in_process
        cluster.create_topic("T", queues=2)
        route = Wire(client, cluster.name_server).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert cluster.broker_address in bytes(route.body).decode()
        assert Wire(client, cluster.broker_address).send("T", queue_id=1).code == ResponseCode.SUCCESS
        assert Wire(client, cluster.broker_address).send("T", queue_id=2).code == ResponseCode.INVALID_PARAMETER
        address = cluster.broker_address
    assert not data.exists()
    host, _, port = address.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


@pytest.mark.parametrize("in_process", [False, True])
def test_data_in_a_given_directory_is_kept(tmp_path: Path, in_process: bool) -> None:
    for number in range(2):
        with LocalCluster(data_dir=tmp_path / "data", in_process=in_process) as cluster, RemotingClient() as client:
            answer = Wire(client, cluster.broker_address).send("T", b"x")
            assert answer.ext_fields["queueOffset"] == str(number)


def test_a_kill_and_a_restart_on_the_same_ports() -> None:
    with LocalCluster() as cluster, RemotingClient() as client:
        before = (cluster.name_server, cluster.broker_address, cluster.pid)
        wire = Wire(client, cluster.broker_address)
        wire.send("T", b"kept")
        cluster.kill_broker()
        with pytest.raises(StateError, match="not running"):
            _ = cluster.broker_address
        cluster.restart_broker()
        assert (cluster.name_server, cluster.broker_address) == before[:2]
        assert cluster.pid != before[2]
        assert wire.messages("T")[0].body == b"kept"
        cluster.delete_topic("T")
        assert wire.pull("T", 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_grpc_endpoint_starts_on_first_use() -> None:
    with LocalCluster() as cluster:
        endpoint = cluster.grpc_endpoint
        with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2]))):
            pass
        cluster.restart_broker()
        assert cluster.grpc_endpoint == endpoint
        cluster.restart_proxy()
        assert cluster.grpc_endpoint == endpoint
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])))
    with (
        LocalCluster(in_process=True, config={"grpcServerPort": -1}) as cluster,
        pytest.raises(StateError, match="no gRPC endpoint"),
    ):
        _ = cluster.grpc_endpoint


def test_settings_reach_the_broker() -> None:
    with LocalCluster(config={"autoCreateTopicEnable": False}) as cluster, RemotingClient() as client:
        assert Wire(client, cluster.broker_address).send("T").code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(BrokerError, match="illegal characters"):
            cluster.create_topic("bad name")


@pytest.mark.parametrize("in_process", [False, True])
def test_an_invalid_setting_fails_at_once(in_process: bool) -> None:
    cluster = LocalCluster(config={"flushDiskType": "SOMETIMES"}, in_process=in_process)
    with pytest.raises(ConfigError, match="flushDiskType needs one of"):
        cluster.start()


def test_a_topic_can_be_used_once_it_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the broker registers the topic after its response, as on a busy machine."""
    monkeypatch.setattr("spark_rocket.broker.settling_topics.REGISTER_TIMEOUT_S", 0.01)
    with LocalCluster(in_process=True) as cluster, RemotingClient() as client:
        parts = parts_of(cluster)
        register = parts.registration.register

        def later(topics: Collection[str] | None = None) -> asyncio.Future[Any]:
            parts.loop.call_later(0.3, register, topics)
            return parts.loop.create_future()

        monkeypatch.setattr(parts.registration, "register", later)
        cluster.create_topic("T", queues=1)
        route = Wire(client, cluster.name_server).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert route.code == ResponseCode.SUCCESS


def test_failed_starts_are_explained(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    with pytest.raises(StateError, match=r"topics\.json, line 1"):
        LocalCluster(data_dir=tmp_path).start()
    with pytest.raises(ConfigError, match=r"topics\.json, line 1"):
        LocalCluster(data_dir=tmp_path, in_process=True).start()


def test_a_cluster_is_used_in_the_right_order() -> None:
    cluster = LocalCluster(in_process=True)
    with pytest.raises(StateError, match="not running"):
        cluster.create_topic("T")
    with cluster:
        with pytest.raises(StateError, match="already running"):
            cluster.start()
        with pytest.raises(StateError, match="cannot be killed"):
            cluster.kill_broker()
    cluster.stop()


# --- accounts ---------------------------------------------------------------------------------------------------------

ROOT: dict[str, Any] = {"access_key": "root-key", "secret_key": "r00t-s3cr3t"}


@pytest.mark.parametrize("acl", ["1.0", "2.0"])
@pytest.mark.parametrize("how", [{"in_process": True}, {"brokers": 2}])
def test_an_account_has_exactly_its_permissions(acl: str, how: dict[str, Any]) -> None:
    with LocalCluster(acl=acl, **ROOT, **how) as cluster:
        for topic in ("orders", "bills"):
            cluster.create_topic(topic, 1)
        account = cluster.set_account("alice-key", "al1ce-s3cr3t", {"Topic:orders": ["Pub"], "Group:readers": ["Sub"]})
        addresses = [broker.address for broker in cluster.brokers] if "brokers" in how else [cluster.broker_address]
        with RemotingClient(credentials=account) as client:
            for wire in (Wire(client, address) for address in addresses):
                assert wire.send("orders").code == ResponseCode.SUCCESS
                assert wire.send("bills").code == ResponseCode.NO_PERMISSION
                assert wire.pull("orders", 0, consumerGroup="readers").code == ResponseCode.NO_PERMISSION
            cluster.set_account("alice-key", "al1ce-s3cr3t", {"Topic:*": ["Sub"], "Group:*": ["Sub"]})
            for wire in (Wire(client, address) for address in addresses):
                assert wire.send("orders").code == ResponseCode.NO_PERMISSION
                assert wire.pull("orders", 0, consumerGroup="readers").code == ResponseCode.SUCCESS


def test_what_an_account_cannot_have() -> None:
    with pytest.raises(ConfigError, match=r"Invalid acl '3\.0'"):
        LocalCluster(acl="3.0")
    with LocalCluster(in_process=True) as cluster, pytest.raises(StateError, match="no access control"):
        cluster.set_account("alice-key", "al1ce-s3cr3t", {})
    with LocalCluster(in_process=True, **ROOT) as cluster:
        for resource in ("Topic:orders*", "Cluster:*", "orders"):
            with pytest.raises(ConfigError, match=r"ACL 1\.0 has no resource"):
                cluster.set_account("alice-key", "al1ce-s3cr3t", {resource: ["Pub"]})
