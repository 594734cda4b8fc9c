"""Health checking as gRPC has it (grpc.health.v1): who can ask is answered SERVING, for the server and its services.

=====  ======================================================================================
Check  SERVING for ``""`` and for a service that is here; NOT_FOUND for any other
Watch  likewise, SERVICE_UNKNOWN for any other; nothing changes until the server closes
=====  ======================================================================================

Thread-safety: used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from spark_rocket.proxy.context import Context, GrpcCode, Rpc, RpcError
from spark_rocket.proxy.definitions import Definitions

SERVICE = "grpc.health.v1.Health"
_TEXT = """
syntax = "proto3";
package grpc.health.v1;
message HealthCheckRequest { string service = 1; }
message HealthCheckResponse {
  enum ServingStatus { UNKNOWN = 0; SERVING = 1; NOT_SERVING = 2; SERVICE_UNKNOWN = 3; }
  ServingStatus status = 1;
}
service Health {
  rpc Check (HealthCheckRequest) returns (HealthCheckResponse);
  rpc Watch (HealthCheckRequest) returns (stream HealthCheckResponse);
}
"""


@cache
def definitions() -> Definitions:
    """The service's messages."""
    return Definitions(_TEXT, "grpc/health/v1/health.proto")


def rpcs(services: Iterable[str]) -> dict[str, Rpc]:
    """The methods, for a server of these services."""
    known = {"", *services}
    types = definitions().types
    request_class: Any = types["HealthCheckRequest"]
    answer_class: Any = types["HealthCheckResponse"]

    def asked(request: bytes) -> str:
        try:
            service: str = request_class.FromString(request).service
        except DecodeError as error:
            raise RpcError(GrpcCode.INVALID_ARGUMENT, f"the request is no HealthCheckRequest: {error}") from None
        return service

    def answer(status: str) -> bytes:
        raw: bytes = answer_class(status=status).SerializeToString()
        return raw

    async def check(context: Context, request: bytes) -> bytes:
        service = asked(request)
        if service not in known:
            raise RpcError(GrpcCode.NOT_FOUND, f"there is no service {service[:256]}")
        return answer("SERVING")

    async def watch(context: Context, request: bytes) -> AsyncIterator[bytes]:
        yield answer("SERVING" if asked(request) in known else "SERVICE_UNKNOWN")
        await asyncio.get_running_loop().create_future()

    return {f"/{SERVICE}/Check": Rpc(check), f"/{SERVICE}/Watch": Rpc(watch, response_streaming=True)}
