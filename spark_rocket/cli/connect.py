"""The connection options of verbs, and the clients opened with them.

    @click.command()
    @connection
    def verb(link: Link) -> None:
        with link.admin() as admin: …

Connection options given to a group of verbs (``rocket broker -n ADDR drain``) apply to its verbs.
Corresponds to the options of every SubCommand of mqadmin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, bundle, exclusive, name_servers, seconds
from spark_rocket.errors import RocketError
from spark_rocket.model import READER_GROUP

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.client.admin import Failures
    from spark_rocket.client.core.address_map import AddressMap
    from spark_rocket.protocol.namespace import Namespace
    from spark_rocket.remoting.tls.settings import TlsSettings

NAME_SERVER_VARIABLES = ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
TIMEOUT = 5.0
_COMPLETION_TIMEOUT_S = 1.0  # shell completion must feel immediate

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Link:
    """The connection settings of a cluster, from the command line and the environment."""

    name_server: str | None = None
    timeout: float = TIMEOUT
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_verify: str | None = None
    address_map: str | None = None
    namespace: str | None = None
    namespace_v2: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments that every client accepts: ``Producer("group", **link.options())``."""
        return {
            "name_server": self.name_server,
            "tls": self._tls(),
            "address_map": self.address_map,
            "namespace": self.namespace,
            "namespace_v2": self.namespace_v2,
            **self._signing(),
        }

    def with_full_names(self) -> tuple[Link, Namespace]:
        """Return a connection whose names are those on the wire, and the namespace that they have."""
        from spark_rocket.client.core.client_config import ClientConfig

        return replace(self, namespace=""), ClientConfig.of(self.name_server, namespace=self.namespace).namespace

    def _signing(self) -> dict[str, Any]:
        if self.credentials is None:
            return {"access_key": self.access_key, "secret_key": self.secret_key}
        from spark_rocket.client.core.client_config import read_credentials

        found = read_credentials(self.credentials)
        return {
            "access_key": found.access_key,
            "secret_key": found.secret_key,
            "security_token": found.security_token or None,
        }

    def _tls(self) -> TlsSettings | None:
        """Return the TLS settings of the options; None if no option is given: the environment's apply."""
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        if not self.tls and self.tls_verify is None and files == (None, None, None):
            return None
        from spark_rocket.remoting.tls.settings import Verify, as_settings

        settings = as_settings(True)
        assert settings is not None
        names = ("client_trust_cert_path", "client_cert_path", "client_key_path")
        given: dict[str, Any] = {name: str(path) for name, path in zip(names, files, strict=True) if path is not None}
        if self.tls_verify is not None:
            given |= {"verify": Verify(self.tls_verify), "auth_server": None}
        return replace(settings, enable=True, **given)

    def addresses(self) -> AddressMap:
        """Return the map of addresses, from the option or the environment."""
        from spark_rocket.client.core.client_config import as_address_map

        return as_address_map(self.address_map)

    def admin(self) -> Admin:
        from spark_rocket.client import Admin

        return Admin(**self.options(), request_timeout=self.timeout)

    @contextmanager
    def partial(self) -> Iterator[tuple[Admin, Failures]]:
        """Open an admin for a verb that shows what is available.

        The verb passes the dict to the admin's methods (``failed=failed``). What is in it is printed at the end, and
        the exit status is 1 then.
        """
        failed: Failures = {}
        with self.admin() as admin:
            yield admin, failed
        if failed:
            show.print_failures(failed)
            raise click.exceptions.Exit(1)

    def reader(self, group: str = READER_GROUP) -> Reader:
        from spark_rocket.client import Reader

        return Reader(**self.options(), group=group, request_timeout=self.timeout)


