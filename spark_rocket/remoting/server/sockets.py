"""Sockets of a server: the listening one, and the process's budget of descriptors for connections.

The system assigns the lowest free number to a new descriptor. So the number of a connection is a lower bound for the
descriptors in use, for any purpose, and nothing needs to be counted. A connection with a number above
:func:`connections_possible` is rejected: remoting, VIP, HA, gRPC, metrics and the process's own requests share the
budget. The rest of the limit is for files, name servers and accepting.

Thread-safety: ``bind``: event loop; the others: any thread. Corresponds to NettyRemotingServer's bind;
Apache's broker has no budget and stops accepting at EMFILE.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import sys
from typing import Protocol

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address

_often = RateLimited(logging.getLogger(__name__))

_MIN_RESERVE = 32


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def connections_possible() -> int:
    """Return the number of descriptors above which connections are rejected: nine tenths of the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - max(soft // 10, _MIN_RESERVE), soft // 2, 1)


def leaves_reserve(connection: HasFileno | None, name: str, peer: str) -> bool:
    """Whether a connection of ``peer`` to the port ``name`` is within the budget; logged if it is not."""
    number, possible = -1 if connection is None else connection.fileno(), connections_possible()
    if number < possible:
        return True
    _often.warning(
        name,
        "The %s rejected the connection of %s: more than %d descriptors of this process are in use, the rest is "
        "reserved for files. Raise the limit of open files (ulimit -Hn).",
        name,
        peer,
        possible,
    )
    return False


async def bind(host: str, port: int, name: str, port_options: str, *, reuse_port: bool = False) -> socket.socket:
    """Return a socket bound to the address, not yet listening; ``name`` and ``port_options`` are for the error.

    ``reuse_port``: other sockets may have the same address (SO_REUSEPORT).
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(host, port, error, name, port_options) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise cannot_listen(host, port, error, name, port_options) from error
    return sock


def cannot_listen(host: str, port: int, error: OSError, name: str, port_options: str = "") -> ConfigError:
    """Return the error for an unavailable port; ``port_options`` names the settings of the port."""
    where = format_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"The {name} cannot listen on {where}: the port is in use.",
            remedy=f"Stop the process that listens there, or choose another port{port_options} (0 selects a free one).",
        )
    return ConfigError(
        f"The {name} cannot listen on {where}: {error.strerror or error}.",
        remedy="Use an address of this host, for example 127.0.0.1 or 0.0.0.0.",
    )
