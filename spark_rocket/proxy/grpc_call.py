"""One gRPC call on a stream of HTTP/2: its context, its handler's run, its end.

A handler is begun at once, where its request was read, and not as a task of its own: one that has nothing to wait for
has answered when it returns, and its answer is written together with others. Only when it waits for something does the
rest of it become a task. That task is there from the beginning, a spare one that waits for work (:class:`Carrier`), and
it is the current task from the handler's first line on: ``asyncio.timeout`` and the like work. This saves 4 of the
20 µs that an empty call takes beside its socket. (Context variables that a handler sets before it first waits are the
connection's.)

A call ends once, whatever comes first:

=============================  ==============================================================
cause                          what the client gets
=============================  ==============================================================
the handler returns            the answer, status OK
it raises RpcError             that status
it raises anything else        UNKNOWN, and a line in the log
the deadline passes            DEADLINE_EXCEEDED; the handler's task is cancelled
the client cancels or is gone  nothing; the task is cancelled
the server closes              UNAVAILABLE; the task is cancelled
=============================  ==============================================================

A stream that answers waits while the client does not read, before it asks its handler for more. A request's stream is
not read on before the handler has taken what came.

Thread-safety: none; used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
import types
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import aclosing
from math import inf
from typing import TYPE_CHECKING, Any

from spark_rocket.proxy.context import GrpcCode, Rpc, RpcError
from spark_rocket.proxy.frames import Block, block
from spark_rocket.proxy.grpc_messages import (
    PREFIX_SIZE,
    MessageReader,
    frame_message,
    frame_prefix,
    message_text,
    timeout_of,
)
from spark_rocket.proxy.http2_output import Stream

if TYPE_CHECKING:
    from spark_rocket.proxy.grpc_connection import GrpcConnection

_log = logging.getLogger(__name__)

_STATUS_200 = (b":status", b"200")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
HEAD = block(_STATUS_200, _CONTENT_TYPE)
TAIL = block((b"grpc-status", b"0"))
# Above this a message is not copied to stand beside its prefix.
_APART = 16 * 1024
# Above this, what a stream sends is written although its handler has more.
_FLUSH_SIZE = 256 * 1024


def status_block(code: int, message: str, alone: bool, *more: tuple[bytes, bytes]) -> Block:
    """Trailers; ``alone`` if no headers went before them."""
    fields = [(b"grpc-status", b"%d" % code), (b"grpc-message", message_text(message)), *more]
    return block(_STATUS_200, _CONTENT_TYPE, *fields) if alone else block(*fields)


class Carrier:
    """A task that waits to go on with a coroutine that somebody has begun."""

    __slots__ = ("_coroutine", "_go", "_waits_for", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._waits_for: Any = None
        self._go = loop.create_future()
        self.task = loop.create_task(self._run())

    def take(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        """Go on with it when what it waits for has come. The task must not be cancelled in this turn of the loop."""
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._go.set_result(None)

    async def _run(self) -> None:
        await self._go
        assert self._coroutine is not None
        await _resumed(self._coroutine, self._waits_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was begun by hand and waits for something."""
    step: Callable[[Any], Any]
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            step, value = coroutine.throw, error
        else:
            step, value = coroutine.send, sent
        try:
            waits_for = step(value)
        except StopIteration:
            return


class Requests(AsyncIterator[bytes]):
    """The messages of a request that is a stream. The peer's window opens again as they are taken."""

    __slots__ = ("_call", "_ended", "_granted", "_messages", "_queued", "_received", "_waiter")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._messages: deque[bytes] = deque()
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._received = 0
        self._granted = 0
        self._queued = 0

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = self._call.connection.server.loop.create_future()
            await self._waiter
        message = self._messages.popleft()
        self._queued -= PREFIX_SIZE + len(message)
        self._call.count(-len(message))
        self._grant()
        return message

    def add(self, messages: list[bytes], size: int, last: bool) -> None:
        """So many bytes came, and completed these."""
        self._messages += messages
        self._queued += sum(PREFIX_SIZE + len(message) for message in messages)
        self._call.count(sum(map(len, messages)))  # what was compressed may be much more than the window lets in
        self._received += size
        self._ended |= last
        self._grant()
        if (messages or last) and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _grant(self) -> None:
        size = self._received - self._queued - self._granted
        if size > 0:
            self._granted += size
            self._call.connection.grant(self._call.stream, size)


