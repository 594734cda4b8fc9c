"""Addresses that brokers advertise, and how they are reached from here: Docker, NAT, tunnels.

Entries are separated as name servers are, by commas, semicolons or blanks::

    172.17.0.3:10911=127.0.0.1:10911    one address
    broker-a:*=tunnel.example.org:*     all ports of a host, which stay the same

The entry of an address takes precedence over that of its host. Clients apply the map to each connection that they open
(``instance``): routes, messages and errors have the advertised addresses.

Immutable. Java's clients have nothing like it: there ``brokerIP1`` is set at the broker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError, RemotingConnectError
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.name_server_list import check_address

ADDRESS_MAP_VARIABLE = "ROCKETMQ_ADDRESS_MAP"
UNREACHABLE_REMEDY = (
    "Check the address and that the server is running. If a broker advertises an address that cannot be reached from"
    " here (Docker, NAT, a tunnel), map it: option addressMap, argument address_map, --address-map or"
    f" {ADDRESS_MAP_VARIABLE}, like 172.17.0.3:10911=127.0.0.1:10911, or set the broker's brokerIP1."
)
_ANY = "*"
_SEPARATORS = re.compile(r"[;,\s]+")
_REMEDY = (
    "Write ADVERTISED=REACHABLE, like 172.17.0.3:10911=127.0.0.1:10911 or broker-a:*=127.0.0.1:*, several with commas."
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AddressMap(FrozenValue):
    """Pairs of an advertised address and a reachable one; ports may be ``*`` in both."""

    entries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> AddressMap:
        """Parse the notation above. ConfigError for an invalid entry, or two for one address."""
        found: dict[str, str] = {}
        for part in filter(None, _SEPARATORS.split("=".join(map(str.strip, text.split("="))))):
            advertised, separator, reachable = part.partition("=")
            if not separator or advertised.endswith(":*") != reachable.endswith(":*"):
                raise ConfigError(f"Invalid entry {part!r} of the address map.", remedy=_REMEDY)
            key, value = _normal(advertised, part), _normal(reachable, part)
            if found.setdefault(key, value) != value:
                raise ConfigError(f"The address map has two entries for {advertised}.", remedy="Remove one of them.")
        return cls(tuple(found.items()))

    def __str__(self) -> str:
        return ",".join(f"{advertised}={reachable}" for advertised, reachable in self.entries)

    def target(self, address: str) -> str:
        """Return the address to connect to."""
        if not self.entries:
            return address
        try:
            host, port = parse_address(address)
        except RemotingConnectError:  # reported when it is used
            return address
        known = dict(self.entries)
        exact = known.get(format_address(host, port))
        if exact is not None:
            return exact
        other = known.get(_any_port(host))
        return address if other is None else f"{other.removesuffix(_ANY)}{port}"


def _normal(text: str, entry: str) -> str:
    any_port = text.endswith(":*")
    address = f"{text.removesuffix(_ANY)}1" if any_port else text
    try:
        check_address(address)
        host, port = parse_address(address)
    except (ConfigError, RemotingConnectError):
        raise ConfigError(
            f"Invalid entry {entry!r} of the address map: {text!r} is not host:port.", remedy=_REMEDY
        ) from None
    return _any_port(host) if any_port else format_address(host, port)


def _any_port(host: str) -> str:
    return f"{format_address(host, 1).removesuffix('1')}{_ANY}"


NO_ADDRESS_MAP = AddressMap()
