"""The registration of clients at brokers: heartbeats (34) and unregistrations (35).

Their failures are logged: the next heartbeat, or the end of the connection, corrects them.

Thread-safety: event loop only. Corresponds to MQClientAPIImpl.{sendHeartbeat, unregisterClient}.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0


async def register(broker: str, what: str, request: Awaitable[RemotingCommand]) -> None:
    """Wait for the response of a broker, given by its name or address, to a heartbeat or an unregistration."""
    try:
        response = await request
        if response.code != ResponseCode.SUCCESS:
            logger.warning("broker %s rejected %s: %d, %s", broker, what, response.code, response.remark)
    except RocketError as error:
        logger.info("%s at broker %s failed: %s", what, broker, error)
