"""A push consumer's figures for Prometheus; ``core.metrics`` says what they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from spark_rocket.client.consume.listeners import Hooks
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.core.trace import TraceDispatcher
from spark_rocket.remoting.exposition import Exposition, label_text


class MeasuredConsumer(Protocol):
    """What of a consumer is measured."""

    group: str
    rebalances: int
    hooks: Hooks
    tracer: TraceDispatcher | None

    def topics(self) -> Iterable[str]: ...

    def process_queues(self) -> Iterable[ProcessQueue]: ...


def add_consumer(exposition: Exposition, consumer: MeasuredConsumer, client_id: str) -> None:
    """The figures of a push consumer."""
    group = label_text({"client_id": client_id, "consumer_group": consumer.group})
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
    address = client_id.partition("@")[0]
    for topic, totals in by_topic.items():
        labels = f"{group},{label_text({'topic': topic})}"
        for name, value in zip(names, totals, strict=True):
            exposition.add(name, labels, value)
        status = consumer.hooks.stats.status(topic)
        labels = label_text({"clientAddr": address, "clientId": client_id, "group": consumer.group, "topic": topic})
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
        labels = label_text({"client_id": client_id, "group": consumer.group})
        exposition.add("rocket_client_trace_dropped_total", labels, consumer.tracer.dropped)
