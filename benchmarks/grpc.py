"""The gRPC endpoint under a lean client's load, against handlers that do nothing on the same HTTP/2 server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.testing import LocalCluster

SECONDS = 1.5
CLIENTS = 16
SIZE = 128
BACKLOG = 200_000
HELD = 500
RATE, MESSAGES = 200, 600


def endpoint(cluster: LocalCluster) -> int:
    return int(cluster.grpc_endpoint.rpartition(":")[2])


@benchmark("grpc.send", "grpc.send.100", unit="messages/s", ceiling="an empty handler on the same server")
def sends(lab: Lab, messages: str) -> Pair:
    """16 clients, each with one request under way: of one message, or of 100."""
    count = int(messages) if messages.isdigit() else 1
    topic = lab.topic(f"grpc-send-{count}")
    empty, _ = lab.empty_grpc(SIZE)

    def measure(port: int) -> float:
        done = lab.grpc_load("send", port=port, topic=topic, size=SIZE, conns=CLIENTS, count=count, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: measure(endpoint(lab.cluster)), lambda: measure(empty))


@benchmark("grpc.receive", unit="messages/s", ceiling="an empty handler on the same server")
def receives(lab: Lab, _: str) -> Pair:
    """A backlog received in requests of 32 and acked, by a new group each time."""
    topic = lab.filled(SIZE, BACKLOG)
    empty, _pid = lab.empty_grpc(SIZE)
    runs = iter(range(1_000))

    def measure(port: int) -> float:
        group = f"grpc-receive-{next(runs)}"
        done = lab.grpc_load("receive", port=port, topic=topic, group=group, conns=4, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: measure(endpoint(lab.cluster)), lambda: measure(empty))


def held_polls(lab: Lab) -> tuple[Callable[[], dict[str, float]], Callable[[], dict[str, float]]]:
    """500 clients hold a poll each; 200 messages/s, each for whichever of them.

    How long messages take, and the most memory that the whole process has had: broker and name server, or the handlers.
    """
    topic = lab.fresh_cluster.create_topic("held", 4)
    empty, empty_pid = lab.empty_grpc(SIZE, hold=True)
    settings = {"conns": HELD, "rate": RATE, "count": MESSAGES, "size": SIZE}

    def measure(port: int, pid: int) -> dict[str, float]:
        found = lab.grpc_load("held", port=port, topic=topic, group="holders", **settings)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {**found, "MiB": int(status["VmHWM"].split()[0]) / 1024}

    return lambda: measure(endpoint(lab.fresh_cluster), lab.fresh_cluster.pid), lambda: measure(empty, empty_pid)


@benchmark("grpc.held.500", unit="ms", ceiling="an empty handler on the same server", lower_is_better=True)
def delivery(lab: Lab, _: str) -> Pair:
    """The slowest of a hundred messages, from just before it is sent until it is received."""
    value, ceiling = held_polls(lab)
    return Pair(lambda: value()["p99"], lambda: ceiling()["p99"])


@benchmark("grpc.memory.500", unit="MiB", ceiling="an empty handler on the same server", lower_is_better=True)
def memory(lab: Lab, _: str) -> Pair:
    value, ceiling = held_polls(lab)
    return Pair(lambda: value()["MiB"], lambda: ceiling()["MiB"])
