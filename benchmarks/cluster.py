"""Two brokers compared with one: their total rate, and whether cores limit it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.common.system import cores

SECONDS = 2.0
SIZE, CONNECTIONS = 128, 4
TOPIC = "two"


def _taken(lab: Lab, brokers: int) -> float:
    """Return messages per second stored by ``brokers`` brokers, each with its own client process, batches of 500."""

    def load(port: int) -> float:
        done = lab.load("batch", port=port, topic=TOPIC, size=SIZE, conns=CONNECTIONS, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    ports = [broker.port for broker in lab.two_brokers.brokers[:brokers]]  # bypass the relays
    with ThreadPoolExecutor(brokers) as pool:
        return sum(pool.map(load, ports))


@benchmark("cluster.two", unit="messages/s", ceiling="twice the rate of one broker; see cluster.cores for the load")
def two(lab: Lab, _: str) -> Pair:
    lab.two_brokers.create_topic(TOPIC, queues=CONNECTIONS)
    return Pair(lambda: _taken(lab, 2), lambda: 2 * _taken(lab, 1))


@benchmark("cluster.cores", unit="cores", ceiling="the machine's cores: at 1, they limit cluster.two")
def busy(lab: Lab, _: str) -> Pair:
    """The number of busy cores at full load of both brokers, including the clients."""
    lab.two_brokers.create_topic(TOPIC, queues=CONNECTIONS)

    def used() -> float:
        idle, begun = _idle_seconds(), time.perf_counter()
        _taken(lab, 2)
        elapsed = time.perf_counter() - begun
        return cores() - (_idle_seconds() - idle) / elapsed

    return Pair(used, lambda: float(cores()))


def _idle_seconds() -> float:
    """Return the idle time of all cores since the machine started, including waits for the disk."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / 100
