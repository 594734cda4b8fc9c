"""Find a message by key, by time and by id among one and ten million: the cost must not grow with the log."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.store import BORN, open_store
from spark_rocket.store import MessageStore

TOPIC = "search"
BATCH = 500
FIRST_TIME = 1_700_000_000_000
SAMPLES = 2_000
FOREVER = 1 << 62


class Sample(NamedTuple):
    """A message to search for."""

    key: str
    store_timestamp: int
    queue_offset: int
    physical_offset: int


class Haystack(NamedTuple):
    store: MessageStore
    samples: list[Sample]


@cache
def fill(lab: Lab, messages: int) -> Haystack:
    """Create a store of ``messages`` messages with distinct keys, two batches a second; return it with some samples."""
    clock = [FIRST_TIME]
    store = lab.keep(open_store(lab.folder / f"search-{messages}", lambda: clock[0]))
    chosen = set(random.Random(7).sample(range(messages), SAMPLES))
    samples = []
    batches = Batches()
    for first in range(0, messages, BATCH):
        clock[0] += 500
        result = store.put_batch(TOPIC, 0, batches.body(first), born_timestamp=1, born_host=BORN)
        for number in chosen.intersection(range(first, first + BATCH)):
            offset = result.physical_offsets[number - first]
            samples.append(Sample(f"key-{number:09d}", clock[0], number, offset))
    while (found := store.query_message(TOPIC, f"key-{messages - 1:09d}", 1, 0, FOREVER)).records == []:
        assert found.index_last_update_physical_offset < store.max_physical_offset
    random.Random(8).shuffle(samples)
    return Haystack(store, samples)


class Batches:
    """Bodies of 500 small messages that differ only in the digits of their keys."""

    def __init__(self) -> None:
        properties = b"KEYS\x01key-000000000"
        body = b"a small body"
        message = bytes(16) + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
        size = len(message).to_bytes(4, "big") + message[4:]
        self._rows = np.tile(np.frombuffer(size, np.uint8), (BATCH, 1))

    def body(self, first: int) -> bytes:
        numbers = np.arange(first, first + BATCH)
        for place in range(9):
            self._rows[:, -1 - place] = ord("0") + numbers // 10**place % 10
        return self._rows.tobytes()


def look_up(samples: list[Sample], find: Callable[[Sample], object]) -> float:
    begun = time.perf_counter()
    for sample in samples:
        assert find(sample)
    return len(samples) / (time.perf_counter() - begun)


def pair(lab: Lab, size: str, by: Callable[[Sample], Hashable], find: Callable[[MessageStore, Sample], object]) -> Pair:
    """``find`` compared with a lookup in a dict and a read of the record at its offset."""
    store, samples = fill(lab, int(size.removesuffix("m")) * 1_000_000)
    record_size = len(store.look_message_by_offset(samples[0].physical_offset) or b"")
    places = {by(sample): sample.physical_offset for sample in samples}
    file_size = store.config.mapped_file_size_commit_log
    files = sorted(Path(store.config.commit_log_path).iterdir())

    def ideal() -> float:
        descriptors = [os.open(path, os.O_RDONLY) for path in files]
        try:

            def read(sample: Sample) -> bytes:
                offset = places[by(sample)]
                return os.pread(descriptors[offset // file_size], record_size, offset % file_size)

            return look_up(samples, read)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    return Pair(lambda: look_up(samples, lambda sample: find(store, sample)), ideal)


CEILING = "a lookup in a dict and a read of the record"


@benchmark("search.key.1m", "search.key.10m", unit="searches/s", ceiling=CEILING)
def by_key(lab: Lab, size: str) -> Pair:
    def find(store: MessageStore, sample: Sample) -> object:
        return len(store.query_message(TOPIC, sample.key, 32, 0, FOREVER).records) == 1

    return pair(lab, size, lambda sample: sample.key, find)


@benchmark("search.time.1m", "search.time.10m", unit="searches/s", ceiling=CEILING)
def by_time(lab: Lab, size: str) -> Pair:
    def find(store: MessageStore, sample: Sample) -> object:
        found = store.get_offset_by_time(TOPIC, 0, sample.store_timestamp)
        return found == sample.queue_offset // BATCH * BATCH

    return pair(lab, size, lambda sample: sample.store_timestamp, find)


@benchmark("search.id.1m", "search.id.10m", unit="searches/s", ceiling=CEILING)
def by_id(lab: Lab, size: str) -> Pair:
    def find(store: MessageStore, sample: Sample) -> object:
        return store.look_message_by_offset(sample.physical_offset)

    return pair(lab, size, lambda sample: sample.physical_offset, find)
