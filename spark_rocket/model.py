"""Values that all layers share: messages, queues, send results, and the names of topics and groups.

Units: times are milliseconds since the epoch (as in every RocketMQ record), sizes are bytes, offsets are counts of
messages in a queue unless called *physical* (bytes into the commit log).
Thread-safety: ``MessageQueue`` is immutable. A ``SendResult`` is never changed; it is not frozen, because creating a
frozen one takes three times as long. A ``Message`` belongs to its creator.
Corresponds to org.apache.rocketmq.common.message.{Message, MessageExt, MessageQueue}, client.producer.SendResult,
common.topic.TopicValidator and common.MixAll.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from spark_rocket.common.arguments import check
from spark_rocket.errors import IllegalMessageError

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
UNIQ_KEY = "UNIQ_KEY"
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
SHARDING_KEY = "__SHARDINGKEY"
CLUSTER = "CLUSTER"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
MAX_DELAY_LEVEL = 18

# Properties of messages that a Spark query could not decode (badRecords=deadLetter): the position and the id of the
# original message, the error, and what did not fit.
BAD_RECORD_TOPIC = "ROCKET_ORIGIN_TOPIC"
BAD_RECORD_BROKER = "ROCKET_ORIGIN_BROKER"
BAD_RECORD_QUEUE = "ROCKET_ORIGIN_QUEUE"
BAD_RECORD_OFFSET = "ROCKET_ORIGIN_OFFSET"
BAD_RECORD_MSG_ID = "ROCKET_ORIGIN_MSG_ID"
BAD_RECORD_REASON = "ROCKET_BAD_RECORD_REASON"
BAD_RECORD_LEFT_OUT = "ROCKET_LEFT_OUT"
BAD_RECORD_BODY_LENGTH = "ROCKET_BODY_LENGTH"
BAD_RECORD_PROPERTIES = frozenset((
    BAD_RECORD_TOPIC, BAD_RECORD_BROKER, BAD_RECORD_QUEUE, BAD_RECORD_OFFSET, BAD_RECORD_MSG_ID, BAD_RECORD_REASON,
    BAD_RECORD_LEFT_OUT, BAD_RECORD_BODY_LENGTH,
))  # fmt: skip

# Names of topics and groups that RocketMQ reserves.
AUTO_CREATE_TOPIC_KEY = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SINK_PREFIX = "ROCKET_SINK"
"""Of the topics and groups of the data source's exactly-once sink, with their default names."""
TOOLS_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
READER_GROUP = "spark_rocket_reader"
"""The default group of readers."""

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 120

#: Topics that only the broker itself writes.
NOT_ALLOWED_SEND = frozenset(
    (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT)
)
SYSTEM_TOPICS = NOT_ALLOWED_SEND | {AUTO_CREATE_TOPIC_KEY, BENCHMARK_TOPIC, TRACE_TOPIC}
#: Groups of the broker and of RocketMQ's tools.
SYSTEM_GROUPS = frozenset(
    (
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_SYS_RMQ_TRANS", "__MONITOR_CONSUMER",
    )
)  # fmt: skip
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class SendStatus(Enum):
    """The result of a send. In all four cases the broker has the message."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    @property
    def name(self) -> str:
        """The queue in messages: ``orders/broker-a/3``."""
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


_TEXTS = (str, type(None))
_DELAY_ARGUMENTS = {
    DELAY: "delay_level",
    TIMER_DELAY_SEC: "delay_seconds",
    TIMER_DELAY_MS: "delay_ms",
    TIMER_DELIVER_MS: "deliver_at_ms",
}


@dataclass(slots=True)
class Message:
    """A message to send. ``properties`` holds user properties and those of RocketMQ (``TAGS``, ``KEYS``, …)."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0

    @classmethod
    def of(
        cls,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_seconds: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        wait_store_ok: bool | None = None,
        properties: dict[str, str] | None = None,
        flag: int = 0,
    ) -> Message:
        """Build a message; ``body`` text is encoded as UTF-8, several ``keys`` are joined with a space.

        Set at most one of the four delays; ``deliver_at_ms`` is in ms since the epoch.
        """
        if properties:
            check("properties", properties, Mapping[str, str])
        every = dict(properties or {})
        delays = {
            DELAY: delay_level,
            TIMER_DELAY_SEC: delay_seconds,
            TIMER_DELAY_MS: delay_ms,
            TIMER_DELIVER_MS: deliver_at_ms,
        }
        if (
            type(topic) is not str
            or type(body) is not bytes
            or type(flag) is not int
            or type(tags) not in _TEXTS
            or type(sharding_key) not in _TEXTS
        ):  # the checks take longer than the rest
            texts = {
                "topic": topic,
                "tags": "" if tags is None else tags,
                "sharding_key": "" if sharding_key is None else sharding_key,
            }
            for name, text in texts.items():
                check(name, text, str)
            check("body", body, bytes | str)
            check("flag", flag, int)
        for name, value in delays.items():
            if value is not None:
                check(_DELAY_ARGUMENTS[name], value, int)
        given = {name: str(value) for name, value in delays.items() if value is not None}
        if len(given) > 1 or any(value.startswith("-") for value in given.values()):
            raise IllegalMessageError(
                f"Invalid delivery time of a message for {topic!r}: {given}.",
                remedy="Give one of delay_level, delay_seconds, delay_ms and deliver_at_ms, 0 or more.",
            )
        if delay_level is not None and delay_level > MAX_DELAY_LEVEL:
            raise IllegalMessageError(
                f"Invalid delay level {delay_level} of a message for {topic!r}.",
                remedy=f"Use a level from 1 to {MAX_DELAY_LEVEL}, or delay_ms for any other delay.",
            )
        every.update(given)
        if wait_store_ok is not None:
            check("wait_store_ok", wait_store_ok, bool)
            every[WAIT] = "true" if wait_store_ok else "false"
        if tags is not None:
            every[TAGS] = tags
        if keys is not None:
            every[KEYS] = keys if isinstance(keys, str) else _joined_keys(keys)
        if sharding_key is not None:
            every[SHARDING_KEY] = sharding_key
        return cls(topic, _encoded(body) if isinstance(body, str) else body, every, flag)

    def get_property(self, name: str) -> str | None:
        return self.properties.get(name)

    def set_property(self, name: str, value: str) -> None:
        self.properties[name] = value

    @property
    def tags(self) -> str | None:
        return self.get_property(TAGS)

    @property
    def keys(self) -> str | None:
        return self.get_property(KEYS)


