"""The gRPC endpoint under a lean client's load, compared with empty handlers on plain grpc.aio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lab import Lab
from benchmarks.processes import cpu_seconds
from benchmarks.registry import Pair, benchmark

SECONDS = 1.5
CLIENTS = 32
SIZE = 128
BACKLOG = 200_000
HELD = 500
RATE, MESSAGES = 200, 600
PROBED, SETTLING = 4.0, 0.5  # seconds
IDLE = 5.0  # seconds


@benchmark("grpc.send", "grpc.send.100", unit="messages/s", ceiling="an empty grpc.aio handler")
def sends(lab: Lab, messages: str) -> Pair:
    """32 clients, each with one request in flight, of one message or of 100."""
    count = int(messages) if messages.isdigit() else 1
    topic = lab.topic(f"grpc-send-{count}")
    served, _pid = lab.proxy(lab.cluster)
    empty, _empty_pid = lab.empty_grpc(SIZE)

    def measure(port: int) -> float:
        done = lab.grpc_load("send", port=port, topic=topic, size=SIZE, conns=CLIENTS, count=count, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: measure(served), lambda: measure(empty))


@benchmark("grpc.receive", unit="messages/s", ceiling="an empty grpc.aio handler")
def receives(lab: Lab, _: str) -> Pair:
    """A backlog, received in requests of 32 messages and acked, by a new group each time."""
    topic = lab.filled(SIZE, BACKLOG)
    served, _pid = lab.proxy(lab.cluster)
    empty, _empty_pid = lab.empty_grpc(SIZE)
    runs = iter(range(1_000))

    def measure(port: int) -> float:
        group = f"grpc-receive-{next(runs)}"
        done = lab.grpc_load("receive", port=port, topic=topic, group=group, conns=4, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: measure(served), lambda: measure(empty))


@benchmark("grpc.beside.p99", unit="ms", ceiling="the same broker without gRPC clients", lower_is_better=True)
def beside(lab: Lab, _: str) -> Pair:
    """A classic producer's 100 sends per second, while gRPC requests saturate the proxy."""
    topic = lab.topic("grpc-beside")
    served, _pid = lab.proxy(lab.cluster)

    def p99() -> float:
        settings = {"port": lab.broker_port, "topic": topic, "seconds": PROBED, "pid": lab.cluster.pid}
        seen = lab.overload_load("probe", **settings)["seen"]
        took = sorted(took for _, took, kind, _ in seen if kind == 1)
        return float(took[len(took) * 99 // 100]) * 1000

    def saturated() -> float:
        with ThreadPoolExecutor(1) as pool:
            seconds = PROBED + 2 * SETTLING
            flood = pool.submit(
                lab.grpc_load, "send", port=served, topic=topic, size=SIZE, conns=CLIENTS, count=1, seconds=seconds
            )
            threading.Event().wait(SETTLING)
            found = p99()
            flood.result()
        return found

    return Pair(saturated, p99)


@benchmark(
    "grpc.idle.MiB",
    "grpc.idle.cpu",
    unit="MiB, % of a core",
    ceiling="an empty grpc.aio handler",
    lower_is_better=True,
)
def idle(lab: Lab, figure: str) -> Pair:
    """A proxy without clients: its memory, and its CPU use."""
    _port, served = lab.proxy(lab.cluster)
    _empty_port, empty = lab.empty_grpc(SIZE)

    def measure(pid: int) -> float:
        if figure == "MiB":
            return status_of(pid, "VmRSS")
        before = cpu_seconds(pid)
        threading.Event().wait(IDLE)
        return max((cpu_seconds(pid) - before) / IDLE * 100, 0.01)

    return Pair(lambda: measure(served), lambda: measure(empty))


def status_of(pid: int, name: str) -> float:
    """Return a size from a process's status, in MiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def held_polls(lab: Lab) -> tuple[Callable[[], dict[str, float]], Callable[[], dict[str, float]]]:
    """500 clients hold a poll each; 200 messages/s go to any of the polls.

    Measures delivery times and the peak memory of the proxy or of the empty handlers.
    """
    topic = lab.fresh_cluster.create_topic("held", 4)
    served, served_pid = lab.proxy(lab.fresh_cluster)
    empty, empty_pid = lab.empty_grpc(SIZE, hold=True)
    settings = {"conns": HELD, "rate": RATE, "count": MESSAGES, "size": SIZE}

    def measure(port: int, pid: int) -> dict[str, float]:
        found = lab.grpc_load("held", port=port, topic=topic, group="holders", **settings)
        return {**found, "MiB": status_of(pid, "VmHWM")}

    return lambda: measure(served, served_pid), lambda: measure(empty, empty_pid)


@benchmark("grpc.held.500", unit="ms", ceiling="an empty grpc.aio handler", lower_is_better=True)
def delivery(lab: Lab, _: str) -> Pair:
    """The slowest of a hundred messages, from just before it is sent until it is received."""
    value, ceiling = held_polls(lab)
    return Pair(lambda: value()["p99"], lambda: ceiling()["p99"])


@benchmark("grpc.memory.500", unit="MiB", ceiling="an empty grpc.aio handler", lower_is_better=True)
def memory(lab: Lab, _: str) -> Pair:
    value, ceiling = held_polls(lab)
    return Pair(lambda: value()["MiB"], lambda: ceiling()["MiB"])
