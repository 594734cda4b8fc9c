"""Running servers in the foreground: start, print the addresses, wait for SIGTERM or Ctrl-C, stop cleanly.

Corresponds to NamesrvStartup and BrokerStartup's main methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import spark_rocket
from spark_rocket.broker.addresses import called_address
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.metrics.exporter import BrokerMetrics
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.arguments import store_directory
from spark_rocket.cli.servers.foreground import (
    NO_PORT,
    Started,
    Stopping,
    metrics_port,
    open_warning,
    print_line,
    print_lines,
    raise_file_limit,
    reachable,
    ready,
    start_monitor,
    tls_line,
)
from spark_rocket.cli.servers.options import DEFAULT_DATA, BrokerOptions, ServerOptions, UpOptions
from spark_rocket.cli.servers.up_children import ProxyChild, start_console
from spark_rocket.errors import StoreLockedError
from spark_rocket.logs import fields, log_start
from spark_rocket.namesrv.name_server import NameServer, NameServerMetrics
from spark_rocket.remoting.http.monitor import MetricsExporterType, MetricsSource
from spark_rocket.remoting.server.remoting_server import run
from spark_rocket.remoting.tls.settings import CONFIG_FILE, TlsMode, TlsSettings
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.store_lock import StoreLock, abort_path

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"

SNIPPET = """\
  from pyspark.sql import SparkSession; spark = SparkSession.builder.getOrCreate()
  spark.createDataFrame([("Hello", "hello, rocket")], "topic string, body string").write.format("rocket")\
{options}.mode("append").save()
  spark.read.format("rocket"){options}.option("subscribe", "Hello").load()\
