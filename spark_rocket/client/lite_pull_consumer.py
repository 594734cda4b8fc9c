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
5 s; queues that are lost in a rebalance and the end of the consumer commit what was handed out so far, though not if a
``with`` block ends in an exception. Without ``auto_commit`` only ``commit`` and ``commit_offsets`` commit. After a
crash messages are handed out again from the last commit on; none is lost.

Trouble in the background (a broker away, a time-out) is logged and tried again, and polls find nothing meanwhile.
Thread-safety: all methods. Corresponds to DefaultLitePullConsumer and DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from spark_rocket.client.allocation import AllocateAveragely, AllocateStrategy
from spark_rocket.client.config import ClientConfig
from spark_rocket.client.instance import Client
from spark_rocket.client.listeners import ConsumeFromWhere, MessageModel
from spark_rocket.client.offset_store import LocalOffsetStore, OffsetStore, RemoteOffsetStore, local_directory
from spark_rocket.client.process_queue import ProcessQueue
from spark_rocket.client.pulled import PulledMessages
from spark_rocket.client.puller import AFTER_ERROR, Puller, PullSettings
from spark_rocket.client.reader import DEFAULT_MAX_MSGS, Reader
from spark_rocket.client.share import find_routes, first_offset, share_of
from spark_rocket.client.validators import check_group, check_range, check_topic
from spark_rocket.errors import ClientError, QueueNotFoundError, RocketError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.bodies import CONSUME_ACTIVELY, ConsumerData, SubscriptionData
from spark_rocket.protocol.sql92 import parse_sql92
from spark_rocket.protocol.subscription import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_PULL = 32_768
MAX_PULL_BYTES = 4 << 20  # brokers that know this field give more than 32 messages for it
CORRECT_AGAIN = 1.0

MessageQueueListener = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
"""Called with a topic, all of its queues, and those that are this consumer's now, when the latter have changed."""


@dataclass(slots=True, eq=False)
class _Assigned:
    """A queue that is this consumer's; ``done`` is what is to be committed, ``puller`` comes with the first offset."""

    process_queue: ProcessQueue
    puller: Puller | None = None
    done: int | None = None


