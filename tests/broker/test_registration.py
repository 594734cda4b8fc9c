from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, new_topic
from spark_rocket.errors import RocketError
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.protocol.wire.bodies.route import QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import RemotingServer
from tests.broker.wire import Wire
from tests.kit.waiting import until, until_async

pytestmark = pytest.mark.live


def registration_of(config: BrokerConfig, topics: TopicConfigManager) -> NameServerRegistration:
    addresses = {"broker_addr": "127.0.0.1:1", "ha_server_addr": "127.0.0.1:2"}
    return NameServerRegistration(config, topics, **addresses, on_master=lambda *_: None)


async def test_all_topics_are_registered_every_period() -> None:
    """Topics change without a pause: another change follows each registration."""
    asked: Counter[int] = Counter()
    enough = asyncio.Event()

    def register(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        asked[request.code] += 1
        # A name server that hears of single topics only forgets the broker after 120 s.
        if asked[RequestCode.REGISTER_BROKER] >= 3 and asked[RequestCode.REGISTER_TOPIC_IN_NAMESRV]:
            enough.set()
        asyncio.get_running_loop().call_soon(registration.register, {"t"})
        return RemotingCommand.response(request)

    codes = (RequestCode.REGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    server = RemotingServer("127.0.0.1", 0, dict.fromkeys(codes, register))
    await server.start()
    config = BrokerConfig(namesrv_addr=f"127.0.0.1:{server.port}", register_name_server_period=20)
    topics = TopicConfigManager(config, lambda: 1)
    topics.ensure("t")
    registration = registration_of(config, topics)
    registration.start()
    async with asyncio.timeout(60):
        await enough.wait()
    await registration.close()
    await server.close()


def test_a_broker_without_write_permission_registers_its_topics_without_it(
    wire: Wire, namesrv: Wire, topic: str
) -> None:
    def perm() -> int:
        route = namesrv.read(TopicRouteData, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        return route.queue_datas[0].perm

    assert perm() == 6
    with wire.settings(brokerPermission=4):
        until(lambda: perm() == 4)


# --- registrations that do not fit into a frame -------------------------------------------------------------------


@asynccontextmanager
async def registering(
    *names: str, **settings: object
) -> AsyncIterator[tuple[NameServer, NameServerRegistration, TopicConfigManager, list[int]]]:
    """A name server, the registration of a broker with these topics, and the topics of each request (103)."""
    server, lengths = NameServer(port=0), list[int]()
    await server.start()
    register = server.routes.register_broker

    def count(**more: Any) -> Any:
        lengths.append(len(more["topics"]))
        return register(**more)

    server.routes.register_broker = count  # type: ignore[method-assign]
    config = BrokerConfig.from_properties({"namesrvAddr": server.address, **settings})
    topics = TopicConfigManager(config, lambda: 1)
    topics.table.update((name, new_topic(name, 4)) for name in names)
    registration = registration_of(config, topics)
    registration.start()
    async with asyncio.timeout(60):
        await registration.register()
        yield server, registration, topics, lengths
        await registration.close()
    await server.close()


async def test_topics_that_exceed_a_frame_are_registered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As loaded from a ``topics.json``: routes of all topics exist after a restart. 40,000 names exceed a frame."""
    monkeypatch.setattr("spark_rocket.broker.registration._MAX_BODY_BYTES", 100_000)
    async with registering(*(f"{number:0>127}" for number in range(400))) as (server, registration, topics, lengths):
        assert list(registration.states().values()) == [True]
        assert set(server.routes.topics()) == topics.table.keys()
        assert len(lengths) == 2
        assert server.routes.data_version_of("DefaultCluster", "127.0.0.1:1") == topics.data_version


async def test_registrations_in_parts_are_sent_after_changes_only() -> None:
    """Repeated parts would undo write permissions that were wiped at the name server."""
    split = {"enableSplitRegistration": True, "splitRegistrationSize": 8}

    def perm(server: NameServer, topic: str) -> int:
        route = server.routes.route(topic)
        assert route is not None
        return route.queue_datas[0].perm

    async with registering("t", **split) as (server, registration, topics, lengths):
        every = [8, len(topics.table) - 8]
        assert lengths == every
        server.routes.set_write_permission("broker-a", allowed=False)
        await registration.register()
        assert (lengths, perm(server, "t")) == (every, 4)
        topics.put(new_topic("t", 8))
        await registration.register()
        assert (lengths, perm(server, "t")) == ([*every, *every], 6)


async def test_a_topic_that_a_name_server_refuses_does_not_take_others_away() -> None:
    async with registering("t", enableSplitRegistration=True, splitRegistrationSize=4) as (
        server,
        registration,
        topics,
        _,
    ):
        topics.put(new_topic("many", 100_000))
        registration.register()
        topics.put(new_topic("last", 1))
        registration.register()
        await until_async(lambda: server.routes.route("last"))
        assert set(server.routes.topics()) == topics.table.keys() - {"many"}


@pytest.mark.parametrize("brokers", [0, 3, 2_000, 40_000])
async def test_the_size_of_a_route_is_bounded(brokers: int) -> None:
    route = TopicRouteData(queue_datas=[QueueData(f"broker-{number}", 4, 4, 6) for number in range(brokers)])
    body = route.to_json() if brokers else b""
    server = RemotingServer(
        "127.0.0.1",
        0,
        {
            RequestCode.REGISTER_BROKER: lambda channel, request: RemotingCommand.response(request),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda channel, request: RemotingCommand.response(request, body=body),
        },
    )
    await server.start()
    config = BrokerConfig(namesrv_addr=f"127.0.0.1:{server.port}")
    registration = registration_of(config, TopicConfigManager(config, lambda: 1))
    try:
        if len(body) > 2 << 20:
            with pytest.raises(RocketError, match="A route has"):
                await registration.queues_of("T")
        else:
            assert await registration.queues_of("T") == route.queue_datas
    finally:
        await registration.close()
        await server.close()
