"""``rocket console``: the web console, for any cluster.

Corresponds to the program of RocketMQ's dashboard.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.arguments import PATH, descriptor, port
from spark_rocket.cli.connect import Link, connection_but_timeout

if TYPE_CHECKING:
    from spark_rocket.console.settings import ConsoleSettings


@click.command()
@click.option("--port", type=port, default="8080", metavar="PORT", help="port (8080); 0 for a free port")
@click.option(
    "--host", default="127.0.0.1", metavar="HOST", help="address to listen on (127.0.0.1); others require users"
)
@click.option("--users", type=PATH, metavar="FILE", help="users who can log in: lines of name:hash")
@click.option(
    "--hash-password", is_flag=True, help="prompt for a password, print its hash for the users file, and exit"
)
@click.option(
    "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="additional host name that browsers may use"
)
@click.option("--https-cert", type=PATH, metavar="FILE", help="serve HTTPS with this PEM certificate")
@click.option("--https-key", type=PATH, metavar="FILE", help="private key of the certificate")
@click.option("--read-only", is_flag=True, help="disable all changes")
@click.option("--ready-fd", type=descriptor, hidden=True)
@click.option("--lifeline-fd", type=descriptor, hidden=True)
@connection_but_timeout
def console(
    link: Link,
    hash_password: bool,
    users: Path | None,
    https_cert: Path | None,
    https_key: Path | None,
    allowed_hosts: tuple[str, ...],
    ready_fd: int | None,
    lifeline_fd: int | None,
    **given: Any,
) -> None:
    """Serve the web console: view and manage the cluster, its topics, groups and messages in a browser.

    Without users, only this machine is served. ROCKET_CONSOLE_USER and ROCKET_CONSOLE_PASSWORD define one user.
    ROCKETMQ_TLS_SERVER_CERT_PATH and ROCKETMQ_TLS_SERVER_KEY_PATH set the certificate, as for the other servers.
    """
    if hash_password:
        _print_hash()
        return
    from spark_rocket.client.core.client_config import ClientConfig
    from spark_rocket.console.settings import ConsoleSettings, read_users
    from spark_rocket.remoting.tls.settings import TlsSettings

    connecting = link.options()
    config = ClientConfig.of(connecting.pop("name_server"))
    settings = ConsoleSettings(
        config.address_server or ";".join(config.name_servers),
        users=read_users(users),
        allowed_hosts=allowed_hosts,
        connecting=connecting,
        tls=TlsSettings.of(
            {
                name: str(path)
                for name, path in (("tls.server.certPath", https_cert), ("tls.server.keyPath", https_key))
                if path is not None
            }
        ),
        **given,
    )
    _serve(settings, ready_fd, lifeline_fd)


def _serve(settings: ConsoleSettings, ready_fd: int | None, lifeline_fd: int | None) -> None:
    import spark_rocket
    from spark_rocket.cli.servers.foreground import StopSignals, print_lines, ready
    from spark_rocket.console.serve import serve_console
    from spark_rocket.remoting.server.remoting_server import run

    def begun(address: str) -> None:
        ready(ready_fd, {"console": address})
        print_lines(f"spark_rocket {spark_rocket.__version__}: console of {settings.name_server} on {address}")
        if not settings.is_loopback:
            scheme = "HTTPS" if settings.is_tls else "plain HTTP: passwords and messages are sent unencrypted"
            where = f"every address of this machine ({settings.host})" if settings.is_wildcard else settings.host
            print_lines(f"OPEN TO OTHERS, behind a login: listening on {where}, {scheme}.")

    async def serve() -> None:
        async with StopSignals(lifeline_fd) as stopping:
            await serve_console(settings, begun, stopping())

    sys.setswitchinterval(0.001)  # decoding large responses of brokers must not delay pages
    run(serve())


def _print_hash() -> None:
    from spark_rocket.console.passwords import hashed
    from spark_rocket.console.settings import MIN_PASSWORD_CHARACTERS
    from spark_rocket.errors import ConfigError

    password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise ConfigError(
            f"The password has fewer than {MIN_PASSWORD_CHARACTERS} characters.", remedy="Use a longer password."
        )
    click.echo(hashed(password))