class LitePullConsumer(Client):
    """See the module. Times are seconds, offsets are positions in a queue."""

    def __init__(
        self,
        group: str,
        *,
        name_server: str | None = None,
        instance_name: str = "",
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        allocate_strategy: AllocateStrategy | None = None,
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        poll_timeout: float = 5.0,
        pull_batch_size: int = 10,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue_mib: int = 100,
        pull_threshold_for_all: int = 10_000,
        message_queue_listener: MessageQueueListener | None = None,
    ) -> None:
        config = ClientConfig.of(name_server, instance_name=instance_name)
        super().__init__(config)
        self.group = check_group(group)
        check_range("auto_commit_interval", auto_commit_interval, 0, 86_400)
        check_range("poll_timeout", poll_timeout, 0, 86_400)
        check_range("pull_batch_size", pull_batch_size, 1, MAX_PULL)
        check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65_535)
        check_range("pull_threshold_size_for_queue_mib", pull_threshold_size_for_queue_mib, 1, 1_024)
        check_range("pull_threshold_for_all", pull_threshold_for_all, 1, 2**31 - 1)
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self.auto_commit = auto_commit
        self.poll_timeout = poll_timeout
        self._from_timestamp = consume_timestamp_ms
        self._strategy = allocate_strategy or AllocateAveragely()
        self._auto_commit_interval = auto_commit_interval
        self._next_auto_commit = 0.0
        self._pull_batch_size = pull_batch_size
        self._listener = message_queue_listener
        self._reader = Reader(self.name_server, group=group, instance_name=instance_name)
        self._offsets: OffsetStore = (
            RemoteOffsetStore(self._reader, group)
            if message_model is MessageModel.CLUSTERING
            else LocalOffsetStore(local_directory() / (config.instance_name or "DEFAULT"), group)
        )
        self._pulled = PulledMessages(
            pull_batch_size=pull_batch_size,
            max_messages=pull_threshold_for_queue,
            max_bytes=pull_threshold_size_for_queue_mib << 20,
            max_of_all=pull_threshold_for_all,
            tags_of=self._tags_of,
            has_room=self._has_room,
        )
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._tags: dict[str, TagExpression] = {}
        self._wanted: list[MessageQueue] = []  # by assign()
        self._table: dict[MessageQueue, _Assigned] = {}
        self._lock = threading.RLock()  # of the tables; nobody waits for a server while holding it
        self._committing = threading.RLock()  # so that a later offset is not overtaken by an earlier one
        self._started = False
        self._joined = False
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(commit=kind is None)

    # --- which messages ---------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = SUB_ALL, *, sql: str | None = None) -> None:
        """Share a topic with the group: messages with one of the tags, or that an SQL92 expression lets through.

        A second subscription to a topic replaces the first. While running, it takes effect with the next rebalance.
        """
        check_topic(topic)
        if sql is not None:
            parse_sql92(sql)
        data = SubscriptionData.build(topic, sql or tags, time.time_ns() // 1_000_000, TYPE_SQL92 if sql else TYPE_TAG)
        wanted = parse_tags(None if sql else tags)
        with self._lock:
            if self._wanted:
                raise StateError(
                    f"The consumer of group {self.group!r} has queues assigned; it cannot subscribe as well.",
                    remedy="Use one consumer for assigned queues and another for subscriptions.",
                )
            self._subscriptions[topic] = data
            self._tags[topic] = wanted
            for queue, one in self._table.items():
                if queue.topic == topic and one.puller is not None:
                    one.puller.settings.tags, one.puller.settings.sql = self._expression(topic)
        if self._started:
            self._join()

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic; its queues are given up at once."""
        with self._lock:
            if self._subscriptions.pop(topic, None) is None:
                return
            self._tags.pop(topic, None)
        if self._started:
            self._own([], topic)
            self._instance().members.send_heartbeats()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues. Those it had already go on where they are, others are given up."""
        wanted = list(dict.fromkeys(queues))
        if not wanted:
            raise ClientError("No queue is assigned.", remedy="Give some of fetch_message_queues(topic).")
        with self._lock:
            if self._subscriptions:
                raise StateError(
                    f"The consumer of group {self.group!r} subscribes to {', '.join(self._subscriptions)}; it cannot"
                    " have queues assigned as well.",
                    remedy="Use one consumer for assigned queues and another for subscriptions.",
                )
            self._wanted = wanted
        if self._started:
            self._begin_assigned()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        with self._lock:
            return sorted(self._table)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, as the name server knows them now."""
        self._check_running()
        return self._reader.refresh(topic)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Fails with the reason, and for good, if that cannot be."""
        with self._lock:
            if self._started and not self._closing:
                raise StateError(f"The consumer of group {self.group!r} is already started.", remedy="Start it once.")
            self._instance()
            self._started = True
        try:
            if self._wanted:
                self._begin_assigned()
            elif self._subscriptions:
                self._join()
        except BaseException:
            self._failed = True
            self._close(commit=False)
            raise

    def close(self) -> None:
        """Commit what was handed out, if ``auto_commit`` says so, and leave the group. Polls that wait find nothing."""
        self._close(commit=True)

    def _close(self, *, commit: bool) -> None:
        with self._lock:
            if self._closing:
                return
            if commit:
                self._mark_done()
            self._closing = True
            left = self._give_up(list(self._table), mark=False)
        self._pulled.close()
        shared = self._shared
        if shared is not None and self._started:
            with self._committing:
                self._offsets.persist(left)
            shared.members.leave_consumer(self)
        self._reader.close()
        super().close()

    def _check_running(self) -> None:
        if self._closing:
            raise StateError(f"The consumer of group {self.group!r} was closed.", remedy="Make a new one.")
        if not self._started:
            raise StateError(f"The consumer of group {self.group!r} is not started.", remedy="Call start() first.")

    # --- polling ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> list[MessageExt]:
        """Messages of one queue in their order, at most ``pull_batch_size``; none if none come within the time-out."""
        return self._pulled.take_messages(self._before_poll(timeout))

    def poll_batches(self, timeout: float | None = None) -> list[pa.RecordBatch]:
        """The same as Arrow record batches (``spark_rocket.protocol.columnar`` has the columns), usually one.

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
        return self._messages_async()

    async def _messages_async(self) -> AsyncIterator[MessageExt]:
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
                        await asyncio.wait_for(ready.wait(), self.poll_timeout or AFTER_ERROR)
        finally:
            self._pulled.wakers.discard(wake)

    def _before_poll(self, timeout: float | None) -> float:
        self._check_running()
        seconds = self.poll_timeout if timeout is None else timeout
        if seconds < 0:
            raise ClientError(f"A poll cannot wait {seconds} s.", remedy="Give 0 or more.")
        self._commit_at_times()
        return seconds

    def _has_room(self, process_queue: ProcessQueue) -> None:
        """Pull on, elsewhere: it may have to connect first, and a poll must not wait for that."""
        with self._lock:
            one = self._table.get(process_queue.queue)
            if one is not None and one.puller is not None and not self._closing:
                self._instance().later(one.puller.has_room)

    # --- moving -----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; nothing that was pulled before is handed out any more."""
        self._check_assigned([queue])
        low, high = (self._reader.min_offset(queue), self._reader.max_offset(queue)) if offset >= 0 else (0, 0)
        if not 0 <= low <= offset <= high:
            bounds = f"it has {low} to {high}" if offset >= 0 else "offsets begin at 0"
            raise ClientError(f"{queue} has no offset {offset}: {bounds}.", remedy="Seek within them.")
        self._move(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that the broker still has."""
        self._check_assigned([queue])
        self._move(queue, self._reader.min_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the last message."""
        self._check_assigned([queue])
        self._move(queue, self._reader.max_offset(queue))

    def seek_to_timestamp(self, where: MessageQueue | str, timestamp_ms: int) -> None:
        """Go on at the first message stored at that time or later: in one queue, or in all that it has of a topic."""
        queues = [queue for queue in self.assignment() if queue.topic == where] if isinstance(where, str) else [where]
        if isinstance(where, str) and where not in self._subscriptions and not queues:
            raise StateError(f"No queue of {where} is assigned to this consumer.", remedy="Subscribe to it first.")
        self._check_assigned(queues)
        for queue in queues:
            self._move(queue, self._reader.offset_for_time(queue, timestamp_ms))

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

    def _check_assigned(self, queues: Iterable[MessageQueue]) -> list[_Assigned]:
        self._check_running()
        found = []
        with self._lock:
            for queue in queues:
                one = self._table.get(queue)
                if one is None:
                    raise StateError(
                        f"{queue} is not assigned to this consumer.",
                        remedy="assignment() says which are; a rebalance may have given it to another member.",
                    )
                found.append(one)
        return found

    def _move(self, queue: MessageQueue, offset: int) -> None:
        with self._lock:
            (one,) = self._check_assigned([queue])
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    def _replace(self, old: _Assigned, offset: int) -> _Assigned:
        """Begin anew with a queue, at another offset; ``_begin`` comes next. Lock held."""
        queue = old.process_queue.queue
        self._pulled.forget(old.process_queue)
        new = self._table[queue] = _Assigned(ProcessQueue(queue, offset))
        new.process_queue.paused = old.process_queue.paused
        return new

    # --- committing -------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit all that was handed out, and wait for it. Raises the first error, having tried every queue."""
        self._check_running()
        with self._committing:
            with self._lock:
                positions = self._positions()
            self._commit(positions)

    def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets of one's own: each the next one that the group has to consume."""
        self._check_assigned(offsets)
        for queue, offset in offsets.items():
            if offset < 0:
                raise ClientError(f"{offset} is no offset to commit for {queue}.", remedy="Offsets begin at 0.")
        with self._committing:
            self._commit(offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group would go on at, as the broker or the file has it; None if it has none."""
        self._check_running()
        with self._committing:
            return self._offsets.read(queue)

    def persist_offsets(self) -> None:
        """Send what is marked as done. Done every 5 s anyway; what cannot be sent is logged and comes again."""
        with self._committing:
            with self._lock:
                done = {queue: one.done for queue, one in self._table.items() if one.done is not None}
            self._offsets.persist(done)

    def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        first: RocketError | None = None
        for queue, offset in offsets.items():
            try:
                self._offsets.commit(queue, offset)
            except RocketError as error:
                first = first or error
                continue
            with self._lock:
                one = self._table.get(queue)
                if one is not None:
                    one.done = offset
        if first is not None:
            raise first

    def _commit_at_times(self) -> None:
        """Mark what earlier polls gave as done, if it is time."""
        if self.auto_commit and time.monotonic() >= self._next_auto_commit:
            with self._lock:
                self._next_auto_commit = time.monotonic() + self._auto_commit_interval
                self._mark_done()

    def _mark_done(self) -> None:
        if self.auto_commit:
            for queue, position in self._positions().items():
                self._table[queue].done = position

    def _positions(self) -> dict[MessageQueue, int]:
        return {
            queue: self._pulled.position(one.process_queue)
            for queue, one in self._table.items()
            if one.puller is not None
        }

    def _persist_again_and_again(self) -> None:
        """Assigned queues belong to no member of the instance, whose offsets it would persist."""
        if not self._closing:
            try:
                self.persist_offsets()
            finally:
                self._instance().call_later(self._config.persist_interval, self._persist_again_and_again)

    # --- as a member of the instance --------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        with self._lock:
            return ConsumerData(
                self.group,
                CONSUME_ACTIVELY,
                self.message_model.value,
                self.consume_from_where.value,
                list(self._subscriptions.values()),
            )

    def rebalance(self) -> None:
        """Work out this member's share of every topic, and act on it."""
        if self._closing or not self._started:
            return
        instance = self._instance()
        try:
            find_routes(instance, list(self._subscriptions), warn=False)
            instance.members.greet_new_brokers()
        except RocketError as error:
            logger.info("routes stay as they are: %s", error)
        for topic in list(self._subscriptions):
            try:
                mine = share_of(instance, self.group, topic, self.message_model, self._strategy)
            except RocketError as error:
                logger.info("the queues of %s stay as they are: %s", topic, error)
                continue
            if mine is not None and self._own(mine, topic) and self._listener is not None:
                try:
                    self._listener(topic, list(instance.routes.route(topic).readable), mine)
                except Exception:
                    logger.exception("the listener for changes of queues failed on %s", topic)

    def _join(self) -> None:
        """Be a member of the group, and have its share at once."""
        instance = self._instance()
        find_routes(instance, list(self._subscriptions), warn=True)
        if self._joined:
            instance.members.send_heartbeats()
            instance.members.rebalance_soon()
            return
        instance.members.join_consumer(self)
        self._joined = True
        self.rebalance()

    def _begin_assigned(self) -> None:
        for queue in self._wanted:
            if queue not in self._reader.queues(queue.topic) and queue not in self._reader.refresh(queue.topic):
                raise QueueNotFoundError(f"There is no {queue}.", remedy="fetch_message_queues(topic) says which are.")
        self._own(self._wanted)
        if not self._joined:
            self._joined = True
            self._persist_again_and_again()

    def _own(self, mine: Iterable[MessageQueue], topic: str | None = None) -> bool:
        """Take queues on and give others up, of one topic or of all; whether anything changed."""
        wanted = dict.fromkeys(mine)
        with self._committing:
            with self._lock:
                if self._closing or (wanted and topic is not None and topic not in self._subscriptions):
                    return False
                lost = [queue for queue in self._table if topic in (None, queue.topic) and queue not in wanted]
                left = self._give_up(lost, mark=self.auto_commit)
                begun = {queue: _Assigned(ProcessQueue(queue, 0)) for queue in wanted if queue not in self._table}
                self._table.update(begun)
            self._offsets.persist(left)
        for one in begun.values():
            self._begin(one)
        return bool(lost or begun)

    def _give_up(self, queues: Iterable[MessageQueue], *, mark: bool) -> dict[MessageQueue, int]:
        """What is to be committed of queues that are not this consumer's any more. Lock held."""
        left = {}
        for queue in queues:
            one = self._table.pop(queue)
            position = self._pulled.forget(one.process_queue)
            if mark and one.puller is not None:
                one.done = position
            if one.done is not None:
                left[queue] = one.done
            logger.info("group %s gives up %s", self.group, queue)
        return left

    def _begin(self, one: _Assigned, offset: int | None = None) -> None:
        """Start pulling a queue; if the broker does not say where, in a while."""
        process_queue, queue = one.process_queue, one.process_queue.queue
        if self._closing or process_queue.dropped:
            return
        if offset is None:
            try:
                with self._committing:
                    offset = first_offset(
                        self._reader, self._offsets, queue, self.consume_from_where, self._from_timestamp
                    )
            except RocketError as error:
                if not self._closing:
                    logger.warning("%s cannot be read yet: %s", queue, error)
                    self._instance().call_later(AFTER_ERROR, lambda: self._begin(one))
                return
        tags, sql = self._expression(queue.topic)
        settings = PullSettings(
            max_msgs=self._pull_batch_size,
            max_bytes=MAX_PULL_BYTES if self._pull_batch_size > DEFAULT_MAX_MSGS else None,
            backlog_msgs=self._pull_batch_size,
            tags=tags,
            sql=sql,
            commits=False,
            must_lock=False,
        )
        with self._lock:
            if self._closing or self._table.get(queue) is not one:
                return
            process_queue.put((), offset)
            one.puller = Puller(
                self._instance(),
                self._reader,
                self._pulled,
                process_queue,
                offset,
                settings,
                is_paused=lambda: False,
                correct_offset=self._correct_offset,
            )
        logger.info("group %s reads %s from %d on", self.group, queue, offset)
        one.puller.pull()

    def _correct_offset(self, puller: Puller, offset: int) -> None:
        """The broker has nothing where this consumer is: go on where it says, when all before it is handed out."""
        queue = puller.process_queue.queue
        with self._lock:
            one = self._table.get(queue)
            if self._closing or one is None or one.puller is not puller:
                return
            if self._pulled.holds(puller.process_queue):
                self._instance().call_later(CORRECT_AGAIN, lambda: self._correct_offset(puller, offset))
                return
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    def _expression(self, topic: str) -> tuple[str, str | None]:
        """Tags and SQL92 that brokers choose a topic's messages by."""
        data = self._subscriptions.get(topic)
        if data is None:
            return SUB_ALL, None
        if data.expression_type == TYPE_SQL92:
            return SUB_ALL, data.sub_string
        return data.sub_string, None

    def _tags_of(self, topic: str) -> TagExpression:
        return self._tags.get(topic) or parse_tags(None)
