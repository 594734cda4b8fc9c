"""A consumer that calls a listener: long polls underneath, shared out among the members of its group.

::

    def listener(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer("group", listener) as consumer:
        consumer.subscribe("orders", "paid || shipped")
        consumer.start()
        ...

Every 20 s, and at once when the group's members change, the consumer works out its share of each topic's queues, drops
those that are others' now and begins with those that are new. Each queue has one pull under way; what comes goes to
one of three services: concurrent, orderly, Arrow batches. How far the group is goes to the brokers every 5 s, with each
pull, and at the end (clustering), or to a local file (broadcasting). Nothing is committed that was not consumed, so a
consumer that dies has some messages consumed again by the next one, and loses none.

Thread-safety: all methods. Corresponds to DefaultMQPushConsumer, DefaultMQPushConsumerImpl and RebalanceImpl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from spark_rocket.client.allocation import AllocateAveragely, AllocateStrategy
from spark_rocket.client.config import ClientConfig
from spark_rocket.client.consume_batches import ConsumeBatches
from spark_rocket.client.consume_concurrently import ConsumeConcurrently
from spark_rocket.client.consume_orderly import ConsumeOrderly
from spark_rocket.client.instance import Client, ClientInstance
from spark_rocket.client.listeners import (
    BatchListener,
    ConcurrentListener,
    ConsumeFromWhere,
    MessageModel,
    OrderlyListener,
)
from spark_rocket.client.offset_store import LocalOffsetStore, OffsetStore, RemoteOffsetStore, local_directory
from spark_rocket.client.process_queue import ProcessQueue
from spark_rocket.client.puller import ConsumeService, Puller, PullSettings
from spark_rocket.client.reader import PullResult, Reader
from spark_rocket.client.send_back import DEFAULT_MAX_RECONSUME_TIMES, RETRY_PREFIX, RETRY_TOPIC, SendBack
from spark_rocket.client.validators import check_group, check_range, check_topic
from spark_rocket.errors import ClientError, RocketError, RunTooLargeError, StateError, TopicNotFoundError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.bodies import (
    CONSUME_PASSIVELY,
    ConsumerData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from spark_rocket.protocol.codes import RequestCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.record import decode_messages
from spark_rocket.protocol.sql92 import parse_sql92
from spark_rocket.protocol.subscription import TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

RENEW_LOCKS_SECONDS = 20.0
RELEASE_SECONDS = 1.0
BATCH_MSGS = 32_768
BATCH_BYTES = 4 << 20
MAX_INT = 2**31 - 1


class PushConsumer(Client):
    """See the module. Times are seconds unless a name says otherwise; counts and sizes are per queue.

    ``listener`` consumes concurrently; use ``orderly=`` or ``batches=`` instead for the other two kinds. After
    ``max_reconsume_times`` failures (−1: 16, orderly: never) a message goes to ``%DLQ%group``.
    """

    def __init__(
        self,
        group: str,
        listener: ConcurrentListener | None = None,
        *,
        orderly: OrderlyListener | None = None,
        batches: BatchListener | None = None,
        name_server: str | None = None,
        instance_name: str = "",
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        allocate_strategy: AllocateStrategy | None = None,
        consume_threads: int = 20,
        consume_message_batch_max_size: int = 1,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue_mib: int = 100,
        consume_concurrently_max_span: int = 2_000,
        max_reconsume_times: int = -1,
        suspend_current_queue_time_millis: int = 1_000,
        consume_timeout: float = 900.0,
        shutdown_timeout: float = 30.0,
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name))
        self.group = check_group(group)
        if sum(given is not None for given in (listener, orderly, batches)) != 1:
            raise ClientError(
                "A push consumer has one listener.", remedy="Give a listener, or orderly=, or batches=: one of them."
            )
        check_range("consume_threads", consume_threads, 1, 1_000)
        check_range("consume_message_batch_max_size", consume_message_batch_max_size, 1, 1_024)
        check_range("pull_batch_size", pull_batch_size, 1, 1_024)
        check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65_535)
        check_range("pull_threshold_size_for_queue_mib", pull_threshold_size_for_queue_mib, 1, 1_024)
        check_range("consume_concurrently_max_span", consume_concurrently_max_span, 1, 65_535)
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self._listeners = (listener, orderly, batches)
        self._from_timestamp = consume_timestamp_ms
        self._strategy = allocate_strategy or AllocateAveragely()
        self._threads = consume_threads
        self._batch_size = consume_message_batch_max_size
        self._pull_batch_size = pull_batch_size
        self._max_messages = pull_threshold_for_queue
        self._max_bytes = pull_threshold_size_for_queue_mib << 20
        self._max_span = consume_concurrently_max_span
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = suspend_current_queue_time_millis
        self._consume_timeout = consume_timeout
        self._shutdown_timeout = shutdown_timeout
        self._reader = Reader(self.name_server, group=group, instance_name=instance_name)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._tags: dict[str, TagExpression] = {}
        self._pullers: dict[MessageQueue, Puller] = {}
        self._table_lock = threading.RLock()
        self._paused = False
        self._started = False
        self._service: ConsumeService
        self._offsets: OffsetStore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- subscribing ------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume a topic's messages: those with one of the tags, or those that an SQL92 expression lets through.

        A second subscription to a topic replaces the first. While running, it takes effect with the next rebalance.
        """
        check_topic(topic)
        if sql is not None:
            parse_sql92(sql)
        version = time.time_ns() // 1_000_000
        data = SubscriptionData.build(topic, sql or tags, version, TYPE_SQL92 if sql else TYPE_TAG)
        with self._table_lock:
            self._subscriptions[topic] = data
            self._tags[topic] = parse_tags(None if sql else tags)
            for queue, puller in self._pullers.items():
                if queue.topic == topic:
                    puller.settings.tags, puller.settings.sql = data.sub_string, sql
        if self._started:
            self._instance().members.send_heartbeats()
            self._instance().members.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic; its queues are given up at once."""
        with self._table_lock:
            self._subscriptions.pop(topic, None)
            self._tags.pop(topic, None)
            self._drop([queue for queue in self._pullers if queue.topic == topic])
        if self._started:
            self._instance().members.send_heartbeats()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin. Fails with the reason, and for good, if that cannot be."""
        if self._started:
            raise StateError(f"The consumer of group {self.group!r} is already started.", remedy="Start it once.")
        instance = self._instance()
        self._started = True
        try:
            if self.message_model is MessageModel.CLUSTERING:
                self._subscribe_retry()
            self._find_routes(warn=True)
            self._service = self._make_service(instance)
            self._offsets = self._make_offset_store(instance)
            self._service.start()
            instance.members.join_consumer(self)
        except BaseException:
            self._failed = True
            self.close()
            raise
        self.rebalance()
        if self._lock is not None:
            instance.call_later(RENEW_LOCKS_SECONDS, self._renew_locks)
        if not any(self._listeners[1:]):
            instance.call_later(self._consume_timeout / 2, self._return_expired)

    def close(self) -> None:
        """Stop pulling, let listeners finish, commit, leave the group."""
        shared = self._shared
        if shared is not None and self._started and not self._closed:
            for puller in list(self._pullers.values()):
                puller.process_queue.paused = True
            if hasattr(self, "_service"):
                self._service.close(self._shutdown_timeout)
            if hasattr(self, "_offsets"):
                with self._table_lock:
                    self._drop(list(self._pullers))
            shared.members.leave_consumer(self)
        self._reader.close()
        super().close()

    def suspend(self) -> None:
        """Pull nothing for now; what is pulled already is still consumed."""
        self._paused = True

    def resume(self) -> None:
        """Go on after ``suspend``."""
        self._paused = False

    # --- as a member of the instance --------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        with self._table_lock:
            return ConsumerData(
                self.group,
                CONSUME_PASSIVELY,
                self.message_model.value,
                self.consume_from_where.value,
                list(self._subscriptions.values()),
            )

    def persist_offsets(self) -> None:
        """Tell the brokers, or the disk, how far the group is."""
        with self._table_lock:
            queues = [puller.process_queue for puller in self._pullers.values()]
        self._offsets.persist({one.queue: one.commit_offset for one in queues if not one.dropped})

    def rebalance(self) -> None:
        """Work out this member's share of every topic, and act on it."""
        if self._closed or not self._started:
            return
        try:
            self._find_routes(warn=False)
            self._instance().members.greet_new_brokers()
        except RocketError as error:
            logger.info("routes stay as they are: %s", error)
        for topic in list(self._subscriptions):
            try:
                mine = self._share_of(topic)
            except RocketError as error:
                logger.info("the queues of %s stay as they are: %s", topic, error)
                continue
            if mine is not None:
                self._take(topic, mine)

    def _find_routes(self, *, warn: bool) -> None:
        """Know the brokers of every topic; one that does not exist yet is waited for."""
        for topic in list(self._subscriptions):
            try:
                self._instance().routes.route(topic)
            except TopicNotFoundError as error:
                if warn and not topic.startswith(RETRY_PREFIX):  # the first heartbeat makes that one
                    logger.warning("%s is waited for: %s", topic, error)

    def _share_of(self, topic: str) -> list[MessageQueue] | None:
        """The queues that are this member's now; None when the brokers do not say who else is there."""
        instance = self._instance()
        queues = sorted(instance.routes.route(topic).readable)
        if self.message_model is MessageModel.BROADCASTING:
            return queues
        members = instance.consumer_ids(self.group, topic)
        if members is None:
            return None
        return self._strategy.allocate(self.group, instance.client_id, queues, members)

    def _take(self, topic: str, mine: list[MessageQueue]) -> None:
        with self._table_lock:
            if self._closed or topic not in self._subscriptions:
                return
            wanted = set(mine)
            self._drop(
                [
                    queue
                    for queue, puller in self._pullers.items()
                    if queue.topic == topic
                    and (queue not in wanted or puller.process_queue.dropped or puller.process_queue.is_pull_expired())
                ]
            )
            missing = [queue for queue in mine if queue not in self._pullers]
        for queue in missing:
            try:
                self._begin(queue)
            except RocketError as error:
                logger.warning("%s cannot be consumed yet: %s", queue, error)

    def _begin(self, queue: MessageQueue) -> None:
        """Take a queue on."""
        process_queue = ProcessQueue(queue, 0)
        if self._lock is not None and not self._lock(process_queue):
            logger.info("%s is still locked by another member", queue)
            self._instance().call_later(1.0, self._instance().members.rebalance_soon)
            return
        offset = self._first_offset(queue)
        process_queue.put((), offset)
        data = self._subscriptions[queue.topic]
        is_sql = data.expression_type == TYPE_SQL92
        puller = Puller(
            self._instance(),
            self._reader,
            self._service,
            process_queue,
            offset,
            PullSettings(
                max_msgs=BATCH_MSGS if self._listeners[2] else self._pull_batch_size,
                max_bytes=BATCH_BYTES if self._listeners[2] else None,
                tags="*" if is_sql else data.sub_string,
                sql=data.sub_string if is_sql else None,
                commits=self.message_model is MessageModel.CLUSTERING,
                must_lock=self._lock is not None,
            ),
            is_paused=lambda: self._paused,
            correct_offset=self._correct_offset,
        )
        with self._table_lock:
            if self._closed or queue in self._pullers:
                return
            self._pullers[queue] = puller
        logger.info("group %s takes %s at %d", self.group, queue, offset)
        puller.pull()

    def _first_offset(self, queue: MessageQueue) -> int:
        """Where the group goes on in a queue, or begins."""
        kept = self._offsets.read(queue)
        if kept is not None:
            return kept
        where = self.consume_from_where
        if queue.topic.startswith(RETRY_PREFIX) or where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return self._reader.min_offset(queue)
        if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return self._reader.max_offset(queue)
        moment = self._from_timestamp
        if moment is None:
            moment = int(time.time() * 1000) - 30 * 60 * 1000
        return self._reader.offset_for_time(queue, moment)

    def _drop(self, queues: list[MessageQueue]) -> None:
        """Give queues up: what is consumed of them is committed, the rest is the next owner's. Table lock held."""
        done: dict[MessageQueue, int] = {}
        for queue in queues:
            process_queue = self._pullers.pop(queue).process_queue
            waited = process_queue.lock_consume.acquire(timeout=RELEASE_SECONDS)
            try:
                if not process_queue.dropped:
                    process_queue.dropped = True
                    done[queue] = process_queue.commit_offset
            finally:
                if waited:
                    process_queue.lock_consume.release()
            logger.info("group %s gives up %s", self.group, queue)
        self._offsets.persist(done)
        if self._lock is not None and queues:
            self._unlock(queues)

    def _correct_offset(self, process_queue: ProcessQueue, offset: int) -> None:
        """The broker has nothing where the group is: go on where it says."""
        with self._table_lock:
            puller = self._pullers.get(process_queue.queue)
            if puller is None or puller.process_queue is not process_queue:
                return
            self._offsets.persist({process_queue.queue: offset})
            del self._pullers[process_queue.queue]
        self._instance().members.rebalance_soon()

    # --- locks of orderly consuming ---------------------------------------------------------------------------

    @property
    def _lock(self) -> Any:
        """How queues are locked; None when they need not be."""
        if self._listeners[1] is None or self.message_model is MessageModel.BROADCASTING:
            return None
        return self._lock_one

    def _lock_one(self, process_queue: ProcessQueue) -> bool:
        return self._lock_at(process_queue.queue.broker_name, [process_queue])

    def _lock_at(self, broker_name: str, process_queues: list[ProcessQueue]) -> bool:
        """Ask one broker for queues' locks; whether all were given."""
        instance = self._instance()
        queues = [one.queue for one in process_queues]
        body = LockBatchRequestBody(self.group, instance.client_id, mq_set=queues)
        request = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, {}, body.to_json())
        try:
            answer = instance.invoke(instance.routes.master(queues[0]), request, f"the locks of {self.group}")
        except RocketError as error:
            logger.warning("%s could not lock queues at %s: %s", self.group, broker_name, error)
            return False
        held = set(LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set)
        now = time.monotonic()
        for one in process_queues:
            one.locked = one.queue in held
            if one.locked:
                one.last_lock = now
        return len(held) == len(queues)

    def _renew_locks(self) -> None:
        if self._closed:
            return
        by_broker: dict[str, list[ProcessQueue]] = {}
        with self._table_lock:
            for queue, puller in self._pullers.items():
                by_broker.setdefault(queue.broker_name, []).append(puller.process_queue)
        try:
            for broker_name, process_queues in by_broker.items():
                self._lock_at(broker_name, process_queues)
        finally:
            self._instance().call_later(RENEW_LOCKS_SECONDS, self._renew_locks)

    def _unlock(self, queues: list[MessageQueue]) -> None:
        instance = self._instance()
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for broker_name, theirs in by_broker.items():
            body = LockBatchRequestBody(self.group, instance.client_id, mq_set=theirs)
            request = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, {}, body.to_json())
            try:
                instance.invoke(instance.routes.master(theirs[0]), request, f"the locks of {self.group}", timeout=1.0)
            except RocketError as error:  # they expire by themselves
                logger.info("%s could not unlock queues at %s: %s", self.group, broker_name, error)

    # --- parts ------------------------------------------------------------------------------------------------

    def _subscribe_retry(self) -> None:
        topic = RETRY_PREFIX + self.group
        self._subscriptions[topic] = SubscriptionData.build(topic, "*", time.time_ns() // 1_000_000)
        self._tags[topic] = parse_tags(None)

    def _make_offset_store(self, instance: ClientInstance) -> OffsetStore:
        if self.message_model is MessageModel.CLUSTERING:
            return RemoteOffsetStore(self._reader, self.group)
        return LocalOffsetStore(local_directory() / (instance.config.instance_name or "DEFAULT"), self.group)

    def _make_service(self, instance: ClientInstance) -> ConsumeService:
        listener, orderly, batches = self._listeners
        most = self._max_reconsume_times if self._max_reconsume_times >= 0 else DEFAULT_MAX_RECONSUME_TIMES
        clustering = self.message_model is MessageModel.CLUSTERING
        send_back = SendBack(instance, self.group, most) if clustering else None
        if listener is not None:
            return ConsumeConcurrently(
                listener,
                threads=self._threads,
                batch_size=self._batch_size,
                max_messages=self._max_messages,
                max_bytes=self._max_bytes,
                max_span=self._max_span,
                decode=self._decode,
                send_back=send_back,
                has_room=self._has_room,
                call_later=instance.call_later,
            )
        if orderly is not None:
            return ConsumeOrderly(
                orderly,
                threads=self._threads,
                batch_size=self._batch_size,
                max_messages=self._max_messages,
                max_bytes=self._max_bytes,
                max_reconsume_times=self._max_reconsume_times if self._max_reconsume_times >= 0 else MAX_INT,
                pause_ms=self._pause_ms,
                decode=self._decode,
                lock=self._lock,
                send_back=send_back,
                has_room=self._has_room,
                call_later=instance.call_later,
            )
        assert batches is not None
        return ConsumeBatches(
            batches,
            threads=self._threads,
            max_reconsume_times=most,
            pause_ms=self._pause_ms,
            decode=self._decode_batches,
            send_back=send_back,
            has_room=self._has_room,
            call_later=instance.call_later,
        )

    def _has_room(self, process_queue: ProcessQueue) -> None:
        puller = self._pullers.get(process_queue.queue)
        if puller is not None:
            puller.has_room()

    def _return_expired(self) -> None:
        if self._closed:
            return
        with self._table_lock:
            process_queues = [puller.process_queue for puller in self._pullers.values()]
        try:
            if isinstance(self._service, ConsumeConcurrently):
                self._service.return_expired(process_queues, self._consume_timeout)
        finally:
            self._instance().call_later(self._consume_timeout / 2, self._return_expired)

    def _decode(self, process_queue: ProcessQueue, found: PullResult) -> list[MessageExt]:
        """The messages of a pull that were asked for: brokers compare hashes of tags, and retries have two topics."""
        queue = process_queue.queue
        first = process_queue.end
        messages = decode_messages(found.records, queue.broker_name)
        tags = self._tags.get(queue.topic)
        if tags is not None and not tags.matches_all:
            messages = [message for message in messages if tags.matches(message.tags)]
        if messages and messages[0].queue_offset < first:
            messages = [message for message in messages if message.queue_offset >= first]
        if queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        return messages

    def _decode_batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        from spark_rocket.protocol.columnar import decode_records  # only who wants Arrow pays for loading it

        queue = process_queue.queue
        tags = self._tags.get(queue.topic)
        wanted = None if tags is None or tags.matches_all else tags.tags
        start: int | None = process_queue.end
        while start is not None:
            end = None
            try:
                batch = decode_records(found.records, broker_name=queue.broker_name, start_offset=start, tags=wanted)
            except RunTooLargeError as error:  # bodies that inflate to more than is decoded at once
                end = error.queue_offset
                batch = decode_records(
                    found.records, broker_name=queue.broker_name, start_offset=start, end_offset=end, tags=wanted
                )
            yield batch
            start = end