class Metadata(Mapping[str, str]):
    """A request's header fields as texts, of which most calls ask for one: each is made when it is asked for."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        self._headers = headers

    def __getitem__(self, name: str) -> str:
        if name.startswith(":"):
            raise KeyError(name)
        return self._headers[name.encode()].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self._headers if not name.startswith(b":"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Call:
    """One call, and what its handler sees of it: a ``Context``."""

    __slots__ = (
        "_held", "_messages", "_metadata", "_over", "_reader", "_requests", "_rpc", "_started", "_task", "_timer",
        "_writable", "connection", "deadline", "stream", "touched",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: Stream, rpc: Rpc) -> None:
        timeout = stream.headers.get(b"grpc-timeout")
        now = time.monotonic()
        self.deadline = None if timeout is None else now + timeout_of(timeout)
        self.touched = now  # when something of the request came last
        self.connection = connection
        self.stream = stream
        self._rpc = rpc
        self._reader: MessageReader | None = None
        self._held = 0  # bytes of messages that are not whole, or not taken
        self._messages: list[bytes] = []
        self._requests: Requests | None = None
        self._metadata: Metadata | None = None
        self._started = False  # headers are written
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None

    # --- what handlers see ------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the client sent along."""
        found = self._metadata
        if found is None:
            found = self._metadata = Metadata(self.stream.headers)
        return found

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.connection.peer

    # --- what the connection says -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The headers are there."""
        if self._rpc.request_streaming:
            self._requests = Requests(self)
            self._run(self._answer_all(self._rpc.handler(self, self._requests)))

    def feed(self, data: bytes, last: bool) -> None:
        """Some of the request's data."""
        if self._over:
            return
        try:
            messages = self._read(data) if data else []
            if last and self._reader is not None and self._reader.held:
                raise RpcError(GrpcCode.INTERNAL, "the request ends within a message")
            if self._requests is None:
                self._single(messages, len(data), last)
            else:
                self._requests.add(messages, len(data), last)
        except RpcError as error:
            self.end(error.code, error.message)

    def _read(self, data: bytes) -> list[bytes]:
        reader = self._reader
        if reader is None:
            self._reader = reader = MessageReader(self.stream.headers.get(b"grpc-encoding"))
        before = reader.held
        messages = reader.feed(data)
        if reader.held != before:
            self.count(reader.held - before)
        return messages

    def count(self, size: int) -> None:
        """So many bytes more are held of the request. RpcError when it is too much for the server."""
        if not self._over:
            server = self.connection.server
            self._held += size
            server.held += size
            if server.held > server.max_held:
                raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, "the server holds too much of unfinished requests")

    def _single(self, messages: list[bytes], size: int, last: bool) -> None:
        """The request of a method that takes one message."""
        self._messages += messages
        if len(self._messages) > 1:
            raise RpcError(GrpcCode.INTERNAL, "more than one message, where the method takes one")
        if not last:
            self.touched = time.monotonic()
            self.connection.grant(self.stream, size)
        elif not self._messages:
            raise RpcError(GrpcCode.INTERNAL, "the request has no message")
        elif self.connection.waited and self._waited_too_long():
            self._messages.clear()
            self._send(self._rpc.busy)
            self.end(GrpcCode.OK)
        elif self._rpc.response_streaming:
            self._run(self._answer_all(self._rpc.handler(self, self._messages.pop())))
        else:
            self._run(self._answer(self._rpc.handler(self, self._messages.pop())))

    def _waited_too_long(self) -> bool:
        server, kind = self.connection.server, self._rpc.kind
        queue = server.limits.queues.get(kind)
        if queue is None:
            return False
        waited = self.connection.waited
        if waited != inf and not 0 < queue.patience <= waited:
            return False
        server.overload.refused[kind, "overload" if waited == inf else "timeout"] += 1
        return True

    def writable(self) -> None:
        """What was sent to the client is on its way."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def cancel(self) -> None:
        """The client does not want it any more, or is gone."""
        if not self._over:
            self._over = True
            self._release()

    def look(self, now: float, patience: float) -> None:
        """Called now and then: a request that is not complete has no task and no timer yet."""
        if self._over or self._task is not None:
            return
        if self.deadline is not None and now > self.deadline:
            self._expire()
        elif now > self.touched + patience:
            self.end(GrpcCode.CANCELLED, "the rest of the request did not come")

    # --- the handler's run ------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        server = self.connection.server
        loop = server.loop
        carrier = server.carrier()
        task = carrier.task
        _enter_task(loop, task)
        try:
            waits_for = coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            return
        finally:
            _leave_task(loop, task)
        if task.cancelling():  # by the handler itself: so be it, but with a task that has not ended before it began
            carrier = server.carrier()
            loop.call_soon(carrier.task.cancel)
        self._task = server.employ(carrier)
        carrier.take(coroutine, waits_for)
        if self.deadline is not None and not self._over:
            self._timer = loop.call_later(self.deadline - time.monotonic(), self._expire)

    async def _answer(self, handler: Coroutine[Any, Any, bytes]) -> None:
        try:
            message = await handler
        except asyncio.CancelledError:
            self.end(GrpcCode.CANCELLED, "the call was cancelled")
            raise
        except Exception as error:
            self._fail(error)
        else:
            if self._over:
                return
            if len(message) > _APART:
                self._send(message)
                self.end(GrpcCode.OK)
                return
            self._over = True
            self.connection.session.respond(self.stream, HEAD, frame_message(message), TAIL)
            self._release()

    async def _answer_all(self, handler: AsyncGenerator[bytes, None]) -> None:
        stream = self.stream
        try:
            async with aclosing(handler) as answers:
                async for message in answers:
                    self._send(message)
                    if (
                        not stream.open or self._over
                    ):  # its task will be cancelled, but if it never waits it would not see
                        break
                    if self.connection.session.gathered > _FLUSH_SIZE:  # nor must it keep the loop from all others
                        self.connection.flush()
                        await asyncio.sleep(0)
                    if stream.pending is not None:
                        self._writable = self.connection.server.loop.create_future()
                        await self._writable
        except asyncio.CancelledError:
            self.end(GrpcCode.CANCELLED, "the call was cancelled")
            raise
        except Exception as error:
            self._fail(error)
        else:
            self.end(GrpcCode.OK)

    def _send(self, message: bytes) -> None:
        if self._over:
            return
        connection = self.connection
        session = connection.session
        if not self._started:
            self._started = True
            session.send_headers(self.stream, HEAD)
        if len(message) > _APART:
            session.send_data(self.stream, frame_prefix(message), message)
        else:
            session.send_data(self.stream, frame_message(message))
        connection.flush_soon()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, RpcError):
            self.end(error.code, error.message)
        elif not self._over:
            path = self.stream.headers.get(b":path", b"").decode("latin-1")
            _log.error("%s from %s failed", path, self.peer, exc_info=error)
            self.end(GrpcCode.UNKNOWN, f"{type(error).__name__}: {error}")

    def _expire(self) -> None:
        self.end(GrpcCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def end(self, code: int, message: str = "") -> None:
        """The last thing that the client hears."""
        if self._over:
            return
        self._over = True
        tail = status_block(code, message, not self._started) if code or not self._started else TAIL
        self.connection.session.send_trailers(self.stream, tail)
        self._release()

    def _release(self) -> None:
        self.stream.owner = None
        if self._timer is not None:
            self._timer.cancel()
        self.connection.server.held -= self._held
        self._held = 0
        self._reader = None
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            self.connection.server.loop.call_soon(task.cancel)  # not before a carrier has begun
        self.connection.flush_soon()
