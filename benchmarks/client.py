"""Drain a backlog: into Arrow columns with one thread, and with push consumers; their memory."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    PushConsumer,
    Reader,
)
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.messages import decode_messages

MESSAGES = 500_000
PULL_BYTES = 4 * 1024 * 1024


def pull_into_columns(reader: Reader, queue: MessageQueue) -> tuple[int, int]:
    """Pull an entire queue, with the next pull in flight during decoding; return rows and bytes."""
    rows = size = offset = 0
    end = reader.max_offset(queue)
    pending = reader.pull_async(queue, offset, max_msgs=32_768, max_bytes=PULL_BYTES)
    while offset < end:
        response = pending.result()
        offset = response.next_offset
        if offset < end:
            pending = reader.pull_async(queue, offset, max_msgs=32_768, max_bytes=PULL_BYTES)
        rows += decode_records(response.records, broker_name=queue.broker_name).num_rows
        size += len(response.records)
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


_groups = itertools.count()


class _Listener:
    """Counts messages and signals when all have arrived."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._calls = itertools.count(1)
        self._rows = 0
        self._lock = threading.Lock()

    def messages(self, _: list[MessageExt], __: object) -> ConsumeConcurrentlyStatus:
        if next(self._calls) == MESSAGES:
            self.done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def batches(self, batch: pa.RecordBatch, _: object) -> ConsumeOrderlyStatus:
        with self._lock:
            self._rows += batch.num_rows
            if self._rows >= MESSAGES:
                self.done.set()
        return ConsumeOrderlyStatus.SUCCESS


def drained(name_server: str, topic: str, *, arrow: bool) -> float:
    """Return messages per second from a consumer's start until its listener has received the entire topic."""
    listener = _Listener()
    with PushConsumer(
        f"drain{os.getpid()}-{next(_groups)}",
        None if arrow else listener.messages,
        batches=listener.batches if arrow else None,
        name_server=name_server,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) as consumer:
        consumer.subscribe(topic)
        begun = time.perf_counter()
        consumer.start()
        if not listener.done.wait(120):
            raise TimeoutError("the backlog was not drained within two minutes")
        return MESSAGES / (time.perf_counter() - begun)


@benchmark("client.push", unit="messages/s", ceiling="decoding the same records on one thread, and a call for each")
def push(lab: Lab, _: str) -> Pair:
    topic = lab.filled(128, MESSAGES)

    def called() -> float:
        with Reader(lab.cluster.name_server) as reader:
            queue = reader.queues(topic)[0]
            records = reader.pull(queue, 0, max_msgs=32_768, max_bytes=PULL_BYTES).records
        count, begun = 0, time.perf_counter()
        for _ in range(10):
            for message in decode_messages(records):
                count += len([message])
        return count / (time.perf_counter() - begun)

    return Pair(lambda: drained(lab.cluster.name_server, topic, arrow=False), called)


@benchmark("client.push.arrow", unit="messages/s", ceiling="one thread that pulls queue after queue into columns")
def push_arrow(lab: Lab, _: str) -> Pair:
    topic = lab.filled(128, MESSAGES)

    def pulled() -> float:
        with Reader(lab.cluster.name_server) as reader:
            queues = reader.queues(topic)
            begun = time.perf_counter()
            for queue in queues:
                pull_into_columns(reader, queue)
            return MESSAGES / (time.perf_counter() - begun)

    return Pair(lambda: drained(lab.cluster.name_server, topic, arrow=True), pulled)


def peak_mib() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


@benchmark(
    "client.memory.push",
    "client.memory.arrow",
    unit="MiB",
    ceiling="a process that has loaded the same modules",
    lower_is_better=True,
)
def memory(lab: Lab, kind: str) -> Pair:
    """The memory of a process that drains 32 queues."""
    topic = lab.filled(128, MESSAGES, 32)
    drain = f"drained({lab.cluster.name_server!r}, {topic!r}, arrow={kind == 'arrow'})"

    def of(*steps: str) -> float:
        code = "; ".join(["from benchmarks.client import drained, peak_mib", *steps, "print(peak_mib())"])
        command = [sys.executable, "-c", code]
        return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)

    return Pair(lambda: of(drain), of)
