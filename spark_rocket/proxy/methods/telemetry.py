"""The lifecycle of clients: Telemetry, Heartbeat, NotifyClientTermination, SyncLiteSubscription.

Telemetry is a bidirectional stream for the lifetime of the client. The client sends its settings, receives the
effective settings, and then commands of the broker: see client_registry.py and relay.py. Invalid settings end the
stream with gRPC's INVALID_ARGUMENT and an error message, like Apache's proxy. (Clients log that error, but ignore the
status of a command without settings.)

Corresponds to org.apache.rocketmq.proxy.grpc.v2.client.ClientActivity.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError, status
from spark_rocket.proxy.messaging import Family, status_of
from spark_rocket.proxy.methods.client_registry import ClientRegistry
from spark_rocket.proxy.methods.grpc_client import CommandStream
from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, RpcError

_Code = definitions.Code
_OK = status(_Code.OK)


class ClientFamily(Family):
    """The lifecycle of clients."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            "Telemetry": self.telemetry,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.notify_client_termination,
            "SyncLiteSubscription": self.sync_lite_subscription,
        }

    def close(self) -> None:
        self._clients.close()

    async def heartbeat(self, context: ProxyContext, request: Any) -> Any:
        await self._clients.heartbeat(context, request)
        return definitions.HeartbeatResponse(status=_OK)

    async def notify_client_termination(self, context: ProxyContext, request: Any) -> Any:
        await self._clients.terminate(context)
        return definitions.NotifyClientTerminationResponse(status=_OK)

    async def sync_lite_subscription(self, context: ProxyContext, request: Any) -> Any:
        raise StatusError(
            _Code.NOT_IMPLEMENTED,
            "lite topics are not supported: use a topic or a tag for each subject, with a PushConsumer or a "
            "SimpleConsumer",
        )

    async def telemetry(self, context: ProxyContext, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        stream = CommandStream()
        reader = asyncio.get_running_loop().create_task(self._read(context, requests, stream))
        try:
            async for command in stream:
                yield command
        finally:
            reader.cancel()
            self._clients.stream_ended(context, stream)

    async def _read(self, context: ProxyContext, requests: AsyncIterator[Any], stream: CommandStream) -> None:
        """Read commands until the end of the stream or an error."""
        try:
            async for command in requests:
                await self._take(context, command, stream)
        except RpcError as error:
            stream.end(error)
        except Exception as error:
            code, message = status_of(error, "Telemetry")
            stream.end(RpcError(_rpc_code(code), f"{definitions.Code.Name(code)} ({code}): {message}"))
        else:
            stream.end()

    async def _take(self, context: ProxyContext, command: Any, stream: CommandStream) -> None:
        which = command.WhichOneof("command")
        if which == "settings":
            await stream.respond(await self._clients.take_settings(context, command.settings, stream))
            return
        client = self._clients.of(context)
        if client is not None and which in ("thread_stack_trace", "verify_message_result"):
            client.responded(getattr(command, which).nonce, command)


def _rpc_code(code: int) -> GrpcCode:
    if code in (_Code.UNSUPPORTED, _Code.NOT_IMPLEMENTED):
        return GrpcCode.UNIMPLEMENTED
    if code in (_Code.UNAUTHORIZED, _Code.FORBIDDEN):
        return GrpcCode.UNAUTHENTICATED if code == _Code.UNAUTHORIZED else GrpcCode.PERMISSION_DENIED
    return GrpcCode.INVALID_ARGUMENT if code < _Code.INTERNAL_ERROR else GrpcCode.INTERNAL
