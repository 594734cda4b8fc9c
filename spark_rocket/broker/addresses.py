"""A broker's advertised address, and its ports other than ``listenPort``, as in Apache's broker.

There are two more ports: the VIP port two below ``listenPort``, and the HA port for slaves.

Corresponds to BrokerConfig.brokerIP1, BrokerController's fastRemotingServer and HAService's port.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address

from spark_rocket.broker.replication.master import bind_ha_port
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.durability import BrokerRole
from spark_rocket.remoting.address import format_address, own_ip, parse_address
from spark_rocket.remoting.server.remoting_server import RemotingServer

_log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::", "")
_VIP_STEP = 2


def advertised_ip(config: BrokerConfig) -> str:
    """The address that clients use: ``brokerIP1``, else ``bindAddress``, else this machine's own for a wildcard."""
    host = config.broker_ip1 or config.bind_address
    if host in _WILDCARDS:
        return own_ip()
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        # typeshed's type covers all address families; for AF_INET this is always a str.
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]  # str for IPv4
    except OSError as error:
        name = "brokerIP1" if config.broker_ip1 else "bindAddress"
        raise ConfigError(
            f"Invalid {name}={host}: neither an IP address nor a host name that resolves: {error.strerror or error}.",
            remedy="Set an IP address of this machine that clients can reach.",
        ) from error


def called_address(address: str, config: BrokerConfig) -> str:
    """The address, for other machines, of another server of this process that also listens on ``bindAddress``.

    ``address``: ``host:port`` for processes on this machine. It is returned unchanged unless ``bindAddress`` is a
    wildcard: then the host is replaced with the one that the broker advertises.
    """
    if config.bind_address not in _WILDCARDS:
        return address
    return format_address(advertised_ip(config), parse_address(address)[1])


async def bind_vip_port(config: BrokerConfig, server: RemotingServer) -> None:
    """Bind the port two below ``listenPort``, with the same accounts, TLS, limits and requests.

    If the port is in use, the broker serves without it. With ``listenPort`` 0 there is no VIP port: the port two below
    a free port may be in use.
    """
    port = config.listen_port
    if not config.vip_channel_enable or port <= _VIP_STEP:
        return
    try:
        await server.bind_second(-_VIP_STEP, ", two below listenPort")
    except ConfigError as error:
        _log.warning(
            "%s Until then, Apache slaves copy this broker's log, but not its topics, groups and offsets, which they "
            "request on port %d; and Java clients with vipChannelEnabled=true cannot send. Set vipChannelEnable=false "
            "to run without that port.",
            error,
            port - _VIP_STEP,
        )


def bind_port_for_slaves(config: BrokerConfig, port: int) -> socket.socket | None:
    """Bind the HA port for slaves; None if it is in use and the configuration does not require slaves."""
    ha_port = config.ha_listen_port or ((port + 1) & 0xFFFF if config.listen_port else 0)
    try:
        return bind_ha_port(config.bind_address, ha_port)
    except ConfigError as error:
        if config.ha_listen_port or config.broker_role is not BrokerRole.ASYNC_MASTER:
            raise
        _log.warning("%s Until then, slaves cannot replicate this broker.", error)
        return None
