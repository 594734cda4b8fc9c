"""``rocket up``, ``rocket namesrv`` and ``rocket broker``: the arguments of servers, which ``serve`` starts.

Corresponds to the command lines of mqnamesrv and mqbroker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spark_rocket.cli.arguments import PATH, exclusive, port, whole
from spark_rocket.cli.lazy import LazyGroup
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

_CLI = "spark_rocket.cli"


@click.command()
@click.option("--data", type=PATH, metavar="DIR", help=f"where messages are kept (./{DEFAULT_DATA})")
@click.option("--ephemeral", is_flag=True, help="keep nothing: a temporary directory, gone at stop")
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
    options = UpOptions(**server_values(given))
    if options.brokers > 1 or options.slaves:
        from spark_rocket.cli.servers.up_cluster import serve_cluster

        return serve_cluster(options)
    from spark_rocket.cli.servers.serve import serve_up

    return serve_up(options)


@click.group(
    cls=LazyGroup,
    sections={
        "Commands, for name servers that run": {
            "config": (f"{_CLI}.commands.servers:name_server_config", "settings of name servers; set some of them"),
            "kv": (f"{_CLI}.commands.servers:kv", "key-value entries that name servers keep"),
        }
    },
    invoke_without_command=True,
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
    from spark_rocket.cli.servers.serve import serve_namesrv

    return serve_namesrv(ServerOptions(**server_values(given)), port, tls_config)


@click.group(
    cls=LazyGroup,
    sections={
        "Commands, for a broker that runs": {
            "config": (f"{_CLI}.commands.servers:config", "a broker's settings; set some of them"),
            "runtime": (f"{_CLI}.commands.servers:runtime", "what a broker says about itself"),
            "ha": (f"{_CLI}.commands.servers:ha", "how far slaves are behind"),
            "timers": (f"{_CLI}.commands.servers:timers", "messages that wait for their delivery time"),
            "clean": (f"{_CLI}.commands.servers:clean", "have a broker delete files that nobody needs any more"),
            "drain": (f"{_CLI}.commands.servers:drain", "stop new messages to a broker; say when it can be stopped"),
            "undrain": (f"{_CLI}.commands.servers:undrain", "give a drained broker its messages back"),
        }
    },
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
)
@config_option
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
    from spark_rocket.cli.servers.serve import serve_broker

    return serve_broker(BrokerOptions(**server_values(given)))
