"""Running the gRPC proxy for all brokers of a cluster, in this process or in several.

With ``--workers N`` the command starts N processes that listen on the same port (SO_REUSEPORT), reserves the port for
them, and restarts workers that die. The kernel assigns each connection to a worker.

Corresponds to org.apache.rocketmq.proxy.ProxyStartup.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace

import spark_rocket
from spark_rocket.cli.servers.child import SupervisedServer
from spark_rocket.cli.servers.foreground import (
    StopSignals,
    metrics_port,
    open_warning,
    print_lines,
    raise_file_limit,
    ready,
    start_monitor,
)
from spark_rocket.cli.servers.options import SETTINGS_VARIABLE, ProxyOptions
from spark_rocket.common.logs import log_start
from spark_rocket.errors import ConfigError
from spark_rocket.proxy.metrics import ProxyMetrics
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.sockets import bind

_log = logging.getLogger(__name__)


def serve_proxy(config: ProxyConfig, options: ProxyOptions) -> int:
    options.logs.set_up("proxy")
    raise_file_limit()
    # On asyncio's loop: grpc.aio calls cost a sixth more CPU on uvloop.
    asyncio.run(_alone(config, options) if options.workers == 1 else _workers(config, options))
    return 0


async def _alone(config: ProxyConfig, options: ProxyOptions) -> None:
    async with StopSignals(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
        server = ProxyServer(config)
        await server.start()
        servers.push_async_callback(server.close)
        host, port, tls = config.metrics_prom_exporter_host, metrics_port(config), config.server_tls_settings()
        monitor = await start_monitor(servers, ProxyMetrics(server), host=host, port=port, tls=tls)
        log_start(_log, "proxy", config.to_properties(), ProxyConfig().to_properties())
        ready(options.ready_fd, {"grpc": server.address} | monitor.facts)
        _announce(config, server.address, monitor.lines)
        await stopping()


def _announce(config: ProxyConfig, address: str, metrics: Iterable[str], workers: str = "") -> None:
    print_lines(
        f"spark_rocket {spark_rocket.__version__}: gRPC proxy on {address}{workers}",
        *metrics,
        f"  name servers {config.name_server}",
        *open_warning(config.host, checked=config.is_guarded),
    )


# --- several processes ------------------------------------------------------------------------------------------------


async def _workers(config: ProxyConfig, options: ProxyOptions) -> None:
    with await _hold_port(config) as held:
        bound = held.getsockname()[1]
        async with StopSignals(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
            workers = [
                SupervisedServer(
                    f"worker {number}",
                    "rocket proxy",
                    *options.logs.command("proxy", "--reuse-port", label=f"worker-{number}"),
                    environment={SETTINGS_VARIABLE: worker_config(config, bound, number).to_text()},
                )
                for number in range(1, options.workers + 1)
            ]
            for worker in workers:
                servers.push_async_callback(worker.stop)
                await worker.start()
            facts = await asyncio.gather(*(worker.wait_until_up() for worker in workers))
            address = format_address(config.host, bound)
            ready(options.ready_fd, {"grpc": address})
            lines = [
                f"  metrics      {one['metrics']}/metrics, /health and /ready (worker {number})"
                for number, one in enumerate(facts, 1)
                if "metrics" in one
            ]
            _announce(config, address, lines, f", {len(workers)} processes")
            await stopping()


def worker_config(config: ProxyConfig, port: int, number: int) -> ProxyConfig:
    """Return the settings of a worker; numbers start at 1. Each worker has its own metrics port, if any."""
    first = config.metrics_prom_exporter_port
    return replace(config, port=port, metrics_prom_exporter_port=min(first + number - 1, 65_535) if first else 0)


async def _hold_port(config: ProxyConfig) -> socket.socket:
    """Bind a socket that accepts no connections, to reserve the port while workers restart."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("This system has no SO_REUSEPORT.", remedy="Omit --workers.")
    return await bind(config.host, config.port, "gRPC endpoint", " with --grpc-port", reuse_port=True)
