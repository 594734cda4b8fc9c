"""Push consumers while members, brokers and name servers stop and restart: no message is lost.

``PUSH_MEMBERS=100`` runs a hundred members that join and leave for a minute; ``PUSH_SECONDS`` sets another duration.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.consume.listeners import (
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from spark_rocket.client.consume.push_consumer import PushConsumer
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt
from spark_rocket.testing import LocalCluster
from tests.client.pushing import RecordingListener, wait_for_shares

pytestmark = pytest.mark.live

MEMBERS = int(os.environ.get("PUSH_MEMBERS", "16"))
MOVING_SECONDS = float(os.environ.get("PUSH_SECONDS", "60" if MEMBERS >= 100 else "3"))
QUEUES = 2 * MEMBERS
REST_SECONDS = 25.0


class Source:
    """Sends numbered messages on a thread until it is stopped; rejected messages are sent again."""

    def __init__(self, name_server: str, topic: str, every_seconds: float) -> None:
        self.sent = 0
        self._stop = threading.Event()
        self._producer = Producer("source", name_server=name_server, instance_name="source")
        self._thread = threading.Thread(target=self._send, args=(topic, every_seconds))
        self._thread.start()

    def _send(self, topic: str, every_seconds: float) -> None:
        with self._producer as producer:
            while not self._stop.wait(every_seconds):
                try:
                    producer.send(Message.of(topic, str(self.sent)))
                    self.sent += 1
                except RocketError:
                    continue

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.sent


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.mark.parametrize("orderly", [False, pytest.param(True, marks=pytest.mark.long)])
def test_members_join_and_leave(own_cluster: LocalCluster, orderly: bool, figure: Callable[[str], None]) -> None:
    topic = own_cluster.create_topic("moving", QUEUES)
    seen, lock = RecordingListener(), threading.Lock()
    busy: set[int] = set()
    overlaps: list[int] = []

    def listen_in_order(messages: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        queue = messages[0].queue_id
        with lock:
            if queue in busy:
                overlaps.append(queue)
            busy.add(queue)
        seen.orderly(messages, context)
        with lock:
            busy.discard(queue)
        return ConsumeOrderlyStatus.SUCCESS

    def join(number: int) -> PushConsumer:
        member = PushConsumer(
            "movers",
            None if orderly else seen,
            orderly=listen_in_order if orderly else None,
            name_server=own_cluster.name_server,
            instance_name=f"member{number:04}",
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_threads=1,
        )
        member.subscribe(topic)
        member.start()
        return member

    chance = random.Random(7)
    source = Source(own_cluster.name_server, topic, 0.002)
    members = deque(join(number) for number in range(MEMBERS // 2))
    try:
        end, number = time.monotonic() + MOVING_SECONDS, MEMBERS // 2
        while time.monotonic() < end:
            if len(members) < MEMBERS and (len(members) < 2 or chance.random() < 0.55):
                members.append(join(number))
                number += 1
            else:
                members.rotate(chance.randrange(len(members)))
                members.pop().close()
        at_rest = time.monotonic()
        wait_for_shares(list(members), topic, QUEUES, REST_SECONDS)
        settled = time.monotonic() - at_rest
        sent = source.stop()
        seen.until_has(sent)
    finally:
        source.stop()
        for member in members:
            member.close()
    figure(
        f"{number} members came and went; every queue had its owner after {settled:.1f} s; "
        f"{sent} messages, {len(seen.bodies) - sent} of them consumed twice"
    )
    assert {int(body) for body in seen.bodies} == set(range(sent))
    assert overlaps == []
    if orderly:  # a queue moves only when its messages in flight are committed
        assert len(seen.bodies) == sent
    with Reader(own_cluster.name_server) as reader:
        queues = reader.queues(topic)
        assert sum(reader.committed_offset("movers", queue) or 0 for queue in queues) == sent


@pytest.mark.parametrize("orderly", [pytest.param(False, marks=pytest.mark.long), True])
def test_broker_and_name_server_restart_during_consumption(
    own_cluster: LocalCluster, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_rocket.client.consume.puller.ERROR_DELAY_S", 0.2)
    topic = own_cluster.create_topic("dying", 4)
    name_server = own_cluster.name_server
    seen = RecordingListener()
    consumer = PushConsumer(
        "survivors",
        None if orderly else seen,
        orderly=seen.orderly if orderly else None,
        name_server=name_server,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    consumer.start()
    source = Source(name_server, topic, 0.001)
    try:
        for kill in (True, False):
            count = len(set(seen.bodies))
            seen.until_has(count + 50)
            if kill:
                own_cluster.kill_broker()
            own_cluster.restart_broker()
        count = len(set(seen.bodies))
        seen.until_has(count + 50)
        sent = source.stop()
        seen.until_has(sent)
    finally:
        source.stop()
        consumer.close()
    assert set(range(sent)) <= {int(body) for body in seen.bodies}
    again = RecordingListener()
    with PushConsumer("survivors", again, name_server=name_server) as heir:
        heir.subscribe(topic)
        heir.start()
        with Producer("p", name_server=name_server) as producer:
            producer.send(Message.of(topic, "last"))
        again.until(lambda: again.bodies)
        assert again.bodies == [b"last"]  # all earlier messages were committed
