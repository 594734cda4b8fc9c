"""The sink with ``exactlyOnce`` compared with ``atLeastOnce``, and both compared with a sink that only counts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from threading import Event
from typing import TYPE_CHECKING

from benchmarks.grpc import status_of
from benchmarks.lab import QUEUES, Lab, beside
from benchmarks.registry import Pair, benchmark
from benchmarks.spark import WRITE_ROWS
from benchmarks.spark_sources import Ceiling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAST, ONCE = "atLeastOnce", "exactlyOnce"
LARGE = 1_000_000  # rows of 1 KiB
SMALL = 1_000
WARM, EPOCHS = 3, 20
PATIENCE = 300.0
COMMITTER = b"pyspark.sql.worker.commit_data_source_write"  # Spark calls ``commit`` in a process of this module
LOOK = 0.02


def _rows(frame: DataFrame, size: int, key: str) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.select(
        F.repeat(F.lit("x"), size).alias("body"), F.lit("bench").alias("tags"), F.col(key).cast("string").alias("keys")
    )


def _writer(lab: Lab, name: str, size: int, rows: int) -> Callable[[str], float]:
    """Return a function that writes the rows as one epoch with a given guarantee, and returns the seconds."""
    topic, numbers = lab.topic(name), count()
    frame = _rows(lab.spark.range(0, rows, 1, QUEUES), size, "id")

    def write(guarantee: str) -> float:
        options = {"nameServer": lab.cluster.name_server, "topic": topic, "deliveryGuarantee": guarantee}
        lab.settle(topic)
        begun = time.perf_counter()
        frame.write.format("rocket").options(**options, writeId=f"{name}-{next(numbers)}").mode("append").save()
        return time.perf_counter() - begun

    return write


@benchmark("sink.once.128", "sink.once.1024", unit="rows/s", ceiling="at least once; equal rows", target=0.4)
def large_epochs(lab: Lab, size: str) -> Pair:
    rows = WRITE_ROWS[int(size)]
    write = _writer(lab, f"once-{size}", int(size), rows)
    return Pair(lambda: rows / write(ONCE), lambda: rows / write(LEAST))


def _trigger(lab: Lab, topic: str) -> Callable[[str], float]:
    """Return a function that returns the median trigger of a stream of epochs of 1,000 rows, in milliseconds.

    Its argument is a guarantee; empty: that of a Python sink that only counts.
    """
    lab.topic(topic)
    lab.spark.dataSource.register(Ceiling)
    numbers = count()
    stream = lab.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=SMALL, numPartitions=QUEUES).load()
    options = {"nameServer": lab.cluster.name_server, "topic": topic}

    def trigger(guarantee: str) -> float:
        checkpoint = lab.scratch / f"checkpoint-{next(numbers)}"
        writer = _rows(stream, 128, "value").writeStream.option("checkpointLocation", str(checkpoint))
        if guarantee:
            query = writer.format("rocket").options(**options, deliveryGuarantee=guarantee).start()
        else:
            query = writer.format("ceiling").start()
        until = time.monotonic() + PATIENCE
        try:
            while len(query.recentProgress) < WARM + EPOCHS:
                assert time.monotonic() < until, "the stream makes no progress"
                query.awaitTermination(1)
            progress = query.recentProgress[WARM : WARM + EPOCHS]
        finally:
            query.stop()
        assert all(each.numInputRows == SMALL for each in progress)
        return median(each.durationMs["triggerExecution"] for each in progress)

    return trigger


@benchmark(
    "sink.once.epoch", unit="ms/trigger", ceiling="at least once; target: at most 150 ms more", lower_is_better=True
)
def small_epochs(lab: Lab, _: str) -> Pair:
    trigger = _trigger(lab, "once-epochs")
    return Pair(lambda: trigger(ONCE), lambda: trigger(LEAST))


@benchmark(
    "sink.trigger.once", unit="ms/trigger", ceiling="a Python sink that only counts", lower_is_better=True, target=0.74
)
def once_trigger(lab: Lab, _: str) -> Pair:
    trigger = _trigger(lab, "once-triggers")
    return Pair(lambda: trigger(ONCE), lambda: trigger(""))


@benchmark(
    "sink.trigger.least", unit="ms/trigger", ceiling="a Python sink that only counts", lower_is_better=True, target=0.87
)
def least_trigger(lab: Lab, _: str) -> Pair:
    trigger = _trigger(lab, "least-triggers")
    return Pair(lambda: trigger(LEAST), lambda: trigger(""))


@benchmark("sink.once.memory", unit="MiB", ceiling="at least once; target: at most 256 MiB more", lower_is_better=True)
def memory(lab: Lab, _: str) -> Pair:
    """The peak memory of the committing process, for an epoch of 1 GB."""
    write = _writer(lab, "once-memory", 1024, LARGE)

    def most(guarantee: str) -> float:
        for process in _committers():  # Spark reuses them, with the memory of earlier writes
            os.kill(process, signal.SIGTERM)
        found: list[float] = []
        with beside(lambda stop: _watch(stop, found)):
            write(guarantee)
        return max(found)

    return Pair(lambda: most(ONCE), lambda: most(LEAST))


def _watch(stop: Event, found: list[float]) -> None:
    while not stop.wait(LOOK):
        for process in _committers():
            with contextlib.suppress(OSError, KeyError):  # it has just ended
                found.append(status_of(process, "VmHWM"))


def _committers() -> list[int]:
    """Return the processes in which Spark calls ``commit``: children of a daemon, which is a child of the JVM."""
    parents, lines = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(process.name)] = (process / "cmdline").read_bytes()

    def is_own(process: int) -> bool:
        return process == os.getpid() or (process in parents and is_own(parents[process]))

    workers = [process for process, line in lines.items() if COMMITTER in line]
    return [process for process in workers if parents[process] in workers and is_own(process)]
