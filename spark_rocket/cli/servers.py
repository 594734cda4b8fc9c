"""``rocket up``, ``rocket namesrv`` and ``rocket broker``: the arguments of servers, which ``serve`` starts.

Corresponds to the command lines of mqnamesrv and mqbroker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, exclusive, port, whole
from spark_rocket.cli.lazy import LazyGroup
from spark_rocket.cli.main import DEFAULT_DATA

_FREE = "0 takes a free one"
_CLI = "spark_rocket.cli"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What the three verbs have in common."""

    data: Path | None
    host: str | None
    ready_fd: int | None
    lifeline_fd: int | None


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(ServerOptions):
    """Of ``rocket broker``, and of the broker in ``rocket up``."""

    config: Path | None
    broker_port: int | None
    grpc_port: int | None
    nameserver: str | None = None


@dataclass(frozen=True, kw_only=True)
class UpOptions(BrokerOptions):
    ephemeral: bool
    nameserver_port: int
    brokers: int
    slaves: bool
    verbose: bool


def _several(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_config = click.option("-c", "--config", type=PATH, metavar="FILE", help="a broker.conf with Apache's property names")
_host = click.option("--host", metavar="HOST", help="address to listen on (127.0.0.1); 0.0.0.0 opens it to everyone")
_grpc = _several(
    click.option(
        "--grpc-port", type=port, metavar="PORT", help=f"8081, or grpcServerPort of -c; {_FREE}"
    ),
    click.option("--no-grpc", is_flag=True, help="without the endpoint for RocketMQ 5's own clients"),
)  # fmt: skip
# For programs that start this one: where to say that all is up, and what to stop with.
_descriptors = _several(
    click.option("--ready-fd", type=int, hidden=True), click.option("--lifeline-fd", type=int, hidden=True)
)


@click.command(short_help="name server and broker in one process, or a cluster")
@click.option("--data", type=PATH, metavar="DIR", help=f"where messages are kept (./{DEFAULT_DATA})")
@click.option("--ephemeral", is_flag=True, help="keep nothing: a temporary directory, gone at stop")
@click.option("--nameserver-port", type=port, default="9876", metavar="PORT", help=f"9876; {_FREE}")
@click.option("--broker-port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {_FREE}")
@_grpc
@_host
@_config
@click.option(
    "--brokers",
    type=whole(1, 26, "number of brokers"),
    default="1",
    metavar="N",
    help="so many, each a process of its own (1)",
)
@click.option("--slaves", is_flag=True, help="a slave for each broker, with a copy of its messages")
@_descriptors
@click.pass_context
def up(context: click.Context, /, **given: Any) -> int:
    """Start a name server and a broker in one process, or a cluster, and say how to use it."""
    exclusive({"--data": given["data"], "--ephemeral": given["ephemeral"]})
    from spark_rocket.cli.serve import serve_up

    return serve_up(UpOptions(**_grpc_given(given), verbose=context.find_root().params["verbose"]))


@click.command(short_help="a name server alone")
@click.option("--port", type=port, default="9876", metavar="PORT", help=f"9876; {_FREE}")
@_host
@click.option("--data", type=PATH, metavar="DIR", help="where its KV configuration is kept (~/namesrv)")
@_descriptors
def namesrv(port: int, **given: Any) -> int:
    """Start a name server."""
    from spark_rocket.cli.serve import serve_namesrv

    return serve_namesrv(ServerOptions(**given), port)


@click.group(
    cls=LazyGroup,
    sections={
        "Commands, for a broker that runs": {
            "drain": (f"{_CLI}.drain:drain", "have a broker get no more messages, and say when it can be stopped"),
            "undrain": (f"{_CLI}.drain:undrain", "give a drained broker its messages back"),
        }
    },
    invoke_without_command=True,
    short_help="a broker alone; drain one before it is stopped",
    subcommand_metavar="[COMMAND]",
)
@_config
@click.option("-n", "--nameserver", metavar="ADDR", help="name servers, host:port with ';' between")
@click.option("--port", "broker_port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {_FREE}")
@_grpc
@click.option("--data", type=PATH, metavar="DIR", help="the store's directory (storePathRootDir, ~/store)")
@_host
@_descriptors
@click.pass_context
def broker(context: click.Context, /, **given: Any) -> int:
    """Start a broker, or drain one."""
    if context.invoked_subcommand is not None:
        return 0
    from spark_rocket.cli.serve import serve_broker

    return serve_broker(BrokerOptions(**_grpc_given(given)))


def _grpc_given(given: dict[str, Any]) -> dict[str, Any]:
    exclusive({"--grpc-port": given["grpc_port"], "--no-grpc": given["no_grpc"]})
    if given.pop("no_grpc"):
        given["grpc_port"] = -1
    return given
