"""Connections that are lost without an error: every client continues over new ones.

=========  =============================================================================================================
mode       what the network has lost
=========  =============================================================================================================
dead       the open connections of brokers and name server: bytes vanish in both directions, new connections work
half open  the same, and the servers have closed their ends
moved      the broker's address: it is restarted at another one, and the old one swallows all bytes
=========  =============================================================================================================
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import pytest

from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer, Reader
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
)
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, SendResult
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.network import HAS_MORE_LOOPBACK
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not HAS_MORE_LOOPBACK, reason="relays need more loopback addresses"),
]

TOPIC = "T"
GROUP = "GID"
LITE_GROUP = "GID-lite"
BEFORE, AFTER = b"before", b"after"
WAIT_S = 60.0
REQUEST_S = 1.0
"""A short timeout of requests: each that a dead connection swallowed takes so long."""
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Clients:
    """Clients of every kind, with connections of their own, that have worked before these were lost."""

    def __init__(self, cluster: LocalCluster, stack: ExitStack) -> None:
        name_server = cluster.name_server
        self.messages = Message.of(TOPIC, BEFORE), Message.of(TOPIC, AFTER)
        self.producer = stack.enter_context(
            Producer(name_server=name_server, instance_name="send", retry_times_when_send_failed=0)
        )
        self.producer.send(self.messages[0])
        self.later = stack.enter_context(Producer(name_server=name_server, instance_name="async"))
        self.later.send_async(self.messages[0]).result(WAIT_S)
        self.reader = stack.enter_context(Reader(name_server, instance_name="read", request_timeout=REQUEST_S))
        (self.queue,) = self.reader.queues(TOPIC)
        assert bodies(self.reader.messages(self.queue, 0)) == [BEFORE] * 2
        self.pushed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        push = stack.enter_context(
            PushConsumer(GROUP, self._listen, name_server=name_server, consume_from_where=FIRST, instance_name="push")
        )
        push.subscribe(TOPIC)
        push.start()
        assert [self.pushed.get(timeout=WAIT_S) for _ in range(2)] == [BEFORE] * 2
        self.lite = stack.enter_context(
            LitePullConsumer(LITE_GROUP, name_server=name_server, instance_name="lite", consume_from_where=FIRST)
        )
        self.lite.subscribe(TOPIC)
        self.lite.start()
        assert BEFORE in bodies(until(self.lite.poll))
        self.admin = stack.enter_context(Admin(name_server, instance_name="admin", request_timeout=REQUEST_S))
        given = {"nameServer": name_server, "subscribe": TOPIC, "startingOffsets": "earliest", "requestTimeout": "1s"}
        options = parse_read_options(given, Scope.READ_STREAM)
        self.planner = StreamPlanner(Cluster(options), options)
        self.planned = self.planner.next_end(None, None)

    def _listen(self, messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        for message in messages:
            self.pushed.put(message.body)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


def lose(cluster: LocalCluster, mode: str) -> None:
    (broker,) = cluster.brokers
    if mode == "moved":
        broker.move()
    else:
        for member in (*cluster.name_servers, broker):
            member.lose_connections(half_open=mode == "half open")


@pytest.fixture(scope="module", params=["dead", "half open", "moved"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    with LocalCluster(brokers=1) as cluster, ExitStack() as stack:
        cluster.create_topic(TOPIC, queues=1)
        clients = Clients(cluster, stack)
        lose(cluster, request.param)
        yield clients


def again(action: Callable[[], object]) -> None:
    """Repeat until it succeeds. At the first attempts the client does not know that the connections are dead."""

    def succeeds() -> bool:
        with suppress(RocketError):
            action()
            return True
        return False

    until(succeeds, "every attempt fails")


def test_sends(clients: Clients) -> None:
    pending: list[Future[SendResult]] = [clients.later.send_async(clients.messages[1]) for _ in range(20)]
    again(lambda: clients.producer.send(clients.messages[1]))
    for future in pending:  # each ends, whatever its outcome
        future.exception(WAIT_S)
    again(lambda: clients.later.send_async(clients.messages[1]).result(WAIT_S))


def test_pulls_and_queries(clients: Clients) -> None:
    again(lambda: clients.reader.max_offset(clients.queue))
    assert bodies(clients.reader.messages(clients.queue, 0))[:2] == [BEFORE] * 2
    again(lambda: clients.reader.refresh(TOPIC))


def test_a_push_consumer(clients: Clients) -> None:
    """Its long poll was pending."""
    again(lambda: clients.producer.send(clients.messages[1]))
    while clients.pushed.get(timeout=WAIT_S) != AFTER:
        pass


def test_a_lite_pull_consumer(clients: Clients) -> None:
    again(lambda: clients.producer.send(clients.messages[1]))
    until(lambda: AFTER in bodies(clients.lite.poll()))


def test_heartbeats(clients: Clients) -> None:
    def are_registered() -> bool:
        with suppress(RocketError):
            return all(clients.admin.consumers(group, TOPIC) for group in (GROUP, LITE_GROUP))
        return False

    until(are_registered, "the consumers are not registered")


def test_the_planner_of_a_stream(clients: Clients) -> None:
    again(lambda: clients.producer.send(clients.messages[1]))
    planned = clients.planned
    assert planned is not None
    end = until(lambda: clients.planner.next_end(planned, None))
    assert end.ends[clients.queue] > planned.ends[clients.queue]
