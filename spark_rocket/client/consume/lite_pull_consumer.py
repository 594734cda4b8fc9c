"""A consumer that is polled for messages; it pulls them ahead in the background.

::

    with LitePullConsumer("group") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        consumer.start()
        for message in consumer:          # or: async for message in consumer, or poll(), or poll_batches()
            print(message.body)

``subscribe`` joins the group: its members share the topic's queues, as push consumers do. ``assign`` sets fixed queues,
independent of other readers; the consumer is then not a member of the group. A consumer uses one of the two.

Messages count as consumed when a poll has returned them. With ``auto_commit`` each poll marks the messages of *earlier*
polls, at most every ``auto_commit_interval``. Marked offsets go to the brokers (clustering) or a local file
(broadcasting) within 5 s, or when a rebalance releases a queue: returned but unmarked messages are redelivered to its
next owner. ``close``, ``unsubscribe`` and ``assign`` commit all returned messages, except when a ``with`` block ends
with an exception. Without ``auto_commit`` only ``commit`` and ``commit_offsets`` commit. After a crash, messages are
delivered again from the last commit on; none is lost.

Errors in the background (an unavailable broker, a timeout) are logged and retried; meanwhile polls return nothing.
Corresponds to DefaultLitePullConsumer and DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from spark_rocket.client.consume.group_consumer import GroupConsumer, GroupOptions
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import DEFAULT_MAX_MSGS
from spark_rocket.client.consume.pulled_messages import PulledMessages
from spark_rocket.client.consume.puller import PullSettings
from spark_rocket.client.consume.subscriptions import Filter
from spark_rocket.client.core.validators import check_range
from spark_rocket.errors import ClientError, QueueNotFoundError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.client import CONSUME_ACTIVELY
from spark_rocket.protocol.wire.bodies.consumer import ConsumerRunningInfo

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_PULL_MESSAGES = 32_768
MAX_PULL_BYTES = 4 << 20  # brokers that support this field return more than 32 messages
IDLE_SECONDS = 5.0


class _Messages(Iterator[MessageExt]):
    """Calls a function for each message. A call that is interrupted does not end the iteration, unlike a generator.

    Not ``iter(function, None)``: an interrupt after the call of a built-in function would lose the message.
    """

    def __init__(self, next_message: Callable[[], MessageExt]) -> None:
        self._next_message = next_message

    def __next__(self) -> MessageExt:
        return self._next_message()


class _AsyncMessages(AsyncIterator[MessageExt]):
    """Calls a function for each message. A call that is cancelled does not end the iteration, unlike a generator."""

    def __init__(self, next_message: Callable[[], Coroutine[Any, Any, MessageExt]]) -> None:
        self._next_message = next_message

    def __anext__(self) -> Coroutine[Any, Any, MessageExt]:
        return self._next_message()


class LitePullConsumer(GroupConsumer):
    """A polled consumer. Times are in seconds, offsets are positions in a queue. ``options``: see ``GroupOptions``."""

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
        check_range("pull_batch_size", pull_batch_size, 1, MAX_PULL_MESSAGES)
        check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65_535)
        check_range("pull_threshold_size_for_queue_mib", pull_threshold_size_for_queue_mib, 1, 1_024)
        check_range("pull_threshold_for_all", pull_threshold_for_all, 1, 2**31 - 1)
        self.auto_commit = auto_commit
        self.poll_timeout = poll_timeout
        self._auto_commit_interval = auto_commit_interval
        self._next_auto_commit = 0.0
        self._pull_batch_size = pull_batch_size
        self._pulled = self._queues.receiver = PulledMessages(
            pull_batch_size=pull_batch_size,
            max_messages=pull_threshold_for_queue,
            max_bytes=pull_threshold_size_for_queue_mib << 20,
            max_of_all=pull_threshold_for_all,
            tags_of=self._subscriptions.tags_of,
            has_room=self._has_room,
            lock=self._queues.guard,
        )
        self._queues.marks = True
        self._queues.pull_settings = PullSettings(
            max_msgs=pull_batch_size,
            max_bytes=MAX_PULL_BYTES if pull_batch_size > DEFAULT_MAX_MSGS else None,
            backlog_msgs=pull_batch_size,
            must_lock=False,
        )
        self._wanted: list[MessageQueue] = []  # by assign()
        self._joined = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(commit=kind is None)

    # --- subscriptions and assignment -------------------------------------------------------------------------

    def _check_subscribable(self) -> None:
        if self._wanted:
            raise StateError(
                f"The consumer of group {self.group!r} has assigned queues; it cannot subscribe as well.",
                remedy="Use one consumer for assigned queues and another for subscriptions.",
            )

    def _announce(self) -> None:
        if self._joined:
            super()._announce()
        else:
            self._join_group()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues. Queues that were assigned before continue, other ones are released."""
        wanted = list(dict.fromkeys(queues))
        if not wanted:
            raise ClientError("The list of queues is empty.", remedy="Pass queues of fetch_message_queues(topic).")
        with self._lock:
            if self._subscriptions:
                raise StateError(
                    f"The consumer of group {self.group!r} is subscribed to {', '.join(self._subscriptions.topics())};"
                    " it cannot assign queues as well.",
                    remedy="Use one consumer for assigned queues and another for subscriptions.",
                )
            self._wanted = wanted
        if self._runs:
            self._begin_assigned()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer, sorted."""
        return self._queues.queues()

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic, as currently listed by the name server."""
        self._check_running()
        return self._reader.refresh(topic)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the consumer. An error makes it permanently unusable."""
        self._start_once()
        try:
            self._start_on_thread(self._start)
        except BaseException:
            self._close(commit=False, failed=True)
            raise

    def _start(self) -> None:
        self._offsets.open()
        if self._wanted:
            self._begin_assigned()
        elif self._subscriptions:
            self._join_group()

    def close(self) -> None:
        """Commit the returned messages if ``auto_commit`` is set, and leave the group. Waiting polls return nothing."""
        self._close(commit=True)

    def _close(self, *, commit: bool, failed: bool = False) -> None:
        shared = self._shared
        is_member = self._is_mine and self._pid and shared is not None

        def leave() -> None:
            if is_member:
                self._queues.close(mark=commit and self.auto_commit)

        def close() -> None:
            with contextlib.ExitStack() as steps:  # an error of one step does not skip the others
                steps.callback(self._start_failed if failed else super(LitePullConsumer, self).close)
                steps.callback(self._reader.close)
                if is_member and shared is not None:
                    steps.callback(shared.members.leave_consumer, self)
                    steps.callback(self._pulled.close)

        self._close_once(leave, close)

    # --- polling ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> list[MessageExt]:
        """Return messages of one queue in order, at most ``pull_batch_size``; an empty list on timeout."""
        return self._pulled.take_messages(self._before_poll(timeout))

    def poll_batches(self, timeout: float | None = None) -> list[pa.RecordBatch]:
        """Like ``poll``, but return Arrow record batches, usually one (columns: ``protocol.record.columns``).

        No message becomes a Python object. For larger batches set ``pull_batch_size``, up to 32,768.
        """
        return self._pulled.take_batches(self._before_poll(timeout))

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over messages until the consumer is closed; requesting the next one marks the last as consumed.

        An error or an interrupt does not end the iterator: the next call continues.
        """
        self._check_running()
        return _Messages(self._next)

    def _next(self) -> MessageExt:
        while not self._closing:
            self._commit_at_times()
            messages = self._pulled.take_messages(self.poll_timeout, limit=1)
            if messages:
                return messages[0]
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Like ``__iter__``, without blocking the event loop; cancellation loses no message."""
        self._check_running()
        return _AsyncMessages(self._next_async)

    async def _next_async(self) -> MessageExt:
        await asyncio.sleep(0)  # let other tasks run during a backlog
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
                    return messages[0]
                if not self._closing:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.poll_timeout or IDLE_SECONDS):
                            await ready.wait()
        finally:
            self._pulled.wakers.discard(wake)
        raise StopAsyncIteration

    def _before_poll(self, timeout: float | None) -> float:
        self._check_running()
        seconds = self.poll_timeout if timeout is None else timeout
        if seconds < 0:
            raise ClientError(f"Invalid poll timeout {seconds} s.", remedy="Use 0 or more.")
        self._commit_at_times()
        return seconds

    # --- seeking ----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset; drop pulled messages."""
        self._check_assigned([queue])
        low, high = (self._reader.min_offset(queue), self._reader.max_offset(queue)) if offset >= 0 else (0, 0)
        if not low <= offset <= high:
            bounds = f"valid offsets are {low} to {high}" if offset >= 0 else "offsets start at 0"
            raise ClientError(f"Invalid offset {offset} of {queue}: {bounds}.", remedy="Seek to a valid offset.")
        self._move(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message that the broker has."""
        self._check_assigned([queue])
        self._move(queue, self._reader.min_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue after the last message."""
        self._check_assigned([queue])
        self._move(queue, self._reader.max_offset(queue))

    def seek_to_timestamp(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after a time: in one queue, or in all assigned ones of a topic."""
        queues = [queue for queue in self.assignment() if queue.topic == where] if isinstance(where, str) else [where]
        self._check_assigned(queues)
        if not queues and where not in self._subscriptions:
            raise StateError(f"No queue of {where} is assigned to this consumer.", remedy="Subscribe to it first.")
        for queue in queues:
            self._move(queue, self._reader.offset_for_time(queue, timestamp_ms))

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._queues.check([queue])  # a rebalance may have released it in the meantime
        self._queues.restart({queue: offset}, commit=False)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end of the queue if there is none."""
        self._check_running()
        return self._reader.offset_for_time(queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop returning and pulling messages of these queues; positions are retained."""
        self._check_running()
        self._queues.pause(queues, paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue after ``pause``: pulled messages immediately, new ones within a second."""
        self._check_running()
        self._queues.pause(queues, paused=False)
        self._pulled.wake()

    def _check_assigned(self, queues: Iterable[MessageQueue]) -> None:
        self._check_running()
        self._queues.check(queues)

    # --- committing -------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit all returned messages and wait. All queues are tried, then the first error is raised."""
        self._check_running()
        self._queues.commit()

    def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit explicit offsets: each the offset of the next message to consume."""
        self._check_assigned(offsets)
        for queue, offset in offsets.items():
            if offset < 0:
                raise ClientError(f"Invalid offset {offset} of {queue}.", remedy="Offsets start at 0.")
        self._queues.commit(offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group, from the broker or the file; None if it has none."""
        self._check_running()
        return self._queues.committed(queue)

    def _commit_at_times(self) -> None:
        """Mark the messages of earlier polls as consumed when the interval has passed."""
        if self.auto_commit and time.monotonic() >= self._next_auto_commit:
            self._next_auto_commit = time.monotonic() + self._auto_commit_interval
            self._queues.mark()

    def _persist_periodically(self) -> None:
        """Persist offsets of assigned queues: the instance does that only for members of a group."""
        if not self._closing:
            try:
                self.persist_offsets()
            finally:
                self.instance().call_later(self._config.persist_interval, self._persist_periodically)

    # --- queues -----------------------------------------------------------------------------------------------

    def _join_group(self) -> None:
        """Join the group and take a share of the queues immediately."""
        self._share.find_routes(self._subscriptions.topics(), warn=True)
        self._join()
        self._check_running()
        self._joined = True
        self.rebalance()

    def _begin_assigned(self) -> None:
        for queue in self._wanted:
            if queue not in self._reader.queues(queue.topic) and queue not in self._reader.refresh(queue.topic):
                raise QueueNotFoundError(
                    f"{queue} does not exist.", remedy="Use queues of fetch_message_queues(topic)."
                )
        self._queues.own(self._wanted, mark=self.auto_commit)
        self._queues.start()
        if not self._joined:
            self._joined = True
            self._persist_periodically()

    def _filter_of(self, topic: str) -> Filter:
        return self._subscriptions.filter_of(topic) or Filter()  # by assign(): all messages

    def _has_room(self, process_queue: ProcessQueue) -> None:
        """Continue pulling on another thread: it may have to connect first, which must not delay a poll."""
        shared = self._shared
        if shared is not None:
            shared.later(lambda: self._queues.has_room(process_queue))

    # --- requests of tools, sent by brokers -------------------------------------------------------------------

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties=self._running_properties(orderly=False),
            subscription_set=self._subscriptions.data(),
        )

    def consume_directly(self, records: bytes, broker_name: str) -> object:
        """Raise ClientError: a pull consumer has no listener (309)."""
        raise ClientError(
            f"The consumer of group {self.group!r} is a pull consumer without a listener: broker {broker_name}.",
            remedy="Use a push consumer.",
        )
