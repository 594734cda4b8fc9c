"""Responses of brokers to tools: progress of topics and groups, connections, statistics.

Several of these have message queues as map keys, which only fastjson's syntax supports.
Corresponds to remoting.protocol.admin and remoting.protocol.body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.config import DataVersion


@dataclass(slots=True, eq=False, repr=False)
class TopicOffset(Body):
    """The offsets of a queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class TopicStatsTable(Body):
    """Response to GET_TOPIC_STATS_INFO."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(slots=True, eq=False, repr=False)
class OffsetWrapper(Body):
    """The progress of a group in a queue; the lag is ``broker_offset - consumer_offset``."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ConsumeStats(Body):
    """Response to GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def total_lag(self) -> int:
        return sum(offset.broker_offset - offset.consumer_offset for offset in self.offset_table.values())


@dataclass(slots=True, eq=False, repr=False)
class GroupList(Body):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Connection(Body):
    """A client on a broker."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ConsumerConnection(Body):
    """Response to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ProducerConnection(Body):
    """Response to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[Connection] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class QueueTimeSpan(Body):
    """The time span of a queue's messages, and the position of a group, in ms."""

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@dataclass(slots=True, eq=False, repr=False)
class QueryConsumeTimeSpanBody(Body):
    """Response to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class QuerySubscriptionResponseBody(Body):
    """Response to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None


@dataclass(slots=True, eq=False, repr=False)
class ConsumeStatsList(Body):
    """Response to GET_BROKER_CONSUME_STATS: a map per group with the content of GET_CONSUME_STATS by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ProducerInfo(Body):
    """A producer on a broker; ``remote_ip`` is its address with the port."""

    client_id: str = ""
    remote_ip: str = field(default="", metadata={"wire": "remoteIP"})
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ProducerTableInfo(Body):
    """Response to GET_ALL_PRODUCER_INFO: group -> members."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class BrokerStatsItem(Body):
    """A sum over a period, the rate per second, and the average per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class BrokerStatsDataBody(Body):
    """Response to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


# --- replication and timer: HARuntimeInfo, store.timer.TimerMetrics --------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class HAConnectionRuntimeInfo(Body):
    """A slave, as reported by its master."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(slots=True, eq=False, repr=False)
class HAClientRuntimeInfo(Body):
    """A slave, as reported by itself."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


@dataclass(slots=True, eq=False, repr=False)
class HARuntimeInfo(Body):
    """Response to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


@dataclass(slots=True, eq=False, repr=False)
class TimerMetric(Body):
    """The number of pending timed messages of a topic."""

    count: int = 0
    time_stamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class TimerMetricsSerializeWrapper(Body):
    """Response to GET_TIMER_METRICS."""

    timing_count: dict[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
