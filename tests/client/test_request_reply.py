"""Requests that are messages, and their replies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from spark_rocket.client import Producer, Reader, create_reply_message
from spark_rocket.client.send.request_reply import Replies, reply_of
from spark_rocket.errors import BrokerError, ClientError, RequestTimeoutError, StateError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.record.compression import compress_body
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

QUEUES = 1


@pytest.fixture
def requester(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer("GID_asks", name_server=cluster.name_server) as producer:
        yield producer


class Consumer:
    """Replies to each message of a topic."""

    def __init__(self, cluster: LocalCluster, topic: str, reply: Callable[[MessageExt], bytes | None]) -> None:
        self._queue = MessageQueue(topic, "broker-a", 0)
        self._reply = reply
        self._end = threading.Event()
        self._reader = Reader(cluster.name_server)
        self._producer = Producer(name_server=cluster.name_server)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._producer.close()
        self._reader.close()

    def _run(self) -> None:
        offset = 0
        while not self._end.is_set():
            for message in self._reader.messages(self._queue, offset, suspend_ms=100):
                offset += 1
                body = self._reply(message)
                if body is not None:
                    self._producer.send(create_reply_message(message, body))


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_request_gets_its_reply(cluster: LocalCluster, requester: Producer, topic: str, size: int) -> None:
    with Consumer(cluster, topic, lambda message: message.body.upper() * size):
        replies = [requester.request_async(Message.of(topic, f"m{i}"), timeout=20) for i in range(5)]
        assert [reply.result(20).body for reply in replies] == [f"M{i}".encode() * size for i in range(5)]
        reply = requester.request(Message.of(topic, "last", tags="A"), timeout=20)
    assert reply.body == b"LAST" * size
    assert reply.properties["MSG_TYPE"] == "reply"
    assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= reply.properties.keys()


def test_a_request_without_a_reply(cluster: LocalCluster, requester: Producer, topic: str) -> None:
    with pytest.raises(RequestTimeoutError, match=topic) as caught:
        requester.request(Message.of(topic, "anybody there?"), timeout=0.3)
    assert (caught.value.code, caught.value.retriable) == ("NO_REPLY", True)
    assert not Replies.of(requester.running())._pending


def test_pending_requests_fail_with_their_producer_and_timer(
    cluster: LocalCluster, requester: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = requester.request_async(Message.of(topic, "anybody there?"), timeout=3600)
    failure: Future[MessageExt] = Future()

    def ask() -> None:
        try:
            failure.set_result(requester.request(Message.of(topic, "or there?"), timeout=3600))
        except StateError as error:
            failure.set_exception(error)

    monkeypatch.setattr("spark_rocket.client.send.producer.TIMER_GRACE_S", 0.0)
    instance, asked = requester.running(), threading.Event()
    with monkeypatch.context() as broken:
        broken.setattr(Replies.of(instance), "_call_at", lambda *_: None)
        with pytest.raises(RequestTimeoutError, match=topic):
            requester.request(Message.of(topic, "nor there?"), timeout=0.1)
        broken.setattr(Replies, "expect", lambda *_: asked.set())
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(20)
    requester.close()
    for future in (waiting, failure):
        with pytest.raises(StateError, match="closed"):
            future.result(20)
    thread.join(20)
    assert not Replies.of(instance)._pending


def test_invalid_requests(cluster: LocalCluster, requester: Producer, topic: str) -> None:
    nowhere = MessageQueue(topic, "broker-a", 99)
    with pytest.raises(ClientError):
        requester.request_async(Message.of(topic, "b"), queue=nowhere).result(20)
    with pytest.raises(ClientError, match="body"):
        requester.request(Message(topic, b""))
    assert not Replies.of(requester.running())._pending
    with (
        Producer(name_server=cluster.name_server) as nameless,
        pytest.raises(ClientError, match="its own group"),
    ):
        nameless.request(Message.of(topic, "b"))


def test_an_unexpected_reply(cluster: LocalCluster, requester: Producer, topic: str) -> None:
    consumed = Message.of(topic, "b", properties={"CLUSTER": "DefaultCluster", "CORRELATION_ID": "x"})
    with pytest.raises(ClientError, match="REPLY_TO_CLIENT"):
        create_reply_message(consumed, b"r")
    consumed.properties["REPLY_TO_CLIENT"] = "missing@0"
    with pytest.raises(BrokerError, match="channel of <missing@0> not found"):
        requester.send(create_reply_message(consumed, b"r"), queue=None)
    Replies.of(requester.running())
    requester.queues(topic)
    requester.running().members.register_at_new_brokers()
    consumed.properties["REPLY_TO_CLIENT"] = requester.running().client_id
    assert requester.send(create_reply_message(consumed, "late")).queue.topic == "DefaultCluster_REPLY_TOPIC"


def test_a_compressed_reply() -> None:
    ext = {
        "producerGroup": "g", "topic": "r", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": str(0x301), "bornTimestamp": "1", "flag": "0", "bornHost": "/1.2.3.4:5", "storeHost": "6.7.8.9:10",
        "storeTimestamp": "2", "properties": "CORRELATION_ID\x01c\x02",
    }  # fmt: skip
    push = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, compress_body(b"abc" * 99))
    reply = reply_of(push)
    assert reply.body == b"abc" * 99
    assert (reply.born_host, reply.store_host) == (("1.2.3.4", 5), ("6.7.8.9", 10))
    assert reply.properties["CORRELATION_ID"] == "c"
    for text, host in (
        ("rmq-broker/172.18.0.3:10911", ("172.18.0.3", 10911)),  # brokerIP1 is a name
        ("rmq-broker/<unresolved>:10911", ("rmq-broker", 10911)),
        ("/[0:0:0:0:0:0:0:1%0]:5", ("0:0:0:0:0:0:0:1", 5)),
        ("/0:0:0:0:0:0:0:1:5", ("0:0:0:0:0:0:0:1", 5)),
        ("null", ("", 0)),
    ):
        push.ext_fields["storeHost"] = text
        assert reply_of(push).store_host == host
