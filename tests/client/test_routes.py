"""Routes: requested once, refreshed, and cached while no name server responds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from spark_rocket.client.core.config import ClientConfig
from spark_rocket.client.core.routes import UNAVAILABLE_SECONDS, NameServers, RouteTable
from spark_rocket.errors import BrokerError, NameServerUnreachableError, QueueNotFoundError, TopicNotFoundError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.client.client import RemotingClient
from tests.client.fakes import Fake, FakeCluster, route, says

pytestmark = pytest.mark.live

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def table() -> Iterator[Callable[..., RouteTable]]:
    client = RemotingClient()
    tables: list[RouteTable] = []

    def build(*addresses: str, interval: float = 3600.0, clock: Callable[[], float] | None = None) -> RouteTable:
        config = ClientConfig(addresses, route_refresh_interval=interval)
        tables.append(RouteTable(client, config) if clock is None else RouteTable(client, config, clock=clock))
        return tables[-1]

    yield build
    for each in tables:
        each.close()
    client.close()


def test_a_route_is_requested_once(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    cluster = fake(2)
    cluster.add("t", queues=2)
    routes = table(cluster.name_server.address)
    wanted = [
        MessageQueue("t", "b0", 0),
        MessageQueue("t", "b0", 1),
        MessageQueue("t", "b1", 0),
        MessageQueue("t", "b1", 1),
    ]
    for _ in range(3):
        assert list(routes.route("t").readable) == list(routes.route("t").writable) == wanted
        assert routes.master(wanted[2]) == cluster.brokers[1].address
        assert routes.reader(wanted[2]) == (cluster.brokers[1].address, True)
    assert cluster.name_server.codes() == [ROUTE]
    sent = cluster.name_server.requests[0]
    assert sent.ext_fields == {"topic": "t", "acceptStandardJsonOnly": "true"}
    assert sent.version >= 401


def test_permissions_and_missing_masters(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    cluster = fake(1)
    cluster.topics["t"] = route(
        {"read": (2, 2, 4), "write": (2, 1, 2), "slave-only": (1, 1, 6), "gone": (1, 1, 6)},
        {"read": {0: "r:1"}, "write": {0: "w:1"}, "slave-only": {3: "s:3", 1: "s:1"}},
    )
    routes = table(cluster.name_server.address)
    found = routes.route("t")
    assert [(q.broker_name, q.queue_id) for q in found.readable] == [("read", 0), ("read", 1), ("slave-only", 0)]
    assert [(q.broker_name, q.queue_id) for q in found.writable] == [("write", 0)]
    assert routes.reader(MessageQueue("t", "slave-only", 0)) == ("s:1", False)
    with pytest.raises(QueueNotFoundError, match="no master") as caught:
        routes.master(MessageQueue("t", "slave-only", 0))
    assert caught.value.retriable
    with pytest.raises(QueueNotFoundError, match="elsewhere"):
        routes.master(MessageQueue("t", "elsewhere", 0))


def test_the_unquoted_spelling_of_older_name_servers(table: Callable[..., RouteTable]) -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    server = Fake({ROUTE: says(0, body=body)})
    try:
        assert table(server.address).master(MessageQueue("t", "b", 0)) == "10.0.0.1:10911"
    finally:
        server.close()


def test_the_next_name_server_is_tried_and_reused(
    fake: Callable[..., FakeCluster], table: Callable[..., RouteTable], nobody: str
) -> None:
    cluster = fake(1)
    cluster.add("t")
    cluster.add("u")
    broken = Fake({ROUTE: says(1, "out of order")})
    try:
        routes = table(nobody, broken.address, cluster.name_server.address)
        assert routes.route("t").readable
        assert routes.route("u").readable
        assert len(broken.requests) == 1, "the server that answered is asked first from then on"
        with pytest.raises(BrokerError, match="out of order"):
            table(nobody, broken.address).route("t")
    finally:
        broken.close()


def test_no_name_server_available(table: Callable[..., RouteTable], nobody: str) -> None:
    with pytest.raises(NameServerUnreachableError) as caught:
        table(nobody, "127.0.0.1:1").route("t")
    assert nobody in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)
    assert "rocket up" in str(caught.value)
    assert "name_server" in str(caught.value)
    assert "that was set before" not in str(caught.value)
    assert caught.value.retriable
    of_default = NameServers(Mock(), ClientConfig())._unreachable(["No server responds."])
    assert "is the default address without nameServer and NAMESRV_ADDR" in of_default.remedy
    assert "that was set before the session started" in of_default.remedy


def test_unknown_topic(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    cluster = fake(1)
    routes = table(cluster.name_server.address)
    with pytest.raises(TopicNotFoundError, match=r"'missing'.*Admin\.create_topic"):
        routes.route("missing")
    with pytest.raises(TopicNotFoundError):
        routes.publish_route("missing")
    cluster.add("missing")
    assert routes.route("missing").readable, "that a topic is missing is not remembered"


def test_a_cached_route_survives_name_servers_that_lost_it(
    fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]
) -> None:
    cluster = fake(1)
    cluster.add("t")
    routes = table(cluster.name_server.address)
    before = routes.route("t")
    del cluster.topics["t"]
    assert routes.refresh("t") is before
    # 5.x with needWaitForService, in its first 45 s
    cluster.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = says(1, "name server not ready")
    assert routes.refresh("t") is before
    cluster.name_server.close()
    assert routes.refresh("t") is before
    assert routes.refresh_used()
    assert routes.route("t") is before
    routes.forget("t")
    with pytest.raises(NameServerUnreachableError):
        routes.route("t")


def test_topics_created_by_sending(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    cluster = fake(2)
    cluster.add("TBW102", queues=8, perm=7)
    routes = table(cluster.name_server.address)
    queues = routes.publish_route("new")
    assert len(queues) == 8
    assert {q.topic for q in queues} == {"new"}
    assert {q.queue_id for q in queues} == {0, 1, 2, 3}
    assert routes.master(queues[-1]) == cluster.brokers[1].address
    with pytest.raises(TopicNotFoundError):
        routes.route("new")


def test_a_topic_without_write_permission(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    cluster = fake(1)
    cluster.add("t", perm=4)
    with pytest.raises(QueueNotFoundError, match="no writable queue"):
        table(cluster.name_server.address).publish_route("t")


def test_the_next_send_finds_a_restarted_master(
    fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]
) -> None:
    now = [100.0]
    cluster = fake(1)
    cluster.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {1: cluster.brokers[0].address}})
    routes = table(cluster.name_server.address, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(QueueNotFoundError):
            routes.publish_route("t")
    assert len(cluster.name_server.codes()) == 2, "not asked by each of them"
    cluster.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {0: cluster.brokers[0].address}})
    now[0] += 1.0
    assert routes.publish_route("t") == (MessageQueue("t", "b0", 0),)


def test_reads_use_a_slave_while_the_master_is_unavailable(
    fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]
) -> None:
    now = [100.0]
    cluster = fake(1)
    cluster.topics["t"] = route({"b": (1, 1, 6)}, {"b": {0: "master:1", 2: "slave:2", 1: "slave:1"}})
    routes = table(cluster.name_server.address, clock=lambda: now[0])
    queue = MessageQueue("t", "b", 0)
    assert routes.reader(queue) == ("master:1", True)
    routes.mark_unavailable("master:1")
    assert routes.reader(queue) == ("slave:1", False)
    assert routes.master(queue) == "master:1"
    now[0] += UNAVAILABLE_SECONDS
    assert routes.reader(queue) == ("master:1", True)
    routes.mark_unavailable("master:1")
    routes.try_master(queue)
    assert routes.reader(queue) == ("master:1", True)


def test_only_topics_in_use_are_refreshed(fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]) -> None:
    now = [0.0]
    cluster = fake(1)
    cluster.add("used")
    cluster.add("left")
    routes = table(cluster.name_server.address, clock=lambda: now[0])
    routes.route("used")
    routes.route("left")
    now[0] = 100.0
    routes.route("used")
    now[0] = 150.0
    cluster.name_server.requests.clear()
    assert routes.refresh_used()
    assert [request.ext_fields["topic"] for request in cluster.name_server.requests] == ["used"]
    now[0] = 300.0
    assert not routes.refresh_used(), "nothing is in use: the thread may end"
    cluster.name_server.requests.clear()
    cluster.add("used", queues=7)
    del cluster.topics["left"]
    assert len(routes.route("used").readable) == 7, "asked for again when it is used again"
    assert len(routes.route("left").readable) == 2, "what was known is the better answer"
    assert len(cluster.name_server.requests) == 2


def test_the_refresh_thread_finds_new_queues_and_ends(
    fake: Callable[..., FakeCluster], table: Callable[..., RouteTable]
) -> None:
    cluster = fake(1)
    cluster.add("t", queues=1)
    routes = table(cluster.name_server.address, interval=0.01)
    before = set(threading.enumerate())
    routes.route("t")
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "rocket-routes"]
    assert thread.daemon
    cluster.add("t", queues=3)
    for _ in range(4):  # the first, and three by the thread: the second of these began after the change
        assert cluster.name_server.arrived.acquire(timeout=10)
    assert len(routes.route("t").readable) == 3
    routes.after_fork()
    assert routes.route("t")
    assert [one for one in set(threading.enumerate()) - before if one.name == "rocket-routes" and one is not thread]
    routes.close()
    thread.join(10)
    assert not thread.is_alive()
