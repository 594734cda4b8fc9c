"""Routes and name servers without sockets: requested once, refreshed, and cached while no name server responds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from spark_rocket.client.core import name_servers
from spark_rocket.client.core.client_config import DEFAULT_NAME_SERVER, ClientConfig
from spark_rocket.client.core.name_servers import NameServers
from spark_rocket.client.core.routes import UNAVAILABLE_SECONDS, Routes
from spark_rocket.errors import (
    BrokerError,
    NameServerUnreachableError,
    QueueNotFoundError,
    RemotingConnectError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.kit.scripted import Handler, route, says

BROKERS = {"b0": {0: "b0:1"}, "b1": {0: "b1:1"}}


class World:
    """Name servers that know ``topics``, unless ``responses`` has a handler of their address, or None: no response."""

    def __init__(self, *addresses: str, url: str = "") -> None:
        self.now = 100.0
        self.topics: dict[str, TopicRouteData] = {}
        self.responses: dict[str, Handler | None] = {}
        self.requests: list[tuple[str, RemotingCommand]] = []
        addresses = addresses or ("ns:1",) * (not url)
        self.servers = NameServers(lambda: self, addresses, url, timeout=3.0, monotonic=self.clock)
        self.routes = Routes(self.servers, ClientConfig(), clock=self.clock)

    def clock(self) -> float:
        return self.now

    def add(self, topic: str, queues: int = 2, perm: int = 6) -> None:
        self.topics[topic] = route(dict.fromkeys(BROKERS, (queues, queues, perm)), BROKERS)

    async def invoke(self, address: str, request: RemotingCommand, seconds: float) -> RemotingCommand:
        self.requests.append((address, request))
        await asyncio.sleep(0)
        respond = self.responses.get(address, self._route)
        found = None if respond is None else respond(request)
        if found is None:
            raise RemotingConnectError(f"No connection to {address}.")
        return found

    def _route(self, request: RemotingCommand) -> RemotingCommand | None:
        found = self.topics.get(request.ext_fields["topic"])
        return (says(17) if found is None else says(0, body=found.to_json(standard=True)))(request)

    def asked(self) -> list[str]:
        """Return the topics of the requests since the last call."""
        topics = [request.ext_fields["topic"] for _, request in self.requests]
        self.requests.clear()
        return topics

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_route_is_requested_once(world: World) -> None:
    world.add("t")
    wanted = [MessageQueue("t", f"b{broker}", queue) for broker in (0, 1) for queue in (0, 1)]
    for _ in range(3):
        found = await world.routes.find_route("t")
        assert list(found.readable) == list(found.writable) == wanted
    assert await world.routes.find_master(wanted[2]) == "b1:1"
    assert world.routes.choose(wanted[2], await world.routes.find_addresses(wanted[2])) == ("b1:1", True)
    ((_, sent),) = world.requests
    assert (sent.code, sent.ext_fields) == (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "t", "acceptStandardJsonOnly": "true"},
    )


async def test_permissions_and_missing_masters(world: World) -> None:
    world.topics["t"] = route(
        {"read": (2, 2, 4), "write": (2, 1, 2), "slave-only": (1, 1, 6), "gone": (1, 1, 6)},
        {"read": {0: "r:1"}, "write": {0: "w:1"}, "slave-only": {3: "s:3", 1: "s:1"}},
    )
    found = await world.routes.find_route("t")
    assert [(q.broker_name, q.queue_id) for q in found.readable] == [("read", 0), ("read", 1), ("slave-only", 0)]
    assert [(q.broker_name, q.queue_id) for q in found.writable] == [("write", 0)]
    queue = MessageQueue("t", "slave-only", 0)
    assert world.routes.choose(queue, await world.routes.find_addresses(queue)) == ("s:1", False)
    with pytest.raises(QueueNotFoundError, match="no master") as caught:
        await world.routes.find_master(queue)
    assert caught.value.retriable
    with pytest.raises(QueueNotFoundError, match="elsewhere"):
        await world.routes.find_master(MessageQueue("t", "elsewhere", 0))


async def test_the_unquoted_spelling_of_older_name_servers(world: World) -> None:
    world.responses["ns:1"] = says(
        0,
        body=b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1}]}',
    )
    assert await world.routes.find_master(MessageQueue("t", "b", 0)) == "10.0.0.1:10911"


async def test_the_next_name_server_is_tried_and_reused() -> None:
    world = World("silent:1", "broken:1", "good:1")
    world.add("t")
    world.add("u")
    world.responses |= {"silent:1": None, "broken:1": says(1, "out of order")}
    assert (await world.routes.find_route("t")).readable
    assert (await world.routes.find_route("u")).readable
    assert [address for address, _ in world.requests] == ["silent:1", "broken:1", "good:1", "good:1"]
    for addresses in (("silent:1", "broken:1"), ("broken:1", "silent:1")):
        other = World(*addresses)
        other.responses = world.responses
        with pytest.raises(BrokerError, match=r"Name server broken:1 rejected .*out of order"):
            await other.routes.find_route("t")


async def test_no_name_server_available() -> None:
    world = World("silent:1", "silent:2")
    world.responses = {"silent:1": None, "silent:2": None}
    with pytest.raises(NameServerUnreachableError, match=r"silent:1.*silent:2") as caught:
        await world.routes.find_route("t")
    assert caught.value.retriable
    assert "rocket up" in caught.value.remedy
    assert "name_server" in caught.value.remedy
    assert "that was set before" not in caught.value.remedy
    default = World(DEFAULT_NAME_SERVER)
    default.responses[DEFAULT_NAME_SERVER] = None
    with pytest.raises(NameServerUnreachableError, match="that was set before the session started") as caught:
        await default.routes.find_route("t")
    assert "is the default address without nameServer and NAMESRV_ADDR" in caught.value.remedy


async def test_an_unresponsive_name_server_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("silent:1", "silent:2", "good:1")
    world.add("t")
    allowed: list[float] = []
    monkeypatch.setattr(name_servers, "time", SimpleNamespace(monotonic=world.clock))

    async def invoke(address: str, request: RemotingCommand, seconds: float) -> RemotingCommand:
        allowed.append(seconds)
        world.now += seconds  # all that was allowed
        return await World.invoke(world, address, request, seconds)

    world.invoke = invoke  # type: ignore[method-assign]
    world.responses |= {"silent:1": None, "silent:2": None}
    assert (await world.routes.find_route("t", 1.5)).readable
    assert allowed == pytest.approx([0.5, 0.5, 0.5])


async def test_changes_go_to_each_name_server() -> None:
    world = World("a:1", "b:1")
    world.responses = {"a:1": says(0), "b:1": says(0)}

    def change() -> RemotingCommand:
        return RemotingCommand.request(RequestCode.PUT_KV_CONFIG, {})

    assert len(await world.servers.ask_each(change, "the change")) == 2
    world.responses["b:1"] = says(1, "read-only")
    with pytest.raises(BrokerError, match="Name server b:1 rejected the change"):
        await world.servers.ask_each(change, "the change")
    world.responses["a:1"] = None
    with pytest.raises(NameServerUnreachableError):
        await world.servers.ask_each(change, "the change")


async def test_an_address_server_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    says_now: list[str] = []

    def look_up(url: str, seconds: float) -> tuple[str, ...]:
        if not says_now:
            raise NameServerUnreachableError(f"The address server {url} returned no name servers.")
        return tuple(says_now)

    monkeypatch.setattr(name_servers, "look_up", look_up)
    world = World(url="http://a:8080/rocketmq/nsaddr")
    world.add("t")

    async def asked() -> list[str]:
        world.requests.clear()
        await world.routes.find_now("t")
        return [address for address, _ in world.requests]

    with pytest.raises(NameServerUnreachableError, match="http://a:8080"):
        await asked()
    says_now.append("first:1")
    assert await asked() == ["first:1"]
    assert str(world.servers) == "http://a:8080/rocketmq/nsaddr"
    says_now[:] = ["second:1"]
    world.now += 60
    assert await asked() == ["first:1"]
    world.now += 600
    assert await asked() == ["second:1"]
    says_now.clear()  # out of order: nothing changes
    world.now += 600
    assert await asked() == ["second:1"]


async def test_unknown_topic(world: World) -> None:
    for find in (world.routes.find_route, world.routes.find_writable, world.routes.find_uncached):
        with pytest.raises(TopicNotFoundError, match=r"'missing'.*Admin\.create_topic"):
            await find("missing")
    world.add("missing")
    assert (await world.routes.find_route("missing")).readable, "that a topic is missing is not remembered"


async def test_a_cached_route_survives_name_servers_that_lost_it(world: World) -> None:
    world.add("t")
    before = await world.routes.find_route("t")
    del world.topics["t"]
    assert await world.routes.find_now("t") is before
    world.responses["ns:1"] = says(1, "name server not ready")  # 5.x with needWaitForService, in its first 45 s
    assert await world.routes.find_now("t") is before
    world.responses["ns:1"] = None
    assert await world.routes.find_now("t") is before
    world.now += 1000.0
    assert world.routes.cached("t") is None
    assert await world.routes.find_route("t") is before
    world.requests.clear()
    world.now += 5.0
    assert world.routes.cached("t") is before, "no use waits for an unavailable name server again"
    await world.settle()
    assert world.asked() == ["t"]
    world.responses.clear()
    world.add("t")
    assert await world.routes.find_now("t") is before, "unchanged"
    world.responses["ns:1"] = None
    world.routes.forget("t")
    with pytest.raises(NameServerUnreachableError):
        await world.routes.find_route("t")


async def test_topics_created_by_sending(world: World) -> None:
    world.topics["TBW102"] = route(dict.fromkeys(BROKERS, (8, 8, 7)), BROKERS)
    queues = await world.routes.find_writable("new")
    assert len(queues) == 8
    assert {(q.topic, q.queue_id) for q in queues} == {("new", number) for number in range(4)}
    assert await world.routes.find_ordered("new") == queues
    assert await world.routes.find_master(queues[-1]) == "b1:1"
    with pytest.raises(TopicNotFoundError):
        await world.routes.find_route("new")


async def test_a_topic_without_write_permission(world: World) -> None:
    world.add("t", perm=4)
    with pytest.raises(QueueNotFoundError, match="no writable queue"):
        await world.routes.find_writable("t")


async def test_the_next_send_finds_a_restarted_master(world: World) -> None:
    world.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {1: "b0:2"}})
    for _ in range(3):
        with pytest.raises(QueueNotFoundError):
            await world.routes.find_writable("t")
    assert len(world.requests) == 2, "not asked by each of them"
    world.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {0: "b0:1"}})
    world.now += 1.0
    assert await world.routes.find_writable("t") == (MessageQueue("t", "b0", 0),)


async def test_reads_use_a_slave_while_the_master_is_unavailable(world: World) -> None:
    world.topics["t"] = route({"b": (1, 1, 6)}, {"b": {0: "master:1", 2: "slave:2", 1: "slave:1"}})
    routes, queue = world.routes, MessageQueue("t", "b", 0)
    addresses = await routes.find_addresses(queue)
    master, slave = ("master:1", True), ("slave:1", False)
    assert routes.choose(queue, addresses) == master
    routes.mark_unavailable("master:1")
    assert routes.choose(queue, addresses) == slave
    assert await routes.find_master(queue) == "master:1"
    routes.mark_unavailable("slave:1")
    assert routes.slave(queue) == "slave:2"
    world.now += UNAVAILABLE_SECONDS
    assert routes.choose(queue, addresses) == master
    routes.suggested(queue, 2)
    assert routes.choose(queue, addresses) == ("slave:2", False)
    routes.mark_unavailable("master:1")
    routes.try_master(queue)
    assert routes.choose(queue, addresses) == master
    routes.close()


async def test_routes_are_refreshed_by_their_use(world: World) -> None:
    world.add("t", queues=1)
    await world.routes.find_route("t")
    world.add("t", queues=3)
    world.now += 29.0
    assert world.routes.cached("t")
    await world.settle()
    assert world.asked() == ["t"], "fresh"
    world.now += 2.0
    assert world.routes.cached("t") is await world.routes.find_route("t"), "stale: used, and refreshed"
    await world.settle()
    assert world.asked() == ["t"]
    assert len((await world.routes.find_route("t")).readable) == 6
    world.now += 91.0
    world.add("t", queues=4)
    assert world.routes.cached("t") is None
    assert len((await world.routes.find_route("t")).readable) == 8, "old: refreshed first"


async def test_a_lost_connection_refreshes_routes_in_use(world: World) -> None:
    for topic in ("used", "unused"):
        world.add(topic)
        await world.routes.find_route(topic)
    world.now += 50.0
    await world.routes.find_route("used")
    await world.settle()
    world.now += 80.0
    world.asked()
    refreshed = asyncio.Event()
    read = world._route

    def respond(request: RemotingCommand) -> RemotingCommand | None:
        refreshed.set()
        return read(request)

    world.responses["ns:1"] = respond
    assert world.routes.broker_addresses() == ["b0:1", "b1:1"]
    for _ in range(3):
        world.routes.mark_unavailable("b0:1")
    await asyncio.wait_for(refreshed.wait(), 10)
    await world.settle()
    assert world.asked() == ["used"], "once, and not the one that was last used 130 s ago"
    world.now += 200.0
    assert world.routes.broker_addresses() == []


@pytest.mark.parametrize("responds", [True, False])
async def test_a_refresh_in_the_background_is_no_use(world: World, responds: bool) -> None:
    world.add("t")
    await world.routes.find_route("t")
    refreshed = asyncio.Event()

    def respond(request: RemotingCommand) -> RemotingCommand | None:
        refreshed.set()
        return world._route(request) if responds else None

    world.responses["ns:1"] = respond
    for _ in range(2):  # a broker fails each minute
        world.now += 60.0
        world.routes.mark_unavailable("b0:1")
        await asyncio.wait_for(refreshed.wait(), 10)
        await world.settle()
        refreshed.clear()
    world.now += 60.0
    assert world.routes.broker_addresses() == []
    await world.routes.find_now("t")
    assert world.routes.broker_addresses() == ["b0:1", "b1:1"], "a refresh that a client waits for is one"


async def test_an_old_route_is_in_use_again_after_its_next_use(world: World) -> None:
    world.add("t")
    for world.now in (100.0, 1000.0):
        await world.routes.find_route("t")
        assert world.routes.broker_addresses() == ["b0:1", "b1:1"]


async def test_refreshes_after_lost_connections_have_an_interval(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, call: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        delays.append(delay)
        return later(0.0, call, *args)

    monkeypatch.setattr(loop, "call_later", call_later)
    world.routes.mark_unavailable("b0:1")
    await world.settle()
    world.now += 0.25
    world.routes.mark_unavailable("b0:1")
    world.routes.close()
    assert delays == [0.0, 0.75]
