"""The store without a network: puts, batches and gets of 128-byte bodies, against a copy of the same bytes."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.model import Message
from spark_rocket.protocol.properties import encode_properties
from spark_rocket.protocol.record import encode_batch_body, record_size
from spark_rocket.store import MessageStore, PutStatus, StoreConfig

SIZE, PUTS, BATCHES = 128, 30_000, 200
GET_BYTES = 4 * 1024 * 1024
TOPIC = "bench"
BORN = ("127.0.0.1", 50_000)


@contextmanager
def open_store(lab: Lab, name: str) -> Iterator[MessageStore]:
    store = MessageStore(StoreConfig(store_path=lab.folder / name), store_host=("127.0.0.1", 10911))
    store.start()
    try:
        yield store
    finally:
        store.close()


def copies(count: int, size: int) -> float:
    """Copies a second into mapped memory that has been touched before."""
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
        with open_store(lab, "put") as store:
            begun = time.perf_counter()
            for number in range(PUTS):
                result = store.put_message(TOPIC, number & 3, body, properties, born_timestamp=1, born_host=BORN)
            elapsed = time.perf_counter() - begun
        assert result.status is PutStatus.PUT_OK, result
        return PUTS / elapsed

    return Pair(puts, lambda: copies(PUTS, size))


@benchmark("store.batch500", unit="messages/s", ceiling="a copy of as many bytes into mapped memory")
def put_batches(lab: Lab, _: str) -> Pair:
    rows = range(frames.BATCH)
    body = encode_batch_body([Message(TOPIC, frames.payload(SIZE, row), frames.properties_of(row)) for row in rows])

    def puts() -> float:
        with open_store(lab, "batch") as store:
            begun = time.perf_counter()
            for number in range(BATCHES):
                result = store.put_batch(TOPIC, number & 3, body, born_timestamp=1, born_host=BORN)
            elapsed = time.perf_counter() - begun
        assert result.count == frames.BATCH, result
        return BATCHES * frames.BATCH / elapsed

    return Pair(puts, lambda: copies(BATCHES, len(body)) * frames.BATCH)


@benchmark("store.get", unit="messages/s", ceiling="a copy of as many bytes into mapped memory")
def get(lab: Lab, _: str) -> Pair:
    rows = range(frames.BATCH)
    body = encode_batch_body([Message(TOPIC, frames.payload(SIZE, row), frames.properties_of(row)) for row in rows])
    with open_store(lab, "get") as store:
        for _number in range(BATCHES):
            store.put_batch(TOPIC, 0, body, born_timestamp=1, born_host=BORN)
    total, answer_bytes = BATCHES * frames.BATCH, 0

    def gets() -> float:
        nonlocal answer_bytes
        with open_store(lab, "get") as store:
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
