"""Listeners and hooks of a push consumer: their arguments and results.

=====================  ===========================================  ===============================================
listener               arguments                                    result
=====================  ===========================================  ===============================================
concurrent             messages of one queue, a context; on many    :class:`ConsumeConcurrentlyStatus`
                       threads, in no order
orderly                messages of one queue in order, a context;   :class:`ConsumeOrderlyStatus`
                       one thread per queue at a time
Arrow batches          a ``pyarrow.RecordBatch`` of one queue in    success of either class; any other result
                       order, a context; one thread per queue       redelivers the batch
=====================  ===========================================  ===============================================

If a listener raises or returns anything else (including ``None``, as in Java), its messages count as not consumed.
Hooks run before and after each call of a listener, and filter the messages before it; their exceptions are logged.

Thread-safety: hooks are called on several threads of the consumer at once; lists of hooks do
not change once it runs. Corresponds to org.apache.rocketmq.client.consumer.listener, common.consumer.ConsumeFromWhere
and org.apache.rocketmq.client.hook.{ConsumeMessageHook, FilterMessageHook}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.client.consume.consumer_stats import ConsumerStats
from spark_rocket.client.core.hooks import ConsumeMessageContext, ConsumeMessageHook
from spark_rocket.model import MessageExt, MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ALL_MESSAGES = 2**31 - 1
MIN_PAUSE_MS, MAX_PAUSE_MS = 10, 30_000


class ConsumeConcurrentlyStatus(Enum):
    """The results of a concurrent listener."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """The results of an orderly listener."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ConsumeFromWhere(Enum):
    """The start of a group without a committed offset. Retry topics are always consumed from their first message."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether the members of a group share the messages of a topic, or each member receives all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """The context of one call of a concurrent listener.

    ``ack_index``: the index of the last consumed message of a successful call; the rest is retried.
    ``delay_level_when_next_consume``: −1 for the dead-letter topic, 0 for the broker's default, or a delay level.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int = ALL_MESSAGES


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """The context of one call of an orderly or Arrow listener.

    ``suspend_current_queue_time_millis``: the pause of the queue after a failure; −1: the setting of the consumer.
    """

    message_queue: MessageQueue
    suspend_current_queue_time_millis: int = -1

    def pause(self, usual_ms: int) -> float:
        """Return the pause of the queue in seconds: the one set by the listener, limited to the allowed range."""
        wanted: object = self.suspend_current_queue_time_millis
        given = wanted if isinstance(wanted, int) and wanted >= 0 else usual_ms
        return max(MIN_PAUSE_MS, min(given, MAX_PAUSE_MS)) / 1000


ConcurrentListener: TypeAlias = Callable[[list[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus]
OrderlyListener: TypeAlias = Callable[[list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus]
MessageQueueListener: TypeAlias = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
"""Called when the queues of this consumer changed, with a topic, all its queues, and those of this consumer."""
BatchListener: TypeAlias = "Callable[[pa.RecordBatch, ConsumeOrderlyContext], ConsumeOrderlyStatus]"


FilterMessageHook = Callable[[MessageQueue, list[MessageExt]], Iterable[MessageExt]]
"""Filters the messages of a pull, after the filter by tags; only the returned messages are consumed."""


class ConsumeHooks:
    """The hooks of one consumer; ``stats`` also counts every call."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.stats = ConsumerStats()
        self.consume: list[ConsumeMessageHook] = []
        self.filter: list[FilterMessageHook] = []

    def before(self, messages: Sequence[MessageExt], queue: MessageQueue) -> ConsumeMessageContext:
        """Call the hooks before the listener; pass the result to ``after``."""
        context = ConsumeMessageContext(self._group, tuple(messages), queue)
        for hook in self.consume:
            self._run(hook, hook.consume_message_before, context)
        return context

    def after(self, context: ConsumeMessageContext, *, success: bool, status: str) -> None:
        context.success, context.status = success, status
        for hook in self.consume:
            self._run(hook, hook.consume_message_after, context)

    def _run(self, hook: object, half: Callable[[ConsumeMessageContext], None], context: ConsumeMessageContext) -> None:
        try:
            half(context)
        except BaseException:  # including SystemExit: the thread belongs to the consumer
            logger.exception("consume hook failed: %r of group %s", hook, self._group)

    def choose(self, queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the messages that pass all filter hooks."""
        for hook in self.filter:
            try:
                messages = list(hook(queue, messages[:]))  # a copy: the hook may modify its list and then fail
            except BaseException:  # including SystemExit: the thread belongs to the consumer
                logger.exception("filter hook failed: %r of group %s", hook, self._group)
        return messages
