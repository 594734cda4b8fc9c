"""The broker's topics: the system's own, those created by an admin, and those that a first message creates.

Thread-safety: used on the event loop only; ``snapshot`` may be called by any thread.
After a crash: a topic whose creation was acknowledged is in ``topics.json``.
Corresponds to org.apache.rocketmq.broker.topic.TopicConfigManager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.versioned_table import VersionedTable
from spark_rocket.errors import RefusedError
from spark_rocket.model import (
    AUTO_CREATE_TOPIC_KEY,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_EVENT,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    is_system_topic,
)
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import TOPICS
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig
from spark_rocket.protocol.wire.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, SEE_FAQ, ResponseCode

PERM_READ_WRITE = PERM_READ | PERM_WRITE
DELAY_LEVELS = 18
SIMPLE_QUEUES = "SimpleCQ"
"""The value of a topic's ``queue.type`` that is served; the other is BatchCQ."""

_MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


def alter_attributes(current: dict[str, str], text: str | None, *, create: bool) -> dict[str, str]:
    """Apply ``+key=value,-key`` to the attributes; ValueError, whose text is a sentence, for an invalid change.

    Attributes that this broker does not support are accepted only with a value that has no effect: a compacted or
    batch-queue topic must not silently become a normal one.
    """
    result = dict(current)
    for part in (text or "").split(","):
        part = part.strip()
        if not part:
            continue
        name, _, value = part[1:].partition("=")
        allowed = {
            "message.type": _MESSAGE_TYPES,
            "queue.type": (SIMPLE_QUEUES,),
            "cleanup.policy": ("DELETE",),
            "reserve.time": None,
        }
        if part[0] not in "+-":
            raise ValueError(f"add/alter attribute format is wrong: {part}")
        if name not in allowed:
            raise ValueError(f"unsupported key: {name}")
        values = allowed[name]
        if part[0] == "-":
            if create:
                raise ValueError(f"only add attribute is supported while creating topic. key: {name}")
            result.pop(name, None)
        elif values is not None and value not in values:
            raise ValueError(f"{name}={value} is not supported here, only {', '.join(values)}")
        else:
            result[name] = value
    return result


