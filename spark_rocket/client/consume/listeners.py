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

Statistics are per topic, as in the ``statusTable`` shown by tools (307). Rates and means are over the last minute, in
steps of ten seconds; failures are those of the last hour, in steps of ten minutes.

Thread-safety: statistics, all methods. Hooks are called on several threads of the consumer at once; lists of hooks do
not change once it runs. Corresponds to org.apache.rocketmq.client.consumer.listener, common.consumer.ConsumeFromWhere,
org.apache.rocketmq.client.hook.{ConsumeMessageHook, FilterMessageHook} and client.stat.ConsumerStatsManager.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from spark_rocket.client.core.hooks import ConsumeMessageContext, ConsumeMessageHook
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import ConsumeStatus

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
            except Exception:
                logger.exception("filter hook failed: %r of group %s", hook, self._group)
        return messages


INTERVAL_S = 10.0
INTERVALS = 6
FAILURES_INTERVAL_S = 600.0


class _Window:
    """Sums of the last ``INTERVALS`` intervals."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._steps: deque[tuple[int, defaultdict[str, float]]] = deque(maxlen=INTERVALS)

    def add(self, now: float, **amounts: float) -> None:
        step = int(now / self._interval)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, defaultdict(float)))
        for name, amount in amounts.items():
            self._steps[-1][1][name] += amount

    def sums(self, now: float) -> tuple[dict[str, float], float]:
        """Return the sums, and the seconds since their first interval began, at least one interval."""
        recent = [(step, sums) for step, sums in self._steps if step > now / self._interval - INTERVALS]
        total: dict[str, float] = defaultdict(float)
        for _, sums in recent:
            for name, amount in sums.items():
                total[name] += amount
        return total, max([self._interval, *(now - step * self._interval for step, _ in recent[:1])])


class ConsumerStats:
    """Counts ``pulled`` and ``consumed`` messages; ``status`` returns the statistics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._minute: dict[str, _Window] = defaultdict(lambda: _Window(INTERVAL_S))
        self._hour: dict[str, _Window] = defaultdict(lambda: _Window(FAILURES_INTERVAL_S))

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        with self._lock:
            self._minute[topic].add(self._clock(), pulls=1, pull_seconds=seconds, pulled=messages)

    def consumed(self, topic: str, calls: int, consumed: int, failed: int, seconds: float) -> None:
        """Count finished calls of the listener and their total duration."""
        if calls:
            with self._lock:
                now = self._clock()
                self._minute[topic].add(now, calls=calls, call_seconds=seconds, consumed=consumed, failed=failed)
                self._hour[topic].add(now, failed=failed)

    def status(self, topic: str) -> ConsumeStatus:
        with self._lock:
            sums, seconds = self._minute[topic].sums(self._clock())
            failures, _ = self._hour[topic].sums(self._clock())
        return ConsumeStatus(
            pull_rt=sums["pull_seconds"] * 1000 / (sums["pulls"] or 1),
            pull_tps=sums["pulled"] / seconds,
            consume_rt=sums["call_seconds"] * 1000 / (sums["calls"] or 1),
            consume_ok_tps=sums["consumed"] / seconds,
            consume_failed_tps=sums["failed"] / seconds,
            consume_failed_msgs=int(failures["failed"]),
        )
