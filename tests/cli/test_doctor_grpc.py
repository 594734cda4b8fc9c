"""``rocket doctor --grpc``: a finding for each way in which a gRPC endpoint does not serve, with a remedy."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.cli import main
from spark_rocket.cli.commands.doctor_finding import Finding
from spark_rocket.cli.commands.doctor_grpc import check_grpc
from spark_rocket.cli.connect import Link
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.transport.proxy_context import ProxyContext, Rpc
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.certificates import CertificateAuthority
from spark_rocket.testing.threads import ProxyThread
from tests.proxy.grpc_world import World

pytestmark = pytest.mark.live

TOPICS = {"orders": 3}


def found(endpoint: str, topic: str | None = "orders", **link: Any) -> list[Finding]:
    return list(check_grpc(Link(timeout=10.0, **link), endpoint, topic))


def grades(findings: list[Finding]) -> list[str]:
    assert all(one.remedy for one in findings if one.grade == "wrong")
    return [one.grade for one in findings]


def test_no_problems(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    reached, health, route = found(cluster.grpc_endpoint)
    assert grades([reached, health, route]) == ["ok"] * 3
    assert "plaintext and TLS" in reached.text
    assert health.text == "SERVING"
    assert route.text == "3 queues on broker-a"
    arguments = ["doctor", "-n", cluster.name_server, "-t", "orders", "--grpc", cluster.grpc_endpoint]
    main(arguments)
    assert "gRPC route of orders: 3 queues on broker-a" in capsys.readouterr().out


def test_a_missing_topic(cluster: LocalCluster) -> None:
    *fine, route = found(cluster.grpc_endpoint, "nowhere")
    assert grades(fine) == ["ok", "ok"]
    assert (route.grade, "TOPIC_NOT_FOUND" in route.text) == ("wrong", True)
    assert "rocket topic create" in route.remedy


def test_an_endpoint_without_a_server_or_without_grpc(cluster: LocalCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (nobody,) = found(f"127.0.0.1:{taken.getsockname()[1]}")
    assert (nobody.grade, "cannot be reached" in nobody.text, "--grpc-port" in nobody.remedy) == ("wrong", True, True)
    (other,) = found(cluster.name_server)
    assert (other.grade, "does not speak gRPC" in other.text, "8081" in other.remedy) == ("wrong", True, True)


def test_tls(cluster: LocalCluster, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("server")
    config = ProxyConfig(
        name_server=cluster.name_server,
        port=0,
        tls_cert_path=str(certificate),
        tls_key_path=str(key),
        tls={"tls.server.mode": "enforcing", "tls.enable": "false"},
    )
    proxy = ProxyThread(config, 60)
    try:
        (plaintext,) = found(proxy.address)
        assert (plaintext.grade, "only TLS" in plaintext.text, "--tls" in plaintext.remedy) == ("wrong", True, True)
        assert grades(found(proxy.address, tls=True, tls_ca=authority.certificate)) == ["ok"] * 3
        assert grades(found(proxy.address, tls=True, tls_verify="none")) == ["ok"] * 3
        (unknown,) = found(proxy.address, tls=True)
        assert (unknown.grade, "not trusted" in unknown.text, "--tls-ca" in unknown.remedy) == ("wrong", True, True)
    finally:
        proxy.stop()
    (none,) = found(cluster.name_server, tls=True)
    assert grades([none]) == ["wrong"]


def test_accounts() -> None:
    with LocalCluster(in_process=True, access_key="root-key", secret_key="r00t-s3cr3t") as guarded:
        guarded.create_topic("orders", 3)
        *fine, route = found(guarded.grpc_endpoint)
        assert grades(fine) == ["ok", "ok"]
        assert (route.grade, "UNAUTHORIZED" in route.text, "--access-key" in route.remedy) == ("wrong", True, True)
        signed = found(guarded.grpc_endpoint, access_key="root-key", secret_key="r00t-s3cr3t")
        assert grades(signed) == ["ok"] * 3


def test_an_unavailable_name_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        proxy = ProxyThread(ProxyConfig(name_server=address, port=0), 60)
        try:
            *fine, route = found(proxy.address)
        finally:
            proxy.stop()
    assert grades(fine) == ["ok", "ok"]
    assert (route.grade, address in route.text, "-n" in route.remedy) == ("wrong", True, True)


class ConfigurableHealth(World):
    """A server with a configurable health status."""

    def __init__(self, health: bytes | None) -> None:
        self.health = health
        super().__init__()

    def rpcs(self) -> dict[str, Rpc]:
        return {} if self.health is None else {"/grpc.health.v1.Health/Check": Rpc(self.check)}

    async def check(self, context: ProxyContext, request: bytes) -> bytes:
        assert self.health is not None
        return self.health


@pytest.mark.parametrize(("reported", "grade"), [(b"\x08\x02", "wrong"), (None, "warning")])
def test_health(reported: bytes | None, grade: str) -> None:
    with ConfigurableHealth(reported) as server:
        _, health = found(server.target, None)
        assert health.grade == grade
        _, _, route = found(server.target, "orders")
        assert (route.grade, "UNIMPLEMENTED" in route.text, bool(route.remedy)) == ("wrong", True, True)
