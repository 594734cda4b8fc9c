"""Spark for the tests: classic, or Spark Connect with its server in a separate process.

Run as a program it is that server: ``python -m tests.spark.sessions PORT WAREHOUSE``, until its standard input ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_rocket.datasource.capabilities import HAS_READ_LIMITS

ROOT = Path(__file__).parents[2]
ON_CONNECT = bool(os.environ.get("ON_CONNECT"))


def needs(has: bool, spark: str, what: str) -> pytest.MarkDecorator:
    """Skip a test where this Spark lacks a capability (``spark_rocket.datasource.capabilities``)."""
    return pytest.mark.skipif(not has, reason=f"needs Spark {spark}: {what}")


def classic_session(warehouse: str, **more: str) -> SparkSession:
    """``local[2, 2]`` gives every task a second attempt, which some tests use."""
    builder = (
        SparkSession.builder.master("local[2, 2]")
        .appName("spark_rocket tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stopTimeout", "60s")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.log.level", "ERROR")
    )
    for name, value in more.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def workers_python(directory: Path) -> str:
    """This interpreter, with PySpark as it is installed. Spark would have its processes take it from a zip, and compile
    it each time: a second of each start, for which it waits ten, and each source of a stream is one."""
    script = directory / "python"
    script.write_text(
        "#!/bin/sh\n"
        "PYTHONPATH=$(echo \"$PYTHONPATH\" | sed -E 's#[^:]*/python/lib/(pyspark|py4j)[^:]*[.]zip:?##g')\n"
        f'export PYTHONPATH\nexec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@contextmanager
def connect_session(warehouse: str) -> Iterator[SparkSession]:
    """A session of a Spark Connect server that is started for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.spark.sessions", str(port), warehouse]
    with (
        Path(warehouse, "server.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        yield session
        session.stop()
        server.communicate(timeout=60)


def _serve(port: str, warehouse: str) -> None:
    more = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }
    session = classic_session(warehouse, **more)
    print("ready", flush=True)
    sys.stdin.read()
    session.stop()


TRIGGER = {} if HAS_READ_LIMITS else {"trigger": "processingTime"}
"""What a stream with a limit needs before Spark 4.2, for ``finish_limited``."""


def finish_limited(writer: DataStreamWriter, seconds: int = 120) -> None:
    """Run a query with a limit until all messages are processed. AvailableNow has no limit before Spark 4.2."""
    if HAS_READ_LIMITS:
        assert writer.trigger(availableNow=True).start().awaitTermination(seconds)
        return
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


class CollectedBodies:
    """For ``foreachBatch``: bodies of all batches, in a file, since on Spark Connect the server calls it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        bodies = [bytes(row.body).decode() for row in batch.select("body").collect()]
        with self._path.open("a") as file:
            file.write(json.dumps(bodies) + "\n")

    def batches(self) -> list[list[str]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def bodies(self) -> list[str]:
        return [body for batch in self.batches() for body in batch]


if __name__ == "__main__":
    _serve(*sys.argv[1:])
