"""The endpoint and the logs of servers, as ``rocket up`` starts them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from spark_rocket.broker.config import BrokerConfig
from spark_rocket.cli.monitor import NO_PORT, Started, metrics_port, start_monitor
from spark_rocket.namesrv.server import NameServer
from tests.cli.test_rocket import PORTS, found, started


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_up_serves_figures_and_logs_into_files(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    arguments = ["--metrics-port", 0, "--log-dir", logs, "--log-format", "json", "--log-level", "store=debug"]
    with started("up", "--ephemeral", *PORTS, *arguments, last="Ctrl-C stops it.", cwd=tmp_path) as (process, said):
        url = found(r"metrics +(http://127\.0\.0\.1:\d+)/metrics", said)
        text = get(f"{url}/metrics").decode()
        assert 'rocket_namesrv_brokers{cluster="",node_type="nameserver"' in text
        assert 'rocketmq_broker_permission{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 6' in text
        assert json.loads(get(f"{url}/ready"))["status"] == "UP"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = [json.loads(line) for line in (logs / "broker.log").read_text().splitlines()]
    (start,) = [line for line in lines if line["message"] == "broker broker-a started"]
    assert start["metricsPromExporterPort"] == "0"
    assert "brokerName" not in start
    assert "registered" in (logs / "namesrv.log").read_text()


def test_a_level_that_is_none_is_said(tmp_path: Path) -> None:
    from tests.cli.test_rocket import finished, one_line

    assert "'loud' is no level to log at" in one_line(finished("namesrv", "--port", "0", "--log-level", "loud"))


@pytest.mark.parametrize(
    ("settings", "port"),
    [
        ({}, 5557),
        ({"metricsPromExporterPort": "0"}, 0),
        ({"metricsExporterType": "DISABLE"}, NO_PORT),
        ({"metricsExporterType": "OTLP_GRPC"}, NO_PORT),
    ],
)
def test_settings(settings: dict[str, str], port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert metrics_port(BrokerConfig.from_properties(settings)) == port
    assert ("OTLP_GRPC is not served here" in caplog.text) == ("OTLP_GRPC" in settings.values())


def test_a_taken_port_does_not_stop_a_server() -> None:
    async def main() -> tuple[Started, Started]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            async with AsyncExitStack() as servers:
                port = taken.getsockname()[1]
                namesrv = NameServer("127.0.0.1", 0)
                return (
                    await start_monitor(servers, port=port, namesrv=namesrv),
                    await start_monitor(servers, port=NO_PORT, namesrv=namesrv),
                )

    refused, none = asyncio.run(main())
    assert "the port is in use" in refused.lines[0]
    assert "--metrics-port" in refused.lines[0]
    assert refused.facts == {}
    assert none == Started()
