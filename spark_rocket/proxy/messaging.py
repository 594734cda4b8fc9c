"""The methods of the messaging service, from bytes to bytes.

Methods are grouped in families, like the processors of a broker. A family returns its handlers by method name. Handlers
use the messages of definitions.py:

=======================  ===================================================================================
unary                    ``async def handler(context, request) -> response``
stream out               ``async def handler(context, request)``, an asynchronous generator of responses
stream in and out        ``async def handler(context, requests)``, likewise
=======================  ===================================================================================

A request that fails with :class:`StatusError` gets a response with only that status. Internal errors are logged and
get INTERNAL_SERVER_ERROR. Calls without a client id are refused earlier. The bounds of a request (method_types.py)
are checked before its method runs: the number of its fields before it is parsed, the entries of its collections after.

Corresponds to org.apache.rocketmq.proxy.grpc.v2.GrpcMessagingApplication.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RemotingTimeoutError, RemotingTooMuchRequestError, RocketError
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError, status, status_code_of
from spark_rocket.proxy.method_types import METHODS, MethodType
from spark_rocket.proxy.transport.limits import MAX_FIELDS, has_more_fields
from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, Rpc, RpcError

_often = RateLimited(logging.getLogger(__name__))

CLIENT_ID = "x-mq-client-id"
MAX_CLIENT_ID_CHARACTERS = 1_024


class Family:
    """A group of methods."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Return the handlers by method name."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop timers and tasks, after the server has stopped."""


Authorize = Callable[[ProxyContext, str, MethodType, Any], Awaitable[None]]
"""Called with the full name of the request's message, and the row of the method."""


def rpcs(
    families: Iterable[Family], authorize: Authorize | None = None, max_fields: int = MAX_FIELDS
) -> dict[str, Rpc]:
    """Return the service's methods for a server; methods without a handler are UNIMPLEMENTED.

    ``authorize`` is called before the handler and raises StatusError for a request that is not allowed. A request with
    more than ``max_fields`` fields is refused without parsing. The server authenticates calls before.
    """
    handlers: dict[str, Callable[..., Any]] = {}
    for family in families:
        handlers |= family.handlers()
    found: dict[str, Rpc] = {}
    service = definitions.messaging().descriptor.services_by_name["MessagingService"]
    for method in service.methods:
        handler = handlers.pop(method.name, None)
        if handler is not None:
            row = METHODS[method.name]
            found[f"/{service.full_name}/{method.name}"] = _Method(
                method, handler, authorize or _let_pass, replace(row, max_fields=min(row.max_fields, max_fields))
            ).rpc()
    if handlers:
        raise ValueError(f"Unknown methods of the protocol: {sorted(handlers)}.")
    return found


async def _let_pass(context: ProxyContext, rpc: str, method: MethodType, request: Any) -> None:
    """No access control."""


class _Method:
    """A method: parses requests, calls the handler, serializes responses."""

    def __init__(self, method: Any, handler: Callable[..., Any], authorize: Authorize, row: MethodType) -> None:
        self._method = method
        self._handler = handler
        self._authorize = authorize
        self._row = row
        self._rpc = method.input_type.full_name
        self._request_class = getattr(definitions, method.input_type.name)
        self._response_class = getattr(definitions, method.output_type.name)

    def rpc(self) -> Rpc:
        method = self._method
        if method.client_streaming:
            return Rpc(self._stream, request_streaming=True, response_streaming=True, failed=self._stream_failed)
        handler = self._stream if method.server_streaming else self._unary
        return Rpc(handler, response_streaming=method.server_streaming, failed=self._failed)

    async def _request_of(self, context: ProxyContext, raw: bytes) -> Any:
        most = self._row.max_fields
        if has_more_fields(raw, self._request_class, most):
            raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"the request has more than {most} fields")
        try:
            request = self._request_class.FromString(raw)
        except DecodeError as error:
            name = self._request_class.__name__
            raise RpcError(GrpcCode.INVALID_ARGUMENT, f"invalid {name}: {error}") from None
        self._row.check(request)
        await self._authorize(context, self._rpc, self._row, request)
        return request

    async def _requests_of(self, context: ProxyContext, raws: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for raw in raws:
            yield await self._request_of(context, raw)

    async def _unary(self, context: ProxyContext, raw: bytes) -> bytes:
        try:
            responding = self._handler(context, await self._request_of(context, raw))
            del raw  # parsed: do not hold the bytes too while the handler waits for a broker
            response = await responding
        except RpcError:
            raise
        except Exception as error:
            return self._failed(context, error)
        context.status_code = response.status.code
        serialized: bytes = response.SerializeToString()
        return serialized

    async def _stream(self, context: ProxyContext, given: Any) -> AsyncIterator[bytes]:
        try:
            if self._method.client_streaming:
                request: Any = self._requests_of(context, given)
            else:
                request = await self._request_of(context, given)
            # A cancelled call ends its handler now, not at a garbage collection.
            async with aclosing(self._handler(context, request)) as responses:
                async for response in responses:
                    if code := response.status.code:  # one response of a stream has the status
                        context.status_code = code
                    raw: bytes = response.SerializeToString()
                    del response  # do not hold a large message twice while it is written
                    yield raw
        except RpcError:
            raise
        except Exception as error:
            yield self._failed(context, error)

    def _failed(self, context: ProxyContext, error: Exception) -> bytes:
        code, message = status_of(error, self._method.name)
        context.status_code = code
        raw: bytes = self._response_class(status=status(code, message)).SerializeToString()
        return raw

    def _stream_failed(self, context: ProxyContext, error: Exception) -> bytes:
        if isinstance(error, StatusError) and error.code == definitions.Code.UNAUTHORIZED:
            # Clients ignore a command without settings.
            raise RpcError(GrpcCode.UNAUTHENTICATED, f"UNAUTHORIZED ({error.code}): {error.message}") from None
        return self._failed(context, error)


def check_client(context: ProxyContext) -> None:
    """Raise StatusError if the call has no valid client id."""
    client_id = context.metadata.get(CLIENT_ID)
    if not client_id:
        raise StatusError(definitions.Code.CLIENT_ID_REQUIRED, f"the metadata {CLIENT_ID} is missing")
    if len(client_id) > MAX_CLIENT_ID_CHARACTERS:
        raise StatusError(
            definitions.Code.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the metadata {CLIENT_ID} has {len(client_id)} characters, at most {MAX_CLIENT_ID_CHARACTERS} are allowed",
        )


def status_of(error: Exception, what: str) -> tuple[int, str]:
    """Return code and message of a failure. Internal errors are logged."""
    if isinstance(error, StatusError):
        return error.code, error.message
    if isinstance(error, RemotingTimeoutError):
        return definitions.Code.PROXY_TIMEOUT, f"{error.message} {error.remedy}".rstrip()
    if isinstance(error, RemotingTooMuchRequestError):
        return definitions.Code.TOO_MANY_REQUESTS, f"{error.message} {error.remedy}".rstrip()
    if isinstance(error, RocketError):
        return status_code_of(error.response_code or -1), f"{error.message} {error.remedy}".rstrip()
    _often.log(logging.ERROR, (what, type(error)), "%s failed", what, exc_info=error)
    return definitions.Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"
