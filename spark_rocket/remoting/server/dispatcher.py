"""Dispatches requests to handlers by their code, and writes the responses.

Corresponds to org.apache.rocketmq.remoting.netty.NettyRemotingAbstract.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TypeAlias

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError, RocketError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.requests import RequestType
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting import failures
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.request_queue import Refuse
from spark_rocket.remoting.session import pieces_of

_FLUSH_BYTES = 256 * 1024
"""Responses to one read are written together, up to this size."""

logger = logging.getLogger(__name__)
_often = RateLimited(logger)

Handler: TypeAlias = Callable[[Channel, RemotingCommand], RemotingCommand | None]


def not_supported(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
    """The default handler."""
    return failures.not_supported(request)


class RequestDispatcher:
    """The handlers of a server. Requests beyond the bounds of their code are rejected before."""

    def __init__(
        self, handlers: Mapping[int, Handler], default_handler: Handler, request_types: Mapping[int, RequestType]
    ) -> None:
        self.handlers = dict(handlers)
        self._default_handler = default_handler
        self._request_types = request_types

    def serve(self, channel: Channel, frames: list[memoryview], time_slice: float, refuse: Refuse | None = None) -> int:
        """Process frames until the peer is behind with reading or the time is up; return the number processed.

        ``refuse`` returns the responses to rejected requests.
        """
        responses: list[Buffer] = []
        size = 0
        until = perf_counter() + time_slice if len(frames) > 1 else 0.0
        for index, frame in enumerate(frames):
            if index and perf_counter() >= until:
                channel.write_all(responses)
                return index
            try:
                command = RemotingCommand.decode(frame)
            except ProtocolError as error:
                channel.write_all(responses)
                channel.close_as_invalid(error)
                return len(frames)
            if command.is_response:
                channel.responded(command)
                continue
            buffers = self._response_to(channel, command, len(frame), refuse)
            if not buffers:
                continue
            responses += buffers
            size += len(buffers[-1])
            if size > _FLUSH_BYTES:
                channel.write_all(responses)
                responses, size = [], 0
                if channel.is_paused:
                    return index + 1
        channel.write_all(responses)
        return len(frames)

    def _response_to(
        self, channel: Channel, command: RemotingCommand, frame_size: int, refuse: Refuse | None
    ) -> Sequence[Buffer]:
        """Return the encoded response to a request, nothing if there is none yet."""
        try:
            response = None if refuse is None else refuse(command)
            if response is None:
                row = self._request_types.get(command.code)
                if row is not None:
                    row.check(command, frame_size)
                response = self.handlers.get(command.code, self._default_handler)(channel, command)
            if response is None or command.is_oneway:
                return ()
            return pieces_of(response)
        except Exception as error:
            failure = failure_of(channel, command, error)
            return () if command.is_oneway else pieces_of(failure)


def failure_of(channel: Channel, command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the response to a request whose handler raised an error; unexpected errors are logged."""
    if isinstance(error, RocketError):
        logger.debug("code %d from %s failed: %s", command.code, channel, error)
    else:
        key = (command.code, type(error))
        _often.log(logging.ERROR, key, "code %d from %s failed", command.code, channel, exc_info=error)
    return failures.failed(command, error)
