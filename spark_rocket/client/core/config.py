"""Which name servers a client talks to, with what credentials, and its timeouts.

The name server comes from the argument, else from the ``NAMESRV_ADDR`` variable as in every RocketMQ tool, else it is
``127.0.0.1:9876``. Several are separated with ``;``. A web address with a path, ``http://host:8080/rocketmq/nsaddr``,
is that of an address server. Its answer is text like ``10.0.0.1:9876;10.0.0.2:9876``; it is asked when a client
instance begins, and every two minutes.

``ROCKETMQ_ACCESS_KEY`` and ``ROCKETMQ_SECRET_KEY`` (and ``ROCKETMQ_SECURITY_TOKEN``, where there is one) count when no
credentials are given. A file of credentials has the form of mqadmin's ``tools.yml``::

    accessKey: rocketmq2
    secretKey: "12345678"

No error has a secret in its text. Immutable; functions have no state.
Corresponds to org.apache.rocketmq.client.ClientConfig, TopAddressing, SessionCredentials and mqadmin's ServerUtil hook.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from spark_rocket.errors import ConfigError, NameServerUnreachableError, RemotingConnectError
from spark_rocket.protocol.auth import Credentials
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.tls.settings import TlsSettings, as_settings

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
LOOK_UP_SECONDS = 120.0
ACCESS_KEY_VARIABLE = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "ROCKETMQ_SECURITY_TOKEN"
MAX_CREDENTIALS_FILE = 4096
_CREDENTIALS = ("accessKey", "secretKey", "securityToken")

_ADDRESS_SERVER = re.compile(r"https?://[^/;,\s]+/[^;,\s]+")


class Connecting(TypedDict, total=False):
    """What every client takes about its connections, each for itself.

    ``access_key`` and ``secret_key``: who it is and what its requests are signed with, where brokers ask for that
    (``ROCKETMQ_ACCESS_KEY`` and ``ROCKETMQ_SECRET_KEY`` without); ``security_token``: of temporary keys.
    ``tls``: how name servers and brokers are called, ``True`` for what the environment says of it, and servers whose
    certificates the system's CAs have signed (``ROCKETMQ_TLS_ENABLE`` and others, without: see ``TlsSettings``).
    """

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: bool | TlsSettings | None


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What all clients of one process and name server list share. Times are seconds."""

    name_servers: tuple[str, ...] = (DEFAULT_NAME_SERVER,)
    """Empty while only the address server knows them."""
    address_server: str = ""
    request_timeout: float = 3.0
    route_refresh_interval: float = 30.0
    route_forget_after: float = 120.0
    heartbeat_interval: float = 30.0
    persist_interval: float = 5.0
    rebalance_interval: float = 20.0
    instance_name: str = ""
    """Clients with different names share nothing: connections, client id, one producer and consumer per group."""
    credentials: Credentials | None = None
    """What all requests are signed with. Clients with different ones share nothing either."""
    tls: TlsSettings | None = None
    """With what servers are called; None: without TLS. Likewise."""

    @classmethod
    def of(
        cls,
        name_server: str | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        instance_name: str = "",
        **connecting: Unpack[Connecting],
    ) -> ClientConfig:
        """From ``"a:9876;b:9876"``, or for want of it from the environment."""
        credentials = find_credentials(
            connecting.get("access_key"), connecting.get("secret_key"), connecting.get("security_token"), environment
        )
        tls = as_settings(connecting.get("tls"), environment)
        text = name_server or environment.get(NAME_SERVER_VARIABLE) or DEFAULT_NAME_SERVER
        if url := address_server_of(text):
            return cls((), url, instance_name=instance_name, credentials=credentials, tls=tls)
        return cls(parse_name_servers(text), instance_name=instance_name, credentials=credentials, tls=tls)


def address_server_of(text: str) -> str:
    """The URL in a text that is the address of an address server; empty for any other text."""
    return text.strip() if _ADDRESS_SERVER.fullmatch(text.strip()) else ""


def parse_name_servers(text: str) -> tuple[str, ...]:
    """The addresses in a text like ``"a:9876;b:9876"``, each once."""
    # Older tools also separate with commas; "http://" in front is what their address servers hand out.
    parts = [part.strip().removeprefix("http://").rstrip("/") for part in text.replace(",", ";").split(";")]
    try:
        servers = tuple(dict.fromkeys(format_address(*parse_address(part)) for part in parts if part))
    except RemotingConnectError as error:
        raise ConfigError(f"Name server {text!r}: {error.message}", remedy=error.remedy) from None
    if not servers:
        raise ConfigError(f"Name server {text!r} names no address.", remedy="Write it like 127.0.0.1:9876.")
    return servers


def look_up(url: str, timeout: float) -> tuple[str, ...]:
    """The name servers that the address server names. NameServerUnreachableError if it says nothing of use."""
    import urllib.request  # only who has an address server pays for loading it
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # only http and https come here
            text = answer.read(65_536).decode("utf-8", "replace").strip()
        return parse_name_servers(text)
    except (OSError, HTTPException, ValueError, ConfigError) as error:
        if isinstance(error, HTTPError):  # it is the response, and keeps the socket
            error.close()
        raise NameServerUnreachableError(
            f"The address server {url} named no name servers: {error}.",
            remedy="Check the address, or give the name servers themselves, like 127.0.0.1:9876.",
        ) from error


def find_credentials(
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Credentials | None:
    """From what is given, else from the environment; None if that has none either."""
    if access_key or secret_key or security_token:
        return _credentials(access_key, secret_key, security_token, "access_key", "secret_key")
    found = [environment.get(name) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)]
    return _credentials(found[0], found[1], found[2], ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)


def read_credentials(path: Path | str) -> Credentials:
    """From a file. ConfigError names it and what is wrong."""
    import yaml  # not on Spark's workers, where no files are read

    remedy = "Write two lines: accessKey: … and secretKey: …"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CREDENTIALS_FILE + 1)
        if len(content) > MAX_CREDENTIALS_FILE:
            raise ConfigError(f"{path} is no file of credentials: it is too large.", remedy=remedy)
        # All values are text: a key of digits stays as it is written.
        values = yaml.load(content, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except OSError as error:
        raise ConfigError(
            f"The credentials file {path} cannot be read: {error.strerror or error}.",
            remedy="Give the path of a file with accessKey and secretKey that this process may read.",
        ) from error
    except (yaml.YAMLError, UnicodeError, RecursionError):
        raise ConfigError(f"The credentials file {path} is not YAML.", remedy=remedy) from None
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
        raise ConfigError(f"There is {there} without {missing}.", remedy="Give both, or neither.")
    return Credentials(access_key, secret_key, token or "")
