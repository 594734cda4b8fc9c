"""Listeners and hooks of a push consumer: what it calls, and what they may answer.

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

A listener that raises, or answers anything else (``None`` too, as in Java), has not consumed its messages. Hooks run
before and after each call of a listener, and filter the messages before it; what a hook raises is logged.

Statistics are per topic, the ``statusTable`` that tools are shown (307). Rates and means are over the last minute, in
steps of ten seconds; failures are those of the last hour, in steps of ten minutes.

Thread-safety: statistics, all methods. Hooks are called on the consumer's threads, several at once; lists of hooks do
not change once it runs. Corresponds to org.apache.rocketmq.client.consumer.listener, common.consumer.ConsumeFromWhere,
org.apache.rocketmq.client.hook.{ConsumeMessageHook, FilterMessageHook} and client.stat.ConsumerStatsManager.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.client.core.hooks import ConsumeMessageContext, ConsumeMessageHook
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies import ConsumeStatus

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


FilterMessageHook = Callable[[MessageQueue, list[MessageExt]], Iterable[MessageExt]]
"""Given what a pull brought of a queue, and its tags let through; those that come back are consumed, others are not."""


class Hooks:
    """The hooks of one consumer; ``stats`` are told of every call as well."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.stats = ConsumerStats()
        self.consume: list[ConsumeMessageHook] = []
        self.filter: list[FilterMessageHook] = []

    def before(self, messages: Sequence[MessageExt], queue: MessageQueue) -> ConsumeMessageContext:
        """Run the first halves; ``after`` wants what comes back."""
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
        except BaseException:  # SystemExit too: the thread is the consumer's
            logger.exception("consume hook %r of group %s failed", hook, self._group)

    def choose(self, queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Those messages that every filter hook lets through."""
        for hook in self.filter:
            try:
                messages = list(hook(queue, messages[:]))  # it may empty its list, and fail then
            except Exception:
                logger.exception("filter hook %r of group %s failed", hook, self._group)
        return messages


STEP = 10.0
STEPS = 6
FAILURES_STEP = 600.0


@dataclass(slots=True)
class _Counts:
    """Of one step."""

    step: int
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_seconds: float = 0.0
    consumed: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Topic:
    minute: deque[_Counts] = field(default_factory=lambda: deque(maxlen=STEPS))
    failures: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=STEPS))


class ConsumerStats:
    """``pulled`` and ``consumed`` are told, ``status`` is asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        """A pull found messages, so long after it was sent."""
        with self._lock:
            counts = self._now(topic)
            counts.pulls += 1
            counts.pull_seconds += seconds
            counts.pulled += messages

    def consumed(self, topic: str, calls: int, consumed: int, failed: int, seconds: float) -> None:
        """Calls of the listener have ended, which took so long together."""
        if not calls:
            return
        with self._lock:
            counts = self._now(topic)
            counts.calls += calls
            counts.call_seconds += seconds
            counts.consumed += consumed
            counts.failed += failed
            if failed:
                failures, step = self._topics[topic].failures, int(self._clock() / FAILURES_STEP)
                if failures and failures[-1][0] == step:
                    failed += failures.pop()[1]
                failures.append((step, failed))

    def _now(self, topic: str) -> _Counts:
        step = int(self._clock() / STEP)
        minute = self._topics.setdefault(topic, _Topic()).minute
        if not minute or minute[-1].step != step:
            minute.append(_Counts(step))
        return minute[-1]

    def status(self, topic: str) -> ConsumeStatus:
        """As of now."""
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                return ConsumeStatus()
            now = self._clock()
            minute = [counts for counts in known.minute if counts.step > now / STEP - STEPS]
            hour = [failed for step, failed in known.failures if step > now / FAILURES_STEP - STEPS]
        status = ConsumeStatus(consume_failed_msgs=sum(hour))
        if minute:
            seconds = max(STEP, now - minute[0].step * STEP)
            status.pull_rt = _mean_ms(sum(c.pull_seconds for c in minute), sum(c.pulls for c in minute))
            status.pull_tps = sum(c.pulled for c in minute) / seconds
            status.consume_rt = _mean_ms(sum(c.call_seconds for c in minute), sum(c.calls for c in minute))
            status.consume_ok_tps = sum(c.consumed for c in minute) / seconds
            status.consume_failed_tps = sum(c.failed for c in minute) / seconds
        return status


def _mean_ms(seconds: float, count: int) -> float:
    return seconds * 1000 / count if count else 0.0
