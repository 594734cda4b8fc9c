"""Common parts of push and pull consumers: identity, subscriptions, heartbeat data, and requests of tools.

Tools send requests to consumers through brokers:

====  ================================  ============================================================================
code  request                           action of the consumer
====  ================================  ============================================================================
220   RESET_CONSUMER_CLIENT_OFFSET      continues at the given offsets in its assigned queues; no response
221   GET_CONSUMER_STATUS_FROM_CLIENT   returns its offsets in its queues of a topic
307   GET_CONSUMER_RUNNING_INFO         returns settings, subscriptions, queues and optionally thread stacks
309   CONSUME_MESSAGE_DIRECTLY          has its listener consume the message in the request, and returns the result
====  ================================  ============================================================================

If this instance has no such consumer, the response has code 1. Handlers run on the pool of ``Membership``, so they may
block.

Thread-safety: all methods. Corresponds to ClientRemotingProcessor, MQConsumerInner, the common parts of
DefaultMQPushConsumerImpl and DefaultLitePullConsumerImpl, and subscriptionInner of RebalanceImpl.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Self, Unpack

import spark_rocket
from spark_rocket.client.consume.allocation import AllocateAveragely, AllocateStrategy, QueueShare
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageModel,
    MessageQueueListener,
)
from spark_rocket.client.consume.offset_store import make_offset_store
from spark_rocket.client.consume.owned_queues import OwnedQueues
from spark_rocket.client.consume.process_queue import PullSettings
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.client_config import ClientConfig, Connecting
from spark_rocket.client.core.instance import Client, ClientInstance
from spark_rocket.client.core.validators import check_group, check_topic
from spark_rocket.errors import ProtocolError, RocketError, StateError, SubscriptionRefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
from spark_rocket.protocol.wire.bodies.client import ConsumerData, SubscriptionData
from spark_rocket.protocol.wire.bodies.consumer import (
    CR_LATER,
    CR_RETURN_NULL,
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)

logger = logging.getLogger(__name__)


class Subscriptions:
    """The subscriptions of one consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: dict[str, SubscriptionData] = {}
        self._tags: dict[str, TagExpression] = {}

    def add(
        self,
        topic: str,
        tags: str = SUB_ALL,
        sql: str | None = None,
        check: Callable[[SubscriptionData], None] | None = None,
    ) -> bool:
        """Subscribe, replacing an earlier subscription to the topic; return whether the filter changed.

        SubscriptionRefusedError for an invalid expression. That error, and one of ``check``, leaves the subscriptions
        unchanged.
        """
        check_topic(topic)
        if sql is not None:
            try:
                parse_sql92(sql)
            except ProtocolError as error:
                code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
                raise SubscriptionRefusedError(error.message, remedy=error.remedy, response_code=code) from None
        wanted = parse_tags(None if sql else tags)
        version = time.time_ns() // 1_000_000
        data = SubscriptionData.build(topic, sql or tags, version, TYPE_SQL92 if sql else TYPE_TAG)
        if check is not None:
            check(data)
        with self._lock:
            before = self._data.get(topic)
            self._data[topic] = data
            self._tags[topic] = wanted
        filters = [(one.expression_type, one.sub_string) for one in (before, data) if one is not None]
        return filters[0] != filters[-1]

    def remove(self, topic: str) -> bool:
        """Unsubscribe; return whether the topic was subscribed."""
        with self._lock:
            self._tags.pop(topic, None)
            return self._data.pop(topic, None) is not None

    def __contains__(self, topic: object) -> bool:
        return topic in self._data

    def __bool__(self) -> bool:
        return bool(self._data)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._data)

    def data(self) -> list[SubscriptionData]:
        """Return the subscriptions as sent to brokers."""
        with self._lock:
            return list(self._data.values())

    def expression_of(self, topic: str) -> tuple[str, str | None] | None:
        """Return the tags and the SQL92 expression for pulls of a topic; None if it is not subscribed."""
        data = self._data.get(topic)
        if data is None:
            return None
        return (SUB_ALL, data.sub_string) if data.expression_type == TYPE_SQL92 else (data.sub_string, None)

    def tags_of(self, topic: str) -> TagExpression:
        """Return the client-side tag filter of a topic."""
        return self._tags.get(topic) or parse_tags(None)


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
        self.group = check_group(group)
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self._reader = Reader(self.name_server, group=group, instance_name=instance_name, **connecting)
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
        self._queues = OwnedQueues(group, self.instance, self._share, self._reader, self._offsets, self._pull_settings)
        self._queue_listener = message_queue_listener
        self.rebalances = 0
        self._balancing = threading.Lock()  # so that a rebalance does not take a topic that was just left
        self._lock = threading.Lock()
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
        self._started_ms = time.time_ns() // 1_000_000
        return instance

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

    @abstractmethod
    def _pull_settings(self, topic: str) -> PullSettings | None:
        """Return the settings of pulls; None if the topic is not subscribed."""

    # --- as a member of the instance --------------------------------------------------------------------------

    def _join(self) -> bool:
        """Join the group; False if the consumer was closed in the meantime."""
        instance = self.instance()
        answer_tools(instance)
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


