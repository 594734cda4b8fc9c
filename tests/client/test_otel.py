"""Spans of sends and of listener calls, linked through a broker."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from spark_rocket.client import (
    ConsumeConcurrentlyStatus,
    Producer,
    TransactionProducer,
)
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.client.producing import Decides
from tests.client.pushing import AGAIN, SUCCESS, Consume

pytestmark = pytest.mark.live

QUEUES = 1
LIMIT = 30
_numbers = itertools.count(1)
Received = Callable[..., list[tuple[Message, int]]]


class Traces:
    """A provider that exposes its finished spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def traces() -> Traces:
    return Traces()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def received(traces: Traces, topic: str, consume: Consume) -> Received:
    """Messages of a listener, each with the ID of the span at its call."""

    def receive(count: int, *, batch: int = 1, fails: bool = False) -> list[tuple[Message, int]]:
        seen: list[tuple[Message, int]] = []
        done = threading.Event()

        def listener(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
            seen.extend((one, trace.get_current_span().get_span_context().span_id) for one in messages)
            if len(seen) >= count:
                done.set()
            return AGAIN if fails else SUCCESS

        with consume(topic, listener, consume_message_batch_max_size=batch, open_telemetry=traces.provider):
            assert done.wait(LIMIT)
        return seen

    return receive


def test_from_a_send_to_a_listener(cluster: LocalCluster, topic: str, traces: Traces, received: Received) -> None:
    message = Message.of(topic, b"12345", tags="paid", keys=["a", "b"])
    with (
        Producer("spans", name_server=cluster.name_server, open_telemetry=traces.provider) as producer,
        traces.tracer.start_as_current_span("order") as order,
    ):
        sent = producer.send(message)
    assert "traceparent" not in message.properties
    ((arrived, current),) = received(1)
    (send,), (process,) = traces.named(f"send {topic}"), traces.named(f"process {topic}")
    assert send.parent is not None
    assert send.parent.span_id == order.get_span_context().span_id
    assert process.parent is not None
    assert send.context is not None
    assert process.context is not None
    assert process.parent.span_id == send.context.span_id
    assert process.context.trace_id == send.context.trace_id == order.get_span_context().trace_id
    assert current == process.context.span_id
    context = f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-0"
    assert arrived.properties["traceparent"].startswith(context)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    said = attributes(send)
    assert said["messaging.system"] == "rocketmq"
    assert said["messaging.operation.type"] == "send"
    assert said["messaging.destination.name"] == topic
    assert said["messaging.message.id"] == sent.msg_id
    assert said["messaging.message.body.size"] == 5
    assert said["messaging.rocketmq.message.tag"] == "paid"
    assert said["messaging.rocketmq.message.keys"] == ("a", "b")
    assert said["messaging.rocketmq.message.type"] == "normal"
    assert attributes(process)["messaging.message.id"] == sent.msg_id
    assert attributes(process)["messaging.consumer.group.name"].startswith("g_")


def test_async_one_way_and_batches(cluster: LocalCluster, topic: str, traces: Traces, received: Received) -> None:
    with Producer("spans", name_server=cluster.name_server, open_telemetry=traces.provider) as producer:
        future = producer.send_async(Message.of(topic, b"async", delay_level=0))
        future.result(LIMIT)
        producer.send_oneway(Message.of(topic, b"oneway", sharding_key="k"))
        producer.send([Message.of(topic, b"b1"), Message.of(topic, b"b2")])
    spans = traces.named(f"send {topic}")
    kinds = [
        (attributes(span).get("messaging.rocketmq.message.type"), attributes(span).get("messaging.batch.message_count"))
        for span in spans
    ]
    assert sorted(kinds, key=str) == sorted([("normal", None), ("fifo", None), (None, 2)], key=str)
    seen = received(4, batch=10)
    assert {message.body for message, _ in seen} == {b"async", b"oneway", b"b1", b"b2"}
    by_body = {message.body: message.properties["traceparent"] for message, _ in seen}
    assert by_body[b"b1"] == by_body[b"b2"]
    assert len(set(by_body.values())) == 3
    linked = {link.context.span_id for span in traces.named(f"process {topic}") for link in span.links}
    parents = {span.parent.span_id for span in traces.named(f"process {topic}") if span.parent is not None}
    assert linked | parents == {span.context.span_id for span in spans if span.context is not None}


def test_a_message_with_a_context_continues_its_trace(
    cluster: LocalCluster, topic: str, traces: Traces, received: Received
) -> None:
    """For example, a message that Spark copies to another topic."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Producer("spans", name_server=cluster.name_server, open_telemetry=traces.provider) as producer:
        producer.send(Message.of(topic, b"x", properties={"traceparent": parent, "mine": "kept"}))
    (send,) = traces.named(f"send {topic}")
    assert send.context is not None
    assert f"{send.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    ((arrived, _),) = received(1)
    assert arrived.properties["mine"] == "kept"
    assert f"{send.context.span_id:016x}" in arrived.properties["traceparent"]


def test_without_tracing_a_context_passes_through(
    cluster: LocalCluster, topic: str, traces: Traces, received: Received
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Producer("plain", name_server=cluster.name_server) as producer:
        producer.send(Message.of(topic, b"x", properties={"traceparent": parent}))
    ((arrived, _),) = received(1)
    assert arrived.properties["traceparent"] == parent
    (process,) = traces.named(f"process {topic}")
    assert process.parent is not None
    assert f"{process.parent.span_id:016x}" == "b7ad6b7169203331"


def test_failed_sends_have_error_spans(
    cluster: LocalCluster, topic: str, traces: Traces, received: Received, nobody: str
) -> None:
    with Producer("spans", name_server=nobody, open_telemetry=traces.provider, member=False) as producer:
        with pytest.raises(RocketError):
            producer.send(Message.of(topic, b"x"), timeout=0.5)
        with pytest.raises(RocketError):
            producer.send_async(Message.of(topic, b"x"), timeout=0.5).result(LIMIT)
        with pytest.raises(ClientError, match="argument message"):
            producer.send("no message")  # type: ignore[arg-type]
    spans = traces.named(f"send {topic}")
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2
    assert all("error.type" in attributes(span) for span in spans)
    with Producer("plain", name_server=cluster.name_server) as producer:
        producer.send(Message.of(topic, b"x"))
    received(1, fails=True)
    assert traces.named(f"process {topic}")[0].status.status_code is StatusCode.ERROR


def test_transactions(cluster: LocalCluster, topic: str, traces: Traces, received: Received) -> None:
    with TransactionProducer(
        f"span-deciders-{next(_numbers)}", Decides(), name_server=cluster.name_server, open_telemetry=traces.provider
    ) as producer:
        producer.send_in_transaction(Message.of(topic, b"x"))
    (send,) = traces.named(f"send {topic}")
    assert attributes(send)["messaging.rocketmq.message.type"] == "transaction"
    ((arrived, _),) = received(1)
    assert send.context is not None
    assert f"{send.context.trace_id:032x}" in arrived.properties["traceparent"]


def test_without_tracing_opentelemetry_is_not_imported() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from spark_rocket.client import Producer, PushConsumer\n"
        "Producer('p', name_server='127.0.0.1:1').close()\n"
        "for client, more in (Producer, ()), (PushConsumer, (print,)):\n"
        "    try: client('g', *more, open_telemetry=True)\n"
        "    except Exception as error: assert 'opentelemetry, which is not installed' in str(error), error\n"
        "    else: raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
