"""A name server, a master with its slave, a gRPC proxy and a lag listener, with what Prometheus scrapes of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, SourceProgress

from spark_rocket.broker.metrics.exporter import BrokerMetrics
from spark_rocket.client import Admin, Producer
from spark_rocket.datasource import RocketLagListener
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import Message, MessageQueue
from spark_rocket.namesrv.name_server import NameServerMetrics
from spark_rocket.remoting.http.monitor import MetricsSource, Monitor
from spark_rocket.store.message_store import MessageStore
from spark_rocket.testing.threads import ProxyThread
from tests.kit.brokers import Pair
from tests.monitoring.prometheus import Prometheus
from tests.proxy.caller import Caller
from tests.proxy.test_metrics import monitored

JOB = "rocketmq"
"""The name that the shipped rules expect."""
_RUN = uuid.uuid4()


@dataclass
class Disk:
    """The disk of all stores, in bytes."""

    total: int = 1000
    used: int = 300

    @property
    def free(self) -> int:
        return self.total - self.used


class World:
    """The servers, their pages, and the changes that faults make."""

    def __init__(
        self, pair: Pair, proxy: ProxyThread, monitors: dict[str, Monitor], listener: RocketLagListener, disk: Disk
    ) -> None:
        self.pair = pair
        self.name_server = pair.addresses
        self.proxy = proxy
        self.client = Caller(proxy.address, "client@1")
        self.monitors = monitors
        self.listener = listener
        self.disk = disk
        self.prometheus: Prometheus
        self.closing = ExitStack()
        """What faults open."""

    def send(self, topic: str, *bodies: bytes, queues: int = 1) -> MessageQueue:
        """Create a topic with these messages. Return its first queue."""
        with Admin(self.name_server) as admin, Producer("producers", name_server=self.name_server) as producer:
            admin.create_topic(topic, queues)
            for body in bodies:
                producer.send(Message(topic, body))
        return MessageQueue(topic, "a", 0)

    def report(self, queue: MessageQueue, position: int, end: int) -> None:
        """The progress of a streaming query, as Spark reports it to the lag listener."""
        ends = [json.dumps(StreamOffset({queue: offset}).to_json()) for offset in (position, end)]
        source = SourceProgress("rocket", "null", ends[0], ends[1], 1, 1.0, 1.0, {})
        told = SimpleNamespace(id=_RUN, runId=_RUN, name="orders", sources=[source])
        self.listener.onQueryProgress(QueryProgressEvent(told))  # type: ignore[arg-type]


@contextmanager
def world(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, dict[str, list[str]]]]:
    """The servers, and the addresses of their pages by the job of Prometheus."""
    disk = Disk()
    defaults = MessageStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "disk_usage", lambda _: disk)
    with ExitStack() as stack:
        pair = Pair(directory, registerNameServerPeriod=60_000, fileReservedTime=1000)
        stack.callback(pair.close)
        (name_server,) = pair.name_servers
        assert name_server is not None
        sources: dict[str, MetricsSource] = {
            "name server": NameServerMetrics(name_server),
            "master": BrokerMetrics(pair.master),
            "slave": BrokerMetrics(pair.slave),
        }
        monitors = {name: Monitor("127.0.0.1", 0, [source]) for name, source in sources.items()}
        for monitor in monitors.values():
            pair.do(monitor.start())
            stack.callback(lambda monitor=monitor: pair.do(monitor.close()))  # type: ignore[misc]
        proxy, proxy_url = stack.enter_context(monitored(pair.addresses))
        listener = RocketLagListener(0, name_server=pair.addresses, clock=lambda: pair.clock_of("a0") / 1000)
        stack.callback(listener.close)
        made = World(pair, proxy, monitors, listener, disk)
        stack.callback(made.client.close)
        stack.enter_context(made.closing)
        servers = [*(monitor.url for monitor in monitors.values()), proxy_url]
        yield made, {JOB: servers, "spark": [f"http://127.0.0.1:{listener.port}"]}
