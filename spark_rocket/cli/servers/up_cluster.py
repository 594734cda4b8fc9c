"""``rocket up --brokers N --slaves``: a name server in this process, and each broker in one of its own.

The brokers are ``rocket broker`` with a ``broker.conf`` that is written at every start (``DATA/broker-b/broker.conf``),
so that one that died can be started by hand, and what belongs to all of them stays in the file given with ``-c``. What
a broker says on stderr is said here with its name before it. A broker that ends is said, and the others go on; Ctrl-C
or SIGTERM stops all, and so does the end of this process, however it ends: each broker holds the end of a pipe.

Corresponds to what mqnamesrv and several mqbroker with conf/2m-2s-async/*.properties are together.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import spark_rocket
from spark_rocket.broker.addresses import called_address
from spark_rocket.broker.cluster_layout import OWN_SETTINGS, UP_DEFAULTS, ClusterMember, cluster_members
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.cli.servers.child import ChildServer, how_it_ended
from spark_rocket.cli.servers.foreground import Stopping, metrics_port, reachable, ready, say
from spark_rocket.cli.servers.options import UpOptions
from spark_rocket.cli.servers.serve import (
    grpc_line,
    grpc_metrics_line,
    how_to_use,
    make_name_server,
    monitor_of,
    run_up,
    tell_stopped,
    was_killed,
)
from spark_rocket.cli.servers.up_children import ProxyChild, start_console
from spark_rocket.errors import ConfigError, StateError
from spark_rocket.namesrv.server import NameServerMetrics
from spark_rocket.protocol.java_properties import parse_properties, render_properties
from spark_rocket.protocol.setting import text_of

_WRITTEN = "# Written by rocket up at every start. What all brokers are to have belongs into the file given with -c.\n"


class _BrokerProcess(NamedTuple):
    """A broker and its process."""

    member: ClusterMember
    server: ChildServer


def serve_cluster(options: UpOptions) -> int:
    """``rocket up`` with a process for each broker."""
    return run_up(options, _up_cluster, "namesrv")


async def _up_cluster(options: UpOptions, config: BrokerConfig, data: Path) -> None:
    _check_options(options)
    members = cluster_members(
        options.brokers,
        slaves=options.slaves,
        port=config.listen_port,
        metrics_port=metrics_port(config),
    )
    async with Stopping(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
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
        say(
            f"spark_rocket {spark_rocket.__version__} is up: {len(members)} brokers of {config.broker_cluster_name}.\n",
            f"  name server  {called_address(name_server, config)}",
            *monitor.lines,
            *brokers.lines(facts),
            *grpc_line(endpoint, config),
            *grpc_metrics_line(endpoint),
            *proxy.lines,
            *how_to_use(options, config, data, name_server),
        )
        start_console(servers, options, name_server, config)
        watching = [asyncio.create_task(brokers.watch(broker)) for broker in brokers.started]
        await stop
    for task in watching:
        task.cancel()
    tell_stopped(options, data)


class _Brokers:
    """The brokers' processes."""

    def __init__(self, options: UpOptions, config: BrokerConfig, name_server: str, data: Path) -> None:
        self.started: list[_BrokerProcess] = []
        self._logs = options.logs
        self._shared = shared_settings(options, config, name_server)
        self._data = data
        self._first_store = config.store_path

    async def start_all(self, members: list[ClusterMember]) -> list[dict[str, str]]:
        """What each reports. The slaves start last: they are told at once where their masters are."""
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
            say(f"{label} {how_it_ended(status)}. The others go on; start it again with: {again}")

    async def stop(self) -> None:
        results = await asyncio.gather(*(broker.server.stop() for broker in self.started), return_exceptions=True)
        failed = [str(result) for result in results if isinstance(result, BaseException)]
        if failed:
            raise StateError(f"Not every broker could be stopped: {'; '.join(failed)}")


def _check_options(options: UpOptions) -> None:
    """ConfigError when the file for all brokers sets what each has of its own."""
    if options.config is not None:
        for name, _, line in parse_properties(options.config.read_text(encoding="utf-8")):
            if name in OWN_SETTINGS:
                raise ConfigError(
                    f"{options.config}, line {line}: {name} is each broker's own, and --brokers gives it to them.",
                    remedy="Remove it, and give --data or --broker-port for the first broker.",
                )


def shared_settings(options: UpOptions, config: BrokerConfig, name_server: str) -> dict[str, object]:
    """What all brokers have: what `up` has by itself, the file's, and the command line's."""
    shared: dict[str, object] = dict(UP_DEFAULTS)
    if options.config is not None:
        text = options.config.read_text(encoding="utf-8")
        shared |= {name: value for name, value, _ in parse_properties(text) if name not in PROXY_SETTINGS}
    if config.acl_enable:  # beside the file that was given, and not beside those that are written
        shared["aclFile"] = str(config.acl_path)
    return shared | {
        "namesrvAddr": ";".join([name_server, *config.name_servers]),
        "bindAddress": config.bind_address,
    }


def write_conf(member: ClusterMember, shared: dict[str, object], data: Path, first_store: Path) -> Path:
    """Write a broker's settings, readable for this user only; the file."""
    home = data.absolute() / member.label
    home.mkdir(parents=True, exist_ok=True)
    # The first broker's store is where `rocket up` without --brokers has it: its messages are there either way.
    store = first_store.absolute() if member.label == "broker-a" else home / "store"
    if was_killed(store):
        say(f"{store} was not closed cleanly: recovering it …")
    conf = home / "broker.conf"
    conf.touch()
    conf.chmod(0o600)  # it may hold what the broker signs with
    settings = {**shared, **member.settings(store)}
    conf.write_text(
        _WRITTEN + render_properties((name, text_of(value)) for name, value in settings.items()), encoding="utf-8"
    )
    return conf
