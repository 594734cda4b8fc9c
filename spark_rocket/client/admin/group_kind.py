"""The kind of a consumer group: with members, of a running or stopped Spark stream, without consumers, or new.

A Spark stream with ``consumerGroup`` commits its progress but is not a member: it sends no heartbeats. Two signs
distinguish its group from one whose consumers are offline. First, a group of consumers has a retry topic: a broker
creates ``%RETRY%group`` with the first heartbeat of a member. Second, commits that continue without members are those
of a stream, also after other consumers; a single commit may be a reset. Clients of RocketMQ 5 (gRPC) are the
exception: their retry topic is created with the first retried message. Until then, a group of such clients is taken
for a stream if its members had left before the first observation.

A stream counts as stopped when messages are pending and it has not committed for ``STOPPED_SECONDS``. Without pending
messages its state is unknown, and it counts as running.

Thread-safety: not thread-safe.
"""

from __future__ import annotations

from collections.abc import Container
from enum import StrEnum

from spark_rocket.client.admin.group_rows import GroupState
from spark_rocket.model import RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.ids import retry_topic

STOPPED_SECONDS = 300.0
_MOVES = 2


class GroupKind(StrEnum):
    """``label`` is its name in the console and on the command line."""

    label: str

    ONLINE = "online", "online"
    STREAM = "stream", "Spark stream"
    STOPPED = "stopped", "Spark stream, stopped"
    IDLE = "idle", "no consumers"
    NEW = "new", "nothing consumed yet"

    def __new__(cls, value: str, label: str) -> GroupKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.label = label
        return kind


class GroupHistory:
    """The observations of one group over time."""

    def __init__(self) -> None:
        self.kind = GroupKind.NEW
        """As of the last observation."""
        self.waiting_since: float | None = None
        """The start of the time in which messages were pending without a commit (seconds since 1970)."""
        self._committed: dict[MessageQueue, int] = {}
        self._had_members = False
        self._was_online = False
        self._moves = 0  # observations of new commits without members

    def update(self, moment: float, state: GroupState, topics: Container[str]) -> None:
        """Add an observation at ``moment`` (seconds since 1970). ``topics``: all topic names, including retry."""
        committed = {found.queue: found.consumer_offset for found in state.queues}
        moved = any(offset != self._committed.get(queue, offset) for queue, offset in committed.items())
        self._committed.update(committed)
        if state.members:
            self._had_members, self._moves = True, 0
        elif moved and not self._was_online:  # the last commits of members that have just left are theirs
            self._moves += 1
        self._was_online = bool(state.members)
        if not state.lag:
            self.waiting_since = None
        elif moved or self.waiting_since is None or moment < self.waiting_since:  # the clock was set back
            self.waiting_since = moment
        self.kind = self._kind_of(moment, state, topics)

    def _kind_of(self, moment: float, state: GroupState, topics: Container[str]) -> GroupKind:
        if state.members:
            return GroupKind.ONLINE
        if not any(found.consumer_offset > 0 for found in state.queues):
            return GroupKind.NEW
        is_consumers = self._had_members or any(name in topics for name in retry_topics(state))
        if is_consumers and self._moves < _MOVES:
            return GroupKind.IDLE
        is_still = self.waiting_since is not None and moment - self.waiting_since >= STOPPED_SECONDS
        return GroupKind.STOPPED if is_still else GroupKind.STREAM


def retry_topics(state: GroupState) -> list[str]:
    """Return all possible names of a group's retry topics: its own, and one per topic for POP consumers."""
    topics = [topic for topic in state.topics if not topic.startswith(RETRY_PREFIX)]
    pop = [retry_topic(topic, state.group, v2=v2) for topic in topics for v2 in (True, False)]
    return [RETRY_PREFIX + state.group, *pop]
