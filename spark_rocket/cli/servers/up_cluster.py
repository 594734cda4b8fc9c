"""``rocket up --brokers N --slaves``: a name server in this process, and each broker in its own process.

A broker is ``rocket broker`` with a ``broker.conf`` that is written at every start (``DATA/broker-b/broker.conf``).
You can start a broker that died with the same file. Common settings belong into the file given with ``-c``. The stderr
of a broker is relayed with its name as a prefix. If a broker ends, that is printed, and the others keep running. Ctrl-C
or SIGTERM stops all brokers. So does the end of this process, whatever its cause: each broker reads a lifeline pipe.

Corresponds to mqnamesrv and several mqbroker with conf/2m-2s-async/*.properties.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import spark_rocket
from spark_rocket.broker.addresses import called_address
from spark_rocket.broker.cluster_layout import OWN_SETTINGS, UP_DEFAULTS, ClusterMember, cluster_members
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.cli.servers.child import ChildServer, exit_text
from spark_rocket.cli.servers.foreground import StopSignals, metrics_port, print_lines, reachable, ready
from spark_rocket.cli.servers.options import UpOptions
from spark_rocket.cli.servers.serve_broker import monitor_of
from spark_rocket.cli.servers.serve_up import (
    grpc_line,
    grpc_metrics_line,
    make_name_server,
    report_stopped,
    run_up,
    usage_lines,
    was_not_closed,
)
from spark_rocket.cli.servers.up_children import ProxyChild, start_console
from spark_rocket.errors import ConfigError, StateError
from spark_rocket.namesrv.name_server import NameServerMetrics
from spark_rocket.protocol.java_properties import parse_properties, render_properties
from spark_rocket.protocol.setting import read_settings, text_of

_WRITTEN = "# Written by rocket up at every start. Put settings for all brokers into the file given with -c.\n"


class _BrokerProcess(NamedTuple):
    member: ClusterMember
    server: ChildServer


def serve_cluster(options: UpOptions) -> int:
    return run_up(options, _up_cluster, "namesrv")


async def _up_cluster(options: UpOptions, config: BrokerConfig, data: Path) -> None:
    _check_options(options)
    members = cluster_members(
        options.brokers,
        slaves=options.slaves,
        port=config.listen_port,
        metrics_port=metrics_port(config),
    )
    async with StopSignals(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
        namesrv = make_name_server(options, config, data)
        await namesrv.start()
        servers.push_async_callback(namesrv.close)
        name_server = reachable(namesrv.address)
        monitor = await monitor_of(servers, config, NameServerMetrics(namesrv))
        proxy = ProxyChild(config, name_server, options.grpc_port, options.logs, processes=1 + len(members))
        await proxy.start(servers)
        stop = asyncio.ensure_future(stopping())
        brokers = _Brokers(options, config, name_server, data)
        servers.push_async_callback(brokers.stop)
        starting = asyncio.create_task(brokers.start_all(members))
        either: list[asyncio.Future[Any]] = [stop, starting]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        facts = starting.result()
        endpoint = await proxy.wait_until_up(servers)
        ready(options.ready_fd, {"nameServer": name_server, "broker": facts[0]["broker"]} | endpoint)
        print_lines(
            f"spark_rocket {spark_rocket.__version__} is up: {len(members)} brokers of {config.broker_cluster_name}.\n",
            f"  name server  {called_address(name_server, config)}",
            *monitor.lines,
            *brokers.lines(facts),
            *grpc_line(endpoint, config),
            *grpc_metrics_line(endpoint),
            *proxy.lines,
            *usage_lines(options, config, data, name_server),
        )
        start_console(servers, options, name_server, config)
        watching = [asyncio.create_task(brokers.watch(broker)) for broker in brokers.started]
        await stop
    for task in watching:
        task.cancel()
    report_stopped(options, data)


class _Brokers:
    def __init__(self, options: UpOptions, config: BrokerConfig, name_server: str, data: Path) -> None:
        self.started: list[_BrokerProcess] = []
        self._logs = options.logs
        self._shared = shared_settings(options, config, name_server)
        self._data = data
        self._first_store = config.store.store_path

    async def start_all(self, members: list[ClusterMember]) -> list[dict[str, str]]:
        """Start all brokers and return their facts. Slaves start last, so that they find their masters at once."""
        masters = await self._start([member for member in members if not member.is_slave])
        return masters + await self._start([member for member in members if member.is_slave])

    async def _start(self, members: list[ClusterMember]) -> list[dict[str, str]]:
        before = len(self.started)
        for member in members:
            conf = write_conf(member, self._shared, self._data, self._first_store)
            command = self._logs.command("broker", "-c", str(conf), label=member.label)
            self.started.append(_BrokerProcess(member, await ChildServer.start(member.label, *command)))
        return await asyncio.gather(*(broker.server.wait_until_up() for broker in self.started[before:]))

    def lines(self, facts: list[dict[str, str]]) -> list[str]:
        return [
            f"  broker       {fact['broker']} ({broker.member.label}, process {broker.server.pid})"
            + (f"  metrics {fact['metrics']}/metrics" if "metrics" in fact else "")
            for broker, fact in zip(self.started, facts, strict=True)
        ]

    async def watch(self, broker: _BrokerProcess) -> None:
        status = await broker.server.ended()
        if not broker.server.stopping:
            label = broker.member.label
            again = f"rocket broker -c {self._data / label / 'broker.conf'}"
            print_lines(f"{label} {exit_text(status)}. The other brokers keep running. Restart it with: {again}")

    async def stop(self) -> None:
        results = await asyncio.gather(*(broker.server.stop() for broker in self.started), return_exceptions=True)
        failed = [str(result) for result in results if isinstance(result, BaseException)]
        if failed:
            raise StateError(f"Brokers that could not be stopped: {'; '.join(failed)}")


def _check_options(options: UpOptions) -> None:
    """ConfigError if the common file has a setting that differs between brokers."""
    if options.config is not None:
        for name, _, line in parse_properties(read_settings(options.config, "broker")):
            if name in OWN_SETTINGS:
                raise ConfigError(
                    f"{options.config}, line {line}: {name} differs between brokers; --brokers sets it for each.",
                    remedy="Remove it. Use --data or --broker-port for the first broker.",
                )


def shared_settings(options: UpOptions, config: BrokerConfig, name_server: str) -> dict[str, object]:
    """Merge the settings of all brokers: the defaults of `up`, then the file, then the command line."""
    shared: dict[str, object] = dict(UP_DEFAULTS)
    if options.config is not None:
        text = read_settings(options.config, "broker")
        shared |= {name: value for name, value, _ in parse_properties(text) if name not in PROXY_SETTINGS}
    if config.acl_enable:  # relative to the given file, not to the written ones
        shared["aclFile"] = str(config.acl_path)
    return shared | {
        "namesrvAddr": ";".join([name_server, *config.name_servers]),
        "bindAddress": config.bind_address,
    }


def write_conf(member: ClusterMember, shared: dict[str, object], data: Path, first_store: Path) -> Path:
    """Write the settings of a broker, readable only by this user, and return the file."""
    home = data.absolute() / member.label
    home.mkdir(parents=True, exist_ok=True)
    # The first broker uses the same store as `rocket up` without --brokers, so it has the same messages.
    store = first_store.absolute() if member.label == "broker-a" else home / "store"
    if was_not_closed(store):
        print_lines(f"{store} was not closed cleanly: recovering it …")
    conf = home / "broker.conf"
    conf.touch()
    conf.chmod(0o600)  # it may contain the broker's secret key
    settings = {**shared, **member.settings(store)}
    conf.write_text(
        _WRITTEN + render_properties((name, text_of(value)) for name, value in settings.items()), encoding="utf-8"
    )
    return conf
