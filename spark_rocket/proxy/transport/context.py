"""What a gRPC handler sees of its call, and how it fails: the same for every server that carries it.

A handler takes its :class:`Context` and serialized messages, and gives serialized messages:

=======================  ===================================================================================
call                     handler
=======================  ===================================================================================
unary                    ``async def handler(context, request: bytes) -> bytes``
stream out               ``async def handler(context, request: bytes)``, an asynchronous generator of bytes
stream in and out        ``async def handler(context, requests: AsyncIterator[bytes])``, a generator likewise
=======================  ===================================================================================

When the client cancels, its deadline passes or its connection breaks, the handler's task is cancelled.

Thread-safety: used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from spark_rocket.proxy.transport.memory_budgets import Batch


class GrpcCode(IntEnum):
    """gRPC's own status codes, those that are used here. What the messaging service says is in its answers instead."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """Ends a call with a status of gRPC's own."""

    def __init__(self, code: GrpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Context(Protocol):
    """One call."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the client sent along, by lower-case names; of several values of a name the last."""

    @property
    def peer(self) -> str:
        """The client's address, ``host:port``."""

    @property
    def deadline(self) -> float | None:
        """When the client stops waiting, by ``time.monotonic``; None for never."""

    status_code: int
    """The messaging service's code of the response, for the metrics: set by who makes the response."""

    def batch(self) -> Batch:
        """Room in memory for the messages that this call asks a broker for."""


class Rpc(NamedTuple):
    """A method: its handler and what of it is a stream."""

    handler: Callable[..., Any]
    request_streaming: bool = False
    response_streaming: bool = False
    failed: Callable[[Context, Exception], bytes] | None = None
    """The response for an error of authentication; without it the call ends with UNAUTHENTICATED."""
    busy: bytes = b""
    """The response when too many calls are in progress; without it the call ends with RESOURCE_EXHAUSTED."""


Authenticate = Callable[[Context, str], None]
"""Given a call's context and method, before its message is read: raises RpcError, or what ``Rpc.failed`` takes."""
