"""The first bytes of a connection: plaintext, TLS, or a PROXY protocol header (version 1 or 2) of a load balancer.

===========================================  ==============================================
first bytes                                  connection
===========================================  ==============================================
``16``                                       TLS, a ClientHello
``"PROXY "`` … CR LF, at most 107 bytes      PROXY protocol, version 1
``0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A`` …    PROXY protocol, version 2
anything else                                plaintext
===========================================  ==============================================

Pure and stateless. Corresponds to org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.tls.problems import HANDSHAKE

PLAIN, TLS, PROXIED, MORE, BAD = range(5)

MAX_HEADER_BYTES = 536
"""The longest PROXY header that is accepted."""
_V1 = re.compile(
    rb"PROXY (?:TCP[46] ([0-9a-fA-F.:]{2,39}) [0-9a-fA-F.:]{2,39} ([0-9]{1,5}) [0-9]{1,5}|UNKNOWN[^\r]*)\r\n"
)
_V1_MAX_BYTES = 107
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD = 16


def classify(start: bytes) -> tuple[int, int, str | None]:
    """Return PLAIN, TLS, BAD, MORE (too few bytes), or PROXIED with the header's length and the client's address.

    The address is None for the load balancer's own connections.
    """
    if not start:
        return MORE, 0, None
    if start[0] == HANDSHAKE:
        return TLS, 0, None
    if start.startswith(b"PROXY "):
        found = _V1.match(start)
        if found is None or found.end() > _V1_MAX_BYTES:
            return (BAD if b"\r\n" in start or len(start) > _V1_MAX_BYTES else MORE), 0, None
        if not found[1]:
            return PROXIED, found.end(), None
        address = _address(found[1].decode(), int(found[2]))
        return (PROXIED, found.end(), address) if address else (BAD, 0, None)
    if start.startswith(_V2):
        return _classify_v2(start)
    if b"PROXY ".startswith(start) or _V2.startswith(start):
        return MORE, 0, None
    return PLAIN, 0, None


def _address(host: str, port: int) -> str | None:
    try:
        return format_address(str(ip_address(host)), port) if port < 65_536 else None
    except ValueError:
        return None


def _classify_v2(start: bytes) -> tuple[int, int, str | None]:
    if len(start) < _V2_HEAD:
        return MORE, 0, None
    command, family = start[12], start[13]
    end = _V2_HEAD + int.from_bytes(start[14:16], "big")
    if command >> 4 != 2 or end > MAX_HEADER_BYTES:
        return BAD, 0, None
    if len(start) < end:
        return MORE, 0, None
    address = None
    if command & 0x0F == 1:  # otherwise LOCAL: a health check of the load balancer
        for number, kind, size in ((1, socket.AF_INET, 4), (2, socket.AF_INET6, 16)):
            if family >> 4 == number and end >= _V2_HEAD + 2 * size + 4:
                host = socket.inet_ntop(kind, start[_V2_HEAD : _V2_HEAD + size])
                port = int.from_bytes(start[_V2_HEAD + 2 * size : _V2_HEAD + 2 * size + 2], "big")
                address = format_address(host, port)
    return PROXIED, end, address


def host_of(peer: str) -> str:
    """``"[::1]:8081"`` -> ``"::1"``."""
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")


class TrustedAddresses:
    """Addresses and networks (``10.0.0.7``, ``10.0.0.0/8``, ``fd00::/8``) whose PROXY headers are accepted."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry.strip(), strict=False))
            except ValueError:
                raise ConfigError(
                    f"Invalid address {entry!r} in proxyProtocolTrustedAddresses.",
                    remedy="Use IP addresses or networks such as 10.0.0.0/8, separated by commas.",
                ) from None

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        address = ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)
