"""The topics of brokers, by broker and by topic.

==============  ===============================  ======================================================================
table           key -> value
==============  ===============================  ======================================================================
broker topics   broker name -> topic -> queues   the truth
topic brokers   topic -> broker names            an index: a name counts only if the broker has the topic
==============  ===============================  ======================================================================

A broker is removed in constant time, however many topics it has: its topics leave the first table at once. Their
entries in the index are removed by :meth:`TopicTable.sweep`, a limited number at a time.

The table is bounded in topics of a broker, in queues of a topic, in all entries, and in the bytes of all names, so that
a list of all topics fits into a frame.

Not stored on disk. Corresponds to the topicQueueTable of org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import REGISTERED_TOPICS
from spark_rocket.protocol.wire.bodies.register import MAX_TOPICS
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES, QueueData
from spark_rocket.protocol.wire.codes import PERM_WRITE


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The bounds of a table."""

    topics_of_broker: int = MAX_TOPICS
    entries: int = STATE_LIMITS[REGISTERED_TOPICS].total  # topics of brokers in all: about 250 bytes each
    name_bytes: int = 12 << 20  # of a JSON list of all names, which must fit into a frame of 16 MiB
    name_characters: int = 1_024
    queues: int = MAX_QUEUES


class TopicTable:
    """The table. Topics beyond a limit are omitted; ``put`` returns the reason."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self._limits = limits or TopicLimits()
        self._of_broker: dict[str, dict[str, QueueData]] = {}
        self._brokers_of: dict[str, dict[str, None]] = {}
        self._removed: deque[tuple[str, dict[str, QueueData]]] = deque()
        self._entries = 0
        self._name_bytes = 0

    def put(self, topic: str, queues: QueueData) -> str | None:
        """Add a broker's topic, or replace its queues; returns why it is omitted, or None."""
        limits, name = self._limits, queues.broker_name
        if max(queues.read_queue_nums, queues.write_queue_nums) > limits.queues:
            return f"more than {limits.queues:,} queues"
        if min(queues.read_queue_nums, queues.write_queue_nums) < 0:
            return "a negative number of queues"
        topics = self._of_broker.get(name)
        if topics is None:
            topics = self._of_broker[name] = {}
        if topic in topics:
            topics[topic] = queues
            return None
        if len(topics) >= limits.topics_of_broker:
            return f"more than {limits.topics_of_broker:,} topics of one broker"
        if self._entries >= limits.entries:
            return f"more than {limits.entries:,} topics of all brokers"
        names = self._brokers_of.get(topic)
        if names is None:
            if len(topic) > limits.name_characters:
                return f"a name of more than {limits.name_characters:,} characters"
            size = _size(topic)
            if self._name_bytes + size > limits.name_bytes:
                return f"names of more than {limits.name_bytes:,} bytes in all"
            self._name_bytes += size
            names = self._brokers_of[topic] = {}
        names[name] = None
        topics[topic] = queues
        self._entries += 1
        return None

    def __len__(self) -> int:
        """The number of topics; the topics of a removed broker count until they are swept."""
        return len(self._brokers_of)

    def has(self, topic: str, broker_name: str) -> bool:
        return topic in self._of_broker.get(broker_name, ())

    def queues(self, topic: str) -> list[QueueData]:
        """A topic's queues on each of its brokers; empty for an unknown topic."""
        found = (self._of_broker.get(name, {}).get(topic) for name in self._brokers_of.get(topic, ()))
        return [queues for queues in found if queues is not None]

    def remove(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        names = self._brokers_of.get(topic)
        if names is None:
            return
        wanted = list(names) if broker_names is None else names.keys() & broker_names
        for name in wanted:
            if self._of_broker.get(name, {}).pop(topic, None) is not None:
                self._entries -= 1
            self._drop(topic, names, name)

    def remove_broker(self, broker_name: str) -> None:
        """Remove all topics of a broker in constant time. Call ``sweep`` until it returns False."""
        topics = self._of_broker.pop(broker_name, None)
        if topics:
            self._entries -= len(topics)
            self._removed.append((broker_name, topics))

    def sweep(self, most: int) -> bool:
        """Remove up to ``most`` entries of removed brokers from the index; False if none is left."""
        while self._removed and most > 0:
            name, topics = self._removed[0]
            while topics and most > 0:
                topic = topics.popitem()[0]
                names = self._brokers_of.get(topic)
                if names is not None and not self.has(topic, name):
                    self._drop(topic, names, name)
                most -= 1
            if not topics:
                self._removed.popleft()
        return bool(self._removed)

    def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Set or clear the write permission of all of a broker's topics; returns their number."""
        topics = self._of_broker.get(broker_name, {})
        for queues in topics.values():
            queues.perm = queues.perm | PERM_WRITE if allowed else queues.perm & ~PERM_WRITE
        return len(topics)

    def topics(self) -> list[str]:
        if not self._removed:
            return sorted(self._brokers_of)
        return self.topics_of(self._of_broker)

    def topics_of(self, broker_names: Iterable[str]) -> list[str]:
        """The topics that at least one of these brokers has, sorted."""
        found: set[str] = set()
        for name in broker_names:
            found.update(self._of_broker.get(name, ()))
        return sorted(found)

    def _drop(self, topic: str, names: dict[str, None], name: str) -> None:
        names.pop(name, None)
        if not names:
            del self._brokers_of[topic]
            self._name_bytes -= _size(topic)


def _size(topic: str) -> int:
    """Bytes of a topic in a JSON list, at most."""
    return (len(topic) if topic.isascii() and topic.isprintable() else 6 * len(topic)) + 3
