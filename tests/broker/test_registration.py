from __future__ import annotations

import asyncio

import pytest

from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.topics import TopicConfigManager
from spark_rocket.protocol.wire.bodies import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.server import RemotingServer
from tests.broker.wire import Wire
from tests.kit.waiting import until

pytestmark = pytest.mark.live


async def test_all_topics_are_registered_every_period() -> None:
    """Topics change without a pause: another change follows each registration."""
    everything, alone = 0, 0
    third = asyncio.Event()

    def register(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        nonlocal everything
        everything += 1
        if everything == 3:
            third.set()
        asyncio.get_running_loop().call_soon(registration.register, {"t"})
        return RemotingCommand.response(request)

    def register_topic(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        nonlocal alone
        alone += 1
        registration.register({"t"})
        return RemotingCommand.response(request)

    server = RemotingServer(
        "127.0.0.1", 0, {RequestCode.REGISTER_BROKER: register, RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic}
    )
    await server.start()
    config = BrokerConfig(namesrv_addr=f"127.0.0.1:{server.port}", register_name_server_period=20)
    topics = TopicConfigManager(config, lambda: 1)
    topics.ensure("t")
    registration = NameServerRegistration(
        config, topics, broker_addr="127.0.0.1:1", ha_server_addr="127.0.0.1:2", on_master=lambda *_: None
    )
    registration.start()
    async with asyncio.timeout(60):
        await third.wait()  # a name server that hears of single topics only forgets the broker after 120 s
    assert alone
    await registration.close()
    await server.close()


def test_a_broker_without_write_permission_registers_its_topics_without_it(
    wire: Wire, namesrv: Wire, topic: str
) -> None:
    def perm() -> int:
        route = TopicRouteData.from_json(namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic).body)
        return route.queue_datas[0].perm

    assert perm() == 6
    assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4").code == 0
    try:
        until(lambda: perm() == 4)
    finally:
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6").code == 0
