"""A cluster in a table, for tests of planning."""

from __future__ import annotations

from collections.abc import Iterable

from spark_rocket.errors import BrokerError
from spark_rocket.model import MessageQueue


def q(queue_id: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


class FakeQueues:
    """Queues from ``min`` to ``max``; store times are ten times the offset; group offsets in a dictionary."""

    def __init__(self, **spans: tuple[int, int]) -> None:
        self.spans = {q(int(name.removeprefix("q"))): span for name, span in spans.items()}
        self.groups: dict[tuple[str, MessageQueue], int] = {}
        self.commits: list[tuple[str, MessageQueue, int]] = []
        self.asked: list[tuple[MessageQueue, bool]] = []  # committed offsets, and whether to wait for the answer
        self.down = False

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        wanted = set(topics)
        return [queue for queue in self.spans if queue.topic in wanted]

    def min_offset(self, queue: MessageQueue) -> int:
        return self.spans[queue][0]

    def max_offset(self, queue: MessageQueue) -> int:
        return self.spans[queue][1]

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        low, high = self.spans[queue]
        return max(low, min(high, -(-timestamp_ms // 10)))

    def committed_offset(self, group: str, queue: MessageQueue, *, patient: bool = True) -> int | None:
        self.asked.append((queue, patient))
        if self.down:
            raise BrokerError("down")
        return self.groups.get((group, queue))

    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.groups[group, queue] = offset
        self.commits.append((group, queue, offset))
