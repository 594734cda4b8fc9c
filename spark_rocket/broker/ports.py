"""The ports that a broker has beside ``listenPort``, as Apache's: two below it, and the one for slaves.

Thread-safety: the event loop's thread. Corresponds to BrokerController's fastRemotingServer and HAService's port.
"""

from __future__ import annotations

import logging
import socket

from spark_rocket.broker.replication.master import bind_ha_port
from spark_rocket.broker.state.config import BrokerConfig, BrokerRole
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.server.server import RemotingServer

_log = logging.getLogger(__name__)

_VIP_STEP = 2


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
