"""``rocket up --brokers N --slaves``: a name server in this process, and each broker in one of its own.

The brokers are ``rocket broker`` with a ``broker.conf`` that is written at every start (``DATA/broker-b/broker.conf``),
so that one that died can be started by hand, and what belongs to all of them stays in the file given with ``-c``. What
a broker says on stderr is said here with its name before it. A broker that ends is said, and the others go on; Ctrl-C
or SIGTERM stops all, and so does the end of this process, however it ends: each broker holds the end of a pipe.

Corresponds to what mqnamesrv and several mqbroker with conf/2m-2s-async/*.properties are together.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import spark_rocket
from spark_rocket.broker.addresses import called_address
from spark_rocket.broker.cluster_layout import OWN_SETTINGS, UP_DEFAULTS, ClusterMember, cluster_members
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.known_settings import PROXY_SETTINGS
from spark_rocket.cli.commands.monitor import metrics_port, start_monitor
from spark_rocket.cli.servers.child_server import ChildServer, how_it_ended
from spark_rocket.cli.servers.console_child import start_console
from spark_rocket.cli.servers.foreground import Stopping, reachable, ready, say, warn_open
from spark_rocket.cli.servers.proxy_child import ProxyChild
from spark_rocket.cli.servers.serve import grpc_line, grpc_metrics_line, snippet, was_killed
from spark_rocket.cli.servers.up import LogOptions, UpOptions
from spark_rocket.errors import ConfigError, StateError
from spark_rocket.namesrv.server import NameServer, NameServerMetrics
from spark_rocket.protocol.java_properties import parse_properties, render_properties

_WRITTEN = "# Written by rocket up at every start. What all brokers are to have belongs into the file given with -c.\n"


class _BrokerProcess(NamedTuple):
    """A broker and its process."""

    member: ClusterMember
    server: ChildServer

    @classmethod
    async def start(cls, member: ClusterMember, conf: Path, logs: LogOptions) -> _BrokerProcess:
        arguments = [*(["-v"] if logs.verbose else []), "broker", "-c", str(conf), *logs.arguments(member.label)]
        return cls(member, await ChildServer.start(member.label, *arguments))


async def up_cluster(options: UpOptions, config: BrokerConfig, data: Path) -> None:
    """Serve until told to stop."""
    host = config.bind_address
    members = cluster_members(
        options.brokers,
        slaves=options.slaves,
        port=config.listen_port,
        metrics_port=metrics_port(config),
    )
    async with Stopping(options.lifeline_fd) as stopping, AsyncExitStack() as servers:
        kv_config = data / "namesrv" / "kvConfig.json"
        namesrv = NameServer(host, options.nameserver_port, kv_config_path=kv_config, tls=config.tls_settings())
        await namesrv.start()
        servers.push_async_callback(namesrv.close)
        name_server = reachable(namesrv.address)
        monitor = await start_monitor(
            servers,
            NameServerMetrics(namesrv),
            host=config.metrics_prom_exporter_host,
            port=metrics_port(config),
            tls=config.tls_settings(),
        )
        shared = _shared_settings(options, config, name_server)
        proxy = ProxyChild(config, name_server, options.grpc_port, options.logs, processes=1 + len(members))
        await proxy.start(servers)
        stop = asyncio.ensure_future(stopping())
        brokers: list[_BrokerProcess] = []
        servers.push_async_callback(_stop_all, brokers)

        async def start(some: list[ClusterMember]) -> list[dict[str, str]]:
            for member in some:
                conf = _write_conf(member, shared, data, config.store_path)
                brokers.append(await _BrokerProcess.start(member, conf, options.logs))
            return await asyncio.gather(*(broker.server.wait_until_up() for broker in brokers[-len(some) :]))

        async def start_all() -> list[dict[str, str]]:
            masters = await start([member for member in members if not member.is_slave])
            # These are told at once where their masters are.
            slaves = [member for member in members if member.is_slave]
            return masters + (await start(slaves) if slaves else [])

        starting = asyncio.create_task(start_all())
        either: list[asyncio.Future[Any]] = [stop, starting]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        facts = starting.result()
        endpoint = await proxy.wait_until_up(servers)
        ready(options.ready_fd, {"nameServer": name_server, "broker": facts[0]["broker"]} | endpoint)
        where = "temporary, gone at stop" if options.ephemeral else "kept when it stops"
        say(
            f"spark_rocket {spark_rocket.__version__} is up: {len(brokers)} brokers of {config.broker_cluster_name}.\n",
            f"  name server  {called_address(name_server, config)}",
            *monitor.lines,
            *(_line(broker, fact) for broker, fact in zip(brokers, facts, strict=True)),
            *grpc_line(endpoint, config),
            *grpc_metrics_line(endpoint),
            *proxy.lines,
            f"  data         {data} ({where})\n",
            *warn_open(host, checked=config.acl_enable),
            "Try it in Python with PySpark, three lines:\n",
            snippet(called_address(name_server, config), config),
            "Ctrl-C stops it.",
        )
        start_console(servers, options, name_server, config)
        watching = [asyncio.create_task(_watch(broker, data)) for broker in brokers]
        await stop
    for task in watching:
        task.cancel()
    with contextlib.suppress(OSError):  # the terminal may be gone
        say("Stopped." if options.ephemeral else f"Stopped. The data is in {data}.")


def check_options(options: UpOptions) -> None:
    """ConfigError when the file for all brokers sets what each has of its own."""
    if options.config is not None:
        for name, _, line in parse_properties(options.config.read_text(encoding="utf-8")):
            if name in OWN_SETTINGS:
                raise ConfigError(
                    f"{options.config}, line {line}: {name} is each broker's own, and --brokers gives it to them.",
                    remedy="Remove it, and give --data or --broker-port for the first broker.",
                )


def _shared_settings(options: UpOptions, config: BrokerConfig, name_server: str) -> dict[str, object]:
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


def _write_conf(member: ClusterMember, shared: dict[str, object], data: Path, first_store: Path) -> Path:
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
        _WRITTEN + render_properties((name, _text(value)) for name, value in settings.items()), encoding="utf-8"
    )
    return conf


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _line(broker: _BrokerProcess, fact: dict[str, str]) -> str:
    what = f"{fact['broker']} ({broker.member.label}, process {broker.server.process.pid})"
    metrics = f"  metrics {fact['metrics']}/metrics" if "metrics" in fact else ""
    return f"  broker       {what}{metrics}"


async def _watch(broker: _BrokerProcess, data: Path) -> None:
    status = await broker.server.ended()
    if not broker.server.stopping:
        again = f"rocket broker -c {data / broker.member.label / 'broker.conf'}"
        say(f"{broker.member.label} {how_it_ended(status)}. The others go on; start it again with: {again}")


async def _stop_all(brokers: list[_BrokerProcess]) -> None:
    results = await asyncio.gather(*(broker.server.stop() for broker in brokers), return_exceptions=True)
    failed = [str(result) for result in results if isinstance(result, BaseException)]
    if failed:
        raise StateError(f"Not every broker could be stopped: {'; '.join(failed)}")
