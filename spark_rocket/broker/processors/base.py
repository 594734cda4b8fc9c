"""Base of the processors: their table of handlers, and deferred responses.

A processor is a class whose methods handle request codes. :func:`answers` declares the codes of a method::

    class QueryMessageProcessor(Processor):
        @answers(RequestCode.VIEW_MESSAGE_BY_ID)
        def view_message(self, channel, request): ...

A handler returns the response, or None if it writes the response later or the request has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.server import Handler, failure_of

_Method = TypeVar("_Method", bound=Callable[..., object])


def answers(*codes: RequestCode) -> Callable[[_Method], _Method]:
    """Make a method of a :class:`Processor` the handler of these request codes."""

    def mark(method: _Method) -> _Method:
        vars(method)["request_codes"] = codes
        return method

    return mark


class Processor:
    """A family of request handlers on one broker."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def handlers(self) -> dict[int, Handler]:
        """The handler of each request code."""
        return {
            int(code): getattr(self, name)
            for name, member in vars(type(self)).items()
            for code in getattr(member, "request_codes", ())
        }

    def relay_later(
        self, channel: Channel, request: RemotingCommand, work: Coroutine[None, None, RemotingCommand], weight: int
    ) -> None:
        """Like :meth:`answer_later`, for work that waits for a client; RefusedError if too many requests do.

        ``weight``: the number of clients that it waits for, and the KiB that it keeps in memory.
        """
        relays = self._service.relays
        try:
            relays.take(channel, weight)
        except RefusedError:
            work.close()
            raise

        async def relay() -> RemotingCommand:
            try:
                return await work
            finally:
                relays.release(channel, weight)

        self.answer_later(channel, request, relay())

    def answer_in_steps(
        self,
        channel: Channel,
        request: RemotingCommand,
        work: Coroutine[None, None, RemotingCommand],
        file: str | None = None,
    ) -> None:
        """Like :meth:`answer_later`, for work whose length depends on the broker's state: see broker/steps.py.

        One of them runs at a time, so that their memory is bounded too. RefusedError if too many are queued.
        ``file``: respond when this file has the changes that the work has made.
        """
        service = self._service
        try:
            service.large_responses.take(channel)
        except RefusedError:
            work.close()
            raise
        request.body = b""  # the view would keep the complete receive buffer in memory

        async def in_turn() -> RemotingCommand:
            try:
                async with service.one_large_response:
                    if file is None and not channel.is_active:
                        return RemotingCommand.response(request)  # is not sent
                    answer = await work
                return answer if file is None else await service.saved(answer, file)
            finally:
                work.close()  # it may not have begun
                service.large_responses.release(channel)

        self.answer_later(channel, request, in_turn())

    def answer_later(self, channel: Channel, request: RemotingCommand, work: Awaitable[RemotingCommand]) -> None:
        """Write the response when ``work`` returns it. An exception is handled like one of a handler."""

        async def answer() -> None:
            try:
                response = await work
            except Exception as error:
                response = failure_of(channel, request, error)
            if not request.is_oneway:
                channel.write(response)

        self._service.spawn(answer())


def answer_held(channel: Channel, request: RemotingCommand, handle: Callable[[], RemotingCommand | None]) -> None:
    """Run a held request again and write its response. An exception is handled like one of the first run."""
    try:
        answer = handle()
    except Exception as error:
        answer = failure_of(channel, request, error)
    if answer is not None and not request.is_oneway:
        channel.write(answer)
