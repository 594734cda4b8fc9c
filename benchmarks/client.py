"""A backlog pulled into Arrow columns by one thread, against receiving the same bytes and doing nothing with them."""

from __future__ import annotations

import socket
import time

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Reader
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.columnar import decode_records

MESSAGES = 500_000
PULL_BYTES = 4 * 1024 * 1024


def pull_into_columns(reader: Reader, queue: MessageQueue) -> tuple[int, int]:
    """All of a queue, the next pull under way while one is decoded; rows and bytes."""
    rows = size = offset = 0
    end = reader.max_offset(queue)
    pending = reader.pull_async(queue, offset, max_msgs=32_768, max_bytes=PULL_BYTES)
    while offset < end:
        answer = pending.result()
        offset = answer.next_offset
        if offset < end:
            pending = reader.pull_async(queue, offset, max_msgs=32_768, max_bytes=PULL_BYTES)
        rows += decode_records(answer.records, broker_name=queue.broker_name).num_rows
        size += len(answer.records)
    return rows, size


@benchmark("client.pull", unit="messages/s", ceiling="receiving the same bytes from a bare socket")
def pull(lab: Lab, _: str) -> Pair:
    topic = lab.filled(128, MESSAGES)
    total_bytes = 0

    def pulled() -> float:
        nonlocal total_bytes
        with Reader(lab.cluster.name_server) as reader:
            queues = reader.queues(topic)
            begun = time.perf_counter()
            counts = [pull_into_columns(reader, queue) for queue in queues]
            elapsed = time.perf_counter() - begun
        assert sum(rows for rows, _ in counts) == MESSAGES
        total_bytes = sum(size for _, size in counts)
        return MESSAGES / elapsed

    def received() -> float:
        if not total_bytes:
            pulled()
        buffer = memoryview(bytearray(PULL_BYTES))
        left = total_bytes
        with socket.create_connection(("127.0.0.1", lab.echo_port(PULL_BYTES))) as connection:
            begun = time.perf_counter()
            while left > 0:
                connection.sendall(b"\0\0\0\1.")
                missing = PULL_BYTES
                while missing:
                    missing -= connection.recv_into(buffer, missing)
                left -= PULL_BYTES
            elapsed = time.perf_counter() - begun
        return MESSAGES * (1 - left / total_bytes) / elapsed

    return Pair(pulled, received)
