"""Starts the proxy beside a broker, as the broker's settings say.

``grpcServerPort`` (the name of Apache's proxy; 8081) is the port, 0 any free one, -1 none; the address is the broker's
``bindAddress``. The libraries that it needs are imported here and not before: where they are not installed the broker
serves all the same, and says what to install.

Thread-safety: on the broker's event loop. Corresponds to org.apache.rocketmq.proxy.ProxyStartup in LOCAL mode.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_rocket.broker.server import Broker
from spark_rocket.errors import ConfigError

if TYPE_CHECKING:
    from spark_rocket.proxy.server import ProxyServer

_log = logging.getLogger(__name__)


async def start_proxy(broker: Broker) -> ProxyServer | None:
    """The endpoint of a started broker; None when it is to have none or cannot have one.

    ConfigError when the address cannot be had.
    """
    config = broker.config
    if config.grpc_server_port < 0:
        return None
    try:
        from spark_rocket.proxy.server import ProxyServer
    except ImportError as error:
        _log.warning(
            "No gRPC endpoint for RocketMQ 5's own clients: %s. Install what it needs (pip install grpcio protobuf), "
            "or set grpcServerPort=-1 (--no-grpc), and this is not said again.",
            error,
        )
        return None
    proxy = ProxyServer(broker, config.bind_address, config.grpc_server_port)
    try:
        await proxy.start()
    except ConfigError as error:
        raise ConfigError(
            error.message,
            remedy="Stop what listens there, choose another port with --grpc-port (0 takes a free one) or "
            "grpcServerPort, or leave the endpoint out with --no-grpc.",
        ) from None
    return proxy
