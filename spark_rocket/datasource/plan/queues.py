"""The requests of planning: ``Queues``, which ``Cluster`` sends, and which tests implement with a table.

An interface without state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.stream_offsets import Positions
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue


class Queues(Protocol):
    """The requests of planning, each for many queues. Tests implement them with a table.

    Each is retried until it succeeds or ``retryTimeout`` has passed, except ``commit_offsets`` and
    ``known_sizes``.
    """

    @property
    def from_slaves(self) -> Collection[MessageQueue]:
        """The queues whose ends a slave reported while the master is unavailable: they may lack new messages."""

    def topics(self) -> list[str]:
        """Return all topics known to the name server, except those named after clusters and brokers."""

    def route(self, topic: str) -> TopicRoute:
        """Request the route without a cache. TopicNotFoundError if no name server knows the topic."""

    def brokers(self) -> Collection[str] | None:
        """Return all brokers known to the name server now; None if it does not report them."""

    def configured(self) -> Mapping[str, Collection[str]]:
        """Return the brokers that ORDER_TOPIC_CONFIG assigns to each of its topics, available or not."""

    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]: ...
    def max_offsets(self, queues: Collection[MessageQueue], going_on: Positions = ...) -> dict[MessageQueue, int]:
        """Return the queues' ends. ``going_on`` has the positions of queues that are already being read. For those, a
        slave may report the end while the master is unavailable, if it is not before the position. A first position
        must come from the master: a slave may also lack the oldest messages."""

    def first_times(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the store time of each queue's first message, in ms; omits empty queues and unknown times."""

    def store_times(self, at: Positions) -> dict[MessageQueue, int]:
        """Return the store time of the message at an offset of each queue, in ms; omits offsets without a message."""

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]: ...
    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return committed offsets; omits queues without one."""

    def message_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        """Return the sizes in bytes of up to ``count`` stored messages from each start on."""

    def known_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        """Like ``message_sizes``, without retries; omits queues of brokers that do not report sizes now."""

    def commit_offsets(self, group: str, ends: Positions) -> dict[MessageQueue, RocketError]:
        """Commit offsets without waiting for unavailable brokers; return the queues that failed, with the error.

        An offset beyond a queue's end is not committed. It moves backwards only if the group's is beyond the end.
        """
