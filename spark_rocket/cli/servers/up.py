"""``rocket up``, ``rocket namesrv`` and ``rocket broker``: the options of servers, which ``serve`` starts.

Corresponds to the command lines of mqnamesrv and mqbroker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, exclusive, name_servers, port, whole
from spark_rocket.cli.servers.options import (
    DEFAULT_DATA,
    FREE,
    BrokerOptions,
    ServerOptions,
    UpOptions,
    config_option,
    grpc_options,
    host_option,
    metrics_option,
    no_metrics_option,
    server_options,
    server_values,
)
from spark_rocket.cli.verbs import VerbGroup

_CLI = "spark_rocket.cli"


@click.command()
@click.option("--data", type=PATH, metavar="DIR", help=f"directory of the messages (./{DEFAULT_DATA})")
@click.option("--ephemeral", is_flag=True, help="use a temporary directory, deleted at stop")
@click.option("--nameserver-port", type=port, default="9876", metavar="PORT", help=f"9876; {FREE}")
@click.option("--broker-port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {FREE}")
@grpc_options
@host_option
@config_option
@click.option(
    "--brokers",
    type=whole(1, 26, "number of brokers"),
    default="1",
    metavar="N",
    help="number of brokers, each in its own process (1)",
)
@click.option("--slaves", is_flag=True, help="add a slave for each broker, with a copy of its messages")
@click.option("--console-port", type=port, metavar="PORT", help=f"port of the web console (8080); {FREE}")
@click.option("--no-console", is_flag=True, help="disable the web console")
@metrics_option("5557, or metricsPromExporterPort of -c")
@no_metrics_option
@server_options
@click.pass_context
def up(context: click.Context, /, **given: Any) -> int:
    """Start a name server and a broker in one process, or a cluster, and print how to use it."""
    exclusive({"--data": given["data"], "--ephemeral": given["ephemeral"]})
    exclusive({"--console-port": given["console_port"], "--no-console": given["no_console"]})
    exclusive({"--grpc-port": given["grpc_port"], "--no-grpc": given["no_grpc"]})
    if given.pop("no_grpc"):
        given["grpc_port"] = -1
    options = UpOptions(**server_values(given))
    if options.brokers > 1 or options.slaves:
        from spark_rocket.cli.servers.up_cluster import serve_cluster

        return serve_cluster(options)
    from spark_rocket.cli.servers.serve_up import serve_up

    return serve_up(options)


@click.group(
    cls=VerbGroup,
    sections={
        "Commands for running name servers": {
            "config": (f"{_CLI}.commands.servers:name_server_config", "show or change settings of name servers"),
            "kv": (f"{_CLI}.commands.servers:kv", "key-value entries of name servers"),
        }
    },
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
)
@click.option("--port", type=port, default="9876", metavar="PORT", help=f"9876; {FREE}")
@host_option
@click.option("--data", type=PATH, metavar="DIR", help="directory of its key-value configuration (~/namesrv)")
@click.option("--tls-config", type=PATH, metavar="FILE", help="TLS settings: tls.server.mode=… and others")
@metrics_option("none")
@server_options
@click.pass_context
def namesrv(context: click.Context, /, port: int, tls_config: Path | None, **given: Any) -> int:
    """Start a name server, or manage running name servers."""
    if context.invoked_subcommand is not None:
        return 0
    from spark_rocket.cli.servers.serve_namesrv import serve_namesrv

    return serve_namesrv(ServerOptions(**server_values(given)), port, tls_config)


@click.group(
    cls=VerbGroup,
    sections={
        "Commands for a running broker": {
            "config": (f"{_CLI}.commands.servers:config", "show or change settings of a broker"),
            "runtime": (f"{_CLI}.commands.servers:runtime", "runtime statistics of a broker"),
            "ha": (f"{_CLI}.commands.servers:ha", "replication lag of slaves"),
            "timers": (f"{_CLI}.commands.servers:timers", "pending delayed messages"),
            "clean": (f"{_CLI}.commands.servers:clean", "delete expired files of a broker"),
            "drain": (f"{_CLI}.commands.servers:drain", "stop new messages to a broker; report when it can be stopped"),
            "undrain": (f"{_CLI}.commands.servers:undrain", "let a drained broker receive messages again"),
        }
    },
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
)
@config_option
@click.option("-n", "--nameserver", type=name_servers, metavar="ADDR", help="name servers, host:port separated by ';'")
@click.option("--port", "broker_port", type=port, metavar="PORT", help=f"10911, or listenPort of -c; {FREE}")
@click.option("--data", type=PATH, metavar="DIR", help="directory of the store (storePathRootDir, ~/store)")
@host_option
@metrics_option("none, unless -c has metricsExporterType=PROM")
@no_metrics_option
@server_options
@click.pass_context
def broker(context: click.Context, /, **given: Any) -> int:
    """Start a broker, or manage a running broker.

    It opens the same ports as Apache's broker: listenPort, listenPort - 2, and haListenPort.
    """
    if context.invoked_subcommand is not None:
        return 0
    from spark_rocket.cli.servers.serve_broker import serve_broker

    return serve_broker(BrokerOptions(**server_values(given)))
