"""Brokers with requested queues that are not in the route: a result is complete, or an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.client import Admin, Producer
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.batch_ranges import batch_ranges
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.errors import DataLossError, OffsetsError, OptionError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.datasource.fakes import FakeQueues, q
from tests.kit.waiting import until

B0 = q(0, broker="broker-b")


def stream(**given: str) -> ReadOptions:
    raw = {"nameServer": "x:1", "startingOffsets": "earliest"}
    return parse_read_options(raw | _what(given) | given, Scope.READ_STREAM)


def batch(**given: str) -> ReadOptions:
    return parse_read_options({"nameServer": "x:1"} | _what(given) | given, Scope.READ)


def _what(given: dict[str, str]) -> dict[str, str]:
    return {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "orders"}


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Actions during the pauses of a wait for brokers, one in each pause. No time passes."""
    events: list[Callable[[], object]] = []
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if events:
            events.pop(0)()

    monkeypatch.setattr(RetryDeadline.__init__, "__kwdefaults__", {"clock": lambda: sum(pauses), "sleep": sleep})
    return events


@pytest.fixture
def queues() -> FakeQueues:
    """Two brokers with one queue each."""
    there = FakeQueues(q0=(0, 100))
    there.spans[B0] = (0, 10)
    return there


def started(queues: FakeQueues, **given: str) -> tuple[StreamPlanner, StreamOffset]:
    plan = StreamPlanner(queues, stream(**given))
    end = plan.next_end(None, None)
    assert end is not None
    return plan, end


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("pinned", [False, True], ids=["stream", "AvailableNow"])
def test_a_stream_waits_for_an_unregistered_broker_and_fails(
    queues: FakeQueues, during: list[Callable[[], object]], restarted: bool, pinned: bool
) -> None:
    plan, end = started(queues)
    away = queues.spans.pop(B0)
    queues.spans[q(0)] = (0, 120)

    def planner() -> StreamPlanner:
        again = StreamPlanner(queues, stream()) if restarted or pinned else plan
        if pinned:
            again.pin()
        return again

    with pytest.raises(
        DataLossError,
        match=r"DATA_LOSS.BROKER_UNAVAILABLE\] broker broker-b .* the stream is at orders/broker-b/0 at 10\. Start it.*"
        r"expectedBrokers.*failOnDataLoss=false\. Tried to find all brokers for \d+ s \(option retryTimeout\)",
    ):
        planner().next_end(end, None)
    during.append(lambda: queues.spans.update({B0: (0, 15)}))
    assert planner().next_end(end, None) == StreamOffset({q(0): 120, B0: 15}), "it came while it was waited for"
    assert away == (0, 10)


