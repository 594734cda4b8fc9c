"""Topics grow, and their old messages are deleted, while a group is stopped: the group misses no message.

A message may be missed only if it was stored before the group's first start, or deleted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer
from spark_rocket.client.consume.allocation import AllocateAveragely, QueueShare
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageModel,
)
from spark_rocket.client.consume.offset_store import LocalOffsetStore, OffsetStore, make_offset_store
from spark_rocket.client.consume.reader import Reader
from spark_rocket.errors import RemotingTimeoutError, RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
WHERE = [LAST, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP]


class Topic:
    """The queues of a topic: their first messages and ends, and the stored offsets of a group. Also the reader."""

    def __init__(self) -> None:
        self.first: dict[MessageQueue, int] = {}
        self.end: dict[MessageQueue, int] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.away: set[str] = set()  # brokers
        self.seen: dict[MessageQueue, set[int]] = {}

    def add(self, queue: MessageQueue) -> None:
        self.first[queue] = self.end[queue] = 0
        self.seen[queue] = set()

    def min_offset(self, queue: MessageQueue) -> int:
        self.check(queue)
        return self.first[queue]

    def max_offset(self, queue: MessageQueue) -> int:
        self.check(queue)
        return self.end[queue]

    def offset_for_time(self, queue: MessageQueue, _: int) -> int:
        return self.max_offset(queue)

    def check(self, queue: MessageQueue) -> None:
        if queue.broker_name in self.away:
            raise RemotingTimeoutError("no response")


class Offsets(OffsetStore):
    """The offsets at the brokers of a topic."""

    group = "g"

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def read(self, queue: MessageQueue) -> int | None:
        self._topic.check(queue)
        return self._topic.offsets.get(queue)

    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        known = [queue for queue in queues if queue.broker_name not in self._topic.away]
        return any(queue in self._topic.offsets for queue in known) or any(map(self.read, queues))

    def commit(self, offsets: Any, seconds: float | None = None) -> dict[MessageQueue, RocketError]:
        self._topic.offsets.update(offsets)
        return {}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("seed", range(150))
def test_random_histories(seed: int, where: ConsumeFromWhere) -> None:
    chance = random.Random(seed)
    topic = Topic()
    for number in range(chance.randint(1, 3)):
        topic.add(MessageQueue("t", "b0", number))
    wanted: dict[MessageQueue, int] | None = None  # the first message that the group may not miss
    for _ in range(6):
        for _ in range(chance.randint(0, 6)):
            change(topic, chance)
        grows = wanted is not None
        if wanted is None:
            wanted = dict(topic.end)
        topic.away = {"b1"} if chance.random() < 0.3 else set()
        consume(topic, where, chance, grows=grows)
        topic.away = set()
        consume(topic, where, chance, grows=grows)
        for queue, end in topic.end.items():
            missed = set(range(max(topic.first[queue], wanted.get(queue, 0)), end)) - topic.seen[queue]
            assert not missed, (queue, missed)


def change(topic: Topic, chance: random.Random) -> None:
    queue = chance.choice(list(topic.end))
    match chance.choice(["queue", "broker", "send", "send", "delete"]):
        case "queue":
            name = queue.broker_name
            topic.add(MessageQueue("t", name, sum(each.broker_name == name for each in topic.end)))
        case "broker":
            topic.add(MessageQueue("t", f"b{len({each.broker_name for each in topic.end})}", 0))
        case "send":
            topic.end[queue] += chance.randint(1, 5)
        case "delete":
            topic.first[queue] = chance.randint(topic.first[queue], topic.end[queue])


def consume(topic: Topic, where: ConsumeFromWhere, chance: random.Random, *, grows: bool) -> None:
    """Start a consumer, whose queues begin in any order, some later; more queues may come meanwhile."""
    reader: Any = topic
    offsets = Offsets(topic)
    share = QueueShare("g", lambda: reader, reader, offsets, AllocateAveragely(), where)
    share.note("t", topic.end)
    if grows and chance.random() < 0.3:
        change(topic, chance)
    for queue in chance.sample(list(topic.end), len(topic.end)):
        try:
            begun = max(share.first_offset(queue), topic.first[queue])
        except RocketError:
            continue
        topic.seen[queue] |= set(range(begun, topic.end[queue]))
        offsets.commit({queue: topic.end[queue]})


def test_a_broadcasting_group(tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "g")
    one, other = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    assert not store.has_any([one, other])
    store.commit({one: 0})
    assert store.has_any([one, other])
    assert not store.has_any([other])


# --- with a broker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as cluster:
        yield cluster


class Push:
    """One run of a push consumer."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.bodies: list[bytes] = []
        self._consumer = PushConsumer(f"push-{topic}", self._listen, name_server=cluster.name_server)
        self._consumer.subscribe(topic)
        self._consumer.start()

    def _listen(self, messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        self.bodies += [message.body for message in messages]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def received(self) -> list[bytes]:
        return self.bodies

    def close(self) -> None:
        self._consumer.close()


class Lite:
    """One run of a lite pull consumer."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.bodies: list[bytes] = []
        self._consumer = LitePullConsumer(f"lite-{topic}", name_server=cluster.name_server)
        self._consumer.subscribe(topic)
        self._consumer.start()

    def received(self) -> list[bytes]:
        self.bodies += [message.body for message in self._consumer.poll(0.05)]
        return self.bodies

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.live
@pytest.mark.parametrize("kind", [Push, Lite])
def test_queues_added_while_a_group_is_stopped(cluster: LocalCluster, kind: Callable[..., Push | Lite]) -> None:
    topic = cluster.create_topic(f"grows-{kind.__name__}", queues=2)
    with Producer(name_server=cluster.name_server) as producer, Admin(cluster.name_server) as admin:
        first = kind(cluster, topic)
        until(lambda: producer.send(Message.of(topic, b"before")) and first.received())
        first.close()
        admin.update_topic(topic, read_queues=4, write_queues=4)
        until(lambda: len(producer.queues(topic)) == 4 or producer.send(Message.of(topic, b"more")) is None)
        queues = [MessageQueue(topic, producer.queues(topic)[0].broker_name, number) for number in range(4)]
        sent = [producer.send(Message.of(topic, b"%d" % number), queue=queues[number]).queue for number in range(4)]
        assert sent == queues
        again = kind(cluster, topic)
        until(lambda: {b"0", b"1", b"2", b"3"} <= set(again.received()))
        again.close()


@pytest.mark.live
def test_offsets_at_a_broker(cluster: LocalCluster) -> None:
    topic = cluster.create_topic("known", queues=2)
    with Reader(cluster.name_server) as reader:
        store = make_offset_store(reader, "known", MessageModel.CLUSTERING, "")
        one, other = reader.queues(topic)
        assert not store.has_any([one, other])
        reader.commit_offset("known", one, 0)
        assert store.has_any([one, other])
        assert not store.has_any([other])
