"""The processes that ``rocket up`` starts in addition to its brokers: the gRPC proxy and the console.

Each is restarted when it dies (child.py). Thread-safety: one event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli.servers.child import ChildServer, SupervisedServer
from spark_rocket.cli.servers.foreground import print_line, print_lines
from spark_rocket.cli.servers.options import SETTINGS_VARIABLE, LogOptions, UpOptions
from spark_rocket.client.core.client_config import (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
    find_credentials,
)
from spark_rocket.common.extras import pip_install
from spark_rocket.console.settings import DEFAULT_PORT as CONSOLE_PORT
from spark_rocket.console.settings import PASSWORD_VARIABLE
from spark_rocket.errors import ConfigError
from spark_rocket.proxy.proxy_config import DEFAULT_PORT, ProxyConfig

_NO_PROXY = -1
_NO_ACCOUNT = (
    "\n  The console has no account, and the broker requires signed requests. Set "
    f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE},\n"
    f"  or set {PASSWORD_VARIABLE}: with a login, the console uses the broker's own account, if it has one."
)


def _missing(*modules: str) -> list[str]:
    """Return the modules that are not installed, without importing any."""
    return [name for name in modules if not _is_installed(name)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # its parent package is missing
        return False


# --- the gRPC proxy --------------------------------------------------------------------------------------------------


class ProxyChild:
    """The gRPC proxy of ``rocket up`` for all its brokers, if it is enabled.

    Its settings come from the ``broker.conf`` of ``rocket up``: TLS, access control, message size, and the settings of
    the proxy alone (``PROXY_SETTINGS``). They are passed in its environment, because they contain the account that
    signs its requests to brokers.
    """

    def __init__(
        self, config: BrokerConfig, name_server: str, port: int | None, logs: LogOptions, *, processes: int = 1
    ) -> None:
        """ConfigError for invalid settings.

        ``port``: the port of the command line; -1 for no proxy, None for the port of ``config``. The proxy listens on
        ``config.bind_address``. ``processes``: the number of processes with metrics ports before it.
        """
        self._logs = logs
        self._server: SupervisedServer | None = None
        self._config = None
        if _wanted_port(config, port) != _NO_PROXY:
            self._config = proxy_config(config, name_server, port, processes)
        missing = _missing("grpc", "grpc_health", "grpc_reflection", "google.protobuf")
        if self._config is not None and missing:
            names = ", ".join(missing)
            print_lines(
                f"No gRPC proxy: missing packages {names}. Run {pip_install('proxy')}, or start with --no-grpc."
            )
            self._config = None

    async def start(self, servers: AsyncExitStack) -> None:
        if self._config is None:
            return
        environment = {SETTINGS_VARIABLE: self._config.to_text()}
        command = self._logs.command("proxy")
        self._server = SupervisedServer("gRPC proxy", "rocket proxy", *command, environment=environment)
        servers.push_async_callback(self._server.stop)
        await self._server.start()

    async def wait_until_up(self, servers: AsyncExitStack) -> dict[str, str]:
        """Return its address as ``grpc`` and its metrics as ``grpcMetrics``; empty without a proxy.

        It is stopped before the present content of ``servers``, thus before its brokers. ConfigError if it could not
        start.
        """
        server, config = self._server, self._config
        if server is None or config is None:
            return {}
        servers.push_async_callback(server.stop)
        try:
            facts = await server.wait_until_up()
        except ConfigError as error:
            raise ConfigError(error.message, remedy="Or disable the gRPC proxy: --no-grpc.") from None
        bound = ProxyConfig.from_text(config.to_text(), SETTINGS_VARIABLE, port=int(facts["grpc"].rpartition(":")[2]))
        server.environment = {SETTINGS_VARIABLE: bound.to_text()}  # a restarted proxy keeps its port
        return {name: facts[of] for name, of in {"grpc": "grpc", "grpcMetrics": "metrics"}.items() if of in facts}

    @property
    def lines(self) -> list[str]:
        config = self._config
        if config is None or not config.is_guarded or config.credentials or find_credentials():
            return []
        return [
            "               It has no account: brokers will refuse its requests, which must be signed. Set\n"
            "               innerClientAuthenticationCredentials to an administrator or a Super user."
        ]


def _wanted_port(config: BrokerConfig, port: int | None) -> int:
    """Return the port of the command line, else ``grpcServerPort`` of the file, which may be -1."""
    if port is not None:
        return port
    return _NO_PROXY if config.proxy_settings.get("grpcServerPort", "").strip() == str(_NO_PROXY) else DEFAULT_PORT


def proxy_config(config: BrokerConfig, name_server: str, port: int | None, processes: int = 1) -> ProxyConfig:
    """Derive the settings of the proxy from those of the brokers. Its metrics port follows theirs."""
    first = config.metrics_prom_exporter_port
    settings: dict[str, object] = {
        "bindAddress": config.bind_address,
        "localServeAddr": config.broker_ip1,
        "aclEnable": config.acl_enable,
        "authenticationEnabled": config.authentication_enabled,
        "authenticationWhitelist": config.authentication_whitelist,
        "authorizationEnabled": config.authorization_enabled,
        "authorizationWhitelist": config.authorization_whitelist,
        "aclFile": config.acl_path if config.acl_enable else "",
        "maxMessageSize": config.store.max_message_size,
        "innerClientAuthenticationCredentials": config.inner_client_authentication_credentials,
        "metricsExporterType": config.metrics_exporter_type,
        "metricsPromExporterHost": config.metrics_prom_exporter_host,
        "metricsPromExporterPort": min(first + processes, 65_535) if first else 0,
        **config.proxy_settings,
        **config.tls,
        "namesrvAddr": name_server,
    }
    if port is not None:
        settings["grpcServerPort"] = port
    return ProxyConfig.from_properties(settings, str(config.source or "the settings given"))


# --- the console -----------------------------------------------------------------------------------------------------


class _Console(SupervisedServer):
    """A separate process, so that it does not slow down the broker. ``rocket up`` runs without it if it fails."""

    stop_seconds = 5.0
    relays = False

    def __init__(self, *arguments: str, environment: Mapping[str, str], note: str) -> None:
        super().__init__("console", "rocket console", *arguments, environment=environment)
        self._note = note

    def up_text(self, facts: Mapping[str, str]) -> str:
        return f"Console: {facts['console']}{self._note}"

    def not_started_text(self, error: ConfigError | OSError) -> str:
        if isinstance(error, OSError):
            return f"No console: {error.strerror or error}."
        return f"No console: {error.message.removeprefix('console did not start. ')}"

    def ended_text(self, server: ChildServer, status: int) -> str:
        return f"The console ended. {server.last_message(status)}"


def start_console(servers: AsyncExitStack, options: UpOptions, name_server: str, config: BrokerConfig) -> None:
    """Start the console in the background; it prints its address, or why it did not start.

    With ``--ready-fd`` (``rocket up`` started by a program) there is no console unless a port is given.
    """
    if options.no_console or (options.ready_fd is not None and options.console_port is None):
        return
    if missing := _missing("starlette", "uvicorn"):
        print_line(f"No console: missing packages {', '.join(missing)}. Run {pip_install('console')}.")
        return
    port = CONSOLE_PORT if options.console_port is None else options.console_port
    environment, note = console_account(config)
    console = _Console("console", "-n", name_server, "--port", str(port), environment=environment, note=note)
    servers.push_async_callback(console.stop)
    console.supervise()


def console_account(config: BrokerConfig) -> tuple[dict[str, str], str]:
    """Return the environment variables to add for the console, and a note about its account.

    It uses TLS if the servers use TLS with each other. With access control, the account of the environment signs its
    requests. Without it, a console with a login uses the brokers' own account; a console without a login does not.
    """
    tls = config.tls_settings()
    called = tls.client_environment() if tls.is_client else {}
    if not config.is_guarded or os.environ.get(ACCESS_KEY_VARIABLE):
        return called, ""
    own = config.own_credentials if os.environ.get(PASSWORD_VARIABLE) else None
    if own is None:
        return called, _NO_ACCOUNT
    called |= {ACCESS_KEY_VARIABLE: own.access_key, SECRET_KEY_VARIABLE: own.secret_key}
    return called | ({SECURITY_TOKEN_VARIABLE: own.security_token} if own.security_token else {}), ""
