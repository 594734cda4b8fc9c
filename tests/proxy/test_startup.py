"""The complete proxy: port, TLS, stop and restart, and brokers that stop and start."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.errors import ConfigError
from spark_rocket.proxy import definitions
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.remoting.tls.contexts import self_signed
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.threads import ProxyThread
from tests.proxy.caller import SECONDS, Caller, producer_settings, resource

pytestmark = pytest.mark.live


@contextmanager
def started(cluster: LocalCluster) -> Iterator[ProxyThread]:
    """A proxy of its own."""
    proxy = ProxyThread(ProxyConfig(name_server=cluster.name_server, port=0), SECONDS)
    try:
        yield proxy
    finally:
        proxy.stop()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_in_use_is_reported_with_the_remedy(taken: int) -> None:
    with LocalCluster(in_process=True, config={"grpcServerPort": taken}) as cluster:
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{taken}") as caught:
            _ = cluster.grpc_endpoint
        assert "--grpc-port" in caught.value.remedy


# --- TLS --------------------------------------------------------------------------------------------------------


def secure_call(endpoint: str, certificate: str) -> Any:
    credentials = grpc.ssl_channel_credentials(certificate.encode())
    with grpc.secure_channel(endpoint, credentials) as channel:
        stub = channel.unary_unary(f"/{definitions.SERVICE}/QueryRoute")
        raw = stub(b"", timeout=SECONDS, metadata=[("x-mq-client-id", "c")])
    return definitions.QueryRouteResponse.FromString(raw)


def test_tls_with_a_configured_certificate(tmp_path: Path) -> None:
    pair = self_signed(["127.0.0.1"])
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    config = {"tlsCertPath": tmp_path / "c.pem", "tlsKeyPath": tmp_path / "k.pem"}
    with LocalCluster(in_process=True, config=config) as cluster:
        certificate = pair.certificate.decode()
        assert secure_call(cluster.grpc_endpoint, certificate).status.code == definitions.Code.ILLEGAL_TOPIC


@pytest.mark.parametrize(
    ("config", "remark"),
    [
        ({"tlsCertPath": "/nowhere/c.pem"}, "tlsKeyPath is not"),
        ({"tlsCertPath": "/nowhere/c.pem", "tlsKeyPath": "/nowhere/k.pem"}, "Cannot read"),
    ],
)
def test_an_invalid_certificate(config: dict[str, object], remark: str) -> None:
    with LocalCluster(in_process=True, config=config) as cluster, pytest.raises(ConfigError, match=remark):
        _ = cluster.grpc_endpoint


def test_tls_can_be_off() -> None:
    with LocalCluster(in_process=True, config={"tlsTestModeEnable": False}) as cluster:
        host, _, port = cluster.grpc_endpoint.rpartition(":")
        with pytest.raises(OSError, match=r".*"):
            ssl.get_server_certificate((host, int(port)), timeout=SECONDS)


# --- stops and restarts -----------------------------------------------------------------------------------------


def test_a_stop_ends_streams_and_forgets_clients(cluster: LocalCluster, parts: BrokerParts, topic: str) -> None:
    with started(cluster) as proxy, Caller(proxy.address, "c") as client:
        stream = client.telemetry().say_settings(producer_settings(topic))
        assert topic in parts.clients.producers
        proxy.stop()
        assert topic not in parts.clients.producers
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_after_a_restart_clients_continue() -> None:
    """What a client knows leads to the new process, and what needs no settings works at once."""
    with LocalCluster(in_process=True) as other, Caller(other.grpc_endpoint, "c") as client:
        other.create_topic("T")
        stream = client.publish("T")
        other.restart_proxy()
        with pytest.raises(grpc.RpcError):
            list(stream)
        assert client.call("QueryRoute", topic=resource("T")).status.code == definitions.Code.OK
        assert client.call("Heartbeat").status.code == definitions.Code.UNRECOGNIZED_CLIENT_TYPE
        with client.publish("T"):
            assert client.call("Heartbeat").status.code == definitions.Code.OK


def test_a_broker_dies_and_returns() -> None:
    """The proxy continues, and a client's settings remain valid."""
    with LocalCluster() as other, Caller(other.grpc_endpoint, "c") as client:
        other.create_topic("T")
        with client.publish("T"):
            other.kill_broker()
            other.restart_broker()
            assert client.call("Heartbeat").status.code == definitions.Code.OK
            assert client.call("QueryRoute", topic=resource("T")).status.code == definitions.Code.OK
