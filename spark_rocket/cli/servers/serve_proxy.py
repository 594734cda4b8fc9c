"""Running the gRPC endpoint for all brokers of a cluster, in this process or in several.

With ``--workers N`` the command starts N processes that listen on the same port (SO_REUSEPORT), holds the port for
them, and starts one again that dies. The kernel gives each connection to one of them.

Corresponds to org.apache.rocketmq.proxy.ProxyStartup.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import spark_rocket
from spark_rocket.cli.servers.child_server import KeptServer
from spark_rocket.cli.servers.foreground import Stopping, raise_file_limit, ready, say, warn_open
from spark_rocket.cli.servers.proxy import SETTINGS_VARIABLE
from spark_rocket.cli.servers.up import LogOptions
from spark_rocket.errors import ConfigError
from spark_rocket.logs import log_start
from spark_rocket.proxy.config import ProxyConfig
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.server.listening import bind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """What the command line says beside the settings."""

    logs: LogOptions
    workers: int
    ready_fd: int | None
    lifeline_fd: int | None


def serve_proxy(config: ProxyConfig, options: ProxyOptions) -> int:
    """``rocket proxy``. ConfigError when it cannot start."""
    options.logs.set_up("proxy")
    raise_file_limit()
    # On asyncio's own loop: grpc.aio calls cost a sixth more CPU on uvloop.
    asyncio.run(_alone(config, options) if options.workers == 1 else _workers(config, options))
    return 0


async def _alone(config: ProxyConfig, options: ProxyOptions) -> None:
    async with Stopping(options.lifeline_fd) as stopping:
        server = ProxyServer(config)
        await server.start()
        try:
            log_start(_log, "proxy", config.to_properties(), ProxyConfig().to_properties())
            ready(options.ready_fd, {"grpc": server.address})
            _announce(config, server.address)
            await stopping()
        finally:
            await server.close()


def _announce(config: ProxyConfig, address: str, workers: str = "") -> None:
    say(
        f"spark_rocket {spark_rocket.__version__}: gRPC proxy on {address}{workers}",
        f"  name servers {config.name_server}",
        *warn_open(config.host, checked=config.acl_enable),
    )


# --- several processes ------------------------------------------------------------------------------------------------


async def _workers(config: ProxyConfig, options: ProxyOptions) -> None:
    """Start the workers, keep them running, and stop them."""
    with await _hold_port(config) as held:
        bound = held.getsockname()[1]
        async with Stopping(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
            environment = {SETTINGS_VARIABLE: replace(config, port=bound).to_text()}
            workers = [
                KeptServer(
                    f"worker {number}",
                    "rocket proxy",
                    *(["-v"] if options.logs.verbose else []),
                    *("proxy", "--reuse-port", *options.logs.arguments(f"worker-{number}")),
                    environment=environment,
                )
                for number in range(1, options.workers + 1)
            ]
            for worker in workers:
                servers.push_async_callback(worker.stop)
                await worker.start()
            await asyncio.gather(*(worker.wait_until_up() for worker in workers))
            address = format_address(config.host, bound)
            ready(options.ready_fd, {"grpc": address})
            _announce(config, address, f", {len(workers)} processes")
            await stopping()


async def _hold_port(config: ProxyConfig) -> socket.socket:
    """A socket that has the port and takes no connections: the port stays this command's while workers come and go."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("This system has no SO_REUSEPORT.", remedy="Leave --workers out.")
    return await bind(config.host, config.port, "gRPC endpoint", " with --grpc-port", reuse_port=True)
