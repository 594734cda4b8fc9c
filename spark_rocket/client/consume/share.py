"""Which queues of a topic are a member's own, and where it begins with one.

Thread-safety: all functions; they ask name servers and brokers, so they may block.
Corresponds to the parts of RebalanceImpl that have no state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from spark_rocket.client.consume.allocation import AllocateStrategy
from spark_rocket.client.consume.listeners import ConsumeFromWhere, MessageQueueListener
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import RETRY_PREFIX, MessageQueue

logger = logging.getLogger(__name__)

DEFAULT_LOOK_BACK_MS = 30 * 60 * 1000


class KnownQueues:
    """The queues that topics had when a consumer began with them: others came while it was running."""

    def __init__(self) -> None:
        self._topics: dict[str, frozenset[MessageQueue]] = {}

    def note(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """What a topic has now; only the first time counts."""
        self._topics.setdefault(topic, frozenset(queues))

    def is_new(self, queue: MessageQueue) -> bool:
        return queue not in self._topics.get(queue.topic, (queue,))


def find_routes(instance: ClientInstance, topics: Iterable[str], known: KnownQueues, *, warn: bool) -> None:
    """Know the brokers of every topic; one that does not exist yet is waited for."""
    for topic in topics:
        try:
            known.note(topic, instance.routes.route(topic).readable)
        except TopicNotFoundError as error:
            known.note(topic, ())
            if warn and not topic.startswith(RETRY_PREFIX):  # the first heartbeat makes that one
                logger.warning("%s is waited for: %s", topic, error)


def share_of(
    instance: ClientInstance, group: str, topic: str, strategy: AllocateStrategy | None
) -> list[MessageQueue] | None:
    """The queues that are this member's now; all if there is no strategy (broadcasting); None when the brokers do not
    say who is there."""
    queues = sorted(instance.routes.route(topic).readable)
    if strategy is None:
        return queues
    members = instance.consumer_ids(group, topic)
    if members is not None and instance.client_id not in members:
        instance.members.send_heartbeats()  # a broker that was started again has forgotten this member
        members = instance.consumer_ids(group, topic)
    if members is None or instance.client_id not in members:
        logger.warning(
            "no broker of %s counts this consumer among the members of %s: its queues stay as they are. If that goes"
            " on, create the group (brokers may have autoCreateSubscriptionGroup=false or rejectPullConsumerEnable).",
            topic,
            group,
        )
        return None
    return strategy.allocate(group, instance.client_id, queues, members)


def tell_of_queues(
    listener: MessageQueueListener, instance: ClientInstance, topic: str, mine: list[MessageQueue]
) -> None:
    """Whatever the listener does, consuming goes on."""
    try:
        listener(topic, list(instance.routes.route(topic).readable), mine)
    except Exception:
        logger.exception("the listener for changes of queues failed on %s", topic)


def first_offset(
    reader: Reader,
    offsets: OffsetStore,
    queue: MessageQueue,
    where: ConsumeFromWhere,
    timestamp_ms: int | None,
    *,
    is_new: bool,
) -> int:
    """Where the group goes on in a queue, or begins. Without a time stamp: half an hour ago.

    Of a queue that is new nothing may be passed over that was sent before the consumer heard of it.
    """
    kept = offsets.begin_new(queue) if is_new else offsets.read(queue)
    if kept is not None:
        return kept
    if queue.topic.startswith(RETRY_PREFIX) or where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return reader.min_offset(queue)
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return reader.max_offset(queue)
    moment = int(time.time() * 1000) - DEFAULT_LOOK_BACK_MS if timestamp_ms is None else timestamp_ms
    return reader.offset_for_time(queue, moment)
