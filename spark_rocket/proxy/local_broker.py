"""The broker in this process, asked as a client of the classic protocol would ask it, without the wire between.

Requests go to the broker's own processors as the values that frames decode to, so that nothing the broker does is done
a second time here. A processor answers at once, or later by its channel's ``write``; both are the same to whoever asks.

A :class:`ProxyChannel` stands for one client at the broker: the client is registered by it in its groups, and what the
broker sends to a client (39, 40, 307, 309, 326) arrives at ``on_request``. A call that is held (a pop) has a channel of
its own, closed with the call, so that the broker forgets it.

Thread-safety: used on the broker's event loop only.
Corresponds to org.apache.rocketmq.proxy.service.message.LocalMessageService and …proxy.service.channel.SimpleChannel.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from spark_rocket.broker.server import Broker
from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import RemotingConnectError
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.protocol.command import Buffer, RemotingCommand
from spark_rocket.proxy.statuses import StatusError, status_code_of
from spark_rocket.remoting.server import Channel, Handler, failure_of, not_supported


class ProxyChannel(Channel):
    """A client of the proxy, or one of its calls, as the broker's processors see it."""

    __slots__ = ("_open", "_waiting", "on_request")

    rebalances = False  # POP shares out messages

    def __init__(self, remote_addr: str, local_addr: str = "127.0.0.1:0") -> None:
        self.remote_addr = remote_addr
        self.local_addr = local_addr
        self.attributes = {}
        self._open = True
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.on_request: Callable[[RemotingCommand], asyncio.Future[RemotingCommand] | None] | None = None

    @property
    def is_active(self) -> bool:
        return self._open

    @property
    def is_writable(self) -> bool:
        return self._open

    def write(self, command: RemotingCommand) -> None:
        """A late answer, or a request of the broker's that wants none."""
        if command.flag & 1:
            waiting = self._waiting.pop(command.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)
        elif self._open and self.on_request is not None:
            self.on_request(command)

    def invoke(self, request: RemotingCommand, timeout: float = 3.0) -> asyncio.Future[RemotingCommand]:
        """The broker asks the client. ``on_request`` gives the future of the answer, or None for none ever."""
        answer = self.on_request(request) if self._open and self.on_request is not None else None
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(
                RemotingConnectError(f"{self.remote_addr} is a gRPC client, which cannot be asked code {request.code}.")
            )
        return answer

    def close(self) -> None:
        """The client is gone: whoever waits for an answer waits in vain."""
        self._open = False
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.cancel()


class LocalBroker:
    """The broker's processors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handlers: Mapping[int, Handler] = broker.handlers
        self._opaques = itertools.count(1)

    @property
    def service(self) -> BrokerService:
        """For what is looked at and not asked: topics, groups, settings."""
        return self._broker.service

    async def ask(self, channel: ProxyChannel, code: int, ext: dict[str, str], body: Buffer = b"") -> RemotingCommand:
        """The answer, whatever its code is."""
        request = RemotingCommand.request(code, ext, body)
        request.opaque = opaque = next(self._opaques)
        try:
            answer = self._handlers.get(code, not_supported)(channel, request)
        except Exception as error:
            return failure_of(channel, request, error)
        if answer is not None:
            return answer
        waiting: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        channel._waiting[opaque] = waiting
        try:
            return await waiting
        finally:
            channel._waiting.pop(opaque, None)

    async def demand(
        self, channel: ProxyChannel, code: int, ext: dict[str, str], body: Buffer = b""
    ) -> RemotingCommand:
        """The answer of a request that succeeded. StatusError for any other."""
        answer = await self.ask(channel, code, ext, body)
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(status_code_of(answer.code), answer.remark or f"the broker answered {answer.code}")
        return answer

    def forget(self, channel: ProxyChannel) -> None:
        """A client, or a call that was held, has ended."""
        channel.close()
        self._broker.channel_closed(channel)
