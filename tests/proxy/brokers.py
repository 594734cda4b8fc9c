"""A name server with the current state of brokers in this process, and a cluster of them for the proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_rocket.broker.broker import Broker
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import RemotingServer
from tests.broker.wire import Wire
from tests.kit.brokers import Served


class LiveNameServer:
    """Answers 105 and 106 from the brokers' own tables: a change counts at once."""

    def __init__(self, *brokers: Broker) -> None:
        self.brokers = list(brokers)
        self.server = RemotingServer(
            "127.0.0.1",
            0,
            {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route, RequestCode.GET_BROKER_CLUSTER_INFO: self._info},
        )

    def _route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        name = request.ext_fields["topic"]
        found = TopicRouteData()
        for broker in self.brokers:
            config = broker.parts.topics.get(name)
            if config is not None:
                found.broker_datas.append(_data(broker))
                found.queue_datas.append(
                    QueueData(
                        broker.config.broker_name, config.read_queue_nums, config.write_queue_nums, config.perm, 0
                    )
                )
        if not found.broker_datas:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, f"no route of {name}")
        return RemotingCommand.response(request, body=found.to_json(standard=True))

    def _info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        table = {broker.config.broker_name: _data(broker) for broker in self.brokers}
        return RemotingCommand.response(request, body=ClusterInfo(broker_addr_table=table).to_json())


def _data(broker: Broker) -> BrokerData:
    return BrokerData(broker.config.broker_cluster_name, broker.config.broker_name, {0: broker.address})


@contextmanager
def cluster_of(server: Served, clock: Callable[[], int], **settings: Any) -> Iterator[ProxyCluster]:
    """A cluster with the one broker, on the broker's loop; nothing is cached unless ``settings`` say so."""
    names = LiveNameServer(server.broker)
    server.do(names.server.start())
    cluster = ProxyCluster(names.server.address, clock=clock, **{"fresh_seconds": 0.0, **settings})
    server.do(cluster.start())
    try:
        yield cluster
    finally:
        server.do(cluster.close())
        server.do(names.server.close())


def change_topic(
    wire: Wire, topic: str, attributes: str = "", *, reads: int = 4, writes: int = 4, perm: int = 6
) -> None:
    """UPDATE_AND_CREATE_TOPIC."""
    answer = wire.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=reads,
        writeQueueNums=writes,
        perm=perm,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
        attributes=attributes,
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
