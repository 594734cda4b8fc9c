"""Addresses in RocketMQ's format: ``host:port``, with an IPv6 host in square brackets, or a DNS name.

Stateless. Corresponds to RemotingHelper.string2SocketAddress and parseSocketAddressAddr.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

from spark_rocket.errors import RemotingConnectError


def parse_address(address: str) -> tuple[str, int]:
    """``"[::1]:9876"`` -> ``("::1", 9876)``. The error for an invalid address is not retriable."""
    host, separator, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RemotingConnectError(
            f"Invalid address {address!r}.",
            remedy="Use host:port, for example 127.0.0.1:9876 or [::1]:9876.",
            retriable=False,
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_peer(name: Any) -> str:
    """Format the result of ``getpeername`` or ``getsockname``; it is empty if the peer has disconnected."""
    return format_address(str(name[0]), int(name[1])) if name else "unknown:0"


def own_ip(peer: str = "192.0.2.1:9") -> str:
    """Return the address of the interface that routes to a peer, by default the outgoing one; no packet is sent."""
    host, port = parse_address(peer)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
