"""The origin of a dead letter or a retried message, from its properties.

====================  ==============================================================================================
of a consumer group   the original topic and message id, from brokers and clients (RETRY_TOPIC, ORIGIN_MESSAGE_ID;
                      DLQ_ORIGIN_… from newer brokers). No reason is stored
of a Spark query      a message that it could not decode (``badRecords=deadLetter``): the position of the original
                      message and the error (ROCKET_ORIGIN_…, ROCKET_BAD_RECORD_REASON)
====================  ==============================================================================================

RocketMQ's dashboard has no counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.client.admin.topic_rows import TopicKind, topic_kind
from spark_rocket.client.consume.pull import RETRY_TOPIC
from spark_rocket.model import (
    BAD_RECORD_BODY_LENGTH,
    BAD_RECORD_BROKER,
    BAD_RECORD_LEFT_OUT,
    BAD_RECORD_MSG_ID,
    BAD_RECORD_OFFSET,
    BAD_RECORD_QUEUE,
    BAD_RECORD_REASON,
    BAD_RECORD_TOPIC,
    MessageExt,
    MessageQueue,
)

_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
_ORIGIN_IDS = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter or a retried message comes from. Unknown values are None."""

    topic: str
    msg_id: str | None
    attempts: int | None = None
    """How often consumers failed to consume it."""
    queue: MessageQueue | None = None
    offset: int | None = None
    reason: str | None = None
    missing: str | None = None
    """What the dead letter lacks of the original message."""

    @property
    def is_bad_record(self) -> bool:
        """Whether a Spark query could not decode the message."""
        return self.reason is not None


def origin_of(message: MessageExt) -> Origin | None:
    """Return the origin of a dead letter or a retried message; None for any other message."""
    get = message.get_property
    is_of_group = topic_kind(message.topic) in (TopicKind.DLQ, TopicKind.RETRY)
    topic, reason = get(BAD_RECORD_TOPIC), get(BAD_RECORD_REASON)
    if is_of_group or topic is None or reason is None:
        topic = get(RETRY_TOPIC) or get(_DLQ_ORIGIN_TOPIC)
        if topic is None or topic == message.topic:
            return None
        return Origin(topic, next(filter(None, map(get, _ORIGIN_IDS)), None), message.reconsume_times or None)
    broker, queue, offset = get(BAD_RECORD_BROKER), _number(get(BAD_RECORD_QUEUE)), _number(get(BAD_RECORD_OFFSET))
    is_known = broker is not None and queue is not None and offset is not None
    return Origin(
        topic,
        get(BAD_RECORD_MSG_ID),
        queue=MessageQueue(topic, broker or "", queue or 0) if is_known else None,
        offset=offset if is_known else None,
        reason=reason,
        missing=_missing(message),
    )


def _missing(message: MessageExt) -> str | None:
    length, properties = message.get_property(BAD_RECORD_BODY_LENGTH), message.get_property(BAD_RECORD_LEFT_OUT)
    parts = [f"all but {len(message.body):,} of {length} bytes of the body"] if length else []
    parts += [f"the properties {properties}"] if properties else []
    return " and ".join(parts) or None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else None
