"""The broker's spans of messages that carry a trace context."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.tracing import make_provider
from spark_rocket.errors import ConfigError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import ResponseCode
from tests.broker.popping import Popper
from tests.broker.test_lifecycle import ask
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def config(directory: Path, **settings: object) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {"storePathRootDir": directory, "listenPort": 0, "openTelemetryEnable": True, **settings}
    )


def context(span: ReadableSpan) -> tuple[str, str]:
    """The trace, and the parent span."""
    assert span.context is not None
    assert span.parent is not None
    return f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}"


async def test_store_and_deliver(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def talk(wire: Wire) -> None:
        assert wire.send("T", b"plain").code == ResponseCode.SUCCESS
        wire.pull("T", 0)
        assert not exporter.get_finished_spans()
        assert wire.send("T", b"traced", {"traceparent": PARENT}).code == ResponseCode.SUCCESS
        batch = [Message("T", b"b", {"a": "b"}), Message("T", b"c", {"traceparent": PARENT})]
        assert wire.send_batch("T", batch).code == ResponseCode.SUCCESS
        assert wire.send("T", b"x", {"traceparent": PARENT}, queue_id=999).code != ResponseCode.SUCCESS
        assert wire.send("T", b"x", {"traceparent": "invalid!"}).code == ResponseCode.SUCCESS
        assert len(wire.messages("T")) == 5
        assert len(Popper(wire, "poppers", "T", queueId=0).take()) == 5

    broker = Broker(config(tmp_path), tracer_provider=provider)
    await broker.start()
    try:
        await ask(broker, talk)
    finally:
        await broker.close()
    stores = [span for span in exporter.get_finished_spans() if span.name == "store T"]
    delivered = [span for span in exporter.get_finished_spans() if span.name == "deliver T"]
    of_parent = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert [context(span) for span in stores] == [of_parent] * 3
    assert [span.status.status_code for span in stores] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    assert dict(stores[0].attributes or {})["messaging.rocketmq.queue_offset"] == 1
    groups = [dict(span.attributes or {})["messaging.consumer.group.name"] for span in delivered]
    assert groups == ["readers"] * 3 + ["poppers"] * 3
    assert [context(span) for span in delivered if span.parent is not None] == [of_parent] * 4


async def test_off_is_the_default(tmp_path: Path) -> None:
    broker = Broker(config(tmp_path, openTelemetryEnable=False))
    await broker.start()
    try:
        assert broker.parts.tracing is None
    finally:
        await broker.close()


def test_destinations_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert make_provider(BrokerConfig()) is None
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    provider = make_provider(BrokerConfig())
    assert isinstance(provider, TracerProvider)
    provider.shutdown()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="is not installed"):
        make_provider(BrokerConfig())
