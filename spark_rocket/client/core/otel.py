"""OpenTelemetry: spans of sends and listener calls, connected by the W3C trace context in the messages.

===============  ========  ==========================================================================================
span             kind      scope
===============  ========  ==========================================================================================
``send TOPIC``   PRODUCER  a send with all its attempts; one span for a batch, propagated in all its messages
``process T…``   CONSUMER  a call of a listener; a child of its message's send, or linked to the sends of several
===============  ========  ==========================================================================================

The context is propagated in the message properties of the propagator: ``traceparent``, ``tracestate`` and ``baggage``,
as in OpenTelemetry's instrumentation of RocketMQ's Java client. Traces therefore continue between Java and Python
clients. A resent message with such a property continues that trace if no span is active; Spark's ``properties`` column
passes it through like any other property. Attributes follow the semantic conventions for messaging.

The application's messages are not modified: copies with the context are sent. Without ``open_telemetry`` this module is
not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from spark_rocket.client.core.hooks import ConsumeMessageContext
from spark_rocket.common.version import __version__
from spark_rocket.model import DELAY, SHARDING_KEY, TRAN_MSG, Message, SendResult

T = TypeVar("T")

_SYSTEM = {"messaging.system": "rocketmq"}
_TIMED = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


def _tracer(provider: TracerProvider | bool) -> Tracer:
    given = provider if isinstance(provider, TracerProvider) else None
    return trace.get_tracer("spark_rocket", __version__, given)


def _attributes(messages: Sequence[Message], operation: str) -> dict[str, Any]:
    first = messages[0]
    found: dict[str, Any] = {
        **_SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": first.topic,
    }
    if len(messages) > 1:
        found["messaging.batch.message_count"] = len(messages)
        return found
    found["messaging.message.body.size"] = len(first.body)
    found["messaging.rocketmq.message.type"] = _type_of(first)
    if first.tags:
        found["messaging.rocketmq.message.tag"] = first.tags
    if first.keys:
        found["messaging.rocketmq.message.keys"] = first.keys.split()
    return found


def _type_of(message: Message) -> str:
    properties = message.properties
    if properties.get(TRAN_MSG) == "true":
        return "transaction"
    if SHARDING_KEY in properties:
        return "fifo"
    if properties.get(DELAY, "0") != "0" or any(name in properties for name in _TIMED):
        return "delay"
    return "normal"


class SendTracing:
    """Tracing of the sends of one producer."""

    def __init__(self, provider: TracerProvider | bool, group: str) -> None:
        self._tracer = _tracer(provider)
        self._group = group

    def send(self, send: Callable[..., T], message: Any, *args: object) -> T:
        """Call ``send(message, *args)`` within a span, which ends with the returned future, if it is one."""
        messages = [message] if isinstance(message, Message) else message
        if not isinstance(messages, list | tuple) or not all(isinstance(one, Message) for one in messages or [0]):
            return send(message, *args)  # rejected
        span, copy = self._begin(message)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                result = send(copy, *args)
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise
        if isinstance(result, Future):
            result.add_done_callback(lambda done: _complete(span, done))
            return result
        if result is not None:
            _stored(span, cast(SendResult, result))
        span.end()
        return result

    def _begin(self, message: Message | Sequence[Message]) -> tuple[Span, Any]:
        """Start a span; return it with copies of the messages that carry its context."""
        every = [message] if isinstance(message, Message) else list(message)
        parent = None
        if not trace.get_current_span().get_span_context().is_valid and len(every) == 1:
            parent = propagate.extract(every[0].properties)
        attributes = {**_attributes(every, "send"), "messaging.rocketmq.client_group": self._group}
        span = self._tracer.start_span(f"send {every[0].topic}", parent, SpanKind.PRODUCER, attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span, parent))
        copies = [Message(one.topic, one.body, {**one.properties, **carrier}, one.flag) for one in every]
        return span, copies[0] if isinstance(message, Message) else copies


def _stored(span: Span, result: SendResult) -> None:
    span.set_attributes(
        {
            "messaging.message.id": result.msg_id,
            "messaging.destination.partition.id": str(result.queue.queue_id),
            "messaging.rocketmq.broker": result.queue.broker_name,
            "messaging.rocketmq.send_status": result.status.name,
        }
    )


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _complete(span: Span, done: Future[SendResult]) -> None:
    error = done.exception()
    if error is None:
        _stored(span, done.result())
    else:
        _failed(span, error)
    span.end()


class ConsumeTracing:
    """A hook of one consumer; the listener runs within the span."""

    def __init__(self, provider: TracerProvider | bool) -> None:
        self._tracer = _tracer(provider)

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        messages = context.messages
        if not messages:  # a batch of Arrow columns
            return
        attributes = {
            **_attributes(messages, "process"),
            "messaging.consumer.group.name": context.consumer_group,
            "messaging.destination.partition.id": str(context.message_queue.queue_id),
        }
        parent, links = None, []
        if len(messages) == 1:
            parent = propagate.extract(messages[0].properties)
            attributes["messaging.message.id"] = messages[0].msg_id
            attributes["messaging.rocketmq.reconsume_times"] = messages[0].reconsume_times
        else:
            found = (trace.get_current_span(propagate.extract(one.properties)).get_span_context() for one in messages)
            links = [Link(one) for one in found if one.is_valid]
        name = f"process {context.message_queue.topic}"
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        context.properties["otel"] = span, otel_context.attach(trace.set_span_in_context(span, parent))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        started = context.properties.pop("otel", None)
        if started is None:
            return
        span, token = started
        otel_context.detach(token)
        if not context.success:
            span.set_attribute("error.type", context.status)
            span.set_status(Status(StatusCode.ERROR, f"the listener returned {context.status}"))
        span.end()