@pytest.mark.parametrize("pinned", [False, True], ids=["stream", "AvailableNow"])
def test_a_stream_that_continues_without_a_broker_keeps_its_position(
    queues: FakeQueues, during: list[Callable[[], object]], pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _, end = started(queues)
    del queues.spans[B0]
    queues.spans[q(0)] = (0, 120)
    during.append(pytest.fail)
    plan = StreamPlanner(queues, stream(failOnDataLoss="false"))
    if pinned:
        plan.pin()
    with caplog.at_level(logging.WARNING):
        following = plan.next_end(end, None)
        assert plan.next_end(following, None) is None
    assert following == StreamOffset({q(0): 120, B0: 10})
    assert caplog.text.count("[DATA_LOSS.BROKER_UNAVAILABLE] broker broker-b") == 1
    assert caplog.text.count("orders/broker-b/0 cannot be read now; the stream keeps its position") == 1
    queues.spans[B0] = (0, 15)
    again = StreamPlanner(queues, stream())
    assert again.next_end(following, None) == StreamOffset({q(0): 120, B0: 15}), "nothing skipped, nothing read again"


def test_a_removed_broker_is_excluded_by_expected_brokers(queues: FakeQueues) -> None:
    _, end = started(queues)
    del queues.spans[B0]
    queues.spans[q(0)] = (0, 120)
    plan = StreamPlanner(queues, stream(expectedBrokers="broker-a"))
    assert plan.next_end(end, None) == StreamOffset({q(0): 120, B0: 10})


@pytest.mark.parametrize("what", [{}, {"subscribePattern": "orders"}], ids=["subscribe", "pattern"])
def test_a_topic_without_registered_brokers_is_not_deleted(
    queues: FakeQueues, during: list[Callable[[], object]], what: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, end = started(queues)
    spans = dict(queues.spans)
    queues.spans.clear()
    with pytest.raises(DataLossError, match=r"BROKER_UNAVAILABLE\] broker broker-a .*orders/broker-a/0 at 100"):
        StreamPlanner(queues, stream(**what)).next_end(end, None)
    during.append(lambda: queues.spans.update(spans))
    assert StreamPlanner(queues, stream(**what)).next_end(end, None) is None
    queues.spans.clear()
    assert StreamPlanner(queues, stream(**what, failOnDataLoss="false")).next_end(end, None) is None
    assert "BROKER_UNAVAILABLE" in caplog.text
    assert "TOPIC_DELETED" not in caplog.text
    queues.without_topics = {"broker-a", "broker-b"}
    with pytest.raises(DataLossError, match="TOPIC_DELETED"):
        StreamPlanner(queues, stream(**what)).next_end(end, None)


def test_a_broker_with_fewer_queues_is_not_unavailable(queues: FakeQueues) -> None:
    queues.spans[q(1, broker="broker-b")] = (0, 10)
    plan, end = started(queues)
    queues.hidden[B0] = queues.spans.pop(B0)
    assert plan.next_end(end, None) is None, "it was read to its end"
    queues.hidden[B0] = (0, 11)
    with pytest.raises(DataLossError, match="QUEUE_DELETED"):
        StreamPlanner(queues, stream()).next_end(end, None)


@pytest.mark.parametrize("how", ["configured", "expectedBrokers"])
def test_batch_reads_and_first_batches_check_expected_brokers(
    queues: FakeQueues, during: list[Callable[[], object]], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    del queues.spans[B0]
    given = {"expectedBrokers": "broker-b, broker-a"} if how == "expectedBrokers" else {}
    queues.ordered["orders"] = ("broker-a", "broker-b") if how == "configured" else ()
    why = "the topic's ORDER_TOPIC_CONFIG names it" if how == "configured" else "the option expectedBrokers names it"
    wrong = rf"BROKER_UNAVAILABLE\] broker broker-b .* {why}"
    with pytest.raises(DataLossError, match=wrong):
        batch_ranges(queues, batch(**given))
    pinned = StreamPlanner(queues, stream(**given))
    with pytest.raises(DataLossError, match=wrong):
        StreamPlanner(queues, stream(**given)).next_end(None, None)
    with pytest.raises(DataLossError, match=wrong):
        pinned.pin()
    with caplog.at_level(logging.WARNING):
        assert batch_ranges(queues, batch(failOnDataLoss="false", **given)) == [OffsetRange(q(0), 0, 100)]
    assert caplog.text.count(f": {why}.") >= 1
    assert batch_ranges(queues, batch(expectedBrokers="broker-a")) == [OffsetRange(q(0), 0, 100)]
    during.append(lambda: queues.spans.update({B0: (0, 10)}))
    assert batch_ranges(queues, batch(**given)) == [OffsetRange(q(0), 0, 100), OffsetRange(B0, 0, 10)]


def test_an_expected_broker_needs_one_of_several_topics(queues: FakeQueues) -> None:
    del queues.spans[B0]
    queues.spans[q(0, "payments", "broker-b")] = (0, 5)
    given = {"subscribe": "orders,payments", "expectedBrokers": "broker-a,broker-b"}
    assert len(batch_ranges(queues, batch(**given))) == 2
    with pytest.raises(DataLossError, match=r"broker broker-c .* queues of orders, payments"):
        batch_ranges(queues, batch(**given | {"expectedBrokers": "broker-a,broker-c", "retryTimeout": "0"}))


def test_an_awaited_topic_is_on_no_broker_yet(queues: FakeQueues) -> None:
    given: dict[str, str] = {"subscribe": "later", "waitForTopic": "true", "expectedBrokers": "broker-a"}
    plan = StreamPlanner(queues, stream(**given))
    assert plan.next_end(None, None) == StreamOffset({}, {})


@pytest.mark.parametrize(
    "what",
    [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}, {"subscribe": "orders,later", "waitForTopic": "true"}],
    ids=["subscribe", "pattern", "waited for"],
)
@pytest.mark.parametrize("left", [0, 1], ids=["all away", "one away"])
def test_unavailable_expected_brokers_of_a_missing_topic(
    queues: FakeQueues, during: list[Callable[[], object]], what: dict[str, str], left: int
) -> None:
    """Without one of its brokers, a topic seems not to exist."""
    spans, queues.spans = queues.spans, {q(0): (0, 100)} if left else {}
    given = {**what, "expectedBrokers": "broker-a,broker-b"}
    wrong = r"BROKER_UNAVAILABLE\] broker broker-[ab] is unavailable.*expectedBrokers names it"
    with pytest.raises(DataLossError, match=wrong):
        StreamPlanner(queues, stream(**given)).pin()
    if "waitForTopic" not in given:
        with pytest.raises(DataLossError, match=wrong):
            batch_ranges(queues, batch(**given))
    during.append(lambda: queues.spans.update(spans))
    end = StreamPlanner(queues, stream(**given)).next_end(None, None)
    assert end is not None
    assert end.ends == {q(0): 100, B0: 10}


def test_a_pattern_includes_configured_topics_of_unavailable_brokers(
    queues: FakeQueues, during: list[Callable[[], object]]
) -> None:
    queues.ordered["orders-b"] = ("broker-b",)
    del queues.spans[B0]
    wrong = r"BROKER_UNAVAILABLE\] broker broker-b .* queues of orders-b; .*ORDER_TOPIC_CONFIG names it"
    with pytest.raises(DataLossError, match=wrong):
        batch_ranges(queues, batch(subscribePattern="orders.*"))
    with pytest.raises(DataLossError, match=wrong):
        StreamPlanner(queues, stream(subscribePattern="orders.*")).pin()
    queues.without_topics = {"broker-b"}
    assert batch_ranges(queues, batch(subscribePattern="orders.*")) == [OffsetRange(q(0), 0, 100)], "it was deleted"


def test_assigned_queues_name_their_brokers(queues: FakeQueues) -> None:
    queues.ordered["orders"] = ("broker-a", "broker-b", "broker-c")
    del queues.spans[B0]
    assign = '{"orders": {"broker-a": [0]}}'
    assert StreamPlanner(queues, stream(assign=assign)).next_end(None, None) is not None
    with pytest.raises(OptionError, match=r"BAD_OPTION.CONFLICT.*expectedBrokers cannot be combined with assign"):
        stream(assign=assign, expectedBrokers="broker-a")


@pytest.mark.parametrize("fail", ["true", "false"])
def test_queues_without_read_permission_are_an_error(queues: FakeQueues, fail: str) -> None:
    _, end = started(queues)
    queues.unreadable = {("orders", "broker-b")}
    wrong = r"BAD_OFFSETS.NOT_READABLE\] topic orders has no readable queue on broker-b\. .*perm 6"
    with pytest.raises(OffsetsError, match=wrong):
        batch_ranges(queues, batch(failOnDataLoss=fail))
    with pytest.raises(OffsetsError, match=wrong):
        StreamPlanner(queues, stream(failOnDataLoss=fail)).next_end(end, None)
    assert batch_ranges(queues, batch(expectedBrokers="broker-a")) == [OffsetRange(q(0), 0, 100)]
    plan = StreamPlanner(queues, stream(expectedBrokers="broker-a"))
    assert plan.next_end(StreamOffset({q(0): 90, B0: 5}), None) == StreamOffset({q(0): 100, B0: 5})
    queues.unreadable |= {("orders", "broker-a")}
    for given in ({}, {"expectedBrokers": "broker-c"}):
        with pytest.raises(OffsetsError, match="no readable queue on broker-a, broker-b"):
            batch_ranges(queues, batch(**given))


@pytest.mark.live
def test_a_live_broker_that_stops() -> None:
    """The name server removes it from the topic's route, and has it only in ORDER_TOPIC_CONFIG."""
    with (
        LocalCluster(brokers=2, config={"grpcServerPort": -1}) as servers,
        Producer("g", name_server=servers.name_server) as producer,
        Admin(servers.name_server) as admin,
    ):
        topics = {"plain": servers.create_topic("plain", 1), "ordered": "ordered"}
        admin.create_topic("ordered", 1, order=True)
        closed = servers.create_topic("closed", 1, perm=2)
        for topic in topics.values():
            for queue in producer.queues(topic):
                producer.send(Message.of(topic, "x"), queue=queue)

        def options(scope: Scope, topic: str, **given: Any) -> ReadOptions:
            raw = {"subscribe": topic, "nameServer": servers.name_server, "startingOffsets": "earliest"}
            return parse_read_options(raw | {"retryTimeout": "200"} | given, scope)

        def read(topic: str, **given: Any) -> int:
            asked = options(Scope.READ, topic, **given)
            return len(batch_ranges(Cluster(asked), asked))

        asked = options(Scope.READ_STREAM, "plain")
        end = StreamPlanner(Cluster(asked), asked).next_end(None, None)
        assert (read("plain"), read("ordered")) == (2, 2)
        with pytest.raises(OffsetsError, match=r"NOT_READABLE.*closed .* broker-a, broker-b"):
            read(closed)
        servers.brokers[1].kill()
        until(lambda: len(admin.topic_route("plain").broker_datas) == 1)
        away = r"BROKER_UNAVAILABLE\] broker broker-b"
        with pytest.raises(DataLossError, match=away):
            read("ordered")
        with pytest.raises(DataLossError, match=away):
            read("plain", expectedBrokers="broker-a,broker-b")
        with pytest.raises(DataLossError, match=rf"{away}.*plain/broker-b/0 at 1"):
            StreamPlanner(Cluster(asked), asked).next_end(end, None)
        assert read("ordered", expectedBrokers="broker-a") == 1
