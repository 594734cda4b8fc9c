"""What a consumer group is now: with members, read by a Spark stream, a stopped stream's, or read by nobody.

A Spark stream with ``consumerGroup`` commits its progress and is no member: it sends no heartbeat. Its group is told
from one whose consumers are away by two signs. A consumers' group has a retry topic: a broker creates ``%RETRY%group``
with the first heartbeat of a member. And commits that go on while nobody is online are a stream's, whoever read the
group before; one commit is not enough, it may be a reset. Clients of RocketMQ 5 (gRPC) are the exception: their retry
topics come with the first message that is consumed again. Until then a group of theirs whose members had all left
before it was first looked at is taken for a stream.

Whether a stream runs shows in its commits: it has stopped when messages wait for it and it has committed none for
``STOPPED_SECONDS``. Where nothing waits, nothing can be said, and it counts as running.

Thread-safety: none of its own. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Container
from enum import StrEnum

from spark_rocket.client.admin.results import GroupState
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.names import RETRY_PREFIX
from spark_rocket.protocol.wire.extra_info import retry_topic

STOPPED_SECONDS = 300.0
_MOVES = 2


class GroupKind(StrEnum):
    """``label`` is what the console and the command line call it."""

    label: str

    ONLINE = "online", "online"
    STREAM = "stream", "Spark stream"
    STOPPED = "stopped", "Spark stream, stopped"
    IDLE = "idle", "nobody reads"
    NEW = "new", "nothing read yet"

    def __new__(cls, value: str, label: str) -> GroupKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.label = label
        return kind


class GroupHistory:
    """What looking at one group again and again has shown."""

    def __init__(self) -> None:
        self.kind = GroupKind.NEW
        """As of the last look."""
        self.waiting_since: float | None = None
        """Since when messages have been waiting with no commit, as far as was seen (seconds since 1970)."""
        self._committed: dict[MessageQueue, int] = {}
        self._had_members = False
        self._was_online = False
        self._moves = 0  # looks that found new commits of a group without members

    def saw(self, moment: float, state: GroupState, topics: Container[str]) -> None:
        """One more look, at ``moment`` (seconds since 1970). ``topics``: the names of all topics, retry topics too."""
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
        elif moved or self.waiting_since is None:
            self.waiting_since = moment
        self.kind = self._judged(moment, state, topics)

    def _judged(self, moment: float, state: GroupState, topics: Container[str]) -> GroupKind:
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
    """The names that a group's retry topics can have: its own, and those of POP, one for each topic."""
    topics = [topic for topic in state.topics if not topic.startswith(RETRY_PREFIX)]
    pop = [retry_topic(topic, state.group, v2=v2) for topic in topics for v2 in (True, False)]
    return [RETRY_PREFIX + state.group, *pop]
