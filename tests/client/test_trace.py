"""Message trace, written by our clients to a broker and read back from its trace topic."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_rocket.client import (
    ConsumeConcurrentlyStatus,
    Producer,
    Reader,
    TransactionProducer,
)
from spark_rocket.client.core import trace as trace_module
from spark_rocket.client.core.trace import GROUP, MAX_BATCH_EVENTS, MAX_PENDING, TraceDispatcher
from spark_rocket.client.send.producer import trace_producer
from spark_rocket.model import TRACE_TOPIC, Message, MessageExt
from spark_rocket.protocol.message_trace import (
    DELAY_MSG,
    NORMAL_MSG,
    TRANS_MSG_COMMIT,
    TRANS_MSG_HALF,
    TraceBean,
    TraceContext,
    TraceType,
    decode_trace_data,
)
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.client.producing import Decides
from tests.client.pushing import Consume

pytestmark = pytest.mark.live

QUEUES = 1
CLUSTER = {"config": {"traceTopicEnable": True, "recallMessageEnable": True}}
LIMIT = 30


def records(cluster: LocalCluster, topic: str = TRACE_TOPIC) -> list[tuple[MessageExt, TraceContext]]:
    """All events in the trace topic, each with its message."""
    found = []
    with Reader(cluster.name_server) as reader:
        for queue in reader.queues(topic):
            end = reader.max_offset(queue)
            offset = 0
            while offset < end:
                pulled = reader.pull(queue, offset)
                for message in decode_messages(bytes(pulled.records)):
                    found += [(message, one) for one in decode_trace_data(message.body)]
                offset = pulled.next_offset
    return found


def of(cluster: LocalCluster, *msg_ids: str) -> list[TraceContext]:
    return [context for _, context in records(cluster) if context.trace_beans[0].msg_id in msg_ids]


def flush(client: Any) -> None:
    assert client.tracer.flush(LIMIT)


def test_the_broker_creates_the_trace_topic(cluster: LocalCluster) -> None:
    with Reader(cluster.name_server) as reader:
        assert len(reader.queues(TRACE_TOPIC)) == 1


def test_sends_of_every_kind(cluster: LocalCluster, topic: str) -> None:
    with Producer("tracers", name_server=cluster.name_server, enable_msg_trace=True) as producer:
        single = producer.send(Message.of(topic, "one", tags="paid", keys=["k1", "k2"]))
        later = producer.send_async(Message.of(topic, "later", delay_seconds=3_600)).result(LIMIT)
        batch = producer.send([Message.of(topic, "b1", keys="kb"), Message.of(topic, "b2")])
        assert later.recall_handle is not None
        producer.recall_message(topic, later.recall_handle)
        flush(producer)
    (pub,) = of(cluster, single.msg_id)
    bean = pub.trace_beans[0]
    assert (pub.trace_type, pub.group_name, pub.region_id) == (TraceType.Pub, "tracers", "DefaultRegion")
    assert (bean.topic, bean.tags, bean.keys, bean.body_length) == (topic, "paid", "k1 k2", 3)
    assert (bean.store_host, bean.offset_msg_id) == (cluster.broker_address, single.offset_msg_id)
    assert (pub.success, bean.msg_type) == (True, NORMAL_MSG)
    assert [one.trace_type for one in of(cluster, later.msg_id)] == [TraceType.Pub, TraceType.Recall]
    assert of(cluster, later.msg_id)[0].trace_beans[0].msg_type == DELAY_MSG
    ids, offset_ids = batch.msg_id.split(","), batch.offset_msg_id.split(",")
    of_batch = [one.trace_beans[0] for one in of(cluster, *ids)]
    assert [(bean.msg_id, bean.offset_msg_id, bean.keys) for bean in of_batch] == [
        (ids[0], offset_ids[0], "kb"),
        (ids[1], offset_ids[1], None),
    ]
    (carrier,) = [message for message, one in records(cluster) if one.trace_beans[0].msg_id == ids[0]]
    assert {*ids, "kb"} <= set((carrier.keys or "").split())


def test_accumulated_messages(cluster: LocalCluster, topic: str) -> None:
    with Producer("together", name_server=cluster.name_server, enable_msg_trace=True, auto_batch=True) as producer:
        futures = [producer.send_async(Message.of(topic, f"{number}")) for number in range(20)]
        ids = [future.result(LIMIT).msg_id for future in futures]
        flush(producer)
    assert {one.trace_beans[0].msg_id for one in of(cluster, *ids)} == set(ids)


def test_consuming_before_and_after(cluster: LocalCluster, producer: Producer, topic: str, consume: Consume) -> None:
    first = producer.send(Message.of(topic, "good", keys="k"))
    second = producer.send(Message.of(topic, "bad"))
    third = producer.send(Message.of(topic, "worse"))
    seen = threading.Semaphore(0)

    def listener(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        seen.release()
        if messages[0].body == b"worse":
            raise ValueError("no")
        good = messages[0].body == b"good"
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if good else ConsumeConcurrentlyStatus.RECONSUME_LATER

    with consume(topic, listener, group="traced-readers", enable_msg_trace=True):
        for _ in range(3):
            assert seen.acquire(timeout=LIMIT)
    assert of(cluster, first.msg_id, second.msg_id)[0].trace_type is not TraceType.Pub
    codes = {}
    for sent in (first, second, third):
        before, after = of(cluster, sent.msg_id)[:2]
        assert (before.trace_type, after.trace_type) == (TraceType.SubBefore, TraceType.SubAfter)
        assert before.request_id == after.request_id
        assert before.group_name == after.group_name == "traced-readers"
        assert after.time_stamp >= before.time_stamp > 0
        codes[sent.msg_id] = (after.success, after.context_code)
    assert list(codes.values()) == [(True, 0), (False, 4), (False, 2)]


def test_transactions(cluster: LocalCluster, topic: str) -> None:
    with TransactionProducer("deciders", Decides(), name_server=cluster.name_server, enable_msg_trace=True) as producer:
        sent = {
            state: producer.send_in_transaction(Message.of(topic, state, tags="t"), state)
            for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")
        }
        flush(producer)
    for state, result in sent.items():
        half, end = of(cluster, result.msg_id)
        assert (half.trace_type, half.trace_beans[0].msg_type) == (TraceType.Pub, TRANS_MSG_HALF)
        bean = end.trace_beans[0]
        assert (end.trace_type, bean.transaction_state, bean.msg_type) == (
            TraceType.EndTransaction,
            state,
            TRANS_MSG_COMMIT,
        )
        assert (bean.topic, bean.tags, bean.from_transaction_check) == (topic, "t", False)
        assert (bean.transaction_id, bean.store_host) == (result.transaction_id, cluster.broker_address)


def test_another_topic(cluster: LocalCluster, topic: str) -> None:
    own = cluster.create_topic(f"{topic}-trace", 1)
    with Producer(
        "tracers", name_server=cluster.name_server, enable_msg_trace=True, customized_trace_topic=own
    ) as producer:
        sent = producer.send(Message.of(topic, "x"))
        producer.send(Message.of(own, "of itself there is no trace"))
        flush(producer)
    assert not of(cluster, sent.msg_id)
    assert [one.trace_beans[0].msg_id for _, one in records(cluster, own)] == [sent.msg_id]


def test_a_broker_without_traces(cluster: LocalCluster, topic: str) -> None:
    with Producer("tracers", name_server=cluster.name_server, enable_msg_trace=True) as producer:
        set_trace_on(cluster, on=False)
        try:
            sent = producer.send(Message.of(topic, "x"))
        finally:
            set_trace_on(cluster, on=True)
        flush(producer)
    assert not sent.trace_on
    assert not of(cluster, sent.msg_id)


def set_trace_on(cluster: LocalCluster, *, on: bool) -> None:
    text = f"traceOn={'true' if on else 'false'}".encode()
    with RemotingClient() as client:
        request = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, {}, text)
        assert client.invoke(cluster.broker_address, request, LIMIT).code == ResponseCode.SUCCESS


# --- traces never delay the application --------------------------------------------------------------------------


def event(topic: str = "t", msg_id: str = "ID") -> TraceContext:
    return TraceContext(TraceType.Pub, 1, trace_beans=[TraceBean(topic, msg_id)])


class StuckProducer:
    """A producer whose sends wait for ``go``."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.sent: list[Message] = []
        self.sending = threading.Event()
        self.closed = threading.Event()
        self.error: Exception | None = None

    def send(self, message: Message) -> None:
        self.sending.set()
        assert self.go.wait(LIMIT)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.sent.append(message)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def stuck() -> StuckProducer:
    return StuckProducer()


