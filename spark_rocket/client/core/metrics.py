"""What the clients of this process have done, for Prometheus.

::

    from spark_rocket.client import client_metrics, serve_client_metrics

    client_metrics()                         # the text
    with serve_client_metrics(port=9400):    # or /metrics on a port, and /health
        ...

Counted is always, in plain numbers (0.3 µs a send); the text is made when somebody asks. Of every producer and consumer
that lives and is started; what is closed goes.

Names: ``rocketmq_send_cost_time`` and the cached messages are those of RocketMQ 5's own clients, ``rocketmq_client_…``
rocketmq-exporter's. A lag is what the last pull's answer knew; that of a Spark stream is in
``datasource.views.lag_listener``.

Thread-safety: all functions. A number that several threads add to at the same moment may miss one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_rocket.remoting.http.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Exposition,
    Metric,
    add_process,
    label_text,
)
from spark_rocket.remoting.http.exposition import PROCESS_METRICS as _PROCESS

if TYPE_CHECKING:
    from spark_rocket.client.consume.push_consumer import PushConsumer
    from spark_rocket.client.core.metrics_server import ClientMetricsServer
    from spark_rocket.client.send.producer import Producer

_SEND = ("client_id", "producer_group", "topic")
_CONSUME = ("client_id", "consumer_group", "topic")
_EXPORTER = ("clientAddr", "clientId", "group", "topic")

CLIENT_METRICS: tuple[Metric, ...] = (
    Metric(
        "rocketmq_send_cost_time",
        HISTOGRAM,
        "Milliseconds that an attempt to send took.",
        "client",
        (*_SEND, "invocation_status"),
    ),
    Metric("rocketmq_consumer_cached_messages", GAUGE, "Messages pulled and not consumed.", "client", _CONSUME),
    Metric("rocketmq_consumer_cached_bytes", GAUGE, "Bytes of their bodies.", "client", _CONSUME),
    Metric("rocketmq_client_consume_ok_msg_tps", GAUGE, "Messages consumed a second.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_fail_msg_tps", GAUGE, "Messages that failed a second.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_fail_msg_count", GAUGE, "Messages failed in an hour.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_rt", GAUGE, "Milliseconds of a listener's call.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consumer_pull_tps", GAUGE, "Messages pulled a second.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consumer_pull_rt", GAUGE, "Milliseconds of a pull that found some.", "exporter", _EXPORTER),
    Metric("rocket_client_messages_sent_total", COUNTER, "Messages that brokers have.", "own", _SEND),
    Metric("rocket_client_bytes_sent_total", COUNTER, "Bytes of requests with them.", "own", _SEND),
    Metric("rocket_client_send_retries_total", COUNTER, "Attempts after the first.", "own", _SEND),
    Metric("rocket_client_trace_dropped_total", COUNTER, "Trace events dropped.", "own", ("client_id", "group")),
    Metric("rocket_client_queues", GAUGE, "Queues that are this consumer's.", "own", _CONSUME),
    Metric("rocket_client_lag_messages", GAUGE, "Messages behind what is consumed.", "own", _CONSUME),
    Metric("rocket_client_rebalances_total", COUNTER, "Rounds of sharing out.", "own", ("client_id", "consumer_group")),
)

_BOUNDS_MS = (1, 5, 10, 20, 50, 200, 500)


class SendCounts:
    """What a producer sent to a topic. ``seconds[True]``: of attempts that came to something."""

    __slots__ = ("bytes", "failed", "failed_seconds", "messages", "ok", "ok_seconds", "retries")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.retries = 0
        self.ok = [0] * (len(_BOUNDS_MS) + 1)
        self.failed = [0] * (len(_BOUNDS_MS) + 1)
        self.ok_seconds = 0.0
        self.failed_seconds = 0.0


class SendStats:
    """What a producer sent, by topic."""

    def __init__(self) -> None:
        self.topics: dict[str, SendCounts] = {}

    def of(self, topic: str) -> SendCounts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = SendCounts()
        return counts

    def sent(self, topic: str, messages: int, size: int, seconds: float) -> None:
        """A broker has them."""
        counts = self.topics.get(topic) or self.of(topic)
        counts.messages += messages
        counts.bytes += size
        counts.ok_seconds += seconds
        counts.ok[_bucket(seconds)] += 1

    def failed(self, topic: str, seconds: float) -> None:
        """An attempt came to nothing."""
        counts = self.of(topic)
        counts.failed_seconds += seconds
        counts.failed[_bucket(seconds)] += 1


def _bucket(seconds: float) -> int:
    if seconds <= 0.001:  # mostly
        return 0
    for place, bound in enumerate(_BOUNDS_MS):
        if seconds * 1000 <= bound:
            return place
    return len(_BOUNDS_MS)


def client_metrics() -> bytes:
    """The figures of every client of this process, as Prometheus' text."""
    from spark_rocket.client.consume.push_consumer import PushConsumer
    from spark_rocket.client.core.instance import living_clients
    from spark_rocket.client.send.producer import Producer

    exposition = Exposition([*CLIENT_METRICS, *_PROCESS])
    add_process(exposition, label_text({"cluster": "", "node_type": "client", "node_id": ""}))
    for client in living_clients():
        if isinstance(client, Producer):
            _add_producer(exposition, client)
        elif isinstance(client, PushConsumer):
            _add_consumer(exposition, client)
    return exposition.render()


