"""Micro-batches of 1,000 rows: what a small batch costs, over few and many queues.

The ceiling is Spark's part of such a batch: an empty Python source with one partition.
"""

from __future__ import annotations

import tempfile
from functools import cache
from statistics import median

from pyspark.sql import DataFrame

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.spark_sources import EmptyStream

_ROWS = 1_000
_BATCHES = 20
_WARM_UP = 5
_TIMEOUT_S = 300


@cache
def _filled(lab: Lab, queues: int) -> str:
    """Create a topic with the rows of all batches, of different lengths, in equal parts in its queues."""
    from spark_rocket.client import Producer, Reader
    from spark_rocket.model import Message

    topic = lab.topic(f"small-batches-{queues}", queues)
    count = _ROWS * (_WARM_UP + _BATCHES) // queues + 1
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
)
def spark_microbatch(lab: Lab, queues: str) -> Pair:
    options = {"nameServer": lab.cluster.name_server, "subscribe": _filled(lab, int(queues))}
    lab.spark.dataSource.register(EmptyStream)
    source = lab.spark.readStream.format("rocket").options(**options, startingOffsets="earliest")
    frame = source.option("maxOffsetsPerTrigger", _ROWS).load()
    empty = lab.spark.readStream.format("empty").option("batches", _WARM_UP + _BATCHES).load()
    return Pair(lambda: _add_batch(lab, frame), lambda: _add_batch(lab, empty))
