"""The calls carried by grpcio's asyncio server. See context.py for the interface.

Thread-safety: made, started and closed on the event loop; grpcio's own threads do not call us.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import grpc

from spark_rocket.errors import ConfigError
from spark_rocket.proxy.context import Rpc, RpcError
from spark_rocket.remoting.address import format_address

_CODES = {code.value[0]: code for code in grpc.StatusCode}
MAX_MESSAGE = 130 * 1024 * 1024


class _Context:
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        left = inner.time_remaining()
        self.deadline = None if left is None else time.monotonic() + left

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        return {name: value for name, value in self._inner.invocation_metadata() if isinstance(value, str)}

    @cached_property
    def peer(self) -> str:
        return unquote(self._inner.peer()).partition(":")[2]


class GrpcioServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of these methods on one address."""

    def __init__(self, host: str, port: int, rpcs: Mapping[str, Rpc]) -> None:
        self.host = host
        self.port = port
        self._rpcs = rpcs
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server(
            handlers=[self],
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                ("grpc.max_send_message_length", MAX_MESSAGE),
                ("grpc.so_reuseport", 0),
                ("grpc.max_connection_idle_ms", 120_000),
            ],
        )
        where = format_address(self.host, self.port)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:  # grpcio would say it on stderr in its own words, and not what is wrong
            with socket.create_server((self.host, self.port), family=family):
                pass
            self.port = self._server.add_insecure_port(where)
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"The gRPC endpoint cannot listen on {where}: {getattr(error, 'strerror', None) or error}.",
                remedy="Stop the process that listens there, or choose another port (0 takes a free one).",
            ) from None
        await self._server.start()

    async def close(self, grace: float = 1.0) -> None:
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

    def service(self, handler_call_details: Any) -> Any:
        """For grpcio: the handler of a method."""
        rpc = self._rpcs.get(handler_call_details.method)
        if rpc is None:
            return None
        if rpc.request_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(_both, rpc))
        if rpc.response_streaming:
            return grpc.unary_stream_rpc_method_handler(partial(_out, rpc))
        return grpc.unary_unary_rpc_method_handler(partial(_unary, rpc))


async def _unary(rpc: Rpc, request: bytes, inner: Any) -> bytes:
    try:
        answer: bytes = await rpc.handler(_Context(inner), request)
    except RpcError as error:
        await inner.abort(_CODES[int(error.code)], error.message)
    return answer


async def _out(rpc: Rpc, request: bytes, inner: Any) -> None:
    await _write(rpc.handler(_Context(inner), request), inner)


async def _both(rpc: Rpc, requests: AsyncIterator[bytes], inner: Any) -> None:
    await _write(rpc.handler(_Context(inner), requests), inner)


async def _write(given: AsyncGenerator[bytes, None], inner: Any) -> None:
    """Not as a generator of our own: grpcio drops that when a call ends early, and its handler would go on waiting."""
    try:
        async with aclosing(given) as answers:
            async for answer in answers:
                await inner.write(answer)
    except RpcError as error:
        await inner.abort(_CODES[int(error.code)], error.message)
