"""A broker with many idle clients, and a broker with more load than it can serve."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.testing import LocalCluster

IDLE, HELD = 10_000, 1_000
RATE, MESSAGES = 200, 1_000
SIZE = 128
FLOODERS = 64
TIMES = 10
BEFORE, FLOOD, AFTER = 1.5, 5.0, 6.0  # seconds
WINDOW = 0.2  # seconds per evaluation window
NORMAL = 3.0  # factor of the delay before the flood
LEAST = 5e-3  # seconds that count as no delay on a shared machine


def port_of(cluster: LocalCluster) -> int:
    return int(cluster.broker_address.rpartition(":")[2])


def crowd(lab: Lab) -> tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]:
    """10,000 idle connections and 1,000 held pulls; 200 messages/s go to any of the pulls."""
    cluster = lab.fresh_cluster
    topic = cluster.create_topic("crowd", HELD)
    echo, echo_pid = lab.own_echo()
    settings: dict[str, Any] = {"idle": IDLE, "held": HELD, "rate": RATE, "count": MESSAGES}
    return (
        lambda: lab.overload_load("idle", port=port_of(cluster), topic=topic, size=SIZE, pid=cluster.pid, **settings),
        lambda: lab.overload_load("echoes", port=echo, pid=echo_pid, **settings),
    )


@benchmark("idle.10000.p99", unit="ms", ceiling="an echo with as many connections", lower_is_better=True)
def delivery(lab: Lab, _: str) -> Pair:
    """The slowest of a hundred messages, from just before it is sent until a held pull returns it."""
    value, ceiling = crowd(lab)
    return Pair(lambda: float(value()["p99"]), lambda: float(ceiling()["p99"]))


@benchmark("idle.10000.MiB", unit="MiB", ceiling="an echo with as many connections", lower_is_better=True)
def crowd_memory(lab: Lab, _: str) -> Pair:
    """The peak memory: of broker and name server, or of the echo server."""
    value, ceiling = crowd(lab)
    return Pair(lambda: float(value()["MiB"]), lambda: float(ceiling()["MiB"]))


def flooded(lab: Lab, port: int, pid: int, topic: str) -> dict[str, float]:
    """Send ten times the capacity of a server from 64 connections, with a well-behaved client at the same time."""
    usual = lab.load("send", port=port, topic=topic, size=SIZE, conns=16, seconds=1.0)
    rate = int(TIMES * usual["requests"] / usual["seconds"])
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(
            lab.overload_load, "probe", port=port, topic=topic, seconds=BEFORE + FLOOD + AFTER + 2.0, pid=pid
        )
        threading.Event().wait(BEFORE)
        flood = lab.overload_load("flood", port=port, topic=topic, size=SIZE, conns=FLOODERS, rate=rate, seconds=FLOOD)
        return judge(probe.result(), flood)


def judge(probe: dict[str, Any], flood: dict[str, Any]) -> dict[str, float]:
    """Evaluate the two reports of a flood."""
    end, begin = flood["end"], flood["end"] - flood["seconds"]
    before = [took for asked, took, _, _ in probe["seen"] if asked < begin]
    usual = max(NORMAL * median(before), LEAST)
    windows: dict[int, list[tuple[float, int]]] = {}
    for asked, took, _, code in probe["seen"]:
        if asked + took > end:
            windows.setdefault(int((asked + took - end) / WINDOW), []).append((took, code))
    bad = [
        number
        for number, responses in windows.items()
        if median(took for took, _ in responses) > usual or any(code for _, code in responses)
    ]

    def p99(kind: int) -> float:
        took = sorted(took for asked, took, which, _ in probe["seen"] if which == kind and begin <= asked <= end)
        return float(took[min(len(took) - 1, len(took) * 99 // 100)]) * 1000

    with_response = flood["ok"] + flood["busy"]
    return {
        "heartbeat": p99(0),
        "send": p99(1),
        "MiB": probe["MiB"],
        "busy": 100 * flood["busy"] / with_response if with_response else 0.0,
        "unanswered": flood["sent"] - with_response,
        "ok": flood["ok"] / flood["seconds"],
        "offered": flood["offered"] / flood["seconds"],
        "sent": flood["sent"] / flood["seconds"],
        "normal": (max(bad) + 1) * WINDOW if bad else 0.0,
    }


@benchmark(
    "flood.heartbeat",
    "flood.send",
    "flood.normal",
    "flood.MiB",
    "flood.busy",
    unit="ms, s, MiB, %",
    ceiling="an echo under ten times its capacity",
    lower_is_better=True,
)
def flood(lab: Lab, figure: str) -> Pair:
    """p99 of a well-behaved client's heartbeats and sends (ms), seconds until recovery, memory, rejections."""
    cluster = lab.fresh_cluster
    topic = cluster.create_topic("flood", 4)
    echo, echo_pid = lab.own_echo()
    return Pair(
        lambda: flooded(lab, port_of(cluster), cluster.pid, topic)[figure],
        lambda: flooded(lab, echo, echo_pid, topic)[figure],
    )
