"""What an :class:`Admin` reports about messages: queue entries, tracks, traces and dead letters.

Values that are never changed; units and failures as in broker_rows.py.
Corresponds to org.apache.rocketmq.tools.admin.api.{MessageTrack, TrackType}.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_rocket.client.admin.topic_rows import TopicState
from spark_rocket.model import (
    DLQ_PREFIX,
)


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntry:
    """One entry of a consume queue (321). ``matches``: whether it matches the subscription of the requested group."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    matches: bool


@dataclass(frozen=True, slots=True)
class ConsumeQueuePage:
    """Entries of a consume queue, and its first offset and end."""

    min_offset: int
    max_offset: int
    entries: list[ConsumeQueueEntry]


class TrackStatus(StrEnum):
    """What a group did with a message."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What one group did with a message, and the evidence for it in one sentence.

    ``committed_offset``: the group's offset in the message's queue; None if it has none there.
    """

    group: str
    status: TrackStatus
    detail: str
    committed_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An operation on a message that a client reported: ``kind`` is SEND, CONSUME, END_TRANSACTION or RECALL.

    ``outcome``: SUCCESS, the kind of failure, or the state of a transaction. ``outcome`` and ``cost_ms`` are None while
    a consumption has not ended.
    """

    kind: str
    time_ms: int
    group: str
    client: str
    outcome: str | None
    cost_ms: int | None
    topic: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    retry_times: int
    request_id: str


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The reported operations on one message, in order of time."""

    msg_id: str
    events: list[TraceEvent]


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The dead letters of a group: their current number, and the time of the last one."""

    group: str
    topic: str
    messages: int
    last_update_ms: int

    @classmethod
    def of(cls, topic: str, state: TopicState) -> DeadLetterTopic:
        return cls(topic.removeprefix(DLQ_PREFIX), topic, state.messages, state.last_stored_ms)
