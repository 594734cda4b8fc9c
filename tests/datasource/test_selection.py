"""A checkpoint whose queues the options no longer select, or that belongs to another cluster."""

from __future__ import annotations

import json
import logging
import re

import pytest

from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import ranges_between
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import DataLossError
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import FakeQueues, q

BOTH = {"subscribe": "orders,payments"}
A0, A1, P0 = q(0), q(1), q(0, "payments")


def planner(queues: FakeQueues, what: dict[str, str], **given: str) -> StreamPlanner:
    raw = {"nameServer": "x:1", "startingOffsets": "latest"} | what | given
    return StreamPlanner(queues, parse_read_options(raw, Scope.READ_STREAM))


def through_a_checkpoint(offset: StreamOffset | None) -> StreamOffset:
    assert offset is not None
    again = parse_stream_offset(json.loads(json.dumps(offset.to_json())))
    assert again == offset
    return again


@pytest.fixture
def queues() -> FakeQueues:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    queues.spans[P0] = (3, 20)
    return queues


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition("]")[0][1:] for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("first", "then", "at"),
    [
        ({"subscribe": "orders"}, {"subscribe": "payments"}, {A0: 100, A1: 50}),
        ({"subscribe": "orders"}, {"subscribePattern": "p.*"}, {A0: 100, A1: 50}),
        (BOTH, {"subscribe": "payments"}, {A0: 100, A1: 50}),
        ({"subscribePattern": ".*"}, {"subscribePattern": "o.*"}, {P0: 20}),
        ({"subscribe": "orders"}, {"assign": '{"orders": {"broker-a": [1]}}'}, {A0: 100}),
        (
            {"assign": '{"orders": {"broker-a": [0, 1]}}'},
            {"assign": '{"orders": {"broker-a": [1]}, "payments": {"broker-a": [0]}}'},
            {A0: 100},
        ),
    ],
    ids=["subscribe", "to a pattern", "fewer topics", "pattern", "to assign", "fewer queues"],
)
def test_queues_that_are_no_longer_selected(
    queues: FakeQueues,
    first: dict[str, str],
    then: dict[str, str],
    at: dict[MessageQueue, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = through_a_checkpoint(planner(queues, first).next_end(None, None))
    spans = ranges_between(starts_of(None, before), before.ends)
    ((option, _),) = then.items()
    for plan in (
        lambda: planner(queues, then).next_end(before, None),
        lambda: planner(queues, then).remaining(before, spans),
    ):
        with pytest.raises(DataLossError, match=rf"NOT_SELECTED\] {option}=.*{re.escape(next(iter(at)).name)} at "):
            plan()
    loose = planner(queues, then, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert loose.remaining(before, spans) == spans, "a planned batch is completed"
        without = through_a_checkpoint(loose.next_end(before, None))
        assert loose.next_end(without, None) is None
    assert codes(caplog) == ["DATA_LOSS.NOT_SELECTED"]
    assert without.unselected == at
    assert without.positions.keys() >= before.positions.keys()
    assert planner(queues, then).next_end(without, None) is None, "an accepted change is not a loss again"
    queues.spans |= {A0: (0, 110), A1: (0, 60), P0: (3, 30)}
    back = through_a_checkpoint(planner(queues, first, failOnDataLoss="false").next_end(without, None))
    starts = starts_of(without, back)
    assert {queue: starts[queue] for queue in before.ends} == before.ends, "and continues where it was"


def test_an_accepted_change_is_recorded_without_new_messages(queues: FakeQueues) -> None:
    """Also while a batch waits for its minimum: the next process does not fail again."""
    before = through_a_checkpoint(planner(queues, BOTH).next_end(None, None))
    limited = {"minOffsetsPerTrigger": "5", "failOnDataLoss": "false"}
    plan = planner(queues, BOTH, **limited)
    queues.spans[A0] = (0, 110)
    last = through_a_checkpoint(plan.next_end(before, None))
    assert through_a_checkpoint(
        planner(queues, {"subscribe": "orders"}, **limited).next_end(last, None)
    ) == StreamOffset({A0: 110, A1: 50}, unselected={P0: 20})


def test_more_topics_are_no_loss_and_begin_at_their_first_message(queues: FakeQueues) -> None:
    before = through_a_checkpoint(planner(queues, {"subscribe": "orders"}).next_end(None, None))
    assert planner(queues, BOTH).next_end(before, None) == StreamOffset({A0: 100, A1: 50, P0: 20}, {P0: 3})


@pytest.fixture
def paused(queues: FakeQueues) -> StreamOffset:
    """A checkpoint that has left ``payments`` at 20."""
    queues.began[P0] = 1000
    before = through_a_checkpoint(planner(queues, BOTH).next_end(None, None))
    orders = planner(queues, {"subscribe": "orders"}, failOnDataLoss="false")
    return through_a_checkpoint(orders.next_end(before, None))


def test_queues_selected_again_are_checked_for_data_loss(queues: FakeQueues, paused: StreamOffset) -> None:
    queues.spans[P0] = (3, 30)
    again = StreamOffset({A0: 100, A1: 50, P0: 30}, {P0: 20})
    assert planner(queues, BOTH).next_end(paused, None) == again
    queues.spans[P0] = (25, 30)
    with pytest.raises(DataLossError, match=r"MESSAGES_DELETED.*messages 20 to 24 were deleted"):
        planner(queues, BOTH).next_end(paused, None)
    queues.spans[P0], queues.began[P0] = (0, 40), 9000
    with pytest.raises(DataLossError, match=r"QUEUE_RECREATED.*payments"):
        planner(queues, BOTH).next_end(paused, None)
    del queues.spans[P0]
    with pytest.raises(DataLossError, match=r"TOPIC_DELETED.*payments/broker-a/0 at 20"):
        planner(queues, BOTH).next_end(paused, None)


def test_a_queue_selected_again_while_its_broker_is_unavailable(queues: FakeQueues, paused: StreamOffset) -> None:
    span = queues.spans.pop(P0)
    queues.spans[q(0, "payments", "broker-b")] = (0, 0)
    plan = planner(queues, BOTH, failOnDataLoss="false")
    away = through_a_checkpoint(plan.next_end(paused, None))
    assert (away.ends[P0], starts_of(paused, away)[P0], away.unselected) == (20, 20, {})
    queues.spans[P0] = (3, span[1] + 5)
    back = through_a_checkpoint(plan.next_end(away, None))
    assert (starts_of(away, back)[P0], back.ends[P0]) == (20, 25)


# --- another cluster --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "began", "found"),
    [
        ((0, 60), 0, "QUEUE_SHORTENED"),
        ((0, 130), 90_000, "QUEUE_RECREATED"),
        ((0, 130), -5, "QUEUE_RECREATED"),
        ((0, 100), 90_000, "QUEUE_RECREATED"),
        ((0, 100), -5, "QUEUE_RECREATED"),
        ((40, 130), -5, "MESSAGES_REPLACED"),
        ((110, 130), -5, "MESSAGES_DELETED"),
        (None, 0, "TOPIC_DELETED"),
        ("broker-x", 0, "BROKER_UNAVAILABLE"),
    ],
    ids=[
        "fewer",
        "younger",
        "older",
        "younger same end",
        "older same end",
        "older, later first",
        "all later",
        "no topic",
        "no broker",
    ],
)
def test_a_name_server_of_another_cluster(span: object, began: int, found: str) -> None:
    """The same topic there is another one, at whatever offsets it is."""
    here = FakeQueues(q0=(0, 100))
    here.began[A0] = 10
    before = through_a_checkpoint(planner(here, {"subscribe": "orders"}).next_end(None, None))
    there = FakeQueues()
    if span is None:
        there.without_topics = {"broker-a"}
    elif isinstance(span, str):
        there.spans[q(0, broker=span)] = (0, 130)
    else:
        assert isinstance(span, tuple)
        there.spans[A0], there.began[A0] = span, 10 + began
    with pytest.raises(DataLossError, match=rf"DATA_LOSS\.{found}\]"):
        planner(there, {"subscribe": "orders"}, retryTimeout="0").next_end(before, None)
