"""The cost of TLS: the same client with and without TLS, to one server that accepts both."""

from __future__ import annotations

import time

from benchmarks.client import pull_into_columns
from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer, Reader, TlsSettings
from spark_rocket.model import Message

SIZE = 128
SENT = {"sync": 8_000, "async": 40_000, "batches": 600_000}
LOT = 500
PULLED = 500_000


def _send(name_server: str, topic: str, how: str, tls: TlsSettings | None) -> float:
    """Return messages per second, from one thread."""
    count = SENT[how]
    message = Message(topic, b"x" * SIZE)
    with Producer(name_server=name_server, tls=tls, send_timeout=30) as producer:
        producer.send(message)
        begun = time.perf_counter()
        if how == "sync":
            for _ in range(count):
                producer.send(message)
        else:
            lot = message if how == "async" else [message] * LOT
            waiting = [producer.send_async(lot) for _ in range(count if how == "async" else count // LOT)]
            for future in waiting:
                future.result()
        return count / (time.perf_counter() - begun)


@benchmark(
    "tls.send.sync",
    "tls.send.async",
    "tls.send.batches",
    unit="messages/s",
    ceiling="the same without TLS; batches are of 500",
)
def send(lab: Lab, how: str) -> Pair:
    cluster = lab.tls_cluster
    topic = f"tls-{how}"
    cluster.create_topic(topic)
    return Pair(
        lambda: _send(cluster.name_server, topic, how, cluster.tls),
        lambda: _send(cluster.name_server, topic, how, None),
    )


@benchmark("tls.pull", unit="messages/s", ceiling="the same without TLS")
def pull(lab: Lab, _: str) -> Pair:
    cluster = lab.tls_cluster
    topic = "tls-pull"
    cluster.create_topic(topic)
    with Producer(name_server=cluster.name_server, send_timeout=30) as producer:
        lot = [Message(topic, b"x" * SIZE)] * LOT
        for _batch in range(PULLED // LOT // 4):
            for future in [producer.send_async(lot) for _ in range(4)]:
                future.result()

    def pulled(tls: TlsSettings | None) -> float:
        with Reader(cluster.name_server, tls=tls) as reader:
            queues = reader.queues(topic)
            begun = time.perf_counter()
            rows = sum(pull_into_columns(reader, queue)[0] for queue in queues)
            elapsed = time.perf_counter() - begun
        assert rows == PULLED
        return PULLED / elapsed

    return Pair(lambda: pulled(cluster.tls), lambda: pulled(None))
