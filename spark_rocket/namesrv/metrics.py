"""What a name server says at /metrics, /health and /ready. Apache's has no metrics: the names are our own.

Thread-safety: event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_rocket.remoting.http.exposition import GAUGE, Exposition, Metric, label_text
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS, add_overload

if TYPE_CHECKING:
    from spark_rocket.namesrv.server import NameServer

_NODE = ("cluster", "node_type", "node_id")
_BROKER = (*_NODE, "broker_cluster", "broker", "broker_id", "address")

METRICS: tuple[Metric, ...] = (
    Metric("rocket_namesrv_topics", GAUGE, "Topics that have a route.", "own", _NODE),
    Metric("rocket_namesrv_brokers", GAUGE, "Broker processes that are alive.", "own", _NODE),
    Metric("rocket_namesrv_broker_silence_seconds", GAUGE, "Since a broker was heard of.", "own", _BROKER),
)


class NameServerMetrics:
    """One name server as a source of metrics."""

    metrics = (*METRICS, *OVERLOAD_METRICS)

    def __init__(self, namesrv: NameServer) -> None:
        self._namesrv = namesrv

    def node_labels(self) -> dict[str, object]:
        return {"cluster": "", "node_type": "nameserver", "node_id": self._namesrv.address}

    def problems(self) -> list[str]:
        return [] if self._namesrv.serves else ["the name server is starting or stopping"]

    def facts(self) -> dict[str, Any]:
        return {"nameServer": self._namesrv.address} if self._namesrv.serves else {}

    def collect(self, exposition: Exposition) -> Iterator[None]:
        namesrv = self._namesrv
        if not namesrv.serves:
            return
        node = label_text(self.node_labels())
        exposition.add("rocket_namesrv_topics", node, len(namesrv.routes.topics()))
        silences = namesrv.routes.silences()
        exposition.add("rocket_namesrv_brokers", node, len(silences))
        add_overload(exposition, node, namesrv.overload, namesrv.connections)
        yield
        for broker, seconds in silences:
            labels = label_text(
                {
                    "broker_cluster": broker.cluster,
                    "broker": broker.broker_name,
                    "broker_id": broker.broker_id,
                    "address": broker.address,
                }
            )
            exposition.add("rocket_namesrv_broker_silence_seconds", f"{node},{labels}", seconds)
