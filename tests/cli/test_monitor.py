"""The endpoint and the logs of servers, as ``rocket up`` starts them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.foreground import NO_PORT, Started, metrics_port, start_monitor
from spark_rocket.namesrv.name_server import NameServer, NameServerMetrics
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings
from spark_rocket.testing.certificates import CertificateAuthority
from tests.cli.conftest import Run
from tests.cli.test_rocket import PORTS, found, started

pytestmark = pytest.mark.live


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_up_serves_metrics_and_writes_log_files(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    arguments = ["--metrics-port", 0, "--log-dir", logs, "--log-format", "json", "--log-level", "store=debug"]
    with started("up", "--ephemeral", *PORTS, *arguments, last="Press Ctrl-C to stop.", cwd=tmp_path) as (
        process,
        said,
    ):
        url = found(r"metrics +(http://127\.0\.0\.1:\d+)/metrics", said)
        text = get(f"{url}/metrics").decode()
        assert 'rocket_namesrv_brokers{cluster="",node_type="nameserver"' in text
        assert 'rocketmq_broker_permission{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 6' in text
        assert json.loads(get(f"{url}/ready"))["status"] == "UP"
        proxy = found(r"(http://127\.0\.0\.1:\d+)/metrics of the gRPC proxy", said)
        assert 'rocketmq_proxy_up{cluster="DefaultCluster",node_type="proxy"' in get(f"{proxy}/metrics").decode()
        assert json.loads(get(f"{proxy}/ready"))["brokers"].keys() == {"broker-a"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = [json.loads(line) for line in (logs / "broker.log").read_text().splitlines()]
    (start,) = [line for line in lines if line["message"] == "broker broker-a started"]
    assert start["metricsPromExporterPort"] == "0"
    assert "brokerName" not in start
    assert "registered" in (logs / "namesrv.log").read_text()


def test_an_invalid_log_level(run: Run, tmp_path: Path) -> None:
    assert "Invalid log level 'loud'" in run("namesrv", "--port", "0", "--log-level", "loud").error


@pytest.mark.parametrize(
    ("settings", "port"),
    [
        ({}, NO_PORT),
        ({"metricsExporterType": "PROM"}, 5557),
        ({"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}, 0),
        ({"metricsPromExporterPort": "0"}, NO_PORT),
        ({"metricsExporterType": "OTLP_GRPC"}, NO_PORT),
    ],
)
def test_settings(settings: dict[str, str], port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert metrics_port(BrokerConfig.from_properties(settings)) == port
    assert ("unsupported metricsExporterType=OTLP_GRPC" in caplog.text) == ("OTLP_GRPC" in settings.values())


def test_a_server_starts_without_its_metrics_port_if_that_is_in_use() -> None:
    async def main() -> tuple[Started, Started]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            async with AsyncExitStack() as servers:
                port = taken.getsockname()[1]
                source = NameServerMetrics(NameServer("127.0.0.1", 0))
                return (
                    await start_monitor(servers, source, port=port),
                    await start_monitor(servers, source, port=NO_PORT),
                )

    refused, none = asyncio.run(main())
    assert "the port is in use" in refused.lines[0]
    assert "--metrics-port" in refused.lines[0]
    assert refused.facts == {}
    assert none == Started()


def test_https_where_tls_is_enforced(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("server")
    tls = TlsSettings(mode=TlsMode.ENFORCING, server_cert_path=str(certificate), server_key_path=str(key))

    def ask(url: str) -> bytes:
        trusting = ssl.create_default_context(cafile=str(authority.certificate))
        with urllib.request.urlopen(f"{url}/health", timeout=30, context=trusting) as answer:
            return bytes(answer.read())

    async def main() -> bytes:
        async with AsyncExitStack() as servers:
            namesrv = NameServer("127.0.0.1", 0)
            await namesrv.start()
            servers.push_async_callback(namesrv.close)
            begun = await start_monitor(servers, NameServerMetrics(namesrv), port=0, tls=tls)
            url = begun.facts["metrics"]
            assert url.startswith("https://")
            with pytest.raises(OSError):
                await asyncio.to_thread(get, f"http{url[5:]}/health")
            return await asyncio.to_thread(ask, url)

    assert json.loads(asyncio.run(asyncio.wait_for(main(), 60)))["status"] == "UP"
