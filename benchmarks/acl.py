"""The cost of access control: the same client on a cluster that checks every request, and on one without checks.

The client signs and the broker verifies; on two cores both affect the rate. The rows of CPU measure the broker alone,
for both kinds of accounts: a bare client sends frames that were signed before, in the same way with and without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks import frames
from benchmarks.lab import Lab
from benchmarks.load import pipeline
from benchmarks.processes import cpu_seconds
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster

SIZE = 128
SENT = {"sync": 10_000, "async": 40_000, "accumulated": 200_000}
PULLS = 4_000
KEYS: dict[str, Any] = {"access_key": "bench-key", "secret_key": "bench-secret"}

IN_FLIGHT = 64
SECONDS = 1.5
USER = {"access_key": "bench-user", "secret_key": "bench-user-secret"}
PERMISSIONS = {"Topic:*": ["Pub", "Sub"], "Group:*": ["Sub"]}

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


@cache
def with_account(lab: Lab, acl: str) -> LocalCluster:
    """A cluster with an account that is not an administrator."""
    cluster = lab.keep(LocalCluster(data_dir=lab.folder / f"acl-{acl}", acl=acl, **KEYS))
    cluster.set_account(**USER, permissions=PERMISSIONS)
    return cluster


@benchmark(
    "acl.cpu.send1",
    "acl.cpu.send2",
    "acl.cpu.pull1",
    "acl.cpu.pull2",
    unit="requests/s of CPU",
    ceiling="the same without access control",
    target=0.9,
)
def cpu(lab: Lab, what: str) -> Pair:
    """Sends of 128 bytes, and pulls of 32 messages, with ACL 1.0 or 2.0."""
    guarded_cluster = with_account(lab, {"1": "1.0", "2": "2.0"}[what[-1]])
    topic = f"acl-cpu-{what}"

    def rate_of(cluster: LocalCluster, signer: RequestSigner | None) -> Callable[[], float]:
        cluster.create_topic(topic, 1)
        port = int(cluster.broker_address.rpartition(":")[2])
        send, pull = (
            _signed(frame, signer) for frame in (frames.send(topic, 0, frames.payload(SIZE)), frames.pull(topic, 0, 0))
        )
        pipeline(port, [send], 32, seconds=0)
        frame = send if what.startswith("send") else pull

        def rate() -> float:
            before = cpu_seconds(cluster.pid)
            done = pipeline(port, [frame], IN_FLIGHT, seconds=SECONDS)["requests"]
            return float(done / (cpu_seconds(cluster.pid) - before))

        return rate

    return Pair(rate_of(guarded_cluster, RequestSigner(Credentials(*USER.values()))), rate_of(lab.cluster, None))


def _signed(frame: bytes, signer: RequestSigner | None) -> bytes:
    if signer is None:
        return frame
    request = RemotingCommand.decode(memoryview(frame)[4:])
    signer.sign(request)
    return request.encode()
