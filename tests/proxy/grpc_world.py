"""A gRPC server on a loop of its own, with methods for tests; and a client that sends invalid bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from spark_rocket.proxy.transport.grpc_server import GrpcServer
from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, Rpc, RpcError
from tests.kit.loop_thread import LoopThread
from tests.kit.waiting import until

LIMIT = 30.0
T = TypeVar("T")

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


class World(LoopThread):
    """The server, its loop on a thread, and the calls of its handlers."""

    def __init__(self, host: str = "127.0.0.1", **options: Any) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.cancelled = 0
        self.released = asyncio.Event()
        self.server = GrpcServer(self.rpcs(), host, 0, **options)
        try:
            self.do(self.server.start())
        except BaseException:
            self.stop_loop()
            raise

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def wait(self, condition: Callable[[], bool]) -> None:
        until(lambda: self.run(condition))

    def idle(self) -> bool:
        """No call has left anything."""
        calls = self.server.calls
        return not calls.running and not calls.messages.used

    def close(self) -> None:
        self.do(self.server.close(0.0))
        self.stop_loop()

    # --- methods ----------------------------------------------------------------------------------------------

    def rpcs(self) -> dict[str, Rpc]:
        return {
            "/t.T/Echo": Rpc(self.echo),
            "/t.T/Later": Rpc(self.later),
            "/t.T/Hold": Rpc(self.hold),
            "/t.T/Fail": Rpc(self.fail),
            "/t.T/Size": Rpc(self.size),
            "/t.T/Count": Rpc(self.count, response_streaming=True),
            "/t.T/Flood": Rpc(self.flood, response_streaming=True),
            "/t.T/Stay": Rpc(self.stay, response_streaming=True),
            "/t.T/Both": Rpc(self.both, request_streaming=True, response_streaming=True),
            "/t.T/Deaf": Rpc(self.deaf, request_streaming=True, response_streaming=True),
        }

    async def echo(self, context: ProxyContext, request: bytes) -> bytes:
        self.seen.append((dict(context.metadata), context.peer, context.deadline))
        return request

    async def size(self, context: ProxyContext, request: bytes) -> bytes:
        return str(len(request)).encode()

    async def later(self, context: ProxyContext, request: bytes) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(3):
            await asyncio.sleep(0)
            assert asyncio.current_task() is task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        return request

    async def hold(self, context: ProxyContext, request: bytes) -> bytes:
        self.seen.append(request)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def fail(self, context: ProxyContext, request: bytes) -> bytes:
        if request == b"rpc":
            raise RpcError(GrpcCode.NOT_FOUND, "käse: 100 %\n" + "x" * 5000)
        if request == b"cancel":
            raise asyncio.CancelledError
        raise ValueError(request.decode())

    async def count(self, context: ProxyContext, request: bytes) -> AsyncIterator[bytes]:
        upto, size, fail = map(int, request.split())
        for number in range(upto):
            yield str(number).encode().rjust(size)
        if fail:
            raise RpcError(GrpcCode.INVALID_ARGUMENT, "no more")

    async def flood(self, context: ProxyContext, request: bytes) -> AsyncIterator[bytes]:
        try:
            while True:
                self.seen.append(None)
                yield bytes(100_000)
        finally:
            self.cancelled += 1

    async def stay(self, context: ProxyContext, request: bytes) -> AsyncIterator[bytes]:
        yield b"here"
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def both(self, context: ProxyContext, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
        yield b"end"

    async def deaf(self, context: ProxyContext, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        await self.released.wait()
        async for request in requests:
            yield str(len(request)).encode()


class Peer:
    """A scripted HTTP/2 client on a blocking socket."""

    def __init__(self, port: int, sock: socket.socket | None = None) -> None:
        self.socket = sock or socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        self.events: list[Any] = []
        self.h2.initiate_connection()
        try:
            self.flush()
            self.until(h2.events.RemoteSettingsChanged)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def request(self, path: str, *bodies: bytes, end: bool = True, headers: Iterable[tuple[str, str]] = ()) -> int:
        """Begin a request, and end it if requested; return its stream."""
        number: int = self.h2.get_next_available_stream_id()
        merged = {**dict(HEADERS), ":path": path, **dict(headers)}
        self.h2.send_headers(number, merged.items(), end_stream=end and not bodies)
        for index, body in enumerate(bodies):
            last = end and index == len(bodies) - 1
            for at in range(0, max(len(body), 1), 16_384):
                piece = body[at : at + 16_384]
                self.h2.send_data(number, piece, end_stream=last and at + 16_384 >= len(body))
        self.flush()
        return number

    def read(self) -> bool:
        """The server's next event; False at its end."""
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        if not data:
            return False
        events = self.h2.receive_data(data)
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                with contextlib.suppress(h2.exceptions.StreamClosedError):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.events += events
        try:
            self.flush()
        except ConnectionError:
            return False
        return True

    def rest(self) -> bytes:
        """Read everything until the server closes; h2 accepts nothing after a GOAWAY."""
        found = b""
        while True:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return found
            if not data:
                return found
            found += data

    def until(self, kind: type, stream: int | None = None) -> Any:
        """The first event of a kind, possibly an earlier one."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream in (None, getattr(event, "stream_id", None)):
                    return event
            assert self.read(), f"the server closed: {self.events}"

    def ended(self, stream: int) -> tuple[dict[str, str], bytes]:
        """All header fields and the data of an answer."""
        self.until(h2.events.StreamEnded, stream)
        fields: dict[str, str] = {}
        data = b""
        for event in self.events:
            if getattr(event, "stream_id", None) == stream:
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    fields |= {str(name): str(value) for name, value in event.headers}
                elif isinstance(event, h2.events.DataReceived):
                    data += event.data
        return fields, data


def world(**options: Any) -> World:
    """A server, for a with statement."""
    return World(**options)
