"""Topics as the proxy needs them: the queues of all brokers, and what may be sent.

Routes come from the name servers (105), a topic's attributes from one of its masters (351), where brokers have them.

Thread-safety: values. Corresponds to org.apache.rocketmq.proxy.service.route.{MessageQueueView, TopicRouteService} and
proxy.service.metadata.ClusterMetadataService.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_rocket.protocol.wire.bodies import QueueData, TopicRouteData

Queue = tuple[str, int]
"""A broker's name and a queue's id there."""


class Topic(NamedTuple):
    """A topic in a cluster. Queues are in a stable order: by broker, then by id."""

    name: str
    brokers: tuple[QueueData, ...]
    """What each broker with a master has of it."""
    writable: tuple[Queue, ...]
    in_turn: tuple[Queue, ...]
    """The writable queues, the brokers taking turns."""
    readable: tuple[str, ...]
    """The brokers that have queues to read from."""
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, name: str, data: TopicRouteData, attributes: Mapping[str, str]) -> Topic:
        masters = {broker.broker_name for broker in data.broker_datas if broker.master_addr is not None}
        brokers = sorted(
            (queues for queues in data.queue_datas if queues.broker_name in masters),
            key=lambda queues: queues.broker_name,
        )
        writable = tuple(
            (queues.broker_name, queue_id)
            for queues in brokers
            if queues.writable
            for queue_id in range(queues.write_queue_nums)
        )
        return cls(
            name,
            tuple(brokers),
            writable,
            tuple(sorted(writable, key=lambda queue: (queue[1], queue[0]))),
            tuple(queues.broker_name for queues in brokers if queues.readable and queues.read_queue_nums > 0),
            attributes,
        )

    def on(self, broker_name: str) -> QueueData | None:
        """What a broker has of it."""
        return next((queues for queues in self.brokers if queues.broker_name == broker_name), None)
