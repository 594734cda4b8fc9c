"""The broker under the requests of any client, by its CPU time: single sends, batches, Spark's batches, pulls of 32.

The load is prepared frames on bare sockets, and its own CPU time does not count; the CPU time of the index does.
Names with ``1k`` have bodies of 1 KiB, the others of 128 bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import frames
from benchmarks.lab import QUEUES, Lab
from benchmarks.load import keep_sending, pipeline
from benchmarks.processes import cpu_seconds
from benchmarks.registry import Pair, benchmark
from benchmarks.store import varied_bodies
from spark_rocket.model import Message
from spark_rocket.protocol.record.batch_body import encode_batch_body

SECONDS = 1.0
SIZES = {"": 128, "1k": 1024}
BATCH_CONNECTIONS = 4
STORED = {128: 400_000, 1024: 100_000}
PULLED = 32
PULLED_EXTRA = 216  # bytes of a stored message beside its body
SPARK_REQUESTS, SPARK_BATCH = 10, 4_000
LENGTHS = {"small": (100, 199), "lines": (40, 900), "1k": (512, 1536)}

_by_cpu = partial(benchmark, unit="messages/s of CPU", ceiling="an echo server for the same frames")


def _pair(lab: Lab, work: Callable[[int], dict[str, Any]], messages: int, topic: str = "", response: int = 0) -> Pair:
    """Compare what the requests of ``work`` (of ``messages`` messages each) cost the broker and an echo server.

    With a topic, the broker's time includes its index.
    """
    echo_port, echo_pid = lab.own_echo(response)

    def rate(port: int, pid: int, topic: str) -> float:
        before = cpu_seconds(pid)
        requests = int(work(port)["requests"])
        if topic:
            lab.settle(topic)
        return requests * messages / max(cpu_seconds(pid) - before, 0.01)

    return Pair(lambda: rate(lab.broker_port, lab.cluster.pid, topic), lambda: rate(echo_port, echo_pid, ""))


def _sending(requests: list[bytes], conns: int) -> Callable[[int], dict[str, Any]]:
    return lambda port: keep_sending(port, requests, conns, seconds=SECONDS, requests=1 << 60)


def _sends(size: int, lab: Lab, conns: str) -> Pair:
    """Single sends, one in flight on each connection."""
    topic = lab.topic(f"wire-send-{size}-{conns}")
    requests = [frames.send(topic, queue, frames.payload(size)) for queue in range(QUEUES)]
    return _pair(lab, _sending(requests, int(conns)), 1, topic)


def _batches(size: int, lab: Lab, count: str) -> Pair:
    """Batches of equal messages from four connections."""
    topic = lab.topic(f"wire-batch-{size}-{count}")
    requests = [frames.send_batch(topic, queue, size, int(count)) for queue in range(QUEUES)]
    return _pair(lab, _sending(requests, BATCH_CONNECTIONS), int(count), topic)


def _pulls(size: int, lab: Lab, conns: str) -> Pair:
    """Pulls of 32 messages each, in the order of the queues' offsets."""
    topic = lab.filled(size, STORED[size])
    ends = range(0, STORED[size] // QUEUES - PULLED, PULLED)
    requests = [frames.pull(topic, queue, offset) for offset in ends for queue in range(QUEUES)]
    return _pair(lab, _sending(requests, int(conns)), PULLED, response=PULLED * (size + PULLED_EXTRA))


for suffix, size in SIZES.items():
    _by_cpu(*(f"wire.send{suffix}.{conns}" for conns in (1, 16, 64)))(partial(_sends, size))
    _by_cpu(*(f"wire.batch{suffix}.{count}" for count in (100, 500, 1000)))(partial(_batches, size))
    _by_cpu(*(f"wire.pull{suffix}.{conns}" for conns in (1, 4)))(partial(_pulls, size))


@_by_cpu("wire.pipeline.64")
def pipelined_sends(lab: Lab, in_flight: str) -> Pair:
    """Single sends on one connection."""
    topic = lab.topic("wire-pipeline")
    requests = [frames.send(topic, queue, frames.payload(128)) for queue in range(QUEUES)]
    return _pair(lab, lambda port: pipeline(port, requests, int(in_flight), seconds=SECONDS), 1, topic)


@_by_cpu("wire.spark.small", "wire.spark.lines", "wire.spark.json", "wire.spark.1k")
def spark_batches(lab: Lab, rows: str) -> Pair:
    """Batches of Spark's size with bodies of 100 to 199, 40 to 900, 512 to 1,536 bytes, or JSON of 8 fields."""
    topic = lab.topic(f"wire-spark-{rows}")
    bodies = _json_bodies() if rows == "json" else varied_bodies(*LENGTHS[rows], batches=QUEUES, messages=SPARK_BATCH)
    requests = [frames.batch_of(topic, queue, body) for queue, body in enumerate(bodies)]
    work = partial(keep_sending, frames_of=requests, conns=2, seconds=60, requests=SPARK_REQUESTS)
    return _pair(lab, work, SPARK_BATCH, topic)


def _json_bodies() -> list[bytes]:
    rng = random.Random(7)

    def message(number: int) -> Message:
        row = {
            "carrier": rng.choice(["UA", "AA", "DL"]),
            "flight": number,
            "origin": rng.choice(["EWR", "JFK", "LGA"]),
            "dest": rng.choice(["IAH", "MIA", "ATL"]),
            "distance": rng.randrange(100, 5000),
            "delay": rng.choice([None, rng.randrange(-60, 600)]),
            "air_time": rng.random() * 400,
            "canceled": rng.random() < 0.02,
        }
        properties = {"TAGS": str(row["carrier"]), "KEYS": f"{number}", "UNIQ_KEY": f"{rng.getrandbits(128):032X}"}
        return Message("flights", json.dumps(row).encode(), properties)

    return [bytes(encode_batch_body([message(number) for number in range(SPARK_BATCH)])) for _ in range(QUEUES)]
