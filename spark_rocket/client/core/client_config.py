"""Name servers, credentials, TLS and timeouts of a client.

The name server is that of the argument, otherwise that of the ``NAMESRV_ADDR`` variable as in every RocketMQ tool,
otherwise ``127.0.0.1:9876``, in the notation of ``remoting.name_server_list``. The response of an address server is
text like ``10.0.0.1:9876;10.0.0.2:9876``. It is queried when a client instance starts, and every two minutes.

``ROCKETMQ_ACCESS_KEY``, ``ROCKETMQ_SECRET_KEY`` (and optionally ``ROCKETMQ_SECURITY_TOKEN``) apply when no credentials
are passed. A credentials file has the format of mqadmin's ``tools.yml``::

    accessKey: rocketmq2
    secretKey: "12345678"

Error messages never contain secrets. Immutable; functions have no state.
Corresponds to org.apache.rocketmq.client.ClientConfig, TopAddressing, SessionCredentials and mqadmin's ServerUtil hook.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from spark_rocket.client.core.address_map import ADDRESS_MAP_VARIABLE, NO_ADDRESS_MAP, AddressMap
from spark_rocket.common.arguments import checked, checked_class
from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError, NameServerUnreachableError
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.remoting.name_server_list import NameServerList, parse_name_servers
from spark_rocket.remoting.tls.settings import TlsSettings, as_settings

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
ADDRESS_SERVER_TIMEOUT_S = 120.0
NAMESPACE_VARIABLE = "ROCKETMQ_NAMESPACE"
ACCESS_KEY_VARIABLE = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "ROCKETMQ_SECURITY_TOKEN"
MAX_CREDENTIALS_FILE_BYTES = 4096
_CREDENTIALS = ("accessKey", "secretKey", "securityToken")


class Connecting(TypedDict, total=False):
    """Connection arguments that every client accepts.

    ``access_key`` and ``secret_key``: the account, and the key that signs its requests, for brokers with access control
    (default: ``ROCKETMQ_ACCESS_KEY`` and ``ROCKETMQ_SECRET_KEY``); ``security_token``: the token of temporary keys.
    ``tls``: TLS of connections to name servers and brokers; ``True`` uses the environment's settings and the CAs of the
    system (default: ``ROCKETMQ_TLS_ENABLE`` and others, see ``TlsSettings``).
    ``namespace``: the ID of a managed instance. It is put before the names of topics and groups on the wire and taken
    off in what the client returns; full names stay accepted (default: ``ROCKETMQ_NAMESPACE``, otherwise the ID in a
    name server like ``http://MQ_INST_1_a.example.com:80``; an empty string: none). ``namespace_v2``: a namespace that
    requests have in the fields ns and nsd instead, as those of Java's client 5.x.
    ``address_map``: reachable addresses of brokers that advertise others, like
    ``172.17.0.3:10911=127.0.0.1:10911,broker-b:*=10.0.0.2:*`` (default: ``ROCKETMQ_ADDRESS_MAP``).
    """

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: bool | TlsSettings | None
    namespace: str | None
    namespace_v2: str | None
    address_map: str | AddressMap | None


@checked_class
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClientConfig(FrozenValue):
    """Settings that all clients of one process and name server list share. Times are in seconds."""

    name_servers: tuple[str, ...] = (DEFAULT_NAME_SERVER,)
    """Empty until the address server was queried."""
    address_server: str = ""
    request_timeout: float = 3.0
    route_refresh_interval: float = 30.0
    route_forget_after: float = 120.0
    heartbeat_interval: float = 30.0
    persist_interval: float = 5.0
    rebalance_interval: float = 20.0
    instance_name: str = ""
    """Clients with different names share nothing: connections, client id, producer and consumer groups."""
    credentials: Credentials | None = None
    """The credentials that sign all requests. Clients with different credentials share nothing."""
    tls: TlsSettings | None = None
    """The TLS settings of connections; None: no TLS. Clients with different settings share nothing."""
    namespace: Namespace = NO_NAMESPACE
    """The namespace of names on the wire. Clients with different namespaces share nothing."""
    address_map: AddressMap = NO_ADDRESS_MAP
    """Where to reach addresses that brokers advertise. Clients with different maps share nothing."""

    @property
    def account(self) -> str:
        """The access key; empty without credentials."""
        return "" if self.credentials is None else self.credentials.access_key

    @classmethod
    @checked
    def of(
        cls,
        name_server: str | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        instance_name: str = "",
        **connecting: Unpack[Connecting],
    ) -> ClientConfig:
        """Create a config from ``"a:9876;b:9876"``, by default from the environment."""
        credentials = find_credentials(
            connecting.get("access_key"), connecting.get("secret_key"), connecting.get("security_token"), environment
        )
        tls = as_settings(connecting.get("tls"), environment)
        address_map = as_address_map(connecting.get("address_map"), environment)
        found = find_name_servers(name_server, environment)
        namespace = find_namespace(connecting.get("namespace"), found, environment)
        return cls(
            found.addresses,
            found.url,
            instance_name=instance_name,
            credentials=credentials,
            tls=tls,
            namespace=Namespace(namespace, connecting.get("namespace_v2") or ""),
            address_map=address_map,
        )


def as_address_map(given: str | AddressMap | None, environment: Mapping[str, str] = os.environ) -> AddressMap:
    """Return the given map, parsed if it is text; without one that of the environment."""
    if isinstance(given, AddressMap):
        return given
    if given is not None:
        return AddressMap.of(given)
    try:
        return AddressMap.of(environment.get(ADDRESS_MAP_VARIABLE, ""))
    except ConfigError as error:
        raise ConfigError(f"Variable {ADDRESS_MAP_VARIABLE}: {error.message}", remedy=error.remedy) from None


def find_name_servers(given: object = None, environment: Mapping[str, str] = os.environ) -> NameServerList:
    """Return the given name servers, otherwise those of the environment, otherwise the default."""
    if given is not None and given != "":
        return parse_name_servers(given)
    variable = environment.get(NAME_SERVER_VARIABLE, "")
    if not variable.strip():
        return NameServerList((DEFAULT_NAME_SERVER,))
    try:
        return parse_name_servers(variable)
    except ConfigError as error:
        raise ConfigError(f"Variable {NAME_SERVER_VARIABLE}: {error.message}", remedy=error.remedy) from None


def find_namespace(given: str | None, name_servers: NameServerList, environment: Mapping[str, str] = os.environ) -> str:
    """Return the given namespace, otherwise that of the environment, otherwise that of an ``MQ_INST_…`` endpoint."""
    if given is not None:
        return given
    return environment.get(NAMESPACE_VARIABLE) or name_servers.instance_id


def look_up(url: str, timeout: float) -> tuple[str, ...]:
    """Query the name servers from the address server. NameServerUnreachableError if the response is not usable."""
    import urllib.request  # imported only with an address server, because loading it is slow
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # only http and https URLs match
            text = response.read(65_536).decode("utf-8", "replace").strip()
        found = parse_name_servers(text)
        if found.url:
            raise ConfigError(f"Its response is the URL {found.url}.")
        return found.addresses
    except (OSError, HTTPException, ValueError, ConfigError) as error:
        if isinstance(error, HTTPError):  # it is the response, and holds the socket
            error.close()
        raise NameServerUnreachableError(
            f"The address server {url} returned no name servers: {error}.",
            remedy="Check the address, or specify the name servers directly, like 127.0.0.1:9876.",
        ) from error


def find_credentials(
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Credentials | None:
    """Return the given credentials, otherwise those of the environment; None if there are none."""
    if access_key or secret_key or security_token:
        return _credentials(access_key, secret_key, security_token, "access_key", "secret_key")
    found = [environment.get(name) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)]
    return _credentials(found[0], found[1], found[2], ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)


def read_credentials(path: Path | str) -> Credentials:
    """Read credentials from a file. ConfigError names the file and the problem."""
    import yaml  # not on Spark's workers, which read no files

    remedy = "Write two lines: accessKey: … and secretKey: …"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CREDENTIALS_FILE_BYTES + 1)
        if len(content) > MAX_CREDENTIALS_FILE_BYTES:
            raise ConfigError(f"Credentials file {path} is too large: {len(content)} bytes or more.", remedy=remedy)
        # All values are parsed as text, so that a numeric key stays unchanged.
        values = yaml.load(content, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, UnicodeError, RecursionError):
        raise ConfigError(f"The credentials file {path} is not valid YAML.", remedy=remedy) from None
    except (OSError, ValueError) as error:  # a NUL character in the path is a ValueError
        raise ConfigError(
            f"Cannot read the credentials file {path}: {getattr(error, 'strerror', None) or error}.",
            remedy="Use a readable file with accessKey and secretKey.",
        ) from error
    if not isinstance(values, dict) or not all(isinstance(values.get(name, ""), str) for name in _CREDENTIALS):
        raise ConfigError(f"The credentials file {path} has no accessKey and secretKey.", remedy=remedy)
    access_key, secret_key, token = (values.get(name) or None for name in _CREDENTIALS)
    try:
        found = _credentials(access_key, secret_key, token, "accessKey", "secretKey")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None
    if found is None:
        raise ConfigError(f"The credentials file {path} has no accessKey and secretKey.", remedy=remedy)
    return found


def _credentials(
    access_key: str | None, secret_key: str | None, token: str | None, access_name: str, secret_name: str
) -> Credentials | None:
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        there, missing = (access_name, secret_name) if access_key else (secret_name, access_name)
        raise ConfigError(f"{there} is set without {missing}.", remedy="Set both, or neither.")
    return Credentials(access_key, secret_key, token or "")
