"""The addresses and ports of a broker: what clients are told, and the ports beside ``listenPort``, as Apache's.

There are two more ports: the VIP port two below ``listenPort``, and the HA port for slaves.

Thread-safety: the event loop's thread. Corresponds to BrokerConfig.brokerIP1, BrokerController's fastRemotingServer and
HAService's port.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address

from spark_rocket.broker.replication.master import bind_ha_port
from spark_rocket.broker.state.config import BrokerConfig, BrokerRole
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.server.server import RemotingServer
from spark_rocket.remoting.server.sockets import own_ip

_log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::", "")
_VIP_STEP = 2


def advertised_ip(config: BrokerConfig) -> str:
    """The address that clients are given: ``brokerIP1``, else the one listened on, else this machine's own."""
    host = config.broker_ip1 or config.bind_address
    if host in _WILDCARDS:
        return own_ip()
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        # The first part of an AF_INET address is text; the checker knows all families at once.
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]  # text, of IPv4
    except OSError as error:
        name = "brokerIP1" if config.broker_ip1 else "bindAddress"
        raise ConfigError(
            f"{name}={host} is no address and cannot be resolved: {error.strerror or error}.",
            remedy="Give an IP address of this machine that clients can reach.",
        ) from error


def called_address(address: str, config: BrokerConfig) -> str:
    """A server of this process, listening on ``bindAddress`` too, as processes on other machines call it.

    ``address``: ``host:port`` as processes on this machine call it. It is the answer unless every interface is listened
    on: then the host is the one that the broker advertises.
    """
    if config.bind_address not in _WILDCARDS:
        return address
    return format_address(advertised_ip(config), parse_address(address)[1])


async def bind_vip_port(config: BrokerConfig, server: RemotingServer) -> None:
    """Bind the port two below ``listenPort``, with all that the first one has: accounts, TLS, limits, requests.

    Where it is taken the broker serves all the same. A ``listenPort`` of 0 has none: a port beside a free one is not
    known to be free.
    """
    port = config.listen_port
    if not config.vip_channel_enable or port <= _VIP_STEP:
        return
    try:
        await server.bind_second(-_VIP_STEP, ", two below listenPort")
    except ConfigError as error:
        _log.warning(
            "%s Until then slaves of Apache's make get this broker's log, but not its topics, groups and offsets, "
            "which they ask for on port %d; nor can Java clients with vipChannelEnabled=true send. "
            "vipChannelEnable=false leaves that port out.",
            error,
            port - _VIP_STEP,
        )


def bind_port_for_slaves(config: BrokerConfig, port: int) -> socket.socket | None:
    """The socket for slaves. A master that nobody said should have any does without when the port is taken."""
    wanted = config.ha_listen_port or ((port + 1) & 0xFFFF if config.listen_port else 0)
    try:
        return bind_ha_port(config.bind_address, wanted)
    except ConfigError as error:
        if config.ha_listen_port or config.broker_role is not BrokerRole.ASYNC_MASTER:
            raise
        _log.warning("%s Until then no slave can follow this broker.", error)
        return None