# --- requests of tools ---------------------------------------------------------------------------------------------

_RESULTS = {
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: CR_SUCCESS,
    ConsumeConcurrentlyStatus.RECONSUME_LATER: CR_LATER,
    ConsumeOrderlyStatus.SUCCESS: CR_SUCCESS,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: CR_LATER,
}


def answer_tools(instance: ClientInstance) -> None:

    def consumer(group: str) -> GroupConsumer | None:
        found = instance.members.consumers.get(group)
        return found if isinstance(found, GroupConsumer) else None

    def reset(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = ResetOffsetRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.group)
        logger.warning("offsets of group %s in topic %s reset by a broker", header.group, header.topic)
        if found is not None:
            offsets = ResetOffsetBody.from_json(bytes(request.body)).offset_table
            found.reset_offsets({queue: offset for queue, offset in offsets.items() if queue.topic == header.topic})
        return None

    def status(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerStatusRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.group)
        offsets = {} if found is None else found.offsets(header.topic)
        return _response(request, GetConsumerStatusBody(message_queue_table=offsets).to_json())

    def running_info(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.consumer_group)
        if found is None:
            return _unknown_group(request, header.consumer_group)
        info = found.running_info()
        if header.jstack_enable:
            info.jstack = stacks()
        return _response(request, info.to_json())

    def consume(_: str, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext(request.ext_fields)
        found = consumer(header.consumer_group)
        if found is None:
            return _unknown_group(request, header.consumer_group)
        return _response(request, _consume(found, bytes(request.body), header.broker_name or "").to_json())

    handlers: dict[int, Callable[[str, RemotingCommand], RemotingCommand | None]] = {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }
    instance.members.handlers.update(handlers)


def _consume(consumer: GroupConsumer, records: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
    started = time.monotonic()
    result = ConsumeMessageDirectlyResult()
    try:
        status = consumer.consume_directly(records, broker_name)
    except RocketError:
        raise  # an invalid message or a stopped consumer: not an error of the listener
    except BaseException as error:
        result.consume_result, result.remark = CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
    else:
        result.order = isinstance(status, ConsumeOrderlyStatus)
        if isinstance(status, ConsumeOrderlyStatus | ConsumeConcurrentlyStatus):
            result.consume_result = _RESULTS[status]
        else:
            result.consume_result = CR_RETURN_NULL
            result.remark = None if status is None else f"the listener returned {status!r}"
    result.spent_time_mills = int((time.monotonic() - started) * 1000)
    return result


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _response(request: RemotingCommand, body: bytes) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.SUCCESS, None, None, body)


def _unknown_group(request: RemotingCommand, group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)
