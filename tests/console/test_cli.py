"""``rocket console``, and the console that ``rocket up`` starts."""

from __future__ import annotations

import asyncio
import io
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.console import console
from spark_rocket.cli.servers.up_children import console_account, start_console
from spark_rocket.console.passwords import is_right
from spark_rocket.remoting.server.remoting_server import run as run_loop
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run, run
from tests.cli.descriptors import WatchedDescriptors
from tests.console.conftest import WAIT, eventually
from tests.kit.waiting import until

pytestmark = pytest.mark.live

__all__ = ["run"]

ROCKET = [sys.executable, "-m", "spark_rocket.cli"]


class Rocket:
    """A running command and its output."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*ROCKET, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        self.said = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line; the failure has the output until then."""
        deadline = time.monotonic() + WAIT * 2
        while (found := re.search(pattern, self.said)) is None:
            readable, _, _ = select.select([self._pipe], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self._pipe, 65536) if readable else b""
            assert piece, self.said
            self.said += piece.decode(errors="replace")
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("allowed", [[], ["--allowed-host", "localhost"]])
def test_rocket_console_on_all_addresses_requires_a_login(cluster: LocalCluster, allowed: list[str]) -> None:
    given = {"ROCKET_CONSOLE_PASSWORD": "correct horse"}
    rocket = Rocket("console", "-n", cluster.name_server, "--host", "0.0.0.0", "--port", "0", *allowed, env=given)
    try:
        url = rocket.until(r"console of \S+ on (http://\S+:\d+)")[1]
        rocket.until(r"OPEN TO OTHERS, behind a login: listening on every address of this machine \(0\.0\.0\.0\)")
        assert "rocket console" in httpx.get(f"{url}/groups").text
        assert httpx.get(f"{url}/api/overview").status_code == 401
        response = httpx.post(f"{url}/api/login", json={"user": "admin", "password": "correct horse"})
        assert response.status_code == 200
        topics = httpx.get(f"{url}/api/topics", cookies=dict(response.cookies))
        assert topics.status_code == 200
        assert "correct horse" not in rocket.said
        assert rocket.end() == 0
    finally:
        rocket.close()


def test_failed_starts(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROCKET_CONSOLE_PASSWORD", raising=False)
    said = run("console", "--host", "0.0.0.0", "--port", "0")
    assert said.status == 1
    assert "requires users to listen on" in said.err
    assert "--hash-password" in said.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run("console", "--port", port)
    assert said.status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said.err
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    said = run("console", "--port", "0", "--https-cert", wrong, "--https-key", wrong)
    assert said.status == 1
    assert str(wrong) in said.err
    assert run("console", "--port", "0", "--https-cert", wrong).status == 1


def test_the_hash_of_a_password() -> None:
    done = CliRunner().invoke(console, ["--hash-password"], input="correct horse\ncorrect horse\n")
    assert done.exit_code == 0
    assert is_right("correct horse", done.stdout.strip().splitlines()[-1])


UP = ["up", "--ephemeral", "--nameserver-port", "0", "--broker-port", "0", "--no-grpc", "--no-metrics"]


def _answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/api/alive")
    except httpx.TransportError:
        return False
    return True


def test_rocket_up_starts_a_console_that_exits_with_it() -> None:
    rocket = Rocket(*UP, "--console-port", "0")
    try:
        url = rocket.until(r"Console: (http://127\.0\.0\.1:\d+)")[1]
        assert httpx.get(f"{url}/api/alive").json() == {"status": "UP"}
        os.kill(rocket.process.pid, signal.SIGKILL)
        rocket.process.wait(WAIT)
        until(lambda: not _answers(url))
    finally:
        rocket.close()


ACCOUNTS = "accounts:\n- {accessKey: broker-key, secretKey: br0ker-s3cr3t, admin: true}\n"
OWN = '{"accessKey": "broker-key", "secretKey": "br0ker-s3cr3t"}'


def test_with_a_login_the_console_uses_the_brokers_account(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"aclEnable=true\naclFile={tmp_path}/plain_acl.yml\ninnerClientAuthenticationCredentials={OWN}\n")
    given = {"ROCKET_CONSOLE_PASSWORD": "correct horse"}
    rocket = Rocket(*UP, "--console-port", "0", "--config", str(conf), env=given)
    try:
        url = rocket.until(r"Console: (http://127\.0\.0\.1:\d+)")[1]
        assert httpx.get(f"{url}/api/topics").status_code == 401
        response = httpx.post(f"{url}/api/login", json={"user": "admin", "password": "correct horse"})
        cookies = dict(response.cookies)
        data = eventually(
            lambda: httpx.get(f"{url}/api/topics?kind=all", cookies=cookies).json(), lambda data: data["rows"]
        )
        assert not data["failed"]
        assert "s3cr3t" not in rocket.said
        assert "no account" not in rocket.said
    finally:
        rocket.close()


@pytest.mark.parametrize(
    ("environment", "passed", "is_told"),
    [
        ({}, {}, True),
        ({"ROCKETMQ_ACCESS_KEY": "ada-key", "ROCKETMQ_SECRET_KEY": "ada-s3cr3t"}, {}, False),  # which is its default
        (
            {"ROCKET_CONSOLE_PASSWORD": "correct horse"},
            {"ROCKETMQ_ACCESS_KEY": "broker-key", "ROCKETMQ_SECRET_KEY": "br0ker-s3cr3t"},
            False,
        ),
    ],
)
def test_without_a_login_the_account_is_from_the_environment(
    environment: dict[str, str], passed: dict[str, str], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKET_CONSOLE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = BrokerConfig(acl_enable=True, inner_client_authentication_credentials=OWN)
    environment, said = console_account(config)
    assert environment == passed
    assert ("no account" in said) == is_told


@pytest.mark.skipif(sys.platform != "linux", reason="finds the console's process in /proc")
def test_rocket_up_restarts_a_dead_console() -> None:
    rocket = Rocket(*UP, "--console-port", "0")
    try:
        rocket.until(r"Console: http://127\.0\.0\.1:\d+")
        children = Path(f"/proc/{rocket.process.pid}/task/{rocket.process.pid}/children").read_text().split()
        (child,) = (int(pid) for pid in children if b"\0console\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(child, signal.SIGSEGV)
        url = rocket.until(r"(?s)The console ended.*Restarting the console in 1 s.*Console: (http://127\.0\.0\.1:\d+)")[
            1
        ]
        assert httpx.get(f"{url}/api/alive").json() == {"status": "UP"}
        assert rocket.end() == 0
    finally:
        rocket.close()


def test_descriptors_opened_during_the_start_stay_open(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's pipe transport closed the console's pipe again, one iteration of the loop after its owner."""
    opened = WatchedDescriptors()
    is_up = asyncio.Event()

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            if "Console: http" in text:
                opened.some()  # with the descriptor numbers that have just become free, like a connection
                is_up.set()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Terminal())
    options: Any = SimpleNamespace(no_console=False, ready_fd=None, console_port=0)

    async def start() -> None:
        async with AsyncExitStack() as servers:
            start_console(servers, options, cluster.name_server, BrokerConfig())
            await asyncio.wait_for(is_up.wait(), WAIT)

    run_loop(start())
    opened.check()


def test_rocket_up_continues_if_the_console_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rocket = Rocket(*UP, "--console-port", str(taken.getsockname()[1]))
        try:
            rocket.until("No console: The console cannot listen on")
            assert rocket.process.poll() is None
            assert rocket.end(signal.SIGINT) == 0
        finally:
            rocket.close()
