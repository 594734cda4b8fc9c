"""Consuming over gRPC: messages of classic producers, clients that disconnect, and invalid requests."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.client.send.producer import Producer
from spark_rocket.client.send.transaction import LocalTransactionState, TransactionProducer
from spark_rocket.model import Message, SendResult
from spark_rocket.proxy import definitions
from spark_rocket.proxy.definitions import Code, MessageType
from spark_rocket.proxy.messages.message_out import milliseconds_of
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until
from tests.proxy.caller import Caller, resource
from tests.proxy.outgoing import message

pytestmark = pytest.mark.live

_SECONDS = 30.0


class Consumer:
    """A SimpleConsumer, bare."""

    def __init__(self, client: Caller, group: str, topic: str) -> None:
        self.client = client
        self.group = group
        self.topic = topic

    def request(self, **fields: Any) -> Any:
        every: dict[str, Any] = {
            "group": resource(self.group),
            "message_queue": {"topic": resource(self.topic)},
            "batch_size": 32,
            "invisible_duration": {"seconds": 60},
            "long_polling_timeout": {"seconds": 20},
        }
        return definitions.ReceiveMessageRequest(**{**every, **fields})

    def take(self, count: int, **fields: Any) -> list[Any]:
        """Receive so many messages, and ack each."""
        taken: list[Any] = []
        while len(taken) < count:
            messages = self.client.receive(self.group, self.topic, **fields)
            assert messages, f"{len(taken)} of {count} messages came"
            answer = self.client.ack(self.group, self.topic, *messages)
            assert answer.status.code == Code.OK, answer
            taken += messages
        return taken


@pytest.fixture
def consumer(client: Caller, group: str, topic: str) -> Consumer:
    return Consumer(client, group, topic)


@pytest.fixture(scope="module")
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer("GID_classic", name_server=cluster.name_server) as running:
        yield running


def _by_id(messages: list[Any]) -> dict[str, Any]:
    return {each.system_properties.message_id: each for each in messages}


# --- what classic producers sent ---------------------------------------------------------------------------------


def test_messages_of_a_classic_producer_have_the_same_ids_keys_tags_properties_and_times(
    consumer: Consumer, producer: Producer
) -> None:
    topic = consumer.topic
    large = b"much of the same " * 1000
    sent: dict[str, tuple[SendResult, bytes, str, int]] = {}
    began = int(time.time() * 1000)

    def send(body: bytes, kind: int, **more: Any) -> None:
        result = producer.send(
            Message.of(topic, body, tags="paid", keys=["k1", "k2"], properties={"colour": "grün", "n": "1"}, **more)
        )
        sent[result.msg_id] = (result, body, more.get("sharding_key", ""), kind)

    send(b"normal", MessageType.NORMAL)
    send(large, MessageType.NORMAL)
    send(b"in order", MessageType.FIFO, sharding_key="customer 7")
    send(b"later", MessageType.DELAY, delay_ms=300)
    send(b"at a level", MessageType.DELAY, delay_level=1)
    received = _by_id(consumer.take(5))
    assert received.keys() == sent.keys()
    for msg_id, (result, body, sharding_key, kind) in sent.items():
        got = received[msg_id]
        system = got.system_properties
        assert (got.topic.name, got.body) == (topic, body)
        assert (system.tag, list(system.keys), system.message_group) == ("paid", ["k1", "k2"], sharding_key)
        assert dict(got.user_properties) == {"colour": "grün", "n": "1"}
        assert (system.message_type, system.delivery_attempt) == (kind, 1)
        assert system.queue_id == result.queue.queue_id
        if kind != MessageType.DELAY:
            assert system.queue_offset == result.queue_offset
        now = int(time.time() * 1000)
        assert began <= milliseconds_of(system.born_timestamp) <= milliseconds_of(system.store_timestamp) <= now
        assert (
            system.store_host == consumer.client.endpoint.partition(":")[0] + ":" + system.store_host.partition(":")[2]
        )
        assert system.born_host == "127.0.0.1"
    assert {each[1] for each in sent.values()} == {got.body for got in received.values()}


def test_a_classic_batch(consumer: Consumer, producer: Producer) -> None:
    result = producer.send([Message.of(consumer.topic, b"%d" % number, tags="t", keys="k") for number in range(40)])
    received = consumer.take(40)
    assert sorted(int(each.body) for each in received) == list(range(40))
    assert ",".join(each.system_properties.message_id for each in received) == result.msg_id
    assert {(each.system_properties.tag, each.system_properties.queue_id) for each in received} == {
        ("t", result.queue.queue_id)
    }


class _Decides:
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return arg

    def check_local_transaction(self, message: Message) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK_MESSAGE


def test_only_committed_transactions_of_a_classic_producer_are_received(
    consumer: Consumer, cluster: LocalCluster
) -> None:
    with TransactionProducer(
        "GID_tx", _Decides(), topics=[consumer.topic], name_server=cluster.name_server
    ) as producer:
        rolled_back = Message.of(consumer.topic, b"no")
        producer.send_in_transaction(rolled_back, LocalTransactionState.ROLLBACK_MESSAGE)
        committed = Message.of(consumer.topic, b"yes", tags="t", keys="k", properties={"a": "b"})
        result = producer.send_in_transaction(committed, LocalTransactionState.COMMIT_MESSAGE)
        (got,) = consumer.take(1)
    system = got.system_properties
    assert (got.body, system.message_id, system.tag, list(system.keys)) == (b"yes", result.msg_id, "t", ["k"])
    assert (system.message_type, dict(got.user_properties)) == (MessageType.TRANSACTION, {"a": "b"})


def test_messages_of_one_sharding_key_are_received_in_order(
    consumer: Consumer, cluster: LocalCluster, producer: Producer
) -> None:
    cluster.create_group(consumer.group, ordered=True)
    keys = ["a", "b", "c"]
    for number in range(30):
        key = keys[number % 3]
        producer.send(
            Message.of(consumer.topic, b"%d" % number, sharding_key=key),
            selector=lambda queues, message, arg: queues[ord(arg) % len(queues)],
            selector_arg=key,
        )
    received = consumer.take(30, batch_size=4)
    for at, key in enumerate(keys):
        of_key = [int(each.body) for each in received if each.system_properties.message_group == key]
        assert of_key == list(range(at, 30, 3))


def test_what_one_gRPC_client_sent_another_receives(consumer: Consumer) -> None:  # noqa: N802
    sent = message(
        consumer.topic, b"hello", {"colour": "red"}, tag="paid", keys=["k1", "k2"], message_group="g", message_type=2
    )
    answer = consumer.client.call("SendMessage", messages=[sent])
    assert answer.status.code == Code.OK, answer
    (got,) = consumer.take(1)
    assert (got.body, dict(got.user_properties)) == (sent.body, {"colour": "red"})
    system, said = got.system_properties, sent.system_properties
    for name in ("tag", "message_id", "message_group", "message_type", "born_host", "born_timestamp"):
        assert getattr(system, name) == getattr(said, name)
    assert list(system.keys) == list(said.keys)


# --- clients that go away ---------------------------------------------------------------------------------------


def test_messages_for_a_broken_connection_go_to_others(
    cluster: LocalCluster, parts: BrokerParts, group: str, topic: str, producer: Producer
) -> None:
    """The broker holds the receives on: what it answers is given back."""
    before = parts.held_requests.pops.count
    with Caller(cluster.grpc_endpoint, "leaving@1") as caller:
        consumer = Consumer(caller, group, topic)
        calls = [caller.stream("ReceiveMessage", consumer.request()) for _ in range(2)]
        until(lambda: parts.held_requests.pops.count == before + 2)
        calls[0].cancel()
    producer.send(Message.of(topic, b"late"))
    with Caller(cluster.grpc_endpoint, "staying@1") as caller:
        (message,) = Consumer(caller, group, topic).take(1)
        assert (message.body, message.system_properties.delivery_attempt) == (b"late", 1)


def test_a_call_that_ends_during_delivery_returns_its_messages(
    consumer: Consumer, cluster: LocalCluster, producer: Producer
) -> None:
    body = random.Random(6).randbytes(2 << 20)  # far more than this client lets the server send before it reads
    producer.send(Message.of(consumer.topic, body))
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
    with grpc.insecure_channel(cluster.grpc_endpoint, [*options, ("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(f"/{definitions.SERVICE}/ReceiveMessage")(
            consumer.request(invisible_duration={"seconds": 3600}).SerializeToString(),
            metadata=[("x-mq-client-id", "leaving@2"), ("x-mq-client-version", "5.1.2")],
            timeout=_SECONDS,
        )
        assert definitions.ReceiveMessageResponse.FromString(next(call)).status.code == Code.OK
        call.cancel()
    (again,) = consumer.take(1)
    assert (again.body, again.system_properties.delivery_attempt) == (body, 1)


# --- invalid requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "PullMessage", "GetOffset", "SendMessage"]
)
def test_half_a_request(consumer: Consumer, method: str) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        consumer.client.raw(method, consumer.request().SerializeToString()[:-3] + b"\x0a\xff")
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_group_without_automatic_creation(
    consumer: Consumer, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.config, "auto_create_subscription_group", False)
    queue = {"topic": resource(consumer.topic)}
    group = resource(consumer.group)
    client = consumer.client
    (answer,) = client.stream("ReceiveMessage", consumer.request())
    assert answer.status.code == Code.CONSUMER_GROUP_NOT_FOUND
    answer, *_ = client.stream("PullMessage", group=group, message_queue=queue, batch_size=1)
    assert answer.status.code == Code.CONSUMER_GROUP_NOT_FOUND
    answer = client.call("UpdateOffset", group=group, message_queue=queue, offset=1)
    assert answer.status.code == Code.CONSUMER_GROUP_NOT_FOUND


def test_pulls_and_offsets_over_the_wire(consumer: Consumer, producer: Producer) -> None:
    result = producer.send(Message.of(consumer.topic, b"a"))
    queue = {"topic": resource(consumer.topic), "id": result.queue.queue_id}
    group = resource(consumer.group)
    call = consumer.client.call
    end = call("QueryOffset", message_queue=queue, query_offset_policy="END")
    assert (end.status.code, end.offset) == (Code.OK, 1)
    status, pulled, last = consumer.client.stream(
        "PullMessage", group=group, message_queue=queue, offset=0, batch_size=32, long_polling_timeout={"seconds": 20}
    )
    assert (status.status.code, pulled.message.body, last.next_offset) == (Code.OK, b"a", 1)
    assert call("GetOffset", group=group, message_queue=queue).status.code == Code.OFFSET_NOT_FOUND
    assert call("UpdateOffset", group=group, message_queue=queue, offset=1).status.code == Code.OK
    assert call("GetOffset", group=group, message_queue=queue).offset == 1
    assert call("UpdateOffset", group=group, message_queue=queue, offset=-1).status.code == Code.ILLEGAL_OFFSET
    nowhere = {"topic": resource("Nowhere")}
    assert call("GetOffset", group=group, message_queue=nowhere).status.code == Code.TOPIC_NOT_FOUND


def test_messages_of_a_push_consumer_are_redelivered_when_it_leaves(
    consumer: Consumer, cluster: LocalCluster, producer: Producer
) -> None:
    producer.send(Message.of(consumer.topic, b"a"))
    with Caller(cluster.grpc_endpoint, "leaving@3") as caller:
        leaving = Consumer(caller, consumer.group, consumer.topic)
        with caller.subscribe(consumer.group, consumer.topic, kind="PUSH_CONSUMER"):
            beat = caller.call("Heartbeat", group=resource(consumer.group), client_type="PUSH_CONSUMER")
            assert beat.status.code == Code.OK, beat
            request = leaving.request(auto_renew=True)
            request.ClearField("invisible_duration")
            answers = list(caller.stream("ReceiveMessage", request))
            assert [each.message.body for each in answers[1:-1]] == [b"a"]
            goodbye = caller.call("NotifyClientTermination", group=resource(consumer.group))
            assert goodbye.status.code == Code.OK, goodbye
    (again,) = consumer.take(1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"a", 2)