def _add_producer(exposition: Exposition, producer: Producer) -> None:
    shared = producer.shared
    if shared is None:
        return
    who = label_text({"client_id": shared.client_id, "producer_group": producer.group})
    for topic, counts in list(producer.stats.topics.items()):
        labels = f"{who},{label_text({'topic': topic})}"
        exposition.add("rocket_client_messages_sent_total", labels, counts.messages)
        exposition.add("rocket_client_bytes_sent_total", labels, counts.bytes)
        exposition.add("rocket_client_send_retries_total", labels, counts.retries)
        for status, buckets, seconds in (
            ("success", counts.ok, counts.ok_seconds),
            ("failure", counts.failed, counts.failed_seconds),
        ):
            exposition.add_histogram(
                "rocketmq_send_cost_time",
                f'{labels},invocation_status="{status}"',
                _BOUNDS_MS,
                list(buckets),
                seconds * 1000,
            )
    if producer.tracer is not None:
        labels = label_text({"client_id": shared.client_id, "group": producer.group})
        exposition.add("rocket_client_trace_dropped_total", labels, producer.tracer.dropped)


def _add_consumer(exposition: Exposition, consumer: PushConsumer) -> None:
    shared = consumer.shared
    if shared is None or not consumer.is_mine:
        return
    group = label_text({"client_id": shared.client_id, "consumer_group": consumer.group})
    exposition.add("rocket_client_rebalances_total", group, consumer.rebalances)
    by_topic = {topic: [0, 0, 0, 0] for topic in consumer.topics()}
    for one in consumer.process_queues():
        totals = by_topic.setdefault(one.queue.topic, [0, 0, 0, 0])
        totals[0] += 1
        totals[1] += one.count
        totals[2] += one.size
        totals[3] += max(one.broker_end - one.commit_offset, 0)
    names = (
        "rocket_client_queues",
        "rocketmq_consumer_cached_messages",
        "rocketmq_consumer_cached_bytes",
        "rocket_client_lag_messages",
    )
    address = shared.client_id.partition("@")[0]
    for topic, totals in by_topic.items():
        labels = f"{group},{label_text({'topic': topic})}"
        for name, value in zip(names, totals, strict=True):
            exposition.add(name, labels, value)
        status = consumer.hooks.stats.status(topic)
        labels = label_text(
            {"clientAddr": address, "clientId": shared.client_id, "group": consumer.group, "topic": topic}
        )
        for name, rate in (
            ("consume_ok_msg_tps", status.consume_ok_tps),
            ("consume_fail_msg_tps", status.consume_failed_tps),
            ("consume_fail_msg_count", status.consume_failed_msgs),
            ("consume_rt", status.consume_rt),
            ("consumer_pull_tps", status.pull_tps),
            ("consumer_pull_rt", status.pull_rt),
        ):
            exposition.add(f"rocketmq_client_{name}", labels, rate)
    if consumer.tracer is not None:
        labels = label_text({"client_id": shared.client_id, "group": consumer.group})
        exposition.add("rocket_client_trace_dropped_total", labels, consumer.tracer.dropped)


def serve_client_metrics(port: int = 0, host: str = "127.0.0.1") -> ClientMetricsServer:
    """Serve ``client_metrics()`` over HTTP; 0 takes a free port. ConfigError if the port is taken."""
    from spark_rocket.client.core.metrics_server import ClientMetricsServer  # which needs asyncio, and few want it

    return ClientMetricsServer(port, host)
