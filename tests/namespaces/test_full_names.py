"""Full names given to a client with a namespace: beside short ones, and as they come back from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from spark_rocket.client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    Producer,
    PushConsumer,
    Reader,
)
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.namespaces.world import GROUP, INSTANCE, TOPIC, full

pytestmark = pytest.mark.live

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE, FULL_QUEUE = MessageQueue(TOPIC, "broker-a", 0), MessageQueue(full(TOPIC), "broker-a", 0)


@pytest.fixture
def connecting() -> Iterator[dict[str, Any]]:
    with LocalCluster(in_process=True) as cluster:
        cluster.create_topic(full(TOPIC), 1)
        yield {"name_server": cluster.name_server, "namespace": INSTANCE}


def sent(connecting: dict[str, Any], *bodies: str) -> None:
    with Producer("zshop", **connecting) as producer:
        for body in bodies:
            assert producer.send(Message.of(TOPIC, body)).queue == QUEUE


def committed(connecting: dict[str, Any]) -> int | None:
    with Reader(connecting["name_server"], namespace="") as plain:
        return plain.committed_offset(full(GROUP), FULL_QUEUE)


def subscription_to_both(connecting: dict[str, Any]) -> None:
    """Both names are one subscription: each message comes once."""
    seen: SimpleQueue[MessageExt] = SimpleQueue()

    def listener(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        for message in messages:
            seen.put(message)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(full(GROUP), listener, consume_from_where=FIRST, **connecting) as consumer:
        consumer.subscribe(TOPIC)
        consumer.subscribe(full(TOPIC))
        assert (consumer.group, consumer.topics()) == (GROUP, [TOPIC])
        consumer.start()
        sent(connecting, "one", "two")
        assert [seen.get(timeout=30).topic for _ in range(2)] == [TOPIC, TOPIC]
    assert seen.empty()
    assert committed(connecting) == 2


def assignment(connecting: dict[str, Any]) -> None:
    """The queue is one, whatever its name: positions and offsets are not those of another one."""
    sent(connecting, "one", "two")
    with LitePullConsumer(full(GROUP), auto_commit=False, consume_from_where=FIRST, **connecting) as consumer:
        consumer.assign([FULL_QUEUE, QUEUE])
        consumer.start()
        got: list[MessageExt] = []
        while len(got) < 2:
            got += consumer.poll(30)
        assert [message.body for message in got] == [b"one", b"two"]
        assert consumer.assignment() == [QUEUE]
        consumer.commit_offsets({FULL_QUEUE: 1})
        assert consumer.committed(QUEUE) == consumer.committed(FULL_QUEUE) == 1
        consumer.seek(FULL_QUEUE, 1)
        assert [message.body for message in consumer.poll(30)] == [b"two"]
    assert committed(connecting) == 1


def results_as_arguments(connecting: dict[str, Any]) -> None:
    """What a plain connection returned, and what the client itself returned, select the same queue."""
    with Producer("zshop", **connecting) as producer, Reader(**connecting) as reader:
        first = producer.send(Message.of(full(TOPIC), "one"))
        assert first.queue == QUEUE
        for number, queue in enumerate((first.queue, FULL_QUEUE), 1):
            assert producer.send(Message.of(TOPIC, "again"), queue=queue).queue_offset == number
        producer.send([Message.of(TOPIC, "a"), Message.of(full(TOPIC), "b")])
        assert reader.max_offset(first.queue) == reader.max_offset(FULL_QUEUE) == 5
        (stored,) = reader.messages(FULL_QUEUE, 0, max_msgs=1)
        assert stored.topic == TOPIC
        assert producer.send(stored).queue_offset == 5


def recall(connecting: dict[str, Any]) -> None:
    """A handle contains the full name; the topic beside it may have either."""
    with Producer("zshop", **connecting) as producer:
        for topic in (TOPIC, full(TOPIC)):
            handle = producer.send(Message.of(topic, "later", delay_seconds=3600)).recall_handle
            assert handle
            assert producer.recall_message(topic, handle)


@pytest.mark.parametrize("case", [subscription_to_both, assignment, results_as_arguments, recall])
def test_a_full_name_is_that_of_the_short_one(
    case: Callable[[dict[str, Any]], None], connecting: dict[str, Any]
) -> None:
    case(connecting)


def test_an_argument_too_many_is_refused_as_without_a_namespace() -> None:
    for namespace in ("", INSTANCE):
        with Admin("127.0.0.1:9", namespace=namespace) as admin, pytest.raises(TypeError, match="positional"):
            admin.topics(TOPIC)  # type: ignore[call-arg]  # what is tested
