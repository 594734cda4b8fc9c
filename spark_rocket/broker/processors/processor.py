"""A processor: the handlers of a family of request codes.

A processor is a class whose methods handle request codes. Its fields are the parts of the broker that it uses, by the
names that they have in :class:`BrokerParts`, which hands it these and no others (:func:`wired`). :func:`handles`
declares the codes of a method::

    @dataclass(eq=False, kw_only=True)
    class DeletionProcessor(Processor):
        store: MessageStore
        clock: Callable[[], int]

        @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
        def delete_expired_log(self, channel, request): ...

A handler returns the response, or None if it sends the response later (:class:`Responses`) or the request has
none. Where the length of the work depends on the broker's state, the handler only checks the request and returns the
steps (:func:`handles_in_steps`), which run after those of earlier requests and without the request's body. So a refusal
does not wait for its turn and takes no place in the queue. Refusals are :class:`RefusedError` with the response code of
Apache's broker in the same case. Their messages are the remarks that clients display.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from spark_rocket.broker.responses import Responses
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import Handler

Steps: TypeAlias = Coroutine[Any, Any, RemotingCommand]
"""The work for a response, which lets the event loop run in between: see broker/steps.py."""

_Method = TypeVar("_Method", bound=Callable[..., RemotingCommand | None])
_Checker = TypeVar("_Checker", bound=Callable[..., Steps])


def handles(*codes: int) -> Callable[[_Method], _Method]:
    """Make a method of a :class:`Processor` the handler of these request codes."""

    def mark(method: _Method) -> _Method:
        vars(method)["request_codes"] = codes
        return method

    return mark


def handles_in_steps(*codes: int, saves: str | None = None) -> Callable[[_Checker], _Checker]:
    """Like :func:`handles`, for a method that returns steps. ``saves``: the file that they change."""

    def mark(method: _Checker) -> _Checker:
        vars(method).update(request_codes=codes, saves=saves)
        return method

    return mark


class Processor:
    """A family of request handlers on one broker; each family is a dataclass."""

    def handlers(self, responses: Responses) -> dict[int, Handler]:
        """The handler of each code. ``responses``: runs the steps of those that return steps."""
        found: dict[int, Handler] = {}
        for name, member in vars(type(self)).items():
            for code in getattr(member, "request_codes", ()):
                method = getattr(self, name)
                found[int(code)] = _in_steps(method, member.saves, responses) if hasattr(member, "saves") else method
        return found


def _in_steps(check: Callable[[Channel, RemotingCommand], Steps], saves: str | None, responses: Responses) -> Handler:
    def handle(channel: Channel, request: RemotingCommand) -> None:
        responses.in_steps(channel, request, check(channel, request), saves)

    return handle


async def encoded(
    request: RemotingCommand, ext: dict[str, str] | None, snapshot: Callable[[], object]
) -> RemotingCommand:
    """Respond with a snapshot that any thread may take; taken and encoded on a worker thread."""
    body = await asyncio.to_thread(lambda: dumps_fastjson(snapshot()))
    return RemotingCommand.response(request, 0, None, ext, body)
