"""Metrics of clients, and their endpoint."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_rocket.client import (
    ConsumeConcurrentlyStatus,
    Producer,
    client_metrics,
    serve_client_metrics,
)
from spark_rocket.client.core.metrics import CLIENT_METRICS
from spark_rocket.client.send.stats import SendStats, _bucket
from spark_rocket.errors import ConfigError, RocketError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.testing import LocalCluster
from tests.client.pushing import Consume
from tests.kit.scripted import FakeCluster, says

pytestmark = pytest.mark.live

QUEUES = 2
LIMIT = 30


def value(text: bytes, name: str, **labels: str) -> float:
    (one,) = [
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return one


def test_sends(cluster: LocalCluster, topic: str) -> None:
    with Producer("counting", name_server=cluster.name_server) as producer:
        producer.send(Message.of(topic, b"x" * 100))
        producer.send_async(Message.of(topic, b"x" * 100)).result(LIMIT)
        producer.send([Message.of(topic, b"b")] * 3)
        text = client_metrics()
        labels = {"producer_group": "counting", "topic": topic}
        assert value(text, "rocket_client_messages_sent_total", **labels) == 5
        assert value(text, "rocket_client_bytes_sent_total", **labels) > 200
        assert value(text, "rocket_client_send_retries_total", **labels) == 0
        assert value(text, "rocketmq_send_cost_time_count", invocation_status="success", **labels) == 3
        assert value(text, "rocketmq_send_cost_time_count", invocation_status="failure", **labels) == 0
        assert 0 < value(text, "rocketmq_send_cost_time_sum", invocation_status="success", **labels) < 30_000
    assert b'"counting"' not in client_metrics()


def test_accumulated_batches(cluster: LocalCluster, topic: str) -> None:
    with Producer("gathering", name_server=cluster.name_server, auto_batch=True) as producer:
        futures = [producer.send_async(Message.of(topic, b"x")) for _ in range(30)]
        for future in futures:
            future.result(LIMIT)
        assert value(client_metrics(), "rocket_client_messages_sent_total", topic=topic) == 30


def test_failures_and_retries_are_counted(fake: Callable[..., FakeCluster]) -> None:
    cluster = fake(2)
    topic = cluster.add("T")
    cluster.everywhere(RequestCode.SEND_MESSAGE_V2, says(ResponseCode.SYSTEM_BUSY, "not now"))
    with Producer("failing", name_server=cluster.name_server.address, member=False) as producer:
        with pytest.raises(RocketError):
            producer.send(Message.of(topic, b"x"))
        with pytest.raises(RocketError):
            producer.send_async(Message.of(topic, b"x")).result(LIMIT)
        counts = producer.stats.topics[topic]
        assert (sum(counts.failed), counts.retries, sum(counts.ok), counts.messages) == (6, 4, 0, 0)


def test_consuming(producer: Producer, topic: str, consume: Consume) -> None:
    for _ in range(4):
        producer.send(Message.of(topic, b"x" * 10))
    arrived, go = threading.Semaphore(0), threading.Event()

    def listener(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        arrived.release()
        assert go.wait(LIMIT)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with consume(topic, listener, group="counted-readers", consume_threads=4):
        for _ in range(4):
            assert arrived.acquire(timeout=LIMIT)
        labels = {"consumer_group": "counted-readers", "topic": topic}
        text = client_metrics()
        assert value(text, "rocket_client_queues", **labels) == 2
        assert value(text, "rocketmq_consumer_cached_messages", **labels) == 4
        assert value(text, "rocketmq_consumer_cached_bytes", **labels) == 40
        assert value(text, "rocket_client_lag_messages", **labels) == 4
        assert value(text, "rocket_client_rebalances_total", consumer_group="counted-readers") >= 1
        assert value(text, "rocketmq_client_consumer_pull_tps", group="counted-readers", topic=topic) > 0
        go.set()
    assert b"counted-readers" not in client_metrics()


def test_every_metric_is_documented(cluster: LocalCluster, topic: str) -> None:
    table = {metric.name: metric for metric in CLIENT_METRICS}
    with Producer("counting", name_server=cluster.name_server, enable_msg_trace=True) as producer:
        producer.send(Message.of(topic, b"x"))
        for family in text_string_to_metric_families(client_metrics().decode()):
            for sample in family.samples:
                name = sample.name
                for end in ("_bucket", "_sum", "_count"):
                    name = name.removesuffix(end) if name not in table else name
                if not name.startswith("process_"):
                    assert tuple(label for label in sample.labels if label != "le") == table[name].labels


def test_the_endpoint() -> None:
    with serve_client_metrics() as endpoint:
        with urllib.request.urlopen(f"{endpoint.url}/metrics", timeout=LIMIT) as response:
            assert b"process_cpu_seconds_total" in response.read()
        with urllib.request.urlopen(f"{endpoint.url}/health", timeout=LIMIT) as response:
            assert b"UP" in response.read()
        port = int(endpoint.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="the port is in use"):
            serve_client_metrics(port)
    endpoint.close()


def test_buckets() -> None:
    assert [_bucket(ms / 1000) for ms in (0, 1, 1.5, 5, 10, 19, 50, 199, 500, 501)] == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    stats = SendStats()
    stats.sent("t", 2, 10, 0.002)
    stats.failed("t", 1.0)
    assert (stats.topics["t"].ok, stats.topics["t"].failed) == ([0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1])
