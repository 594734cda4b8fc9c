"""Addresses as RocketMQ writes them: ``host:port``, an IPv6 host in square brackets, a name that DNS knows.

Pure and stateless. Corresponds to RemotingHelper.string2SocketAddress and parseSocketAddressAddr.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.errors import RemotingConnectError


def parse_address(address: str) -> tuple[str, int]:
    """``"[::1]:9876"`` -> ``("::1", 9876)``. An address that is none can be reached by no retry: not retriable."""
    host, separator, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RemotingConnectError(
            f"{address!r} is not an address.",
            remedy="Write it as host:port, for example 127.0.0.1:9876 or [::1]:9876.",
            retriable=False,
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_peer(name: Any) -> str:
    """What ``getpeername``/``getsockname`` gave, as an address; a peer that is already gone has none."""
    return format_address(str(name[0]), int(name[1])) if name else "unknown:0"
