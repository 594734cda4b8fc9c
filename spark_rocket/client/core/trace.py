"""Message trace: clients with tracing write their operations to RMQ_SYS_TRACE_TOPIC, as Apache's clients do.

Events go into a queue of up to ``MAX_PENDING`` events. A dedicated thread encodes them, combines up to
``MAX_BATCH_EVENTS`` events of a topic into one message, and sends it. Tracing never blocks the application and never
raises: when the queue is full events are dropped and counted; when a trace message cannot be sent it is dropped. Both
are logged once a minute. On close the client waits up to ``CLOSE_SECONDS`` until the queue is sent.

Traced are sends with a response (as in Apache's client; a batch has a record for each message, unlike Apache's), every
call of a listener before and after, decisions about transactions, and recalls. Brokers with ``traceOn=false`` disable
tracing of their messages, as for Apache's clients.

Forked processes start with an empty queue and their own thread. Corresponds to
org.apache.rocketmq.client.trace.AsyncTraceDispatcher and client.trace.hook.*.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_rocket.client.core.hooks import ConsumeMessageContext, SendContext, SendHook
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import now_ms
from spark_rocket.errors import RocketError
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
MAX_PENDING = 2_048
MAX_BATCH_EVENTS = 100
MAX_BATCH_CHARACTERS = 118_000
"""The approximate number of characters in the records of one message."""
CLOSE_SECONDS = 3.0
LINGER_S = 0.005
"""How long the thread waits for further events, as in Apache's dispatcher."""
DEFAULT_REGION = "DefaultRegion"

# The numbers of ConsumeReturnType.
_RETURNED_SUCCESS, _RETURNED_EXCEPTION, _RETURNED_FAILED = 0, 2, 4
_LATER = ("RECONSUME_LATER", "SUSPEND_CURRENT_QUEUE_A_MOMENT", "ROLLBACK")
_TIMED = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME")


class TraceSender(Protocol):
    """A producer of trace messages."""

    def send(self, message: Message, /) -> object: ...

    def close(self) -> None: ...


class TraceDispatcher:
    """Queues events and sends them in the background. ``topic``: default is Apache's trace topic."""

    def __init__(self, topic: str | None, new_sender: Callable[[], TraceSender]) -> None:
        """``new_sender`` creates the producer of trace messages before the first send."""
        self.topic = topic or TRACE_TOPIC
        self.dropped = 0
        self._new_sender = new_sender
        self._pending: deque[TraceContext] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def append(self, context: TraceContext) -> bool:
        """Queue an event; if the queue is full, drop it and return False. Does not block."""
        if not context.trace_beans or context.trace_beans[0].topic == self.topic:
            return True
        with self._changed:
            if self._closing or len(self._pending) >= MAX_PENDING:
                self.dropped += 1
            else:
                self._pending.append(context)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="rocket-trace", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return True
        _often.warning(self.topic, "dropped message trace events: queue full, %d dropped so far", self.dropped)
        return False

    def flush(self, timeout: float) -> bool:
        """Wait until all queued events are sent or dropped; False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._busy, timeout)

    def close(self, *, wait: bool = True) -> None:
        """Reject new events; send the queued ones. ``wait``: wait for that, up to ``CLOSE_SECONDS``."""
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
                except Exception as error:  # one failure must not stop the thread
                    text = str(error) if isinstance(error, RocketError) else f"{type(error).__name__}: {error}"
                    _often.warning((self.topic, "send"), "dropped message trace events: send failed: %s", text)
                finally:
                    with self._changed:
                        self._busy = False
                        self._changed.notify_all()
        finally:
            producer.close()

    def _take(self) -> list[TraceContext] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            if not self._closing:  # wait for more events to fill the batch
                self._changed.wait_for(lambda: len(self._pending) >= MAX_BATCH_EVENTS or self._closing, LINGER_S)
            if not self._pending:
                return None
            self._busy = True
            return [self._pending.popleft() for _ in range(min(MAX_BATCH_EVENTS, len(self._pending)))]

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
                if size >= MAX_BATCH_CHARACTERS:
                    producer.send(Message.of(self.topic, "".join(data), keys=list(keys)))
                    data, size = [], 0
                    keys.clear()
            if data:
                producer.send(Message.of(self.topic, "".join(data), keys=list(keys)))


# --- hooks ----------------------------------------------------------------------------------------------


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
        started = context.attributes["trace"]
        cost = max(now_ms() - started, 0) // max(len(every), 1)
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
                    started,
                    result.region_id or DEFAULT_REGION,
                    context.group,
                    cost,
                    result.status is SendStatus.SEND_OK,
                    trace_beans=[bean],
                )
            )


def _each(ids: str, messages: Sequence[Message]) -> list[str]:
    """Split the comma-separated ids of a batch; if there is only one id, all its messages have it."""
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
    """Return the event of a decided transaction."""
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
    """Return the event of a recall, successful or not."""
    bean = TraceBean(topic=topic, msg_id=msg_id)
    return TraceContext(TraceType.Recall, now_ms(), DEFAULT_REGION, group, success=success, trace_beans=[bean])
