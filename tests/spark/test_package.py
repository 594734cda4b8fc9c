"""``rocket package``: workers that have only pyspark, pyarrow and numpy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from spark_rocket.cli.package import write_package
from spark_rocket.testing import LocalCluster
from tests.spark import bare_job, bare_workers

SPARK = Path(pyspark.__file__).parent


@pytest.mark.long
def test_bare_workers_name_missing_packages_and_run_the_zip(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create_topic("bare", 2)
    cluster.create_topic("bare-copy", 2)
    package = tmp_path / "spark_rocket.zip"
    write_package(package)
    done = subprocess.run(
        [sys.executable, bare_workers.__file__, cluster.name_server, "bare", str(package), str(tmp_path)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ON_CONNECT")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    absent, *messages, rows, ended = map(json.loads, done.stdout.splitlines()[:5])
    findings = map(json.loads, done.stdout.splitlines()[5:])
    assert absent == ["spark_rocket", "pandas", "orjson", "uvloop"]
    assert len(messages) == 2, "to read and to write"
    for message in messages:
        assert 'format("rocket") cannot run on the worker' in message
        assert "`rocket package` writes spark_rocket.zip" in message
    assert rows == list(range(20))
    assert ended is True
    executor = [finding for finding in findings if finding["about"].startswith("executor")]
    assert [finding["grade"] for finding in executor] == ["ok", "ok"], executor


@contextmanager
def standalone(part: str, log: Path, env: dict[str, str], said: str, *arguments: str) -> Iterator[str]:
    """Start Spark's own master or worker, and return its output up to readiness."""
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", "--host", "127.0.0.1"]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            cwd=log.parent,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        ) as running,
    ):
        try:
            deadline = time.monotonic() + 120
            while (found := re.search(said, log.read_text())) is None:
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            yield found[1]
        finally:
            os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.long
def test_spark_submit_ships_the_zip_to_a_standalone_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """Neither driver nor workers have the package: batches, streams, views."""
    for topic in ("submitted", "submitted-copy"):
        cluster.create_topic(topic, 2)
    package = tmp_path / "spark_rocket.zip"
    write_package(package)
    python = str(bare_workers.bare_python(tmp_path))
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ON_CONNECT")}
    env |= {"BARE": "1", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_HOME": str(SPARK)}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    with ExitStack() as started:
        url = started.enter_context(
            standalone("master.Master", tmp_path / "master.log", env, r"master at (spark://\S+)", "--port", "0")
        )
        worker = ("-c", "2", "-m", "1g", "-d", str(tmp_path / "work"), url)
        log = tmp_path / "worker.log"
        started.enter_context(standalone("worker.Worker", log, env, r"(registered with master)", *worker))
        settings = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.executor.memory": "600m"}
        command = [str(SPARK / "bin" / "spark-submit"), "--master", url, "--py-files", str(package)]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        done = subprocess.run(
            [*command, bare_job.__file__, cluster.name_server, "submitted", str(tmp_path / "checkpoint")],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-5000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", "2"))]
    assert said == [["pandas", "orjson", "uvloop"], list(range(20)), 20, 2]
