"""OpenTelemetry spans for storing and delivering messages that have a trace context.

=================  ===========================================================================================
span               event
=================  ===========================================================================================
``store TOPIC``    a send was handled; one span per batch, with the first context found in its messages
``deliver TOPIC``  a pull or pop returned the message; at most ``MAX_SPANS_PER_RESPONSE`` spans per response
=================  ===========================================================================================

Both are children of the span in the message's ``traceparent``: the send (``client/core/otel.py``, or OpenTelemetry's
instrumentation of the Java client). Messages without one are not traced. Enabled with ``openTelemetryEnable=true``;
otherwise nothing is imported, and the handlers are not wrapped.

Spans go to the process's global tracer provider if there is one (``opentelemetry-instrument rocket broker …``),
otherwise by OTLP to ``OTEL_EXPORTER_OTLP_ENDPOINT``.

Thread-safety: event loop only; the SDK exports on a thread of its own.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

import spark_rocket
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import Handler

if TYPE_CHECKING:
    from spark_rocket.broker.state.broker_config import BrokerConfig
    from spark_rocket.store.results import GetMessageResult

MAX_SPANS_PER_RESPONSE = 100
_MARK = "traceparent\x01"
_FOUND = re.compile(rb"traceparent\x01([0-9a-f-]{55})")
_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class BrokerTracing:
    """Makes the spans of one broker."""

    def __init__(self, config: BrokerConfig, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("spark_rocket.broker", spark_rocket.__version__, provider)
        self._node: dict[str, Any] = {"messaging.system": "rocketmq", "messaging.rocketmq.broker": config.broker_name}

    def wrap(self, handlers: MutableMapping[int, Handler]) -> None:
        for code in _SENDS:
            if int(code) in handlers:
                handlers[int(code)] = self._stored(handlers[int(code)])

    def _stored(self, handler: Handler) -> Handler:
        def handle(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            ext = request.ext_fields
            properties = ext.get("i") or ext.get("properties") or ""
            if _MARK in properties:
                found = _FOUND.search(properties.encode(errors="replace"))
            else:
                found = _FOUND.search(request.body) if request.code == RequestCode.SEND_BATCH_MESSAGE else None
            if found is None:
                return handler(channel, request)
            topic = ext.get("b") or ext.get("topic") or ""
            parent = propagate.extract({"traceparent": found[1].decode()})
            attributes = {
                **self._node,
                "messaging.operation.name": "store",
                "messaging.destination.name": topic,
                "messaging.message.body.size": len(request.body),
            }
            span = self._tracer.start_span(f"store {topic}", parent, SpanKind.SERVER, attributes)
            try:
                response = handler(channel, request)
                if response is not None:
                    if "queueOffset" in response.ext_fields:
                        span.set_attribute("messaging.rocketmq.queue_offset", int(response.ext_fields["queueOffset"]))
                    if response.code:
                        span.set_attribute("error.type", str(response.code))
                        span.set_status(Status(StatusCode.ERROR, response.remark or ""))
                return response
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise
            finally:
                span.end()

        return handle

    def delivered(self, group: str, topic: str, queue_id: int, result: GetMessageResult) -> None:
        """Create the spans of records returned to a consumer."""
        records = bytes(result.records)
        if _MARK.encode() not in records:
            return
        now = time_ns()
        try:
            messages = decode_messages(records, check_crc=False, decompress=False)
        except ProtocolError:  # the consumer will report it
            return
        traced = [message for message in messages if "traceparent" in message.properties]
        for message in traced[:MAX_SPANS_PER_RESPONSE]:
            attributes = {
                **self._node,
                "messaging.operation.name": "deliver",
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": str(queue_id),
                "messaging.consumer.group.name": group,
                "messaging.message.id": message.msg_id,
                "messaging.rocketmq.queue_offset": message.queue_offset,
            }
            parent = propagate.extract(message.properties)
            self._tracer.start_span(f"deliver {topic}", parent, SpanKind.SERVER, attributes, start_time=now).end()


def make_provider(config: BrokerConfig) -> TracerProvider | None:
    """Create a tracer provider; None if the process has a global one. ConfigError if a package is missing."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    try:
        resources = import_module("opentelemetry.sdk.resources")
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigError(
            f"openTelemetryEnable=true requires {error.name or 'the SDK'}, which is not installed.",
            remedy="Install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http, or set it to false.",
        ) from error
    named = resources.Resource.create({"service.name": "rocketmq-broker", "service.instance.id": config.broker_name})
    provider: TracerProvider = sdk.TracerProvider(resource=named)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))  # type: ignore[attr-defined]  # where installed
    return provider
