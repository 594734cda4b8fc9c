"""The store and its disk: recovery, start, flushing, roll-overs, and many queues."""

from __future__ import annotations

import mmap
import os
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.store import BORN, SIZE, TOPIC, batch_body, open_store
from spark_rocket.protocol.durability import FlushDiskType
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.layout import record_size
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store import MessageStore

GIB = 1 << 30
CHUNK = 4 << 20
SYNC_SECONDS = 1.5
ROLL_FILE, ROLL_BODY, ROLLS, AROUND = 16 << 20, 1024, 20, 250
MANY_QUEUES, QUEUE_PUTS = 10_000, 30_000
LARGE_FILES = 9
LARGE_BODY = 4_000_000
PROPERTIES = encode_properties(frames.properties_of(1))


# --- recovery and start -----------------------------------------------------------------------------------------


@benchmark("store.recover", unit="MB/s", ceiling="crc32 of the same bytes, read from the files")
def recover(lab: Lab, _: str) -> Pair:
    """Recover 1 GiB of 128-byte messages, none of them known to be flushed."""
    path = lab.scratch / "recover"
    body = batch_body()
    with open_store(path, message_index_enable=False) as store:
        while store.max_physical_offset < GIB - CHUNK:
            store.put_batch(TOPIC, 0, body, born_timestamp=1, born_host=BORN)
        size = store.max_physical_offset

    def recovered() -> float:
        (path / "abort").touch()
        (path / "checkpoint").unlink()
        begun = time.perf_counter()
        with open_store(path, message_index_enable=False) as store:
            elapsed = time.perf_counter() - begun
            report = store.recovery
        assert report is not None
        assert (report.start_offset, report.end_offset, report.cut_reason) == (0, size, "")
        return size / 1e6 / elapsed

    def summed() -> float:
        begun = time.perf_counter()
        for file in sorted((path / "commitlog").iterdir()):
            for piece in pieces(file, 0, size):
                crc32(piece)
        return size / 1e6 / (time.perf_counter() - begun)

    return Pair(recovered, summed)


def pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            piece = file.read(min(CHUNK, end - start))
            if not piece:
                return
            start += len(piece)
            yield piece


