"""The cost of access control: the same client on a cluster that checks every request, and on one without checks.

The client signs and the broker verifies; on two cores both affect the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

SIZE = 128
SENT = {"sync": 10_000, "async": 40_000, "accumulated": 200_000}
PULLS = 4_000
KEYS: dict[str, Any] = {"access_key": "bench-key", "secret_key": "bench-secret"}

Run = Callable[[LocalCluster, dict[str, Any]], float]


@cache
def guarded(lab: Lab) -> LocalCluster:
    return lab.keep(LocalCluster(data_dir=lab.folder / "guarded", **KEYS))


@benchmark(
    "acl.send.sync",
    "acl.send.async",
    "acl.send.accumulated",
    unit="messages/s",
    ceiling="the same without access control",
)
def sends(lab: Lab, how: str) -> Pair:
    topic = f"acl-send-{how}"

    def sent(cluster: LocalCluster, keys: dict[str, Any]) -> float:
        together = how == "accumulated"
        with Producer(name_server=cluster.name_server, auto_batch=together, send_timeout=30, **keys) as producer:
            producer.send(Message(topic, b"x" * SIZE))
            begun = time.perf_counter()
            if how == "sync":
                for _ in range(SENT[how]):
                    producer.send(Message(topic, b"x" * SIZE))
            else:
                for future in [producer.send_async(Message(topic, b"x" * SIZE)) for _ in range(SENT[how])]:
                    future.result()
            return SENT[how] / (time.perf_counter() - begun)

    return _pair(lab, topic, sent)


@benchmark("acl.pull", unit="pulls/s", ceiling="the same without access control")
def pulls(lab: Lab, _: str) -> Pair:
    """Sequential pulls of 32 messages each."""
    topic = "acl-pull"

    def pulled(cluster: LocalCluster, keys: dict[str, Any]) -> float:
        with Reader(cluster.name_server, **keys) as reader:
            (queue,) = reader.queues(topic)
            reader.pull(queue, 0, max_msgs=32)
            begun = time.perf_counter()
            for _ in range(PULLS):
                reader.pull(queue, 0, max_msgs=32)
            return PULLS / (time.perf_counter() - begun)

    def fill(cluster: LocalCluster, keys: dict[str, Any]) -> None:
        with Producer(name_server=cluster.name_server, **keys) as producer:
            producer.send([Message(topic, b"x" * SIZE) for _ in range(64)])

    pair = _pair(lab, topic, pulled)
    fill(lab.cluster, {})
    fill(guarded(lab), KEYS)
    return pair


def _pair(lab: Lab, topic: str, measure: Run) -> Pair:
    for cluster in (lab.cluster, guarded(lab)):
        cluster.create_topic(topic, 1)
    return Pair(lambda: measure(guarded(lab), KEYS), lambda: measure(lab.cluster, {}))
