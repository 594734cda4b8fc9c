"""Responses that are written later: each when what it reports is true.

A processor hands over a request with the condition that its response waits for:

==================  ================================================================================================
method              the response is written when
==================  ================================================================================================
``when_settled``    changes of topics are on disk and registered, and files with other changes are written
``when_stored``     a message is as durable as the settings require (below), and its topic is settled
``after``           work has returned it
``relay``           the same, for work that waits for clients
``in_steps``        the same, for work whose length depends on the broker's state: see broker/steps.py
==================  ================================================================================================

======================  ======================================================  ===================================
setting                 a message is stored when                                code on timeout; the message is stored
======================  ======================================================  ===================================
SYNC_FLUSH              it is on disk                                           FLUSH_DISK_TIMEOUT (10)
SYNC_MASTER             a slave has it; with both, after it is on disk          SLAVE_NOT_AVAILABLE (11) or
                                                                                FLUSH_SLAVE_TIMEOUT (12)
======================  ======================================================  ===================================

The first two return the response if there is nothing to wait for, so a handler returns their result. Requests that wait
for clients, and those with long work, are bounded. One-way requests get no response.

Nothing blocks. Thread-safety: used on the event loop; the store's flush thread schedules callbacks on it in batches.
Corresponds to CommitLog.handleDiskFlushAndHA, and the persist calls of AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial

from spark_rocket.broker.broker_environment import BackgroundTasks
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.settling_topics import SettlingTopics
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.state import LARGE_RESPONSES, RELAYED_REQUESTS
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import failure_of
from spark_rocket.remoting.server.state_quota import StateQuota
from spark_rocket.store.message_store import MessageStore

_StoredCallback = Callable[[ResponseCode], None]


def _report(response: RemotingCommand, code: ResponseCode) -> None:
    response.code = code


class Responses:
    """The responses of one broker that wait for something."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        tasks: BackgroundTasks,
        store: MessageStore,
        replication: ReplicationMaster,
        saver: StateSaver,
        settling_topics: SettlingTopics,
    ) -> None:
        self._loop = loop
        self._tasks = tasks
        self._store = store
        self._replication = replication
        self._saver = saver
        self._topics = settling_topics
        self.settling = settling_topics.table
        """Empty if no response has to wait for its topic."""
        self._sync_flush, self._sync_master = config.durability
        self.waits = config.durability.is_durable
        """Whether responses wait for a flush or a slave at all."""
        self.waiting = 0
        """The number of responses that wait for a flush or a slave."""
        self._flushed: deque[tuple[int, _StoredCallback, bool]] = deque()
        self._scheduled = False
        #: Requests and replies that wait for a client's response, by the connection of their sender.
        self._relays = StateQuota(RELAYED_REQUESTS)
        #: Requests whose work is divided into steps, and the lock of the one that runs.
        self.large = StateQuota(LARGE_RESPONSES)
        self.one_large = asyncio.Lock()

    # --- changes --------------------------------------------------------------------------------------------------

    def when_settled(
        self,
        channel: Channel,
        request: RemotingCommand,
        topics: Collection[str] = (),
        *,
        files: Sequence[str] = (),
        response: RemotingCommand | None = None,
        must_be_saved: bool = True,
    ) -> RemotingCommand | None:
        """Respond when changes of these topics are on disk and registered, and these files are written.

        ``response``: success by default. If a change could not be written and ``must_be_saved``, it becomes
        SYSTEM_ERROR.
        """
        if request.is_oneway:
            return None
        if response is None:
            response = RemotingCommand.response(request)
        return self._settled(channel, response, topics, files, must_be_saved)

    def _settled(
        self,
        channel: Channel,
        response: RemotingCommand,
        topics: Collection[str],
        files: Sequence[str] = (),
        must_be_saved: bool = True,
    ) -> RemotingCommand | None:
        waiting = self._topics.settle(topics)
        if files:
            waiting.append(self._saver.saved(*files))
        if not waiting:
            return response
        self._tasks.spawn(self._write_settled(channel, response, waiting, must_be_saved))
        return None

    async def _write_settled(
        self, channel: Channel, response: RemotingCommand, waiting: Sequence[Awaitable[str]], must_be_saved: bool
    ) -> None:
        problem = next(filter(None, [await one for one in waiting]), "")
        channel.write(_unsaved(response, problem) if problem and must_be_saved else response)

    # --- messages -------------------------------------------------------------------------------------------------

    def when_stored(
        self,
        channel: Channel,
        request: RemotingCommand,
        end_offset: int,
        topics: Collection[str] = (),
        *,
        response: RemotingCommand | None = None,
        on_timeout: Callable[[RemotingCommand, ResponseCode], None] = _report,
    ) -> RemotingCommand | None:
        """Respond when the message that ends at a physical offset is durable, and then :meth:`when_settled`.

        ``on_timeout``: changes the response on a timeout, given its code; by default to that code.
        """
        if request.is_oneway:
            return None
        if response is None:
            response = RemotingCommand.response(request)
        if not self.waits:
            return self._settled(channel, response, topics)
        self.waiting += 1
        # Not the request: it would keep its receive buffer in memory.
        stored = partial(self._stored, channel, response, topics, on_timeout)
        if self._sync_flush:
            self._store.when_flushed(end_offset, partial(self._was_flushed, end_offset, stored))
        else:
            self._replication.when_replicated(end_offset, stored)
        return None

    def _stored(
        self,
        channel: Channel,
        response: RemotingCommand,
        topics: Collection[str],
        on_timeout: Callable[[RemotingCommand, ResponseCode], None],
        code: ResponseCode,
    ) -> None:
        self.waiting -= 1
        if code is not ResponseCode.SUCCESS:
            on_timeout(response, code)
        if self._settled(channel, response, topics) is not None:
            channel.write(response)

    def _was_flushed(self, end_offset: int, stored: _StoredCallback, ok: bool) -> None:
        """Called by the flush thread."""
        self._flushed.append((end_offset, stored, ok))
        if not self._scheduled:  # checked after the append and reset before the pops: no callback is missed
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_flushed)
            except RuntimeError:  # the loop has closed, and with it every connection
                self._flushed.clear()

    def _run_flushed(self) -> None:
        self._scheduled = False
        while self._flushed:
            end_offset, stored, ok = self._flushed.popleft()
            code = ResponseCode.SUCCESS if ok else ResponseCode.FLUSH_DISK_TIMEOUT
            if self._sync_master:
                self._replication.when_replicated(end_offset, partial(_both, stored, code))
            else:
                stored(code)

    # --- work -----------------------------------------------------------------------------------------------------

    def after(self, channel: Channel, request: RemotingCommand, work: Awaitable[RemotingCommand]) -> None:
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
        """Like :meth:`after`, for work that waits for a client; RefusedError if too many requests do.

        ``weight``: the number of clients that it waits for, and the KiB that it keeps in memory.
        """
        _take(self._relays, channel, work, weight)

        async def relay() -> RemotingCommand:
            try:
                return await work
            finally:
                self._relays.release(channel, weight)

        self.after(channel, request, relay())

    def in_steps(
        self,
        channel: Channel,
        request: RemotingCommand,
        work: Coroutine[None, None, RemotingCommand],
        file: str | None,
    ) -> None:
        """Like :meth:`after`, for work whose length depends on the broker's state.

        One of them runs at a time, so that their memory is bounded too. RefusedError if too many are queued.
        ``file``: respond when this file has the changes that the work has made.
        """
        _take(self.large, channel, work)
        request.body = b""  # the view would keep the complete receive buffer in memory

        async def in_turn() -> RemotingCommand:
            try:
                async with self.one_large:
                    if file is None and not channel.is_active:
                        return RemotingCommand.response(request)  # is not sent
                    response = await work
                if file is None:
                    return response
                problem = await self._saver.saved(file)
                return _unsaved(response, problem) if problem else response
            finally:
                work.close()  # it may not have begun
                self.large.release(channel)

        self.after(channel, request, in_turn())


def _take(quota: StateQuota, channel: Channel, work: Coroutine[None, None, RemotingCommand], weight: int = 1) -> None:
    """Count work that begins later; RefusedError, and it never begins, if there is too much."""
    try:
        quota.take(channel, weight)
    except RefusedError:
        work.close()
        raise


def _both(stored: _StoredCallback, flushed: ResponseCode, replicated: ResponseCode) -> None:
    stored(flushed if replicated is ResponseCode.SUCCESS else replicated)


def _unsaved(response: RemotingCommand, problem: str) -> RemotingCommand:
    """Make a response report that the change could not be written."""
    response.code = ResponseCode.SYSTEM_ERROR
    response.remark = f"{problem}. The change is in effect until the broker stops; the write is retried."
    response.ext_fields, response.body = {}, b""
    return response
