"""A broker's /metrics, /health and /ready, requested over HTTP and read with Prometheus' own parser."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.metrics.exporter import BrokerMetrics
from spark_rocket.broker.metrics.table import METRICS
from spark_rocket.broker.processors.statistics import VERSION_TEXT
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import StoreNotWritableError
from spark_rocket.model import Message
from spark_rocket.namesrv.name_server import METRICS as NAMESRV_METRICS
from spark_rocket.namesrv.name_server import NameServerMetrics
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.proxy.metrics import METRICS as PROXY_METRICS
from spark_rocket.remoting.exposition import Exposition
from spark_rocket.remoting.http.monitor import MONITOR_METRICS, Monitor
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS
from spark_rocket.store.config import StoreConfig
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import thread_of
from tests.store.helpers import refuse_writes

pytestmark = pytest.mark.live

Samples = dict[str, list[tuple[dict[str, str], float]]]
NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


class Endpoint:
    """The endpoint of the folder's cluster, as an external client sees it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def samples(self) -> Samples:
        status, text = self.get("/metrics")
        assert status == 200
        found: Samples = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def json(self, path: str) -> tuple[int, Any]:
        status, text = self.get(path)
        return status, json.loads(text)


def value(samples: Samples, name: str, **labels: str) -> float:
    (one,) = [value for found, value in samples.get(name, []) if labels.items() <= found.items()]
    return one


@pytest.fixture(scope="module")
def endpoint(cluster: LocalCluster) -> Iterator[Endpoint]:
    server = thread_of(cluster)
    assert server.parts is not None
    assert server.servers is not None
    namesrv, broker = server.servers
    monitor = Monitor("127.0.0.1", 0, [BrokerMetrics(broker), NameServerMetrics(namesrv)])
    loop = server.parts.loop
    asyncio.run_coroutine_threadsafe(monitor.start(), loop).result(30)
    yield Endpoint(monitor.url)
    asyncio.run_coroutine_threadsafe(monitor.close(), loop).result(30)


# --- figures ----------------------------------------------------------------------------------------------------


def test_metrics_of_received_messages(endpoint: Endpoint, wire: Wire, topic: str) -> None:
    for number in range(3):
        wire.send(topic, b"x" * 100 * (number + 1))
    wire.send(topic, b"y", {"__SHARDINGKEY": "k"})
    wire.send(topic, b"z", {"DELAY": "3"})
    wire.send_batch(topic, [Message.of(topic, b"b" * 2_000) for _ in range(4)])
    samples = endpoint.samples()
    kinds = {"normal": 7, "fifo": 1, "delay": 1}
    for kind, count in kinds.items():
        labels = {**NODE, "topic": topic, "message_type": kind, "is_system": "false"}
        assert value(samples, "rocketmq_messages_in_total", **labels) == count
        assert value(samples, "rocketmq_throughput_in_total", **labels) > count * 90
    assert value(samples, "rocketmq_message_size_count", topic=topic) == 9
    assert value(samples, "rocketmq_message_size_bucket", topic=topic, le="1024") == 5
    assert value(samples, "rocketmq_message_size_bucket", topic=topic, le="4096") == 9
    assert value(samples, "rocketmq_producer_offset", topic=topic, broker="broker-a") == 8  # one is delayed
    assert value(samples, "rocketmq_producer_tps", topic=topic, broker="broker-a") >= 0


def test_a_scrape_shows_a_bounded_number_of_groups_with_their_topics(
    endpoint: Endpoint, wire: Wire, topic: str, group: str, parts: BrokerParts
) -> None:
    """A series for each pair of a group and a topic: their number is a product of names."""
    for number in range(3):
        wire.create_group(f"{group}-{number}")
        wire.send(topic)
        wire.commit(f"{group}-{number}", topic, 0, 1)
        wire.pull(topic, 0, consumerGroup=f"{group}-{number}")
    pairs = len(parts.offsets.table)
    assert value(endpoint.samples(), "rocket_metrics_left_out") == 0
    try:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMetricsGroupTopics=2")
        samples = endpoint.samples()
    finally:
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMetricsGroupTopics=2000")
    assert len(samples["rocketmq_consumer_lag_messages"]) == 2
    assert value(samples, "rocket_metrics_left_out") == pairs - 2
    shown = {(labels["group"], labels["topic"]) for labels, _ in samples["rocketmq_consumer_tps"]}
    assert shown == {(f"{group}-{number}", topic) for number in (1, 2)}  # the pairs that changed last


