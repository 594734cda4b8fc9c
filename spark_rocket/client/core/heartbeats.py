"""Requests that register clients with brokers: heartbeats (34) and unregistrations (35).

Their failures are logged: the next heartbeat, or the end of the connection, corrects them.

Thread-safety: event loop only. Corresponds to MQClientAPIImpl.{sendHeartbeat, unregisterClient}.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import UnregisterClientRequestHeader

logger = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0


class Ask(Protocol):
    """Returns the response of a broker, given by its name or its address. RocketError without one."""

    def __call__(
        self,
        broker: str,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        seconds: float = ...,
        language: LanguageCode = ...,
    ) -> Coroutine[Any, Any, RemotingCommand]: ...


async def send_heartbeat(
    ask: Ask, broker: str, body: bytes, seconds: float, language: LanguageCode = LanguageCode.PYTHON
) -> None:
    """Send a heartbeat, given as the body of its request."""
    try:
        answer = await ask(broker, RequestCode.HEART_BEAT, {}, body, seconds, language)
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("broker %s rejected a heartbeat: %d, %s", broker, answer.code, answer.remark)
    except RocketError as error:
        logger.info("heartbeat to broker %s failed: %s", broker, error)


async def unregister(
    ask: Ask, broker: str, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Unregister a client from a group."""
    header = UnregisterClientRequestHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    try:
        await ask(broker, RequestCode.UNREGISTER_CLIENT, header.to_ext(), b"", UNREGISTER_TIMEOUT_S)
    except RocketError as error:  # the broker unregisters the client when the connection closes
        logger.info("client %s not unregistered from broker %s: %s", client_id, broker, error)
