"""The notation of name servers, wherever they are given: options, arguments, settings, commands and environment.

=====================================  ==============================================================================
``a:9876;b:9876``                      addresses; commas and blanks separate them, too
``[::1]:9876``                         an IPv6 address stands in square brackets
``http://a:9876``                      the address ``a:9876``, as managed instances write it
``http://a:8080/rocketmq/nsaddr``      a URL with a path: an address server, which returns addresses; it stands alone
=====================================  ==============================================================================

A port is required, as in RocketMQ. Duplicates are removed. Pure.
Corresponds to NameServerAddressUtils, RemotingHelper.string2SocketAddress and MixAll's TopAddressing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError

_SEPARATORS = re.compile(r"[;,\s]+")
_ADDRESS_SERVER = re.compile(r"https?://[^/;,\s]+/[^;,\s]+", re.I)
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.A)
_NUMERIC_HOST = re.compile(r"(?:[0-9]+\.)*[0-9]+")
_ENDPOINT = re.compile(r"(?:\w+://)?(MQ_INST_\w[^\W_]*+_\w++)\.")
_REMEDY = "Write host:port, for example 127.0.0.1:9876 or [::1]:9876; separate several with ';'."


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NameServerList(FrozenValue):
    """Addresses of name servers, or the URL of an address server."""

    addresses: tuple[str, ...] = ()
    url: str = ""

    @property
    def instance_id(self) -> str:
        """The ID in an endpoint of a managed instance, like ``MQ_INST_1_a.example.com:80``; otherwise empty."""
        found = next(filter(None, map(_ENDPOINT.match, (*self.addresses, self.url))), None)
        return found[1] if found is not None else ""

    def __str__(self) -> str:
        return self.url or ";".join(self.addresses)


def parse_name_servers(given: object) -> NameServerList:
    """Parse the notation above; ConfigError names what is wrong."""
    if not isinstance(given, str):
        raise ConfigError(f"Name servers must be a string, not {type(given).__name__}.", remedy=_REMEDY)
    text = given.strip()
    if _ADDRESS_SERVER.fullmatch(text):
        return NameServerList(url=text)
    parts = [part for part in _SEPARATORS.split(text) if part]
    if not parts:
        raise ConfigError(f"Invalid name server {given!r}: it has no address.", remedy=_REMEDY)
    return NameServerList(tuple(dict.fromkeys(_address(part, given) for part in parts)))


def check_addresses(text: str) -> None:
    """Check a broker's ``namesrvAddr``: empty, or addresses. Brokers do not query address servers."""
    if text and parse_name_servers(text).url:
        raise ConfigError(
            f"Invalid name server {text!r}: a broker registers with addresses, not with an address server.",
            remedy=_REMEDY,
        )


def check_address(text: str) -> None:
    """Check a setting that is empty or one ``host:port``."""
    if text:
        _address(text, text, "address")


def _address(part: str, given: str, what: str = "name server") -> str:
    bare = part[7:].removesuffix("/") if part[:7].lower() == "http://" else part
    found = _ADDRESS.fullmatch(bare)
    problem = f"{part!r} is not host:port"
    if found is not None:
        host, port = found["v6"] or found["host"], found["port"]
        if not _is_host(host, is_v6=found["v6"] is not None):
            problem = f"{host!r} is not an IP address"
        elif port is None:
            problem = f"{part!r} has no port; RocketMQ's name servers listen on 9876"
        elif not 0 < int(port) < 65536:
            problem = f"port {port} is not from 1 to 65535"
        else:
            return f"[{host}]:{int(port)}" if found["v6"] else f"{host}:{int(port)}"
    elif bare.count(":") > 1 and "[" not in bare and "/" not in bare:
        problem = f"{part!r} has several colons; an IPv6 address stands in square brackets"
    where = "" if part == given.strip() else f" in {given[:200]!r}"
    raise ConfigError(f"Invalid {what}{where}: {problem}.", remedy=_REMEDY)


def _is_host(host: str, *, is_v6: bool) -> bool:
    """Whether a name may be one, and an IP address is valid."""
    if not is_v6 and not _NUMERIC_HOST.fullmatch(host):
        return True
    try:
        return isinstance(ip_address(host), IPv6Address) == is_v6
    except ValueError:
        return False