def test_a_full_queue_drops_and_counts(stuck: StuckProducer, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = TraceDispatcher("full", lambda: stuck)
    assert dispatcher.append(event())
    assert stuck.sending.wait(LIMIT)
    taken = sum(dispatcher.append(event()) for _ in range(MAX_PENDING + 50))
    assert taken == MAX_PENDING
    assert dispatcher.dropped == 50
    assert sum("queue full" in one.getMessage() for one in caplog.records) == 1
    stuck.go.set()
    assert dispatcher.flush(LIMIT)
    dispatcher.close()
    assert stuck.closed.wait(LIMIT)
    contexts = [one for message in stuck.sent for one in decode_trace_data(message.body)]
    assert len(contexts) == MAX_PENDING + 1
    assert len(stuck.sent) <= MAX_PENDING // MAX_BATCH_EVENTS + 3
    assert not dispatcher.append(event())


def test_a_failed_trace_is_logged_and_the_next_one_is_sent(
    stuck: StuckProducer, caplog: pytest.LogCaptureFixture
) -> None:
    stuck.error = ValueError("broken")
    stuck.go.set()
    dispatcher = TraceDispatcher("failing", lambda: stuck)
    dispatcher.append(event(msg_id="A"))
    assert dispatcher.flush(LIMIT)
    dispatcher.append(event(msg_id="B"))
    assert dispatcher.flush(LIMIT)
    dispatcher.close()
    assert [message.keys for message in stuck.sent] == ["B"]
    assert "dropped message trace events: send failed: ValueError: broken" in caplog.text


def test_large_events_are_split(stuck: StuckProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_BATCH_CHARACTERS", 200)
    dispatcher = TraceDispatcher("large", lambda: stuck)
    with dispatcher._changed:
        for number in range(10):
            dispatcher.append(event(msg_id="I" * 50 + str(number)))
    stuck.go.set()
    assert dispatcher.flush(LIMIT)
    dispatcher.close()
    assert len(stuck.sent) == 4
    assert all(len(message.body) < 400 for message in stuck.sent)


def test_without_a_broker_a_close_does_not_wait_long(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    monkeypatch.setattr(trace_module, "CLOSE_SECONDS", 0.01)
    dispatcher = TraceDispatcher(None, lambda: trace_producer(nobody, "", {}))
    before = set(threading.enumerate())
    dispatcher.append(event())
    dispatcher.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_disabled_by_default_without_hooks(cluster: LocalCluster) -> None:
    with Producer("plain", name_server=cluster.name_server) as producer:
        assert producer.tracer is None
    assert GROUP == "_INNER_TRACE_PRODUCER"
