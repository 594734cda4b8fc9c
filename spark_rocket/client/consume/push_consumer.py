"""A consumer that calls a listener; it pulls with long polls and shares queues with the members of its group.

::

    def listener(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer("group", listener) as consumer:
        consumer.subscribe("orders", "paid || shipped")
        consumer.start()
        ...

Every 20 s, and immediately when the members of the group change, the consumer determines its share of each topic's
queues, releases the others and starts reading new ones. Each queue has one pull in flight; its results go to one of
three services: concurrent, orderly, Arrow batches. Offsets are committed to the brokers (clustering) or to a local file
(broadcasting), every 5 s and on close. Only consumed messages are committed: after a crash some messages are consumed
again by the next owner, and none is lost.

Corresponds to DefaultMQPushConsumer, DefaultMQPushConsumerImpl and RebalanceImpl.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Unpack

from spark_rocket.client.consume.concurrently import ConsumeConcurrently
from spark_rocket.client.consume.group_consumer import GroupConsumer
from spark_rocket.client.consume.listeners import (
    BatchListener,
    ConcurrentListener,
    ConsumeHooks,
    MessageModel,
    OrderlyListener,
)
from spark_rocket.client.consume.orderly import ConsumeBatches, ConsumeOrderly
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import show_origin
from spark_rocket.client.consume.push_settings import PushOptions, PushSettings, split_options
from spark_rocket.client.consume.queue_locks import RENEW_SECONDS, QueueLocks
from spark_rocket.client.consume.services import PullDecoder, SendBack, ServiceParts
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.core.trace import ConsumeTraceHook, TraceDispatcher
from spark_rocket.client.send.producer import trace_producer
from spark_rocket.common.extras import requires
from spark_rocket.errors import StateError
from spark_rocket.model import RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.client import CONSUME_PASSIVELY
from spark_rocket.protocol.wire.bodies.consumer import PROP_THREADPOOL_CORE_SIZE, ConsumerRunningInfo
from spark_rocket.remoting.exposition import Exposition, label_text

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger(__name__)


class PushConsumer(GroupConsumer):
    """Consumes messages with a listener. Times are in seconds unless the name has a unit; limits are per queue.

    ``options``: see ``PushOptions``. ``listener`` consumes concurrently; use ``orderly=`` or ``batches=`` instead for
    the other two services. After ``max_reconsume_times`` failures (−1: 16, orderly: never) a message goes to
    ``%DLQ%group``. ``pull_batch_size`` is 32 by default, and larger for a backlog if the broker supports it.
    """

    consume_type = CONSUME_PASSIVELY

    def __init__(
        self,
        group: str,
        listener: ConcurrentListener | None = None,
        *,
        orderly: OrderlyListener | None = None,
        batches: BatchListener | None = None,
        enable_msg_trace: bool = False,
        customized_trace_topic: str | None = None,
        open_telemetry: TracerProvider | bool = False,
        **options: Unpack[PushOptions],
    ) -> None:
        settings, of_group = split_options(options)
        super().__init__(group, **of_group)
        is_clustering = self.message_model is MessageModel.CLUSTERING
        self._settings = PushSettings(listener, orderly, batches, is_clustering, **settings)
        self._queues.pull_settings = self._settings.pull_settings
        self.hooks = ConsumeHooks(group)
        self.tracer: TraceDispatcher | None = None
        if enable_msg_trace:
            new_sender = partial(trace_producer, self.name_server, self._config.instance_name, self._connecting)
            self.tracer = TraceDispatcher(customized_trace_topic, new_sender)
            self.hooks.consume.append(ConsumeTraceHook(self.tracer))
        if open_telemetry is not False:
            with requires("open_telemetry"):
                from spark_rocket.client.core.otel import ConsumeTracing

            self.hooks.consume.append(ConsumeTracing(open_telemetry))
        if self._settings.needs_locks:
            self._queues.locks = QueueLocks(self.instance, group)
        self._stop = threading.Event()
        self._closer: threading.Thread | None = None  # if close was called by a listener
        self._service: ConsumeConcurrently | ConsumeOrderly | ConsumeBatches | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and start consuming. An error makes the consumer permanently unusable."""
        instance = self._start_once()
        try:
            self._start_on_thread(partial(self._start, instance))
        except BaseException:
            self._failed = True
            self.close()
            raise

    def _start(self, instance: ClientInstance) -> None:
        try:
            if self.message_model is MessageModel.CLUSTERING:
                self._subscriptions.add(RETRY_PREFIX + self.group)
            if not any(not topic.startswith(RETRY_PREFIX) for topic in self._subscriptions.topics()):
                logger.warning("consumer of group %s started without a subscription", self.group)
            self._share.find_routes(self._subscriptions.topics(), warn=True)
            self._offsets.open()
            self._service = self._queues.receiver = self._make_service(instance)
            self._service.start()
            if not self._join():
                if self._closer is not None:  # by the listener of the first message
                    return
                self._check_running()
        except BaseException:
            if self._closing:  # by close(), before the join
                self._leave(instance)
            raise
        self.rebalance()
        for seconds, chore in (
            (RENEW_SECONDS, self._queues.renew_locks if self._settings.orderly is not None else None),
            (self._settings.consume_timeout / 2, self._return_expired if self._settings.listener is not None else None),
        ):
            if chore is not None:
                threading.Thread(target=self._every, args=(seconds, chore), name="rocket-consumer", daemon=True).start()

    def close(self) -> None:
        """Stop pulling, wait for listener calls, commit, leave the group. The first call does that, others wait for it.

        A call by a listener returns immediately: no new call is started, and the rest happens when this call has ended.
        """
        mine = self._is_mine
        service = self._service
        instance = self._shared if mine and self._pid else None
        leave: Callable[[], object] = (lambda: None) if instance is None else partial(self._leave, instance)
        listening = mine and service is not None and service.is_own_thread(threading.current_thread())
        if not listening:
            self._close_once(leave, self._close)
            if mine and self._closer is not None:
                self._closer.join()
            return
        with self._lock:
            if service is not None and not self._closing:
                self._closing = True
                service.stop()
                self._closer = threading.Thread(
                    target=self._leave_and_close, args=(leave,), name="rocket-consumer-close", daemon=False
                )
                self._closer.start()

    def _leave_and_close(self, leave: Callable[[], object]) -> None:
        try:
            leave()
        finally:
            self._close()

    def _close(self) -> None:
        with ExitStack() as steps:  # a Ctrl-C in one step does not skip the others
            if self._is_mine and self.tracer is not None:
                steps.callback(self.tracer.close)
            steps.callback(super().close)
            steps.callback(self._reader.close)

    def _leave(self, instance: ClientInstance) -> None:
        self._stop.set()
        with ExitStack() as steps:  # a Ctrl-C in one step does not skip the others
            steps.callback(instance.members.leave_consumer, self)
            steps.callback(self._queues.close)
            self._queues.suspended = True
            if self._service is not None:
                self._service.close(self._settings.shutdown_timeout)

    def suspend(self) -> None:
        """Pause pulling; pulled messages are still consumed."""
        self._queues.suspended = True

    def resume(self) -> None:
        self._queues.suspended = False

    def _every(self, seconds: float, chore: Callable[[], None]) -> None:
        while not self._stop.wait(seconds):
            try:
                chore()
            except Exception:
                logger.exception("background task of consumer group %s failed", self.group)

    def _return_expired(self) -> None:
        if isinstance(self._service, ConsumeConcurrently):
            self._service.return_expired(self.process_queues(), self._settings.consume_timeout)

    # --- state ------------------------------------------------------------------------------------------------

    def add_metrics(self, exposition: Exposition) -> None:
        shared = self._shared
        if shared is not None and self._is_mine:
            _add_figures(exposition, self, shared.client_id)

    def topics(self) -> list[str]:
        """Return the subscribed topics, including the retry topic."""
        return list(self._subscriptions.topics())

    def process_queues(self) -> list[ProcessQueue]:
        """Return the queues assigned to this consumer."""
        return self._queues.process_queues()

    def running_info(self) -> ConsumerRunningInfo:
        subscriptions = self._subscriptions.data()
        return ConsumerRunningInfo(
            properties=self._running_properties(orderly=self._settings.orderly is not None)
            | {
                PROP_THREADPOOL_CORE_SIZE: str(self._settings.consume_threads),
                "messageModel": self.message_model.value,
                "consumeFromWhere": self.consume_from_where.value,
                "consumeMessageBatchMaxSize": str(self._settings.consume_message_batch_max_size),
                "maxReconsumeTimes": str(self._settings.max_reconsume_times),
            },
            subscription_set=subscriptions,
            mq_table={one.queue: one.info() for one in self.process_queues()},
            status_table={data.topic: self.hooks.stats.status(data.topic) for data in subscriptions},
        )

    def consume_directly(self, records: bytes, broker_name: str) -> object:
        service = self._service
        message = decode_messages(records, broker_name, namespace=self._config.namespace)[0]
        queue = MessageQueue(message.topic, broker_name, message.queue_id)
        if isinstance(service, ConsumeBatches):
            with requires("Reading Arrow batches", "arrow"):
                from spark_rocket.protocol.record.columns import decode_records

            batch = decode_records(records, broker_name=broker_name, namespace=self._config.namespace)
            return service.consume_directly(batch, queue)
        if service is None:
            raise StateError(f"The consumer of group {self.group!r} is not started.", remedy="Start it first.")
        show_origin([message])
        return service.consume_directly([message], queue)

    # --- parts ------------------------------------------------------------------------------------------------

    def _make_service(self, instance: ClientInstance) -> ConsumeConcurrently | ConsumeOrderly | ConsumeBatches:
        settings = self._settings
        send_back = SendBack(instance, self.group, settings.reconsume_limit) if settings.is_clustering else None
        decoder = PullDecoder(self._subscriptions, self.hooks)
        parts = ServiceParts(decoder, self.hooks, self._queues, send_back, instance.call_later)
        return settings.make_service(parts, self._queues.count_of)


