"""The messaging service: its methods by name, from bytes to bytes.

The methods are in families, as a broker's request codes are in processors. A family gives its handlers by the methods'
names, and they take and give messages of definitions.py:

=======================  ===================================================================================
unary                    ``async def handler(context, request) -> answer``
stream out               ``async def handler(context, request)``, an asynchronous generator of answers
stream in and out        ``async def handler(context, requests)``, likewise
=======================  ===================================================================================

A request that fails with :class:`StatusError` is answered with that status and nothing else; what is a mistake of our
own is logged and answered with INTERNAL_SERVER_ERROR. A client that does not say its id is refused before. The number
of fields of a request is checked before it is parsed.

Thread-safety: used on the event loop only. Corresponds to org.apache.rocketmq.proxy.grpc.v2.GrpcMessagingApplication.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from google.protobuf.message import DecodeError

from spark_rocket.errors import RemotingTimeoutError, RemotingTooMuchRequestError, RocketError
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError, status, status_code_of
from spark_rocket.proxy.transport.context import Context, GrpcCode, Rpc, RpcError
from spark_rocket.proxy.transport.limits import MAX_FIELDS, has_more_fields
from spark_rocket.remoting.server.overload import OVERLOAD

_log = logging.getLogger(__name__)

CLIENT_ID = "x-mq-client-id"
MAX_CLIENT_ID = 1_024


class Family:
    """Some methods."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """The handlers of its methods, by their names."""
        raise NotImplementedError

    def close(self) -> None:
        """The server has stopped: end what goes on by itself, timers and tasks."""


Authorize = Callable[[Context, Any], None]


def rpcs(
    families: Iterable[Family], authorize: Authorize | None = None, max_fields: int = MAX_FIELDS
) -> dict[str, Rpc]:
    """The table for a server: every method of the service; what no family has is UNIMPLEMENTED.

    ``authorize`` sees each request before its handler does and raises StatusError for what is not allowed. A request
    with more than ``max_fields`` fields is refused unparsed. The server has authenticated the call before.
    """
    handlers: dict[str, Callable[..., Any]] = {}
    for family in families:
        handlers |= family.handlers()
    found: dict[str, Rpc] = {}
    service = definitions.messaging().descriptor.services_by_name["MessagingService"]
    for method in service.methods:
        handler = handlers.pop(method.name, None)
        if handler is not None:
            found[f"/{service.full_name}/{method.name}"] = _Method(
                method, handler, authorize or _let_pass, max_fields
            ).rpc()
    if handlers:
        raise ValueError(f"The protocol has no methods {sorted(handlers)}.")
    return found


# Methods that answer TOO_MANY_REQUESTS when too many calls are in progress: clients retry them later.
_RETRIED = {"SendMessage", "ReceiveMessage"}


def _let_pass(context: Context, request: Any) -> None:
    """No access control."""


class _Method:
    """One method: from bytes to the handler's messages and back."""

    def __init__(self, method: Any, handler: Callable[..., Any], authorize: Authorize, max_fields: int) -> None:
        self._method = method
        self._handler = handler
        self._authorize = authorize
        self._max_fields = max_fields
        self._request_class = getattr(definitions, method.input_type.name)
        self._answer_class = getattr(definitions, method.output_type.name)

    def rpc(self) -> Rpc:
        method = self._method
        if method.client_streaming:
            return Rpc(self._stream, request_streaming=True, response_streaming=True, failed=self._stream_failed)
        busy = b""
        if method.name in _RETRIED:
            busy = self._failed(None, StatusError(definitions.Code.TOO_MANY_REQUESTS, OVERLOAD))
        handler = self._stream if method.server_streaming else self._unary
        return Rpc(handler, response_streaming=method.server_streaming, failed=self._failed, busy=busy)

    def _request_of(self, context: Context, raw: bytes) -> Any:
        if has_more_fields(raw, self._request_class, self._max_fields):
            raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"the request has more than {self._max_fields} fields")
        try:
            request = self._request_class.FromString(raw)
        except DecodeError as error:
            name = self._request_class.__name__
            raise RpcError(GrpcCode.INVALID_ARGUMENT, f"The request is no {name}: {error}") from None
        self._authorize(context, request)
        return request

    async def _requests_of(self, context: Context, raws: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for raw in raws:
            yield self._request_of(context, raw)

    async def _unary(self, context: Context, raw: bytes) -> bytes:
        try:
            answering = self._handler(context, self._request_of(context, raw))
            del raw  # the message has what it says: it would occupy as much again while a broker is waited for
            answer = await answering
        except RpcError:
            raise
        except Exception as error:
            return self._failed(context, error)
        context.status_code = answer.status.code
        serialized: bytes = answer.SerializeToString()
        return serialized

    async def _stream(self, context: Context, given: Any) -> AsyncIterator[bytes]:
        read = self._requests_of if self._method.client_streaming else self._request_of
        try:
            # A call that breaks off ends its handler now, not at some collection.
            async with aclosing(self._handler(context, read(context, given))) as answers:
                async for answer in answers:
                    if code := answer.status.code:  # of a stream one answer has it
                        context.status_code = code
                    raw: bytes = answer.SerializeToString()
                    del answer  # a large message is not kept twice while it is written
                    yield raw
        except RpcError:
            raise
        except Exception as error:
            yield self._failed(context, error)

    def _failed(self, context: Context | None, error: Exception) -> bytes:
        code, message = status_of(error, self._method.name)
        if context is not None:
            context.status_code = code
        raw: bytes = self._answer_class(status=status(code, message)).SerializeToString()
        return raw

    def _stream_failed(self, context: Context, error: Exception) -> bytes:
        if isinstance(error, StatusError) and error.code == definitions.Code.UNAUTHORIZED:
            # Clients do not look at a command without settings.
            raise RpcError(GrpcCode.UNAUTHENTICATED, f"UNAUTHORIZED ({error.code}): {error.message}") from None
        return self._failed(context, error)


def check_client(context: Context) -> None:
    """Whoever calls has to say who it is."""
    client_id = context.metadata.get(CLIENT_ID)
    if not client_id:
        raise StatusError(definitions.Code.CLIENT_ID_REQUIRED, f"the metadata {CLIENT_ID} is missing")
    if len(client_id) > MAX_CLIENT_ID:
        raise StatusError(
            definitions.Code.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the metadata {CLIENT_ID} has {len(client_id)} characters, at most {MAX_CLIENT_ID} are taken",
        )


def status_of(error: Exception, what: str) -> tuple[int, str]:
    """Code and message of a failure; what is no refusal is logged."""
    if isinstance(error, StatusError):
        return error.code, error.message
    if isinstance(error, RemotingTimeoutError):
        return definitions.Code.PROXY_TIMEOUT, f"{error.message} {error.remedy}".rstrip()
    if isinstance(error, RemotingTooMuchRequestError):
        return definitions.Code.TOO_MANY_REQUESTS, f"{error.message} {error.remedy}".rstrip()
    if isinstance(error, RocketError):
        return status_code_of(error.response_code or -1), f"{error.message} {error.remedy}".rstrip()
    _log.error("%s failed", what, exc_info=error)
    return definitions.Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"
