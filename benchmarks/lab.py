"""Shared resources of benchmarks, created on first use: clusters, Spark, filled topics, echo servers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks import frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_rocket.testing import LocalCluster

QUEUES = 4
QUERY_TIMEOUT_S = 0.9  # an empty result comes at once if the index is complete, else after a second
MOST_QUERIES = 120
T = TypeVar("T")


class Lab:
    """A context manager that closes everything it created."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._for_one = contextlib.ExitStack()
        self.filled = cache(self._filled)
        self.echo_port = cache(self._echo_port)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()
        self._stack.close()

    @cached_property
    def folder(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rocket-bench-")))

    @cached_property
    def scratch(self) -> Path:
        """Return a directory for one benchmark only."""
        return Path(self._for_one.enter_context(tempfile.TemporaryDirectory(prefix="rocket-bench-")))

    def keep(self, manager: AbstractContextManager[T]) -> T:
        """Enter a context manager that is exited at the very end."""
        return self._stack.enter_context(manager)

    def clear(self) -> None:
        """Close the resources of a single benchmark, between two benchmarks."""
        self._for_one.close()
        for name in ("scratch", "fresh_cluster", "two_brokers"):
            self.__dict__.pop(name, None)

    def keep_for_one(self, process: subprocess.Popen[str]) -> None:
        """Register a server that ends with its standard input; it is closed after this benchmark."""
        self._for_one.enter_context(process)  # waits for its end, and
        self._for_one.callback(process.stdin.close if process.stdin is not None else process.terminate)

    @cached_property
    def cluster(self) -> LocalCluster:
        from spark_rocket.testing import LocalCluster

        return self._stack.enter_context(LocalCluster(data_dir=self.folder / "cluster"))

    @cached_property
    def sync_cluster(self) -> LocalCluster:
        """A cluster whose broker acknowledges a send when the message is on disk."""
        from spark_rocket.testing import LocalCluster

        cluster = LocalCluster(data_dir=self.folder / "sync-cluster", config={"flushDiskType": "SYNC_FLUSH"})
        return self._stack.enter_context(cluster)

    @cached_property
    def tls_cluster(self) -> LocalCluster:
        """A cluster that accepts TLS and plaintext."""
        from spark_rocket.testing import LocalCluster

        return self._stack.enter_context(LocalCluster(data_dir=self.folder / "tls-cluster", tls=True))

    @cached_property
    def metrics_cluster(self) -> LocalCluster:
        """A cluster that serves metrics."""
        from spark_rocket.testing import LocalCluster

        settings = {"metricsExporterType": "PROM"}
        return self._stack.enter_context(LocalCluster(data_dir=self.folder / "metrics-cluster", config=settings))

    @cached_property
    def fresh_cluster(self) -> LocalCluster:
        """A cluster for one benchmark only."""
        from spark_rocket.testing import LocalCluster

        return self._for_one.enter_context(LocalCluster())

    @cached_property
    def two_brokers(self) -> LocalCluster:
        """A cluster of two brokers in separate processes, for one benchmark only."""
        from spark_rocket.testing import LocalCluster

        return self._for_one.enter_context(LocalCluster(brokers=2, config={"grpcServerPort": -1}))

    @property
    def broker_port(self) -> int:
        return int(self.cluster.broker_address.rpartition(":")[2])

    @cached_property
    def spark(self) -> SparkSession:
        from jobs.session import spark_session

        session = spark_session(
            "benchmarks",
            log=self.folder / "spark.log",
            settings={"spark.python.daemon.module": "benchmarks.spark_daemon"},
        )
        self._stack.callback(session.stop)
        return session

    def topic(self, name: str, queues: int = QUEUES) -> str:
        """Create a new topic."""
        self.cluster.create_topic(name, queues=queues)
        return name

    def _filled(self, size: int, messages: int, queues: int = QUEUES) -> str:
        """Create a topic with ``messages`` messages of ``size`` bytes, spread over its queues."""
        topic = self.topic(f"filled-{size}-{messages}-{queues}", queues)
        settings = {"size": size, "conns": QUEUES, "messages": messages, "queues": queues}
        done = self.load("fill", port=self.broker_port, topic=topic, **settings)
        assert done["messages"] == messages, done
        self.settle(topic)
        return topic

    def settle(self, topic: str) -> None:
        """Wait until the broker has indexed all messages: the index lags the writer, on the same cores."""
        from spark_rocket.client import Admin

        with Admin(self.cluster.name_server) as admin:
            for _ in range(MOST_QUERIES):
                begun = time.perf_counter()
                admin.query_messages(topic, "no such key")
                if time.perf_counter() - begun < QUERY_TIMEOUT_S:
                    return
        raise TimeoutError(f"the index of {topic} is not built yet")

    def load(self, verb: str, **settings: str | int | float) -> dict[str, Any]:
        """Run the lean client in a separate process; return its measurements."""
        return self._run("load", verb, settings)

    def grpc_load(self, verb: str, **settings: str | int | float) -> dict[str, Any]:
        """Run the lean gRPC client likewise."""
        return self._run("grpc_load", verb, settings)

    def overload_load(self, verb: str, **settings: Any) -> dict[str, Any]:
        """Run the overload clients likewise."""
        return self._run("overload_load", verb, settings)

    @staticmethod
    def _run(module: str, verb: str, settings: Mapping[str, object]) -> dict[str, Any]:
        command = [sys.executable, "-m", f"benchmarks.{module}", verb, json.dumps(settings)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
        response: dict[str, Any] = json.loads(output)
        return response

    def _echo_port(self, response_bytes: int = 0) -> int:
        """Return the port of an echo server whose responses have the size of a send's, or ``response_bytes``."""
        size = response_bytes or len(frames.send_response())
        command = [sys.executable, "-m", "benchmarks.echo", str(size)]
        process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.terminate)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def own_echo(self, response_bytes: int = 0) -> tuple[int, int]:
        """Return port and process of an echo server for one benchmark only."""
        size = response_bytes or len(frames.send_response())
        command = [sys.executable, "-m", "benchmarks.echo", str(size)]
        process = self._for_one.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._for_one.callback(process.terminate)
        assert process.stdout is not None
        return int(process.stdout.readline()), process.pid

    def proxy(self, cluster: LocalCluster) -> tuple[int, int]:
        """Return port and process of a ``rocket proxy`` for a cluster, for one benchmark only."""
        from spark_rocket.testing.processes import ServerProcess

        arguments = ["proxy", "-n", cluster.name_server, "--grpc-port", "0"]
        server = ServerProcess(arguments, self.scratch / "proxy.log", 60.0)
        self._for_one.callback(server.stop)
        return int(server.facts["grpc"].rpartition(":")[2]), server.pid

    def empty_grpc(self, size: int, *, hold: bool = False) -> tuple[int, int]:
        """Return port and process of a gRPC server with empty handlers, for one benchmark only."""
        command = [sys.executable, "-m", "benchmarks.grpc_empty", str(size), *(["hold"] if hold else [])]
        process = self._for_one.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._for_one.callback(process.terminate)
        assert process.stdout is not None
        return int(process.stdout.readline()), process.pid


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` on a thread during the block; the end of the block sets the event."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
