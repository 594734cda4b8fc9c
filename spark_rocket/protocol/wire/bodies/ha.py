"""What brokers say of their replication and of their timer.

Corresponds to remoting.protocol.body.HARuntimeInfo and store.timer.TimerMetrics.TimerMetricsSerializeWrapper.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import DataVersion


@dataclass(slots=True)
class HAConnectionRuntimeInfo(Body):
    """One slave, as its master sees it."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(slots=True)
class HAClientRuntimeInfo(Body):
    """A slave, as it sees itself."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


@dataclass(slots=True)
class HARuntimeInfo(Body):
    """Answer to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


@dataclass(slots=True)
class TimerMetric(Body):
    """How many timed messages of a topic wait."""

    count: int = 0
    time_stamp: int = 0


@dataclass(slots=True)
class TimerMetricsSerializeWrapper(Body):
    """Answer to GET_TIMER_METRICS."""

    timing_count: dict[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
