"""Two brokers beside one: what both take together, and which limit that met."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.system import cores

SECONDS = 2.0
SIZE, CONNECTIONS = 128, 4
TOPIC = "two"


def _taken(lab: Lab, brokers: int) -> float:
    """Messages a second that so many brokers take, each from a client process of its own, batches of 500."""

    def load(port: int) -> float:
        done = lab.load("batch", port=port, topic=TOPIC, size=SIZE, conns=CONNECTIONS, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    ports = [broker.port for broker in lab.two_brokers.brokers[:brokers]]  # past the relays
    with ThreadPoolExecutor(brokers) as pool:
        return sum(pool.map(load, ports))


@benchmark(
    "cluster.two", unit="messages/s", ceiling="twice what one of them takes alone; see cluster.cores for the load"
)
def two(lab: Lab, _: str) -> Pair:
    lab.two_brokers.create_topic(TOPIC, queues=CONNECTIONS)
    return Pair(lambda: _taken(lab, 2), lambda: 2 * _taken(lab, 1))


@benchmark("cluster.cores", unit="cores", ceiling="the machine's cores: at 1 they are what limits cluster.two")
def busy(lab: Lab, _: str) -> Pair:
    """How many cores are busy while both brokers take what they can, everybody's work counted."""
    lab.two_brokers.create_topic(TOPIC, queues=CONNECTIONS)

    def used() -> float:
        idle, begun = _idle_seconds(), time.perf_counter()
        _taken(lab, 2)
        elapsed = time.perf_counter() - begun
        return cores() - (_idle_seconds() - idle) / elapsed

    return Pair(used, lambda: float(cores()))


def _idle_seconds() -> float:
    """Of all cores together, since the machine started; waiting for the disk is idle too."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / 100