@benchmark(
    "store.start",
    unit="s",
    ceiling="a read of every queue's file and crc32 of the log's last 64 MiB",
    lower_is_better=True,
)
def start(lab: Lab, _: str) -> Pair:
    """A clean start with 10,000 queues and 10 GiB of log, 9 GiB of which are large, empty bodies in sparse files."""
    path = lab.scratch / "start"
    _large_log(path / "commitlog")
    with open_store(path, check_crc_on_recover=False, message_index_enable=False) as store:
        body = batch_body()
        while store.max_physical_offset < LARGE_FILES * GIB + (100 << 20):
            store.put_batch(TOPIC, 0, body, born_timestamp=1, born_host=BORN)
        for number in range(MANY_QUEUES):
            store.put_message(f"topic-{number % 1000}", number // 1000, b"x", b"", born_timestamp=1, born_host=BORN)

    def started() -> float:
        begun = time.perf_counter()
        with open_store(path, message_index_enable=False) as store:
            elapsed = time.perf_counter() - begun
            assert store.recovery is not None
            assert store.recovery.clean
        return elapsed

    def looked() -> float:
        begun = time.perf_counter()
        for file in path.glob("consumequeue/*/*/*"):
            descriptor = os.open(file, os.O_RDONLY)
            os.pread(descriptor, 4096, 0)
            os.close(descriptor)
        for piece in pieces(max((path / "commitlog").iterdir()), 36 << 20, 100 << 20):
            crc32(piece)
        return time.perf_counter() - begun

    return Pair(started, looked)


def _large_log(directory: Path) -> None:
    """Write full files whose records have zeros for bodies: sparse, and read like any other."""
    directory.mkdir(parents=True)
    host = pack_host(BORN)
    body = bytes(LARGE_BODY)
    size = record_size(len(body), len(b"large"), len(PROPERTIES))
    tail_at = size - len(PROPERTIES) - 64
    number = 0
    for offset in range(0, LARGE_FILES * GIB, GIB):
        with (directory / f"{offset:020d}").open("wb") as file:
            position = 0
            while position + size + 8 <= GIB:
                record = encode_record(
                    b"large",
                    0,
                    body,
                    PROPERTIES,
                    queue_offset=number,
                    physical_offset=offset + position,
                    born_timestamp=1,
                    born_host=host,
                    store_timestamp=1_700_000_000_000 + number,
                    store_host=host,
                )
                os.pwrite(file.fileno(), record[:128], position)
                os.pwrite(file.fileno(), record[tail_at:], position + tail_at)
                position += size
                number += 1
            os.pwrite(file.fileno(), (GIB - position).to_bytes(4, "big") + bytes.fromhex("CBD43194"), position)
            file.truncate(GIB)


# --- synchronous flushing ---------------------------------------------------------------------------------------


def sync_rate(path: Path, senders: int) -> float:
    """Return messages per second of ``senders`` senders, each of which waits until its message is on disk."""
    body = frames.payload(SIZE)
    flushed: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with open_store(path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:

        def send() -> None:
            result = store.put_message(TOPIC, 0, body, PROPERTIES, born_timestamp=1, born_host=BORN)
            store.when_flushed(result.end_physical_offset, flushed.put)

        begun = time.perf_counter()
        for _ in range(senders):
            send()
        done = 0
        while time.perf_counter() - begun < SYNC_SECONDS:
            assert flushed.get()
            done += 1
            send()
        elapsed = time.perf_counter() - begun
    return done / elapsed


def fdatasync_rate(path: Path, together: int) -> float:
    """Return records of the same size written per second, ``together`` per fdatasync."""
    record = b"x" * record_size(SIZE, len(TOPIC), len(PROPERTIES)) * together
    path.mkdir(exist_ok=True)
    descriptor = os.open(path / "fdatasync", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, 64 << 20)
        at = rounds = 0
        begun = time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < SYNC_SECONDS:
            os.pwrite(descriptor, record, at)
            os.fdatasync(descriptor)
            at = (at + len(record)) % (48 << 20)
            rounds += 1
    finally:
        os.close(descriptor)
    return rounds * together / elapsed


@benchmark("store.sync.1", "store.sync.16", unit="messages/s", ceiling="fdatasync of as many records at once")
def sync_flush(lab: Lab, senders: str) -> Pair:
    count = int(senders)
    return Pair(lambda: sync_rate(lab.scratch / "sync", count), lambda: fdatasync_rate(lab.scratch / "bare", count))


@benchmark("store.sync.gain", unit="times one sender", ceiling="the gain of 16 records per fdatasync over one")
def sync_gain(lab: Lab, _: str) -> Pair:
    """The rate of 16 senders, as a multiple of one sender's."""
    return Pair(
        lambda: sync_rate(lab.scratch / "many", 16) / sync_rate(lab.scratch / "one", 1),
        lambda: fdatasync_rate(lab.scratch / "bare", 16) / fdatasync_rate(lab.scratch / "bare", 1),
    )


# --- roll-overs -------------------------------------------------------------------------------------------------


def around_rolls(append: Callable[[int], int]) -> float:
    """Return p99.9 in µs of the appends around each roll-over; ``append(n)`` returns the file of the n-th append."""
    times: list[int] = []
    chosen: list[int] = []
    clock = time.perf_counter_ns
    file = number = rolled_at = 0
    while file < ROLLS or number < rolled_at + AROUND:
        begun = clock()
        now = append(number)
        times.append(clock() - begun)
        number += 1
        if now != file:
            file, rolled_at = now, number - 1
            if file <= ROLLS:
                chosen += range(max(rolled_at - AROUND, 0), rolled_at + AROUND)
    slowest = sorted(times[at] for at in chosen)
    return slowest[int(len(slowest) * 0.999)] / 1000


@benchmark(
    "store.roll.p999", unit="µs", ceiling="p99.9 of copying as many bytes into one mapped file", lower_is_better=True
)
def roll_over(lab: Lab, _: str) -> Pair:
    """Every 500 appends around a roll-over, 16-MiB files: two in a thousand include a roll-over."""
    body = frames.payload(ROLL_BODY)
    size = record_size(len(body), len(TOPIC), len(PROPERTIES))

    def rolled() -> float:
        shutil.rmtree(lab.scratch / "roll", ignore_errors=True)
        with open_store(lab.scratch / "roll", mapped_file_size_commit_log=ROLL_FILE) as store:

            def append(_number: int) -> int:
                result = store.put_message(TOPIC, 0, body, PROPERTIES, born_timestamp=1, born_host=BORN)
                return result.physical_offset // ROLL_FILE

            return around_rolls(append)

    def copied() -> float:
        data = b"x" * size
        slots = ROLL_FILE // size
        with (lab.scratch / "one-file").open("w+b") as file:
            file.truncate(ROLL_FILE)
            with mmap.mmap(file.fileno(), ROLL_FILE) as memory:
                memory[:] = bytes(ROLL_FILE)

                def append(number: int) -> int:
                    at = number % slots * size
                    memory[at : at + size] = data
                    return number // slots

                return around_rolls(append)

    return Pair(rolled, copied)


# --- many queues ------------------------------------------------------------------------------------------------


@benchmark("store.queues.10000", unit="messages/s", ceiling="the same with 10 queues")
def many_queues(lab: Lab, queues: str) -> Pair:
    body = frames.payload(SIZE)

    def puts(store: MessageStore, count: int) -> float:
        names = [(f"topic-{number % 1000}", number // 1000) for number in range(count)]
        begun = time.perf_counter()
        for number in range(QUEUE_PUTS):
            topic, queue_id = names[number % count]
            store.put_message(topic, queue_id, body, PROPERTIES, born_timestamp=1, born_host=BORN)
        return QUEUE_PUTS / (time.perf_counter() - begun)

    def measured(count: int) -> float:
        with open_store(lab.scratch / f"queues-{count}") as store:
            puts(store, count)  # creates the queues and maps their files
            return puts(store, count)

    return Pair(lambda: measured(int(queues)), lambda: measured(10))
