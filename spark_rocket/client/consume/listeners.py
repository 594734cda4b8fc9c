"""What a push consumer calls, and what it may answer.

=====================  ===========================================  ===============================================
listener               is called with                               answers
=====================  ===========================================  ===============================================
concurrent             messages of one queue, a context; from many  :class:`ConsumeConcurrentlyStatus`
                       threads, in no order
orderly                messages of one queue in their order, a      :class:`ConsumeOrderlyStatus`
                       context; one thread a queue at a time
Arrow batches          a ``pyarrow.RecordBatch`` of one queue in    either's success; anything else has the batch
                       its order, a context; one thread a queue     given again
=====================  ===========================================  ===============================================

A listener that raises, or answers anything else (``None`` too, as in Java), has not consumed its messages.
Corresponds to org.apache.rocketmq.client.consumer.listener and common.consumer.ConsumeFromWhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.model import MessageExt, MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ALL_OF_THEM = 2**31 - 1
SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS = 10, 30_000


class ConsumeConcurrentlyStatus(Enum):
    """Of a concurrent listener."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """Of an orderly listener."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ConsumeFromWhere(Enum):
    """Where a group without a committed offset begins. Retry topics always begin at their beginning."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether the members of a group share a topic's messages, or each has all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """Of one call of a concurrent listener.

    ``ack_index``: how many messages were consumed, less one, of a call that ends in success; the rest is retried.
    ``delay_level_when_next_consume``: −1 to the dead-letter topic, 0 as the broker thinks, else a delay level.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int = ALL_OF_THEM


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """Of one call of an orderly or Arrow listener.

    ``suspend_current_queue_time_millis``: how long the queue pauses if the answer is not success; −1: the consumer's.
    """

    message_queue: MessageQueue
    suspend_current_queue_time_millis: int = -1

    def pause(self, usual_ms: int) -> float:
        """Seconds that the queue pauses: as long as the listener wants, within bounds."""
        wanted: object = self.suspend_current_queue_time_millis
        given = wanted if isinstance(wanted, int) and wanted >= 0 else usual_ms
        return max(SHORTEST_PAUSE_MS, min(given, LONGEST_PAUSE_MS)) / 1000


ConcurrentListener: TypeAlias = Callable[[list[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus]
OrderlyListener: TypeAlias = Callable[[list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus]
MessageQueueListener: TypeAlias = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
"""Called with a topic, all of its queues, and those that are this consumer's now, when the latter have changed."""
BatchListener: TypeAlias = "Callable[[pa.RecordBatch, ConsumeOrderlyContext], ConsumeOrderlyStatus]"


class Complaints:
    """What is wrong with a listener, told once per kind: it may be wrong with every message."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def failed(self, error: BaseException, count: int, queue: MessageQueue) -> None:
        """It raised."""
        level = self._level(f"{type(error).__module__}.{type(error).__qualname__}", logging.ERROR)
        logger.log(level, "the listener failed on %d messages of %s", count, queue, exc_info=error)

    def nonsense(self, status: object, wanted: str, queue: MessageQueue) -> None:
        """It answered what is no answer."""
        level = self._level(f"answer of {type(status).__qualname__}", logging.WARNING)
        logger.log(level, "the listener answered %r for %s: no %s, so the messages are retried", status, queue, wanted)

    def _level(self, kind: str, first: int) -> int:
        if kind in self._told:
            return logging.DEBUG
        self._told.add(kind)
        return first
