"""A producer's requests, their targets, and retries."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.client import select_by_sharding_key, split_batch
from spark_rocket.errors import (
    BrokerError,
    ClientError,
    MessageTooLargeError,
    ProtocolError,
    QueueNotFoundError,
    RemotingConnectError,
    RemotingTimeoutError,
    TopicNotFoundError,
)
from spark_rocket.model import Message, MessageQueue, SendStatus
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.encoder import encode_batch
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.client.producing import HOWS, Produce, done
from tests.kit.scripted import STORED, FakeCluster, says

pytestmark = pytest.mark.live

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def header_of(request: RemotingCommand) -> SendMessageRequestHeader:
    return SendMessageRequestHeader.from_ext_v2(request.ext_fields)


def test_the_request_of_a_send(mq: FakeCluster, produce: Produce) -> None:
    result = produce().send(Message.of("t", "body", tags="A", keys=["k1", "k2"], properties={"x": "y"}, flag=5))
    (request,) = mq.sends()
    assert request.code == SEND
    assert request.body == b"body"
    header = header_of(request)
    properties = decode_properties(header.properties)
    assert properties == {"UNIQ_KEY": result.msg_id, "WAIT": "true", "TAGS": "A", "KEYS": "k1 k2", "x": "y"}
    assert len(result.msg_id) == 32
    assert (header.producer_group, header.topic, header.default_topic) == ("g", "t", "TBW102")
    assert (header.default_topic_queue_nums, header.flag, header.sys_flag, header.batch) == (4, 5, 0, False)
    assert header.queue_id == 0
    assert result.status is SendStatus.SEND_OK
    assert (result.offset_msg_id, result.queue_offset, result.transaction_id) == (STORED["msgId"], 7, "T")
    assert result.queue == MessageQueue("t", header.broker_name or "", 0)


def test_a_message_is_not_changed_and_keeps_its_unique_key(mq: FakeCluster, produce: Produce) -> None:
    message = Message.of("t", "body")
    producer = produce()
    assert producer.send(message).msg_id != producer.send(message).msg_id
    assert message.properties == {}
    assert producer.send(Message("t", b"x", {"UNIQ_KEY": "mine"})).msg_id == "mine"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_response_codes_of_stored_messages(mq: FakeCluster, produce: Produce, code: int, status: SendStatus) -> None:
    mq.everywhere(SEND, says(code, ext=STORED))
    assert produce().send(Message.of("t", "b")).status is status
    assert len(mq.sends()) == 1


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 215, 1500])
@pytest.mark.parametrize("how", HOWS)
def test_retries_use_another_broker(mq: FakeCluster, produce: Produce, code: int, how: str) -> None:
    bad, good = mq.brokers
    bad.responses[SEND] = says(code, "not now")
    producer = produce()
    for _ in range(2):  # one of the two starts at the bad broker
        assert done(producer, how).queue.broker_name == "b1"
    assert bad.requests
    assert len(good.requests) == 2
    keys = [decode_properties(header_of(request).properties)["UNIQ_KEY"] for request in mq.sends()]
    assert len(set(keys)) == 2, "the second attempt has the key of the first"


@pytest.mark.parametrize("how", HOWS)
def test_attempts_are_counted(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.everywhere(SEND, says(2, "busy"))
    producer = produce(retry_times_when_send_failed=3, retry_times_when_send_async_failed=3)
    with pytest.raises(BrokerError, match="busy") as caught:
        done(producer, how)
    assert (caught.value.retriable, caught.value.response_code) == (True, 2)
    assert len(mq.sends()) == 4


@pytest.mark.parametrize("how", HOWS)
def test_permanent_errors_are_not_retried(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.everywhere(SEND, says(ResponseCode.MESSAGE_ILLEGAL, "message body size over max value"))
    with pytest.raises(MessageTooLargeError, match="size over max") as caught:
        done(produce(), how)
    assert not caught.value.retriable
    assert len(mq.sends()) == 1


def test_all_brokers_dead(mq: FakeCluster, produce: Produce) -> None:
    producer = produce()
    producer.queues("t")
    for broker in mq.brokers:
        broker.close()
    with pytest.raises(RemotingConnectError) as caught:
        producer.send(Message.of("t", "b"))
    assert caught.value.retriable


def test_a_silent_broker_times_out(mq: FakeCluster, produce: Produce) -> None:
    mq.brokers[0].responses[SEND] = lambda request: None
    producer = produce(send_msg_max_timeout_per_request=0.5)
    assert {producer.send(Message.of("t", "b")).queue.broker_name for _ in range(2)} == {"b1"}
    with pytest.raises(RemotingTimeoutError):
        producer.send(Message.of("t", "b"), queue=MessageQueue("t", "b0", 0))


def test_a_given_queue_is_not_changed(mq: FakeCluster, produce: Produce) -> None:
    mq.everywhere(SEND, says(2, "busy"))
    queue = MessageQueue("t", "b1", 0)
    producer = produce()
    for how in HOWS:
        with pytest.raises(BrokerError):
            done(producer, how, queue=queue)
    assert [len(broker.requests) for broker in mq.brokers] == [0, 2]
    with pytest.raises(ClientError, match="'other'"):
        producer.send(Message.of("other", "b"), queue=queue)
    mq.brokers[1].responses[SEND] = says(1, "request queueId[9] is illegal, topic:[t]")
    with pytest.raises(QueueNotFoundError, match="queueId"):
        producer.send(Message.of("t", "b"), queue=queue)


@pytest.mark.parametrize("how", HOWS)
def test_a_topic_with_fewer_queues_than_in_its_route(mq: FakeCluster, produce: Produce, how: str) -> None:
    """The queue no longer exists: the route is refreshed, and the next attempt uses an existing queue."""

    def first_queue_only(request: RemotingCommand) -> RemotingCommand | None:
        queue_id = header_of(request).queue_id
        if queue_id:
            return RemotingCommand.response(request, 1, f"request queueId[{queue_id}] is illegal, topic:[t]")
        return says(0, ext=STORED)(request)

    mq.add("t", queues=4)
    producer = produce()
    producer.queues("t")
    mq.add("t", queues=1)
    mq.everywhere(SEND, first_queue_only)
    for _ in range(8):  # one of each of the old route's queues
        assert done(producer, how).status is SendStatus.SEND_OK
    assert len(mq.sends()) <= 8 + 1


def test_a_selector_chooses(mq: FakeCluster, produce: Produce) -> None:
    mq.add("t", queues=4)
    producer = produce()
    queues = producer.queues("t")
    result = producer.send(Message.of("t", "b"), selector=lambda qs, message, arg: qs[arg], selector_arg=5)
    assert header_of(mq.sends()[0]).queue_id == queues[5].queue_id
    assert result.queue.broker_name == queues[5].broker_name
    message = Message.of("t", "b", sharding_key="order-1")
    wanted = queues[abs(java_hash("order-1")) % 8]
    assert select_by_sharding_key(queues, message) == wanted
    assert select_by_sharding_key(queues, Message.of("t", "b"), "order-1") == wanted


@pytest.mark.parametrize("how", ["send", "send_async", "send_oneway"])
@pytest.mark.parametrize(
    ("chosen", "words"), [(7, "returned 7 "), (MessageQueue("other", "b0", 0), "queue of 'other'")]
)
def test_a_selector_that_chooses_no_queue(mq: FakeCluster, produce: Produce, how: str, chosen: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        getattr(produce(), how)(Message.of("t", "b"), selector=lambda *_: chosen)
    assert mq.sends() == []


def test_a_topic_is_created_by_sending(mq: FakeCluster, produce: Produce) -> None:
    producer = produce()
    with pytest.raises(TopicNotFoundError, match="'new'"):
        producer.send(Message.of("new", "b"))
    mq.add("TBW102", queues=8, perm=7)
    assert producer.send(Message.of("new", "b")).queue.topic == "new"
    header = header_of(mq.sends()[0])
    assert (header.topic, header.default_topic, header.default_topic_queue_nums) == ("new", "TBW102", 4)
    assert header.queue_id < 4


def test_large_bodies_are_compressed(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(compress_msg_body_over_howmuch=100)
    body = b"abc" * 100
    producer.send(Message("t", body))
    producer.send(Message("t", body[:100]))
    random = zlib.compress(bytes(range(256)) * 2)[:200].ljust(101, b"\xf3")
    producer.send(Message("t", random))
    by_size = sorted(mq.sends(), key=lambda request: header_of(request).sys_flag)
    assert [header_of(request).sys_flag for request in by_size][-1] == 0x301
    assert zlib.decompress(by_size[-1].body) == body
    plain = {request.body for request in by_size if header_of(request).sys_flag == 0}
    assert body[:100] in plain


def test_messages_above_the_limit(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(max_message_size=1000)
    with pytest.raises(MessageTooLargeError, match=r"1,001 bytes; the limit is 1,000"):
        producer.send(Message("t", b"x" * 1001))
    with pytest.raises(MessageTooLargeError, match=r"properties.*32,767"):
        producer.send(Message("t", b"x", {"k": "v" * 40_000}))
    with pytest.raises(MessageTooLargeError, match="split_batch"):
        producer.send([Message("t", b"x" * 600)] * 2)
    with pytest.raises(MessageTooLargeError, match="2 encoded"):
        producer.send_batch_body(MessageQueue("t", "b0", 0), bytes(1001), 2)
    with pytest.raises(ProtocolError, match="separator"):
        producer.send(Message("t", b"x", {"k": "\x01"}))
    assert mq.sends() == []


def test_a_batch(mq: FakeCluster, produce: Produce) -> None:
    messages = [Message.of("t", f"m{i}", tags=f"T{i}", flag=i) for i in range(3)]
    result = produce().send(messages)
    (request,) = mq.sends()
    assert request.code == BATCH
    assert header_of(request).batch
    parts = decode_batch_body(request.body)
    assert [(flag, bytes(body)) for flag, body, _ in parts] == [(0, b"m0"), (1, b"m1"), (2, b"m2")]
    properties = [decode_properties(raw) for *_, raw in parts]
    assert [p["TAGS"] for p in properties] == ["T0", "T1", "T2"]
    assert result.msg_id.split(",") == [p["UNIQ_KEY"] for p in properties]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "is empty"),
        ([Message.of("t", "a"), Message.of("u", "b")], "'u'"),
        ([Message("t", b"", {"DELAY": "3"})], "delayed"),
        ([Message("%RETRY%g", b"")], "retry"),
        ([Message.of("t", "a"), Message.of("t", "b", wait_store_ok=False)], "different values of WAIT"),
        ("pay", "Invalid argument message: 'pay'. Pass a Message"),
        (b"pay", "Invalid argument message: b'pay'. Pass a Message"),
        (7, "Invalid argument message: 7. Pass a Message"),
        ([Message.of("t", "a"), None], "Invalid argument message: list. Pass a Message"),
    ],
)
def test_invalid_batches(produce: Produce, messages: Any, problem: str) -> None:
    with pytest.raises(ClientError, match=problem):
        produce().send(messages)


def test_split_batch(mq: FakeCluster, produce: Produce) -> None:
    messages = [Message("t", b"x" * size, {"k": "v"}) for size in (200, 200, 200, 2000, 10, 10)]
    batches = list(split_batch(messages, 1000))
    assert [len(batch) for batch in batches] == [2, 1, 1, 2]
    assert [message for batch in batches for message in batch] == messages
    producer = produce(max_message_size=1000)
    for batch in (batches[0], batches[1], batches[3]):
        producer.send(batch)
    assert list(split_batch([])) == []


def test_parts_of_split_batch_fit_brokers_of_4_9_0() -> None:
    """Such a broker limits the total size of all records."""
    messages = [Message.of("orders", b"", tags="t") for _ in range(40_000)]
    added = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02"
    (first, *_) = split_batch(messages)
    piece = len("TAGS\x01t\x02UNIQ_KEY\x01\x02WAIT\x01true\x02") + 32 + len(added)
    assert len(first) * (91 + len("orders") + piece) <= 4 << 20


@pytest.mark.parametrize("how", HOWS)
def test_a_batch_above_a_brokers_limit(mq: FakeCluster, produce: Produce, how: str) -> None:
    """Apache's encoder raises an exception, whose code is 1; no other broker is asked."""
    remark = "java.lang.RuntimeException: message body size exceeded, org.apache.rocketmq.store.MessageExtEncoder"
    mq.everywhere(BATCH, says(1, remark))
    with pytest.raises(MessageTooLargeError, match="split_batch") as caught:
        done(produce(), how, [Message.of("t", "b"), Message.of("t", "c")])
    assert caught.value.response_code == 1
    assert len(mq.sends()) == 1


