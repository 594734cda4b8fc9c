"""The name server: route tables behind a Remoting server, the removal of silent brokers, and its metrics.

Thread-safety: used on the event loop that started it. After a crash or restart its tables are empty until brokers
register again, within 30 seconds; the KV configuration is loaded from its file.
Corresponds to org.apache.rocketmq.namesrv.{NamesrvController, routeinfo.BrokerHousekeepingService}.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.protocol.requests import NAMESRV_REQUESTS
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.exposition import GAUGE, Exposition, Metric, label_text
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.overload import (
    OTHER,
    OVERLOAD_METRICS,
    Limits,
    OverloadStats,
    QueueCapacity,
    add_overload,
)
from spark_rocket.remoting.server.remoting_server import RemotingServer
from spark_rocket.remoting.tls.contexts import server_tls
from spark_rocket.remoting.tls.settings import TlsSettings

SCAN_INTERVAL_S = 5.0

# Priority under overload: brokers, on which everything else depends, then tools, then clients.
_BROKERS: dict[int, str] = dict.fromkeys(
    (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,
    ),
    "broker",
)
# Java clients of 5.x connect to all name servers and use one: as with Apache's, only the idle timeout applies.
_FIRST_REQUEST_S = 120.0
_QUEUES = {"broker": QueueCapacity(), OTHER: QueueCapacity(), "client": QueueCapacity(50_000)}  # Apache's capacities


def name_server_limits() -> Limits:
    kinds: dict[int, str] = {**_BROKERS, RequestCode.GET_ROUTEINFO_BY_TOPIC: "client"}
    return Limits(max_connections=20_000, first_request=_FIRST_REQUEST_S, queues=_QUEUES, kinds=kinds)


class NameServer:
    """A name server. ``clock`` returns seconds for the expiry of brokers; it should be monotonic."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9876,
        *,
        kv_config_path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        scan_interval: float = SCAN_INTERVAL_S,
        tls: TlsSettings | None = None,
    ) -> None:
        self.routes = RouteInfoManager(clock)
        self.kv_config = KVConfigManager(kv_config_path)
        self._scan_interval = scan_interval
        self._scanner: asyncio.TimerHandle | None = None
        self._is_sweeping = False
        self._processor = processor = NamesrvProcessor(self.routes, self.kv_config)
        self._server = RemotingServer(
            host,
            port,
            processor.handlers(),
            on_close=processor.channel_closed,
            name="name server",
            port_options=": rocket up --nameserver-port, rocket namesrv --port",
            limits=name_server_limits(),
            request_types=NAMESRV_REQUESTS,
            tls=None if tls is None else server_tls(tls, (host, "localhost", "127.0.0.1", "::1")),
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port``; with port 0, the port selected by the system."""
        return self._server.address

    @property
    def serves(self) -> bool:
        return self._scanner is not None and not self._scanner.cancelled()

    @property
    def connections(self) -> int:
        return len(self._server.channels)

    @property
    def overload(self) -> OverloadStats:
        return self._server.overload

    async def bind(self) -> None:
        """Bind the port without serving requests yet, so that a broker of the same process can recover first."""
        await self._server.bind()

    async def start(self) -> None:
        """Load the KV file and serve; ConfigError if the port is in use or the file is invalid."""
        self.kv_config.load()
        self.routes.on_removal = self._start_sweep
        await self._server.start()
        self._scanner = asyncio.get_running_loop().call_later(self._scan_interval, self._scan)

    async def close(self) -> None:
        if self._scanner is not None:
            self._scanner.cancel()
        self._processor.close()
        await self._server.close()

    def _scan(self) -> None:
        for broker in self.routes.expire():
            if isinstance(broker.channel, Channel):
                broker.channel.close()
        self._scanner = asyncio.get_running_loop().call_later(self._scan_interval, self._scan)

    def _start_sweep(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_soon(self._sweep)

    def _sweep(self) -> None:
        """Remove what removed brokers have left, one limited step in each iteration of the loop."""
        self._is_sweeping = self.routes.sweep()
        if self._is_sweeping:
            asyncio.get_running_loop().call_soon(self._sweep)


# --- metrics ----------------------------------------------------------------------------------------------------

_NODE = ("cluster", "node_type", "node_id")
_BROKER = (*_NODE, "broker_cluster", "broker", "broker_id", "address")

METRICS: tuple[Metric, ...] = (
    Metric("rocket_namesrv_topics", GAUGE, "Topics that have a route.", "own", _NODE),
    Metric("rocket_namesrv_brokers", GAUGE, "Live broker processes.", "own", _NODE),
    Metric(
        "rocket_namesrv_broker_silence_seconds", GAUGE, "Seconds since a broker's last registration.", "own", _BROKER
    ),
)


class NameServerMetrics:
    """A name server's /metrics, /health and /ready. Apache's name server has no metrics: the names are our own."""

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
        exposition.add("rocket_namesrv_topics", node, namesrv.routes.topic_count)
        silences = namesrv.routes.silences()
        exposition.add("rocket_namesrv_brokers", node, len(silences))
        add_overload(exposition, node, namesrv.overload, namesrv.connections, _QUEUES)
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
