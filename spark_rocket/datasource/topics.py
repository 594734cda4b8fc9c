"""Which queues are read: those of ``subscribe``, of the topics that ``subscribePattern`` matches now, or of ``assign``.

Asked anew for every batch, so that new topics and queues are found while a stream runs.

Pure over the ``Queues`` questions. Corresponds to ConsumerStrategy of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.offsets import listed
from spark_rocket.datasource.option_parsers import matching
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.resolve import Queues
from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue


@dataclass(frozen=True)
class Found:
    """What there is at a moment."""

    queues: frozenset[MessageQueue]
    """All queues of the topics, whether they are to be read or not."""
    wanted: tuple[MessageQueue, ...]
    missing: dict[str, TopicNotFoundError]
    """Topics that are to be read and that nobody knows."""

    @property
    def brokers(self) -> set[tuple[str, str]]:
        """Which brokers have which topics."""
        return {(queue.topic, queue.broker_name) for queue in self.queues}


class WhatToRead:
    """The options that say what to read, over the ``Queues`` questions."""

    def __init__(self, queues: Queues, options: ReadOptions) -> None:
        self._queues = queues
        self._topics = options.topics
        self._pattern = options.topic_pattern
        self._matches: dict[str, bool] = {}
        self._assigned = frozenset(options.assigned) if options.assigned is not None else None

    def has(self, queue: MessageQueue) -> bool:
        """Whether a queue belongs to what is read."""
        if self._assigned is not None:
            return queue in self._assigned
        if self._pattern is not None:
            if queue.topic not in self._matches:
                self._matches[queue.topic] = bool(matching(self._pattern, [queue.topic]))
            return self._matches[queue.topic]
        return queue.topic in self._topics

    def now(self, known: Iterable[str] = ()) -> Found:
        """What there is now. ``known`` are topics to be asked for though no name server may list them any more."""
        topics: Iterable[str] = self._topics
        if self._pattern is not None:
            topics = sorted({*matching(self._pattern, self._queues.topics()), *known})
        missing: dict[str, TopicNotFoundError] = {}
        try:
            found = self._queues.queues(topics)
        except TopicNotFoundError:
            found = []
            for topic in topics:
                try:
                    found += self._queues.queues([topic])
                except TopicNotFoundError as reason:
                    missing[topic] = reason
        return Found(frozenset(found), tuple(queue for queue in found if self.has(queue)), missing)

    def problem(self, found: Found, known: Collection[MessageQueue] = ()) -> RocketError | None:
        """What is named and does not exist, but for queues that are being read."""
        never_read = found.missing.keys() - {queue.topic for queue in known}
        if self._pattern is None and never_read:
            return found.missing[min(never_read)]
        absent = sorted((self._assigned or frozenset()) - found.queues - {*known})
        if absent:
            return error(
                "BAD_OFFSETS.NO_SUCH_QUEUE", option="assign", queue=listed(absent[:1]), queues=listed(found.queues)
            )
        return None

    def nothing_matches(self) -> RocketError:
        """A pattern without a topic."""
        users = matching(".*", self._queues.topics())
        return error(
            "BAD_OFFSETS.NO_TOPIC_MATCHES",
            pattern=self._pattern,
            count=len(users),
            topics=", ".join(users[:8]) or "none",
        )
