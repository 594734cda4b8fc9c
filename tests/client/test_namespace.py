"""All kinds of clients with a namespace, beside a connection that sees the full names.

Each scenario runs with a namespace of both kinds, and without one. It uses short names only; what it leaves at the
servers, and every request that it sends, is then compared with the kind of its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from spark_rocket.client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    LocalTransactionState,
    MessageModel,
    Producer,
    PushConsumer,
    Reader,
    TransactionProducer,
    create_reply_message,
)
from spark_rocket.errors import RocketError
from spark_rocket.model import TRACE_TOPIC, Message, MessageExt, MessageQueue
from spark_rocket.protocol.message_trace import TraceContext, decode_trace_data
from spark_rocket.protocol.namespace import is_system_name
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.client.connection import RemotingConnection
from spark_rocket.remoting.session import Pieces
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"
WAIT = 30.0
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SETTINGS = {
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    "traceTopicEnable": True,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, config=SETTINGS) as running:
        yield running


@dataclass
class Names:
    """The connection of a scenario and its names, which are new ones each time. ``prefix``: of those on the wire."""

    cluster: LocalCluster
    prefix: str
    connecting: dict[str, Any]
    number: int = field(default_factory=_numbers.__next__)

    @property
    def topic(self) -> str:
        return f"orders{self.number}"

    @property
    def group(self) -> str:
        return f"billing{self.number}"

    def wire(self, name: str) -> str:
        return self.prefix + name

    def create(self, topic: str = "") -> str:
        """Create a topic with one queue by its full name; return its name for the scenario."""
        self.cluster.create_topic(self.wire(topic or self.topic), 1)
        return topic or self.topic

    def producer(self, **settings: Any) -> Producer:
        return Producer(f"shop{self.number}", **self.connecting, **settings)

    def push(self, listener: Any = None, **settings: Any) -> PushConsumer:
        consumer = PushConsumer(self.group, listener, consume_from_where=FIRST, **self.connecting, **settings)
        consumer.subscribe(self.topic)
        return consumer

    def plain(self) -> Reader:
        """A connection without a namespace, whose group is one of the system."""
        return Reader(self.cluster.name_server, group="CID_RMQ_SYS_plain", namespace="")

    def all_topics(self) -> list[str]:
        with self.plain() as plain:
            return plain.topics()

    def stored(self, topic: str) -> list[MessageExt]:
        """All messages of a topic, by its full name."""
        with self.plain() as plain:
            found: list[MessageExt] = []
            for queue in plain.queues(topic):
                while len(found) < plain.max_offset(queue):
                    found += plain.messages(queue, len(found), max_msgs=32)
            return found

    def committed(self) -> int | None:
        """The offset of the group in the first queue of the topic, by their full names."""
        with self.plain() as plain:
            return plain.committed_offset(self.wire(self.group), plain.queues(self.wire(self.topic))[0])


# --- scenarios ------------------------------------------------------------------------------------------------------


def concurrently(names: Names) -> None:
    """A message is consumed, another one is retried, and then a dead letter."""
    names.create()
    seen: SimpleQueue[MessageExt] = SimpleQueue()

    def listener(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        for message in messages:
            seen.put(message)
        is_good = messages[0].body == b"good"
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if is_good else ConsumeConcurrentlyStatus.RECONSUME_LATER

    with names.producer() as producer, names.push(listener, max_reconsume_times=1) as consumer:
        consumer.start()
        for body in ("good", "bad"):
            assert producer.send(Message.of(names.topic, body)).queue.topic == names.topic
        calls = [seen.get(timeout=WAIT) for _ in range(3)]
        assert sorted((call.body, call.reconsume_times) for call in calls) == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
        assert {call.topic for call in calls} == {names.topic}, "a retried message has its first topic, too"
        dead = f"%DLQ%{names.wire(names.group)}"
        with Admin(**names.connecting) as admin:
            until(lambda: dead in names.all_topics(), "the dead letter")
            (letter,) = until(lambda: admin.dead_letters(names.group))
            assert (letter.topic, admin.origin_topic(letter)) == (f"%DLQ%{names.group}", names.topic)
            (member,) = admin.group_state(names.group).members
            assert member.client_id == consumer.instance().client_id
    assert [message.properties["RETRY_TOPIC"] for message in names.stored(dead)] == [names.wire(names.topic)]
    assert names.committed() == 2


def orderly(names: Names) -> None:
    names.create()
    seen: SimpleQueue[tuple[str, bytes]] = SimpleQueue()

    def listener(messages: list[MessageExt], _: object) -> ConsumeOrderlyStatus:
        for message in messages:
            seen.put((message.topic, message.body))
        return ConsumeOrderlyStatus.SUCCESS

    with names.producer() as producer, names.push(orderly=listener) as consumer:
        consumer.start()
        for number in range(3):
            producer.send(Message.of(names.topic, str(number)))
        assert [seen.get(timeout=WAIT) for _ in range(3)] == [(names.topic, b"%d" % number) for number in range(3)]
    assert names.committed() == 3


def batches(names: Names) -> None:
    names.create()
    seen: SimpleQueue[dict[str, list[Any]]] = SimpleQueue()

    def listener(batch: Any, _: object) -> ConsumeOrderlyStatus:
        seen.put(batch.to_pydict())
        return ConsumeOrderlyStatus.SUCCESS

    with names.producer() as producer, names.push(batches=listener) as consumer:
        producer.send([Message.of(names.topic, "a", tags="t"), Message.of(names.topic, "b")])
        consumer.start()
        assert seen.get(timeout=WAIT)["topic"] == [names.topic] * 2
    assert names.committed() == 2


def broadcasting(names: Names) -> None:
    """Offsets in the local file, too, are those of the group in this namespace."""
    names.create()
    seen: SimpleQueue[str] = SimpleQueue()

    def listener(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        seen.put(messages[0].topic)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with names.producer() as producer, names.push(listener, message_model=MessageModel.BROADCASTING) as consumer:
        producer.send(Message.of(names.topic, "one"))
        consumer.start()
        assert seen.get(timeout=WAIT) == names.topic
    (file,) = Path.home().glob(f".rocketmq_offsets/*/*{names.group}/offsets.json")
    assert file.parent.name == names.wire(names.group)


def lite_pull(names: Names) -> None:
    queue = MessageQueue(names.create(), "broker-a", 0)
    with names.producer() as producer:
        for number in range(2):
            producer.send(Message.of(names.topic, str(number)))
    with LitePullConsumer(names.group, auto_commit=False, consume_from_where=FIRST, **names.connecting) as consumer:
        consumer.subscribe(names.topic)
        consumer.start()
        got: list[MessageExt] = []
        while len(got) < 2:
            got += consumer.poll(WAIT)
        assert [(message.topic, message.body) for message in got] == [(names.topic, b"0"), (names.topic, b"1")]
        assert consumer.assignment() == [queue] == consumer.fetch_message_queues(names.topic)
        consumer.commit()
        assert consumer.committed(queue) == 2
        consumer.seek_to_begin(queue)
        (batch,) = consumer.poll_batches(WAIT)
        assert set(batch.column("topic").to_pylist()) == {names.topic}
    assert names.committed() == 2


def request_reply(names: Names) -> None:
    """The consumer answers with a producer of its own, and its topic has no namespace: brokers create it."""
    names.create()
    with names.producer() as requester, Producer(f"replies{names.number}", **names.connecting) as replier:

        def listener(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
            replier.send(create_reply_message(messages[0], messages[0].topic))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        with names.push(listener) as consumer:
            consumer.start()
            reply = requester.request(Message.of(names.topic, "question"), timeout=WAIT)
    assert (reply.topic, reply.body) == ("DefaultCluster_REPLY_TOPIC", names.topic.encode())


class Undecided:
    """Decides when the broker checks."""

    def __init__(self) -> None:
        self.checked: SimpleQueue[MessageExt] = SimpleQueue()

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.put(message)
        return LocalTransactionState.COMMIT_MESSAGE


def transaction(names: Names) -> None:
    names.create()
    listener = Undecided()
    with TransactionProducer(f"payer{names.number}", listener, **names.connecting) as producer:
        sent = producer.send_in_transaction(Message.of(names.topic, "paid"))
        assert sent.queue.topic == names.topic
        assert listener.checked.get(timeout=WAIT).topic == names.topic
        (message,) = until(lambda: names.stored(names.wire(names.topic)), "the committed message")
        assert message.properties["PGROUP"] == names.wire(f"payer{names.number}")


def trace(names: Names) -> None:
    """Events have short names, as those of Java's clients."""
    names.create()
    own = names.create(f"traces{names.number}")
    done: SimpleQueue[None] = SimpleQueue()

    def listener(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        done.put(None)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with (
        names.producer(enable_msg_trace=True) as producer,
        names.push(listener, enable_msg_trace=True, customized_trace_topic=own) as consumer,
    ):
        consumer.start()
        sent = producer.send(Message.of(names.topic, "one", keys="k"))
        done.get(timeout=WAIT)
    (of_send,) = traced(names, TRACE_TOPIC, sent.msg_id)
    assert (of_send.group_name, of_send.trace_beans[0].topic) == (f"shop{names.number}", names.topic)
    assert {call.group_name for call in traced(names, names.wire(own), sent.msg_id)} == {names.group}
    with Admin(**names.connecting) as admin:
        assert admin.message_trace(sent.msg_id)


def traced(names: Names, topic: str, msg_id: str) -> list[TraceContext]:
    events = [event for message in names.stored(topic) for event in decode_trace_data(message.body)]
    return [event for event in events if event.trace_beans[0].msg_id == msg_id]


def administration(names: Names) -> None:
    """Topics, groups, offsets, messages, and errors."""
    with Admin(**names.connecting) as admin, Reader(**names.connecting) as reader, names.producer() as producer:
        admin.create_topic(names.topic, 1)
        admin.create_group(names.group)
        sent = producer.send(Message.of(names.topic, "one", keys="k"))
        full = producer.send(Message.of(names.wire(names.topic), "two"))
        assert full.queue == sent.queue
        reader.commit_offset(names.group, sent.queue, 1)
        assert names.topic in reader.topics()
        assert names.topic in admin.topics()
        assert names.group in {group.name for group in admin.groups()}
        assert admin.groups_of(names.topic) == [names.group]
        assert {lag.queue: lag.lag for lag in admin.consumer_lag(names.group, names.topic)} == {sent.queue: 1}
        (found,) = admin.query_messages(names.topic, "k")
        assert (found.topic, found.body) == (names.topic, b"one")
        assert [message.body for message in reader.messages(sent.queue, 0, max_msgs=2)] == [b"one", b"two"]
        with pytest.raises(RocketError, match=names.topic) as missing:
            reader.messages(replace(sent.queue, queue_id=99), 0, max_msgs=1)
        assert INSTANCE not in str(missing.value)
        names.committed()
        admin.delete_group(names.group)
        admin.delete_topic(names.topic)
        assert names.wire(names.topic) not in names.all_topics()


SCENARIOS: list[Callable[[Names], None]] = [
    concurrently,
    orderly,
    batches,
    broadcasting,
    lite_pull,
    request_reply,
    transaction,
    trace,
    administration,
]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "namespace": (f"{INSTANCE}%", {"namespace": INSTANCE}),
    "namespace_v2": ("", {"namespace": "", "namespace_v2": INSTANCE}),
    "none": ("", {"namespace": ""}),
}


