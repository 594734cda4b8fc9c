"""What every job needs: a Spark session set up as data-source workers want it, and the options all jobs share.

``PYSPARK_PYTHON`` is set before the JVM starts: without it Spark's workers run whatever ``python3`` is first on the
PATH, which knows neither pyarrow nor this package. The JVM's own chatter goes to a file, so that a job's terminal
shows the job; ``--verbose`` leaves it on the terminal.
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
