"""Where a producer's messages go: the queue of each attempt and the address of its broker's master.

A queue that was given, or that a selector or the message's sharding key chose, stays what it is, and they choose among
queues whose broker may be away (``routes``): such a send fails. Any other attempt takes the next queue in turn, of
another broker than the one that has just failed. With fault avoidance every send tells how long it took, and a broker
is passed over for a time that depends on that:

==================  =======  =======  ========  =====  =====  ======  =======
a send took (ms)    50       100      550       1,000  2,000  3,000   15,000
passed over for     0        0        30 s      60 s   120 s  180 s   600 s
==================  =======  =======  ========  =====  =====  ======  =======

A broker that could not be asked at all counts as one that took 30 s. If all are passed over, one of the better half is
taken all the same.

Thread-safety: all methods. Corresponds to DefaultMQProducerImpl.{tryToFindTopicPublishInfo, selectOneMessageQueue},
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
from typing import Any, TypeAlias

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import SHARDING_KEY, Message, MessageQueue
from spark_rocket.protocol.filter.tags import java_hash

logger = logging.getLogger(__name__)

REFRESH_PAUSE_S = 0.5  # in which a route is asked for once, however many sends fail
LATENCY_MAX = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
NOT_AVAILABLE_DURATION = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
ISOLATED = 30.0

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Messages with the same key (the argument, else ``__SHARDINGKEY``) go to the same queue while the queues stand.

    The queue that Java's client chooses for the same text: the size of its hash, modulo the number of queues.
    """
    text = message.properties.get(SHARDING_KEY, "") if key is None else str(key)
    return queues[abs(java_hash(text)) % len(queues)]


def select_by_random(queues: Sequence[MessageQueue], message: Message, arg: Any = None) -> MessageQueue:
    """Any queue."""
    return random.choice(queues)


class FaultStrategy:
    """Chooses queues. Times are seconds of ``clock``."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        enabled: bool = False,
        latency_max: Sequence[float] = LATENCY_MAX,
        not_available_duration: Sequence[float] = NOT_AVAILABLE_DURATION,
    ) -> None:
        self.enabled = enabled
        self._clock = clock
        self._latency_max = latency_max
        self._not_available_duration = not_available_duration
        self._turns = itertools.count(random.randrange(1024))
        self._faults: dict[str, tuple[float, float]] = {}  # broker -> (latency, from when on it is taken again)

    def select(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The queue for the next attempt; ``last_broker`` is where the one before failed."""
        if self.enabled and self._faults:
            return self._select_available(queues)
        if last_broker is not None:
            queues = [queue for queue in queues if queue.broker_name != last_broker] or queues
        return queues[next(self._turns) % len(queues)]

    def update(self, broker: str, latency: float, *, isolated: bool = False) -> None:
        """A send took so long; ``isolated``: the broker could not be asked."""
        if self.enabled:
            step = bisect_right(self._latency_max, ISOLATED if isolated else latency)
            duration = self._not_available_duration[step - 1] if step else 0.0
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


def left(deadline: float) -> float:
    """What is left of the time; never nothing, so that whoever is asked says himself that it is over."""
    return max(0.001, deadline - time.monotonic())


class Router:
    """See the module. ``member``: brokers are to know of the producer's group."""

    def __init__(self, instance: ClientInstance, faults: FaultStrategy, *, member: bool) -> None:
        self._instance = instance
        self._routes = instance.routes
        self._faults = faults
        self._member = member
        self._greeted: set[str] = set()  # topics whose brokers have been told of the group
        self._refreshed: dict[str, float] = {}  # when a topic's route was asked for again

    def fixed(
        self,
        message: Message | Sequence[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        selector_arg: Any,
        deadline: float,
    ) -> MessageQueue | None:
        """The queue that a send must go to; None if any will do."""
        first = message if isinstance(message, Message) else message[0]
        if queue is None:
            if selector is None:
                if SHARDING_KEY not in first.properties:
                    return None
                selector = select_by_sharding_key
            queue = selector(self._queues(first.topic, deadline, ordered=True), first, selector_arg)
            if not isinstance(queue, MessageQueue):
                raise ClientError(
                    f"The selector gave {queue!r:.80} for a message for {first.topic!r}, which is no queue.",
                    remedy="It is given the queues, the message and selector_arg, and returns one of the queues.",
                )
        if queue.topic != first.topic:
            raise ClientError(
                f"A message for {first.topic!r} cannot go to a queue of {queue.topic!r}.",
                remedy="Take the queue from queues(message.topic).",
            )
        return queue

    def choose(self, topic: str, last_broker: str | None, deadline: float) -> tuple[MessageQueue, str]:
        """The queue of the next attempt and its address, which is empty if it has to be asked for."""
        route = self._routes.known(topic)
        if route is None or (self._member and topic not in self._greeted):
            return self._faults.select(self._queues(topic, deadline), last_broker), ""
        queue = self._faults.select(route.writable, last_broker)
        return queue, route.masters[queue.broker_name]

    def address(self, queue: MessageQueue, deadline: float) -> str:
        """Of the queue's broker's master."""
        return self._routes.master(queue, left(deadline))

    def refresh(self, topic: str, deadline: float) -> None:
        """Ask for the route again, in half of the time that is left: the rest is for sending.

        Not if it has just been asked for: when a broker dies, thousands of sends come by.
        """
        now = time.monotonic()
        if now < self._refreshed.get(topic, 0.0) + REFRESH_PAUSE_S:
            return
        try:
            self._routes.refresh(topic, left(deadline) / 2)
        except RocketError as error:  # a topic not made yet, or no name server: what is known must do
            logger.info("the route of %s was not asked for again: %s", topic, error)
        self._refreshed[topic] = time.monotonic()

    def find(self, topic: str, deadline: float) -> None:
        """Ask for a route that is not known, so that later attempts need not wait for it."""
        if self._routes.known(topic) is None:
            self._queues(topic, deadline)

    def _queues(self, topic: str, deadline: float, *, ordered: bool = False) -> tuple[MessageQueue, ...]:
        queues = (self._routes.order_route if ordered else self._routes.publish_route)(topic, left(deadline))
        if self._member and topic not in self._greeted:
            self._greeted.add(topic)
            self._instance.later(self._instance.members.register_at_new_brokers)
        return queues