def state(cluster: LocalCluster) -> set[str]:
    """The full names of all topics and groups."""
    with Admin(cluster.name_server, namespace="") as plain:
        return {*plain.topics(), *(group.name for group in plain.groups())}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_names_have_the_namespace_on_the_wire_only(
    scenario: Callable[[Names], None],
    kind: str,
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    prefix, namespace = KINDS[kind]
    before = state(cluster)
    sent: SimpleQueue[tuple[Any, RemotingCommand]] = SimpleQueue()
    encode: Callable[..., Pieces] = AsyncRemotingClient.encode

    def noting(self: AsyncRemotingClient, connection: RemotingConnection, request: RemotingCommand) -> Pieces:
        pieces = encode(self, connection, request)
        sent.put((self, request))
        return pieces

    monkeypatch.setattr(AsyncRemotingClient, "encode", noting)
    with Admin(cluster.name_server, **namespace) as admin:
        own = admin.instance().remoting.requests
        scenario(Names(cluster, prefix, {"name_server": cluster.name_server, **namespace}))
    monkeypatch.undo()
    strangers = {name for name in state(cluster) - before if not is_system_name(name) and INSTANCE not in name}
    assert not (strangers and prefix), "names that reached the servers without the namespace"
    requests = [sent.get() for _ in range(sent.qsize())]
    fields = {(each.ext_fields.get("nsd"), each.ext_fields.get("ns")) for client, each in requests if client is own}
    assert fields == {("true", INSTANCE) if kind == "namespace_v2" else (None, None)}


def test_clients_of_one_name_in_two_namespaces_get_their_own_replies(cluster: LocalCluster) -> None:
    both = [
        Names(cluster, prefix, {"name_server": cluster.name_server, "namespace": namespace, "instance_name": "one"})
        for prefix, namespace in ((f"{INSTANCE}%", INSTANCE), ("", ""))
    ]
    with both[0].producer() as first, both[1].producer() as second:
        asked = [
            (names, producer.request_async(Message.of(names.create(), "question"), timeout=WAIT))
            for names, producer in zip(both, (first, second), strict=True)
        ]
        for names, reply in asked:
            (question,) = until(partial(names.stored, names.wire(names.topic)))
            second.send(create_reply_message(question, names.topic))
            assert reply.result(WAIT).body == names.topic.encode()
