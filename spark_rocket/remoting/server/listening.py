"""A server's listening socket: one, so that port 0 means one port; ConfigError says what to do when it cannot be had.

Thread-safety: the event loop's thread. Corresponds to NettyRemotingServer's bind.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address


async def bind(host: str, port: int, name: str, port_options: str, *, reuse_port: bool = False) -> socket.socket:
    """A socket bound to the address, which does not listen yet; ``name`` and ``port_options`` are for the error.

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


def cannot_listen(host: str, port: int, error: OSError, name: str, port_options: str) -> ConfigError:
    """Why, and what to do."""
    where = format_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"The {name} cannot listen on {where}: the port is in use.",
            remedy=f"Stop the process that listens there, or choose another port{port_options} (0 takes a free one).",
        )
    return ConfigError(
        f"The {name} cannot listen on {where}: {error.strerror or error}.",
        remedy="Give a host that is an address of this machine, for example 127.0.0.1 or 0.0.0.0.",
    )


def own_ip() -> str:
    """The address of the interface that leads out; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
