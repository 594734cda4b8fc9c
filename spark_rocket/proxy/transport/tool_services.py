"""Health checking (grpc.health.v1) and reflection (grpc.reflection.v1 and v1alpha), for load balancers and tools.

The services are those of grpcio-health-checking and grpcio-reflection. They are served like all other methods, with the
same limits, but without authentication. The two versions of reflection differ only in their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, Rpc, RpcError

_REFLECTION = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)


class ToolServices:
    """Health and reflection for the services of a file descriptor and its imports."""

    def __init__(self, served: Any) -> None:
        self._services = [service.full_name for service in served.services_by_name.values()]
        self._health = health.aio.HealthServicer()
        pool = descriptor_pool.DescriptorPool()
        for file in (*served.dependencies, served, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            pool.AddSerializedFile(file.serialized_pb)
        names = [*self._services, health.SERVICE_NAME, *_REFLECTION]
        self._reflection = reflection.aio.ReflectionServicer(names, pool=_Pool(pool))

    async def start(self) -> None:
        """Set the services to SERVING."""
        for name in self._services:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Set the services to NOT_SERVING and notify watchers."""
        await self._health.enter_graceful_shutdown()

    def rpcs(self) -> dict[str, Rpc]:
        found = {
            f"/{health.SERVICE_NAME}/Check": Rpc(self._check),
            f"/{health.SERVICE_NAME}/Watch": Rpc(self._watch, response_streaming=True),
        }
        for name in _REFLECTION:
            found[f"/{name}/ServerReflectionInfo"] = Rpc(self._reflect, request_streaming=True, response_streaming=True)
        return found

    async def _check(self, context: ProxyContext, raw: bytes) -> bytes:
        request = _parsed(health_pb2.HealthCheckRequest, raw)
        response = await self._health.Check(request, _HealthContext(_unexpected))
        serialized: bytes = response.SerializeToString()
        return serialized

    async def _watch(self, context: ProxyContext, raw: bytes) -> AsyncIterator[bytes]:
        request = _parsed(health_pb2.HealthCheckRequest, raw)
        responses: asyncio.Queue[Any] = asyncio.Queue(1)
        watching = asyncio.create_task(self._health.Watch(request, _HealthContext(responses.put)))
        try:
            while True:
                yield (await responses.get()).SerializeToString()
        finally:
            watching.cancel()

    async def _reflect(self, context: ProxyContext, raws: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async def requests() -> AsyncIterator[Any]:
            async for raw in raws:
                yield _parsed(reflection_pb2.ServerReflectionRequest, raw)

        async for response in self._reflection.ServerReflectionInfo(requests(), None):
            yield response.SerializeToString()


class _Pool:
    """A descriptor pool that also finds methods: protobuf's pool finds only their services."""

    def __init__(self, pool: descriptor_pool.DescriptorPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            self._pool.FindServiceByName(service).methods_by_name[method]
            return self._pool.FindFileContainingSymbol(service)


class _HealthContext:
    """The part of a servicer context that grpcio-health-checking uses."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.write = write

    async def abort(self, code: Any, details: str = "") -> None:
        raise RpcError(GrpcCode(code.value[0]), details or str(code.value[1]))


def _unexpected(response: Any) -> Any:
    raise RuntimeError("Check does not stream")


def _parsed(message_class: Any, raw: bytes) -> Any:
    try:
        return message_class.FromString(raw)
    except DecodeError as error:
        raise RpcError(GrpcCode.INVALID_ARGUMENT, f"invalid {message_class.DESCRIPTOR.name}: {error}") from None
