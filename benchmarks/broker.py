"""The broker under a cheap load, compared with a server that only responds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks import frames
from benchmarks.lab import QUEUES, Lab
from benchmarks.load import keep_sending
from benchmarks.processes import cpu_seconds
from benchmarks.registry import Pair, benchmark
from benchmarks.store import varied_bodies
from benchmarks.store_disk import fdatasync_rate

SECONDS = 1.5
RATE, MESSAGES = 1000, 2000
SPARK_BATCHES, SPARK_BATCH = 25, 4_000


@benchmark("broker.send.1", "broker.send.16", unit="messages/s", ceiling="an echo server for the same frames")
def single_sends(lab: Lab, conns: str) -> Pair:
    topic = lab.topic(f"send-{conns}")

    def sends(port: int) -> float:
        done = lab.load("send", port=port, topic=topic, size=128, conns=int(conns), seconds=SECONDS)
        return float(done["requests"] / done["seconds"])

    return Pair(lambda: sends(lab.broker_port), lambda: sends(lab.echo_port()))


@benchmark("broker.sync.1", "broker.sync.16", unit="messages/s", ceiling="fdatasync of as many records at once")
def synchronous_sends(lab: Lab, conns: str) -> Pair:
    """Every response waits for the disk."""
    port = int(lab.sync_cluster.broker_address.rpartition(":")[2])
    topic = f"sync-{conns}"
    lab.sync_cluster.create_topic(topic)

    def sends() -> float:
        done = lab.load("send", port=port, topic=topic, size=128, conns=int(conns), seconds=SECONDS)
        return float(done["requests"] / done["seconds"])

    return Pair(sends, lambda: fdatasync_rate(lab.scratch / "bare", int(conns)))


@benchmark("broker.batch500", unit="messages/s", ceiling="an echo server for the same frames")
def batch_sends(lab: Lab, _: str) -> Pair:
    topic = lab.topic("batch500")

    def sends(port: int) -> float:
        done = lab.load("batch", port=port, topic=topic, size=128, conns=4, seconds=SECONDS)
        return float(done["messages"] / done["seconds"])

    return Pair(lambda: sends(lab.broker_port), lambda: sends(lab.echo_port()))


@benchmark(
    "broker.cpu.varied",
    unit="messages/s of CPU",
    ceiling="the same with bodies of 150 bytes (not a ceiling)",
    target=0.67,
)
def cpu_of_varied_batches(lab: Lab, _: str) -> Pair:
    """Batches of Spark's size, with bodies of 100 to 199 bytes, by the CPU of the broker's process with its index."""

    def rate_of(topic: str, least: int, most: int) -> Callable[[], float]:
        lab.topic(topic)
        bodies = varied_bodies(least, most, batches=QUEUES, messages=SPARK_BATCH)
        requests = [frames.batch_of(topic, queue, body) for queue, body in enumerate(bodies)]

        def rate() -> float:
            before = cpu_seconds(lab.cluster.pid)
            keep_sending(lab.broker_port, requests, 2, seconds=60, requests=SPARK_BATCHES)
            lab.settle(topic)
            return SPARK_BATCHES * SPARK_BATCH / (cpu_seconds(lab.cluster.pid) - before)

        return rate

    return Pair(rate_of("cpu-varied", 100, 199), rate_of("cpu-equal", 150, 150))


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


def lateness(lab: Lab, kind: str, **delay: str) -> Pair:
    """Messages delayed by a second or more, while four connections send others at full speed."""
    topic, beside = lab.topic(f"{kind}-due", queues=1), lab.topic(f"{kind}-beside")
    settings: dict[str, str | int] = {"topic": topic, "rate": RATE, "count": MESSAGES, "size": 128}

    def p99(**more: str) -> float:
        with ThreadPoolExecutor(1) as pool:
            seconds = MESSAGES / RATE + (1.5 if more else 0)
            load = pool.submit(lab.load, "send", port=lab.broker_port, topic=beside, size=128, conns=4, seconds=seconds)
            found = float(lab.load("longpoll", port=lab.broker_port, **settings, **more)["p99"])
            load.result()
        return found

    return Pair(lambda: p99(**delay), p99)


@benchmark(
    "broker.delay.p99",
    unit="ms",
    ceiling="messages without a delay, from send to pull under the same load",
    lower_is_better=True,
)
def delay_level(lab: Lab, _: str) -> Pair:
    return lateness(lab, "level", DELAY="1")


@benchmark(
    "broker.timer.p99",
    unit="ms",
    ceiling="messages without a delay, from send to pull under the same load",
    lower_is_better=True,
)
def timer(lab: Lab, _: str) -> Pair:
    return lateness(lab, "timer", TIMER_DELAY_MS="1200")
