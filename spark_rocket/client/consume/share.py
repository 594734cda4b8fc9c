"""The share of a topic's queues that belongs to one member of a group, and the offset at which it starts in a queue.

Thread-safety: all methods; they send requests to name servers and brokers, so they may block.
Corresponds to the parts of RebalanceImpl that choose queues and starting offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from spark_rocket.client.consume.allocation import AllocateStrategy
from spark_rocket.client.consume.listeners import ConsumeFromWhere, MessageQueueListener
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import RETRY_PREFIX, MessageQueue

logger = logging.getLogger(__name__)

DEFAULT_LOOK_BACK_MS = 30 * 60 * 1000


class QueueShare:
    """One member's. ``strategy``: None gives it every queue (broadcasting).

    A group without a committed offset starts ``where`` says; ``timestamp_ms`` None means half an hour ago.
    """

    def __init__(
        self,
        group: str,
        instance: Callable[[], ClientInstance],
        reader: Reader,
        offsets: OffsetStore,
        strategy: AllocateStrategy | None,
        where: ConsumeFromWhere,
        timestamp_ms: int | None = None,
    ) -> None:
        self._group = group
        self._instance = instance
        self._reader = reader
        self._offsets = offsets
        self._strategy = strategy
        self._where = where
        self._timestamp_ms = timestamp_ms
        self._first_queues: dict[str, frozenset[MessageQueue]] = {}  # what topics had when the consumer started
        self._told: dict[str, list[MessageQueue]] = {}

    @property
    def is_broadcast(self) -> bool:
        return self._strategy is None

    def find_routes(self, topics: Iterable[str], *, warn: bool) -> None:
        """Learn the brokers of every topic. A topic that does not exist yet is looked up again later."""
        for topic in topics:
            try:
                self.note(topic, self._instance().routes.route(topic).readable)
            except TopicNotFoundError as error:
                self.note(topic, ())
                if warn and not topic.startswith(RETRY_PREFIX):  # the first heartbeat creates that one
                    logger.warning("waiting for topic %s: %s", topic, error)

    def note(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """The queues that a topic has now; only the first call for a topic counts."""
        self._first_queues.setdefault(topic, frozenset(queues))

    def queues_of(self, topic: str) -> list[MessageQueue] | None:
        """The queues that are this member's now; None when the brokers do not know the group's members."""
        instance = self._instance()
        queues = sorted(instance.routes.route(topic).readable)
        if self._strategy is None:
            return queues
        members = instance.consumer_ids(self._group, topic)
        if members is not None and instance.client_id not in members:
            instance.members.send_heartbeats()  # a restarted broker has forgotten this member
            members = instance.consumer_ids(self._group, topic)
        if members is None or instance.client_id not in members:
            logger.warning(
                "no broker of %s counts this consumer among the members of %s: its queues stay as they are. If that"
                " continues, create the group (brokers may have autoCreateSubscriptionGroup=false or"
                " rejectPullConsumerEnable).",
                topic,
                self._group,
            )
            return None
        return self._strategy.allocate(self._group, instance.client_id, queues, members)

    def first_offset(self, queue: MessageQueue) -> int:
        """Where the group continues in a queue, or starts.

        A queue that was added while the consumer was running is read from its first message.
        """
        is_new = queue not in self._first_queues.get(queue.topic, (queue,))
        committed = self._offsets.begin_new(queue) if is_new else self._offsets.read(queue)
        if committed is not None:
            return committed
        if queue.topic.startswith(RETRY_PREFIX) or self._where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return self._reader.min_offset(queue)
        if self._where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return self._reader.max_offset(queue)
        moment = int(time.time() * 1000) - DEFAULT_LOOK_BACK_MS if self._timestamp_ms is None else self._timestamp_ms
        return self._reader.offset_for_time(queue, moment)

    def tell(self, listener: MessageQueueListener, topic: str, mine: list[MessageQueue]) -> None:
        """Call the listener if the member's queues of a topic have changed. Its errors are logged."""
        if mine == self._told.get(topic, []):
            return
        self._told[topic] = mine
        try:
            listener(topic, list(self._instance().routes.route(topic).readable), mine)
        except Exception:
            logger.exception("the listener for changes of queues failed on %s", topic)
