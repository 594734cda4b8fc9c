"""An attempt is what a send to a queue is on the wire, in its result, its errors and its counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.errors import MessageTooLargeError, RocketError, StateError
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.protocol.record.batch_body import encode_batch_message
from spark_rocket.protocol.wire.codes import RequestCode
from tests.client.producing import Produce
from tests.kit.scripted import STORED, FakeCluster, says

pytestmark = pytest.mark.live

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
QUEUE = MessageQueue("t", "b0", 0)
MESSAGE = Message("t", b"x" * 5000, {"UNIQ_KEY": "A" * 32, "k": "v"}, 3)
BODY = encode_batch_message(0, b"one", b"TAGS\x01A\x02") * 2

Sends = Callable[[Producer, MessageQueue], Future[SendResult]]
SINGLE: list[Sends] = [
    lambda producer, queue: producer.send_async(MESSAGE, queue=queue),
    lambda producer, queue: producer.attempt(MESSAGE, queue),
]
BATCHES: list[Sends] = [
    lambda producer, queue: producer.send_batch_body_async(queue, BODY, 2, sys_flag=0x301),
    lambda producer, queue: producer.attempt_batch_body(queue, BODY, 2, sys_flag=0x301),
]
FORMS = pytest.mark.parametrize("forms", [SINGLE, BATCHES], ids=["single", "batch"])


def ended(sent: Future[SendResult]) -> object:
    try:
        return sent.result(20)
    except RocketError as error:
        text = re.sub(r"[\d.]+ s\b", "… s", error.message)  # what was left of the timeout
        return type(error), text, error.remedy, error.response_code, error.retriable


def counted(producer: Producer) -> tuple[int, int, int, int]:
    counts = producer.stats.of("t")
    return counts.messages, counts.bytes, sum(counts.ok), sum(counts.failed)


@FORMS
def test_the_requests_are_those_of_a_send(mq: FakeCluster, produce: Produce, forms: list[Sends]) -> None:
    for send in forms:
        send(produce(), QUEUE).result(20)
    one, other = (dict(request.ext_fields) for request in mq.sends())
    assert one.pop("g"), "the time"
    assert other.pop("g")
    assert one == other
    first, second = mq.sends()
    assert (first.code, first.body) == (second.code, second.body)


@FORMS
@pytest.mark.parametrize("code", [0, 10, 11, 12, 1, 2, 13, 14, 16, 17, 215, 9999])
def test_any_response_ends_it_as_a_send(mq: FakeCluster, produce: Produce, forms: list[Sends], code: int) -> None:
    mq.everywhere(SEND, says(code, "because", STORED))
    mq.everywhere(BATCH, says(code, "because", STORED))
    outcomes, counts = [], []
    for send in forms:
        producer = produce()
        outcomes.append(ended(send(producer, QUEUE)))
        counts.append(counted(producer))
    assert outcomes[0] == outcomes[1]
    assert counts[0] == counts[1]
    assert len(mq.sends()) == 2, "one attempt each"


def silent(mq: FakeCluster) -> None:
    mq.everywhere(SEND, lambda request: None)


def without_offset(mq: FakeCluster) -> None:
    mq.everywhere(SEND, says(0))


def dead(mq: FakeCluster) -> None:
    mq.brokers[0].close()


def removed(mq: FakeCluster) -> None:
    mq.topics.clear()


def nowhere(mq: FakeCluster) -> None:
    mq.name_server.close()


@pytest.mark.parametrize("failure", [silent, without_offset, dead, removed, nowhere])
@pytest.mark.parametrize("queue", [QUEUE, MessageQueue("t", "b9", 0)], ids=lambda queue: queue.broker_name)
def test_any_failure_ends_it_as_a_send(
    mq: FakeCluster, produce: Produce, failure: Callable[[FakeCluster], None], queue: MessageQueue
) -> None:
    failure(mq)
    outcomes, counts = [], []
    for send in SINGLE:
        producer = produce(send_timeout=0.5)
        outcomes.append(ended(send(producer, queue)))
        counts.append(counted(producer))
    assert outcomes[0] == outcomes[1]
    assert counts[0] == counts[1]
    assert isinstance(outcomes[0], tuple)


def test_attempts_have_no_place_in_flight(mq: FakeCluster, produce: Produce) -> None:
    """Their caller limits them: a producer at its limit makes them, and they take no place of its sends."""
    silent(mq)
    producer = produce(max_in_flight=1, block_when_full=False, send_timeout=10.0)
    attempts = [producer.attempt(MESSAGE, QUEUE) for _ in range(3)]
    producer.send_async(MESSAGE, queue=QUEUE, timeout=2.0)  # for which the close waits
    attempts += [producer.attempt(MESSAGE, QUEUE) for _ in range(3)]
    assert producer.in_flight.count == 1
    for _ in range(7):
        assert mq.brokers[0].arrived.acquire(timeout=20)
    producer.close()
    assert {type(attempt.exception(20)) for attempt in attempts} != {type(None)}
    with pytest.raises(StateError, match="closed"):
        producer.attempt(MESSAGE, QUEUE)


def test_what_cannot_be_sent_is_refused_at_once(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(max_message_size=100)
    refused: list[Callable[[], Any]] = [
        lambda: producer.attempt(MESSAGE, QUEUE),
        lambda: producer.attempt_batch_body(QUEUE, b"x" * 101, 2),
    ]
    for attempt in refused:
        with pytest.raises(MessageTooLargeError):
            attempt()
    assert mq.sends() == []
