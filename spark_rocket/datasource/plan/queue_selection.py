"""Which queues to read: of ``subscribe``, of the topics that ``subscribePattern`` matches now, or of ``assign``.

The routes are requested again for every batch, so new topics and queues are found while a stream runs. A name server
drops an unavailable broker from its routes, and the remaining queues look complete. The expected brokers are therefore
known from elsewhere: the stream's checkpoint, the topic's ORDER_TOPIC_CONFIG, and the option ``expectedBrokers``, which
overrides both. Planning waits for expected brokers (``retryTimeout``).

Pure over the ``Queues`` requests, except that ``RetryDeadline`` sleeps. Corresponds to ConsumerStrategy of Spark's
Kafka source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parsers import matching
from spark_rocket.datasource.plan.queues import Queues
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.stream_offsets import Positions, format_positions, format_queues, format_some
from spark_rocket.errors import DataLossError, RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue


@dataclass(frozen=True, eq=False, repr=False)
class FoundQueues(FrozenValue):
    """The routes and queues at one time."""

    routes: Mapping[str, TopicRoute]
    wanted: tuple[MessageQueue, ...]
    missing: dict[str, TopicNotFoundError]
    """Topics to read that no name server knows."""
    unavailable: frozenset[str] = frozenset()
    """The missing topics whose brokers are missing too."""

    @cached_property
    def queues(self) -> frozenset[MessageQueue]:
        """All readable queues of the topics, selected by the options or not."""
        return frozenset(queue for route in self.routes.values() for queue in route.readable)

    @cached_property
    def brokers(self) -> set[tuple[str, str]]:
        """Pairs of topic and broker, readable or not."""
        readable = {(queue.topic, queue.broker_name) for queue in self.queues}
        return readable | {(topic, broker) for topic, route in self.routes.items() for broker in route.unreadable}


class QueueSelection:
    """Finds the queues that the options select, over the ``Queues`` requests."""

    def __init__(self, queues: Queues, options: ReadOptions) -> None:
        self._queues = queues
        self._options = options
        self._topics = options.topics
        self._pattern = options.topic_pattern
        self._matches: dict[str, bool] = {}
        self._assigned = frozenset(options.assigned) if options.assigned is not None else None

    def has(self, queue: MessageQueue) -> bool:
        """Return whether the options select a queue."""
        if self._assigned is not None:
            return queue in self._assigned
        if self._pattern is None:
            return queue.topic in self._topics
        if queue.topic not in self._matches:
            self._matches[queue.topic] = self._options.reads(queue)
        return self._matches[queue.topic]

    def now(self, known: Iterable[str] = ()) -> FoundQueues:
        """Return the current state. ``known`` are topics to request even if no name server lists them any more."""
        topics: Iterable[str] = self._topics
        if self._pattern is not None:
            there = {*self._queues.topics(), *self._queues.configured()}
            topics = sorted({*matching(self._pattern, there, self._options.namespace), *known})
        routes: dict[str, TopicRoute] = {}
        missing: dict[str, TopicNotFoundError] = {}
        for topic in topics:
            try:
                routes[topic] = self._queues.route(topic)
            except TopicNotFoundError as reason:
                missing[topic] = reason
        wanted = tuple(queue for route in routes.values() for queue in route.readable if self.has(queue))
        return FoundQueues(routes, wanted, missing)

    def readable(self, topics: Iterable[str]) -> set[MessageQueue]:
        """Return the readable queues of these topics."""
        found: set[MessageQueue] = set()
        for topic in topics:
            with suppress(TopicNotFoundError):
                found.update(self._queues.route(topic).readable)
        return found

    def complete(self, loss: LossPolicy, positions: Positions = MappingProxyType({})) -> FoundQueues:
        """Return ``now`` as soon as all expected brokers are available. ``positions``: the stream's offsets.

        Raises DataLossError if a broker stays unavailable for ``retryTimeout``; with ``failOnDataLoss=false`` it does
        not wait. Raises OffsetsError if queues exist but are not readable.
        """
        retry_deadline = RetryDeadline(self._options.retry_timeout_ms)
        topics = {queue.topic for queue in positions}
        while True:
            found = self.now(topics)
            self._check_readable(found)
            unavailable = self._unavailable_brokers(found, positions)
            try:
                for (topic, broker), why in unavailable.items():
                    loss.broker_unavailable(topic, broker, why)
            except DataLossError as problem:
                problem.retriable = True
                retry_deadline.wait(problem, "to find all brokers")
            else:
                return replace(found, unavailable=frozenset(topic for topic, _ in unavailable) & found.missing.keys())

    def _unavailable_brokers(self, found: FoundQueues, positions: Positions) -> dict[tuple[str, str], str]:
        """Return the expected but missing brokers of the topics, each with the reason why it is expected."""
        expected, configured = self._options.expected_brokers, self._queues.configured()
        topics = {*found.routes, *found.missing}
        known = {(q.topic, q.broker_name) for q in positions}
        known |= {(topic, broker) for topic in topics for broker in configured.get(topic, ())}
        unavailable: dict[tuple[str, str], str] = {}
        for topic, broker in sorted(known - found.brokers):
            if self._is_expected(topic, broker):
                at = {q: offset for q, offset in positions.items() if (q.topic, q.broker_name) == (topic, broker)}
                why = f"the stream is at {format_positions(at)}" if at else "the topic's ORDER_TOPIC_CONFIG names it"
                unavailable[topic, broker] = why
        if expected is not None:
            what = format_some(sorted(topics)) or str(self._pattern)
            for broker in sorted({*expected} - {broker for _, broker in found.brokers | unavailable.keys()}):
                unavailable[what, broker] = "the option expectedBrokers names it"
        if unavailable and (found.missing or not found.routes):
            # A topic that no name server knows is deleted or not created yet, unless its brokers are unknown too.
            alive = self._queues.brokers()
            unavailable = {
                (topic, broker): why
                for (topic, broker), why in unavailable.items()
                if topic in found.routes or (alive is not None and broker not in alive)
            }
        return unavailable

    def _is_expected(self, topic: str, broker: str) -> bool:
        """Return whether the options allow this broker to be expected."""
        if self._options.expected_brokers is not None:
            return broker in self._options.expected_brokers
        return self._assigned is None or any((q.topic, q.broker_name) == (topic, broker) for q in self._assigned)

    def _check_readable(self, found: FoundQueues) -> None:
        for topic, route in found.routes.items():
            closed = [broker for broker in sorted(route.unreadable) if self._is_expected(topic, broker)]
            if route.unreadable and not route.readable:
                closed = sorted(route.unreadable)
            if closed:
                raise error("BAD_OFFSETS.NOT_READABLE", topic=topic, brokers=", ".join(closed))

    def problem(self, found: FoundQueues, known: Collection[MessageQueue] = ()) -> RocketError | None:
        """Return the error for missing topics or queues, except those that are already being read."""
        never_read = found.missing.keys() - {queue.topic for queue in known}
        if self._pattern is None and never_read:
            return found.missing[min(never_read)]
        absent = sorted((self._assigned or frozenset()) - found.queues - {*known})
        if absent:
            return error(
                "BAD_OFFSETS.NO_SUCH_QUEUE",
                option="assign",
                queue=format_queues(absent[:1]),
                queues=format_queues(found.queues),
            )
        return None

    def nothing_matches(self) -> RocketError:
        """Return the error for a pattern without a matching topic."""
        users = matching(".*", self._queues.topics(), self._options.namespace)
        return error(
            "BAD_OFFSETS.NO_TOPIC_MATCHES",
            pattern=self._pattern,
            count=len(users),
            topics=", ".join(users[:8]) or "none",
        )
