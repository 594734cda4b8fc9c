"""Shared parts of the jobs: a Spark session, common options, and topics.

``PYSPARK_PYTHON`` is set before the JVM starts: without it, Spark's workers run the first ``python3`` on the PATH,
which has neither pyarrow nor this package. The JVM's own log goes to a file, so the terminal shows only the job;
``--verbose`` shows the log on the terminal. Missing topics are created. Progress lines count a topic's messages.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

from spark_rocket.client import Admin, Reader
from spark_rocket.errors import TopicNotFoundError

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


def job_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every job."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--nameserver",
        default=os.environ.get("NAMESRV_ADDR", DEFAULT_NAME_SERVER),
        metavar="HOST:PORT",
        help="name servers, separated by semicolons (default: NAMESRV_ADDR, then %(default)s)",
    )
    parser.add_argument("--verbose", action="store_true", help="show Spark's own log on the terminal")
    return parser


def spark_session(
    name: str, *, verbose: bool = False, log: Path | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Return the running session, or a new local one. Settings of spark-submit take precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if "spark.master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        # On one machine: no web interface, which would need a free port, and one shuffle partition per core.
        cores = str(os.cpu_count() or 2)
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", cores)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if verbose or SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    log = log or Path(tempfile.gettempdir()) / f"{name}-{os.getpid()}-spark.log"
    print(f"Starting Spark (its own log: {log}) …", flush=True)
    with _stderr_to(log):
        return builder.getOrCreate()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of child processes started in the block (the JVM) to the file."""
    sys.stderr.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def ensure_topic(name_server: str, topic: str, queues: int) -> bool:
    """Create the topic unless it exists; an existing topic is not changed. Returns True if it was created."""
    with Admin(name_server=name_server) as admin:
        try:
            admin.topic_route(topic)
        except TopicNotFoundError:
            admin.create_topic(topic, queues=queues)
            return True
    return False


class TopicWatch:
    """Counts the messages that a topic has received since the start."""

    def __init__(self, name_server: str, topic: str) -> None:
        self._reader = Reader(name_server)
        self._topic = topic
        self._before = self._total()

    def _total(self) -> int:
        return sum(self._reader.max_offset(queue) for queue in self._reader.queues(self._topic))

    def arrived(self) -> int:
        return self._total() - self._before

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> TopicWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
