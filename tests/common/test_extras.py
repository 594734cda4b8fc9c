"""The core installs few packages: what works with these alone, and the error for a missing extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.common.extras import EXTRAS, missing_extra, requires
from spark_rocket.errors import ConfigError, MissingExtraError
from spark_rocket.testing import LocalCluster

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "google": "protobuf",
    "prometheus_client": "prometheus-client",
    "opentelemetry": "opentelemetry-api",
}


@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_each_package_is_in_its_extra(package: str) -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"][EXTRAS[package]]
    assert any(text.startswith(DISTRIBUTIONS.get(package, package) + ">") for text in named)
    assert not any(text.startswith(DISTRIBUTIONS.get(package, package) + ">") for text in project["dependencies"])


def test_missing_package() -> None:
    with (
        pytest.raises(MissingExtraError, match=r"A proxy requires the package grpc, .*'spark-rocket\[proxy\]'"),
        requires("A proxy"),
    ):
        raise ModuleNotFoundError("No module named 'grpc.aio'", name="grpc.aio")
    assert isinstance(missing_extra("x", "numpy", "arrow"), ConfigError)
    assert "spark-rocket[arrow]" in str(missing_extra("x", "numpy", "arrow"))


def test_other_import_errors_pass() -> None:
    with pytest.raises(ModuleNotFoundError, match="elsewhere"), requires("A proxy"):
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")


def core_only(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.kit.core_only", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


@pytest.mark.live
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["broker", "-n", "127.0.0.1:1"], "broker"),
        (["up"], "broker"),
        (["store", "check", "STORE"], "broker"),
        (["proxy", "-n", "127.0.0.1:1"], "proxy"),
        (["console", "-n", "127.0.0.1:1"], "console"),
    ],
)
def test_commands_name_their_extra(tmp_path: Path, arguments: list[str], extra: str) -> None:
    (tmp_path / "commitlog").mkdir()
    done = core_only("rocket", *(str(tmp_path) if text == "STORE" else text for text in arguments))
    assert done.returncode == 1, done
    assert done.stderr.startswith("rocket: This command requires the package "), done.stderr
    assert done.stderr.endswith(f"which is not installed. Run pip install 'spark-rocket[{extra}]'.\n"), done.stderr


@pytest.mark.live
def test_options_and_help_without_extras() -> None:
    assert "startingOffsets" in core_only("rocket", "options", "startingOffsets").stdout
    assert core_only("rocket", "help").returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as cluster:
        cluster.create_topic("Light")
        yield cluster


CLIENT = """
from spark_rocket.client import ConsumeFromWhere, LitePullConsumer, Producer
from spark_rocket.errors import MissingExtraError
from spark_rocket.model import Message

address = {address!r}
bodies = [b"small", b"z" * 200_000, bytes(range(256)) * 2_000]
with Producer("light", name_server=address) as producer:
    for body in bodies:
        producer.send(Message("Light", body))
first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
with LitePullConsumer("light_group", name_server=address, consume_from_where=first) as consumer:
    consumer.subscribe("Light")
    consumer.start()
    found = []
    while len(found) < len(bodies):
        found += consumer.poll(5.0)
    assert sorted(message.body for message in found) == sorted(bodies)
    try:
        from spark_rocket.testing import LocalCluster
    except MissingExtraError as error:
        assert "LocalCluster requires the package numpy" in str(error), error
    else:
        raise AssertionError("the broker started")
print("consumed", len(found))
"""

ARROW = """
from spark_rocket.client import ConsumeFromWhere, LitePullConsumer
from spark_rocket.errors import MissingExtraError

first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
with LitePullConsumer("arrow_group", name_server={address!r}, consume_from_where=first) as consumer:
    consumer.subscribe("Light")
    consumer.start()
    try:
        while not consumer.poll_batches(5.0):
            pass
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.live
def test_client_and_command_line_with_the_core_alone(cluster: LocalCluster) -> None:
    """Messages above 128 KiB too: the frame splitter takes memory from numpy if it is installed."""
    done = core_only("script", CLIENT.format(address=cluster.name_server))
    assert (done.returncode, done.stdout) == (0, "consumed 3\n"), done.stderr
    sent = core_only("rocket", "message", "send", "-n", cluster.name_server, "Light", "hello")
    assert sent.returncode == 0, sent.stderr
    listed = core_only("rocket", "topic", "list", "-n", cluster.name_server)
    assert (listed.returncode, "Light" in listed.stdout) == (0, True), listed.stderr
    asked = core_only("script", ARROW.format(address=cluster.name_server))
    assert "Reading Arrow batches requires the package" in asked.stdout, asked
    assert "spark-rocket[arrow]" in asked.stdout


NO_ARROW = """
import sys
sys.modules["pyarrow"] = None
from spark_rocket.errors import MissingExtraError

for name in ("rocket", "rocketmq"):
    source = __import__(f"pyspark_{name}").DefaultSource
    assert source.name() == name
    try:
        source({"subscribe": "t"}).schema()
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.live
def test_the_format_without_arrow_reports_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", NO_ARROW], capture_output=True, text=True, timeout=60, check=True)
    assert (
        done.stdout.splitlines()
        == [
            '[MISSING_EXTRA] format("rocket") requires the package pyarrow, which is not installed. '
            "Run pip install 'spark-rocket[arrow]'."
        ]
        * 2
    )
