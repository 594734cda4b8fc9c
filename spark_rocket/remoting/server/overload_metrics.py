"""What became too much for a server, as metrics: RocketMQ 5's watermark of its queues, and our own names.

Thread-safety: event loop only.
"""

from __future__ import annotations

from spark_rocket.remoting.http.exposition import COUNTER, GAUGE, Exposition, Metric, label_text
from spark_rocket.remoting.server.overload import OverloadStats

_NODE = ("cluster", "node_type", "node_id")

OVERLOAD_METRICS: tuple[Metric, ...] = (
    Metric("rocketmq_processor_watermark", GAUGE, "Requests that wait, by kind.", "5", (*_NODE, "processor")),
    Metric(
        "rocket_requests_refused_total",
        COUNTER,
        "Requests answered SYSTEM_BUSY, by kind and reason.",
        "own",
        (*_NODE, "processor", "reason"),
    ),
    Metric("rocket_request_bytes", GAUGE, "Bytes of requests that wait or are not whole.", "own", _NODE),
    Metric("rocket_unread_bytes", GAUGE, "Bytes of answers that peers have not read.", "own", _NODE),
    Metric("rocket_connections", GAUGE, "Connections to the server's port.", "own", _NODE),
    Metric("rocket_connections_refused_total", COUNTER, "Connections closed at once.", "own", (*_NODE, "reason")),
    Metric(
        "rocket_connections_cut_total",
        COUNTER,
        "Connections closed: slow_reader, slow_writer, silent.",
        "own",
        (*_NODE, "reason"),
    ),
    Metric("rocket_page_cache_busy_total", COUNTER, "Appends that took too long.", "own", _NODE),
    Metric("rocket_memory_high_total", COUNTER, "How often memory rose above its limit.", "own", _NODE),
    Metric("rocket_oneway_dropped_total", COUNTER, "One-way requests to slow peers left out.", "own", _NODE),
    Metric("rocket_async_refused_total", COUNTER, "Requests to peers that answer too few of them.", "own", _NODE),
)


def add_overload(exposition: Exposition, node: str, stats: OverloadStats, connections: int) -> None:
    """The samples of one server. Kinds of requests and reasons appear once something was counted."""
    add = exposition.add
    for kind, count in list(stats.waiting.items()):
        add("rocketmq_processor_watermark", f"{node},{label_text({'processor': kind})}", count)
    for (kind, reason), count in list(stats.refused.items()):
        add("rocket_requests_refused_total", f"{node},{label_text({'processor': kind, 'reason': reason})}", count)
    add("rocket_request_bytes", node, stats.waiting_bytes + stats.unfinished_bytes)
    add("rocket_unread_bytes", node, stats.unread_bytes)
    add("rocket_connections", node, connections)
    for reason, count in list(stats.connections_refused.items()):
        add("rocket_connections_refused_total", f"{node},{label_text({'reason': reason})}", count)
    cut = {"slow_reader": stats.slow_readers, "slow_writer": stats.slow_writers, "silent": stats.silent}
    for reason, count in cut.items():
        add("rocket_connections_cut_total", f"{node},{label_text({'reason': reason})}", count)
    add("rocket_page_cache_busy_total", node, stats.page_cache_busy)
    add("rocket_memory_high_total", node, stats.memory_high)
    add("rocket_oneway_dropped_total", node, stats.oneway_dropped)
    add("rocket_async_refused_total", node, stats.async_refused)
