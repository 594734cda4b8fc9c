"""The sampled state of brokers, topics and groups: last responses, rates, lag over time.

Thread-safety: callers hold the sampler's lock.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field, replace

from spark_rocket.client.admin import (
    BrokerStatus,
    GroupHistory,
    GroupInfo,
    GroupKind,
    GroupState,
    TopicInfo,
    TopicKind,
    TopicState,
)
from spark_rocket.common.attributes import pick
from spark_rocket.console.responses import RequestProblem, describe
from spark_rocket.console.series import Rate, Series
from spark_rocket.errors import RocketError
from spark_rocket.model import READER_GROUP, MessageQueue
from spark_rocket.protocol.wire.codes import ResponseCode

GONE_SECONDS = 900.0
"""Brokers that are no longer registered are shown for this time."""
MAX_COUNTS = 240
"""Samples of a topic's history: there may be thousands of topics."""
GONE = RequestProblem(
    "BROKER_GONE",
    "It is no longer registered with the name servers.",
    "Restart it, unless it was removed permanently: then it disappears from this page after 15 minutes.",
)


@dataclass(slots=True)
class BrokerRecord:
    """A broker process: its registration at the name servers and its own statistics."""

    status: BrokerStatus
    rate_in: Rate = field(default_factory=Rate)
    rate_out: Rate = field(default_factory=Rate)
    trouble: RequestProblem | None = None
    unavailable_since: float = 0.0
    sampled: float = 0.0

    def update(self, moment: float, status: BrokerStatus) -> None:
        """Add a sample. ``status.failure`` is set if the broker did not respond."""
        if status.runtime is None:
            self.status = replace(status, runtime=self.status.runtime)
            self.trouble = None if status.failure is None else _trouble(status.failure)
            self.unavailable_since = self.unavailable_since or moment
            self.rate_in, self.rate_out = Rate(), Rate()
            return
        self.status, self.trouble, self.unavailable_since, self.sampled = status, None, 0.0, moment
        self.rate_in.count(moment, status.runtime.put_total)
        self.rate_out.count(moment, status.runtime.get_total)

    def gone(self, moment: float) -> bool:
        """Mark it as no longer registered; True after ``GONE_SECONDS``."""
        if moment < self.unavailable_since:  # the clock was set back
            self.unavailable_since = moment
        if self.trouble is None or self.trouble.code != GONE.code:
            self.trouble, self.unavailable_since = GONE, self.unavailable_since or moment
            self.rate_in, self.rate_out = Rate(), Rate()
        return moment - self.unavailable_since > GONE_SECONDS

    def rates(self) -> tuple[float, float]:
        """Messages per second in and out: from the counters, or from the broker's average before the second sample."""
        runtime = self.status.runtime
        if runtime is None or self.trouble is not None:
            return 0.0, 0.0
        came, went = self.rate_in.value, self.rate_out.value
        return runtime.put_tps if came is None else came, runtime.get_tps if went is None else went

    def to_json(self) -> dict[str, object]:
        names = (
            "version putTotal=put_total diskUsed=disk_ratio logBytes=commit_log_bytes logEnd=commit_log_max_offset"
            " oldestMessage=earliest_message_ms started=started_ms"
        )
        return {
            **pick(self.status, "name cluster id=broker_id address"),
            "role": "master" if self.status.is_master else "slave",
            **dict(zip(("in", "out"), self.rates(), strict=True)),
            **pick(self.status.runtime, names),
            "trouble": None if self.trouble is None else self.trouble.to_json(),
            "awaySince": round(self.unavailable_since * 1000) if self.unavailable_since else None,
        }


