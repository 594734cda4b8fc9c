"""The broker under a load that costs little itself, against a server that only answers."""

from __future__ import annotations

from benchmarks.lab import Lab
from benchmarks.registry import Pair, benchmark

SECONDS = 1.5
RATE, MESSAGES = 1000, 2000


@benchmark("broker.send.1", "broker.send.16", unit="messages/s", ceiling="an echo server for the same frames")
def single_sends(lab: Lab, conns: str) -> Pair:
    topic = lab.topic(f"send-{conns}")

    def sends(port: int) -> float:
        done = lab.load("send", port=port, topic=topic, size=128, conns=int(conns), seconds=SECONDS)
        return float(done["requests"] / done["seconds"])

    return Pair(lambda: sends(lab.broker_port), lambda: sends(lab.echo_port()))


@benchmark("broker.batch500", unit="messages/s", ceiling="an echo server for the same frames")
def batch_sends(lab: Lab, _: str) -> Pair:
    topic = lab.topic("batch500")

    def sends(port: int) -> float:
        done = lab.load("batch", port=port, topic=topic, size=128, conns=4, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: sends(lab.broker_port), lambda: sends(lab.echo_port()))


@benchmark(
    "broker.longpoll.p50",
    "broker.longpoll.p99",
    unit="ms",
    ceiling="an echo's round trip at the same rate",
    lower_is_better=True,
)
def produce_to_consume(lab: Lab, percentile: str) -> Pair:
    topic = lab.topic(f"longpoll-{percentile}", queues=1)
    settings: dict[str, str | int] = {"topic": topic, "rate": RATE, "count": MESSAGES, "size": 128}
    return Pair(
        lambda: float(lab.load("longpoll", port=lab.broker_port, **settings)[percentile]),
        lambda: float(lab.load("echo", port=lab.echo_port(), **settings)[percentile]),
    )
