"""Brokers as an :class:`Admin` reports them: their place, state, settings and statistics.

Values that are never changed; the command line, the console and Spark's views only render them
(``common.attributes``). Times are ms since 1970, sizes bytes, rates per second; other units are in the name. A
row of what several brokers have is made from those that respond; ``Failures`` has the errors of the others.
Corresponds to org.apache.rocketmq.remoting.protocol.body.{KVTable, BrokerStatsData}.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.bodies.route import MASTER_ID

Failures = dict[str, RocketError]
"""Errors by the names of brokers that did not respond, or the places of messages that cannot be decoded."""


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
    """The settings of a broker (26). ``dynamic``: settings that change at run time; None if it does not report them.

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
