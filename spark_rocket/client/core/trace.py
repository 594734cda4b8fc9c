"""Message trace: a client that has it on writes what it does to RMQ_SYS_TRACE_TOPIC, as Apache's clients do.

What happened is put into a queue of ``MOST_WAITING`` events; a thread of its own encodes it, puts up to ``BATCH``
events of a topic into one message, and sends that. Nothing of it waits or fails for the application: when the queue is
full events are dropped and counted, when a trace message cannot be sent it is dropped, and the log says so once a
minute. At its end the client gives the thread ``CLOSE_SECONDS`` to send what is left.

Traced are: every message that a send brought an answer for (as Apache's, a send without one leaves no trace; a batch
has a record for each message, which Apache's has not), every call of a listener before and after, decisions about
transactions, and recalls. Brokers with ``traceOn=false`` turn it off for their messages, as they do for Apache's.

Thread-safety: all methods. Forked processes begin with an empty queue and a thread of their own.
Corresponds to org.apache.rocketmq.client.trace.AsyncTraceDispatcher and client.trace.hook.*.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_rocket.client.core.hooks import ConsumeMessageContext, SendContext, SendHook
from spark_rocket.errors import RocketError
from spark_rocket.logs import RateLimited
from spark_rocket.model import DELAY, TRACE_TOPIC, TRAN_MSG, Message, SendStatus
from spark_rocket.protocol.message_trace import (
    DELAY_MSG,
    NORMAL_MSG,
    TRANS_MSG_COMMIT,
    TRANS_MSG_HALF,
    TraceBean,
    TraceContext,
    TraceType,
    encode_trace_data,
    trace_keys,
)

logger = logging.getLogger(__name__)
_often = RateLimited(logger, 60.0)

GROUP = "_INNER_TRACE_PRODUCER"
MOST_WAITING = 2_048
BATCH = 100
MAX_DATA = 118_000
"""Characters of records in one message, about."""
CLOSE_SECONDS = 3.0
GATHER_SECONDS = 0.005
"""How long the thread waits for a second event, as Apache's does."""
DEFAULT_REGION = "DefaultRegion"

# ConsumeReturnType's numbers.
_RETURNED_SUCCESS, _RETURNED_EXCEPTION, _RETURNED_FAILED = 0, 2, 4
_LATER = ("RECONSUME_LATER", "SUSPEND_CURRENT_QUEUE_A_MOMENT", "ROLLBACK")
_TIMED = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TraceSender(Protocol):
    """A producer of trace messages."""

    def send(self, message: Message, /) -> object: ...

    def close(self) -> None: ...


class TraceDispatcher:
    """Takes events, and sends them sooner or later. ``topic``: where to, if not where Apache's write."""

    def __init__(self, topic: str | None, new_sender: Callable[[], TraceSender]) -> None:
        """``new_sender`` makes the producer that sends the trace, when there is something to send."""
        self.topic = topic or TRACE_TOPIC
        self.dropped = 0
        self._new_sender = new_sender
        self._waiting: deque[TraceContext] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def append(self, context: TraceContext) -> bool:
        """Take an event; False, and it is dropped, when too many wait. Does not block."""
        if not context.trace_beans or context.trace_beans[0].topic == self.topic:
            return True
        with self._changed:
            if self._closing or len(self._waiting) >= MOST_WAITING:
                self.dropped += 1
            else:
                self._waiting.append(context)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="rocket-trace", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return True
        _often.warning(self.topic, "events of the message trace are dropped: %d so far", self.dropped)
        return False

    def flush(self, timeout: float) -> bool:
        """Wait until all that was appended is sent or dropped; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def close(self, *, wait: bool = True) -> None:
        """Take nothing more; what waits is sent. ``wait``: for that, if it does not take long."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    # --- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        producer = self._new_sender()
        try:
            while (batch := self._take()) is not None:
                try:
                    self._send(producer, batch)
                except Exception as error:  # whatever it is: the next event may be better
                    text = str(error) if isinstance(error, RocketError) else f"{type(error).__name__}: {error}"
                    _often.warning((self.topic, "send"), "the message trace cannot be sent: %s", text)
                finally:
                    with self._changed:
                        self._busy = False
                        self._changed.notify_all()
        finally:
            producer.close()

    def _take(self) -> list[TraceContext] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if not self._closing:  # some more may come at once
                self._changed.wait_for(lambda: len(self._waiting) >= BATCH or self._closing, GATHER_SECONDS)
            if not self._waiting:
                return None
            self._busy = True
            return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def _send(self, producer: TraceSender, batch: Sequence[TraceContext]) -> None:
        by_topic: dict[str, list[TraceContext]] = {}
        for context in batch:
            by_topic.setdefault(context.trace_beans[0].topic, []).append(context)
        for contexts in by_topic.values():
            data: list[str] = []
            size, keys = 0, dict[str, None]()
            for context in contexts:
                text = encode_trace_data(context)
                data.append(text)
                size += len(text)
                keys.update(dict.fromkeys(trace_keys(context)))
                if size >= MAX_DATA:
                    producer.send(Message.of(self.topic, "".join(data), keys=list(keys)))
                    data, size = [], 0
                    keys.clear()
            if data:
                producer.send(Message.of(self.topic, "".join(data), keys=list(keys)))


