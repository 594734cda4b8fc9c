"""Consumer groups as an :class:`Admin` reports them: settings, members, progress and planned resets.

Values that are never changed; units and failures as in broker_rows.py.
Corresponds to org.apache.rocketmq.tools.command.consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.model import (
    RETRY_PREFIX,
    MessageQueue,
    is_system_group,
)
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of a group in one queue. ``committed`` is None if it has not consumed anything yet."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """The number of available messages that the group has not consumed."""
        return max(0, self.max_offset - max(self.committed or 0, self.min_offset))


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group and its settings on each broker."""

    name: str
    configs: dict[str, SubscriptionGroupConfig]

    @property
    def is_system(self) -> bool:
        return is_system_group(self.name)

    @property
    def retry_max_times(self) -> int:
        return max((config.retry_max_times for config in self.configs.values()), default=0)

    @property
    def ordered(self) -> bool:
        return any(config.consume_message_orderly for config in self.configs.values())


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A connection of a client to a broker. ``version``: its number in the protocol."""

    broker_name: str
    client_id: str
    address: str
    language: str
    version: int
    last_heartbeat_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A connected producer or consumer, and the brokers it is connected to.

    ``last_heartbeat_ms``: of producers, where the brokers report it (328); None otherwise.
    """

    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]
    last_heartbeat_ms: int | None = None
    connections: list[ClientConnection] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue (208).

    ``last_timestamp``: the store time of the last consumed message. ``delay_ms``: the age of the first pending message,
    0 if there is none.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int | None
    last_timestamp: int
    delay_ms: int = 0

    @property
    def lag(self) -> int:
        return max(self.broker_offset - max(self.consumer_offset, 0), 0)


@dataclass(frozen=True, slots=True)
class GroupState:
    """Members, subscriptions and progress of a group. The three strings are None while no consumer is online."""

    group: str
    members: list[Member]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str | None
    message_model: str | None
    consume_from_where: str | None
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def online(self) -> bool:
        return bool(self.members)

    @property
    def topics(self) -> list[str]:
        return sorted({queue.queue.topic for queue in self.queues} | self.subscriptions.keys())

    @property
    def own_topics(self) -> list[str]:
        """The topics without its retry topics."""
        return [topic for topic in self.topics if not topic.startswith(RETRY_PREFIX)]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def delay_ms(self) -> int:
        """The age of the oldest pending message."""
        return max((queue.delay_ms for queue in self.queues), default=0)

    def lag_of(self, topic: str) -> int:
        return sum(queue.lag for queue in self.queues if queue.queue.topic == topic)


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """The offset of a group in a queue, None if it has none, and the offset that a reset would set."""

    queue: MessageQueue
    committed: int | None
    target: int

    @property
    def change(self) -> int | None:
        """The number of skipped messages, negative for repeated ones; None without an offset."""
        return None if self.committed is None else self.target - self.committed
