"""The endpoint beside a broker: on the port that is set, on none, and without what it needs."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator

import grpc
import pytest

from spark_rocket.errors import ConfigError, StateError
from spark_rocket.proxy import definitions
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.cluster import _ServerThread
from tests.proxy.caller import Caller, producer_settings, resource


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_in_use_is_told_with_what_to_do(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{taken}") as caught:
        LocalCluster(in_process=True, config={"grpcServerPort": taken}).start()
    assert "--grpc-port" in caught.value.remedy
    assert "--no-grpc" in caught.value.remedy


def test_without_its_libraries_the_broker_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "spark_rocket.proxy.server", None)
    with caplog.at_level(logging.WARNING), LocalCluster(in_process=True) as cluster:
        cluster.create_topic("T")
        with pytest.raises(StateError, match="no gRPC endpoint"):
            _ = cluster.grpc_endpoint
    assert "pip install grpcio protobuf" in caplog.text


def test_a_stop_ends_streams_and_forgets_clients() -> None:
    with LocalCluster(in_process=True) as cluster:
        client = Caller(cluster.grpc_endpoint, "c")
        stream = client.telemetry().say_settings(producer_settings("T"))
        server = cluster._server
        assert isinstance(server, _ServerThread)
        service = server.service
        assert service is not None
        assert set(service.clients.producers) == {"T"}
    assert not service.clients.producers
    with pytest.raises(grpc.RpcError):
        list(stream)
    client.close()


def test_after_a_restart_clients_go_on() -> None:
    """What a client knows leads to the new process, and what needs no settings works at once."""
    with LocalCluster() as other, Caller(other.grpc_endpoint, "c") as client:
        other.create_topic("T")
        stream = client.publish("T")
        other.restart_broker()
        with pytest.raises(grpc.RpcError):
            list(stream)
        assert client.call("QueryRoute", topic=resource("T")).status.code == definitions.Code.OK
        assert client.call("Heartbeat").status.code == definitions.Code.UNRECOGNIZED_CLIENT_TYPE
        with client.publish("T"):
            assert client.call("Heartbeat").status.code == definitions.Code.OK
