"""One broker and several name servers that stop and start; clients use any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import Message
from spark_rocket.store.tools.check import check_store
from tests.kit.brokers import Servers
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    servers.add_name_server()
    servers.add_name_server()
    yield servers
    servers.close()
    for broker in servers.brokers:
        assert check_store(broker.config.store.store_path) == []


def knows(address: str, topic: str) -> bool:
    with Reader(address) as reader:
        try:
            return bool(reader.queues(topic))
        except TopicNotFoundError:
            return False


def test_a_broker_registers_at_every_name_server(servers: Servers) -> None:
    servers.add_broker()
    first, second = servers.addresses.split(";")
    with Admin(servers.addresses) as admin, Producer("p", name_server=servers.addresses) as producer:
        until(lambda: knows(first, "TBW102") and knows(second, "TBW102"))
        admin.create_topic("t", 2)
        until(lambda: knows(first, "t") and knows(second, "t"))
        producer.send(Message("t", b"0"))
        servers.stop_name_server(0)
        admin.create_topic("u", 2, broker="a")  # with an unavailable name server and a new topic
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


def test_a_second_master_of_the_same_name_logs_the_first(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    one = servers.add_broker()
    first, second = servers.addresses.split(";")
    until(lambda: knows(first, "TBW102") and knows(second, "TBW102"))
    with caplog.at_level("WARNING", logger="spark_rocket.broker"):
        other = servers.add_broker()
        until(lambda: sum(f"{other.address} (" in line and one.address in line for line in caplog.messages) >= 2)
    with Reader(first) as reader:
        assert reader.address(reader.queues("TBW102")[0]) == one.address
