"""Starts the endpoint for figures and health beside a server, and says where it is.

It is a help, and no server is stopped for want of it: a port that is taken is said. Of a broker or proxy the settings
``metricsExporterType``, ``metricsPromExporterHost`` and ``metricsPromExporterPort`` say what is wanted.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.http.monitor import MetricsExporterType, MetricsSource, Monitor
from spark_rocket.remoting.server.sockets import is_loopback
from spark_rocket.remoting.tls.contexts import server_tls
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings

if TYPE_CHECKING:
    from spark_rocket.broker.state.config import BrokerConfig
    from spark_rocket.proxy.config import ProxyConfig

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
NO_PORT = -1


def metrics_port(config: BrokerConfig | ProxyConfig) -> int:
    """The port that the settings ask for; NO_PORT for none."""
    kind = config.metrics_exporter_type
    if kind is MetricsExporterType.PROM:
        return config.metrics_prom_exporter_port
    if kind is not MetricsExporterType.DISABLE:
        _log.warning("metricsExporterType=%s is not served here: set PROM, and let its collector scrape.", kind.value)
    return NO_PORT


@dataclass(frozen=True)
class Started:
    """What to tell whoever started it: people, a line or none, and programs."""

    lines: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


async def start_monitor(
    servers: AsyncExitStack,
    *sources: MetricsSource,
    host: str = "",
    port: int,
    tls: TlsSettings | None = None,
) -> Started:
    """Serve until ``servers`` are closed. It is HTTPS where ``tls`` enforces TLS."""
    if port == NO_PORT:
        return Started()
    host = host or LOOPBACK
    wanted = server_tls(tls, (host, "localhost", LOOPBACK)) if tls and tls.mode is TlsMode.ENFORCING else None
    monitor = Monitor(host, port, sources, ssl=wanted.listening() if wanted is not None else None)
    try:
        await monitor.start()
    except ConfigError as error:
        return Started([f"  metrics      none: {error.message} Choose another port (--metrics-port)."])
    servers.push_async_callback(monitor.close)
    whose = "" if is_loopback(host) else " (open to everyone)"
    return Started([f"  metrics      {monitor.url}/metrics, /health and /ready{whose}"], {"metrics": monitor.url})