# --- what is told of ----------------------------------------------------------------------------------------------


class SendTraceHook(SendHook):
    """``Pub`` records of one producer."""

    def __init__(self, dispatcher: Callable[[], TraceDispatcher | None]) -> None:
        self._dispatcher = dispatcher

    def before(self, context: SendContext) -> None:
        context.attributes["trace"] = now_ms()

    def after(self, context: SendContext) -> None:
        result, dispatcher = context.result, self._dispatcher()
        if result is None or dispatcher is None or not result.trace_on:
            return
        every = [context.message] if isinstance(context.message, Message) else list(context.message)
        begun = context.attributes["trace"]
        cost = max(now_ms() - begun, 0) // max(len(every), 1)
        for message, msg_id, offset_msg_id in zip(
            every, _each(result.msg_id, every), _each(result.offset_msg_id, every), strict=True
        ):
            bean = TraceBean(
                topic=message.topic,
                msg_id=msg_id,
                offset_msg_id=offset_msg_id,
                tags=message.tags,
                keys=message.keys,
                store_host=context.broker_address,
                body_length=len(message.body),
                msg_type=_type_of(message),
            )
            dispatcher.append(
                TraceContext(
                    TraceType.Pub,
                    begun,
                    result.region_id or DEFAULT_REGION,
                    context.group,
                    cost,
                    result.status is SendStatus.SEND_OK,
                    trace_beans=[bean],
                )
            )


def _each(ids: str, messages: Sequence[Message]) -> list[str]:
    """The ids of a batch are joined with commas; where they are not, all of its messages have the one there is."""
    parts = ids.split(",")
    return parts if len(parts) == len(messages) else [ids] * len(messages)


def _type_of(message: Message) -> int:
    properties = message.properties
    if properties.get(TRAN_MSG) == "true":
        return TRANS_MSG_HALF
    if properties.get(DELAY, "0") != "0" or any(name in properties for name in _TIMED):
        return DELAY_MSG
    return NORMAL_MSG


class ConsumeTraceHook:
    """``SubBefore`` and ``SubAfter`` records of one consumer."""

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        beans = [
            TraceBean(
                topic=message.topic,
                msg_id=message.msg_id,
                tags=message.tags,
                keys=message.keys,
                body_length=message.store_size,
                retry_times=message.reconsume_times,
            )
            for message in context.messages
            if message.get_property("TRACE_ON") != "false"
        ]
        if not beans:
            return
        region = next((found for one in context.messages if (found := one.get_property("MSG_REGION"))), DEFAULT_REGION)
        before = TraceContext(
            TraceType.SubBefore,
            now_ms(),
            region,
            context.consumer_group,
            request_id=uuid.uuid4().hex.upper(),
            trace_beans=beans,
        )
        context.properties["trace"] = before
        self._dispatcher.append(before)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        before = context.properties.get("trace")
        if before is None:
            return
        now = now_ms()
        code = _RETURNED_SUCCESS
        if not context.success:
            code = _RETURNED_FAILED if context.status in _LATER else _RETURNED_EXCEPTION
        self._dispatcher.append(
            TraceContext(
                TraceType.SubAfter,
                now,
                before.region_id,
                before.group_name,
                max(now - before.time_stamp, 0) // len(context.messages),
                context.success,
                before.request_id,
                code,
                before.trace_beans,
            )
        )


def decided(
    group: str, message: Message, *, msg_id: str, transaction_id: str | None, state: str, store_host: str, check: bool
) -> TraceContext:
    """A transaction was decided."""
    bean = TraceBean(
        topic=message.topic,
        msg_id=msg_id,
        tags=message.tags,
        keys=message.keys,
        store_host=store_host,
        msg_type=TRANS_MSG_COMMIT,
        transaction_id=transaction_id,
        transaction_state=state,
        from_transaction_check=check,
    )
    region = message.get_property("MSG_REGION") or DEFAULT_REGION
    return TraceContext(TraceType.EndTransaction, now_ms(), region, group, trace_beans=[bean])


def recalled(group: str, topic: str, msg_id: str, *, success: bool) -> TraceContext:
    """A message was taken back, or was not."""
    bean = TraceBean(topic=topic, msg_id=msg_id)
    return TraceContext(TraceType.Recall, now_ms(), DEFAULT_REGION, group, success=success, trace_beans=[bean])
