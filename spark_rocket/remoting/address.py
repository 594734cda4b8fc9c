"""Addresses in RocketMQ's format: ``host:port``, with an IPv6 host in square brackets, or a DNS name.

Pure and stateless. Corresponds to RemotingHelper.string2SocketAddress and parseSocketAddressAddr.
"""

from __future__ import annotations

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