name_server_option = click.option(
    "-n",
    "--nameserver",
    type=name_servers,
    metavar="ADDR",
    envvar=NAME_SERVER_VARIABLES,
    help="host:port;host:port (NAMESRV_ADDR)",
)
cluster_option = click.option("--cluster", "cluster_name", metavar="NAME", help="only this cluster")
_OPTIONS: tuple[_Decorator, ...] = (
    name_server_option,
    click.option("--access-key", metavar="KEY", help="access key of the account (ROCKETMQ_ACCESS_KEY)"),
    click.option("--secret-key", metavar="KEY", help="its secret key; prefer ROCKETMQ_SECRET_KEY or a file"),
    click.option("--credentials", type=PATH, metavar="FILE", help="file with accessKey and secretKey, like tools.yml"),
    click.option("--tls", is_flag=True, help="connect with TLS (ROCKETMQ_TLS_ENABLE)"),
    click.option("--tls-ca", type=PATH, metavar="FILE", help="CA certificates to verify servers with"),
    click.option("--tls-cert", type=PATH, metavar="FILE", help="client certificate, if servers require one"),
    click.option("--tls-key", type=PATH, metavar="FILE", help="private key of the client certificate"),
    click.option("--tls-verify", type=click.Choice(["full", "ca", "none"]), help="server certificate checks (full)"),
)
_CLIENT_OPTIONS: tuple[_Decorator, ...] = (
    click.option("--address-map", metavar="A=B", help="reachable addresses of brokers (ROCKETMQ_ADDRESS_MAP)"),
    click.option("--namespace", "instance_id", metavar="ID", help="ID of a managed instance (ROCKETMQ_NAMESPACE)"),
    click.option("--namespace-v2", metavar="NAME", help="namespace in the fields ns and nsd of requests"),
)
_timeout_option = click.option(
    "--timeout", type=seconds, metavar="SECONDS", default=str(TIMEOUT), help="timeout of a request (5)"
)


def _link(
    nameserver: str | None,
    credentials: Path | None,
    access_key: str | None,
    instance_id: str | None = None,
    timeout: float = TIMEOUT,
    **given: Any,
) -> Link:
    exclusive({"--credentials": credentials, "--access-key": access_key})
    name_server = _inherited_option("nameserver", nameserver)
    return Link(name_server, timeout, access_key, credentials=credentials, namespace=instance_id, **given)


def _with_short_names(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Remove the namespace from the names that a verb gets: it compares them with those that clients return."""

    @wraps(verb)
    def call(*, link: Link, **values: Any) -> Any:
        given = {name: value for name, value in values.items() if name in _NAME_PARAMETERS and value}
        if given and any("%" in str(value) for value in given.values()):
            unwrap = link.with_full_names()[1].unwrap
            values |= {name: _renamed(value, unwrap) for name, value in given.items()}
        return verb(link=link, **values)

    return call


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return rename(value)
    return tuple(_renamed(one, rename) for one in value) if isinstance(value, tuple) else value


_NAME_PARAMETERS = frozenset({"topic", "topics", "no_topics", "group", "groups", "no_groups", "names", "of_group"})
"""The parameters of verbs whose values are names of topics and groups."""
_options = bundle("link", _link, *_OPTIONS, *_CLIENT_OPTIONS, _timeout_option, is_last=True)
_options_but_timeout = bundle("link", _link, *_OPTIONS, *_CLIENT_OPTIONS, is_last=True)


def connection(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a verb and pass them to it as ``link``."""
    return _options(_with_short_names(verb))


def connection_but_timeout(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb whose ``--timeout`` means something else (with another name in Python)."""
    return _options_but_timeout(_with_short_names(verb))


#: The same for ``rocket proxy``: each of its clients names a namespace, and the proxy maps no addresses.
connection_of_proxy = bundle("link", _link, *_OPTIONS, is_last=True)


def _inherited_option(name: str, value: Any) -> Any:
    """Return an option of this verb, else of the verb above it, else of the environment."""
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            return context.params[name]
        context = context.parent
    return value


# --- shell completion of names ---------------------------------------------------------------------------------------


def complete_topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """For ``click.argument("topic", shell_complete=complete_topics)``. System topics only if a prefix is given."""

    def names(admin: Admin) -> list[str]:
        from spark_rocket.client.admin import TopicKind, topic_kind

        info = admin.cluster_info()
        own = {*info.broker_addr_table, *info.cluster_addr_table}
        return [name for name in admin.topics() if incomplete or topic_kind(name, own) is TopicKind.USER]

    return _complete(context, incomplete, names)


def complete_groups(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def names(admin: Admin) -> list[str]:
        return [info.name for info in admin.groups(failed={}) if incomplete or not info.is_system]

    return _complete(context, incomplete, names)


def complete_brokers(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _complete(context, incomplete, lambda admin: admin.cluster_info().broker_addr_table)


def _complete(context: click.Context, incomplete: str, names: Callable[[Admin], Any]) -> list[str]:
    link = Link(context.params.get("nameserver"), _COMPLETION_TIMEOUT_S, namespace=context.params.get("instance_id"))
    try:
        with link.admin() as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except RocketError:  # the shell shows no errors of completion
        return []
