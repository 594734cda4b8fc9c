"""``rocket proxy``: the options of the gRPC proxy, which ``serve_proxy`` starts.

Exit status: 0 for a stop by a signal, 1 for a failed start (one line gives the reason), 2 for an invalid command line.
Corresponds to mqproxy in CLUSTER mode.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.arguments import PATH, exclusive, port, whole
from spark_rocket.cli.connect import Link, connection_of_proxy
from spark_rocket.cli.servers.options import (
    FREE,
    SETTINGS_VARIABLE,
    ProxyOptions,
    host_option,
    metrics_option,
    no_metrics_option,
    server_options,
    take_logs,
)

if TYPE_CHECKING:
    from spark_rocket.proxy.proxy_config import ProxyConfig

_MAX_WORKERS = 64


@click.command()
@click.option("-c", "--config", type=PATH, metavar="FILE", help="settings file with the names of Apache's proxy")
@host_option
@click.option("--grpc-port", type=port, metavar="PORT", help=f"port (8081, or grpcServerPort of -c); {FREE}")
@click.option(
    "--workers",
    type=whole(1, _MAX_WORKERS, "number of workers"),
    default="1",
    metavar="N",
    help="number of processes that share the port (1)",
)
@click.option(
    "--acl-file", type=PATH, metavar="FILE", help="check signatures and permissions against this plain_acl.yml"
)
@click.option("--reuse-port", is_flag=True, hidden=True)
@metrics_option("none, unless -c has metricsExporterType=PROM; worker N uses the Nth port from it")
@no_metrics_option
@server_options
@connection_of_proxy
@click.pass_context
def proxy(context: click.Context, /, link: Link, **given: Any) -> int:
    """Serve RocketMQ 5 clients (gRPC) for all brokers of a cluster.

    Receiving needs brokers of version 5: 4.9 does not have POP. Sending works with both.

    \b
    -n, --access-key and --tls set the connection to the cluster. The account signs the requests to brokers; it
    needs the permissions of all clients together. Set TLS of the gRPC port with -c (tlsCertPath, tlsKeyPath).
    """
    from spark_rocket.cli.servers.serve_proxy import serve_proxy

    running = {name: given.pop(name) for name in ("workers", "ready_fd", "lifeline_fd")}
    options = ProxyOptions(logs=take_logs(given), **running)
    from_environment = context.get_parameter_source("nameserver") is click.core.ParameterSource.ENVIRONMENT
    return serve_proxy(_config(link, from_environment=from_environment, **given), options)


def _config(
    link: Link,
    *,
    from_environment: bool,
    reuse_port: bool,
    config: Path | None,
    host: str | None,
    grpc_port: int | None,
    acl_file: Path | None,
    metrics_port: int | None,
    metrics_host: str | None,
    no_metrics: bool,
) -> ProxyConfig:
    """Merge the settings: command line first, then file, then environment. ConfigError for invalid settings."""
    from spark_rocket.client.core.client_config import DEFAULT_NAME_SERVER, find_credentials
    from spark_rocket.protocol.auth import inner_credentials_text
    from spark_rocket.proxy.proxy_config import ProxyConfig
    from spark_rocket.remoting.http.monitor import MetricsExporterType

    exclusive({"--metrics-port": metrics_port, "--no-metrics": no_metrics})
    calling = link.options()
    keys = (calling["access_key"], calling["secret_key"], calling.get("security_token"))
    given: dict[str, Any] = {"host": host, "port": grpc_port, "metrics_prom_exporter_host": metrics_host}
    if (account := find_credentials(*keys, environment={})) is not None:
        given["inner_client_authentication_credentials"] = inner_credentials_text(account)
    if calling["tls"] is not None:
        given["tls"] = calling["tls"].client_properties()
    if acl_file is not None:
        given |= {"acl_enable": True, "acl_file": str(acl_file.absolute())}
    if no_metrics:
        given["metrics_exporter_type"] = MetricsExporterType.DISABLE
    elif metrics_port is not None:
        given |= {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": metrics_port}
    if not from_environment:
        given["name_server"] = link.name_server
    given = {name: value for name, value in given.items() if value is not None} | {"reuse_port": reuse_port}
    if config is not None:
        found = ProxyConfig.from_file(config, **given)
    else:
        found = ProxyConfig.from_text(os.environ.get(SETTINGS_VARIABLE, ""), SETTINGS_VARIABLE, **given)
    if not found.name_server:
        found = replace(found, name_server=link.name_server or DEFAULT_NAME_SERVER)
    if found.credentials is None and (account := find_credentials()) is not None:
        found = replace(found, inner_client_authentication_credentials=inner_credentials_text(account))
    return found
