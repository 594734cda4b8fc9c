"""The options by which verbs reach a cluster, and the clients that are opened with them.

    @click.command()
    @connection
    def verb(link: Link) -> None:
        with link.admin() as admin: …

Options that a group of verbs has as well (``rocket broker -n ADDR drain``) count for its verbs.
Corresponds to the options that every SubCommand of mqadmin has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.arguments import PATH, exclusive, seconds
from spark_rocket.errors import RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.remoting.tls.settings import TlsSettings

NAME_SERVER_VARIABLES = ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
TIMEOUT = 5.0
_COMPLETION_SECONDS = 1.0  # nobody waits longer for a list of names

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Link:
    """How to reach a cluster: what the command line and the environment said."""

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

    def options(self) -> dict[str, Any]:
        """The arguments that every client takes: ``Producer("group", **link.options())``."""
        return {"name_server": self.name_server, "tls": self._tls(), **self._signing()}

    def _signing(self) -> dict[str, Any]:
        if self.credentials is None:
            return {"access_key": self.access_key, "secret_key": self.secret_key}
        from spark_rocket.client.core.config import read_credentials

        found = read_credentials(self.credentials)
        return {
            "access_key": found.access_key,
            "secret_key": found.secret_key,
            "security_token": found.security_token or None,
        }

    def _tls(self) -> TlsSettings | None:
        """None: what the environment says."""
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

    def admin(self) -> Admin:
        from spark_rocket.client import Admin

        return Admin(**self.options(), request_timeout=self.timeout)

    def reader(self) -> Reader:
        from spark_rocket.client import Reader

        return Reader(**self.options(), request_timeout=self.timeout)


name_server_option = click.option(
    "-n", "--nameserver", metavar="ADDR", envvar=NAME_SERVER_VARIABLES, help="host:port;host:port (NAMESRV_ADDR)"
)
cluster_option = click.option("--cluster", "cluster_name", metavar="NAME", help="of this cluster only")
_OPTIONS: tuple[_Decorator, ...] = (
    name_server_option,
    click.option("--access-key", metavar="KEY", help="who asks (ROCKETMQ_ACCESS_KEY)"),
    click.option("--secret-key", metavar="KEY", help="its secret; better in ROCKETMQ_SECRET_KEY or a file"),
    click.option("--credentials", type=PATH, metavar="FILE", help="a file with accessKey and secretKey, as tools.yml"),
    click.option("--tls", is_flag=True, help="call servers with TLS (ROCKETMQ_TLS_ENABLE)"),
    click.option("--tls-ca", type=PATH, metavar="FILE", help="who signed their certificates"),
    click.option("--tls-cert", type=PATH, metavar="FILE", help="our certificate, where they ask for one"),
    click.option("--tls-key", type=PATH, metavar="FILE", help="its private key"),
    click.option("--tls-verify", type=click.Choice(["full", "ca", "none"]), help="what is checked of theirs (full)"),
)
_timeout_option = click.option(
    "--timeout", type=seconds, metavar="SECONDS", default=str(TIMEOUT), help="of a request (5)"
)


def connection(function: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator: adds the options, and hands them on as ``link``."""
    return _with_link(function, (*_OPTIONS, _timeout_option))


def connection_but_timeout(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a verb whose ``--timeout`` is about something else (named otherwise in Python)."""
    return _with_link(function, _OPTIONS)


def _with_link(function: Callable[..., Any], options: tuple[_Decorator, ...]) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_link(*args: Any, **values: Any) -> Any:
        return function(*args, link=_take(values), **values)

    # Behind the verb's own in --help, wherever the decorator stands.
    own = vars(with_link).pop("__click_params__", [])
    wrapped: Callable[..., Any] = with_link
    for option in reversed(options):
        wrapped = option(wrapped)
    vars(wrapped)["__click_params__"] += own
    return wrapped


def _take(values: dict[str, Any]) -> Link:
    link = Link(
        _of_a_verb_above("nameserver", values.pop("nameserver")),
        values.pop("timeout", TIMEOUT),
        values.pop("access_key"),
        values.pop("secret_key"),
        values.pop("credentials"),
        *(values.pop(name) for name in ("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify")),
    )
    exclusive({"--credentials": link.credentials, "--access-key": link.access_key})
    return link


def _of_a_verb_above(name: str, value: Any) -> Any:
    """An option's value, unless it was given to a verb above only. The environment's comes last."""
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            return context.params[name]
        context = context.parent
    return value


# --- names that the shell completes ----------------------------------------------------------------------------------


def complete_topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """For ``click.argument("topic", shell_complete=complete_topics)``. RocketMQ's own only once their name is begun."""

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
    link = Link(context.params.get("nameserver"), _COMPLETION_SECONDS)
    try:
        with link.admin() as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except RocketError:  # nobody is there to be told
        return []
