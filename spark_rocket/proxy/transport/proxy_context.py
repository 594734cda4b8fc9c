"""The interface between gRPC handlers and servers: the context of a call, and errors.

A handler receives its :class:`ProxyContext` and serialized messages, and returns serialized messages:

=======================  ===================================================================================
call                     handler
=======================  ===================================================================================
unary                    ``async def handler(context, request: bytes) -> bytes``
stream out               ``async def handler(context, request: bytes)``, an asynchronous generator of bytes
stream in and out        ``async def handler(context, requests: AsyncIterator[bytes])``, a generator likewise
=======================  ===================================================================================

When the client cancels, its deadline expires or its connection breaks, the handler's task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from spark_rocket.proxy.transport.message_bytes import Batch


class GrpcCode(IntEnum):
    """The gRPC status codes in use. Codes of the messaging service are in its responses instead."""

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
    """Ends a call with a gRPC status."""

    def __init__(self, code: GrpcCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ProxyContext(Protocol):
    """A call."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The client's metadata by lower-case names, with the last value of each name."""

    @property
    def peer(self) -> str:
        """The client's address, ``host:port``."""

    @property
    def deadline(self) -> float | None:
        """The deadline in ``time.monotonic`` seconds; None for no deadline."""

    status_code: int
    """The messaging service's code of the response, for the metrics; set by the handler."""

    def batch(self) -> Batch:
        """Return the room in memory for the messages that this call requests from a broker."""


class Rpc(NamedTuple):
    """A method: its handler, and which sides are streams."""

    handler: Callable[..., Any]
    request_streaming: bool = False
    response_streaming: bool = False
    failed: Callable[[ProxyContext, Exception], bytes] | None = None
    """Creates the response to an authentication error; without it the call ends with UNAUTHENTICATED."""


Authenticate = Callable[[ProxyContext, str], Awaitable[None]]
"""Called with context and method before the message is read. Raises RpcError, or an error for ``Rpc.failed``."""