.selectExpr("queueOffset", "cast(body as string)").show()
"""


def snippet(name_server: str, config: BrokerConfig) -> str:
    """Return the example code, with the options that these servers require."""
    given = {"nameServer": name_server}
    if config.acl_enable:
        given |= {"accessKey": "…", "secretKey": "…"}
    if config.tls_settings().server_mode is TlsMode.ENFORCING:
        given |= {"tls": "true", "tlsCaFile": "…"}
    return SNIPPET.format(options="".join(f'.option("{name}", "{value}")' for name, value in given.items()))


def serve_up(options: UpOptions) -> int:
    return run_up(options, _up, "broker", "namesrv")


def run_up(
    options: UpOptions, serve: Callable[[UpOptions, BrokerConfig, Path], Coroutine[Any, Any, None]], *logs: str
) -> int:
    """Run ``serve`` with the settings and the data directory of ``rocket up``. ``logs``: the names of the log files."""
    options.logs.set_up(*logs)
    raise_file_limit()
    # The defaults of UP_DEFAULTS, and the metrics port, which `rocket broker` does not open. A file overrides them.
    config = _config(
        options,
        metrics_exporter_type=MetricsExporterType.PROM,
        recall_message_enable=True,
        enable_property_filter=True,
        enable_mixed_message_type=True,
    )
    data = _choose_data(options, config)
    try:
        run(serve(options, config, data))
    finally:
        if options.ephemeral:
            shutil.rmtree(data, ignore_errors=True)
    return 0


def _choose_data(options: UpOptions, config: BrokerConfig) -> Path:
    if options.ephemeral:
        data = Path(tempfile.mkdtemp(prefix="rocket-"))
        config.store = config.store.in_directory(data / "store")
    elif options.data is None and config.store.store_path_root_dir != StoreConfig().store_path_root_dir:
        data = config.store.store_path
    else:
        data = (options.data or DEFAULT_DATA).absolute()
        config.store = replace(config.store, store_path_root_dir=store_directory(data))
    return data


def make_name_server(options: UpOptions, config: BrokerConfig, data: Path) -> NameServer:
    path = data / "namesrv" / "kvConfig.json"
    return NameServer(config.bind_address, options.nameserver_port, kv_config_path=path, tls=config.tls_settings())


async def _up(options: UpOptions, config: BrokerConfig, data: Path) -> None:
    async with Stopping(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
        namesrv = make_name_server(options, config, data)
        await namesrv.bind()
        servers.push_async_callback(namesrv.close)
        name_server = reachable(namesrv.address)
        config.namesrv_addr = ";".join([name_server, *config.name_servers])
        proxy = ProxyChild(config, name_server, options.grpc_port, options.logs)
        await proxy.start(servers)  # first: it starts slower than a broker
        broker = Broker(config)
        if was_not_closed(config.store.store_path):
            print_lines(f"{config.store.store_path} was not closed cleanly: recovering it …")
        await broker.start()
        servers.push_async_callback(broker.close)
        # Start it only now: during recovery it would report existing topics as missing.
        await namesrv.start()
        # Register before reporting that all is up: clients may ask the name server for this broker at once.
        await asyncio.wait([broker.parts.registration.register()], timeout=2.0)
        monitor = await monitor_of(servers, config, BrokerMetrics(broker), NameServerMetrics(namesrv))
        facts = {"nameServer": name_server, "broker": broker.address}
        facts |= monitor.facts | await proxy.wait_until_up(servers)
        _log_start(config)
        ready(options.ready_fd, facts)
        print_lines(
            f"spark_rocket {spark_rocket.__version__} is up.\n",
            f"  name server  {called_address(name_server, config)}",
            f"  broker       {broker.address} ({config.broker_name} of {config.broker_cluster_name})",
            *grpc_line(facts, config),
            *proxy.lines,
            *tls_line(config.tls_settings()),
            *monitor.lines,
            *grpc_metrics_line(facts),
            *usage_lines(options, config, data, name_server),
        )
        start_console(servers, options, name_server, config)
        await stopping()
    report_stopped(options, data)


def usage_lines(options: UpOptions, config: BrokerConfig, data: Path, name_server: str) -> list[str]:
    where = "temporary, deleted at stop" if options.ephemeral else "persistent"
    return [
        f"  data         {data} ({where})\n",
        *open_warning(config.bind_address, checked=config.acl_enable),
        "Try it in Python with PySpark:\n",
        snippet(called_address(name_server, config), config),
        "Press Ctrl-C to stop.",
    ]


def report_stopped(options: UpOptions, data: Path) -> None:
    print_line("Stopped." if options.ephemeral else f"Stopped. The data is in {data}.")


def grpc_line(facts: Mapping[str, str], config: BrokerConfig) -> list[str]:
    if "grpc" not in facts:
        return []
    return [f"  gRPC         {called_address(facts['grpc'], config)} (RocketMQ 5 clients)"]


def grpc_metrics_line(facts: Mapping[str, str]) -> list[str]:
    return [f"               {facts['grpcMetrics']}/metrics of the gRPC proxy"] if "grpcMetrics" in facts else []


def was_not_closed(store: Path) -> bool:
    """Whether the store was not closed cleanly. False for a store in use, whose start is refused later."""
    with contextlib.suppress(OSError, StoreLockedError):  # the broker reports unreadable directories
        if abort_path(store).exists():
            lock = StoreLock(store)
            lock.acquire()
            lock.release()
            return True
    return False


def serve_namesrv(options: ServerOptions, port: int, tls_config: Path | None) -> int:
    options.logs.set_up("namesrv")
    raise_file_limit()
    tls = TlsSettings.of({CONFIG_FILE: str(tls_config)} if tls_config is not None else {}, source="--tls-config")
    run(_namesrv(options, port, tls))
    return 0


async def _namesrv(options: ServerOptions, port: int, tls: TlsSettings) -> None:
    host = options.host or _LOOPBACK
    data = options.data or Path.home() / "namesrv"
    async with Stopping(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
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


def serve_broker(options: BrokerOptions) -> int:
    options.logs.set_up("broker")
    raise_file_limit()
    config = _config(options)
    if options.nameserver:
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
    async with Stopping(lifeline_fd) as stopping, AsyncExitStack() as servers:
        broker = Broker(config)
        await broker.start()
        servers.push_async_callback(broker.close)
        monitor = await monitor_of(servers, config, BrokerMetrics(broker))
        _log_start(config)
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
            *open_warning(config.bind_address, checked=config.acl_enable),
        )
        await stopping()


def _config(options: BrokerOptions, **defaults: object) -> BrokerConfig:
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


def _log_start(config: BrokerConfig) -> None:
    log_start(_log, f"broker {config.broker_name}", config.to_properties(), BrokerConfig().to_properties())
