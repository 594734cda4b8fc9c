"""``rocket proxy``, and the proxy that ``rocket up`` starts: processes, signals, settings, and failed starts."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.foreground import NO_PORT, metrics_port
from spark_rocket.cli.servers.serve_proxy import worker_config
from spark_rocket.cli.servers.up_children import proxy_config
from spark_rocket.proxy import definitions
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run
from tests.cli.test_rocket import PORTS, command, found, started
from tests.kit.waiting import until
from tests.proxy.caller import Caller, resource

pytestmark = pytest.mark.live

LIMIT = 60.0
TOPICS = {"T": 8}
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def route_code(endpoint: str, topic: str = "T") -> int:
    """The code of the response to a route query."""
    with Caller(endpoint, "c") as client:
        return int(client.call("QueryRoute", topic=resource(topic)).status.code)


def children(pid: int, verb: str) -> list[int]:
    """The child processes that run this command."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child) for child in found if f"\0{verb}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes() + b"\0"
    ]


def says(process: subprocess.Popen[str], text: str) -> None:
    """Wait until the process prints the text."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text}")


def is_served(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LIMIT).close()
    except OSError:
        return False
    return True


# --- rocket proxy -----------------------------------------------------------------------------------------------


def test_a_proxy_serves_an_existing_cluster(cluster: LocalCluster) -> None:
    arguments = ["proxy", "-n", cluster.name_server, "--grpc-port", 0]
    with started(*arguments, last="name servers") as (process, said):
        endpoint = found(r"gRPC proxy on (127\.0\.0\.1:\d+)", said)
        assert cluster.name_server in said
        assert route_code(endpoint) == definitions.Code.OK
        assert route_code(endpoint, "Unknown") == definitions.Code.TOPIC_NOT_FOUND
        process.terminate()
        rest, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, rest, errors) == (0, "", "")


@only_linux
def test_workers_share_a_port(cluster: LocalCluster) -> None:
    arguments = ["proxy", "-n", cluster.name_server, "--grpc-port", 0, "--workers", 2]
    with started(*arguments, last="name servers") as (process, said):
        endpoint = found(r"gRPC proxy on (127\.0\.0\.1:\d+), 2 processes", said)
        workers = children(process.pid, "proxy")
        assert len(workers) == 2
        assert {route_code(endpoint) for _ in range(10)} == {definitions.Code.OK}
        os.kill(workers[0], signal.SIGKILL)
        says(process, "is up again")
        assert len(children(process.pid, "proxy")) == 2
        assert {route_code(endpoint) for _ in range(10)} == {definitions.Code.OK}
        process.terminate()
        assert process.wait(LIMIT) == 0
        assert not is_served(endpoint)


@only_linux
def test_metrics_of_each_worker(cluster: LocalCluster) -> None:
    metrics = r"metrics +(http://127\.0\.0\.1:\d+)/metrics"
    arguments = ["proxy", "-n", cluster.name_server, "--grpc-port", 0, "--metrics-port", 0]
    with started(*arguments, "--workers", 2, last="name servers") as (_, said):
        urls = set(re.findall(metrics, said))
        assert len(urls) == 2
        for url in urls:
            with urllib.request.urlopen(f"{url}/ready", timeout=LIMIT) as response:
                assert response.status == 200


def test_ports_of_metrics() -> None:
    config = ProxyConfig(metrics_prom_exporter_port=5557)
    assert [worker_config(config, 8081, number).metrics_prom_exporter_port for number in (1, 2, 3)] == [
        5557,
        5558,
        5559,
    ]
    for port, expected in ((5557, 5560), (0, 0), (65_535, 65_535)):
        broker = BrokerConfig(metrics_prom_exporter_port=port)
        assert proxy_config(broker, "a:1", None, processes=3).metrics_prom_exporter_port == expected
    assert metrics_port(proxy_config(BrokerConfig(), "a:1", None)) == metrics_port(ProxyConfig()) == NO_PORT


def test_the_command_line_overrides_the_file(cluster: LocalCluster, tmp_path: Path) -> None:
    conf = tmp_path / "proxy.conf"
    conf.write_text(f"namesrvAddr={cluster.name_server}\ngrpcServerPort=1\nproxyMode=CLUSTER\nrocketmqMQClientNum=6\n")
    environment = {**os.environ, "NAMESRV_ADDR": "127.0.0.1:1"}  # the environment has less precedence than a file
    with subprocess.Popen(
        command("proxy", "-c", conf, "--grpc-port", 0), stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        endpoint = found(r"gRPC proxy on (127\.0\.0\.1:\d+)", process.stdout.readline())
        assert route_code(endpoint) == definitions.Code.OK
        process.terminate()


def test_invalid_arguments(run: Run, tmp_path: Path) -> None:
    refused = run("proxy", "-n", "malformed")
    assert refused.status == 2
    assert "'malformed'" in refused.err
    assert "host:port" in refused.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for workers in (1, 2):
            line = run("proxy", "--grpc-port", port, "--workers", workers).error
            assert f"gRPC endpoint cannot listen on 127.0.0.1:{port}" in line
            assert "--grpc-port (0 selects a free one)" in line
    conf = tmp_path / "proxy.conf"
    conf.write_text("\ngrpcServerPort=ten\n")
    assert f"{conf}, line 2: grpcServerPort=ten: grpcServerPort needs a whole number." in run("proxy", "-c", conf).error
    assert "nowhere.yml" in run("proxy", "--grpc-port", 0, "--acl-file", tmp_path / "nowhere.yml").error


def test_a_proxy_without_a_name_server_reports_it_to_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with started("proxy", "-n", address, "--grpc-port", 0, last="name servers") as (_, said):
        with Caller(found(r"gRPC proxy on (127\.0\.0\.1:\d+)", said), "c") as client:
            status = client.call("QueryRoute", topic=resource("T")).status
        assert status.code != definitions.Code.OK
        assert address in status.message


# --- rocket up --------------------------------------------------------------------------------------------------


@only_linux
def test_up_restarts_a_dead_proxy_and_stops_it(tmp_path: Path) -> None:
    with started("up", "--data", tmp_path, *PORTS, last="Press Ctrl-C to stop.") as (process, said):
        endpoint = found(r"gRPC +(127\.0\.0\.1:\d+)", said)
        assert route_code(endpoint) == definitions.Code.TOPIC_NOT_FOUND
        (child,) = children(process.pid, "proxy")
        os.kill(child, signal.SIGKILL)
        says(process, "The gRPC proxy was terminated by SIGKILL.")
        says(process, "The gRPC proxy is up again.")
        assert route_code(endpoint) == definitions.Code.TOPIC_NOT_FOUND
        process.kill()
        process.wait(LIMIT)
        until(lambda: not is_served(endpoint))


def test_up_without_grpc(tmp_path: Path) -> None:
    ports = ["--nameserver-port", 0, "--broker-port", 0, "--no-console"]
    conf = tmp_path / "broker.conf"
    conf.write_text("grpcServerPort=-1\n")
    with started("up", "--data", tmp_path, *ports, "-c", conf, last="Press Ctrl-C to stop.") as (_, said):
        assert "gRPC" not in said


def test_up_passes_access_control_settings_to_the_proxy(tmp_path: Path) -> None:
    """The settings include the account with which the proxy signs."""
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: own-key, secretKey: 0wn-s3cr3t, admin: true}\n", encoding="utf-8"
    )
    conf = tmp_path / "broker.conf"
    own = '{"accessKey": "own-key", "secretKey": "0wn-s3cr3t"}'
    conf.write_text(f"aclEnable=true\nmaxMessageSize=1000\ninnerClientAuthenticationCredentials={own}\n")
    arguments = ["up", "--data", tmp_path, "-c", conf, *PORTS]
    with started(*arguments, last="Press Ctrl-C to stop.") as (_, said):
        assert "no account" not in said
        assert route_code(found(r"gRPC +(127\.0\.0\.1:\d+)", said)) == definitions.Code.UNAUTHORIZED
    conf.write_text("aclEnable=true\n")
    with started(*arguments, last="Press Ctrl-C to stop.") as (_, said):
        assert "no account" in said


def test_rocket_broker_opens_no_grpc_port(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"grpcServerPort=8081\nlistenPort=0\nstorePathRootDir={tmp_path}/store\n")
    with started("broker", "-c", conf, last="store  ") as (process, said):
        assert "gRPC" not in said
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT)
        assert f"{conf}: ignored settings of the gRPC proxy: grpcServerPort." in errors
        assert "rocket proxy" in errors
    assert run("broker", "--grpc-port", "0").status == 2
