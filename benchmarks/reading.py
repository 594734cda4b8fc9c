"""The data source's reading without Spark: a task's pulls from a broker with small responses, and planning."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.arrow import read_arrow
from spark_rocket.client import Producer, Reader
from spark_rocket.common.system import keep_freed_memory
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.readers import reader_of
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import Message
from spark_rocket.protocol.record.columns import decode_records

MESSAGES = 500_000
WIDE_QUEUES = 1000
AS_APACHE = {"maxPullMsgNums": 32, "maxPullBytes": 256 * 1024}
"""The maximum response size of an Apache broker, whatever is requested."""


def _rows_per_cpu_second(name_server: str, topic: str) -> float:
    options = parse_read_options({"subscribe": topic, "nameServer": name_server}, Scope.READ)
    reader = reader_of(options)
    projection = project(MESSAGE_SCHEMA)
    rows = 0
    begun = time.process_time()
    for queue in reader.queues(topic):
        span = OffsetRange(queue, 0, reader.max_offset(queue))
        rows += sum(batch.num_rows for batch in read_range(span, options, projection, reader))
    spent = time.process_time() - begun
    assert rows == MESSAGES
    return rows / spent


@benchmark("read.pulls", unit="rows/CPU-s", ceiling="the same from a broker that returns 4 MiB at a time")
def read_pulls(lab: Lab, _: str) -> Pair:
    """A task's CPU time per row, all columns, from a broker that returns 32 messages or 256 KiB at a time."""
    from spark_rocket.testing import LocalCluster

    keep_freed_memory()
    large = lab.filled(128, MESSAGES)
    stingy = lab.keep(LocalCluster(data_dir=lab.folder / "stingy", config=AS_APACHE))
    stingy.create_topic("filled", queues=4)
    port = int(stingy.broker_address.rpartition(":")[2])
    lab.load("fill", port=port, topic="filled", size=128, conns=4, messages=MESSAGES)
    return Pair(
        lambda: _rows_per_cpu_second(stingy.name_server, "filled"),
        lambda: _rows_per_cpu_second(lab.cluster.name_server, large),
    )


@benchmark(
    "read.arrow.128", "read.arrow.1024", unit="rows/s", ceiling="two threads that decode the same responses from memory"
)
def read_arrow_rows(lab: Lab, size: str) -> Pair:
    """``read_arrow`` with two threads, all columns. The broker runs on the same cores."""
    keep_freed_memory()
    count = 128 * MESSAGES // int(size)
    topic, name_server = lab.filled(int(size), count), lab.cluster.name_server
    responses: list[memoryview] = []
    with Reader(name_server) as reader:
        for queue in reader.queues(topic):
            offset, end = 0, reader.max_offset(queue)
            while offset < end:
                pulled = reader.pull(queue, offset, max_msgs=32_768, max_bytes=4 << 20)
                responses.append(pulled.records)
                offset = pulled.next_offset

    def read() -> float:
        begun = time.perf_counter()
        rows: int = sum(batch.num_rows for batch in read_arrow(topic, name_server=name_server, threads=2))
        assert rows == count
        return rows / (time.perf_counter() - begun)

    def decode() -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            batches = pool.map(lambda records: decode_records(records, broker_name="broker-a"), responses)
            rows: int = sum(batch.num_rows for batch in batches)
        assert rows == count
        return rows / (time.perf_counter() - begun)

    return Pair(read, decode)


@benchmark(
    "plan.1000",
    unit="ms",
    ceiling="as many requests to an echo server, sent at once",
    lower_is_better=True,
)
def plan(lab: Lab, _: str) -> Pair:
    """A micro-batch of 1,000 queues with new messages: first and last offsets of each."""
    topic = lab.topic("wide", queues=WIDE_QUEUES)
    name_server = lab.cluster.name_server
    with Producer("wide", name_server=name_server) as producer, Reader(name_server) as reader:
        queues = reader.queues(topic)
        for queue in queues:
            producer.send(Message.of(topic, "x"), queue=queue)
    options = parse_read_options({"subscribe": topic, "nameServer": name_server}, Scope.READ_STREAM)

    def planned() -> float:
        planner = StreamPlanner(Cluster(options), options)
        begun = time.perf_counter()
        end = planner.next_end(StreamOffset(dict.fromkeys(queues, 0)), None)
        elapsed = time.perf_counter() - begun
        assert end is not None
        assert list(end.ends.values()) == [1] * WIDE_QUEUES
        return elapsed * 1000

    question = frames.send_response()
    response = len(question)

    def asked() -> float:
        with socket.create_connection(("127.0.0.1", lab.echo_port())) as connection:
            begun = time.perf_counter()
            for _ in range(2 * WIDE_QUEUES // 100):
                connection.sendall(question * 100)
                missing = 100 * response
                while missing:
                    missing -= len(connection.recv(missing))
            return (time.perf_counter() - begun) * 1000

    return Pair(planned, asked)
