"""The broker's topics: the system's own, those created by an admin, and those that a first message creates.

``TopicConfig`` values are never changed in place: a change puts a new value into the table, so that a copy of the
table is a consistent picture for the thread that writes ``topics.json``.

Thread-safety: used on the event loop only; :meth:`TopicConfigManager.snapshot` returns something any thread may use.
After a crash: a topic whose creation was acknowledged is in ``topics.json``, because the answer waits for the file.
Corresponds to org.apache.rocketmq.broker.topic.TopicConfigManager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.model import (
    AUTO_CREATE_TOPIC_KEY,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_EVENT,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    is_system_topic,
)
from spark_rocket.protocol.wire.bodies import DataVersion, TopicConfig, dumps_fastjson
from spark_rocket.protocol.wire.codes import PERM_INHERIT, PERM_READ, PERM_WRITE

PERM_READ_WRITE = PERM_READ | PERM_WRITE
DELAY_LEVELS = 18
SIMPLE_QUEUES = "SimpleCQ"
"""The value of a topic's ``queue.type`` that is served; the other is BatchCQ."""

MAX_QUEUES = 65_536

_MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


def alter_attributes(current: dict[str, str], text: str | None, *, create: bool) -> dict[str, str]:
    """Attributes after ``+key=value,-key``; ValueError with a sentence for what cannot be.

    Only what would change nothing is accepted of the attributes that this broker does not act on: a compacted or
    batch-queue topic must not silently become a plain one.
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


class TopicConfigManager:
    """The table of topics with its version. ``on_change`` is called with a topic's name after every change to it."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self.table: dict[str, TopicConfig] = {}
        self._texts: dict[str, str] = {}
        self._adopted: set[str] = set()
        self.data_version = DataVersion(timestamp=clock())
        self.on_change: Callable[[str], None] = lambda topic: None
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
            (f"rmq_sys_REVIVE_LOG_{cluster}", 8, PERM_READ_WRITE),
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
        #: Those of RocketMQ's own, which no tool may change or delete.
        self.system = SYSTEM_TOPICS | {name for name, _, _ in topics}

    def get(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """Whether it is one of RocketMQ's own, of this cluster and broker too."""
        return topic in self.system or is_system_topic(topic)

    def put(self, config: TopicConfig) -> None:
        """Add a topic or replace its settings."""
        self.table[config.topic_name] = config
        self._changed(config.topic_name)

    def delete(self, topic: str) -> bool:
        if self.table.pop(topic, None) is None:
            return False
        self._changed(topic)
        return True

    def ensure(self, topic: str, queues: int = 1, perm: int = PERM_READ_WRITE) -> TopicConfig:
        """The topic, created when it is not there: for retry and dead-letter topics."""
        found = self.table.get(topic)
        if found is None:
            found = new_topic(topic, queues, perm)
            if not self._config.is_slave:  # which has its master's topics, and no others
                self.put(found)
        return found

    def auto_create(self, topic: str, default_topic: str, wanted_queues: int) -> TopicConfig | None:
        """Create what a first message asks for, as its default topic allows; None when that forbids it."""
        if topic.startswith(RETRY_PREFIX):
            return self.ensure(topic)
        default = self.table.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC_KEY and not self._config.auto_create_topic_enable:
            return None
        queues = max(min(wanted_queues, default.write_queue_nums), 0)
        if not queues:
            return None
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

    def replace(self, stored: dict[str, Any]) -> bool:
        """On a slave: have the topics of a master; False if nothing changed.

        ProtocolError, TypeError or KeyError, and nothing changed, when it does not fit.
        """
        version = DataVersion.from_value(stored["dataVersion"])
        if version == self.data_version and not self._adopted:
            return False
        table = {
            name: TopicConfig.from_value({"topicName": name, **entry})
            for name, entry in stored["topicConfigTable"].items()
        }
        self._texts.clear()
        self._adopted.clear()
        self.table, self.data_version = table, version
        return True

    def adopt(self, topic: str, queues: int) -> bool:
        """On a slave: a topic that it knows from the log alone has so many queues at least; False if that is known."""
        if topic in self.table and (topic not in self._adopted or self.table[topic].read_queue_nums >= queues):
            return False
        self._adopted.add(topic)
        self._texts.pop(topic, None)
        self.table[topic] = new_topic(topic, queues)
        return True

    def _changed(self, topic: str) -> None:
        self._texts.pop(topic, None)
        self.data_version = self.data_version.next(self._clock())
        self.on_change(topic)

    def snapshot(self, perm_mask: int = 0xF) -> dict[str, Any]:
        """What code 21 and a registration carry, as plain values.

        The version is read first: with a table that is newer than its version, a name server hears again.
        """
        version = self.data_version.to_value()
        table = self.table.copy()  # one step of the interpreter, so safe from any thread
        if perm_mask & PERM_READ_WRITE != PERM_READ_WRITE:
            table = {name: dataclasses.replace(entry, perm=entry.perm & perm_mask) for name, entry in table.items()}
        return {
            "dataVersion": version,
            "topicConfigTable": {name: entry.to_value() for name, entry in table.items()},
        }

    def text(self) -> bytes:
        """``topics.json`` as Apache writes it. Each topic's part is made once: large files are written often."""
        for name, entry in self.table.items():
            if name not in self._texts:
                nested = dumps_fastjson({"": {name: entry.to_value()}}, pretty=True).decode()
                self._texts[name] = nested[nested.index("{", 1) + 1 : -len("\n\t}\n}")]
        version = dumps_fastjson({"dataVersion": self.data_version.to_value()}, pretty=True).decode()
        parts = ",".join([self._texts[name] for name in self.table])
        return f'{version[:-2]},\n\t"topicConfigTable":{{{parts}\n\t}}\n}}'.encode()

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what a ``topics.json`` says; ValueError, TypeError or KeyError when it does not fit."""
        self._texts.clear()
        for name, entry in stored.get("topicConfigTable", {}).items():
            self.table[name] = TopicConfig.from_value({"topicName": name, **entry})
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)


def new_topic(name: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
