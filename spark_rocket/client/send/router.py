"""The route of a send: the queue of each attempt and the address of its master.

A queue that was given, or chosen by a selector or the message's sharding key, is fixed. Those choose among queues that
include unavailable brokers (``routes``), so such a send may fail. Any other attempt uses the next queue in turn, of a
broker other than the one that has just failed. With fault avoidance the latency of every send is recorded, and a broker
is avoided for a time that depends on it:

==================  =======  =======  ========  =====  =====  ======  =======
latency (ms)        50       100      550       1,000  2,000  3,000   15,000
avoided for         0        0        30 s      60 s   120 s  180 s   600 s
==================  =======  =======  ========  =====  =====  ======  =======

A broker that could not be reached counts as one with a latency of 30 s. If all brokers are avoided, one of the better
half is used.

Corresponds to DefaultMQProducerImpl.{tryToFindTopicPublishInfo, selectOneMessageQueue},
org.apache.rocketmq.client.latency.{MQFaultStrategy, LatencyFaultToleranceImpl} and
org.apache.rocketmq.client.producer.selector.{SelectMessageQueueByHash, SelectMessageQueueByRandom}.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.common.arguments import checked, refuse
from spark_rocket.common.system import time_left
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import SHARDING_KEY, Message, MessageQueue
from spark_rocket.protocol.filter.tags import java_hash

logger = logging.getLogger(__name__)

REFRESH_PAUSE_S = 0.5  # the minimum interval of refreshes of a route, however many sends fail
LATENCY_MAX_S = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
NOT_AVAILABLE_DURATION_S = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
ISOLATED_LATENCY_S = 30.0

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class QueueChoice(TypedDict, total=False):
    """The choice of a message's queue: the queue itself, or a selector and its argument."""

    queue: MessageQueue | None
    selector: Selector | None
    selector_arg: Any


