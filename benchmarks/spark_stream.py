"""Micro-batches and whole queries of 1,000 rows, and a stream of 1,000 rows a second: what little data costs.

The ceiling is Spark's part: a Python source with one partition that is empty, or makes its rows.
"""

from __future__ import annotations

import tempfile
import time
from functools import cache
from statistics import median
from threading import Event

from pyspark.sql import DataFrame

from benchmarks.lab import Lab, beside
from benchmarks.processes import child_named, descendants_cpu_seconds
from benchmarks.registry import Pair, benchmark
from benchmarks.spark_sources import EmptyStream, TickingStream

_ROWS = 1_000
_BATCHES = 20
_WARM_UP = 5
_TIMEOUT_S = 300


@cache
def _filled(lab: Lab, queues: int, rows: int) -> str:
    """Create a topic with rows of different lengths, in equal parts in its queues."""
    from spark_rocket.client import Producer, Reader
    from spark_rocket.model import Message

    topic = lab.topic(f"small-batches-{queues}-{rows}", queues)
    count = -(-rows // queues)
    messages = [Message.of(topic, "x" * (100 + 7 * at % 60), keys=f"key-{at}", tags="t") for at in range(count)]
    server = lab.cluster.name_server
    with Producer("bench", name_server=server) as producer, Reader(server) as reader:
        for queue in reader.queues(topic):
            for start in range(0, count, _ROWS):
                producer.send(messages[start : start + _ROWS], queue=queue)
    return topic


def _add_batch(lab: Lab, frame: DataFrame) -> float:
    """Run the batches; return the median seconds of ``addBatch``."""
    with tempfile.TemporaryDirectory(dir=lab.scratch) as checkpoint:
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(_TIMEOUT_S)
        found: list[int] = [
            progress["durationMs"]["addBatch"] for progress in query.recentProgress[_WARM_UP:][:_BATCHES]
        ]
    assert len(found) == _BATCHES
    return median(found) / 1000


@benchmark(
    "spark.microbatch.4",
    "spark.microbatch.64",
    unit="s",
    ceiling="an empty Python source with one partition",
    lower_is_better=True,
    target=0.77,
)
def spark_microbatch(lab: Lab, queues: str) -> Pair:
    options = {
        "nameServer": lab.cluster.name_server,
        "subscribe": _filled(lab, int(queues), _ROWS * (_WARM_UP + _BATCHES)),
    }
    lab.spark.dataSource.register(EmptyStream)
    source = lab.spark.readStream.format("rocket").options(**options, startingOffsets="earliest")
    frame = source.option("maxOffsetsPerTrigger", _ROWS).load()
    empty = lab.spark.readStream.format("empty").option("batches", _WARM_UP + _BATCHES).load()
    return Pair(lambda: _add_batch(lab, frame), lambda: _add_batch(lab, empty))


@benchmark(
    "spark.availablenow.wall",
    "spark.availablenow.cpu",
    unit="s",
    ceiling="an empty Python source with one partition",
    lower_is_better=True,
    target=0.91,
)
def spark_available_now(lab: Lab, figure: str) -> Pair:
    """A whole query over 1,000 rows in 4 queues: its time, or the CPU time of all of Spark's Python processes."""
    topic = _filled(lab, 4, _ROWS)
    lab.spark.dataSource.register(EmptyStream)
    source = lab.spark.readStream.format("rocket").options(nameServer=lab.cluster.name_server, subscribe=topic)
    frame = source.option("startingOffsets", "earliest").load()
    empty = lab.spark.readStream.format("empty").option("batches", 1).load()
    spark = child_named("java")

    def query(frame: DataFrame) -> float:
        cpu, begun = descendants_cpu_seconds(spark), time.perf_counter()
        with tempfile.TemporaryDirectory(dir=lab.scratch) as checkpoint:
            running = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            assert running.trigger(availableNow=True).start().awaitTermination(_TIMEOUT_S)
        took = time.perf_counter() - begun
        return took if figure == "wall" else descendants_cpu_seconds(spark) - cpu

    return Pair(lambda: query(frame), lambda: query(empty))


def _latency(lab: Lab, frame: DataFrame) -> float:
    """Run micro-batches as fast as they come; return the median milliseconds from a row's time to ``foreachBatch``."""
    found: list[list[float]] = []
    done = Event()

    def collect(rows: DataFrame, _: int) -> None:
        times = [row.bornTimestamp.timestamp() for row in rows.collect()]
        now = time.time()
        found.append([(now - at) * 1000 for at in times])
        if len(found) == _WARM_UP + _BATCHES:
            done.set()

    with tempfile.TemporaryDirectory(dir=lab.scratch) as checkpoint:
        query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
        try:
            assert done.wait(_TIMEOUT_S)
        finally:
            query.stop()
    return median(each for batch in found[_WARM_UP : _WARM_UP + _BATCHES] for each in batch)


@benchmark(
    "spark.latency",
    unit="ms",
    ceiling="a Python source that makes a row a millisecond",
    lower_is_better=True,
    target=0.87,
)
def spark_latency(lab: Lab, _: str) -> Pair:
    """The median latency of a stream at 1,000 rows/s in 4 queues."""
    from spark_rocket.client import Producer
    from spark_rocket.model import Message

    topic, server = lab.topic("latency"), lab.cluster.name_server
    lab.spark.dataSource.register(TickingStream)
    source = lab.spark.readStream.format("rocket").options(nameServer=server, subscribe=topic)
    frame = source.schema("bornTimestamp timestamp").load()
    ticking = lab.spark.readStream.format("ticking").load()

    def send(stop: Event) -> None:
        with Producer("bench", name_server=server) as producer:
            while not stop.wait(0.01):
                producer.send([Message.of(topic, "x" * 128) for _ in range(10)])

    def latency() -> float:
        with beside(send):
            return _latency(lab, frame)

    return Pair(latency, lambda: _latency(lab, ticking))