def _add_figures(exposition: Exposition, consumer: PushConsumer, client_id: str) -> None:
    group = label_text({"client_id": client_id, "consumer_group": consumer.group})
    exposition.add("rocket_client_rebalances_total", group, consumer.rebalances)
    by_topic = {topic: [0, 0, 0, 0] for topic in consumer.topics()}
    for one in consumer.process_queues():
        totals = by_topic.setdefault(one.queue.topic, [0, 0, 0, 0])
        totals[0] += 1
        totals[1] += one.count
        totals[2] += one.size
        totals[3] += max(one.broker_end - one.commit_offset, 0)
    names = (
        "rocket_client_queues",
        "rocketmq_consumer_cached_messages",
        "rocketmq_consumer_cached_bytes",
        "rocket_client_lag_messages",
    )
    address = client_id.partition("@")[0]
    for topic, totals in by_topic.items():
        labels = f"{group},{label_text({'topic': topic})}"
        for name, value in zip(names, totals, strict=True):
            exposition.add(name, labels, value)
        status = consumer.hooks.stats.status(topic)
        labels = label_text({"clientAddr": address, "clientId": client_id, "group": consumer.group, "topic": topic})
        for name, rate in (
            ("consume_ok_msg_tps", status.consume_ok_tps),
            ("consume_fail_msg_tps", status.consume_failed_tps),
            ("consume_fail_msg_count", status.consume_failed_msgs),
            ("consume_rt", status.consume_rt),
            ("consumer_pull_tps", status.pull_tps),
            ("consumer_pull_rt", status.pull_rt),
        ):
            exposition.add(f"rocketmq_client_{name}", labels, rate)
    if consumer.tracer is not None:
        labels = label_text({"client_id": client_id, "group": consumer.group})
        exposition.add("rocket_client_trace_dropped_total", labels, consumer.tracer.dropped)
