"""What the processors share: the table of their handlers, and answers that are written later.

A processor is a class whose methods answer request codes. :func:`answers` names the codes of a method::

    class QueryMessageProcessor(Processor):
        @answers(RequestCode.VIEW_MESSAGE_BY_ID)
        def view_message(self, channel, request): ...

A handler returns the response, or None if it writes the response later or the request has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spark_rocket.broker.service import BrokerService
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

    def answer_later(self, channel: Channel, request: RemotingCommand, work: Awaitable[RemotingCommand]) -> None:
        """Write the answer when ``work`` has it; an exception is answered as one of a handler is."""

        async def answer() -> None:
            try:
                response = await work
            except Exception as error:
                response = failure_of(channel, request, error)
            if not request.is_oneway:
                channel.write(response)

        self._service.spawn(answer())


def answer_held(channel: Channel, request: RemotingCommand, handle: Callable[[], RemotingCommand | None]) -> None:
    """Run a held request again. An exception is answered as the server answers one of a first pass."""
    try:
        answer = handle()
    except Exception as error:
        answer = failure_of(channel, request, error)
    if answer is not None and not request.is_oneway:
        channel.write(answer)
