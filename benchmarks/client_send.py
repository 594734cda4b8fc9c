"""The send rate of a producer on one thread, compared with the same frames from a lean client to an echo server."""

from __future__ import annotations

import time

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer
from spark_rocket.model import Message

SIZE = 128
MESSAGES = {"sync": 10_000, "async": 40_000, "accumulated": 200_000}
SECONDS = 2


@benchmark(
    "client.send.sync",
    "client.send.async",
    "client.send.accumulated",
    unit="messages/s",
    ceiling="prebuilt frames to an echo server, sent like the client: one by one, 16 at a time, or batches of 500",
)
def sends(lab: Lab, how: str) -> Pair:
    topic = lab.topic(f"client-send-{how}")
    body = b"x" * SIZE

    def sent() -> float:
        count = MESSAGES[how]
        with Producer(
            name_server=lab.cluster.name_server, auto_batch=how == "accumulated", send_timeout=30
        ) as producer:
            producer.send(Message(topic, body))
            begun = time.perf_counter()
            if how == "sync":
                for _ in range(count):
                    producer.send(Message(topic, body))
            else:
                for future in [producer.send_async(Message(topic, body)) for _ in range(count)]:
                    future.result()
            return count / (time.perf_counter() - begun)

    def echoed() -> float:
        if how == "accumulated":
            done = lab.load("batch", port=lab.echo_port(), topic=topic, size=SIZE, conns=1, seconds=SECONDS)
        else:
            conns = 1 if how == "sync" else 16
            done = lab.load("send", port=lab.echo_port(), topic=topic, size=SIZE, conns=conns, seconds=SECONDS)
        return float(done["messages" if how == "accumulated" else "requests"] / done["seconds"])

    return Pair(sent, echoed)
