"""The endpoint beside a broker: on the port that is set, on none, and without what it needs."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from spark_rocket.errors import ConfigError, StateError
from spark_rocket.proxy import definitions
from spark_rocket.remoting.self_signed import self_signed
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.cluster import _ServerThread
from tests.proxy.caller import SECONDS, Caller, producer_settings, resource


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
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with caplog.at_level(logging.WARNING), LocalCluster(in_process=True) as cluster:
        cluster.create_topic("T")
        with pytest.raises(StateError, match="no gRPC endpoint"):
            _ = cluster.grpc_endpoint
    assert "pip install protobuf" in caplog.text


def test_what_cannot_be_loaded_is_told_when_somebody_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "spark_rocket.proxy.families", None)
    with LocalCluster(in_process=True) as cluster, Caller(cluster.grpc_endpoint, "c") as client:
        with pytest.raises(grpc.RpcError):
            client.call("QueryRoute")
        assert cluster.create_topic("T") == "T"
    assert "Nobody is served by gRPC" in caplog.text


def test_nothing_is_loaded_before_somebody_calls() -> None:
    with LocalCluster(in_process=True) as cluster:
        server = cluster._server
        assert isinstance(server, _ServerThread)
        assert server.proxy is not None
        assert server.proxy.families is None
        with Caller(cluster.grpc_endpoint, "c") as client:
            assert client.call("QueryRoute").status.code == definitions.Code.ILLEGAL_TOPIC
            assert server.proxy.families is not None


def test_the_health_of_the_endpoint(client: Caller) -> None:
    check = client._channel.unary_unary("/grpc.health.v1.Health/Check")
    serving = b"\x08\x01"
    assert check(b"", timeout=SECONDS) == serving
    assert check(b"\x0a" + bytes([len(definitions.SERVICE)]) + definitions.SERVICE.encode(), timeout=SECONDS) == serving
    with pytest.raises(grpc.RpcError) as caught:
        check(b"\x0a\x01x", timeout=SECONDS)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


# --- TLS --------------------------------------------------------------------------------------------------------


def secure_call(endpoint: str, certificate: str) -> Any:
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    with grpc.secure_channel(endpoint, credentials) as channel:
        stub = channel.unary_unary(f"/{definitions.SERVICE}/QueryRoute")
        raw = stub(b"", timeout=SECONDS, metadata=[("x-mq-client-id", "c")])
    return definitions.QueryRouteResponse.FromString(raw)


def test_tls_and_plaintext_on_one_port(cluster: LocalCluster, client: Caller) -> None:
    host, _, port = cluster.grpc_endpoint.rpartition(":")
    certificate = ssl.get_server_certificate((host, int(port)))
    assert secure_call(cluster.grpc_endpoint, certificate).status.code == definitions.Code.ILLEGAL_TOPIC
    assert client.call("QueryRoute").status.code == definitions.Code.ILLEGAL_TOPIC


def test_tls_with_a_certificate_that_is_given(tmp_path: Path) -> None:
    pair = self_signed(["127.0.0.1"])
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    config = {"tlsCertPath": tmp_path / "c.pem", "tlsKeyPath": tmp_path / "k.pem"}
    with LocalCluster(in_process=True, config=config) as cluster:
        certificate = pair.certificate.decode()
        assert secure_call(cluster.grpc_endpoint, certificate).status.code == definitions.Code.ILLEGAL_TOPIC


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"tlsCertPath": "/nowhere/c.pem"}, "belong together"),
        ({"tlsCertPath": "/nowhere/c.pem", "tlsKeyPath": "/nowhere/k.pem"}, "cannot be read"),
    ],
)
def test_a_certificate_that_is_none(config: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LocalCluster(in_process=True, config=config).start()


def test_tls_can_be_off() -> None:
    with LocalCluster(in_process=True, config={"tlsTestModeEnable": False}) as cluster:
        host, _, port = cluster.grpc_endpoint.rpartition(":")
        with pytest.raises(OSError, match=r".*"):
            ssl.get_server_certificate((host, int(port)), timeout=SECONDS)


# --- stops and restarts -----------------------------------------------------------------------------------------


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
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
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