class TopicConfigManager(VersionedTable[TopicConfig]):
    """The table of topics."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        super().__init__(
            clock,
            member="topicConfigTable",
            of_value=TopicConfig.from_value,
            name_field="topicName",
            most=STATE_LIMITS[TOPICS].total,
        )
        self._config = config
        self._adopted: set[str] = set()
        self._create_system_topics()

    def _create_system_topics(self) -> None:
        config = self._config
        cluster, broker = config.broker_cluster_name, config.broker_name
        shared = PERM_READ_WRITE | PERM_INHERIT
        topics = [
            (SELF_TEST_TOPIC, 1, PERM_READ_WRITE),
            (BENCHMARK_TOPIC, 1024, PERM_READ_WRITE),
            (cluster, 16, shared if config.cluster_topic_enable else PERM_INHERIT),
            (broker, 1, shared if config.broker_topic_enable else PERM_INHERIT),
            (OFFSET_MOVED_EVENT, 1, PERM_READ_WRITE),
            (SCHEDULE_TOPIC, DELAY_LEVELS, PERM_READ_WRITE),
            (f"{cluster}_REPLY_TOPIC", 1, PERM_READ_WRITE),
            (f"{REVIVE_PREFIX}{cluster}", 8, PERM_READ_WRITE),
            (f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERM_READ_WRITE),
            (HALF_TOPIC, 1, PERM_READ_WRITE),
            (OP_HALF_TOPIC, 1, PERM_READ_WRITE),
        ]
        if config.auto_create_topic_enable:
            topics.insert(0, (AUTO_CREATE_TOPIC_KEY, config.default_topic_queue_nums, shared))
        if config.timer_wheel_enable:
            topics.append((TIMER_TOPIC, 1, PERM_READ_WRITE))
        if config.trace_topic_enable:
            topics.append((config.msg_trace_topic_name, 1, PERM_READ_WRITE))
        for name, queues, perm in topics:
            self.table[name] = new_topic(name, queues, perm)
        #: RocketMQ's own topics, which no tool may change or delete.
        self.system = SYSTEM_TOPICS | {name for name, _, _ in topics}

    def is_system(self, topic: str) -> bool:
        """Whether this is one of RocketMQ's own topics, including those of this cluster and broker."""
        return topic in self.system or is_system_topic(topic)

    def known(self, topic: str, remark: str | None = None) -> TopicConfig:
        """The topic; RefusedError if it does not exist, with ``remark`` or Apache's remark for readers."""
        config = self.get(topic)
        if config is None:
            remark = remark or f"topic[{topic}] not exist, apply first please! {SEE_FAQ}"
            raise RefusedError(remark, ResponseCode.TOPIC_NOT_EXIST)
        return config

    def to_read(self, topic: str, queue_id: int, group: str) -> TopicConfig:
        """The topic, if the group may pull from this queue; otherwise RefusedError."""
        config = self.known(topic)
        if not config.perm & PERM_READ:
            raise RefusedError(f"the topic[{topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
        if not 0 <= queue_id < config.read_queue_nums:
            raise illegal_queue(config, queue_id, group)
        return config

    def read_queues(self, topic: str) -> int:
        """The number of a topic's read queues; 0 if it does not exist."""
        config = self.get(topic)
        return 0 if config is None else config.read_queue_nums

    def put(self, config: TopicConfig) -> None:
        self._put(config.topic_name, config)

    def ensure(self, topic: str, queues: int = 1, perm: int = PERM_READ_WRITE) -> TopicConfig:
        """Return the topic, created if missing: for retry and dead-letter topics."""
        found = self.table.get(topic)
        if found is None:
            found = new_topic(topic, queues, perm)
            if not self._config.is_slave:  # a slave has only its master's topics
                self.put(found)
        return found

    def auto_create(self, topic: str, default_topic: str, wanted_queues: int) -> TopicConfig | None:
        """Create the topic of a first message if its default topic allows it; otherwise None.

        RefusedError if the broker has ``maxAutoCreateTopics``.
        """
        if topic.startswith(RETRY_PREFIX):
            self._check_creation(topic)
            return self.ensure(topic)
        default = self.table.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC_KEY and not self._config.auto_create_topic_enable:
            return None
        queues = max(min(wanted_queues, default.write_queue_nums), 0)
        if not queues:
            return None
        self._check_creation(topic)
        created = dataclasses.replace(
            default,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=default.perm & ~PERM_INHERIT,
            attributes={},
        )
        self.put(created)
        return created

    def _check_creation(self, topic: str) -> None:
        problem = self.creation_problem("maxAutoCreateTopics", self._config.max_auto_create_topics)
        if problem:
            raise RefusedError(
                f"topic[{topic}] not exist, and is not created: {problem}.",
                ResponseCode.TOPIC_NOT_EXIST,
                remedy="Create the topic with a tool, or increase maxAutoCreateTopics.",
            )

    def replace(self, stored: dict[str, Any]) -> bool:
        """Replace a slave's topics with its master's; False if nothing changed."""
        if self._adopted:
            self.data_version = DataVersion()  # adopted topics are not the master's: equals none of its versions
        if not super().replace(stored):
            return False
        self._adopted.clear()
        return True

    def adopt(self, topic: str, queues: int) -> bool:
        """Add a topic that a slave knows only from the log, with at least ``queues`` queues; False if it is known."""
        if topic in self.table and (topic not in self._adopted or self.table[topic].read_queue_nums >= queues):
            return False
        self._adopted.add(topic)
        self._texts.pop(topic, None)
        self.table[topic] = new_topic(topic, queues)
        return True


def new_topic(name: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def illegal_queue(
    config: TopicConfig, queue_id: int, group: str, code: ResponseCode = ResponseCode.INVALID_PARAMETER
) -> RefusedError:
    return RefusedError(
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] topicConfig.readQueueNums:"
        f"[{config.read_queue_nums}] consumer:[{group}]",
        code,
    )
