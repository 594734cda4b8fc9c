"""Where a producer's messages go: the queue of each attempt and the address of its broker's master.

A queue that was given, or that a selector or the message's sharding key chose, stays what it is, and they choose among
queues whose broker may be away (``routes``): such a send fails. Any other attempt
takes the next queue in turn, of another broker than the one that has just failed (``fault_latency``). Most sends find
their route known and cost two look-ups.

Thread-safety: all methods. Corresponds to DefaultMQProducerImpl.{tryToFindTopicPublishInfo, selectOneMessageQueue}.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.client.send.fault_latency import FaultStrategy
from spark_rocket.client.send.selectors import Selector, select_by_sharding_key
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import SHARDING_KEY, Message, MessageQueue

logger = logging.getLogger(__name__)

REFRESH_PAUSE = 0.5  # seconds in which a route is asked for once, however many sends fail


def left(deadline: float) -> float:
    """What is left of the time; never nothing, so that whoever is asked says himself that it is over."""
    return max(0.001, deadline - time.monotonic())


class Destinations:
    """See the module. ``running`` gives the instance; ``member``: brokers are to know of the producer's group."""

    def __init__(self, running: Callable[[], ClientInstance], faults: FaultStrategy, *, member: bool) -> None:
        self._running = running
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
        route = self._running().routes.known(topic)
        if route is None or (self._member and topic not in self._greeted):
            return self._faults.select(self._queues(topic, deadline), last_broker), ""
        queue = self._faults.select(route.writable, last_broker)
        return queue, route.masters[queue.broker_name]

    def address(self, queue: MessageQueue, deadline: float) -> str:
        """Of the queue's broker's master."""
        return self._running().routes.master(queue, left(deadline))

    def refresh(self, topic: str, deadline: float) -> None:
        """Ask for the route again, in half of the time that is left: the rest is for sending.

        Not if it has just been asked for: when a broker dies, thousands of sends come by.
        """
        now = time.monotonic()
        if now < self._refreshed.get(topic, 0.0) + REFRESH_PAUSE:
            return
        try:
            self._running().routes.refresh(topic, left(deadline) / 2)
        except RocketError as error:  # a topic not made yet, or no name server: what is known must do
            logger.info("the route of %s was not asked for again: %s", topic, error)
        self._refreshed[topic] = time.monotonic()

    def _queues(self, topic: str, deadline: float, *, ordered: bool = False) -> tuple[MessageQueue, ...]:
        instance = self._running()
        routes = instance.routes
        queues = (routes.order_route if ordered else routes.publish_route)(topic, left(deadline))
        if self._member and topic not in self._greeted:
            self._greeted.add(topic)
            instance.later(instance.members.greet_new_brokers)
        return queues