@dataclass(slots=True)
class TopicRecord:
    info: TopicInfo
    state: TopicState | None = None
    sampled: float = 0.0
    message_bytes: float | None = None
    """Average size of the last messages, as an estimate."""
    measured: float = 0.0
    rate: Rate = field(default_factory=Rate)
    counts: Series = field(default_factory=lambda: Series(MAX_COUNTS))
    """The sum of the queues' ends (``in``), and what all groups have consumed since the start (``out``)."""
    counted: float = 0.0
    """When the statistics were sampled that the history has."""
    consumed: int = 0
    is_whole: bool = True
    """Whether all of its brokers responded to the last request for statistics."""

    def update(self, moment: float, state: TopicState, lost: Set[str] = frozenset()) -> None:
        """Add a sample. ``lost``: brokers that did not respond; their queues are retained."""
        if lost and self.state is not None:
            kept = [row for row in self.state.queues if row.queue.broker_name in lost]
            state = replace(state, queues=sorted([*state.queues, *kept], key=lambda row: row.queue))
        self.state, self.sampled, self.is_whole = state, moment, not lost & self.info.configs.keys()
        self.rate.count(moment, state.end)

    def count(self, moment: float, read: Mapping[MessageQueue, int] | None) -> None:
        """Add a sample to the history. ``read``: the ends of the queues that groups read; None without groups.

        The ends come from newer statistics of the topic, or else from its groups if they read all of its queues.
        """
        state = self.state
        if state is not None and self.is_whole and self.sampled != self.counted:
            moment, end = self.sampled, state.end
            self.counted = moment
        elif read is not None:
            queues = read.keys() if state is None else {row.queue for row in state.queues}
            if not read.keys() >= queues or (state is None and len(read) < self._queues()):
                return
            end = sum(read[queue] for queue in queues)
        else:
            return
        self.counts.add(moment, {"in": float(end)} | ({} if read is None else {"out": float(self.consumed)}))

    def _queues(self) -> int:
        return sum(max(config.read_queue_nums, config.write_queue_nums) for config in self.info.configs.values())

    def to_json(self) -> dict[str, object]:
        state, size = self.state, self.message_bytes
        return {
            **pick(self.info, "name queues=read_queues writeQueues=write_queues perm type=message_type"),
            "kind": self.info.kind.value.lower(),
            "brokers": sorted(self.info.configs),
            **pick(state, "messages lastUpdate=last_stored_ms?"),
            "bytes": None if state is None or size is None else round(state.messages * size),
            "rate": self.rate.value,
            "sampled": round(self.sampled * 1000) if state is not None else None,
        }


@dataclass(slots=True)
class GroupRecord:
    info: GroupInfo
    state: GroupState | None = None
    sampled: float = 0.0
    history: GroupHistory = field(default_factory=GroupHistory)
    delays: dict[MessageQueue, int] = field(default_factory=dict)
    """The age of the next message of each queue, requested only for the group's page."""
    detailed: float = 0.0
    rate: Rate = field(default_factory=Rate)
    lag: Series = field(default_factory=Series)
    consumed: dict[str, int] = field(default_factory=dict)
    """By topic: how far its offsets have advanced since the sampler added this to the topics."""

    @property
    def is_own(self) -> bool:
        """Whether it is a system group, or the default group of this package's readers."""
        return self.info.is_system or self.info.name == READER_GROUP

    @property
    def kind(self) -> GroupKind | None:
        """Return the kind of the group; None before the first sample."""
        return None if self.state is None else self.history.kind

    def kind_words(self) -> dict[str, str]:
        """Return the kind for scripts and its label for users."""
        kind = self.kind
        return {"kind": "unknown", "label": "–"} if kind is None else {"kind": kind.value, "label": kind.label}

    def update(self, moment: float, state: GroupState, topics: Container[str], *, delays: bool) -> None:
        """Add a sample of lag and rate. ``delays``: it contains delays. ``topics``: the names of all topics."""
        if delays:
            self.delays, self.detailed = {queue.queue: queue.delay_ms for queue in state.queues}, moment
        before = {} if self.state is None else {queue.queue: queue.consumer_offset for queue in self.state.queues}
        for queue in state.queues:
            advance = queue.consumer_offset - before.get(queue.queue, queue.consumer_offset)
            if advance > 0 and before[queue.queue] >= 0:
                self.consumed[queue.queue.topic] = self.consumed.get(queue.queue.topic, 0) + advance
        self.state, self.sampled = state, moment
        self.history.update(moment, state, topics)
        self.rate.count(moment, sum(max(queue.consumer_offset, 0) for queue in state.queues))
        values = {queue_label(queue.queue): float(queue.lag) for queue in state.queues}
        self.lag.add(moment, {"total": float(sum(values.values())), **values})

    def to_json(self) -> dict[str, object]:
        state, kind, since = self.state, self.kind, self.history.waiting_since
        return {
            **pick(self.info, "name ordered retries=retry_max_times"),
            **self.kind_words(),
            "stillSince": round(since * 1000) if kind is GroupKind.STOPPED and since else None,
            "own": self.is_own,
            "members": len(state.members) if state else None,
            "topics": state.own_topics if state else [],
            "lag": state.lag if state else None,
            "delay": max((self.delays.get(q.queue, 0) for q in state.queues if q.lag), default=0) if state else None,
            "rate": self.rate.value,
            "sampled": round(self.sampled * 1000) if state else None,
        }


def _trouble(failure: RocketError) -> RequestProblem:
    """Describe the failure of a broker. The overview shows a refused request as such, not as an unavailable broker."""
    trouble = describe(failure)
    return replace(trouble, code="NO_PERMISSION") if failure.response_code == ResponseCode.NO_PERMISSION else trouble


def queue_label(queue: MessageQueue) -> str:
    return f"{queue.topic} · {queue.broker_name} · {queue.queue_id}"


def is_listed(kind: TopicKind, wanted: str) -> bool:
    """Whether a list of ``user``, ``retry``, ``dlq``, ``system`` or ``all`` topics contains this kind."""
    return wanted == "all" or kind.value.lower() == wanted