def _joined_keys(keys: object) -> str:
    check("keys", keys, str | Iterable[str])
    every = list(cast("Iterable[str]", keys))
    check("keys", every, list[str])
    return " ".join(every)


def _encoded(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessageError(
            f"The body of a message is not valid Unicode text: {error.reason} at character {error.start}.",
            remedy="Pass bytes, or text without lone surrogates.",
        ) from None


@dataclass(slots=True)
class MessageExt(Message):
    """A stored message: its sent content, and where and when the broker stored it."""

    broker_name: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    store_size: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    store_timestamp: int = 0
    store_host: tuple[str, int] = ("127.0.0.1", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    offset_msg_id: str = ""

    @property
    def msg_id(self) -> str:
        """The unique key set by the client, or else the offset id, as RocketMQ's own consumers show it."""
        return self.get_property(UNIQ_KEY) or self.offset_msg_id


@dataclass(slots=True, unsafe_hash=True)
class SendResult:
    """The result of a stored send; for a batch, ``queue_offset`` is that of its first message. Never changed."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """The handle that recalls a message with a delivery time; None for any other message."""
    region_id: str = field(default="", compare=False, repr=False)
    """The ``regionId`` of the broker."""
    trace_on: bool = field(default=True, compare=False, repr=False)
    """Whether the broker allows clients to trace the message."""


# --- names of topics and groups ------------------------------------------------------------------------------------


def is_legal_name(name: str) -> bool:
    """Whether all characters of a topic or group name are allowed; an empty name is not legal."""
    return _LEGAL_NAME.fullmatch(name) is not None


def max_topic_length(topic: str) -> int:
    """Return the length limit for this name: retry and dead-letter topics hold a group name."""
    return MAX_RETRY_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH


def topic_problem(topic: str) -> str | None:
    """Return why brokers reject a topic name, or None."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if not is_legal_name(topic):
        return f"The specified topic[{topic}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    limit = max_topic_length(topic)
    if len(topic) > limit:
        return f"The specified topic[{topic[:40]}...] is longer than topic max length {limit}."
    return None


def group_problem(group: str) -> str | None:
    """Return why brokers reject a group name, or None."""
    if not group or group.isspace():
        return "The specified group is blank."
    if not is_legal_name(group):
        return f"The specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"The specified group[{group[:40]}...] is longer than group max length {MAX_GROUP_LENGTH}."
    return None


def is_system_topic(topic: str) -> bool:
    """Whether RocketMQ reserves this topic name."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether RocketMQ or the exactly-once sink reserves this group name: lag means nothing for such a group.

    The sink's groups may have a namespace.
    """
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX) or is_sink_group(group)


def is_sink_group(group: str) -> bool:
    """Whether this is a group of the exactly-once sink, with or without a namespace."""
    return group.rpartition("%")[2].startswith(SINK_PREFIX)
