"""`python -m benchmarks.grpc_empty SIZE [hold]`: the messaging service with empty handlers, on grpc.aio.

Sends get the same response each time, receives get 32 generated messages of SIZE bytes. With ``hold``, receives wait,
and each message goes to the poll that has waited longest. Prints its port; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from benchmarks import frames
from spark_rocket.proxy import definitions
from spark_rocket.proxy.transport.proxy_context import ProxyContext, Rpc

ID = "01020304050600007B0000000000000000"
HANDLE = "0 1795000000000 60000 0 0 broker-a 0 12345 1234567"


def sent(count: int) -> bytes:
    response = definitions.SendMessageResponse()
    response.status.code, response.status.message = definitions.Code.OK, "OK"
    for number in range(count):
        entry = response.entries.add(message_id=ID, transaction_id=ID, offset=number)
        entry.status.CopyFrom(response.status)
    return bytes(response.SerializeToString())


def message(body: bytes) -> bytes:
    response = definitions.ReceiveMessageResponse()
    response.message.topic.name, response.message.body = "T", body
    system = response.message.system_properties
    system.message_id, system.receipt_handle, system.born_host = ID, HANDLE, "bench"
    system.store_host, system.queue_offset, system.delivery_attempt = "127.0.0.1:10911", 12345, 1
    system.born_timestamp.seconds = system.store_timestamp.seconds = 1_795_000_000
    system.body_digest.type, system.body_digest.checksum = definitions.DigestType.CRC32, "1234ABCD"
    return bytes(response.SerializeToString())


def status() -> bytes:
    response = definitions.ReceiveMessageResponse()
    response.status.code, response.status.message = definitions.Code.OK, "OK"
    return bytes(response.SerializeToString())


class Empty:
    def __init__(self, size: int, hold: bool) -> None:
        self._hold = hold
        self._polls: deque[asyncio.Future[bytes]] = deque()
        self._one, self._many, self._status, self._message = sent(1), sent(100), status(), message(frames.payload(size))
        acked = definitions.AckMessageResponse.FromString(sent(0))
        for _ in range(32):
            acked.entries.add(message_id=ID, receipt_handle=HANDLE).status.CopyFrom(acked.status)
        self._acked = bytes(acked.SerializeToString())

    async def send(self, context: ProxyContext, request: bytes) -> bytes:
        while self._polls and self._polls[0].done():  # its client has disconnected
            self._polls.popleft()
        if self._hold and self._polls:
            at = request.index(frames.STAMP[: -frames.STAMP_DIGITS])
            self._polls.popleft().set_result(message(request[at : at + len(frames.STAMP)]))
        return self._one if len(request) < 2000 else self._many

    async def receive(self, context: ProxyContext, request: bytes) -> AsyncIterator[bytes]:
        if self._hold:
            poll = asyncio.get_running_loop().create_future()
            self._polls.append(poll)
            brought = await poll
            yield self._status
            yield brought
            return
        yield self._status
        for _ in range(32):
            yield self._message

    async def ack(self, context: ProxyContext, request: bytes) -> bytes:
        return self._acked

    def rpcs(self) -> dict[str, Rpc]:
        path = f"/{definitions.SERVICE}/"
        return {
            f"{path}SendMessage": Rpc(self.send),
            f"{path}ReceiveMessage": Rpc(self.receive, response_streaming=True),
            f"{path}AckMessage": Rpc(self.ack),
        }


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Registers the methods like generated code, without serializers."""

    def __init__(self, rpcs: dict[str, Rpc]) -> None:
        self._handlers = {path: self._handler(rpc) for path, rpc in rpcs.items()}

    @staticmethod
    def _handler(rpc: Rpc) -> Any:
        async def unary(request: bytes, servicer: Any) -> Any:
            return await rpc.handler(servicer, request)

        async def stream(request: bytes, servicer: Any) -> Any:
            async for response in rpc.handler(servicer, request):
                yield response

        if rpc.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


async def serve(size: int, hold: bool) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Methods(Empty(size, hold).rpcs()),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.Event().wait()


def main() -> None:
    with asyncio.Runner() as runner:
        runner.run(serve(int(sys.argv[1]), sys.argv[2:] == ["hold"]))


if __name__ == "__main__":
    main()
