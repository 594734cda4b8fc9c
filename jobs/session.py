"""What every job needs: a Spark session, the options that all jobs share, and topics.

``PYSPARK_PYTHON`` is set before the JVM starts: without it Spark's workers run the first ``python3`` on the PATH, which
has neither pyarrow nor this package. The JVM's own log goes to a file, so that a job's terminal shows the job;
``--verbose`` leaves it on the terminal. Topics are created when they do not exist yet, and watched while they fill.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from spark_rocket.client import Admin, Reader
from spark_rocket.errors import TopicNotFoundError

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


def job_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every job."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--nameserver",
        default=os.environ.get("NAMESRV_ADDR", DEFAULT_NAME_SERVER),
        metavar="HOST:PORT",
        help="name servers, several separated by semicolons (default: NAMESRV_ADDR, then %(default)s)",
    )
    parser.add_argument("--verbose", action="store_true", help="show Spark's own log on the terminal")
    return parser


def spark_session(name: str, *, verbose: bool = False, log: Path | None = None) -> SparkSession:
    """The running session, or a new local one. Under spark-submit its settings come first."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if "spark.master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        # On one machine: no web interface to find a port for, and as many shuffle partitions as there are cores.
        cores = str(os.cpu_count() or 2)
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", cores)
    if verbose or SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    log = log or Path(tempfile.gettempdir()) / f"{name}-{os.getpid()}-spark.log"
    print(f"Starting Spark (its own log: {log}) …", flush=True)
    with _stderr_to(log):
        return builder.getOrCreate()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Children started meanwhile (the JVM) keep the file as their standard error; this process gets its own back."""
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
    """Create the topic unless it exists; an existing one is left as it is. True if it was created."""
    with Admin(name_server=name_server) as admin:
        try:
            admin.topic_route(topic)
        except TopicNotFoundError:
            admin.create_topic(topic, queues=queues)
            return True
    return False


class TopicWatch:
    """How many messages a topic has got since the watch began."""

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
