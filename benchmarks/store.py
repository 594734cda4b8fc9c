"""The store without a network: puts, batches and gets of 128-byte bodies, compared with a copy of the same bytes."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.model import Message
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.layout import record_size
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.store import MessageStore, PutStatus, StoreConfig

SIZE, PUTS, BATCHES = 128, 30_000, 200
CPU_BATCHES, SPARK_BATCH = 25, 4_000
SMALL_BATCHES, SMALL_BATCH = 2_000, 10
GET_BYTES = 4 * 1024 * 1024
BACKLOG, BACKLOG_QUEUES = 200_000, 8
TOPIC = "bench"
BORN = ("127.0.0.1", 50_000)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def open_store(path: Path, clock: Callable[[], int] = now_ms, **settings: Any) -> Iterator[MessageStore]:
    store = MessageStore(StoreConfig(path, **settings), store_host=("127.0.0.1", 10911), clock=clock)
    store.start()
    try:
        yield store
    finally:
        store.close()


def batch_body(size: int = SIZE) -> bytes:
    """Return a batch of 500 messages, encoded like a producer's."""
    rows = range(frames.BATCH)
    return bytes(
        encode_batch_body([Message(TOPIC, frames.payload(size, row), frames.properties_of(row)) for row in rows])
    )


def copies(count: int, size: int) -> float:
    """Return copies per second into mapped memory that was touched before."""
    data = b"x" * size
    slots = max(1, GET_BYTES // size)
    with mmap.mmap(-1, slots * size) as memory:
        for _ in range(2):
            begun = time.perf_counter()
            for number in range(count):
                at = number % slots * size
                memory[at : at + size] = data
            elapsed = time.perf_counter() - begun
    return count / elapsed


@benchmark("store.put", unit="messages/s", ceiling="a copy of as many bytes into mapped memory")
def put(lab: Lab, _: str) -> Pair:
    body, properties = frames.payload(SIZE), encode_properties(frames.properties_of(1))
    size = record_size(len(body), len(TOPIC), len(properties))

    def puts() -> float:
        with open_store(lab.scratch / "put") as store:
            begun = time.perf_counter()
            for number in range(PUTS):
                result = store.put_message(TOPIC, number & 3, body, properties, born_timestamp=1, born_host=BORN)
            elapsed = time.perf_counter() - begun
        assert result.status is PutStatus.PUT_OK, result
        return PUTS / elapsed

    return Pair(puts, lambda: copies(PUTS, size))


@benchmark("store.batch500", unit="messages/s", ceiling="a copy of as many bytes into mapped memory; equal rows")
def put_equal_batches(lab: Lab, _: str) -> Pair:
    """Batches of messages with equal lengths, the exception in practice."""
    return _put_batches(lab, [batch_body()] * BATCHES, frames.BATCH)


@benchmark("store.batch10", unit="messages/s", ceiling="a copy of as many bytes into mapped memory")
def put_small_batches(lab: Lab, _: str) -> Pair:
    """Batches of ten messages with bodies of 40 to 900 bytes, as applications send them."""
    return _put_batches(lab, varied_bodies(40, 900, batches=SMALL_BATCHES, messages=SMALL_BATCH), SMALL_BATCH)


def _put_batches(lab: Lab, batches: list[bytes], messages: int) -> Pair:
    def puts() -> float:
        with open_store(lab.scratch / "batch") as store:
            begun = time.perf_counter()
            for number, body in enumerate(batches):
                result = store.put_batch(TOPIC, number & 3, body, born_timestamp=1, born_host=BORN)
            elapsed = time.perf_counter() - begun
        assert result.count == messages, result
        return len(batches) * messages / elapsed

    size = sum(map(len, batches)) // len(batches)
    return Pair(puts, lambda: copies(len(batches), size) * messages)


def varied_bodies(least: int, most: int, *, batches: int = CPU_BATCHES, messages: int = SPARK_BATCH) -> list[bytes]:
    """Return batches with bodies of ``least`` to ``most`` bytes, of 4,000 messages as Spark's sink sends them."""
    rng = random.Random(7)

    def message(number: int) -> Message:
        properties = {"TAGS": "bench", "KEYS": f"{number:08}", "UNIQ_KEY": f"{rng.getrandbits(128):032X}"}
        return Message(TOPIC, rng.randbytes(rng.randint(least, most)), properties)

    return [bytes(encode_batch_body([message(number) for number in range(messages)])) for _ in range(batches)]


@benchmark(
    "store.cpu.varied",
    unit="messages/s of CPU",
    ceiling="the same with bodies of 150 bytes (not a ceiling)",
    target=0.67,
)
def cpu_of_varied_batches(lab: Lab, _: str) -> Pair:
    """Batches with bodies of 100 to 199 bytes, and their index, by the CPU of all of the store's threads."""
    varied, equal = varied_bodies(100, 199), varied_bodies(150, 150)
    numbers = count()

    def rate(batches: list[bytes]) -> float:
        with open_store(lab.scratch / f"cpu-{next(numbers)}") as store:
            begun = time.process_time()
            for number, body in enumerate(batches):
                result = store.put_batch(TOPIC, number & 3, body, born_timestamp=1, born_host=BORN)
            assert result.status is PutStatus.PUT_OK, result
            found = store.query_message(TOPIC, f"{SPARK_BATCH - 1:08}", 64, 0, 1 << 62)  # waits for the index
            took = time.process_time() - begun
        assert found.records
        return CPU_BATCHES * SPARK_BATCH / took

    return Pair(lambda: rate(varied), lambda: rate(equal))


@benchmark("store.get", unit="messages/s", ceiling="a copy of as many bytes into mapped memory")
def get(lab: Lab, _: str) -> Pair:
    body = batch_body()
    with open_store(lab.scratch / "get") as store:
        for _number in range(BATCHES):
            store.put_batch(TOPIC, 0, body, born_timestamp=1, born_host=BORN)
    total, answer_bytes = BATCHES * frames.BATCH, 0

    def gets() -> float:
        nonlocal answer_bytes
        with open_store(lab.scratch / "get") as store:
            offset = answer_bytes = 0
            begun = time.perf_counter()
            while offset < total:
                result = store.get_message(TOPIC, 0, offset, 32_768, GET_BYTES)
                offset = result.next_begin_offset
                answer_bytes += len(result.records)
            elapsed = time.perf_counter() - begun
        return total / elapsed

    def copied() -> float:
        if not answer_bytes:
            gets()
        rounds = max(1, answer_bytes // GET_BYTES)
        return copies(rounds, GET_BYTES) * total / rounds

    return Pair(gets, copied)


@benchmark("store.backlog8", unit="records/s", ceiling="slices of the same sizes of one map, joined")
def backlog(lab: Lab, _: str) -> Pair:
    """Read queues whose records are interleaved with those of seven others."""
    body, properties = frames.payload(SIZE), encode_properties(frames.properties_of(1))
    with open_store(lab.scratch / "backlog") as store:
        for number in range(BACKLOG):
            store.put_message(TOPIC, number % BACKLOG_QUEUES, body, properties, born_timestamp=1, born_host=BORN)

    def read() -> float:
        done = 0
        with open_store(lab.scratch / "backlog") as store:
            begun = time.perf_counter()
            for queue_id in range(BACKLOG_QUEUES):
                offset, end = 0, store.get_max_offset(TOPIC, queue_id)
                while offset < end:
                    result = store.get_message(TOPIC, queue_id, offset, 32_768, GET_BYTES)
                    offset = result.next_begin_offset
                    done += result.count
            elapsed = time.perf_counter() - begun
        assert done == BACKLOG
        return done / elapsed

    def sliced() -> float:
        size = record_size(len(body), len(TOPIC), len(properties))
        starts = [number * size * BACKLOG_QUEUES for number in range(BACKLOG // BACKLOG_QUEUES)]
        run = GET_BYTES // size
        with mmap.mmap(-1, BACKLOG * size) as memory:
            for _ in range(2):
                begun = time.perf_counter()
                for queue_id in range(BACKLOG_QUEUES):
                    own = [start + queue_id * size for start in starts]
                    for first in range(0, len(own), run):
                        b"".join([memory[start : start + size] for start in own[first : first + run]])
                elapsed = time.perf_counter() - begun
        return BACKLOG / elapsed

    return Pair(read, sliced)
