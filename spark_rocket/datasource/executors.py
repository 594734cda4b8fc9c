"""Report what Spark's executors run and which addresses they can reach, for ``rocket doctor``.

The probe uses only the standard library and is pickled by value. A worker without this package or pyarrow can run it.
Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS = 8  # enough for each of a few executors to get one


def ask_executors(
    addresses: Sequence[str], *, master: str | None = None, remote: str | None = None, py_files: str | None = None
) -> list[dict[str, object]]:
    """Return one report per machine and Python: host, executable, python, missing modules, unreachable addresses.

    ``addresses`` are ``host:port``. The function starts its own session and stops it. Spark's errors are not caught.
    """
    builder = SparkSession.builder.appName("rocket doctor")
    if remote is not None:
        builder = builder.remote(remote)
    else:
        builder = builder.master(master or "local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "ERROR")
        if py_files:
            builder = builder.config("spark.submit.pyFiles", py_files)
    session = builder.getOrCreate()
    task = _question(list(addresses))
    try:
        if remote is None:
            tasks = session.sparkContext.parallelize(range(_TASKS), _TASKS)
            texts: list[str] = tasks.map(lambda _: task()).collect()
        else:
            texts = _through_connect(session, task)
    finally:
        session.stop()
    return [json.loads(text) for text in sorted(set(texts))]


def _through_connect(session: SparkSession, task: Callable[[], str]) -> list[str]:
    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"answer": [task()]})

    rows = session.range(0, _TASKS, 1, _TASKS).mapInArrow(answer, "answer string").collect()
    return [str(row.answer) for row in rows]


def _question(addresses: list[str]) -> Callable[[], str]:
    """Return the probe. It is a nested function so that cloudpickle pickles it by value."""

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
        return json.dumps(
            {
                "host": platform.node(),
                "executable": sys.executable,
                "python": platform.python_version(),
                "missing": [name for name in modules if importlib.util.find_spec(name) is None],
                "unreachable": unreachable,
            },
            sort_keys=True,
        )

    return task
