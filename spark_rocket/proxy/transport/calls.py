"""A gRPC call: authentication, request limits, handler, responses.

For grpcio, every method is a stream of requests with raw bytes. So a message is neither read nor parsed before its
metadata is authenticated:

1. Too many calls in progress: the method's ``busy`` response.
2. ``authenticate`` with only the metadata.
3. Read the request. Above the method's limit: RESOURCE_EXHAUSTED. Too many bytes of requests in progress (waiting for
   brokers): the ``busy`` response.
4. The handler parses the request (messaging.py limits its number of fields before) and responds.

A handler's RpcError ends the call with its status, other errors with UNKNOWN and a log line. When the client cancels,
its deadline expires or its connection breaks, grpcio cancels the task.

Thread-safety: event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any

import grpc

from spark_rocket.logs import RateLimited
from spark_rocket.proxy.transport.context import Authenticate, GrpcCode, Rpc, RpcError
from spark_rocket.proxy.transport.forwarding import Forwarder
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.proxy.transport.memory_budgets import Batch, ResponseBytes

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_MAX_TEXT_BYTES = 3072  # clients accept 8 KiB of metadata, and 4 KiB through nginx
_SMALL_RESPONSE = 4096
"""Responses up to this size are not counted while they are written: there is one per call, limited by ``max_calls``."""
_SMALL_REQUEST = 4096
"""Requests up to this size are not counted, so that acks are accepted while sends wait for a broker."""
_COPIES = 2
"""Copies of a response while it is written; the second is in grpcio."""


DURATION_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Bounds of the histogram in seconds."""


class _BusyError(RpcError):
    """Too many calls or bytes are in progress; clients can retry later."""

    def __init__(self, what: str) -> None:
        super().__init__(GrpcCode.RESOURCE_EXHAUSTED, f"too many {what} are in progress: retry later")


class MethodStats:
    """Statistics of a method."""

    def __init__(self) -> None:
        self.running = 0
        self.codes: Counter[int] = Counter()
        """Ended calls by the messaging service's code or the gRPC status code."""
        self.durations = [0] * (len(DURATION_BOUNDS) + 1)
        self.seconds = 0.0

    def ended(self, code: int, seconds: float) -> None:
        self.running -= 1
        self.codes[code] += 1
        self.durations[bisect_left(DURATION_BOUNDS, seconds)] += 1
        self.seconds += seconds


class Call:
    """A gRPC call, as a ``Context``."""

    def __init__(self, servicer: Any, connection: Forwarder, unread: ResponseBytes) -> None:
        self.connection = connection
        self.status_code: int = GrpcCode.OK
        self.request_bytes = 0
        """The counted bytes of its request."""
        self._servicer = servicer
        self._unread = unread
        self._batch: Batch | None = None

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        return {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in self._servicer.invocation_metadata() or ()
        }

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def deadline(self) -> float | None:
        remaining = self._servicer.time_remaining()
        return None if remaining is None else time.monotonic() + remaining

    def batch(self) -> Batch:
        self._batch = self._unread.batch(self.connection)
        return self._batch

    def is_counted(self, size: int) -> bool:
        """Whether a response needs no reservation: it is small, or a message of this call's batch."""
        return size <= _SMALL_RESPONSE + (0 if self._batch is None else self._batch.size)


