"""``rocket namesrv`` in the foreground. Corresponds to org.apache.rocketmq.namesrv.NamesrvStartup."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import spark_rocket
from spark_rocket.broker.addresses import called_address
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.foreground import (
    NO_PORT,
    StopSignals,
    open_warning,
    print_lines,
    raise_file_limit,
    ready,
    start_monitor,
    tls_line,
)
from spark_rocket.cli.servers.options import ServerOptions
from spark_rocket.common.logs import fields
from spark_rocket.namesrv.name_server import NameServer, NameServerMetrics
from spark_rocket.remoting.server.remoting_server import run
from spark_rocket.remoting.tls.settings import CONFIG_FILE, TlsSettings

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


def serve_namesrv(options: ServerOptions, port: int, tls_config: Path | None) -> int:
    options.logs.set_up("namesrv")
    raise_file_limit()
    tls = TlsSettings.of({CONFIG_FILE: str(tls_config)} if tls_config is not None else {}, source="--tls-config")
    run(_namesrv(options, port, tls))
    return 0


async def _namesrv(options: ServerOptions, port: int, tls: TlsSettings) -> None:
    host = options.host or _LOOPBACK
    data = options.data or Path.home() / "namesrv"
    async with StopSignals(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
        namesrv = NameServer(host, port, kv_config_path=data / "kvConfig.json", tls=tls)
        await namesrv.start()
        servers.push_async_callback(namesrv.close)
        wanted = NO_PORT if options.metrics_port is None else options.metrics_port
        monitor = await start_monitor(
            servers, NameServerMetrics(namesrv), host=options.metrics_host, port=wanted, tls=tls
        )
        _log.info("name server started", extra=fields(address=namesrv.address, data=data))
        ready(options.ready_fd, {"nameServer": namesrv.address} | monitor.facts)
        print_lines(
            f"spark_rocket {spark_rocket.__version__}: name server on "
            f"{called_address(namesrv.address, BrokerConfig(bind_address=host))}",
            *monitor.lines,
            *tls_line(tls),
            *open_warning(host),
        )
        await stopping()
