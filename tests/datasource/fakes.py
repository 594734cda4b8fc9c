"""A fake cluster for tests of planning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.errors import BrokerError, RemotingConnectError, RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.route import TopicRouteData


def q(queue_id: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def route_of(topic: str, readable: tuple[MessageQueue, ...], unreadable: frozenset[str] = frozenset()) -> TopicRoute:
    return TopicRoute(topic, readable, (), {}, {}, TopicRouteData(), unreadable=unreadable)


class FakeQueues:
    """Queues from ``min`` to ``max``; store times are ten times the offset; group offsets in a dictionary."""

    def __init__(self, **spans: tuple[int, int]) -> None:
        self.spans = {q(int(name.removeprefix("q"))): span for name, span in spans.items()}
        self.groups: dict[tuple[str, MessageQueue], int] = {}
        self.commits: list[tuple[str, MessageQueue, int]] = []
        self.told: list[MessageQueue] = []  # queues with attempted commits
        self.down = False
        self.size_of: Callable[[MessageQueue, int], int] = lambda queue, offset: 100
        self.hidden: dict[MessageQueue, tuple[int, int]] = {}  # on a broker, but not in the route
        self.masterless: set[MessageQueue] = set()  # their spans are those of the slave
        self.from_slaves: set[MessageQueue] = set()
        self.began: dict[MessageQueue, int] = {}  # when offset 0 was stored, in ms; 0 for others
        self.says_times = True
        self.regrown: dict[MessageQueue, tuple[int, int]] = {}  # stored this much later from an offset on
        self.without_topics: set[str] = set()  # brokers
        self.looked_up: list[MessageQueue] = []
        self.unreadable: set[tuple[str, str]] = set()  # topics and brokers
        self.ordered: dict[str, tuple[str, ...]] = {}  # ORDER_TOPIC_CONFIG's brokers of topics

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.spans})

    def brokers(self) -> set[str]:
        return {queue.broker_name for queue in self.spans} | self.without_topics

    def route(self, topic: str) -> TopicRoute:
        unreadable = frozenset(broker for of, broker in self.unreadable if of == topic)
        if topic not in self.topics() and not unreadable:
            raise TopicNotFoundError(f"Topic {topic!r} does not exist.")
        readable = tuple(q for q in self.spans if q.topic == topic and q.broker_name not in unreadable)
        return route_of(topic, readable, unreadable)

    def configured(self) -> dict[str, tuple[str, ...]]:
        return self.ordered

    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        if self.masterless.intersection(queues):
            raise RemotingConnectError("away")
        return {queue: self.spans[queue][0] for queue in queues}

    def max_offsets(
        self, queues: Collection[MessageQueue], going_on: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        self.from_slaves = {queue for queue in queues if queue in self.masterless and queue in (going_on or {})}
        if self.masterless - self.from_slaves:
            raise RemotingConnectError("away")
        ends = {queue: (self.spans.get(queue) or self.hidden.get(queue, (0, 0)))[1] for queue in queues}
        return ends | {queue: max(ends[queue], (going_on or {})[queue]) for queue in self.from_slaves}

    def message_sizes(self, starts: Mapping[MessageQueue, int], count: int) -> dict[MessageQueue, list[int]]:
        return {
            queue: [self.size_of(queue, offset) for offset in range(start, min(start + count, self.spans[queue][1]))]
            for queue, start in starts.items()
        }

    def known_sizes(self, starts: Mapping[MessageQueue, int], count: int) -> dict[MessageQueue, list[int]]:
        return self.message_sizes({queue: start for queue, start in starts.items() if queue in self.spans}, count)

    def first_times(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        spans = {queue: self.spans[queue] for queue in queues} if self.says_times else {}
        return {queue: self.began.get(queue, 0) + 10 * low for queue, (low, end) in spans.items() if low < end}

    def store_times(self, at: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        self.looked_up += at
        found = {queue: self.store_time(queue, offset) for queue, offset in at.items()}
        return {queue: stored for queue, stored in found.items() if stored is not None}

    def store_time(self, queue: MessageQueue, offset: int) -> int | None:
        low, end = self.spans.get(queue, (0, 0))
        if not self.says_times or not low <= offset < end:
            return None
        since, later = self.regrown.get(queue, (end, 0))
        return self.began.get(queue, 0) + 10 * offset + (later if offset >= since else 0)

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        found = {}
        for queue, time_ms in times_ms.items():
            low, high = self.spans[queue]
            times = ((at, self.store_time(queue, at)) for at in range(low, high))
            found[queue] = next((at for at, stored in times if stored is not None and stored >= time_ms), high)
        return found

    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        if self.down:
            raise BrokerError("down")
        return {queue: self.groups[group, queue] for queue in queues if (group, queue) in self.groups}

    def commit_offsets(self, group: str, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, RocketError]:
        self.told += ends
        if self.down:
            return {queue: BrokerError("down") for queue in ends}
        for queue, end in ends.items():
            assert end <= self.spans[queue][1], "beyond the end"
            if not end <= self.groups.get((group, queue), -1) <= self.spans[queue][1]:
                self.groups[group, queue] = end
                self.commits.append((group, queue, end))
        return {}
