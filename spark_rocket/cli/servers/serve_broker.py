"""``rocket broker`` in the foreground: start, print the addresses, wait for SIGTERM or Ctrl-C, stop cleanly.

Corresponds to org.apache.rocketmq.broker.BrokerStartup.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace

import spark_rocket
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.metrics.exporter import BrokerMetrics
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.arguments import store_directory
from spark_rocket.cli.servers.foreground import (
    NO_PORT,
    Started,
    StopSignals,
    metrics_port,
    open_warning,
    print_lines,
    raise_file_limit,
    ready,
    start_monitor,
    tls_line,
)
from spark_rocket.cli.servers.options import BrokerOptions
from spark_rocket.common.logs import log_start
from spark_rocket.remoting.http.monitor import MetricsExporterType, MetricsSource
from spark_rocket.remoting.name_server_list import check_addresses
from spark_rocket.remoting.server.remoting_server import run

_log = logging.getLogger(__name__)


def serve_broker(options: BrokerOptions) -> int:
    options.logs.set_up("broker")
    raise_file_limit()
    config = config_of(options)
    if options.nameserver:
        check_addresses(options.nameserver)
        config.namesrv_addr = options.nameserver
    if options.data is not None:
        config.store = replace(config.store, store_path_root_dir=store_directory(options.data.absolute()))
    if config.proxy_settings:
        _log.warning(
            "%s: ignored settings of the gRPC proxy: %s. Set them in the proxy's own file and start it with "
            "rocket proxy -n %s -c FILE.",
            config.source,
            ", ".join(sorted(config.proxy_settings)),
            config.namesrv_addr or "ADDR",
        )
    run(_broker(config, options.ready_fd, options.lifeline_fd))
    return 0


async def _broker(config: BrokerConfig, ready_fd: int | None, lifeline_fd: int | None) -> None:
    async with StopSignals(lifeline_fd) as stopping, AsyncExitStack() as servers:
        broker = Broker(config)
        await broker.start()
        servers.push_async_callback(broker.close)
        monitor = await monitor_of(servers, config, BrokerMetrics(broker))
        log_broker_start(config)
        if ready_fd is not None:
            # Register before reporting: clients may ask a name server for this broker at once.
            await asyncio.wait([broker.parts.registration.register()], timeout=2.0)
            ready(ready_fd, {"broker": broker.address} | monitor.facts)
        print_lines(
            f"spark_rocket {spark_rocket.__version__}: broker {config.broker_name} of {config.broker_cluster_name} "
            f"on {broker.address}",
            *monitor.lines,
            *tls_line(config.tls_settings()),
            f"  name servers {config.namesrv_addr or 'none: set namesrvAddr or give -n'}",
            f"  store        {config.store.store_path}",
            *open_warning(config.bind_address, checked=config.is_guarded),
        )
        await stopping()


def config_of(options: BrokerOptions, **defaults: object) -> BrokerConfig:
    if options.config is not None:
        config = BrokerConfig.from_file(options.config, **defaults)
    else:
        config = BrokerConfig(**defaults)  # type: ignore[arg-type]  # fields of any type
    if options.host is not None:
        config.bind_address = options.host
    if options.broker_port is not None:
        config.listen_port = options.broker_port
    if options.metrics_port == NO_PORT:
        config.metrics_exporter_type = MetricsExporterType.DISABLE
    elif options.metrics_port is not None:
        config.metrics_exporter_type = MetricsExporterType.PROM
        config.metrics_prom_exporter_port = options.metrics_port
    if options.metrics_host is not None:
        config.metrics_prom_exporter_host = options.metrics_host
    return config


async def monitor_of(servers: AsyncExitStack, config: BrokerConfig, *sources: MetricsSource) -> Started:
    host, port, tls = config.metrics_prom_exporter_host, metrics_port(config), config.tls_settings()
    return await start_monitor(servers, *sources, host=host, port=port, tls=tls)


def log_broker_start(config: BrokerConfig) -> None:
    log_start(_log, f"broker {config.broker_name}", config.to_properties(), BrokerConfig().to_properties())
