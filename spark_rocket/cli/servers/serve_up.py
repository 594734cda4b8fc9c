"""``rocket up`` in the foreground: a name server and a broker in this process."""

from __future__ import annotations

import asyncio
import contextlib
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
    StopSignals,
    open_warning,
    print_line,
    print_lines,
    raise_file_limit,
    reachable,
    ready,
    tls_line,
)
from spark_rocket.cli.servers.options import DEFAULT_DATA, UpOptions
from spark_rocket.cli.servers.serve_broker import config_of, log_broker_start, monitor_of
from spark_rocket.cli.servers.up_children import ProxyChild, start_console
from spark_rocket.errors import StoreLockedError
from spark_rocket.namesrv.name_server import NameServer, NameServerMetrics
from spark_rocket.remoting.http.monitor import MetricsExporterType
from spark_rocket.remoting.server.remoting_server import run
from spark_rocket.remoting.tls.settings import TlsMode
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.store_lock import StoreLock, abort_path

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
    if config.is_guarded:
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
    config = config_of(
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
    async with StopSignals(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
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
        log_broker_start(config)
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
        *open_warning(config.bind_address, checked=config.is_guarded),
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
