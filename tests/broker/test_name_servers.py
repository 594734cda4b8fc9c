"""One broker and several name servers, which come and go; clients use any of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.broker.server import Broker
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import Message
from spark_rocket.namesrv.server import NameServer
from spark_rocket.remoting.server.server import new_event_loop
from spark_rocket.store.tools.check import check_store
from tests.kit.waiting import until


class Servers:
    """Name servers and brokers on a loop in a thread, each started and stopped by itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.name_servers: list[NameServer | None] = []
        self.ports: list[int] = []
        self.brokers: list[Broker] = []

    def run(self, work: object) -> object:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)  # type: ignore[arg-type]

    def add_name_server(self) -> str:
        server = NameServer(port=0)
        self.run(server.start())
        self.name_servers.append(server)
        self.ports.append(server.port)
        return server.address

    def stop_name_server(self, index: int) -> None:
        server = self.name_servers[index]
        assert server is not None
        self.run(server.close())
        self.name_servers[index] = None

    def restart_name_server(self, index: int) -> None:
        server = NameServer(port=self.ports[index])
        self.run(server.start())
        self.name_servers[index] = server

    def add_broker(self, name: str = "a") -> Broker:
        config = BrokerConfig.from_properties(
            {
                "brokerName": name,
                "listenPort": 0,
                "storePathRootDir": self._directory / f"{name}{len(self.brokers)}",
                "namesrvAddr": self.addresses,
                "mappedFileSizeCommitLog": 1 << 20,
                "diskSpaceWarningLevelRatio": 100,
            }
        )
        broker = Broker(config)
        self.run(broker.start())
        self.brokers.append(broker)
        return broker

    @property
    def addresses(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.ports)

    def close(self) -> None:
        for broker in self.brokers:
            self.run(broker.close())
        for index, server in enumerate(self.name_servers):
            if server is not None:
                self.stop_name_server(index)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    servers.add_name_server()
    servers.add_name_server()
    yield servers
    servers.close()
    for broker in servers.brokers:
        assert check_store(broker.config.store_path) == []


def knows(address: str, topic: str) -> bool:
    with Reader(address) as reader:
        try:
            return bool(reader.queues(topic))
        except TopicNotFoundError:
            return False


def test_every_name_server_is_told_and_any_will_do(servers: Servers) -> None:
    servers.add_broker()
    first, second = servers.addresses.split(";")
    with Admin(servers.addresses) as admin, Producer("p", name_server=servers.addresses) as producer:
        until(lambda: knows(first, "TBW102") and knows(second, "TBW102"))
        admin.create_topic("t", 2)
        until(lambda: knows(first, "t") and knows(second, "t"))
        producer.send(Message("t", b"0"))
        servers.stop_name_server(0)
        admin.create_topic("u", 2, broker="a")  # with a name server away, and nobody who has known the topic before
        until(lambda: knows(second, "u"))
        producer.send(Message("u", b"1"))
        with Reader(servers.addresses) as reader:
            assert len(reader.queues("u")) == 2
        servers.restart_name_server(0)
        until(lambda: knows(first, "u"))  # within a second: the broker sees that the connection is gone
        servers.stop_name_server(1)
        with Reader(servers.addresses) as reader:
            assert len(reader.queues("u")) == 2
        producer.send(Message("t", b"2"))


def test_a_second_master_of_the_same_name_says_who_is_the_other(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    one = servers.add_broker()
    first, second = servers.addresses.split(";")
    until(lambda: knows(first, "TBW102") and knows(second, "TBW102"))
    with caplog.at_level("WARNING", logger="spark_rocket.broker"):
        other = servers.add_broker()
        until(lambda: sum(f"{other.address} (" in line and one.address in line for line in caplog.messages) >= 2)
    with Reader(first) as reader:
        assert reader.address(reader.queues("TBW102")[0]) == one.address
