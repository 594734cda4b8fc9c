"""Rows about a cluster: the results of an :class:`Admin`, which the command line, the console and Spark's views show.

Values that are never changed; their users only render them (``spark_rocket.attributes``). Times are ms since 1970,
sizes bytes, rates per second; other units are in the name.

A row of what several brokers have is made from those that respond; ``Failures`` has the errors of the others.
Corresponds to the classes of org.apache.rocketmq.tools.admin and of RocketMQ's dashboard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, reduce
from operator import or_
from typing import Any, NamedTuple

from spark_rocket.errors import RocketError
from spark_rocket.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    MessageQueue,
    is_system_group,
    is_system_topic,
)
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from spark_rocket.protocol.wire.bodies.route import MASTER_ID
from spark_rocket.protocol.wire.bodies.stats import TopicStatsTable
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE

Failures = dict[str, RocketError]
"""The errors of brokers that did not respond, by broker name."""

_ANY_TYPE = "UNSPECIFIED"


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of a group in one queue. ``committed`` is None if it has not consumed anything yet."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """The number of available messages that the group has not consumed."""
        return max(0, self.max_offset - max(self.committed or 0, self.min_offset))


# --- brokers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerRuntime:
    """The state that a broker reports (28). ``raw`` has all of it, under Apache's names.

    Rates are over the last ten seconds, minute and ten minutes. ``disk_ratio`` is the usage of the commit log's disk,
    0 to 1, None if the broker does not report it.
    """

    version: str
    started_ms: int
    put_tps: float
    put_tps_1m: float
    put_tps_10m: float
    get_tps: float
    get_tps_1m: float
    get_tps_10m: float
    put_today: int
    get_today: int
    put_yesterday: int
    get_yesterday: int
    put_total: int
    get_total: int
    disk_ratio: float | None
    commit_log_min_offset: int
    commit_log_max_offset: int
    earliest_message_ms: int | None
    dispatch_behind_bytes: int
    send_queue_size: int
    pull_queue_size: int
    send_wait_ms: int
    pull_wait_ms: int
    page_cache_lock_ms: int
    active: bool
    raw: dict[str, str] = field(repr=False)

    @property
    def commit_log_bytes(self) -> int:
        return max(self.commit_log_max_offset - self.commit_log_min_offset, 0)

    @classmethod
    def of(cls, table: dict[str, str]) -> BrokerRuntime:
        """Parse a response to 28, of 4.x or 5.x: missing or invalid numbers become 0."""
        put_now, put_then, put_before = (_integer(table, f"msgPutTotal{at}") for at in _DAYS)
        get_now, get_then, get_before = (_integer(table, f"msgGetTotal{at}") for at in _DAYS)
        rates = (*_rates(table, "putTps"), *_rates(table, "getTransferredTps", "getTransferedTps"))
        earliest = _integer(table, "earliestMessageTimeStamp")
        figures: dict[str, Any] = {field: _integer(table, name) for field, name in _FIGURES.items()}
        figures.update(zip(_RATES, rates, strict=True))
        return cls(
            version=table.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".") or "unknown",
            put_today=max(put_now - put_then, 0),
            get_today=max(get_now - get_then, 0),
            put_yesterday=max(put_then - put_before, 0),
            get_yesterday=max(get_then - get_before, 0),
            get_total=get_now,
            disk_ratio=_disk_ratio(table),
            earliest_message_ms=earliest if earliest > 0 else None,
            active=table.get("brokerActive", "true") == "true",
            raw=table,
            **figures,
        )


_RATES = ("put_tps", "put_tps_1m", "put_tps_10m", "get_tps", "get_tps_1m", "get_tps_10m")
_FIGURES = {
    "started_ms": "bootTimestamp",
    "put_total": "putMessageTimesTotal",
    "commit_log_min_offset": "commitLogMinOffset",
    "commit_log_max_offset": "commitLogMaxOffset",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "send_queue_size": "sendThreadPoolQueueSize",
    "pull_queue_size": "pullThreadPoolQueueSize",
    "send_wait_ms": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_wait_ms": "pullThreadPoolQueueHeadWaitTimeMills",
    "page_cache_lock_ms": "pageCacheLockTimeMills",
}
_DAYS = ("TodayNow", "TodayMorning", "YesterdayMorning")


def _integer(table: dict[str, str], name: str) -> int:
    return int(_number(table.get(name, "")))


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if abs(number) < 1e300 else 0.0  # infinite and NaN are invalid as well


def _rates(table: dict[str, str], *names: str) -> tuple[float, float, float]:
    texts = next((table[name] for name in names if table.get(name)), "").split()
    numbers = [_number(text) for text in texts[:3]]
    return (*numbers, 0.0, 0.0, 0.0)[:3]  # type: ignore[return-value]  # three, by the slice


def _disk_ratio(table: dict[str, str]) -> float | None:
    """Return ``commitLogDiskRatio``; of several directories (``commitLogDiskRatio_/path``) the highest."""
    found = [_number(text) for name, text in table.items() if name.startswith("commitLogDiskRatio")]
    return max(found) if found and max(found) >= 0 else None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker (26). ``dynamic``: those that it changes at run time; None if it does not report them.

    Apache's brokers do not report them.
    """

    values: dict[str, str]
    dynamic: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as registered at the name server, and its reported state; ``failure``: why it did not respond."""

    cluster: str
    name: str
    broker_id: int
    address: str
    runtime: BrokerRuntime | None
    failure: RocketError | None = None

    @property
    def error(self) -> str | None:
        return None if self.failure is None else self.failure.text

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class StatsItem:
    """One statistic of a broker: the sum over a period, the rate per second, and the average per call."""

    sum: int
    tps: float
    average: float


@dataclass(frozen=True, slots=True)
class BrokerStatsData:
    """The response to 315: the last minute, hour and day."""

    minute: StatsItem
    hour: StatsItem
    day: StatsItem


# --- topics ---------------------------------------------------------------------------------------------------------


class TopicKind(StrEnum):
    """The purpose of a topic."""

    USER = "USER"
    RETRY = "RETRY"
    DLQ = "DLQ"
    SYSTEM = "SYSTEM"


def topic_kind(topic: str, brokers_and_clusters: Iterable[str] = ()) -> TopicKind:
    """Return the kind of a topic by its name. Brokers own internal topics with their names and their cluster's."""
    if topic.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return TopicKind.DLQ
    own = is_system_topic(topic)
    if own or topic.removesuffix("_REPLY_TOPIC") in brokers_and_clusters:
        return TopicKind.SYSTEM
    return TopicKind.USER


