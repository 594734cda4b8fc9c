"""Topics as an :class:`Admin` reports them: their settings on each broker, and their queues.

Values that are never changed; units and failures as in broker_rows.py.
Corresponds to org.apache.rocketmq.tools.command.topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from spark_rocket.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    MessageQueue,
    is_system_topic,
)
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.bodies.stats import TopicStatsTable
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE

_ANY_TYPE = "UNSPECIFIED"


class TopicKind(StrEnum):
    """The purpose of a topic."""

    USER = "USER"
    RETRY = "RETRY"
    DLQ = "DLQ"
    SYSTEM = "SYSTEM"


def topic_kind(topic: str, brokers_and_clusters: Iterable[str] = ()) -> TopicKind:
    """Return the kind of a topic by its name. Brokers own internal topics with their names and their cluster's."""
    if topic.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return TopicKind.DLQ
    own = is_system_topic(topic)
    if own or topic.removesuffix("_REPLY_TOPIC") in brokers_and_clusters:
        return TopicKind.SYSTEM
    return TopicKind.USER


def perm_text(perm: int) -> str:
    """Return R and W, or - if missing."""
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic on one broker."""

    topic: str
    broker_name: str
    kind: TopicKind
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    sys_flag: int
    attributes: dict[str, str]

    @classmethod
    def of(cls, broker_name: str, config: TopicConfig, kind: TopicKind | None = None) -> TopicRow:
        return cls(
            config.topic_name,
            broker_name,
            kind or topic_kind(config.topic_name),
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            config.topic_sys_flag,
            config.attributes,
        )

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION or MIXED; UNSPECIFIED accepts any."""
        return self.attributes.get("message.type", _ANY_TYPE)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its settings on each broker; no settings if only the name server has it or no broker responded."""

    name: str
    kind: TopicKind
    configs: dict[str, TopicConfig]

    @property
    def read_queues(self) -> int:
        return sum(config.read_queue_nums for config in self.configs.values())

    @property
    def write_queues(self) -> int:
        return sum(config.write_queue_nums for config in self.configs.values())

    @property
    def rows(self) -> list[TopicRow]:
        """One row for each broker, by name."""
        return [TopicRow.of(broker, config, self.kind) for broker, config in sorted(self.configs.items())]

    @property
    def perm(self) -> str:
        """The permission granted on any of its brokers: R and W, or - if missing."""
        return perm_text(reduce(or_, (config.perm for config in self.configs.values()), 0))

    @property
    def order(self) -> bool:
        return any(config.order for config in self.configs.values())

    @property
    def attributes(self) -> dict[str, str]:
        every: dict[str, str] = {}
        for config in self.configs.values():
            every |= config.attributes
        return every

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION or MIXED; UNSPECIFIED accepts any."""
        return self.attributes.get("message.type", _ANY_TYPE)


class QueueState(NamedTuple):
    """A queue: its first offset, its end, and the store time of its last message (0: unknown)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int

    @property
    def messages(self) -> int:
        return max(self.max_offset - self.min_offset, 0)


@dataclass(frozen=True)
class TopicState:
    """The queues of a topic, sorted, and the messages per second that its brokers report (None: they do not).

    Sums are computed once: the console shows the sums of thousands of topics.
    """

    queues: list[QueueState]
    put_tps: float | None = None

    @classmethod
    def of(cls, table: TopicStatsTable) -> TopicState:
        offsets = sorted(table.offset_table.items())
        queues = [QueueState(queue, at.min_offset, at.max_offset, at.last_update_timestamp) for queue, at in offsets]
        return cls(queues, table.topic_put_tps)

    @cached_property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @cached_property
    def end(self) -> int:
        """The sum of the queues' ends."""
        return sum(queue.max_offset for queue in self.queues)

    @cached_property
    def last_stored_ms(self) -> int:
        return max((queue.last_stored_ms for queue in self.queues), default=0)

    @property
    def newest(self) -> QueueState | None:
        """The queue with the newest message; None without messages."""
        filled = [queue for queue in self.queues if queue.messages]
        return max(filled, key=lambda queue: (queue.last_stored_ms, queue.queue), default=None)
