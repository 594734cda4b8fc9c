"""The built wheel in an empty environment, once for each extra: what the extra promises works within its size.

pip creates the environments, so these tests need a package index and some minutes: make dist and make long run them.
With ``-s`` they print the size and the time of each installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.live]

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
skipped = ("__main__", "testing.plugin")  # starts the command line; requires pytest
if importlib.util.find_spec("opentelemetry") is None:
    skipped += ("client.core.otel", "broker.tracing")
for package in sys.argv[1:]:
    package = importlib.import_module(package)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(skipped):
            importlib.import_module(module.name)
"""

SEND_AND_POLL = """
from spark_rocket.client import ConsumeFromWhere, LitePullConsumer, Producer
from spark_rocket.model import Message

first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
with Producer("install", name_server={address!r}) as producer:
    producer.send(Message("Install", b"z" * 200_000))
with LitePullConsumer("install_{extra}", name_server={address!r}, consume_from_where=first) as consumer:
    consumer.subscribe("Install")
    consumer.start()
    while not consumer.{poll}(5.0):
        pass
"""

LOCAL_CLUSTER = """
from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

with LocalCluster() as cluster, Producer("install", name_server=cluster.name_server) as producer:
    cluster.create_topic("Inside")
    producer.send(Message("Inside", b"body"))
"""

QUERY = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("rocket").option("nameServer", {address!r}).option("subscribe", "Install").load()
assert rows.count() > 0
"""


#: Extra to the packages whose modules can all be imported, scripts that work, and the largest size in MB.
EXTRAS = {
    "": (["client", "namesrv", "remoting", "acl"], [SEND_AND_POLL], 100),
    "arrow": (["client", "protocol"], [SEND_AND_POLL.replace("{poll}", "poll_batches")], 400),
    "broker": (["broker", "store"], [LOCAL_CLUSTER], 200),
    "proxy": (["proxy"], [], 200),
    "console": (["console"], [], 100),
    "broker,proxy,console": (["broker", "proxy", "console", "cli", "testing"], [LOCAL_CLUSTER], 250),
    "spark": (["datasource"], [QUERY], 1100),
    "all": ([""], [LOCAL_CLUSTER, QUERY], 1300),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in ``WHEEL``, else one that is built now."""
    if given := os.environ.get("WHEEL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)])
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        cluster.create_topic("Install")
        with Producer("install", name_server=cluster.name_server) as producer:
            producer.send(Message("Install", b"body"))
        yield cluster


def run(command: list[str], cwd: Path = ROOT) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYSPARK_PYTHON": command[0]}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=cwd, env=clean, check=False)
    assert done.returncode == 0, f"{command[:4]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_in_an_empty_environment(
    tmp_path: Path, wheel: Path, cluster: LocalCluster, extra: str, figure: Callable[[str], None]
) -> None:
    packages, scripts, largest_mb = EXTRAS[extra]
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    installed = tmp_path / "venv" / "lib"
    empty, started = size_mb(installed), time.monotonic()
    run(
        [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"{wheel}[{extra}]" if extra else str(wheel),
        ]
    )
    took = time.monotonic() - started
    added = size_mb(installed) - empty
    figure(f"spark-rocket[{extra}]: {added:.0f} MB in {took:.0f} s")
    run([python, "-m", "pip", "check"])
    run([python, "-c", IMPORT_ALL, *(f"spark_rocket.{name}".rstrip(".") for name in packages)], tmp_path)
    assert run([str(tmp_path / "venv" / "bin" / "rocket"), "--version"]).startswith("spark_rocket ")
    for script in scripts:
        text = script.format(address=cluster.name_server, extra=extra, poll="poll")
        run([python, "-c", text], tmp_path)
    assert added < largest_mb


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6
