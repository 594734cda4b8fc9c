"""Values that every layer shares: messages, queues and what a send came to.

Units: times are milliseconds since the epoch (as in every RocketMQ record), sizes are bytes, offsets are counts of
messages in a queue unless called *physical* (bytes into the commit log).
Thread-safety: ``MessageQueue`` is immutable, a ``SendResult`` is never changed (frozen, it would take three times as
long to make); ``Message`` belongs to whoever built it.
Corresponds to org.apache.rocketmq.common.message.{Message, MessageExt, MessageQueue} and client.producer.SendResult.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

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
MOST_DELAY_LEVEL = 18


class SendStatus(Enum):
    """What became of a sent message. All four mean that the broker has it."""

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


@dataclass(slots=True)
class Message:
    """A message to send. ``properties`` holds the user's own and RocketMQ's (``TAGS``, ``KEYS``, …)."""

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

        At most one of the four delays; ``deliver_at_ms`` counts from the epoch.
        """
        every = dict(properties or {})
        delays = {
            DELAY: delay_level,
            TIMER_DELAY_SEC: delay_seconds,
            TIMER_DELAY_MS: delay_ms,
            TIMER_DELIVER_MS: deliver_at_ms,
        }
        given = {name: str(value) for name, value in delays.items() if value is not None}
        if len(given) > 1 or any(value.startswith("-") for value in given.values()):
            raise IllegalMessageError(
                f"A message for {topic!r} is to wait for {given}.",
                remedy="Give one of delay_level, delay_seconds, delay_ms and deliver_at_ms, 0 or more.",
            )
        if delay_level is not None and delay_level > MOST_DELAY_LEVEL:
            raise IllegalMessageError(
                f"A message for {topic!r} has the delay level {delay_level}.",
                remedy=f"Brokers have the levels 1 to {MOST_DELAY_LEVEL}; delay_ms waits for any time.",
            )
        every.update(given)
        if wait_store_ok is not None:
            every[WAIT] = "true" if wait_store_ok else "false"
        if tags is not None:
            every[TAGS] = tags
        if keys is not None:
            every[KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        if sharding_key is not None:
            every[SHARDING_KEY] = sharding_key
        return cls(topic, body.encode() if isinstance(body, str) else body, every, flag)

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


@dataclass(slots=True)
class MessageExt(Message):
    """A message as stored: what it was sent as, and where and when the broker put it."""

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
        """The client's unique key if there is one, else the offset id, as RocketMQ's own consumers show it."""
        return self.get_property(UNIQ_KEY) or self.offset_msg_id


@dataclass(slots=True, unsafe_hash=True)
class SendResult:
    """A send that was stored; ``queue_offset`` is that of the first message of a batch. A value: nobody changes it."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """What a message that waits for its time is recalled by; None for any other."""
    region_id: str = field(default="", compare=False, repr=False)
    """The broker's ``regionId``."""
    trace_on: bool = field(default=True, compare=False, repr=False)
    """Whether the broker lets clients trace the message."""
