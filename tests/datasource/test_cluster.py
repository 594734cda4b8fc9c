"""Requests of the driver: which are retried, and which are sent once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from spark_rocket.client import Producer
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan import cluster
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import (
    BrokerError,
    NameServerUnreachableError,
    RemotingConnectError,
    RemotingTimeoutError,
    RocketError,
    SubscriptionRefusedError,
)
from spark_rocket.model import Message, MessageQueue
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.testing import LocalCluster
from tests.datasource.fakes import q, route_of

T = TypeVar("T")


class AwayReader:
    """Fails the configured number of times, then answers every request with 7."""

    def __init__(self, *failures: RocketError) -> None:
        self.failures = list(failures)
        self.asked: list[MessageQueue] = []
        self.committed: dict[MessageQueue, int] = {}

    name_server = "ns:9876"

    def _answer(self, queue: MessageQueue, value: T) -> Promise[T]:
        self.asked.append(queue)
        promise: Promise[T] = Promise()
        if self.failures:
            promise.fail(self.failures.pop(0))
        else:
            promise.resolve(value)
        return promise

    end = 7

    def max_offset_later(self, queue: MessageQueue) -> Future[int]:
        return self._later(queue, self.end)

    slave_end: int | None = None

    def slave_max_offset(self, queue: MessageQueue) -> int | None:
        return self.slave_end

    def store_time_later(self, queue: MessageQueue, offset: int) -> Future[int]:
        return self._later(queue, offset if offset else -1)

    def slave_store_time(self, queue: MessageQueue, offset: int) -> int | None:
        return None if self.slave_end is None else offset

    def slave_message_sizes(self, queue: MessageQueue, offset: int, count: int) -> list[int]:
        return [offset] * count

    def message_sizes_later(self, queue: MessageQueue, offset: int, count: int) -> Future[list[int]]:
        return self._answer(queue, [7])

    def committed_offset_later(self, group: str, queue: MessageQueue) -> Future[int | None]:
        return self._later(queue, 7 if queue.queue_id else None)

    def _later(self, queue: MessageQueue, value: T) -> Future[T]:
        return self._answer(queue, value)

    def commit_offset_async(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> Promise[bool]:
        if queue.queue_id % 2 == 0:
            return self._answer(queue, False)
        self.committed[queue] = offset
        return self._answer(queue, True)

    def commit_offset(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> None:
        self.committed[queue] = offset


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    pauses: list[float] = []
    settings = {"clock": lambda: sum(pauses), "sleep": pauses.append}
    monkeypatch.setattr(RetryDeadline.__init__, "__kwdefaults__", settings)

    def make(*failures: RocketError) -> Cluster:
        monkeypatch.setattr(cluster, "reader_of", lambda *_: AwayReader(*failures))
        return Cluster(parse_read_options({"subscribe": "orders", "nameServer": "x:1"}, Scope.READ_STREAM))

    return make


def test_support_for_a_filter_is_checked_once() -> None:
    requests = Cluster(parse_read_options({"subscribe": "a,b", "nameServer": "x:1", "sqlFilter": "p > 1"}, Scope.READ))
    asked: list[tuple[str, str]] = []

    class Refusing:
        def route(self, topic: str) -> TopicRoute:
            return route_of(topic, (q(0, topic),))

        def configured_brokers(self) -> dict[str, frozenset[str]]:
            return {}

        def check_filter(self, topic: str, sql: str) -> None:
            asked.append((topic, sql))
            if topic == "b":
                raise SubscriptionRefusedError("no SQL92 here")

    requests._reader = Refusing()  # type: ignore[assignment]
    assert requests.route("a").readable == requests.route("a").readable == (q(0, "a"),)
    with pytest.raises(SubscriptionRefusedError):
        requests.route("b")
    assert asked == [("a", "p > 1"), ("b", "p > 1")]


def reader_of(cluster: Cluster) -> AwayReader:
    return cluster._reader  # type: ignore[return-value]


def test_only_failed_requests_are_retried(cluster_of: Callable[..., Cluster]) -> None:
    requests = cluster_of(RemotingTimeoutError("late"))
    assert requests.max_offsets([q(0), q(1)]) == {q(0): 7, q(1): 7}
    assert reader_of(requests).asked == [q(0), q(1), q(0)]
    assert cluster_of(RemotingConnectError("away")).committed_offsets("g", [q(0), q(1)]) == {q(1): 7}
    assert cluster_of().max_offsets([]) == {}


def test_permanent_errors_are_not_retried(cluster_of: Callable[..., Cluster]) -> None:
    with pytest.raises(BrokerError, match="no permission"):
        cluster_of(RemotingTimeoutError("late"), BrokerError("no permission")).max_offsets([q(0), q(1)])
    with pytest.raises(RemotingTimeoutError, match="Tried to ask for queues' ends for"):
        cluster_of(*[RemotingTimeoutError("late")] * 1000).max_offsets([q(0)])


def test_sizes_for_planning_are_not_waited_for(cluster_of: Callable[..., Cluster]) -> None:
    requests = cluster_of(RemotingTimeoutError("late"), BrokerError("no permission"))
    assert requests.known_sizes({q(0): 5, q(1): 5, q(2): 5}, 1) == {q(2): [7]}
    assert reader_of(requests).asked == [q(0), q(1), q(2)]
    requests.from_slaves[q(0)] = 9
    reader_of(requests).failures = [RemotingTimeoutError("late")]
    assert requests.known_sizes({q(0): 5}, 2) == {q(0): [5, 5]}, "of the slave"


def test_an_unreachable_broker_is_tried_once_for_all_its_queues(cluster_of: Callable[..., Cluster]) -> None:
    requests = cluster_of(RemotingConnectError("away"))
    other = q(0, broker="broker-b")
    failed = requests.commit_offsets("g", {q(0): 1, q(1): 1, other: 1})
    assert failed.keys() == {q(0), q(1)}
    assert reader_of(requests).asked == [q(0), other, other, other]


def test_a_running_stream_continues_from_a_slave(cluster_of: Callable[..., Cluster]) -> None:
    away = RemotingConnectError("away")
    requests = cluster_of(away, away, away)
    requests._reader.slave_end = 30  # type: ignore[attr-defined]
    assert requests.max_offsets([q(0)], {q(0): 40}) == {q(0): 40}, "the slave lags behind"
    assert requests.max_offsets([q(0)], {q(0): 20}) == {q(0): 30}
    assert requests.from_slaves == {q(0): 30}
    assert requests.message_sizes({q(0): 20}, 2) == {q(0): [20, 20]}
    reader_of(requests).failures = [away]
    assert requests.store_times({q(0): 19}) == {q(0): 19}
    assert reader_of(requests).asked == [q(0)] * 4, "the master was asked once"
    assert requests.max_offsets([q(0)], {q(0): 20}) == {q(0): 7}, "the master is back"
    assert not requests.from_slaves
    requests = cluster_of(*[away] * 10)
    requests._reader.slave_end = 30  # type: ignore[attr-defined]
    assert requests.max_offsets([q(0)]) == {q(0): 7}, "the master is waited for"
    requests = cluster_of(away, away)
    assert requests.max_offsets([q(0)], {q(0): 3}) == {q(0): 7}, "so it is where no slave answers"


def test_only_advanced_offsets_are_committed(cluster_of: Callable[..., Cluster]) -> None:
    telling = cluster_of()
    reader_of(telling).end = 9
    assert telling.commit_offsets("g", {q(0): 0, q(1): 9, q(2): 9, q(3): 7, q(4): 3}) == {}
    assert reader_of(telling).committed == {q(0): 0, q(1): 9, q(2): 9}


def test_store_times_of_existing_messages(cluster_of: Callable[..., Cluster]) -> None:
    requests = cluster_of(RemotingTimeoutError("late"))
    assert requests.store_times({q(0): 5, q(1): 0, q(2): 7}) == {q(0): 5, q(2): 7}
    assert reader_of(requests).asked == [q(0), q(1), q(2), q(0)]


def test_no_offset_beyond_a_queues_end_is_committed_or_left(cluster_of: Callable[..., Cluster]) -> None:
    telling = cluster_of()
    reader_of(telling).end = 5  # the group has committed 7, except in queue 0: the topic was recreated
    failed = telling.commit_offsets("g", {q(0): 6, q(1): 6, q(2): 5, q(3): 0})
    assert {queue: error.message for queue, error in failed.items()} == dict.fromkeys(
        (q(0), q(1)), "offset 6 is beyond the end of the queue, 5."
    )
    assert reader_of(telling).committed == {q(2): 5, q(3): 0}


def test_a_name_server_that_never_responded_is_an_error(cluster_of: Callable[..., Cluster]) -> None:
    with pytest.raises(NameServerUnreachableError):
        cluster_of(NameServerUnreachableError("unreachable")).max_offsets([q(0)])
    met = cluster_of()
    met.max_offsets([q(0)])
    reader_of(met).failures = [NameServerUnreachableError("restarting")]
    assert met.max_offsets([q(0)]) == {q(0): 7}


@pytest.mark.live
def test_topics_and_sizes_of_messages() -> None:
    """With live servers: topics without those of clusters and brokers, and sizes of stored records."""
    with LocalCluster(in_process=True) as servers, Producer("g", name_server=servers.name_server) as producer:
        topic = servers.create_topic("orders", 1)
        requests = Cluster(parse_read_options({"subscribe": topic, "nameServer": servers.name_server}, Scope.READ))
        (queue,) = requests.route(topic).readable
        assert topic in requests.topics()
        assert not {queue.broker_name, "DefaultCluster"} & {*requests.topics()}
        assert requests.first_times([queue]) == {}
        for body in ("x", "x" * 101):
            producer.send(Message.of(topic, body), queue=queue)
        first = requests.first_times([queue])[queue]
        assert requests.offsets_for_times({queue: first}) == {queue: 0}
        assert requests.offsets_for_times({queue: first + 1})[queue] > 0
        one, two = requests.message_sizes({queue: 0}, 5)[queue]
        assert two - one == 100
        assert requests.message_sizes({queue: 1}, 1) == {queue: [two]}
        assert requests.message_sizes({queue: 2}, 5) == {queue: []}