def test_metrics_of_delivered_messages_and_lag(endpoint: Endpoint, wire: Wire, topic: str, group: str) -> None:
    for _ in range(5):
        wire.send(topic, b"x" * 100, queue_id=1)
    wire.create_group(group)
    wire.commit(group, topic, 1, 1)
    wire.pull(topic, 1, consumerGroup=group, queue_id=1, maxMsgNums=2)
    samples = endpoint.samples()
    labels = {**NODE, "consumer_group": group, "topic": topic, "is_retry": "false", "is_system": "false"}
    assert value(samples, "rocketmq_messages_out_total", **labels) == 2
    assert value(samples, "rocketmq_throughput_out_total", **labels) > 200
    assert value(samples, "rocketmq_consumer_lag_messages", **labels) == 4
    assert value(samples, "rocketmq_consumer_inflight_messages", **labels) == 2
    assert value(samples, "rocketmq_consumer_ready_messages", **labels) == 2
    assert value(samples, "rocketmq_consumer_lag_latency", **labels) >= 0
    assert value(samples, "rocketmq_consumer_offset", topic=topic, group=group) == 1
    assert value(samples, "rocketmq_group_diff", topic=topic, group=group) == 4
    wire.commit(group, topic, 5, 1)
    samples = endpoint.samples()
    for name in ("lag_messages", "lag_latency", "inflight_messages", "ready_messages", "queueing_latency"):
        assert value(samples, f"rocketmq_consumer_{name}", **labels) == 0


@pytest.mark.parametrize("sink", ["ROCKET_SINK_LEDGER", "ROCKET_SINK_LEDGER-0f6c2f5e-3a"])
def test_the_alert_for_a_lag_does_not_fire_for_the_exactly_once_sink(
    endpoint: Endpoint, wire: Wire, topic: str, sink: str
) -> None:
    """``docs/guides/monitoring.md`` selects groups with ``is_system="false"``."""
    wire.send(topic, b"a record")
    wire.create_group(sink)
    wire.commit(sink, topic, 0)
    lags = [labels for labels, _ in endpoint.samples()["rocketmq_consumer_lag_latency"]]
    assert [each["is_system"] for each in lags if each["consumer_group"] == sink] == ["true"]


def test_numbers_that_an_application_keeps_as_offsets_are_no_progress(
    endpoint: Endpoint, wire: Wire, topic: str, group: str
) -> None:
    """The exactly-once sink keeps numbers as offsets of queues that its ledger topic does not have."""
    wire.send(topic, b"a record")
    wire.create_group(group)
    wire.commit(group, topic, 1)
    wire.commit(group, topic, 1 << 62, (1 << 31) - 1)
    samples = endpoint.samples()
    assert value(samples, "rocketmq_consumer_offset", topic=topic, group=group) == 1
    assert value(samples, "rocketmq_consumer_lag_messages", topic=topic, consumer_group=group) == 0


def test_the_age_of_a_lag_is_that_of_its_oldest_message(
    endpoint: Endpoint, wire: Wire, parts: BrokerParts, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.send(topic, b"first")
    stored = parts.store.get_store_time(topic, 0, 0)
    wire.send(topic, b"second")
    wire.create_group(group)
    wire.commit(group, topic, 0)
    monkeypatch.setattr(parts, "clock", lambda: stored + 7_000)
    samples = endpoint.samples()
    assert value(samples, "rocketmq_consumer_lag_latency", consumer_group=group, topic=topic) == 7_000
    assert value(samples, "rocketmq_group_get_latency_by_storetime", group=group, topic=topic) == 7_000


def test_dead_letters_and_retries(endpoint: Endpoint, wire: Wire, topic: str, group: str) -> None:
    wire.create_group(group)
    wire.send(topic, b"x")
    (record,) = wire.messages(topic, consumerGroup=group)
    samples = endpoint.samples()  # Prometheus sees the first event of a counter only if it was 0 before
    assert value(samples, "rocketmq_send_to_dlq_messages_total", consumer_group=group, topic=topic) == 0
    reasons = [(labels["processor"], labels["reason"]) for labels, _ in samples["rocket_requests_refused_total"]]
    assert {("send", "page_cache"), ("send", "put"), ("pull", "unread"), ("client", "overload")} <= set(reasons)
    assert len(samples["rocket_connections_refused_total"]) == 6  # of the broker and the name server
    for level in (1, -1):
        wire.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=record.physical_offset, group=group, delayLevel=level,
            originMsgId="", originTopic=topic, unitMode="false", maxReconsumeTimes=16,
        )  # fmt: skip
    samples = endpoint.samples()
    assert value(samples, "rocketmq_send_to_dlq_messages_total", consumer_group=group, topic=topic) == 1
    assert value(samples, "rocketmq_topic_dlq_offset", group=group) == 1
    assert not [labels for labels, _ in samples["rocketmq_messages_in_total"] if labels["topic"].startswith("%")]


def test_counts_go_with_their_topic_and_group(endpoint: Endpoint, wire: Wire, topic: str, group: str) -> None:
    wire.create_group(group)
    wire.send(topic, b"x")
    wire.pull(topic, 0, consumerGroup=group)
    assert value(endpoint.samples(), "rocketmq_messages_out_total", consumer_group=group) == 1
    wire.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, cleanOffset="true")
    assert group not in endpoint.get("/metrics")[1].decode()
    wire.delete_topic(topic)
    assert f'"{topic}"' not in endpoint.get("/metrics")[1].decode()