def test_encoded_batches_are_sent_unchanged(mq: FakeCluster, produce: Produce) -> None:
    body, _ = encode_batch(pa.array([b"one", b"two"]), pa.array([b"", b"TAGS\x01A"]))
    queue = MessageQueue("t", "b1", 0)
    producer = produce()
    results = [producer.send_batch_body(queue, body, 2), producer.send_batch_body_async(queue, body, 2).result(10)]
    assert [request.body for request in mq.brokers[1].requests] == [bytes(body)] * 2
    assert {(r.queue, r.queue_offset, r.status) for r in results} == {(queue, 7, SendStatus.SEND_OK)}
    mq.everywhere(BATCH, says(2, "busy"))
    with pytest.raises(BrokerError):
        producer.send_batch_body_async(queue, body, 2).result(10)
    assert len(mq.brokers[0].requests) == 0, "one queue, one attempt"


def test_oneway(mq: FakeCluster, produce: Produce) -> None:
    produce().send_oneway(Message.of("t", "b"), queue=MessageQueue("t", "b1", 0))
    assert mq.brokers[1].arrived.acquire(timeout=10)
    (request,) = mq.sends()
    assert request.is_oneway
    assert request.code == SEND


@pytest.mark.parametrize("how", HOWS)
def test_an_empty_response_is_an_error(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.everywhere(SEND, says(0))
    with pytest.raises(ProtocolError, match="msgId"):
        done(produce(), how)


def test_unknown_response_codes(produce: Produce, mq: FakeCluster) -> None:
    mq.everywhere(SEND, says(9999, "odd"))
    with pytest.raises(BrokerError, match=r"9999 \(unknown code\): odd") as caught:
        produce().send(Message.of("t", "b"))
    assert not caught.value.retriable


def test_an_interrupted_send_releases_its_permit(
    mq: FakeCluster, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = produce()
    producer.send(Message.of("t", "a"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RemotingClient, "prepare", interrupt)
        for send in (producer.send_async, producer.send):
            with pytest.raises(KeyboardInterrupt):
                send(Message.of("t", "a"))
    assert producer.in_flight.count == 0
    assert not producer.in_flight.sends
