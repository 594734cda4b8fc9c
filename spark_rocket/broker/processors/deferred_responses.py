"""Responses that a processor writes later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from spark_rocket.broker.background_tasks import BackgroundTasks
from spark_rocket.broker.change_gate import ChangeGate
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.state import LARGE_RESPONSES, RELAYED_REQUESTS
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import failure_of
from spark_rocket.remoting.server.state_quota import StateQuota


class DeferredResponses:
    """Responses that are written when their work is done, and the bounds of such work."""

    def __init__(self, tasks: BackgroundTasks, changes: ChangeGate) -> None:
        self._tasks = tasks
        self._changes = changes
        #: Requests and replies that wait for a client's response, by the connection of their sender.
        self._relays = StateQuota(RELAYED_REQUESTS)
        #: Requests whose work is divided into steps, and the lock of the one that runs.
        self.large = StateQuota(LARGE_RESPONSES)
        self.one_large = asyncio.Lock()

    def respond(self, channel: Channel, request: RemotingCommand, work: Awaitable[RemotingCommand]) -> None:
        """Write the response when ``work`` returns it. An exception is handled like one of a handler."""

        async def respond() -> None:
            try:
                response = await work
            except Exception as error:
                response = failure_of(channel, request, error)
            if not request.is_oneway:
                channel.write(response)

        self._tasks.spawn(respond())

    def relay(
        self, channel: Channel, request: RemotingCommand, work: Coroutine[None, None, RemotingCommand], weight: int
    ) -> None:
        """Like :meth:`respond`, for work that waits for a client; RefusedError if too many requests do.

        ``weight``: the number of clients that it waits for, and the KiB that it keeps in memory.
        """
        try:
            self._relays.take(channel, weight)
        except RefusedError:
            work.close()
            raise

        async def relay() -> RemotingCommand:
            try:
                return await work
            finally:
                self._relays.release(channel, weight)

        self.respond(channel, request, relay())

    def respond_in_steps(
        self,
        channel: Channel,
        request: RemotingCommand,
        work: Coroutine[None, None, RemotingCommand],
        file: str | None,
    ) -> None:
        """Like :meth:`respond`, for work whose length depends on the broker's state: see broker/steps.py.

        One of them runs at a time, so that their memory is bounded too. RefusedError if too many are queued.
        ``file``: respond when this file has the changes that the work has made.
        """
        try:
            self.large.take(channel)
        except RefusedError:
            work.close()
            raise
        request.body = b""  # the view would keep the complete receive buffer in memory

        async def in_turn() -> RemotingCommand:
            try:
                async with self.one_large:
                    if file is None and not channel.is_active:
                        return RemotingCommand.response(request)  # is not sent
                    response = await work
                return response if file is None else await self._changes.saved(response, file)
            finally:
                work.close()  # it may not have begun
                self.large.release(channel)

        self.respond(channel, request, in_turn())


async def encoded(
    request: RemotingCommand, ext: dict[str, str] | None, snapshot: Callable[[], object]
) -> RemotingCommand:
    """Respond with a snapshot that any thread may take; taken and encoded on a worker thread."""
    body = await asyncio.to_thread(lambda: dumps_fastjson(snapshot()))
    return RemotingCommand.response(request, 0, None, ext, body)
