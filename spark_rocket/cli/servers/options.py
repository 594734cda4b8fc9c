"""The options of the commands that start servers, and the values that they become.

Imports no server and no command, so that both may import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, byte_size, descriptor, exclusive, port, whole

DEFAULT_DATA = Path("rocket-data")
FREE = "0 takes a free one"
SETTINGS_VARIABLE = "ROCKET_PROXY_SETTINGS"
"""Holds settings for a proxy that another ``rocket`` command starts."""


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

    def command(self, *command: str, label: str = "") -> list[str]:
        """The command line of another process that logs so, with its files in ``label`` in this directory."""
        given = [*(["-v"] if self.verbose else []), *command]
        given += [f"--log-level={level}" for level in self.log_level]
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
    """Of ``rocket up``. ``grpc_port``: -1 for no gRPC proxy."""

    grpc_port: int | None
    ephemeral: bool
    nameserver_port: int
    brokers: int
    slaves: bool
    console_port: int | None
    no_console: bool


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """Of ``rocket proxy``, beside its settings."""

    logs: LogOptions
    workers: int
    ready_fd: int | None
    lifeline_fd: int | None


def _several(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


config_option = click.option(
    "-c", "--config", type=PATH, metavar="FILE", help="a broker.conf with Apache's property names"
)
host_option = click.option(
    "--host", metavar="HOST", help="address to listen on (127.0.0.1); 0.0.0.0 opens it to everyone"
)


grpc_options = _several(
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


def server_values(given: dict[str, Any]) -> dict[str, Any]:
    """What click gave, as the arguments of ServerOptions and the classes below it."""
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
