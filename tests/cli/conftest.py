"""``rocket`` as a function that returns output and exit status, and the cluster that a module's commands use."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from spark_rocket.cli import main
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.headers.namesrv import RegisterBrokerRequestHeader
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire


class CommandResult(NamedTuple):
    """The result of a command line. An invalid one has status 2, as in a shell."""

    status: int
    out: str
    err: str

    def failed(self, *texts: str, status: int = 1) -> bool:
        """Whether the command failed with an error that has the given words, wherever it wraps."""
        return self.status == status and all(text in " ".join(self.err.split()) for text in texts)

    def printed(self, *texts: str) -> bool:
        """Whether the command succeeded and printed the given words."""
        return self.status == 0 and all(text in self.out for text in texts)

    @property
    def error(self) -> str:
        """The error of a failed command: one line, no traceback, exit status 1."""
        assert self.status == 1, self
        (line,) = self.err.splitlines()
        assert line.startswith("rocket: ")
        return line

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., CommandResult]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("topic", "list", "-n", address)``; ``answer="y"`` is what the user types at a confirmation."""

    def run(*arguments: object, answer: str | None = None) -> CommandResult:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if answer is not None:
                patch.setattr(sys.stdin, "isatty", lambda: True)
                patch.setattr("builtins.input", lambda question: answer)
            try:
                status = main([str(argument) for argument in arguments])
            except SystemExit as end:
                status = int(end.code or 0)
        said = capsys.readouterr()
        return CommandResult(status, said.out, said.err)

    return run


@contextmanager
def unavailable_broker(name_server: str) -> Iterator[str]:
    """A broker that is registered with a name server but does not run. Returns its name."""
    header = RegisterBrokerRequestHeader(
        broker_name="gone",
        broker_addr="127.0.0.1:1",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:2",
        broker_id=0,
        compressed=False,
        body_crc32=0,
    )
    with RemotingClient() as client:  # for the name server, the broker lives as long as this connection
        assert Wire(client, name_server).ask(RequestCode.REGISTER_BROKER, **header.to_ext()).code == 0
        yield header.broker_name


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster with the options ``CLUSTER`` and the topics ``TOPICS`` (name to queues) of the module."""
    with LocalCluster(**getattr(request.module, "CLUSTER", {"in_process": True})) as running:
        for topic, queues in getattr(request.module, "TOPICS", {}).items():
            running.create_topic(topic, queues)
        yield running


@pytest.fixture(scope="module")
def name_server(cluster: LocalCluster) -> str:
    return cluster.name_server


@pytest.fixture
def rocket(run: Run, name_server: str) -> Run:
    """``run`` with the name server of the module's cluster."""

    def rocket(*arguments: object, answer: str | None = None) -> CommandResult:
        return run(*arguments, "-n", name_server, answer=answer)

    return rocket
