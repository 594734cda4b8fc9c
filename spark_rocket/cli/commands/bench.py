"""``rocket bench …``: throughput and latency of sending and consuming, measured from this machine.

During a run, a line on stderr shows the present rate (on a terminal only). The result has rates and latencies.
Latencies are counted in buckets of about 2 %, so that memory use does not depend on the length of the run.

Exit status: 0 success, 1 failure or a failed send, 2 invalid command line.
Corresponds to org.apache.rocketmq.example.benchmark.{Producer, Consumer}.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import byte_size, json_option, seconds, whole
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import print_problem
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.units import count_text, size_text
from spark_rocket.errors import RocketError

if TYPE_CHECKING:
    from spark_rocket.client import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
    from spark_rocket.model import MessageExt

_STEP = math.log(1.02)
_BUCKETS = 1_500  # from a microsecond to about two hours
_PERCENTILES = (50, 90, 95, 99, 99.9)
_STOP_TIMEOUT_S = 30.0
_MIN_INTERVAL_S = 0.5  # between two updates of the line

topic_argument = click.argument("topic", shell_complete=complete_topics)
_seconds = click.option("--seconds", "run_seconds", type=seconds, metavar="S", help="duration (10, unless --count)")
_count = click.option("--count", type=whole(1, 10**12, "number of messages"), metavar="N", help="number of messages")


class Latencies:
    """A histogram of latencies. Thread-safety: one writer; readers may see slightly old counts."""

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self.count = 0
        self._sum = 0.0
        self._max = 0.0

    def add(self, taken: float, times: int = 1) -> None:
        micros = taken * 1e6
        bucket = int(math.log(micros) / _STEP) if micros > 1 else 0
        self._buckets[min(bucket, _BUCKETS - 1)] += times
        self.count += times
        self._sum += taken * times
        self._max = max(self._max, taken)

    def percentile(self, percent: float) -> float:
        """Return a percentile in milliseconds, at most 2 % too high."""
        wanted, seen = self.count * percent / 100, 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= wanted and seen:
                return min(math.exp((bucket + 1) * _STEP) / 1e3, self._max * 1e3)
        return 0.0

    def to_json(self) -> dict[str, float]:
        values = {f"p{percent:g}": round(self.percentile(percent), 3) for percent in _PERCENTILES}
        mean = self._sum / self.count * 1e3 if self.count else 0.0
        return {"mean": round(mean, 3), **values, "max": round(self._max * 1e3, 3)}


class Rates:
    """Shows the present rate and the totals in a line on stderr, on a terminal only."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._is_shown = sys.stderr.isatty()
        self.began = self._then = time.monotonic()
        self._before = 0

    def tick(self, count: int, size: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._then < _MIN_INTERVAL_S:
            return
        rate = (count - self._before) / (now - self._then)
        total = size_text(size)
        text = f"{now - self.began:5.0f} s  {rate:>10,.0f} messages/s  {count_text(count)} {self._verb}, {total}"
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        self._then, self._before = now, count

    def end(self) -> float:
        """Clear the line and return the duration in seconds."""
        if self._is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        return time.monotonic() - self.began


@click.group(cls=VerbGroup)
def bench() -> None:
    """Measure throughput and latency of sending and consuming, from this machine with this client."""


# --- send ------------------------------------------------------------------------------------------------------------


@bench.command("send", short_help="measure sending")
@topic_argument
@click.option("--threads", type=whole(1, 256, "number of threads"), default="4", metavar="N", help="senders (4)")
@click.option("--size", type=byte_size(4 << 20), default="128", metavar="BYTES", help="size of a body (128)")
@click.option(
    "--batch", type=whole(1, 10_000, "number of messages"), default="1", metavar="N", help="messages per request (1)"
)
@click.option("--tags", metavar="TAG", help="tag of the messages")
@click.option("--keys", "has_keys", is_flag=True, help="give each message a unique key")
@_count
@_seconds
@connection
@json_option
def send(
    link: Link,
    topic: str,
    threads: int,
    size: int,
    batch: int,
    tags: str | None,
    has_keys: bool,
    count: int | None,
    run_seconds: float | None,
    as_json: bool,
) -> int:
    """Send messages to TOPIC as fast as possible, and print throughput and latency.

    The messages stay in the topic: use a separate topic.
    """
    from spark_rocket.client import Producer
    from spark_rocket.model import Message

    body = bytes(ord("a") + i % 26 for i in range(size))
    meter = Meter("sent", count, run_seconds)
    with Producer("BENCHMARK_PRODUCER", **link.options()) as producer:

        def send_all() -> None:
            try:
                while numbers := meter.take(batch):
                    messages = [Message.of(topic, body, tags=tags, keys=f"k{n}" if has_keys else None) for n in numbers]
                    began = time.perf_counter()
                    producer.send(messages[0] if len(messages) == 1 else messages)
                    meter.add(len(messages), len(messages) * size, time.perf_counter() - began)
            except RocketError as error:
                meter.fail(error)

        senders = [threading.Thread(target=send_all) for _ in range(threads)]
        for sender in senders:
            sender.start()
        taken = meter.wait(lambda: not any(sender.is_alive() for sender in senders))
        for sender in senders:
            sender.join(_STOP_TIMEOUT_S)
    result = {"topic": topic, **meter.rates(taken), "threads": threads, "size": size, "batch": batch}
    result |= {"latencyMs": meter.latencies.to_json(), "failures": len(meter.errors)}
    _print_result(result, "sent", "Latency of a send", as_json)
    if meter.errors:
        print_problem(meter.errors[0].text)
    return 1 if meter.errors else 0


class Meter:
    """Counts messages of several threads until the end of a run: a duration, a number of messages, or a failure."""

    def __init__(self, verb: str, wanted: int | None, run_seconds: float | None) -> None:
        self.latencies = Latencies()
        self.errors: list[RocketError] = []
        self._verb = verb
        self._wanted = wanted
        self._seconds = 10.0 if run_seconds is None and wanted is None else run_seconds
        self._lock = threading.Lock()
        self._taken = 0
        self._size = 0
        self._first = self._last = 0.0
        self._ended = threading.Event()

    def take(self, most: int) -> range:
        """Reserve the numbers of the next messages to send; empty at the end."""
        with self._lock:
            if self._ended.is_set():
                return range(0)
            first, left = self._taken, most if self._wanted is None else self._wanted - self._taken
            self._taken += min(most, left)
            return range(first, self._taken)

    def add(self, messages: int, size: int, latency: float) -> None:
        """Count messages, of ``size`` bytes together; ``latency`` in seconds."""
        with self._lock:
            self._last = time.monotonic()
            self._first = self._first or self._last
            self.latencies.add(latency, messages)
            self._size += size
            if self._wanted is not None and self.latencies.count >= self._wanted:
                self._ended.set()

    def fail(self, error: RocketError) -> None:
        self.errors.append(error)
        self._ended.set()

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> float:
        """Wait for the end or Ctrl-C, and show the progress; return the duration in seconds."""
        rates = Rates(self._verb)
        try:
            while not is_over():
                left = 1.0 if self._seconds is None else rates.began + self._seconds - time.monotonic()
                if left <= 0 or self._ended.wait(min(left, 0.05)):
                    break
                rates.tick(self.latencies.count, self._size)
        except KeyboardInterrupt:
            pass
        self._ended.set()
        return max(rates.end(), 1e-6)

    def rates(self, seconds: float) -> dict[str, Any]:
        count = self.latencies.count
        return {
            "messages": count,
            "seconds": round(seconds, 3),
            "messagesPerSecond": round(count / seconds, 1),
            "bytesPerSecond": round(self._size / seconds),
        }

    def between(self, whole_run: float) -> float:
        """Return the time from the first message to the last, or the whole run for a single call."""
        return self._last - self._first if self._last > self._first else whole_run


# --- consume ---------------------------------------------------------------------------------------------------------


@bench.command("consume", short_help="measure consuming")
@topic_argument
@click.option("--group", shell_complete=complete_groups, help="consumer group (a temporary one)")
@click.option(
    "--threads", type=whole(1, 256, "number of threads"), default="20", metavar="N", help="listener threads (20)"
)
@click.option(
    "--batch", type=whole(1, 1024, "number of messages"), default="32", metavar="N", help="messages per call (32)"
)
@click.option("--from-last", is_flag=True, help="skip existing messages")
@click.option("--tags", default="*", metavar="TAGS", help="tag expression, as in 'a || b'")
@_count
@_seconds
@connection
@json_option
def consume(
    link: Link,
    topic: str,
    group: str | None,
    threads: int,
    batch: int,
    from_last: bool,
    tags: str,
    count: int | None,
    run_seconds: float | None,
    as_json: bool,
) -> None:
    """Consume TOPIC with a push consumer, and print throughput and latency.

    Latency is the time from the message's creation (by the sender's clock) to its consumption. For existing messages it
    is their age. With --count the command waits for that many messages.
    """
    from spark_rocket.client import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer

    own = group is None
    name = group or f"BENCHMARK_CONSUMER_{os.getpid()}"
    meter = Meter("consumed", count, run_seconds)

    def listen(messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        now = time.time()
        for message in messages:
            meter.add(1, len(message.body), max(now - message.born_timestamp / 1000, 0.0))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    begin = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET if from_last else ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with link.admin() as admin:
        admin.topic_route(topic)  # fail early for an unknown topic
        consumer = PushConsumer(
            name,
            listen,
            consume_from_where=begin,
            consume_threads=threads,
            consume_message_batch_max_size=batch,
            **link.options(),
        )
        consumer.subscribe(topic, tags)
        try:
            consumer.start()
            taken = meter.between(meter.wait())  # without the time to join the group
        finally:
            consumer.close()
            if own:
                admin.delete_group(name, topics=True)
    result = {"topic": topic, "group": name, **meter.rates(taken), "threads": threads, "batch": batch}
    _print_result(
        result | {"latencyMs": meter.latencies.to_json()}, "consumed", "Latency from sender to listener", as_json
    )


# --- results ---------------------------------------------------------------------------------------------------------


def _print_result(result: dict[str, Any], verb: str, what: str, as_json: bool) -> None:
    if as_json:
        show.document(result)
        return
    rate, size = result["messagesPerSecond"], int(result["bytesPerSecond"])
    print(
        f"{count_text(result['messages'])} messages {verb} in {result['seconds']:,.1f} s:"
        f" {rate:,.0f} messages/s, {size_text(size)}/s."
    )
    if result["messages"]:
        print(f"{what} in milliseconds:")
        latencies = result["latencyMs"]
        show.table([latencies], [Column(name, name, form=_milliseconds) for name in latencies])


def _milliseconds(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
