"""The options of a read, a write and a view, as typed values. ``parse.py`` makes them.

First the fields that hold the value of one option, which ``make tables`` writes, then those that are computed. Defaults
are in ``table.py``. Names of topics and groups are those on the wire, with the namespace: so plans, checkpoints and the
ledger of the exactly-once sink do not depend on the option ``namespace``. Columns (``schema.Projection``) and errors
(``processes.py``) have the names without it.

They are pickled for the executors. Immutable, so safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.datasource.options.connection import ClusterConnection
from spark_rocket.datasource.options.parsers import LookUp, Position, Trigger, matching
from spark_rocket.datasource.stream_offsets import format_queues
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.namespace import Namespace


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClusterOptions(FrozenValue):
    """The options of all: which cluster, and how to connect to it."""

    name_server: str
    connection: ClusterConnection = field(default_factory=ClusterConnection)

    @property
    def namespace(self) -> Namespace:
        return self.connection.namespace


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReadOptions(ClusterOptions):
    """The parsed options of a read. ``docs/reference/options.md`` describes each."""

    # <options of a read>
    request_timeout_ms: int
    retry_timeout_ms: int
    expected_brokers: tuple[str, ...] | None
    wait_for_topic: bool
    store_path: str | None
    broker_name: str | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    trigger: Trigger | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    combine_small_ranges: bool
    tags: tuple[str, ...] | None
    sql_filter: str | None
    dedupe_window: int | None
    fail_on_data_loss: bool
    consumer_group: str | None
    pull_batch_size: int
    pull_batch_bytes: int
    max_pulls_in_flight: int
    arrow_batch_rows: int
    arrow_batch_bytes: int
    # <end>

    topics: tuple[str, ...]
    """The topics of ``subscribe`` or ``assign``; empty with ``subscribePattern``."""
    starting: Position
    ending: Position
    is_stream: bool = False
    look_up: LookUp | None = None
    """Only messages with one of these keys or ids."""
    topic_pattern: str | None = None
    assigned: tuple[MessageQueue, ...] | None = None
    body: BodySettings | None = None
    """The body format and its settings, for typed rows."""

    @property
    def limits(self) -> dict[str, int]:
        """The options that limit a micro-batch, with their values."""
        limits = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
        }
        return {option: value for option, value in limits.items() if value is not None}

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether this read includes a queue."""
        if self.assigned is not None:
            return queue in self.assigned
        if self.topic_pattern is not None:
            return bool(matching(self.topic_pattern, [queue.topic], self.namespace))
        return queue.topic in self.topics

    @property
    def selection(self) -> tuple[str, str]:
        """The option that selects the queues, and its value, for messages."""
        if self.assigned is not None:
            return "assign", format_queues(self.assigned)
        if self.topic_pattern is not None:
            return "subscribePattern", self.topic_pattern
        return "subscribe", ", ".join(self.topics)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WriteOptions(ClusterOptions):
    """The parsed options of a write."""

    # <options of a write>
    request_timeout_ms: int
    retry_timeout_ms: int
    topic: str | None
    producer_group: str
    write_id: str | None
    max_message_size: int
    send_batch_size: int
    send_batch_bytes: int
    max_requests_in_flight: int
    max_delayed_in_flight: int
    compress_above: int
    staging_topic: str
    ledger_topic: str
    ledger_group: str
    ledger_broker: str | None
    ledger_queue: int
    grace_period_ms: int
    staging_retention_ms: int
    # <end>

    compression: str
    exactly_once: bool = False
    body: BodySettings | None = None
    """The body format and its settings, for bodies built from the other columns."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ViewOptions(ClusterOptions):
    """The parsed options of a view. ``views.py`` defines which options each view has."""

    # <options of a view>
    request_timeout_ms: int
    consumer_group: str | None
    producer_group: str
    key: str | None
    msg_id: str | None
    # <end>

    view: str
    topics: tuple[str, ...]
