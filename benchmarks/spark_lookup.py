"""Look up one message of a large topic by its key in a data frame: the brokers' index compared with a ready row.

The ceiling is Spark's own part of such a query: planning, and a task for one row.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.lab import QUEUES, Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.store_search import BATCH, Batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOGETHER = 20 * BATCH  # messages per request
_PATIENCE = 600.0


@cache
def _filled(lab: Lab, messages: int) -> str:
    """Create a topic of ``messages`` messages with distinct keys, and wait until the broker has indexed them."""
    from spark_rocket.client import Admin, Reader
    from spark_rocket.protocol.wire.codes import RequestCode
    from spark_rocket.protocol.wire.command import RemotingCommand
    from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader

    topic = lab.topic(f"lookup-{messages}")
    batches = Batches()
    with Reader(lab.cluster.name_server) as reader, Admin(lab.cluster.name_server) as admin:
        queues = reader.queues(topic)
        for number, first in enumerate(range(0, messages, _TOGETHER)):
            queue_id = queues[number % QUEUES].queue_id
            header = SendMessageRequestHeader("bench", topic, "TBW102", QUEUES, queue_id, 0, 1, 0, batch=True)
            body = b"".join(batches.body(at) for at in range(first, min(first + _TOGETHER, messages), BATCH))
            request = RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), body)
            answer = reader.remoting.invoke(lab.cluster.broker_address, request, 60)
            assert answer.code == 0, answer
        until = time.monotonic() + _PATIENCE
        while not admin.query_messages(topic, f"key-{messages - 1:09d}"):
            assert time.monotonic() < until, "the index is not ready"
    return topic


def _ready(lab: Lab, topic: str) -> DataFrame:
    """Return a source that has the topic's first message in memory."""
    from benchmarks.spark_sources import Ceiling
    from spark_rocket.client import Reader
    from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
    from spark_rocket.protocol.record.columns import decode_records

    with Reader(lab.cluster.name_server) as reader:
        records = reader.pull(reader.queues(topic)[0], 0, max_msgs=1).records
        batch = project(MESSAGE_SCHEMA).conform(decode_records(records, broker_name="broker-a"))
    path = lab.scratch / "row.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as stored:
        stored.write_batch(batch)
    lab.spark.dataSource.register(Ceiling)
    return lab.spark.read.format("ceiling").option("path", str(path)).option("rows", 1).option("partitions", 1).load()


def _seconds(frame: Callable[[], DataFrame]) -> float:
    begun = time.perf_counter()
    assert len(frame().collect()) == 1
    return time.perf_counter() - begun


@benchmark(
    "spark.lookup.1m", "spark.lookup.10m", unit="s", ceiling="a source of one ready-made row", lower_is_better=True
)
def spark_lookup(lab: Lab, size: str) -> Pair:
    messages = int(size.removesuffix("m")) * 1_000_000
    topic = _filled(lab, messages)
    spark = lab.spark
    given = {"nameServer": lab.cluster.name_server, "subscribe": topic}

    def looked_up(number: int) -> DataFrame:
        return spark.read.format("rocket").options(**given, lookupKeys=f"key-{number:09d}").load()

    numbers = random.Random(7)
    [row] = looked_up(7).collect()
    assert row.queueOffset == 7
    ready = _ready(lab, topic)
    return Pair(lambda: _seconds(lambda: looked_up(numbers.randrange(messages))), lambda: _seconds(lambda: ready))
