"""Common parts of push and pull consumers: identity, subscribing, heartbeat data, and what tools ask for.

Corresponds to MQConsumerInner and the common parts of DefaultMQPushConsumerImpl and DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, Self, Unpack

import spark_rocket
from spark_rocket.client.consume.allocation import AllocateAveragely, AllocateStrategy, QueueShare
from spark_rocket.client.consume.listeners import (
    ConsumeFromWhere,
    MessageModel,
    MessageQueueListener,
)
from spark_rocket.client.consume.offset_store import make_offset_store
from spark_rocket.client.consume.owned_queues import OwnedQueues
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.consume.subscriptions import Filter, Subscriptions
from spark_rocket.client.consume.tool_requests import handle_tool_requests
from spark_rocket.client.core.client_config import ClientConfig, Connecting
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.core.lifecycle import Client
from spark_rocket.client.core.validators import check_group
from spark_rocket.common.system import now_ms
from spark_rocket.errors import RocketError, StateError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL
from spark_rocket.protocol.wire.bodies.client import ConsumerData, SubscriptionData
from spark_rocket.protocol.wire.bodies.consumer import (
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    ConsumerRunningInfo,
)
from spark_rocket.remoting.client.promise import run_on
from spark_rocket.remoting.event_loop import CallbackThread

logger = logging.getLogger(__name__)


class GroupOptions(Connecting, total=False):
    """The settings that all consumers of a group have; ``GroupConsumer`` has the defaults.

    ``consume_from_where``: the start of a group without a committed offset; ``consume_timestamp_ms`` None means half an
    hour ago. ``allocate_strategy``: how members share queues, :class:`AllocateAveragely` by default.
    ``message_queue_listener`` is called when the queues of this member changed.
    """

    name_server: str | None
    instance_name: str
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    allocate_strategy: AllocateStrategy | None
    message_queue_listener: MessageQueueListener | None


class GroupConsumer(Client, ABC):
    """A consumer of a group. ``_closing`` is set, under ``_lock``, by the first call of close.

    ``auto_commit``: whether delivered messages are committed without a call of the application.
    """

    consume_type: ClassVar[str]
    auto_commit = True

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
        message_queue_listener: MessageQueueListener | None = None,
        **connecting: Unpack[Connecting],
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
        self._connecting = connecting
        self.group = check_group(self.namespace.unwrap(group))
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self._reader = Reader(self.name_server, group=self.group, instance_name=instance_name, **connecting)
        self._subscriptions = Subscriptions()
        self._offsets = make_offset_store(self._reader, group, message_model, instance_name)
        self._share = QueueShare(
            group,
            self.instance,
            self._reader,
            self._offsets,
            (allocate_strategy or AllocateAveragely()) if message_model is MessageModel.CLUSTERING else None,
            consume_from_where,
            consume_timestamp_ms,
        )
        self._queues = OwnedQueues(group, self.instance, self._share, self._reader, self._offsets, self._filter_of)
        self._queue_listener = message_queue_listener
        self.rebalances = 0
        self._balancing = threading.RLock()  # so that a rebalance does not take a topic that was just left
        self._lock = threading.RLock()
        self._pid = 0  # of the process that started it; 0: not started
        self._started_ms = 0
        self._closing = False

    def __enter__(self) -> Self:
        return self

    # --- state ------------------------------------------------------------------------------------------------

    def _start_once(self) -> ClientInstance:
        with self._lock:
            if self._pid:
                raise StateError(
                    f"The consumer of group {self.group!r} was already started.", remedy="Call start() only once."
                )
            instance = self.instance()
            self._pid = os.getpid()
        self._started_ms = now_ms()
        return instance

    def _start_on_thread(self, start: Callable[[], object]) -> None:
        """Start on a thread, and wait. An interrupt (Ctrl-C) ends the wait, after which ``close`` ends the start."""
        run_on(CallbackThread("rocket-start", idle=0.0), start)

    def _close_once(self, leave: Callable[[], object], close: Callable[[], object]) -> None:
        """Leave and close unless another call does. What an interrupt has cut off is done again: it can be repeated.

        ``leave`` comes first then, too: the last commits need what ``close`` ends.
        """
        first = False
        try:
            with self._lock if self._is_mine else nullcontext():
                if not self._closing:
                    first = self._closing = True
            if first:
                leave()
                close()
        except BaseException:
            if first:
                try:
                    leave()
                finally:
                    close()
            raise

    @property
    def _is_mine(self) -> bool:
        """Whether this process started it: a forked child must not use the parent's threads and locks."""
        return self._pid in (0, os.getpid())

    @property
    def _runs(self) -> bool:
        return bool(self._pid) and not self._closing

    def _check_running(self) -> None:
        if self._closing:
            raise StateError(f"The consumer of group {self.group!r} is closed.", remedy="Create a new one.")
        if not self._pid:
            raise StateError(f"The consumer of group {self.group!r} is not started.", remedy="Call start() first.")
        if not self._is_mine:
            raise StateError(
                f"The consumer of group {self.group!r} was started in process {self._pid}, the parent of this one.",
                remedy="Create a new one in this process.",
            )

    # --- subscribing ------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = SUB_ALL, *, sql: str | None = None) -> None:
        """Share a topic with the group: messages with one of the tags, or that match an SQL92 expression.

        A second subscription to a topic replaces the first. It takes effect immediately on a running consumer.
        """
        started = bool(self._pid)
        if started:
            self._check_running()
        with self._lock:
            self._check_subscribable()
            changed = self._subscriptions.add(topic, tags, sql, self._check_filter if started else None)
        if started:
            self._announce()
            if changed:
                self._queues.restart_pulls(topic)

    def _check_subscribable(self) -> None:
        """StateError if the consumer cannot have subscriptions."""

    def _announce(self) -> None:
        """Make a changed subscription known to the group, and take a share of its queues."""
        members = self.instance().members
        members.send_heartbeats()
        members.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic; its queues are released immediately."""
        if self._subscriptions.remove(topic) and self._runs:
            with self._balancing:
                self._queues.own((), topic, mark=self.auto_commit)
            self.instance().members.send_heartbeats()

    def _filter_of(self, topic: str) -> Filter | None:
        """Return the filter of pulls; None if the topic is not subscribed."""
        return self._subscriptions.filter_of(topic)

    # --- as a member of the instance --------------------------------------------------------------------------

    def _join(self) -> bool:
        """Join the group; False if the consumer was closed in the meantime."""
        instance = self.instance()
        handle_tool_requests(instance, partial(_consumer_of, instance))
        try:
            instance.members.join_consumer(self)
        finally:
            if self._closing:
                instance.members.leave_consumer(self)
        return not self._closing

    def rebalance(self) -> None:
        """Determine the queues of this member in every topic, and start or stop reading them."""
        if not self._runs:
            return
        self._look_for_brokers()
        self.rebalances += 1
        shares = {}
        for topic in self._subscriptions.topics():
            with self._balancing:  # a share determined earlier must not replace a later one
                try:
                    mine = self._share.queues_of(topic)
                except RocketError as error:
                    logger.info("queues of topic %s not rebalanced: %s", topic, error)
                    continue
                if mine is not None and topic in self._subscriptions:
                    self._queues.own(mine, topic)  # marks nothing: the last delivered messages may still be in use
                    shares[topic] = mine
        self._queues.start()
        if self._queue_listener is not None:
            for topic, mine in shares.items():
                self._share.notify(self._queue_listener, topic, mine)

    def persist_offsets(self) -> None:
        """Send the offsets of the group to the brokers, or write them to disk. Runs every 5 s."""
        self._queues.persist()

    def consumer_data(self) -> ConsumerData:
        """Return the consumer's part of heartbeats."""
        return ConsumerData(
            self.group,
            self.consume_type,
            self.message_model.value,
            self.consume_from_where.value,
            self._subscriptions.data(),
        )

    def _look_for_brokers(self) -> None:
        """Fetch the routes of the topics, and register at their brokers."""
        instance = self.instance()
        try:
            self._share.find_routes(self._subscriptions.topics(), warn=False)
            instance.members.register_at_new_brokers()
        except RocketError as error:
            logger.info("routes not refreshed: %s", error)

    def _check_filter(self, data: SubscriptionData) -> None:
        """Reject a subscription of a running consumer immediately if a broker cannot filter by it."""
        self.instance().members.check_filters(self.group, [data])

    # --- requests of tools, sent by brokers -------------------------------------------------------------------

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at the given offsets in queues assigned to this consumer (220)."""
        self._queues.restart(offsets, commit=True)

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of this consumer's queues of a topic (221)."""
        return {queue: offset for queue, offset in self._queues.positions().items() if queue.topic == topic}

    @abstractmethod
    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of this consumer (307)."""

    @abstractmethod
    def consume_directly(self, records: bytes, broker_name: str) -> object:
        """Have the listener consume one stored message without committing it (309); return or raise its result."""

    def _running_properties(self, *, orderly: bool) -> dict[str, str]:
        """Return the properties of running info (307) that all consumers have."""
        return {
            PROP_NAMESERVER_ADDR: self.name_server,
            PROP_CONSUME_TYPE: self.consume_type,
            PROP_CONSUME_ORDERLY: str(orderly).lower(),
            PROP_CONSUMER_START_TIMESTAMP: str(self._started_ms),
            PROP_CLIENT_VERSION: f"spark_rocket {spark_rocket.__version__}",
        }


def _consumer_of(instance: ClientInstance, group: str) -> GroupConsumer | None:
    member = instance.members.consumers.get(group)
    return member if isinstance(member, GroupConsumer) else None
