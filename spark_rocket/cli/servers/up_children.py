"""The processes that ``rocket up`` starts beside its brokers: the gRPC proxy and the console.

Each is started again when it dies (child.py). Thread-safety: one event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.cli.servers.child import ChildServer, KeptServer
from spark_rocket.cli.servers.foreground import say, tell
from spark_rocket.cli.servers.options import SETTINGS_VARIABLE, LogOptions, UpOptions
from spark_rocket.client.core.config import (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
    find_credentials,
)
from spark_rocket.console.settings import DEFAULT_PORT as CONSOLE_PORT
from spark_rocket.console.settings import PASSWORD_VARIABLE
from spark_rocket.errors import ConfigError
from spark_rocket.proxy.config import DEFAULT_PORT, ProxyConfig

_NO_PROXY = -1
_NO_ACCOUNT = (
    "\n  It has no account, where requests must be signed. Start with "
    f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} set;\n"
    f"  or with {PASSWORD_VARIABLE}: behind that login it acts with the broker's own account, if it has one."
)


def _missing(*modules: str) -> list[str]:
    """Those that are not installed. None of them is imported."""
    return [name for name in modules if not _is_installed(name)]


def _is_installed(module: str) -> bool:
    """Without importing it."""
    try:
        return find_spec(module) is not None
    except ImportError:  # not even the package that it is in
        return False


# --- the gRPC proxy --------------------------------------------------------------------------------------------------


class ProxyChild:
    """The gRPC proxy of ``rocket up``, for all its brokers, if there is to be one.

    Its settings come from the ``broker.conf`` of ``rocket up``: those of TLS, access control and the size of messages,
    and those that only the proxy has (``PROXY_SETTINGS``). They are handed over in its environment, for they hold the
    account that it signs its requests to brokers with.
    """

    def __init__(
        self, config: BrokerConfig, name_server: str, port: int | None, logs: LogOptions, *, processes: int = 1
    ) -> None:
        """``port``: of the command line; -1 for no proxy, None for what ``config`` says. ConfigError for its settings.

        ``config.bind_address`` is where it listens. ``processes``: those before it have metrics ports too.
        """
        self._logs = logs
        self._server: KeptServer | None = None
        self._config = None
        if _wanted_port(config, port) != _NO_PROXY:
            self._config = proxy_config(config, name_server, port, processes)
        missing = _missing("grpc", "grpc_health", "grpc_reflection", "google.protobuf")
        if self._config is not None and missing:
            say(f"No gRPC proxy: {' and '.join(missing)} are not installed. Install them, or start with --no-grpc.")
            self._config = None

    async def start(self, servers: AsyncExitStack) -> None:
        """Start its process. It is stopped with ``servers``."""
        if self._config is None:
            return
        environment = {SETTINGS_VARIABLE: self._config.to_text()}
        command = self._logs.command("proxy")
        self._server = KeptServer("gRPC proxy", "rocket proxy", *command, environment=environment)
        servers.push_async_callback(self._server.stop)
        await self._server.start()

    async def wait_until_up(self, servers: AsyncExitStack) -> dict[str, str]:
        """Its address as ``grpc`` and its metrics as ``grpcMetrics``; nothing without a proxy.

        ConfigError if it could not start.

        It is stopped before what ``servers`` has by now: before the brokers that it speaks with.
        """
        server, config = self._server, self._config
        if server is None or config is None:
            return {}
        servers.push_async_callback(server.stop)
        try:
            facts = await server.wait_until_up()
        except ConfigError as error:
            raise ConfigError(error.message, remedy="Or leave the gRPC proxy out: --no-grpc.") from None
        bound = ProxyConfig.from_text(config.to_text(), SETTINGS_VARIABLE, port=int(facts["grpc"].rpartition(":")[2]))
        server.environment = {SETTINGS_VARIABLE: bound.to_text()}  # where clients know it, when it is started again
        return {name: facts[of] for name, of in {"grpc": "grpc", "grpcMetrics": "metrics"}.items() if of in facts}

    @property
    def lines(self) -> list[str]:
        """What to say of it beside its address."""
        config = self._config
        if config is None or not config.acl_enable or config.credentials or find_credentials():
            return []
        return [
            "               It has no account, where requests must be signed: brokers refuse what it asks. Set\n"
            "               innerClientAuthenticationCredentials to an account with adminRole."
        ]


def _wanted_port(config: BrokerConfig, port: int | None) -> int:
    """The command line's, else the file's ``grpcServerPort``, which may be -1."""
    if port is not None:
        return port
    return _NO_PROXY if config.proxy_settings.get("grpcServerPort", "").strip() == str(_NO_PROXY) else DEFAULT_PORT


def proxy_config(config: BrokerConfig, name_server: str, port: int | None, processes: int = 1) -> ProxyConfig:
    """The settings of a proxy for brokers with these settings. Its metrics port is behind theirs."""
    first = config.metrics_prom_exporter_port
    settings: dict[str, object] = {
        "bindAddress": config.bind_address,
        "localServeAddr": config.broker_ip1,
        "aclEnable": config.acl_enable,
        "aclFile": config.acl_path if config.acl_enable else "",
        "maxMessageSize": config.max_message_size,
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


class _Console(KeptServer):
    """A process of its own, so that it takes nothing of the broker's. ``rocket up`` is up with or without it."""

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
        return f"The console has ended. {server.last_words(status)}"


def start_console(servers: AsyncExitStack, options: UpOptions, name_server: str, config: BrokerConfig) -> None:
    """Start it beside the servers, without waiting: it says by itself where it is, or why it is not.

    A program that starts ``rocket up`` (``--ready-fd``) has none unless it names a port.
    """
    if options.no_console or (options.ready_fd is not None and options.console_port is None):
        return
    if missing := _missing("starlette", "uvicorn"):
        tell(f"No console: {' and '.join(missing)} are not installed.")
        return
    port = CONSOLE_PORT if options.console_port is None else options.console_port
    environment, note = console_account(config)
    console = _Console("console", "-n", name_server, "--port", str(port), environment=environment, note=note)
    servers.push_async_callback(console.stop)
    console.keep()


def console_account(config: BrokerConfig) -> tuple[dict[str, str], str]:
    """The variables that the console has beside this process's own, and what to say of its account.

    It calls the servers with TLS if they call each other so. With access control its requests are signed by the
    environment's account. Without one, a console that has a login takes the brokers' own; one open to all does not.
    """
    tls = config.tls_settings()
    called = tls.client_environment() if tls.is_client else {}
    if not config.acl_enable or os.environ.get(ACCESS_KEY_VARIABLE):
        return called, ""
    own = config.own_credentials if os.environ.get(PASSWORD_VARIABLE) else None
    if own is None:
        return called, _NO_ACCOUNT
    called |= {ACCESS_KEY_VARIABLE: own.access_key, SECRET_KEY_VARIABLE: own.secret_key}
    return called | ({SECURITY_TOKEN_VARIABLE: own.security_token} if own.security_token else {}), ""