def perm_text(perm: int) -> str:
    """Return R and W, or - if missing."""
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic on one broker."""

    topic: str
    broker_name: str
    kind: TopicKind
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    sys_flag: int
    attributes: dict[str, str]

    @classmethod
    def of(cls, broker_name: str, config: TopicConfig, kind: TopicKind | None = None) -> TopicRow:
        return cls(
            config.topic_name,
            broker_name,
            kind or topic_kind(config.topic_name),
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            config.topic_sys_flag,
            config.attributes,
        )

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION or MIXED; UNSPECIFIED accepts any."""
        return self.attributes.get("message.type", _ANY_TYPE)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its settings on each broker; no settings if only the name server has it or no broker responded."""

    name: str
    kind: TopicKind
    configs: dict[str, TopicConfig]

    @property
    def read_queues(self) -> int:
        return sum(config.read_queue_nums for config in self.configs.values())

    @property
    def write_queues(self) -> int:
        return sum(config.write_queue_nums for config in self.configs.values())

    @property
    def rows(self) -> list[TopicRow]:
        """One row for each broker, by name."""
        return [TopicRow.of(broker, config, self.kind) for broker, config in sorted(self.configs.items())]

    @property
    def perm(self) -> str:
        """The permission granted on any of its brokers: R and W, or - if missing."""
        return perm_text(reduce(or_, (config.perm for config in self.configs.values()), 0))

    @property
    def order(self) -> bool:
        return any(config.order for config in self.configs.values())

    @property
    def attributes(self) -> dict[str, str]:
        every: dict[str, str] = {}
        for config in self.configs.values():
            every |= config.attributes
        return every

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION or MIXED; UNSPECIFIED accepts any."""
        return self.attributes.get("message.type", _ANY_TYPE)


