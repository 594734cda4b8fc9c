"""A recorder of the requests that servers in the test's process handle, whatever part of a client sent them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.dispatcher import Handler

_OF_BROKERS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.GET_BROKER_MEMBER_GROUP,
    }
)


@contextmanager
def recording(note: Callable[[RemotingCommand, Any], None]) -> Iterator[None]:
    """Call ``note(request, server)`` for each request of a client to servers that are started in the block.

    ``server`` is a BrokerParts or a NamesrvProcessor; the thread is the server's.
    """
    with pytest.MonkeyPatch.context() as patch:
        for kind in (BrokerParts, NamesrvProcessor):
            patch.setattr(kind, "handlers", _noting(kind.handlers, note))
        yield


def _noting(
    make: Callable[..., dict[int, Handler]], note: Callable[[RemotingCommand, Any], None]
) -> Callable[..., dict[int, Handler]]:
    """Wrap a server's function that makes its handlers."""

    def handlers(server: Any) -> dict[int, Handler]:
        return {code: noting(handler, server) for code, handler in make(server).items()}

    def noting(handler: Handler, server: Any) -> Handler:
        def handle(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            if request.code not in _OF_BROKERS:
                note(request, server)
            return handler(channel, request)

        return handle

    return handlers


def text_of(request: RemotingCommand) -> str:
    """The code, the values of the fields, and the body of a request."""
    body = bytes(request.body).decode("utf-8", "replace")
    return f"{RequestCode(request.code).name} {list(request.ext_fields.values())} {body}"
