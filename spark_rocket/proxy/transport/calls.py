"""A gRPC call: authentication, request limits, handler, responses.

For grpcio, every method is a stream of requests with raw bytes. So a message is neither read nor parsed before its
metadata is authenticated:

1. ``authenticate`` with only the metadata and the client's address.
2. Read the request. Above the method's limit: RESOURCE_EXHAUSTED.
3. The handler parses the request (messaging.py limits its number of fields before) and responds.

A handler's RpcError ends the call with its status, other errors with UNKNOWN and a log line. When the client cancels,
its deadline expires or its connection breaks, grpcio cancels the task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import grpc

from spark_rocket.common.logs import RateLimited
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.proxy.transport.message_bytes import Batch, MessageBytes
from spark_rocket.proxy.transport.proxy_context import Authenticate, GrpcCode, Rpc, RpcError

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_MAX_TEXT_BYTES = 3072  # clients accept 8 KiB of metadata, and 4 KiB through nginx

DURATION_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Bounds of the histogram in seconds."""


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
    """A gRPC call, as a ``ProxyContext``."""

    def __init__(self, servicer: Any, messages: MessageBytes) -> None:
        self.status_code: int = GrpcCode.OK
        self._servicer = servicer
        self._messages = messages

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        return {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in self._servicer.invocation_metadata() or ()
        }

    @cached_property
    def peer(self) -> str:
        return address_of(self._servicer.peer())

    @property
    def deadline(self) -> float | None:
        remaining = self._servicer.time_remaining()
        return None if remaining is None else time.monotonic() + remaining

    def batch(self) -> Batch:
        return self._messages.batch()


class CallHandlers:
    """Creates grpcio's handlers of methods."""

    def __init__(self, limits: GrpcLimits) -> None:
        self.running = 0
        self.messages = MessageBytes(limits.max_unread_bytes)
        self.stats: dict[str, MethodStats] = {}
        """Statistics by method. Services with the same method, as versions of reflection, share them."""
        self._limits = limits

    def handler(self, path: str, rpc: Rpc, authenticate: Authenticate | None = None) -> grpc.RpcMethodHandler:
        """Create the handler of the method ``/service/Method``, whose statistics begin at 0."""
        stats = self.stats.setdefault(path.rpartition("/")[2], MethodStats())

        async def unary(_: Any, servicer: Any) -> Any:
            return await self._run(path, stats, rpc, servicer, authenticate)

        async def stream(_: Any, servicer: Any) -> None:
            response = await self._run(path, stats, rpc, servicer, authenticate)
            if response is not None:
                await servicer.write(response)

        if rpc.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(unary)

    async def _run(
        self, path: str, stats: MethodStats, rpc: Rpc, servicer: Any, authenticate: Authenticate | None
    ) -> bytes | None:
        """Run a call; return the response, or None if there is none or all are written."""
        call = Call(servicer, self.messages)
        began, ended = time.monotonic(), None
        stats.running += 1
        self.running += 1
        try:
            refusal = None if authenticate is None else await _refusal(path, rpc, call, authenticate)
            if refusal is not None:
                return refusal
            if rpc.response_streaming:
                await self._respond(path, rpc, servicer, call)
                return None
            response: bytes = await rpc.handler(call, await self._request(path, servicer))
            return response
        except RpcError as error:
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
            stats.ended(call.status_code if ended is None else ended.code, time.monotonic() - began)
        await servicer.abort(_STATUS[ended.code], cut_text(ended.message))
        return None

    async def _respond(self, path: str, rpc: Rpc, servicer: Any, call: Call) -> None:
        streaming = rpc.request_streaming
        given = self._requests(path, servicer) if streaming else await self._request(path, servicer)
        async with aclosing(rpc.handler(call, given)) as responses:
            async for response in responses:
                await servicer.write(response)  # waits for the client's flow control window

    async def _request(self, path: str, servicer: Any) -> bytes:
        """Read the message of a request that is not a stream."""
        raw = await servicer.read()
        if raw is grpc.aio.EOF:
            raise RpcError(GrpcCode.INTERNAL, "the request has no message")
        self._check_size(path, len(raw))
        return bytes(raw)

    async def _requests(self, path: str, servicer: Any) -> AsyncIterator[bytes]:
        while (raw := await servicer.read()) is not grpc.aio.EOF:
            self._check_size(path, len(raw))
            yield raw

    def _check_size(self, path: str, size: int) -> None:
        limit = self._limits.of_method(path)
        if size > limit:
            raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, f"the request has {size} bytes, {path} accepts at most {limit}")


async def _refusal(path: str, rpc: Rpc, call: Call, authenticate: Authenticate) -> bytes | None:
    """Return the response of a call that is not authenticated; None if it is."""
    try:
        await authenticate(call, path)
    except RpcError:
        raise
    except Exception as error:
        if rpc.failed is None:
            raise RpcError(GrpcCode.UNAUTHENTICATED, str(error)) from error
        return rpc.failed(call, error)
    return None


def address_of(peer: str) -> str:
    """Return ``host:port`` of a call's peer as grpcio names it; ``unknown:0``, which no white list has, for others.

    ===========================  ==================================================================================
    ``ipv4:10.0.0.7:4711``       grpcio's own port
    ``ipv6:%5B::1%5D:4711``      the same; URL-encoded
    ``unix:/…/10.0.0.7:4711``    the front, which binds its local connection to the client's address (front.py)
    ===========================  ==================================================================================
    """
    kind, _, rest = peer.partition(":")
    if kind in ("ipv4", "ipv6"):
        return unquote(rest)
    return unquote(rest.rpartition("/")[2]) or "unknown:0" if kind == "unix" else "unknown:0"


def cut_text(text: str) -> str:
    """Cut a status message to at most 3 KiB when it is percent-encoded."""
    size, raw = 0, text.encode("utf-8", "replace")
    for at, byte in enumerate(raw):
        size += 1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3
        if size > _MAX_TEXT_BYTES:
            return raw[:at].decode("utf-8", "ignore")
    return raw.decode("utf-8")
