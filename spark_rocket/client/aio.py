"""Clients for asyncio: Producer, Reader and Admin with methods to await; see docs/guides/python-client.md.

They are the blocking clients: the same arguments, errors, routes and connections, which live on the loop thread of the
process. Sends and pulls pass a request to that loop, and the caller's loop gets the result. What may wait for something
else than the response (a route, a free slot, a broker that does not read) and all other methods run on a thread of
asyncio's executor; so ordered sends begin in the order of their calls while the masters of all queues are known.

A cancelled send or pull is not withdrawn: its message may be stored, its result is ignored.

Thread-safety: all methods, from any event loop. Corresponds to the asynchronous methods of RocketMQ's clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from spark_rocket.client.admin import Admin as _Admin
from spark_rocket.client.consume.pull import PullOptions, PullResult
from spark_rocket.client.consume.reader import Reader as _Reader
from spark_rocket.client.core.lifecycle import Client
from spark_rocket.client.send.producer import Producer as _Producer
from spark_rocket.client.send.router import QueueChoice
from spark_rocket.common.arguments import checked
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.remoting.client.promise import as_future

__all__ = ["Admin", "Producer", "Reader"]

C = TypeVar("C", bound=Client)
C_co = TypeVar("C_co", bound=Client, covariant=True)  # methods of an Admin belong to its base classes
P = ParamSpec("P")
R = TypeVar("R")


def _threaded(
    method: Callable[Concatenate[C, P], R],
) -> Callable[Concatenate[_Client[C], P], Coroutine[Any, Any, R]]:
    """Return a blocking client's method as a coroutine, which waits on a thread."""

    @wraps(method)
    async def call(self: _Client[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.blocking, *args, **kwargs)

    return call


class _Client(Generic[C_co]):
    """``blocking`` is the client whose methods are awaited; it can be used beside this one."""

    def __init__(self, blocking: C_co) -> None:
        self.blocking = blocking

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.blocking.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; a producer first waits for its sends."""
        await asyncio.to_thread(self.blocking.close)

    async def _wait(self, begin: Callable[[], Future[R]], *, may_block: bool) -> R:
        return await as_future(await asyncio.to_thread(begin) if may_block else begin())


class SendOptions(QueueChoice, total=False):
    """Options of a send; see the blocking ``Producer.send``."""

    timeout: float | None


class Producer(_Client[_Producer]):
    """A producer for an event loop. The arguments are those of ``spark_rocket.client.Producer``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(_Producer(*args, **settings))

    @checked
    async def send(self, message: Message | Sequence[Message], **options: Unpack[SendOptions]) -> SendResult:
        """Send and wait until the broker has stored the message. Messages of one topic in a sequence form a batch."""
        return await self._wait(
            partial(self.blocking.send_async, message, **options), may_block=self.blocking.may_block(message, options)
        )

    send_oneway = _threaded(_Producer.send_oneway)
    request = _threaded(_Producer.request)
    recall_message = _threaded(_Producer.recall_message)
    queues = _threaded(_Producer.queues)


class Reader(_Client[_Reader]):
    """A reader for an event loop. The arguments are those of ``spark_rocket.client.Reader``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(_Reader(*args, **settings))

    @checked
    async def pull(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> PullResult:
        """Return the raw records of one pull."""
        return await self._wait(
            partial(self.blocking.pull_async, queue, offset, **options), may_block=self.blocking.may_block(queue)
        )

    messages = _threaded(_Reader.messages)
    queues = _threaded(_Reader.queues)
    topics = _threaded(_Reader.topics)
    brokers = _threaded(_Reader.brokers)
    min_offset = _threaded(_Reader.min_offset)
    max_offset = _threaded(_Reader.max_offset)
    offset_for_time = _threaded(_Reader.offset_for_time)
    committed_offset = _threaded(_Reader.committed_offset)
    commit_offset = _threaded(_Reader.commit_offset)


class Admin(_Client[_Admin]):
    """Administration from an event loop. The arguments are those of ``spark_rocket.client.Admin``.

    ``call`` awaits any other method: ``await admin.call(Admin.broker_config, "broker-a")``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(_Admin(*args, **settings))

    @checked
    async def call(self, method: Callable[Concatenate[_Admin, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of ``spark_rocket.client.Admin``."""
        return await asyncio.to_thread(method, self.blocking, *args, **kwargs)

    topics = _threaded(_Admin.topics)
    create_topic = _threaded(_Admin.create_topic)
    update_topic = _threaded(_Admin.update_topic)
    delete_topic = _threaded(_Admin.delete_topic)
    groups = _threaded(_Admin.groups)
    create_group = _threaded(_Admin.create_group)
    delete_group = _threaded(_Admin.delete_group)
    queues = _threaded(_Admin.queues)
    offsets = _threaded(_Admin.offsets)
    committed_offsets = _threaded(_Admin.committed_offsets)
    consumer_lag = _threaded(_Admin.consumer_lag)
    reset_offsets = _threaded(_Admin.reset_offsets)
    message = _threaded(_Admin.message)
    query_messages = _threaded(_Admin.query_messages)