def test_cached_labels_are_those_of_the_present_topics(endpoint: Endpoint, wire: Wire, topic: str, group: str) -> None:
    """A scrape formats the labels that the last one has not; what is gone is forgotten."""
    wire.send(topic)
    wire.commit(group, topic, 1)
    names = ("rocketmq_producer_offset", "rocketmq_consumer_lag_messages", "rocketmq_group_diff")
    first, second = endpoint.samples(), endpoint.samples()
    for name in names:
        assert [labels for labels, _ in first.get(name, [])] == [labels for labels, _ in second.get(name, [])], name
    wire.delete_topic(topic)
    wire.create_topic(topic)
    third = endpoint.samples()
    assert value(third, "rocketmq_producer_offset", topic=topic) == 0
    assert topic not in {labels["topic"] for labels, _ in third["rocketmq_consumer_lag_messages"]}
    wire.delete_topic(topic)
    fourth = endpoint.samples()
    assert topic not in {labels["topic"] for labels, _ in fourth["rocketmq_producer_offset"]}


def test_names_of_clients_stay_in_their_labels(endpoint: Endpoint, parts: BrokerParts) -> None:
    """A name that only a file can contain."""
    name = 'x"} 1\nevil{a="b\\'
    parts.topics.table[name] = TopicConfig(topic_name=name)
    try:
        samples = endpoint.samples()
        assert value(samples, "rocketmq_producer_offset", topic=name) == 0
        assert "evil" not in samples
    finally:
        del parts.topics.table[name]


def test_every_sample_is_in_the_table_with_its_labels(endpoint: Endpoint, wire: Wire, topic: str, group: str) -> None:
    wire.send(topic, b"x")
    wire.pull(topic, 0, consumerGroup=group)
    table = {metric.name: metric for metric in (*METRICS, *NAMESRV_METRICS, *OVERLOAD_METRICS, *MONITOR_METRICS)}
    text = endpoint.get("/metrics")[1].decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric = table.get(sample.name) or table[re.sub(r"_(bucket|sum|count)$", "", sample.name)]
            assert metric.kind == (
                "counter" if sample.name.endswith("_total") and family.type == "counter" else family.type
            )
            if metric.labels:
                assert tuple(label for label in sample.labels if label != "le") == metric.labels, sample.name
    assert value(endpoint.samples(), "rocket_namesrv_brokers", node_type="nameserver") == 1
    assert value(endpoint.samples(), "rocket_build_info") == 1
    assert VERSION_TEXT in text


def test_servers_name_themselves_in_their_metrics() -> None:
    """The labels that the reference names once."""
    servers = (*METRICS, *OVERLOAD_METRICS, *NAMESRV_METRICS, *PROXY_METRICS, *MONITOR_METRICS)
    assert [one.name for one in servers if one.origin != "exporter" and one.labels[:3] != tuple(NODE)] == []


# --- health -----------------------------------------------------------------------------------------------------


def test_alive_and_ready(endpoint: Endpoint, cluster: LocalCluster) -> None:
    status, health = endpoint.json("/health")
    assert (status, health["status"], health["broker"]) == (200, "UP", "broker-a")
    status, ready = endpoint.json("/ready")
    assert (status, ready["status"], ready["reasons"]) == (200, "UP", [])
    assert ready["nameServers"] == {cluster.name_server: True}


@contextmanager
def write_error(parts: BrokerParts) -> Iterator[None]:
    refuse_writes(parts.store, StoreNotWritableError("the disk is full"))
    try:
        yield
    finally:
        refuse_writes(parts.store, None)


def test_reasons_for_not_being_ready(endpoint: Endpoint, wire: Wire, parts: BrokerParts) -> None:
    with write_error(parts):
        status, ready = endpoint.json("/ready")
        assert (status, ready["status"], ready["reasons"]) == (503, "DOWN", ["the disk is full"])
        assert value(endpoint.samples(), "rocket_ready") == 0
        assert endpoint.json("/health")[0] == 200
    with wire.settings(brokerPermission=4):
        status, ready = endpoint.json("/ready")
        assert status == 503
        assert "brokerPermission is 4" in ready["reasons"][0]
    assert endpoint.json("/ready")[0] == 200


def test_before_and_after(tmp_path: Path) -> None:
    metrics = BrokerMetrics(Broker(BrokerConfig(store=StoreConfig(tmp_path))))
    exposition = Exposition(METRICS)
    assert list(metrics.collect(exposition)) == []
    assert exposition.render() == b""
    assert metrics.problems() == ["the broker is starting or stopping"]
    assert metrics.facts() == {}


def test_a_slave_without_its_master(tmp_path: Path) -> None:
    settings = {"storePathRootDir": tmp_path, "listenPort": 0, "brokerRole": "SLAVE", "brokerId": 1}

    async def main() -> tuple[list[str], str]:
        broker = Broker(BrokerConfig.from_properties(settings))
        await broker.start()
        try:
            metrics, exposition = BrokerMetrics(broker), Exposition(BrokerMetrics.metrics)
            list(metrics.collect(exposition))
            return metrics.problems(), exposition.render().decode()
        finally:
            await broker.close()

    problems, text = asyncio.run(asyncio.wait_for(main(), 60))
    assert any("does not follow a master" in problem for problem in problems)
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert families["rocket_slave_following"][0].value == 0
    assert families["rocket_clocks_differ"][0].value == 0
