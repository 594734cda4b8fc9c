"""The options of the commands that start servers, and their values.

This module imports no server and no command, so that both can import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, byte_size, descriptor, exclusive, port, whole

DEFAULT_DATA = Path("rocket-data")
FREE = "0 for a free port"
SETTINGS_VARIABLE = "ROCKET_PROXY_SETTINGS"
"""The environment variable with the settings of a proxy that another ``rocket`` command starts."""


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    log_level: tuple[str, ...] = ()
    log_format: str = "text"
    log_dir: Path | None = None
    log_size: int = 64
    log_count: int = 10
    verbose: bool = False

    def set_up(self, *names: str) -> None:
        """Set up logging of a process with these servers. ConfigError if the options are invalid."""
        from spark_rocket.common.logs import setup_logging

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
        """Return the command line of a process with the same log options, with its files in the directory ``label``."""
        given = [*(["-v"] if self.verbose else []), *command]
        given += [f"--log-level={level}" for level in self.log_level]
        given += [f"--log-format={self.log_format}", f"--log-size={self.log_size}", f"--log-count={self.log_count}"]
        return given + ([f"--log-dir={self.log_dir / label}"] if self.log_dir is not None else [])


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The common options of ``up``, ``namesrv`` and ``broker``. ``metrics_port``: -1 for none."""

    metrics_port: int | None
    metrics_host: str | None
    logs: LogOptions
    data: Path | None
    host: str | None
    ready_fd: int | None
    lifeline_fd: int | None


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(ServerOptions):
    config: Path | None
    broker_port: int | None
    nameserver: str | None = None


@dataclass(frozen=True, kw_only=True)
class UpOptions(BrokerOptions):
    """The options of ``rocket up``. ``grpc_port``: -1 for no gRPC proxy."""

    grpc_port: int | None
    ephemeral: bool
    nameserver_port: int
    brokers: int
    slaves: bool
    console_port: int | None
    no_console: bool


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """The options of ``rocket proxy`` that are not settings."""

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
    "-c", "--config", type=PATH, metavar="FILE", help="broker.conf with Apache's property names"
)
host_option = click.option(
    "--host", metavar="HOST", help="address to listen on (127.0.0.1); 0.0.0.0 opens it to everyone"
)


grpc_options = _several(
    click.option(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help=f"gRPC port for RocketMQ 5 clients (8081, or grpcServerPort of -c); {FREE}",
    ),
    click.option("--no-grpc", is_flag=True, help="disable the gRPC proxy"),
)


def metrics_option(default: str) -> Callable[[Any], Any]:
    """Return ``--metrics-port`` and ``--metrics-host``. ``default``: the text for the default of the port."""
    return _several(
        click.option(
            "--metrics-port",
            type=port,
            metavar="PORT",
            help=f"port of /metrics, /health and /ready ({default}); {FREE}",
        ),
        click.option("--metrics-host", metavar="HOST", help="address of the metrics port (127.0.0.1)"),
    )


no_metrics_option = click.option("--no-metrics", is_flag=True, help="disable /metrics, /health and /ready")
_logs = _several(
    click.option(
        "--log-level", multiple=True, metavar="LEVEL", help="debug, info, warning or error; store=debug for one module"
    ),
    click.option("--log-format", type=click.Choice(("text", "json")), default="text", help="log format (text)"),
    click.option("--log-dir", type=PATH, metavar="DIR", help="directory of broker.log, namesrv.log, proxy.log"),
    click.option("--log-size", type=byte_size(1 << 20, unit=1 << 20), default="64", metavar="MIB",
                 help="size of a log file (64)"),
    click.option("--log-count", type=whole(0, 1_000, "number of files"), default="10", metavar="N",
                 help="rotated log files to keep (10)"),
)  # fmt: skip
#: Options of every server. The hidden ones are for parent processes: a pipe to report on, and a pipe that ends to stop.
server_options = _several(
    _logs,
    click.option("--ready-fd", type=descriptor, hidden=True),
    click.option("--lifeline-fd", type=descriptor, hidden=True),
)


def server_values(given: dict[str, Any]) -> dict[str, Any]:
    """Convert click's values to the arguments of ServerOptions and its subclasses."""
    no_metrics = given.pop("no_metrics", False)
    exclusive({"--metrics-port": given["metrics_port"], "--no-metrics": no_metrics})
    if no_metrics:
        given["metrics_port"] = -1
    logs = take_logs(given)
    return {**given, "logs": logs}


def take_logs(given: dict[str, Any]) -> LogOptions:
    """Remove the log options of :data:`server_options` from click's values and return them."""
    log = {name: given.pop(name) for name in list(given) if name.startswith("log_")}
    return LogOptions(**log, verbose=click.get_current_context().find_root().params["verbose"])
