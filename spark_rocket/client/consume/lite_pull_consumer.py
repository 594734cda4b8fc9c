"""A consumer that is asked for messages: pulled ahead in the background, handed out when it is polled.

::

    with LitePullConsumer("group") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        consumer.start()
        for message in consumer:          # or: async for message in consumer, or poll(), or poll_batches()
            print(message.body)

``subscribe`` joins the group: its members share the topic's queues, as push consumers do. ``assign`` takes queues as
they are told, whoever else reads them; nobody else in the group hears of it. A consumer does one of the two.

What counts as consumed is what polls have handed out. With ``auto_commit`` a poll marks what *earlier* polls gave, at
most every ``auto_commit_interval``, and the marks go to the brokers (clustering) or a local file (broadcasting) within
5 s, or when a rebalance takes a queue away: what was handed out and not marked yet comes again, at its next owner. The
end of the consumer, ``unsubscribe`` and ``assign`` commit what was handed out so far, though not if a ``with`` block
ends in an exception. Without ``auto_commit`` only ``commit`` and ``commit_offsets`` commit. After a crash messages are
handed out again from the last commit on; none is lost.

Trouble in the background (a broker away, a time-out) is logged and tried again, and polls find nothing meanwhile.
Thread-safety: all methods. Corresponds to DefaultLitePullConsumer and DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

from spark_rocket.client.consume.assigned_queues import Assigned, AssignedQueues, PulledMessages
from spark_rocket.client.consume.group_consumer import GroupConsumer, GroupOptions, answer_tools
from spark_rocket.client.core.validators import check_range
from spark_rocket.errors import ClientError, QueueNotFoundError, RocketError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL
from spark_rocket.protocol.wire.bodies import (
    CONSUME_ACTIVELY,
    ConsumerRunningInfo,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_PULL = 32_768
IDLE_SECONDS = 5.0


class LitePullConsumer(GroupConsumer):
    """See the module. Times are seconds, offsets are positions in a queue. ``options``: see ``GroupOptions``."""

    consume_type = CONSUME_ACTIVELY

    def __init__(
        self,
        group: str,
        *,
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        poll_timeout: float = 5.0,
        pull_batch_size: int = 10,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue_mib: int = 100,
        pull_threshold_for_all: int = 10_000,
        **options: Unpack[GroupOptions],
    ) -> None:
        super().__init__(group, **options)
        check_range("auto_commit_interval", auto_commit_interval, 0, 86_400)
        check_range("poll_timeout", poll_timeout, 0, 86_400)
        check_range("pull_batch_size", pull_batch_size, 1, MAX_PULL)
        check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65_535)
        check_range("pull_threshold_size_for_queue_mib", pull_threshold_size_for_queue_mib, 1, 1_024)
        check_range("pull_threshold_for_all", pull_threshold_for_all, 1, 2**31 - 1)
        self.auto_commit = auto_commit
        self.poll_timeout = poll_timeout
        self._auto_commit_interval = auto_commit_interval
        self._next_auto_commit = 0.0
        self._pulled = PulledMessages(
            pull_batch_size=pull_batch_size,
            max_messages=pull_threshold_for_queue,
            max_bytes=pull_threshold_size_for_queue_mib << 20,
            max_of_all=pull_threshold_for_all,
            tags_of=self._subscriptions.tags_of,
            has_room=lambda process_queue: self._queues.has_room(process_queue),
        )
        self._queues = AssignedQueues(
            group,
            self.instance,
            self._share,
            self._reader,
            self._offsets,
            self._pulled,
            pull_batch_size=pull_batch_size,
            expression_of=lambda topic: self._subscriptions.expression_of(topic) or (SUB_ALL, None),
        )
        self._wanted: list[MessageQueue] = []  # by assign()
        self._balancing = threading.Lock()  # so that no topic that was just left is taken on again
        self._joined = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(commit=kind is None)

    # --- which messages ---------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = SUB_ALL, *, sql: str | None = None) -> None:
        """Share a topic with the group: messages with one of the tags, or that an SQL92 expression lets through.

        A second subscription to a topic replaces the first. While running, it takes effect at once.
        """
        with self._lock:
            if self._wanted:
                raise StateError(
                    f"The consumer of group {self.group!r} has queues assigned; it cannot subscribe as well.",
                    remedy="Use one consumer for assigned queues and another for subscriptions.",
                )
            changed = self._subscriptions.add(topic, tags, sql, self._check_filter if self._runs else None)
        if self._runs:
            self._join()
            if changed:
                self._queues.pull_anew(topic)

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic; its queues are given up at once."""
        if self._subscriptions.remove(topic) and self._runs:
            with self._balancing:
                self._queues.own([], topic, mark=self.auto_commit)
            self.instance().members.send_heartbeats()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues. Those it had already go on where they are, others are given up."""
        wanted = list(dict.fromkeys(queues))
        if not wanted:
            raise ClientError("No queue is assigned.", remedy="Give some of fetch_message_queues(topic).")
        with self._lock:
            if self._subscriptions:
                raise StateError(
                    f"The consumer of group {self.group!r} subscribes to {', '.join(self._subscriptions.topics())}; it"
                    " cannot have queues assigned as well.",
                    remedy="Use one consumer for assigned queues and another for subscriptions.",
                )
            self._wanted = wanted
        if self._runs:
            self._begin_assigned()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._queues.queues()

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, as the name server knows them now."""
        self._check_running()
        return self._reader.refresh(topic)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Fails with the reason, and for good, if that cannot be."""
        self._start_once()
        try:
            self._offsets.open()
            if self._wanted:
                self._begin_assigned()
            elif self._subscriptions:
                self._join()
        except BaseException:
            self._close(commit=False, failed=True)
            raise

    def close(self) -> None:
        """Commit what was handed out, if ``auto_commit`` says so, and leave the group. Polls that wait find nothing."""
        self._close(commit=True)

    def _close(self, *, commit: bool, failed: bool = False) -> None:
        ours = self._is_mine
        with self._lock if ours else contextlib.nullcontext():
            if self._closing:
                return
            self._closing = True
        shared = self._shared
        if ours and self._pid and shared is not None:
            try:
                self._queues.close(mark=commit and self.auto_commit)
            finally:
                self._pulled.close()
                shared.members.leave_consumer(self)
        self._reader.close()
        if failed:
            self._start_failed()
        else:
            super().close()

    @property
    def _runs(self) -> bool:
        return bool(self._pid) and not self._closing

    # --- polling ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> list[MessageExt]:
        """Messages of one queue in their order, at most ``pull_batch_size``; none if none come within the time-out."""
        return self._pulled.take_messages(self._before_poll(timeout))

    def poll_batches(self, timeout: float | None = None) -> list[pa.RecordBatch]:
        """The same as Arrow record batches (``spark_rocket.protocol.record.columns`` has the columns), usually one.

        No message becomes a Python object. Have more of them at once with ``pull_batch_size``, up to 32,768.
        """
        return self._pulled.take_batches(self._before_poll(timeout))

    def __iter__(self) -> Iterator[MessageExt]:
        """Message by message until the consumer is closed; asking for the next one says that the last is consumed."""
        self._check_running()
        while not self._closing:
            self._commit_at_times()
            yield from self._pulled.take_messages(self.poll_timeout, limit=1)

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """As ``__iter__``; neither waiting nor taking blocks the event loop, and cancelling loses nothing."""
        self._check_running()
        return self._each_async()

    async def _each_async(self) -> AsyncIterator[MessageExt]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ready.set)

        self._pulled.wakers.add(wake)
        try:
            while not self._closing:
                ready.clear()
                self._commit_at_times()
                messages = self._pulled.take_messages(0, limit=1)
                if messages:
                    yield messages[0]
                    await asyncio.sleep(0)  # others have their turn, however many messages there are
                elif not self._closing:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(ready.wait(), self.poll_timeout or IDLE_SECONDS)
        finally:
            self._pulled.wakers.discard(wake)

    def _before_poll(self, timeout: float | None) -> float:
        self._check_running()
        seconds = self.poll_timeout if timeout is None else timeout
        if seconds < 0:
            raise ClientError(f"A poll cannot wait {seconds} s.", remedy="Give 0 or more.")
        self._commit_at_times()
        return seconds

    # --- moving -----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; nothing that was pulled before is handed out any more."""
        self._check_assigned([queue])
        low, high = (self._reader.min_offset(queue), self._reader.max_offset(queue)) if offset >= 0 else (0, 0)
        if not low <= offset <= high:
            bounds = f"it has {low} to {high}" if offset >= 0 else "offsets begin at 0"
            raise ClientError(f"{queue} has no offset {offset}: {bounds}.", remedy="Seek within them.")
        self._queues.move(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that the broker still has."""
        self._check_assigned([queue])
        self._queues.move(queue, self._reader.min_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the last message."""
        self._check_assigned([queue])
        self._queues.move(queue, self._reader.max_offset(queue))

    def seek_to_timestamp(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Go on at the first message stored at that time or later: in one queue, or in all that it has of a topic."""
        queues = [queue for queue in self.assignment() if queue.topic == where] if isinstance(where, str) else [where]
        self._check_assigned(queues)
        if not queues and where not in self._subscriptions:
            raise StateError(f"No queue of {where} is assigned to this consumer.", remedy="Subscribe to it first.")
        for queue in queues:
            self._queues.move(queue, self._reader.offset_for_time(queue, timestamp_ms))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at that time or later; the queue's end if there is none."""
        self._check_running()
        return self._reader.offset_for_time(queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues, and pull nothing; their places are kept."""
        for one in self._check_assigned(queues):
            one.process_queue.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on after ``pause``; what was pulled already is there at once, new messages within a second."""
        for one in self._check_assigned(queues):
            one.process_queue.paused = False
        self._pulled.wake()

    def _check_assigned(self, queues: Iterable[MessageQueue]) -> list[Assigned]:
        self._check_running()
        return self._queues.get(queues)

    # --- committing -------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit all that was handed out, and wait for it. Raises the first error, having tried every queue."""
        self._check_running()
        self._queues.commit()

    def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets of one's own: each the next one that the group has to consume."""
        self._check_assigned(offsets)
        for queue, offset in offsets.items():
            if offset < 0:
                raise ClientError(f"{offset} is no offset to commit for {queue}.", remedy="Offsets begin at 0.")
        self._queues.commit(offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group would go on at, as the broker or the file has it; None if it has none."""
        self._check_running()
        return self._queues.committed(queue)

    def persist_offsets(self) -> None:
        """Send what is marked as done. Done every 5 s anyway; what cannot be sent is logged and comes again."""
        self._queues.persist()

    def _commit_at_times(self) -> None:
        """Mark what earlier polls gave as done, if it is time."""
        if self.auto_commit and time.monotonic() >= self._next_auto_commit:
            self._next_auto_commit = time.monotonic() + self._auto_commit_interval
            self._queues.mark_done()

    def _persist_again_and_again(self) -> None:
        """Assigned queues belong to no member of the instance, whose offsets it would persist."""
        if not self._closing:
            try:
                self.persist_offsets()
            finally:
                self.instance().call_later(self._config.persist_interval, self._persist_again_and_again)

    # --- as a member of the instance --------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Work out this member's share of every topic, and act on it."""
        if not self._runs:
            return
        self._look_for_brokers()
        for topic in self._subscriptions.topics():
            try:
                mine = self._share.queues_of(topic)
            except RocketError as error:
                logger.info("the queues of %s stay as they are: %s", topic, error)
                continue
            with self._balancing:
                if mine is None or topic not in self._subscriptions:
                    continue
                self._queues.own(mine, topic, mark=False)  # what the last poll gave may still be in use
            if self._queue_listener is not None:
                self._share.notify(self._queue_listener, topic, mine)

    def _join(self) -> None:
        """Be a member of the group, and have its share at once."""
        instance = self.instance()
        self._share.find_routes(self._subscriptions.topics(), warn=True)
        if self._joined:
            instance.members.send_heartbeats()
            instance.members.rebalance_soon()
            return
        answer_tools(instance)
        try:
            instance.members.join_consumer(self)
        finally:
            if self._closing:  # close() came when there was nothing to leave yet
                instance.members.leave_consumer(self)
        self._check_running()
        self._joined = True
        self.rebalance()

    def _begin_assigned(self) -> None:
        for queue in self._wanted:
            if queue not in self._reader.queues(queue.topic) and queue not in self._reader.refresh(queue.topic):
                raise QueueNotFoundError(f"There is no {queue}.", remedy="fetch_message_queues(topic) says which are.")
        self._queues.own(self._wanted, mark=self.auto_commit)
        if not self._joined:
            self._joined = True
            self._persist_again_and_again()

    # --- what tools ask through brokers -----------------------------------------------------------------------

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets in those queues that are this consumer's now (220)."""
        for queue in self.assignment():
            if queue in offsets:
                self._queues.move(queue, offsets[queue])
                self._queues.commit({queue: offsets[queue]})

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """How far this consumer is in the queues that it has of a topic (221)."""
        return {queue: offset for queue, offset in self._queues.positions().items() if queue.topic == topic}

    def running_info(self) -> ConsumerRunningInfo:
        """What this consumer is doing (307)."""
        return ConsumerRunningInfo(
            properties=self._running_properties(orderly=False),
            subscription_set=self._subscriptions.data(),
        )

    def consume_directly(self, records: bytes, broker_name: str) -> object:
        """A pull consumer has no listener that could (309)."""
        raise ClientError(
            f"The consumer of group {self.group!r} is polled: it has no listener for a message of {broker_name}.",
            remedy="Ask a push consumer.",
        )
