"""Limits of a server, counters of exceeded limits, and responses to rejected requests.

Requests have kinds, as Apache's broker has a queue for each kind of work. A request that cannot be served at once
is queued by its kind (request_queue.py). A queue has room for ``capacity`` requests, and each is queued for at most
``max_wait`` seconds. Requests above that are rejected with SYSTEM_BUSY and Apache's remarks:

=====================================  ===============================================================================
remark begins with                     reason
=====================================  ===============================================================================
``[OVERLOAD]``                         the queue of its kind is full, or the server's memory for requests
``[TIMEOUT_CLEAN_QUEUE]``              it was queued for too long
``[PCBUSY_CLEAN_QUEUE]``               the disk is too slow (broker/broker_overload.py)
``[REJECTREQUEST]``                    too little memory (broker/broker_overload.py)
=====================================  ===============================================================================

Thread-safety: event loop only; counters may be read from anywhere. Nothing is stored on disk.
Corresponds to NettyServerConfig, BrokerFastFailure and the rejections of NettyRemotingAbstract.processRequestCommand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.exposition import COUNTER, GAUGE, Exposition, Metric, label_text

MIB = 1024 * 1024
OTHER = "admin"
"""The kind of requests without a named kind."""
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
TOO_OLD = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"


@dataclass(frozen=True, slots=True)
class QueueCapacity:
    """The capacity of one kind of requests, and the maximum queue time in seconds of server work; 0: no limit."""

    capacity: int = 10_000
    max_wait: float = 0.0


@dataclass(slots=True)
class Limits:
    """Limits for peers of a server. Times are in seconds; 0 connections per address means unlimited."""

    max_connections: int = 20_000
    max_connections_per_address: int = 0
    first_request: float = 30.0
    """For the first byte of a new connection."""
    slow_writer: float = 30.0
    """For a complete frame, plus one second for each 16 KiB received."""
    slow_reader: float = 30.0
    """For a connection with more than ``high_water`` bytes of responses, without the peer reading a byte."""
    max_request_bytes: int = 256 * MIB
    """Queued requests and incomplete frames, of all connections together."""
    max_answer_bytes: int = 256 * MIB
    """Unread responses, of all connections together."""
    max_oneway: int = 256
    """One-way requests of the server to slow readers."""
    max_async: int = 64
    """Pending requests of the server to a peer, per connection."""
    queues: dict[str, QueueCapacity] = field(default_factory=lambda: {OTHER: QueueCapacity()})
    """In the order of processing under overload."""
    kinds: Mapping[int, str] = field(default_factory=dict)
    """The queue of each request code; default ``OTHER``."""

    def kind_of(self, code: int) -> str:
        return self.kinds.get(code, OTHER)


class OverloadStats:
    """Counters of exceeded limits."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Queued requests, by kind."""
        self.waiting_bytes = 0
        self.unfinished_bytes = 0
        """Bytes of incomplete frames, as far as they exceed one read."""
        self.unread_bytes = 0
        """Bytes of responses buffered for slow readers, as of the last check."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Requests rejected with SYSTEM_BUSY, or dropped if one-way, by kind and reason: ``overload`` (no room),
        ``timeout`` (queued too long), ``page_cache``, ``memory``, ``unread`` (of responses), ``put`` (too many pending
        disk or slave writes)."""
        self.connections_refused: Counter[str] = Counter()
        """By reason: ``total``, ``descriptors``, ``address``."""
        self.slow_readers = 0
        self.slow_writers = 0
        self.silent = 0
        """Connections closed because they never sent a byte."""
        self.oneway_dropped = 0
        self.async_refused = 0
        self.page_cache_busy = 0
        """The number of slow appends."""
        self.memory_high = 0
        """Times that memory use exceeded its limit."""


def refuse(request: RemotingCommand, limits: Limits, stats: OverloadStats) -> RemotingCommand:
    """Count a request without room, and return its response."""
    stats.refused[limits.kind_of(request.code), "overload"] += 1
    return RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, OVERLOAD)


# --- metrics ----------------------------------------------------------------------------------------------------

_NODE = ("cluster", "node_type", "node_id")
OVERLOAD_METRICS: tuple[Metric, ...] = (
    Metric("rocketmq_processor_watermark", GAUGE, "Queued requests, by kind.", "5", (*_NODE, "processor")),
    Metric(
        "rocket_requests_refused_total",
        COUNTER,
        "Requests refused with SYSTEM_BUSY, by kind and reason.",
        "own",
        (*_NODE, "processor", "reason"),
    ),
    Metric("rocket_request_bytes", GAUGE, "Bytes of queued and incomplete requests.", "own", _NODE),
    Metric("rocket_unread_bytes", GAUGE, "Bytes of responses that peers have not read.", "own", _NODE),
    Metric("rocket_connections", GAUGE, "Open connections to the server's port.", "own", _NODE),
    Metric(
        "rocket_connections_refused_total",
        COUNTER,
        "Connections closed on accept, by limit.",
        "own",
        (*_NODE, "reason"),
    ),
    Metric(
        "rocket_connections_cut_total",
        COUNTER,
        "Connections closed: slow_reader, slow_writer or silent.",
        "own",
        (*_NODE, "reason"),
    ),
    Metric("rocket_page_cache_busy_total", COUNTER, "Slow appends (osPageCacheBusyTimeOutMills).", "own", _NODE),
    Metric("rocket_memory_high_total", COUNTER, "Times that memory use exceeded its limit.", "own", _NODE),
    Metric("rocket_oneway_dropped_total", COUNTER, "One-way requests to slow peers dropped.", "own", _NODE),
    Metric("rocket_async_refused_total", COUNTER, "Requests not sent: too many in flight to a peer.", "own", _NODE),
)


_REASONS = ("overload", "timeout")
_MORE_REASONS = {"send": ("page_cache", "memory", "put"), "pull": ("memory", "unread")}
_CONNECTION_REASONS = ("total", "descriptors", "address")


def add_overload(
    exposition: Exposition, node: str, stats: OverloadStats, connections: int, kinds: Collection[str]
) -> None:
    """Add the samples of one server, with the kinds of requests that it has queues for.

    All begin at 0: Prometheus computes no increase of a series whose first sample is the first event.
    """
    add = exposition.add
    for kind in kinds:
        add("rocketmq_processor_watermark", f"{node},{label_text({'processor': kind})}", stats.waiting[kind])
    reasons = [(kind, reason) for kind in kinds for reason in (*_REASONS, *_MORE_REASONS.get(kind, ()))]
    for (kind, reason), count in {**dict.fromkeys(reasons, 0), **stats.refused}.items():
        add("rocket_requests_refused_total", f"{node},{label_text({'processor': kind, 'reason': reason})}", count)
    add("rocket_request_bytes", node, stats.waiting_bytes + stats.unfinished_bytes)
    add("rocket_unread_bytes", node, stats.unread_bytes)
    add("rocket_connections", node, connections)
    for reason, count in {**dict.fromkeys(_CONNECTION_REASONS, 0), **stats.connections_refused}.items():
        add("rocket_connections_refused_total", f"{node},{label_text({'reason': reason})}", count)
    cut = {"slow_reader": stats.slow_readers, "slow_writer": stats.slow_writers, "silent": stats.silent}
    for reason, count in cut.items():
        add("rocket_connections_cut_total", f"{node},{label_text({'reason': reason})}", count)
    add("rocket_page_cache_busy_total", node, stats.page_cache_busy)
    add("rocket_memory_high_total", node, stats.memory_high)
    add("rocket_oneway_dropped_total", node, stats.oneway_dropped)
    add("rocket_async_refused_total", node, stats.async_refused)
