"""Single sends that are combined into batches."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.send.accumulator import Accumulator
from spark_rocket.errors import (
    BrokerError,
    MessageTooLargeError,
    ProtocolError,
    RemotingError,
    RemotingTimeoutError,
)
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.testing import LocalCluster
from tests.client.producing import Produce
from tests.kit.forking import in_child
from tests.kit.scripted import FakeCluster, route, says

pytestmark = pytest.mark.live

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
HOUR = 3600.0


def stored(request: RemotingCommand) -> RemotingCommand:
    count = len(decode_batch_body(request.body)) if request.code == BATCH else 1
    ids = ",".join(f"{i:02X}" for i in range(count))
    ext = {"msgId": ids, "queueId": request.ext_fields["e"], "queueOffset": "100"}
    return RemotingCommand.response(request, 0, None, ext)


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    mq.add("u", queues=1)
    for code in (SEND, BATCH):
        mq.everywhere(code, stored)
    return mq


@pytest.fixture
def produce(produce: Produce) -> Produce:
    """Batches are sent when full or at close, unless a delay is given."""
    return lambda **options: produce(**{"auto_batch": True, "batch_max_delay": HOUR, **options})


def send_third(producer: Producer) -> Future[SendResult]:
    """Send a third of a ``batch_max_bytes`` of 1000."""
    return producer.send_async(Message("t", b"x" * 300), queue=MessageQueue("t", "b0", 0))


def connect(producer: Producer) -> None:
    """Connect first, so that the filling thread sends full batches at once."""
    producer.send([Message.of("t", "x")], queue=MessageQueue("t", "b0", 0))


def send_full_batch(producer: Producer) -> None:
    futures = [send_third(producer) for _ in range(3)]
    assert [future.result(20).queue_offset for future in futures] == [100, 101, 102]


def test_each_message_has_its_own_result(mq: FakeCluster, produce: Produce) -> None:
    producer = produce()
    messages = [Message.of("t", f"m{i}", tags=f"T{i}", keys="k", flag=i) for i in range(3)]
    futures = [producer.send_async(message) for message in messages]
    assert not any(future.done() for future in futures)
    producer.close()
    results = [future.result(20) for future in futures]
    (request,) = mq.sends()
    assert (request.code, request.ext_fields["m"], request.ext_fields["i"]) == (BATCH, "true", "WAIT\x01true")
    parts = decode_batch_body(request.body)
    assert [(flag, bytes(body)) for flag, body, _ in parts] == [(0, b"m0"), (1, b"m1"), (2, b"m2")]
    assert all(bytes(raw).endswith(b"\x02") for *_, raw in parts), "4.9.0 puts its own right behind them"
    properties = [decode_properties(raw) for *_, raw in parts]
    assert [one["UNIQ_KEY"] for one in properties] == [result.msg_id for result in results]
    assert [{name: one[name] for name in ("TAGS", "KEYS", "WAIT")} for one in properties] == [
        {"TAGS": f"T{i}", "KEYS": "k", "WAIT": "true"} for i in range(3)
    ]
    assert [result.queue_offset for result in results] == [100, 101, 102]
    assert [result.offset_msg_id for result in results] == ["00", "01", "02"]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert {result.queue.topic for result in results} == {"t"}
    assert messages[0].properties == {"TAGS": "T0", "KEYS": "k"}


def test_a_full_batch_is_sent_at_once(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(batch_max_bytes=1000)
    futures = [producer.send_async(Message("t", b"x" * 300)) for _ in range(6)]
    for future in futures:
        future.result(20)
    assert [len(decode_batch_body(request.body)) for request in mq.sends()] == [3, 3]


def test_the_first_message_waits_no_longer_than_the_delay(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(batch_max_delay=0.01)
    assert producer.send(Message.of("t", "one")).queue_offset == 100
    assert producer.send_async(Message.of("t", "two")).result(20).queue_offset == 100
    assert [request.code for request in mq.sends()] == [BATCH, BATCH]


def test_messages_combined_into_a_batch(mq: FakeCluster, produce: Produce) -> None:
    producer = produce()
    b1 = MessageQueue("t", "b1", 0)
    for _ in range(2):
        producer.send_async(Message.of("t", "a"))
        producer.send_async(Message.of("u", "a"))
        producer.send_async(Message.of("t", "a"), queue=b1)
        producer.send_async(Message.of("t", "a"), queue=b1)
        producer.send_async(Message.of("t", "a", wait_store_ok=False))
        producer.send_async(Message.of("u", "a", sharding_key="s"))
    producer.close()
    counts = Counter((request.ext_fields["b"], len(decode_batch_body(request.body))) for request in mq.sends())
    assert counts == {("t", 2): 2, ("u", 2): 2, ("t", 4): 1}
    assert Counter(request.ext_fields["i"] for request in mq.sends()) == {"WAIT\x01true": 4, "WAIT\x01false": 1}


@pytest.mark.parametrize(
    "message",
    [
        Message.of("t", "a", delay_level=3),
        Message.of("t", "a", deliver_at_ms=5),
        Message.of("t", "x" * 5000),
        Message.of("t", "a", properties={"TRAN_MSG": "true"}),
        Message.of("%RETRY%g", "a"),
    ],
)
def test_messages_sent_without_a_batch(mq: FakeCluster, produce: Produce, message: Message) -> None:
    mq.add("%RETRY%g")
    produce().send(message)
    assert [request.code for request in mq.sends()] == [SEND]


def test_messages_that_do_not_fit_are_sent_without_a_batch(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(total_batch_max_bytes=200)
    first = producer.send_async(Message("t", b"x" * 100))
    assert producer.send(Message("t", b"x" * 100)).queue_offset == 100
    assert [request.code for request in mq.sends()] == [SEND]
    producer.close()
    assert first.result(20)
    producer = produce(batch_max_bytes=50)
    producer.send(Message("t", b"x" * 100))
    assert [request.code for request in mq.sends()].count(SEND) == 2


def test_invalid_messages_fail_at_once(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(max_message_size=100)
    with pytest.raises(MessageTooLargeError):
        producer.send_async(Message("t", b"x" * 101))
    with pytest.raises(ProtocolError, match="separator"):
        producer.send_async(Message("t", b"x", {"k": "\x02"}))
    with pytest.raises(ProtocolError, match="32,767"):
        producer.send_async(Message("t", b"x", {"k": "v" * 40_000}))
    producer.close()
    assert not mq.sends()


def test_a_failed_batch_fails_each_message(mq: FakeCluster, produce: Produce) -> None:
    mq.everywhere(BATCH, says(ResponseCode.MESSAGE_ILLEGAL, "no"))
    producer = produce()
    futures = [producer.send_async(Message.of("t", "a")) for _ in range(3)]
    producer.close()
    errors = [future.exception(20) for future in futures]
    assert {type(error) for error in errors} == {BrokerError}
    assert len({id(error) for error in errors}) == len({str(error) for error in errors}) * 3 == 3
    assert len(mq.sends()) == 1


def test_a_batch_is_retried_at_another_broker(mq: FakeCluster, produce: Produce) -> None:
    mq.brokers[0].responses[BATCH] = says(ResponseCode.SYSTEM_BUSY, "busy")
    producer = produce(batch_max_bytes=200)
    futures = [producer.send_async(Message("t", b"x" * 60)) for _ in range(4)]
    assert [future.result(20).queue_offset for future in futures] == [100, 101] * 2
    assert {future.result().queue.broker_name for future in futures} == {"b1"}
    refused, accepted = (len(broker.requests) for broker in mq.brokers)
    assert accepted == 2
    assert 1 <= refused <= 2  # the second batch may be on its way before the first one is refused


def test_an_unresponsive_broker_does_not_delay_other_topics(
    mq: FakeCluster, produce: Produce, silent: Callable[[], str]
) -> None:
    mq.topics["dead"] = route({"dead": (1, 1, 6)}, {"dead": {0: silent()}})
    producer = produce(batch_max_delay=0.01, send_timeout=5.0)
    lost = [producer.send_async(Message.of("dead", "a"), queue=MessageQueue("dead", "dead", 0)) for _ in range(2)]
    for _ in range(3):
        assert producer.send(Message.of("t", "a")).queue_offset == 100
        assert not any(future.done() for future in lost)
    assert all(isinstance(future.exception(20), RemotingError) for future in lost)


def test_the_timeout_of_a_call_holds_without_a_result(produce: Produce, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = produce()
    producer.queues("t")
    monkeypatch.setattr(Accumulator, "add", lambda *_: Promise())
    with pytest.raises(RemotingTimeoutError, match=r"within 0\.01 s"):
        producer.send(Message.of("t", "a"), timeout=0.01)


def test_order_and_offsets_of_a_queue(cluster: LocalCluster) -> None:
    """Four threads with one queue each: the messages of a thread are in order, at the offsets of the results."""
    topic = cluster.create_topic("accumulated", 4)
    found: dict[int, list[Any]] = {}
    with Producer("order", name_server=cluster.name_server, auto_batch=True, batch_max_bytes=4000) as producer:
        queues = producer.queues(topic)

        def send(index: int) -> None:
            queue = queues[index]
            found[index] = [producer.send_async(Message.of(topic, f"{i}"), queue=queue) for i in range(1500)]

        threads = [threading.Thread(target=send, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Reader(cluster.name_server) as reader:
        for index, futures in found.items():
            results = [future.result(0) for future in futures]
            assert [result.queue_offset for result in results] == list(range(1500))
            read: list[Any] = []
            while len(read) < 1500:
                read += reader.messages(queues[index], len(read))
            assert [message.body for message in read] == [b"%d" % i for i in range(1500)]
            assert [message.msg_id for message in read] == [result.msg_id for result in results]
            assert [message.offset_msg_id for message in read] == [result.offset_msg_id for result in results]


@pytest.mark.parametrize("respond", [stored, says(ResponseCode.MESSAGE_ILLEGAL, "no")], ids=["stored", "refused"])
def test_system_exit_in_a_callback_affects_no_other_callback(
    mq: FakeCluster, produce: Produce, respond: Callable[[RemotingCommand], RemotingCommand]
) -> None:
    mq.everywhere(BATCH, respond)
    producer = produce()
    futures = []
    for _ in range(3):
        futures.append(producer.send_async(Message.of("t", "x")))
        futures[-1].add_done_callback(lambda _: sys.exit(1))
    producer.close()
    assert len({type(future.exception(20)) for future in futures}) == 1
    assert producer.in_flight.count == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_requests_of_its_parent(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(max_in_flight=2, block_when_full=False, member=True)
    producer.start()
    held = [producer.send_async(Message.of("t", f"p{i}")) for i in range(2)]

    def sends_both() -> bool:
        sent = [producer.send_async(Message.of("t", f"c{i}")) for i in range(2)]
        joined = producer.running().members.producers.get("g") is producer
        producer.close()
        return joined and [future.result(10).queue_offset for future in sent] == [100, 101]

    with producer._starting:  # as another thread may hold it
        in_child(sends_both)
    producer.close()
    assert [future.result(20).queue_offset for future in held] == [100, 101]
    bodies = [[bytes(body) for _, body, _ in decode_batch_body(r.body)] for r in mq.sends() if r.code == BATCH]
    assert bodies == [[b"c0", b"c1"], [b"p0", b"p1"]]