@checked
def select_by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Send messages with the same key (argument or ``__SHARDINGKEY``) to the same queue while the queues are unchanged.

    Chooses the same queue as Java's client: the absolute value of the hash, modulo the number of queues.
    """
    return _by_sharding_key(_some(queues), message, key)


def _by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    text = message.properties.get(SHARDING_KEY, "") if key is None else str(key)
    return queues[abs(java_hash(text)) % len(queues)]


@checked
def select_by_random(queues: Sequence[MessageQueue], message: Message, arg: Any = None) -> MessageQueue:
    """Choose a random queue."""
    return random.choice(_some(queues))


def _some(queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    if not queues:
        raise refuse("queues", queues, "at least one queue")
    return queues


class FaultStrategy:
    """Chooses queues. Times are seconds of ``clock``."""

    def __init__(self, clock: Callable[[], float], *, enabled: bool = False) -> None:
        self.enabled = enabled
        self._clock = clock
        self._turns = itertools.count(random.randrange(1024))
        self._faults: dict[str, tuple[float, float]] = {}  # broker -> (latency, end of the avoidance)

    def select(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """Return the queue of the next attempt; ``last_broker`` is that of the failed one."""
        if self.enabled and self._faults:
            return self._select_available(queues)
        if last_broker is not None:
            queues = [queue for queue in queues if queue.broker_name != last_broker] or queues
        return queues[next(self._turns) % len(queues)]

    def update(self, broker: str, latency: float, *, isolated: bool = False) -> None:
        """Record the latency of a send; ``isolated``: the broker could not be reached."""
        if self.enabled:
            step = bisect_right(LATENCY_MAX_S, ISOLATED_LATENCY_S if isolated else latency)
            duration = NOT_AVAILABLE_DURATION_S[step - 1] if step else 0.0
            self._faults[broker] = latency, self._clock() + duration

    def is_available(self, broker: str) -> bool:
        fault = self._faults.get(broker)
        return fault is None or self._clock() >= fault[1]

    def _select_available(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        turn = next(self._turns)
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if self.is_available(queue.broker_name):
                return queue
        brokers = {queue.broker_name for queue in queues}
        best_first = sorted(brokers, key=lambda broker: self._faults[broker])
        better = best_first[turn % max(1, len(best_first) // 2)]
        own = [queue for queue in queues if queue.broker_name == better]
        return own[turn % len(own)]


class Router:
    """Chooses queues and addresses. ``member``: register the producer's group at the brokers."""

    def __init__(self, instance: ClientInstance, faults: FaultStrategy, *, member: bool) -> None:
        self._instance = instance
        self._routes = instance.routes
        self._faults = faults
        self._member = member
        self._registered: set[str] = set()  # topics whose brokers have the group
        self._refreshed: dict[str, float] = {}  # time of the last refresh by topic

    def fixed(self, message: Message | Sequence[Message], where: QueueChoice, deadline: float) -> MessageQueue | None:
        """Return the queue that a send must use; None if any queue is possible."""
        first = message if isinstance(message, Message) else message[0]
        queue, selector = where.get("queue"), where.get("selector")
        if queue is None:
            if selector is None:
                if SHARDING_KEY not in first.properties:
                    return None
                selector = _by_sharding_key
            queue = selector(self._queues(first.topic, deadline, ordered=True), first, where.get("selector_arg"))
            if not isinstance(queue, MessageQueue):
                raise ClientError(
                    f"The selector returned {queue!r:.80} instead of a MessageQueue for a message of {first.topic!r}.",
                    remedy="Return one of the queues passed to the selector.",
                )
        if queue.topic != first.topic:
            raise ClientError(
                f"Cannot send a message of topic {first.topic!r} to a queue of {queue.topic!r}.",
                remedy="Use a queue of queues(message.topic).",
            )
        return queue

    def choose(self, topic: str, last_broker: str | None, deadline: float) -> tuple[MessageQueue, str]:
        """Return the queue of the next attempt and its address, empty if it must be looked up."""
        route = self._routes.known(topic)
        if route is None or (self._member and topic not in self._registered):
            return self._faults.select(self._queues(topic, deadline), last_broker), ""
        queue = self._faults.select(route.writable, last_broker)
        return queue, route.masters[queue.broker_name]

    def knows(self, message: Message, where: QueueChoice) -> bool:
        """Whether the message's queue and its address can be found without a request."""
        topic, queue = message.topic, where.get("queue")
        if queue is not None:
            route = self._routes.cached(topic)
            return route is not None and queue.broker_name in route.masters
        route = self._routes.known(topic)
        if route is None or (self._member and topic not in self._registered):
            return False
        return not route.lacks_masters or not (where.get("selector") or SHARDING_KEY in message.properties)

    def address(self, queue: MessageQueue, deadline: float) -> str:
        return self._routes.master(queue, time_left(deadline))

    def refresh(self, topic: str, deadline: float) -> None:
        """Refresh the route, with half of the remaining time: the rest is for sending.

        Skipped if it was just refreshed: when a broker dies, thousands of sends fail.
        """
        now = time.monotonic()
        if now < self._refreshed.get(topic, 0.0) + REFRESH_PAUSE_S:
            return
        try:
            self._routes.refresh(topic, time_left(deadline) / 2)
        except RocketError as error:  # a missing topic, or no name server: use the cached route
            logger.info("route of topic %s not refreshed: %s", topic, error)
        self._refreshed[topic] = time.monotonic()

    def find(self, topic: str, deadline: float) -> None:
        """Fetch an unknown route, so that later attempts need not wait for it."""
        if self._routes.known(topic) is None:
            self._queues(topic, deadline)

    def _queues(self, topic: str, deadline: float, *, ordered: bool = False) -> tuple[MessageQueue, ...]:
        queues = (self._routes.order_route if ordered else self._routes.publish_route)(topic, time_left(deadline))
        if self._member and topic not in self._registered:
            self._registered.add(topic)
            self._instance.later(self._instance.members.register_at_new_brokers)
        return queues
