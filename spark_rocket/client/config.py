"""Which name servers a client talks to, and the numbers it keeps to.

The name server comes from the argument, else from the ``NAMESRV_ADDR`` variable as in every RocketMQ tool, else it is
``127.0.0.1:9876``. Several are separated with ``;``. A web address with a path, ``http://host:8080/rocketmq/nsaddr``,
is that of a server that names them (``address_server``).

Immutable. Corresponds to org.apache.rocketmq.client.ClientConfig.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

from spark_rocket.client.credentials import find_credentials
from spark_rocket.errors import ConfigError, RemotingConnectError
from spark_rocket.protocol.acl import Credentials
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.tls import TlsSettings, as_settings

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
MAX_MESSAGE_SIZE = 4 * 1024 * 1024

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
