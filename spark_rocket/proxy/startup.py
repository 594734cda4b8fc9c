"""Starts the proxy beside a broker, as the broker's settings say.

``grpcServerPort`` (the name of Apache's proxy) is the port, 0 any free one, -1 none; the address is the broker's
``bindAddress``. It is -1 unless set, as Apache's broker has no such port; ``rocket up`` sets it to 8081. Where protobuf
is not installed the broker serves all the same, and says what to install.

Thread-safety: on the broker's event loop. Corresponds to org.apache.rocketmq.proxy.ProxyStartup in LOCAL mode.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
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
    if not _is_installed("google.protobuf"):
        _log.warning(
            "No gRPC endpoint for RocketMQ 5's own clients: protobuf is not installed. Install it (pip install "
            "protobuf), or set grpcServerPort=-1 (--no-grpc), and this is not said again."
        )
        return None
    from spark_rocket.proxy.server import ProxyServer  # not for those who have none

    proxy = ProxyServer(broker, config.bind_address, config.grpc_server_port)
    try:
        await proxy.start()
    except ConfigError as error:
        raise ConfigError(
            error.message,
            remedy=f"{error.remedy} Or leave the endpoint out: --no-grpc.",
        ) from None
    return proxy


def _is_installed(module: str) -> bool:
    """Without importing it: that takes longer than the broker's start."""
    try:
        return find_spec(module) is not None
    except ImportError:  # not even the package that it is in
        return False
