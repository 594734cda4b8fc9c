"""A job's topics: made when they are not there yet, and watched while they fill."""

from __future__ import annotations

from spark_rocket.client import Admin, Reader
from spark_rocket.errors import TopicNotFoundError


def ensure_topic(name_server: str, topic: str, queues: int) -> bool:
    """Create the topic unless it exists; an existing one is left as it is. True if it was created."""
    with Admin(name_server=name_server) as admin:
        try:
            admin.topic_route(topic)
        except TopicNotFoundError:
            admin.create_topic(topic, queues=queues)
            return True
    return False


class TopicWatch:
    """How many messages a topic has got since the watch began."""

    def __init__(self, name_server: str, topic: str) -> None:
        self._reader = Reader(name_server)
        self._topic = topic
        self._before = self._total()

    def _total(self) -> int:
        return sum(self._reader.max_offset(queue) for queue in self._reader.queues(self._topic))

    def arrived(self) -> int:
        return self._total() - self._before

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> TopicWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
