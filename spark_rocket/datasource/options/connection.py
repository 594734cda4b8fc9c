"""How the connector reaches name servers and brokers: addresses, credentials and TLS.

They come from options, files or the environment of the driver. The driver resolves them once, and they are pickled for
the tasks with the other options, so an environment variable on an executor cannot change them. Files must have the same
paths on the driver and the executors. No repr contains a secret or a key's password. A table's options are visible in
the catalog, so secrets are rejected there.

Pure, except for files and environment. Corresponds to ``tls.enable`` and ``tls.client.…`` of RocketMQ's clients.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_rocket.client.core.address_map import NO_ADDRESS_MAP, AddressMap
from spark_rocket.client.core.client_config import (
    DEFAULT_NAME_SERVER,
    NAME_SERVER_VARIABLE,
    NAMESPACE_VARIABLE,
    Connecting,
    as_address_map,
    find_credentials,
    find_namespace,
    read_credentials,
)
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.parsers import Values, bad_value, name_servers
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, key_problem
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.remoting.name_server_list import NameServerList, parse_name_servers
from spark_rocket.remoting.tls.settings import TlsSettings, as_settings

_SECRETS = ("secretKey", "securityToken")


def key_text(option: str, text: str) -> str:
    """Check an access key, secret key or token. The error does not contain it."""
    problem = key_problem(text)
    if problem is not None:
        raise error("BAD_OPTION.VALUE", option=option, value="not a key", wanted=f"the key itself; this one {problem}")
    return text


def credentials_file(option: str, text: str) -> Credentials:
    try:
        return read_credentials(text)
    except ConfigError as problem:
        wanted = f"a file that the driver can read, with accessKey and secretKey. {problem.message[:300].rstrip('.')}"
        raise error("BAD_OPTION.VALUE", option=option, value=repr(text[:200]), wanted=wanted) from None


def address_map(option: str, text: str) -> AddressMap:
    try:
        return AddressMap.of(text)
    except ConfigError as problem:
        wanted = f"ADVERTISED=REACHABLE addresses, separated by commas. {problem.message.rstrip('.')}"
        raise error("BAD_OPTION.VALUE", option=option, value=repr(text[:200]), wanted=wanted) from None


def namespace_name(option: str, text: str) -> Namespace:
    """Parse the name of a namespace; an empty text is none."""
    try:
        return Namespace(text.strip())
    except ConfigError:
        wanted = "the ID of an instance, like MQ_INST_1234567890_AbCdEf: letters, digits, - and _, or an empty text"
        raise bad_value(option, text, wanted) from None


def pem_file(option: str, text: str) -> str:
    """Return an absolute path. Relative paths are relative to the driver's directory."""
    if not text.strip() or "\0" in text:
        raise bad_value(option, text, "the path of a PEM file")
    return str(Path(text.strip()).expanduser().absolute())


@dataclass(frozen=True, eq=False, repr=False)
class ClusterConnection(FrozenValue):
    """How to connect to the servers of a cluster. None was already looked up in the driver's environment."""

    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    address_map: AddressMap = NO_ADDRESS_MAP
    namespace: Namespace = NO_NAMESPACE

    def arguments(self) -> Connecting:
        """Return the connection arguments of the clients.

        The clients do not translate names: options have those on the wire.
        """
        found: Connecting = {
            "tls": self.tls or False,
            "address_map": self.address_map,
            "namespace": "",
            "namespace_v2": self.namespace.v2,
        }
        if self.credentials is not None:
            found["access_key"] = self.credentials.access_key
            found["secret_key"] = self.credentials.secret_key
            found["security_token"] = self.credentials.security_token or None
        return found


def connection_of(values: Values, namespace: Namespace) -> dict[str, Any]:
    """Return the connection fields of all parsed options. A store directory needs none but the namespace."""
    if "storePath" in values:
        return {"name_server": "", "connection": ClusterConnection(namespace=namespace)}
    address_map = as_address_map(values.get("addressMap"))
    connection = ClusterConnection(_credentials_of(values), _tls_of(values), address_map, namespace)
    return {"name_server": _name_server_of(values), "connection": connection}


def namespace_of(values: Values) -> Namespace:
    """Return the namespace: of the option, of the environment, or of the endpoint."""
    servers = NameServerList() if "storePath" in values else parse_name_servers(_name_server_of(values))
    given: Namespace | None = values.get("namespace")
    v2: Namespace | None = values.get("namespaceV2")
    try:
        name = find_namespace(None if given is None else given.name, servers)
        return Namespace(name, "" if v2 is None else v2.name)
    except ConfigError as problem:  # of the environment
        raise error(
            "BAD_OPTION.VALUE", option=NAMESPACE_VARIABLE, value=repr(os.environ.get(NAMESPACE_VARIABLE)),
            wanted=problem.remedy,
        ) from None  # fmt: skip


def _name_server_of(values: Values) -> str:
    if "nameServer" in values:
        return str(values["nameServer"])
    variable = os.environ.get(NAME_SERVER_VARIABLE, "").strip()
    return name_servers(f"{NAME_SERVER_VARIABLE} (environment)", variable) if variable else DEFAULT_NAME_SERVER


def _credentials_of(values: Values) -> Credentials | None:
    found: Credentials | None = values.get("credentialsFile")
    if found is None:
        return find_credentials(values.get("accessKey"), values.get("secretKey"), values.get("securityToken"))
    return found


def _tls_of(values: Values) -> TlsSettings | None:
    settings = as_settings(values.get("tls"))
    if settings is None:
        return None
    if "tlsVerify" in values:
        settings = replace(settings, verify=values["tlsVerify"], auth_server=None)
    if "tlsCertFile" in values:
        settings = replace(settings, client_cert_path=values["tlsCertFile"], client_key_path=values["tlsKeyFile"])
    trust = values.get("tlsCaFile") or settings.client_trust_cert_path
    return replace(settings, enable=True, client_trust_cert_path=trust)


def refuse_secrets(options: Iterable[str]) -> None:
    """Reject secrets in a table's options, which everybody who sees the table can read."""
    given = {key.lower() for key in options}
    for name in _SECRETS:
        if name.lower() in given:
            raise error("BAD_OPTION.SECRET_IN_TABLE", option=name)
