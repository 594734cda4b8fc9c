"""How much a push consumer takes ahead of its listener, before it stops pulling a queue for a while.

Limits are per queue. A limit per topic takes its place, divided by the queues that this member has of the topic just
then, so that it holds for them together. As what a pull brings is taken whole, each may be passed by one pull.

Thread-safety: all methods. Corresponds to the flow control of DefaultMQPushConsumerImpl.pullMessage and to
RebalancePushImpl.messageQueueChanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.client.consume.process_queue import ProcessQueue


@dataclass(frozen=True, slots=True)
class FlowControl:
    """``span``: from a queue's first message here to its last; None: any. ``queues_of``: how many, of a topic."""

    messages: int
    size: int
    span: int | None = None
    topic_messages: int | None = None
    topic_size: int | None = None
    queues_of: Callable[[str], int] = lambda _: 1

    def is_full(self, process_queue: ProcessQueue) -> bool:
        messages, size = self.messages, self.size
        if self.topic_messages is not None or self.topic_size is not None:
            queues = max(1, self.queues_of(process_queue.queue.topic))
            if self.topic_messages is not None:
                messages = max(1, self.topic_messages // queues)
            if self.topic_size is not None:
                size = max(1, self.topic_size // queues)
        return (
            process_queue.count > messages
            or process_queue.size > size
            or (self.span is not None and process_queue.span > self.span)
        )
