"""The files in ``deploy/``: valid by their schemas, and their commands start servers that become ready."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_rocket.client import Admin, Producer
from spark_rocket.model import Message
from tests.kit.waiting import until

pytestmark = pytest.mark.live

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = sorted(set((DEPLOY / "kubernetes").glob("*.yaml")) - {DEPLOY / "kubernetes" / "kustomization.yaml"})
SCRIPTS = Path(sysconfig.get_path("scripts"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        *(["kubernetes-validate", "--strict", path] for path in KUBERNETES),
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        ["hadolint", DEPLOY / "Dockerfile"],
    ],
    ids=lambda command: Path(command[-1]).name,
)
def test_files_are_valid(command: list[str | Path]) -> None:
    done = run(SCRIPTS / command[0], *command[1:])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="requires systemd-analyze")
@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_units_are_valid(tmp_path: Path, unit: Path) -> None:
    rocket = tmp_path / "rocket"
    rocket.write_text("#!/bin/sh\n")
    rocket.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/rocket/bin/rocket", str(rocket)))
    done = run("systemd-analyze", "verify", "--man=no", copy)
    assert done.returncode == 0, done.stderr


def test_the_kustomization_names_all_manifests() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in KUBERNETES]


def documents(kind: str) -> Iterator[dict[str, Any]]:
    for path in KUBERNETES:
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == kind:
                yield document


class Pods:
    """Runs the containers of the manifests as processes. Each has an address of its own, so ports do not change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.hosts: dict[str, str] = {}
        bin_directory = directory / "bin"
        bin_directory.mkdir()
        rocket = bin_directory / "rocket"
        rocket.write_text(f'#!/bin/sh\nexec {sys.executable} -m spark_rocket.cli "$@"\n')
        rocket.chmod(0o755)
        self._path = f"{bin_directory}:{os.environ['PATH']}"

    @contextmanager
    def running(self, document: dict[str, Any]) -> Iterator[str]:
        """Start a pod and wait until it is ready; the address."""
        name = document["metadata"]["name"]
        host = self.hosts[name] = f"127.0.91.{len(self.hosts) + 1}"
        home = self._directory / name
        home.mkdir()
        (container,) = document["spec"]["template"]["spec"]["containers"]
        for config in documents("ConfigMap"):
            for file, text in config["data"].items():
                (home / file).write_text(text)
        here = {"/etc/rocket": str(home), "/tmp": str(home), "/data": str(home), "0.0.0.0": host} | {
            f"{name}:": f"{host}:" for name, host in self.hosts.items() if name.startswith("namesrv")
        }

        def localized(text: str) -> str:
            return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], text)

        variables = {
            variable["name"]: localized(variable.get("value", f"{name}-0")) for variable in container.get("env", ())
        }
        command = [*container.get("command", ["rocket"]), *map(localized, container["args"])]
        environment = os.environ | variables | {"PATH": self._path, "HOME": str(home)}
        process = subprocess.Popen(command, env=environment, cwd=home)
        try:
            until(lambda: self._is_ready(process, container, host))
            yield host
        finally:
            process.terminate()
            assert process.wait(30) == 0

    def _is_ready(self, process: subprocess.Popen[bytes], container: dict[str, Any], host: str) -> bool:
        assert process.poll() is None, "the server has stopped"
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        probe = container["readinessProbe"]
        try:
            if "tcpSocket" in probe:
                socket.create_connection((host, ports[probe["tcpSocket"]["port"]]), 1).close()
            else:
                get = probe["httpGet"]
                urllib.request.urlopen(f"http://{host}:{ports[get['port']]}{get['path']}", timeout=1).close()
        except OSError:
            return False
        return True


def test_the_manifests_start_a_cluster(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    with ExitStack() as running:
        deployments = {document["metadata"]["name"]: document for document in documents("Deployment")}
        name_servers = [name for name in deployments if name.startswith("namesrv")]
        addresses = [f"{running.enter_context(pods.running(deployments[name]))}:9876" for name in name_servers]
        (broker,) = documents("StatefulSet")
        running.enter_context(pods.running(broker))
        for name in set(deployments) - set(name_servers):
            running.enter_context(pods.running(deployments[name]))
        for address in addresses:  # each name server alone knows the broker
            with Admin(address) as admin:
                until(lambda admin=admin: "broker-0" in admin.cluster_info().broker_addr_table)  # type: ignore[misc]
        with Admin(addresses[0]) as admin, Producer("producers", name_server=";".join(addresses)) as producer:
            admin.create_topic("orders", 1)
            until(lambda: producer.queues("orders"))
            assert producer.send(Message("orders", b"body")).queue_offset == 0