class Calls:
    """Creates grpcio's handlers of methods."""

    def __init__(
        self,
        connection_of: Callable[[str], Forwarder | None],
        limits: GrpcLimits,
        unread: ResponseBytes,
    ) -> None:
        self.running = 0
        self.refused = 0
        """Calls refused because too many calls or bytes were in progress."""
        self.request_bytes = 0
        """Bytes of complete requests whose calls are in progress."""
        self.stats: dict[str, MethodStats] = defaultdict(MethodStats)
        """Statistics by ``/service/Method``."""
        self._connection_of = connection_of
        self._limits = limits
        self._unread = unread

    def handler(self, path: str, rpc: Rpc, authenticate: Authenticate | None = None) -> grpc.RpcMethodHandler:
        """Create the handler of the method ``/service/Method``."""

        async def unary(_: Any, servicer: Any) -> Any:
            return await self._run(path, rpc, servicer, authenticate)

        async def stream(_: Any, servicer: Any) -> None:
            response = await self._run(path, rpc, servicer, authenticate)
            if response is not None:
                await servicer.write(response)

        if rpc.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(unary)

    async def _run(self, path: str, rpc: Rpc, servicer: Any, authenticate: Authenticate | None) -> bytes | None:
        """Run a call; return the response, or None if there is none or all are written."""
        connection = self._connection_of(servicer.peer())
        if connection is None:
            await servicer.abort(grpc.StatusCode.UNAVAILABLE, "the connection is closed")
            return None
        call = Call(servicer, connection, self._unread)
        stats, began, ended = self.stats[path], time.monotonic(), None
        stats.running += 1
        self.running += 1
        try:
            refusal = self._refusal(path, rpc, call, authenticate)
            if refusal is not None:
                return refusal
            serve = self._stream if rpc.response_streaming else self._unary
            return await serve(path, rpc, servicer, call)
        except RpcError as error:
            if isinstance(error, _BusyError):
                self.refused += 1
                _often.warning("busy", "refused calls: %s", error.message)
                if rpc.busy:
                    call.status_code = error.code
                    return rpc.busy
            ended = error
        except asyncio.CancelledError:  # if the handler cancelled the call, grpcio would not end it
            ended = RpcError(GrpcCode.CANCELLED, "the call was cancelled")
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        except grpc.aio.InternalError as error:  # the client disconnected or cancelled
            _log.debug("%s of %s: %s", path, call.peer, error)
            ended = RpcError(GrpcCode.CANCELLED, str(error))
            raise
        except Exception as error:
            _often.log(logging.ERROR, (path, type(error)), "%s failed", path, exc_info=error)
            ended = RpcError(GrpcCode.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            self.running -= 1
            self.request_bytes -= call.request_bytes
            stats.ended(call.status_code if ended is None else ended.code, time.monotonic() - began)
        await servicer.abort(_STATUS[ended.code], cut_text(ended.message))
        return None

    def _refusal(self, path: str, rpc: Rpc, call: Call, authenticate: Authenticate | None) -> bytes | None:
        """Return the response of a call that is not authenticated; None if it is."""
        if self.running > self._limits.max_calls:
            raise _BusyError("calls")
        if authenticate is None:
            return None
        try:
            authenticate(call, path)
        except RpcError:
            raise
        except Exception as error:
            if rpc.failed is None:
                raise RpcError(GrpcCode.UNAUTHENTICATED, str(error)) from error
            return rpc.failed(call, error)
        return None

    async def _unary(self, path: str, rpc: Rpc, servicer: Any, call: Call) -> bytes:
        response: bytes = await rpc.handler(call, await self._request(path, servicer, call))
        if len(response) > _SMALL_RESPONSE:
            size = _COPIES * len(response)
            unread, connection = self._unread, call.connection
            await unread.wait_for_room(connection, size)
            unread.write_begins(connection)

            def done(_: Any) -> None:
                unread.write_ends(connection)
                unread.sent(connection, size)

            servicer.add_done_callback(done)
        return response

    async def _stream(self, path: str, rpc: Rpc, servicer: Any, call: Call) -> None:
        if not rpc.request_streaming:
            await self._respond(rpc, servicer, call, await self._request(path, servicer, call))
            return
        call.connection.streaming += 1
        try:
            await self._respond(rpc, servicer, call, self._requests(path, servicer, call))
        finally:
            call.connection.streaming -= 1

    async def _respond(self, rpc: Rpc, servicer: Any, call: Call, given: bytes | AsyncIterator[bytes]) -> None:
        connection, unread = call.connection, self._unread
        async with aclosing(rpc.handler(call, given)) as responses:
            async for response in responses:
                size = 0 if call.is_counted(len(response)) else _COPIES * len(response)
                if size:
                    await unread.wait_for_room(connection, size)
                unread.write_begins(connection)
                try:
                    await servicer.write(response)  # waits for the client's flow control window
                finally:
                    unread.write_ends(connection)
                    if size:
                        unread.sent(connection, size)

    async def _request(self, path: str, servicer: Any, call: Call) -> bytes:
        """Read the message of a request that is not a stream."""
        connection, size = call.connection, 0
        connection.request_begins()
        try:
            raw = await servicer.read()
            if raw is not grpc.aio.EOF:
                size = len(raw)
        finally:
            connection.request_ends(size)
        if raw is grpc.aio.EOF:
            raise RpcError(GrpcCode.INTERNAL, "the request has no message")
        self._check_size(path, size)
        if size > _SMALL_REQUEST:
            if self.request_bytes and self.request_bytes + size > self._limits.max_request_bytes:
                raise _BusyError("bytes of requests")
            self.request_bytes += size
            call.request_bytes = size
        return bytes(raw)

    async def _requests(self, path: str, servicer: Any, call: Call) -> AsyncIterator[bytes]:
        while (raw := await servicer.read()) is not grpc.aio.EOF:
            call.connection.message_taken(len(raw))
            self._check_size(path, len(raw))
            yield raw

    def _check_size(self, path: str, size: int) -> None:
        limit = self._limits.of_method(path)
        if size > limit:
            raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"the request has {size} bytes, {path} accepts at most {limit}")


def cut_text(text: str) -> str:
    """Cut a status message to at most 3 KiB when it is percent-encoded."""
    size, raw = 0, text.encode("utf-8", "replace")
    for at, byte in enumerate(raw):
        size += 1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3
        if size > _MAX_TEXT_BYTES:
            return raw[:at].decode("utf-8", "ignore")
    return raw.decode("utf-8")
