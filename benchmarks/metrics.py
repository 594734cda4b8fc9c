"""The cost of metrics: sends to one broker while it is scraped every second, compared with no scrapes."""

from __future__ import annotations

import threading
import time
import urllib.request
from contextlib import AbstractContextManager

from benchmarks.lab import Lab, beside
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer
from spark_rocket.model import Message

SIZE = 128
SENT = {"sync": 15_000, "batches": 1_500_000}
LOT = 500
TOPICS = 200


def _send(name_server: str, topic: str, how: str) -> float:
    """Return messages per second, from one thread."""
    count, message = SENT[how], Message(topic, b"x" * SIZE)
    with Producer(name_server=name_server, send_timeout=30) as producer:
        producer.send(message)
        begun = time.perf_counter()
        if how == "sync":
            for _ in range(count):
                producer.send(message)
        else:
            for future in [producer.send_async([message] * LOT) for _ in range(count // LOT)]:
                future.result()
        return count / (time.perf_counter() - begun)


def _scraped(url: str) -> AbstractContextManager[None]:
    """Scrape /metrics at once and then every second."""

    def scrape(stop: threading.Event) -> None:
        while True:
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
                response.read()
            if stop.wait(1.0):
                return

    return beside(scrape)


@benchmark("metrics.send.sync", "metrics.send.batches", unit="messages/s", ceiling="the same without scrapes")
def send(lab: Lab, how: str) -> Pair:
    cluster = lab.metrics_cluster
    topic = f"metrics-{how}"
    cluster.create_topic(topic)
    with Producer(name_server=cluster.name_server) as producer:
        for number in range(TOPICS):
            producer.send(Message(f"metrics-{number}", b"x"))

    def scraped() -> float:
        with _scraped(cluster.metrics_url):
            return _send(cluster.name_server, topic, how)

    return Pair(scraped, lambda: _send(cluster.name_server, topic, how))
