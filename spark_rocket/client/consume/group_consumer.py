"""What push and pull consumers have in common: who they are, what they subscribe to, and what brokers are told of it.

Thread-safety: all methods. Corresponds to MQConsumerInner and to what DefaultMQPushConsumerImpl and
DefaultLitePullConsumerImpl both have.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import ClassVar, Self, Unpack

import spark_rocket
from spark_rocket.client.consume.allocation import AllocateAveragely, AllocateStrategy
from spark_rocket.client.consume.listeners import ConsumeFromWhere, MessageModel, MessageQueueListener
from spark_rocket.client.consume.offset_store import make_offset_store
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.consume.share import QueueShare
from spark_rocket.client.consume.subscriptions import Subscriptions
from spark_rocket.client.core.config import ClientConfig, Connecting
from spark_rocket.client.core.instance import Client, ClientInstance
from spark_rocket.client.core.validators import check_group
from spark_rocket.errors import RocketError, StateError
from spark_rocket.protocol.wire.bodies import (
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    ConsumerData,
    SubscriptionData,
)

logger = logging.getLogger(__name__)


class GroupConsumer(Client):
    """A consumer of a group. ``_closing`` is set, under ``_lock``, by whoever closes it first."""

    consume_type: ClassVar[str]

    def __init__(
        self,
        group: str,
        name_server: str | None,
        instance_name: str,
        message_model: MessageModel,
        consume_from_where: ConsumeFromWhere,
        consume_timestamp_ms: int | None,
        allocate_strategy: AllocateStrategy | None,
        message_queue_listener: MessageQueueListener | None,
        **connecting: Unpack[Connecting],
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
        self.group = check_group(group)
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self._reader = Reader(self.name_server, group=group, instance_name=instance_name, **connecting)
        self._subscriptions = Subscriptions()
        self._offsets = make_offset_store(self._reader, group, message_model, instance_name)
        self._share = QueueShare(
            group,
            self._instance,
            self._reader,
            self._offsets,
            (allocate_strategy or AllocateAveragely()) if message_model is MessageModel.CLUSTERING else None,
            consume_from_where,
            consume_timestamp_ms,
        )
        self._queue_listener = message_queue_listener
        self._lock = threading.Lock()
        self._pid = 0  # of the process that started it; 0: nobody has
        self._started_ms = 0
        self._closing = False

    def __enter__(self) -> Self:
        return self

    # --- state ------------------------------------------------------------------------------------------------

    def _start_once(self) -> ClientInstance:
        with self._lock:
            if self._pid:
                raise StateError(f"The consumer of group {self.group!r} was started before.", remedy="Start it once.")
            instance = self._instance()
            self._pid = os.getpid()
        self._started_ms = time.time_ns() // 1_000_000
        return instance

    @property
    def _is_mine(self) -> bool:
        """A forked child leaves the parent's work, and its locks, alone."""
        return self._pid in (0, os.getpid())

    def _check_running(self) -> None:
        if self._closing:
            raise StateError(f"The consumer of group {self.group!r} was closed.", remedy="Make a new one.")
        if not self._pid:
            raise StateError(f"The consumer of group {self.group!r} is not started.", remedy="Call start() first.")
        if not self._is_mine:
            raise StateError(
                f"The consumer of group {self.group!r} belongs to process {self._pid}, which this one was forked from.",
                remedy="Make a new one in this process.",
            )

    # --- as a member of the instance --------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """As heartbeats tell brokers."""
        return ConsumerData(
            self.group,
            self.consume_type,
            self.message_model.value,
            self.consume_from_where.value,
            self._subscriptions.data(),
        )

    def _look_for_brokers(self) -> None:
        """Know the topics' brokers, and be known to them."""
        instance = self._instance()
        try:
            self._share.find_routes(self._subscriptions.topics(), warn=False)
            instance.members.greet_new_brokers()
        except RocketError as error:
            logger.info("routes stay as they are: %s", error)

    def _check_filter(self, data: SubscriptionData) -> None:
        """While it runs, a subscription that a broker cannot filter by is refused at once."""
        self._instance().members.check_filters(self.group, [data])

    def _running_properties(self, *, orderly: bool) -> dict[str, str]:
        """What tools are told of any consumer (307)."""
        return {
            PROP_NAMESERVER_ADDR: self.name_server,
            PROP_CONSUME_TYPE: self.consume_type,
            PROP_CONSUME_ORDERLY: str(orderly).lower(),
            PROP_CONSUMER_START_TIMESTAMP: str(self._started_ms),
            PROP_CLIENT_VERSION: f"spark_rocket {spark_rocket.__version__}",
        }
