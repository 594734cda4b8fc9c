"""Report what Spark's executors run, which addresses they can reach and whether they can read, for ``rocket doctor``.

The probe is pickled by value and needs only the standard library: a worker without this package or pyarrow can run it.
Where the package is installed, it pulls a message as a task of a pipeline does.
"""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

_CONNECT_PORT = 15002
_CONNECT_TIMEOUT_S = 10.0
_TASKS = 8  # enough for each of a few executors to get one


@dataclass(frozen=True)
class Reading:
    """What executors read."""

    topic: str
    group: str
    client: dict[str, Any]
    """Arguments of the client."""


def ask_executors(
    addresses: Sequence[str],
    reading: Reading | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    py_files: str | None = None,
) -> list[dict[str, object]]:
    """Return one report per machine and Python: host, executable, python, missing modules, unreachable addresses.

    ``addresses`` are ``host:port``. With ``reading``, a report has the error of one pull, empty for success. The
    function starts its own session and stops it. Spark's errors are not caught.
    """
    builder = SparkSession.builder.appName("rocket doctor")
    if remote is not None:
        _check_connection(remote)
        builder = builder.remote(remote)
    else:
        builder = builder.master(master or "local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "ERROR")
        if py_files:
            builder = builder.config("spark.submit.pyFiles", py_files)
    session = builder.getOrCreate()
    task = _question(list(addresses), reading)
    try:
        if remote is None:
            tasks = session.sparkContext.parallelize(range(_TASKS), _TASKS)
            texts: list[str] = tasks.map(lambda _: task()).collect()
        else:
            texts = _through_connect(session, task)
    finally:
        session.stop()
    return [json.loads(text) for text in sorted(set(texts))]


def _check_connection(remote: str) -> None:
    """Connect to the port of Spark Connect once: its client retries for ten minutes. ConnectionError on failure."""
    url = urlsplit(remote)
    if url.scheme != "sc":
        return  # local, which starts a server
    try:
        socket.create_connection((url.hostname or "", url.port or _CONNECT_PORT), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no connection to sc://{url.netloc}: {error}") from None  # its path may have a token


def _through_connect(session: SparkSession, task: Callable[[], str]) -> list[str]:
    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"answer": [task()]})

    rows = session.range(0, _TASKS, 1, _TASKS).mapInArrow(answer, "answer string").collect()
    return [str(row.answer) for row in rows]


def _question(addresses: list[str], reading: Reading | None) -> Callable[[], str]:
    """Return the probe. It is a nested function so that cloudpickle pickles it by value."""
    # As bytes: a worker without the package could not load the classes of TLS settings.
    pull = None if reading is None else pickle.dumps((reading.topic, reading.group, reading.client))

    def error_of_pull() -> str:
        import pickle

        from spark_rocket.client import Reader
        from spark_rocket.errors import RocketError

        assert pull is not None
        topic, group, client = pickle.loads(pull)
        try:
            with Reader(**client, group=group) as reader:
                queue = reader.queues(topic)[0]
                reader.pull(queue, reader.min_offset(queue), max_msgs=1)
        except RocketError as error:
            return error.text
        return ""

    def task() -> str:
        import importlib.util
        import json
        import platform
        import socket
        import sys

        unreachable: dict[str, Any] = {}
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
            except (OSError, ValueError) as problem:
                unreachable[address] = str(problem)
        modules = ("spark_rocket", "pyarrow", "numpy")
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        read = {} if pull is None or "spark_rocket" in missing else {"read": error_of_pull()}
        return json.dumps(
            {
                **read,
                "host": platform.node(),
                "executable": sys.executable,
                "python": platform.python_version(),
                "missing": missing,
                "unreachable": unreachable,
            },
            sort_keys=True,
        )

    return task
