"""``rocket up``, ``rocket namesrv`` and ``rocket broker``: the arguments of servers, which ``serve`` starts.

Corresponds to the command lines of mqnamesrv and mqbroker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, byte_size, descriptor, exclusive, port, whole
from spark_rocket.cli.lazy import LazyGroup
from spark_rocket.cli.main import DEFAULT_DATA

FREE = "0 takes a free one"
_CLI = "spark_rocket.cli"


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What is logged, and where to."""

    log_level: tuple[str, ...] = ()
    log_format: str = "text"
    log_dir: Path | None = None
    log_size: int = 64
    log_count: int = 10
    verbose: bool = False

    def set_up(self, *names: str) -> None:
        """For a process with these servers. ConfigError if it cannot be."""
        from spark_rocket.logs import setup_logging

        setup_logging(
            levels=self.log_level,
            form=self.log_format,
            directory=self.log_dir,
            names=names,
            size_mib=self.log_size,
            count=self.log_count,
            verbose=self.verbose,
        )

    def arguments(self, label: str = "") -> list[str]:
        """The same for another process, whose files are in this directory, or in one of its own in it."""
        given = [f"--log-level={level}" for level in self.log_level]
        given += [f"--log-format={self.log_format}", f"--log-size={self.log_size}", f"--log-count={self.log_count}"]
        return given + ([f"--log-dir={self.log_dir / label}"] if self.log_dir is not None else [])


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What the three verbs have in common. ``metrics_port``: -1 for none."""

    metrics_port: int | None
    logs: LogOptions
    data: Path | None
    host: str | None
    ready_fd: int | None
    lifeline_fd: int | None


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(ServerOptions):
    """Of ``rocket broker``, and of the broker in ``rocket up``."""

    config: Path | None
    broker_port: int | None
    nameserver: str | None = None


@dataclass(frozen=True, kw_only=True)
class UpOptions(BrokerOptions):
    """``grpc_port``: -1 for no gRPC proxy."""

    grpc_port: int | None
    ephemeral: bool
    nameserver_port: int
    brokers: int
    slaves: bool
    console_port: int | None
    no_console: bool


def _several(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_config = click.option("-c", "--config", type=PATH, metavar="FILE", help="a broker.conf with Apache's property names")
host_option = click.option(
    "--host", metavar="HOST", help="address to listen on (127.0.0.1); 0.0.0.0 opens it to everyone"
)


_grpc = _several(
    click.option(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help=f"for RocketMQ 5's own clients (8081, or grpcServerPort of -c); {FREE}",
    ),
    click.option("--no-grpc", is_flag=True, help="without that endpoint"),
)


def metrics_option(default: str) -> Callable[[Any], Any]:
    """``default``: the port without the option."""
    return click.option(
        "--metrics-port", type=port, metavar="PORT", help=f"of /metrics, /health and /ready ({default}); {FREE}"
    )


no_metrics_option = click.option("--no-metrics", is_flag=True, help="without /metrics, /health and /ready")
_logs = _several(
    click.option(
        "--log-level", multiple=True, metavar="LEVEL", help="debug, info, warning or error; store=debug for a module"
    ),
    click.option("--log-format", type=click.Choice(("text", "json")), default="text", help="how a line looks (text)"),
    click.option("--log-dir", type=PATH, metavar="DIR", help="files to log to: broker.log, namesrv.log, proxy.log"),
    click.option(
        "--log-size", type=byte_size(1, 1 << 20, unit=1 << 20), default="64", metavar="MIB", help="of a file (64)"
    ),
    click.option("--log-count", type=whole(0, 1_000, "number of files"), default="10", metavar="N",
                 help="old files to keep (10)"),
)  # fmt: skip
#: Every server's. The last two are for programs that start this one: where to say that all is up, what to stop with.
server_options = _several(
    _logs,
    click.option("--ready-fd", type=descriptor, hidden=True),
    click.option("--lifeline-fd", type=descriptor, hidden=True),
)


@click.command(short_help="name server and broker in one process, or a cluster")
@click.option("--data", type=PATH, metavar="DIR", help=f"where messages are kept (./{DEFAULT_DATA})")
@click.option("--ephemeral", is_flag=True, help="keep nothing: a temporary directory, gone at stop")
@click.option("--nameserver-port", type=port, default="9876", metavar="PORT", help=f"9876; {FREE}")
@click.option("--broker-port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {FREE}")
@_grpc
@host_option
@_config
@click.option(
    "--brokers",
    type=whole(1, 26, "number of brokers"),
    default="1",
    metavar="N",
    help="so many, each a process of its own (1)",
)
@click.option("--slaves", is_flag=True, help="a slave for each broker, with a copy of its messages")
@click.option("--console-port", type=port, metavar="PORT", help=f"of the web console, 8080; {FREE}")
@click.option("--no-console", is_flag=True, help="without the web console")
@metrics_option("5557, or metricsPromExporterPort of -c")
@no_metrics_option
@server_options
@click.pass_context
def up(context: click.Context, /, **given: Any) -> int:
    """Start a name server and a broker in one process, or a cluster, and say how to use it."""
    exclusive({"--data": given["data"], "--ephemeral": given["ephemeral"]})
    exclusive({"--console-port": given["console_port"], "--no-console": given["no_console"]})
    exclusive({"--grpc-port": given["grpc_port"], "--no-grpc": given["no_grpc"]})
    if given.pop("no_grpc"):
        given["grpc_port"] = -1
    from spark_rocket.cli.serve import serve_up

    return serve_up(UpOptions(**_given(given)))


@click.group(
    cls=LazyGroup,
    sections={
        "Commands, for name servers that run": {
            "config": (f"{_CLI}.namesrv:config", "settings of name servers; set some of them"),
            "kv": (f"{_CLI}.namesrv:kv", "key-value entries that name servers keep"),
        }
    },
    invoke_without_command=True,
    short_help="a name server alone; settings of running ones",
    subcommand_metavar="[COMMAND]",
)
@click.option("--port", type=port, default="9876", metavar="PORT", help=f"9876; {FREE}")
@host_option
@click.option("--data", type=PATH, metavar="DIR", help="where its KV configuration is kept (~/namesrv)")
@click.option("--tls-config", type=PATH, metavar="FILE", help="settings of TLS, tls.server.mode=… and others")
@metrics_option("none")
@server_options
@click.pass_context
def namesrv(context: click.Context, /, port: int, tls_config: Path | None, **given: Any) -> int:
    """Start a name server, or look at those that run."""
    if context.invoked_subcommand is not None:
        return 0
    from spark_rocket.cli.serve import serve_namesrv

    return serve_namesrv(ServerOptions(**_given(given)), port, tls_config)


@click.group(
    cls=LazyGroup,
    sections={
        "Commands, for a broker that runs": {
            "config": (f"{_CLI}.broker:config", "a broker's settings; set some of them"),
            "runtime": (f"{_CLI}.broker:runtime", "what a broker says about itself"),
            "ha": (f"{_CLI}.broker:ha", "how far slaves are behind"),
            "timers": (f"{_CLI}.broker:timers", "messages that wait for their delivery time"),
            "clean": (f"{_CLI}.broker:clean", "have a broker delete files that nobody needs any more"),
            "drain": (f"{_CLI}.drain:drain", "have a broker get no more messages, and say when it can be stopped"),
            "undrain": (f"{_CLI}.drain:undrain", "give a drained broker its messages back"),
        }
    },
    invoke_without_command=True,
    short_help="a broker alone; settings and state of running ones; drain one",
    subcommand_metavar="[COMMAND]",
)
@_config
@click.option("-n", "--nameserver", metavar="ADDR", help="name servers, host:port with ';' between")
@click.option("--port", "broker_port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {FREE}")
@click.option("--data", type=PATH, metavar="DIR", help="the store's directory (storePathRootDir, ~/store)")
@host_option
@metrics_option("none, unless -c has metricsExporterType=PROM")
@no_metrics_option
@server_options
@click.pass_context
def broker(context: click.Context, /, **given: Any) -> int:
    """Start a broker, or look at one that runs, set and drain it.

    It opens the ports that Apache's opens: listenPort, the one two below it, and haListenPort.
    """
    if context.invoked_subcommand is not None:
        return 0
    from spark_rocket.cli.serve import serve_broker

    return serve_broker(BrokerOptions(**_given(given)))


def _given(given: dict[str, Any]) -> dict[str, Any]:
    no_metrics = given.pop("no_metrics", False)
    exclusive({"--metrics-port": given["metrics_port"], "--no-metrics": no_metrics})
    if no_metrics:
        given["metrics_port"] = -1
    logs = take_logs(given)
    return {**given, "logs": logs}


def take_logs(given: dict[str, Any]) -> LogOptions:
    """Take the options of :data:`server_options` that are about logs out of what click gave."""
    log = {name: given.pop(name) for name in list(given) if name.startswith("log_")}
    return LogOptions(**log, verbose=click.get_current_context().find_root().params["verbose"])
