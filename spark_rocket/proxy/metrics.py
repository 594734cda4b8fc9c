"""The proxy's /metrics, /health and /ready.

Apache's proxy has one metric, ``rocketmq_proxy_up``. Metrics that brokers and name servers also have use the same
names; the others are specific to this proxy. Each worker has its own metrics.

Corresponds to org.apache.rocketmq.proxy.metrics.ProxyMetricsManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from spark_rocket.proxy import definitions
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.proxy.transport.calls import DURATION_BOUNDS, MethodStats
from spark_rocket.proxy.transport.proxy_context import GrpcCode
from spark_rocket.remoting.exposition import COUNTER, GAUGE, HISTOGRAM, Exposition, Metric, label_text

_NODE = ("cluster", "node_type", "node_id")
_METHOD = (*_NODE, "method")
_FROM_ZERO = ("OK", "INTERNAL_SERVER_ERROR", "PROXY_TIMEOUT")
"""Codes whose count begins at 0. Prometheus computes no increase to a first sample: the first error raises an alert."""

METRICS: tuple[Metric, ...] = (
    Metric("rocketmq_proxy_up", GAUGE, "1 while the proxy serves.", "5", (*_NODE, "proxy_mode")),
    Metric("rocket_proxy_calls", GAUGE, "Calls in progress; for ReceiveMessage, held calls.", "own", _METHOD),
    Metric("rocket_proxy_calls_total", COUNTER, "Completed calls, by status code.", "own", (*_METHOD, "code")),
    Metric("rocket_proxy_call_seconds", HISTOGRAM, "Duration of calls, including waiting.", "own", _METHOD),
    Metric("rocket_proxy_brokers", GAUGE, "Brokers with a known master.", "own", _NODE),
    Metric(
        "rocket_unread_bytes", GAUGE, "Bytes of messages that clients have not read, with their copies.", "own", _NODE
    ),
    Metric(
        "rocket_proxy_renewed_messages", GAUGE, "Messages with automatic renewal of the invisible time.", "own", _NODE
    ),
)


class ProxyMetrics:
    """A proxy as a source of metrics."""

    metrics = METRICS

    def __init__(self, proxy: ProxyServer) -> None:
        self._proxy = proxy

    def node_labels(self) -> dict[str, object]:
        config = self._proxy.config
        node_id = config.proxy_name or self._proxy.address
        return {"cluster": config.proxy_cluster_name, "node_type": "proxy", "node_id": node_id}

    def problems(self) -> list[str]:
        """Report problems, and refresh the brokers: without ready clients, nothing else would refresh them."""
        methods = self._proxy.methods
        if methods is None:
            return ["the proxy is starting or stopping"]
        methods.cluster.refresh_brokers()
        return [] if methods.cluster.brokers else [f"no broker is registered with {methods.cluster.name_servers}"]

    def facts(self) -> dict[str, Any]:
        methods = self._proxy.methods
        if methods is None:
            return {}
        return {"grpc": self._proxy.address, "brokers": dict(methods.cluster.brokers)}

    def collect(self, exposition: Exposition) -> Iterator[None]:
        proxy, add = self._proxy, exposition.add
        methods, transport = proxy.methods, proxy.transport
        if methods is None or transport is None:
            return
        node = label_text(self.node_labels())
        add("rocketmq_proxy_up", f'{node},proxy_mode="cluster"', 1)
        add("rocket_proxy_brokers", node, len(methods.cluster.brokers))
        add("rocket_proxy_renewed_messages", node, methods.renewals.count)
        add("rocket_unread_bytes", node, transport.calls.messages.used)
        for method, stats in transport.calls.stats.items():
            yield
            _add_method(exposition, f"{node},{label_text({'method': method})}", stats)


def _add_method(exposition: Exposition, labels: str, stats: MethodStats) -> None:
    exposition.add("rocket_proxy_calls", labels, stats.running)
    names = Counter(dict.fromkeys(_FROM_ZERO, 0))
    for code, count in stats.codes.items():
        names[_name_of(code)] += count
    for name, count in names.items():
        exposition.add("rocket_proxy_calls_total", f"{labels},{label_text({'code': name})}", count)
    exposition.add_histogram("rocket_proxy_call_seconds", labels, DURATION_BOUNDS, stats.durations, stats.seconds)


def _name_of(code: int) -> str:
    """Return the name of a ``definitions.Code`` (five digits) or of a gRPC status code (two digits)."""
    name: str = GrpcCode(code).name if code < 100 else definitions.Code.Name(code)
    return name