class QueueState(NamedTuple):
    """A queue: its first offset, its end, and the store time of its last message (0: unknown)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int

    @property
    def messages(self) -> int:
        return max(self.max_offset - self.min_offset, 0)


@dataclass(frozen=True)
class TopicState:
    """The queues of a topic, sorted, and the messages per second that its brokers report (None: they do not).

    Sums are computed once: the console shows those of thousands of topics.
    """

    queues: list[QueueState]
    put_tps: float | None = None

    @classmethod
    def of(cls, table: TopicStatsTable) -> TopicState:
        offsets = sorted(table.offset_table.items())
        queues = [QueueState(queue, at.min_offset, at.max_offset, at.last_update_timestamp) for queue, at in offsets]
        return cls(queues, table.topic_put_tps)

    @cached_property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @cached_property
    def end(self) -> int:
        """The sum of the queues' ends."""
        return sum(queue.max_offset for queue in self.queues)

    @cached_property
    def last_stored_ms(self) -> int:
        return max((queue.last_stored_ms for queue in self.queues), default=0)

    @property
    def newest(self) -> QueueState | None:
        """The queue with the newest message; None without messages."""
        filled = [queue for queue in self.queues if queue.messages]
        return max(filled, key=lambda queue: (queue.last_stored_ms, queue.queue), default=None)


# --- groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group and its settings on each broker."""

    name: str
    configs: dict[str, SubscriptionGroupConfig]

    @property
    def is_system(self) -> bool:
        return is_system_group(self.name)

    @property
    def retry_max_times(self) -> int:
        return max((config.retry_max_times for config in self.configs.values()), default=0)

    @property
    def ordered(self) -> bool:
        return any(config.consume_message_orderly for config in self.configs.values())


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A connection of a client to a broker. ``version``: its number in the protocol."""

    broker_name: str
    client_id: str
    address: str
    language: str
    version: int
    last_heartbeat_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A connected producer or consumer, and the brokers it is connected to.

    ``last_heartbeat_ms``: of producers, where the brokers report it (328); None otherwise.
    """

    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]
    last_heartbeat_ms: int | None = None
    connections: list[ClientConnection] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue (208).

    ``last_timestamp``: the store time of the last consumed message. ``delay_ms``: the age of the first pending message,
    0 if there is none.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int | None
    last_timestamp: int
    delay_ms: int = 0

    @property
    def lag(self) -> int:
        return max(self.broker_offset - max(self.consumer_offset, 0), 0)


@dataclass(frozen=True, slots=True)
class GroupState:
    """Members, subscriptions and progress of a group. The three strings are None while no consumer is online."""

    group: str
    members: list[Member]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str | None
    message_model: str | None
    consume_from_where: str | None
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def online(self) -> bool:
        return bool(self.members)

    @property
    def topics(self) -> list[str]:
        return sorted({queue.queue.topic for queue in self.queues} | self.subscriptions.keys())

    @property
    def own_topics(self) -> list[str]:
        """The topics without its retry topics."""
        return [topic for topic in self.topics if not topic.startswith(RETRY_PREFIX)]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def delay_ms(self) -> int:
        """The age of the oldest pending message."""
        return max((queue.delay_ms for queue in self.queues), default=0)

    def lag_of(self, topic: str) -> int:
        return sum(queue.lag for queue in self.queues if queue.queue.topic == topic)


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """The offset of a group in a queue, None if it has none, and the offset that a reset would set."""

    queue: MessageQueue
    committed: int | None
    target: int

    @property
    def change(self) -> int | None:
        """The number of skipped messages, negative for repeated ones; None without an offset."""
        return None if self.committed is None else self.target - self.committed


# --- messages -------------------------------------------------------------------------------------------------------


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
    """What one group did with a message, and the evidence for it in one sentence."""

    group: str
    status: TrackStatus
    detail: str


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
