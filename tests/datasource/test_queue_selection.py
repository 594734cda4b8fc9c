"""Topics by pattern, assigned queues, awaited and deleted topics, and start offsets of new queues."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.parsers import matching
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.batch_ranges import batch_ranges
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import DataLossError, OffsetsError, OptionError, TopicNotFoundError
from tests.datasource.fakes import FakeQueues, q, route_of

PATTERN = {"subscribePattern": "orders-.*"}


def stream(**given: str) -> ReadOptions:
    return parse_read_options({"nameServer": "x:1"} | given, Scope.READ_STREAM)


def batch(**given: str) -> ReadOptions:
    return parse_read_options({"nameServer": "x:1"} | given, Scope.READ)


def topics(**spans: tuple[int, int]) -> FakeQueues:
    """One queue each; ``orders_a`` is the topic ``orders-a``."""
    queues = FakeQueues()
    queues.spans = {q(0, topic.replace("_", "-")): span for topic, span in spans.items()}
    return queues


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-2"]),
        ("orders|payments", ["orders", "payments"]),
        ("(?i)ORDERS-[0-9]+", ["orders-2"]),
        (".*", ["orders", "orders-2", "payments"]),
        ("%RETRY%.*", ["%RETRY%g"]),
        ("^%DLQ%g$", ["%DLQ%g"]),
        ("(%DLQ%g|orders)", ["%DLQ%g", "orders"]),
        ("rmq_sys.*|SCHEDULE.*", []),
    ],
)
def test_a_pattern_means_whole_names_of_users_topics(pattern: str, found: list[str]) -> None:
    there = ["orders", "orders-2", "payments", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "TBW102"]
    assert matching(pattern, [*there, "BenchmarkTest"]) == found


def test_newly_matching_topics_are_read_from_their_first_message() -> None:
    queues = topics(orders_a=(0, 10), payments=(0, 10))
    plan = StreamPlanner(queues, stream(**PATTERN))
    end = plan.next_end(None, None)
    assert end == StreamOffset({q(0, "orders-a"): 10}, {q(0, "orders-a"): 10})
    queues.spans[q(0, "orders-b")] = (3, 7)
    following = plan.next_end(end, None)
    assert following == StreamOffset({q(0, "orders-a"): 10, q(0, "orders-b"): 7}, {q(0, "orders-b"): 3})
    assert batch_ranges(queues, batch(**PATTERN)) == [
        OffsetRange(q(0, "orders-a"), 0, 10),
        OffsetRange(q(0, "orders-b"), 3, 7),
    ]


def test_a_pattern_that_matches_nothing_yet(caplog: pytest.LogCaptureFixture) -> None:
    queues = topics(payments=(0, 10))
    plan = StreamPlanner(queues, stream(**PATTERN, startingOffsets="latest"))
    with caplog.at_level(logging.WARNING):
        end = plan.next_end(None, None)
    assert "none of the 1 user topics" in caplog.text
    assert end == StreamOffset({}, {})
    assert json.dumps(end.to_json()) == '{"offsets": {}, "version": 1}'
    assert parse_stream_offset(end.to_json()) == end
    assert plan.next_end(end, None) is None
    queues.spans[q(0, "orders-a")] = (0, 4)
    following = plan.next_end(end, None)
    assert following == StreamOffset({q(0, "orders-a"): 4}, {q(0, "orders-a"): 0}), "though the stream began at latest"
    with pytest.raises(OffsetsError, match=r"NO_TOPIC_MATCHES.*'missing'.*payments"):
        batch_ranges(queues, batch(subscribePattern="missing"))


@pytest.mark.parametrize("starting", ["latest", "earliest", "group"])
def test_an_awaited_topic(starting: str, caplog: pytest.LogCaptureFixture) -> None:
    queues = topics(orders=(5, 10))
    options = {"subscribe": "orders,later", "startingOffsets": starting, "consumerGroup": "g"}
    with pytest.raises(TopicNotFoundError, match="later"):
        StreamPlanner(queues, stream(**options)).next_end(None, None)
    plan = StreamPlanner(queues, stream(**options, waitForTopic="true"))
    with caplog.at_level(logging.WARNING):
        end = plan.next_end(None, None)
        assert plan.next_end(end, None) is None
    assert caplog.text.count("'later' does not exist. Waiting for it (waitForTopic=true).") == 1
    queues.spans[q(0, "later")] = (0, 3)
    following = plan.next_end(end, None)
    assert following is not None
    assert (following.starts, following.ends[q(0, "later")]) == ({q(0, "later"): 0}, 3)
    assert starts_of(end, following)[q(0)] == 10, "the other one continues as usual"


def test_a_new_topic_in_the_options_of_a_checkpoint_must_exist() -> None:
    queues = topics(orders=(5, 10))
    end = StreamOffset({q(0): 7})
    with pytest.raises(TopicNotFoundError, match="later"):
        StreamPlanner(queues, stream(subscribe="orders,later")).next_end(end, None)


ASSIGN = {"assign": '{"orders": {"broker-a": [0, 2]}}'}


def test_assigned_queues() -> None:
    queues = FakeQueues(q0=(0, 10), q1=(0, 10), q2=(0, 10))
    plan = StreamPlanner(queues, stream(**ASSIGN, startingOffsets="earliest"))
    end = plan.next_end(None, None)
    assert end == StreamOffset({q(0): 10, q(2): 10}, {q(0): 0, q(2): 0})
    queues.spans[q(3)] = (0, 5)
    assert plan.next_end(end, None) is None, "a queue that is not assigned is ignored"
    assert batch_ranges(queues, batch(**ASSIGN)) == [OffsetRange(q(0), 0, 10), OffsetRange(q(2), 0, 10)]
    fewer = StreamPlanner(queues, stream(assign='{"orders": {"broker-a": [2]}}'))
    with pytest.raises(DataLossError, match="NOT_SELECTED"):
        fewer.next_end(end, None)
    with pytest.raises(OffsetsError, match="orders/broker-a/7"):
        StreamPlanner(queues, stream(assign='{"orders": {"broker-a": [0, 2, 7]}}')).next_end(end, None)


def test_a_missing_assigned_queue(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(0, 10), q1=(0, 10))
    with pytest.raises(OffsetsError, match=r"NO_SUCH_QUEUE.*assign names orders/broker-a/2.*orders/broker-a/1"):
        batch_ranges(queues, batch(**ASSIGN))
    with pytest.raises(OffsetsError, match="orders/broker-a/2"):
        StreamPlanner(queues, stream(**ASSIGN)).next_end(None, None)
    plan = StreamPlanner(queues, stream(**ASSIGN, waitForTopic="true"))
    end = plan.next_end(None, None)
    queues.spans[q(2)] = (0, 3)
    following = plan.next_end(end, None)
    assert following == StreamOffset({q(0): 10, q(2): 3}, {q(2): 0})


# --- deleted topics and queues ----------------------------------------------------------------------------------


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition("]")[0][1:] for record in caplog.records if record.levelno == logging.WARNING]


def test_a_topic_deleted_during_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The name server no longer has the topic, in the process that read it or in a new one."""
    queues = topics(orders_a=(0, 10), orders_b=(0, 10))
    for what in (PATTERN, {"subscribe": "orders-a,orders-b"}):
        end = StreamOffset({q(0, "orders-a"): 10, q(0, "orders-b"): 4})
        del queues.spans[q(0, "orders-b")]
        with pytest.raises(DataLossError, match=r"TOPIC_DELETED.*orders-b.*orders-b/broker-a/0 at 4"):
            StreamPlanner(queues, stream(**what)).next_end(end, None)
        for pinned in (False, True):
            plan = StreamPlanner(queues, stream(**what, failOnDataLoss="false"))
            if pinned:
                plan.pin()
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert plan.next_end(end, None) is None
                assert plan.next_end(end, None) is None
            assert codes(caplog).count("DATA_LOSS.TOPIC_DELETED") == 1
        queues.spans[q(0, "orders-b")] = (0, 2)  # recreated
        plan = StreamPlanner(queues, stream(**what, failOnDataLoss="false"))
        assert plan.next_end(end, None) == StreamOffset(
            {q(0, "orders-a"): 10, q(0, "orders-b"): 2}, {q(0, "orders-b"): 0}
        )


def through_a_checkpoint(offset: StreamOffset | None) -> StreamOffset:
    assert offset is not None
    again = parse_stream_offset(json.loads(json.dumps(offset.to_json())))
    assert again is not None
    return again


@pytest.mark.parametrize("what", [{"subscribe": "orders,x"}, {"subscribePattern": "orders|x"}], ids=[*"sp"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("began", "start"), [(5_000_000, 0), (0, 10)], ids=["recreated", "the old one"])
def test_a_deleted_topic_recreated_with_more_messages(
    what: dict[str, str], restarted: bool, began: int, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers that were unavailable restore the old one."""
    queues = FakeQueues(q0=(0, 10), q1=(0, 10))
    queues.spans[q(0, "x")] = (0, 1)
    options = stream(**what, failOnDataLoss="false", startingOffsets="earliest")
    plan = StreamPlanner(queues, options)
    end = through_a_checkpoint(plan.next_end(None, None))
    del queues.spans[q(0)], queues.spans[q(1)]
    assert plan.next_end(end, None) is None
    if restarted:
        plan = StreamPlanner(queues, options)
        assert plan.next_end(end, None) is None
    queues.began = {q(0): began, q(1): began}
    queues.spans[q(0)] = (0, 300)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        back = plan.next_end(end, None)
    assert back is not None
    assert (starts_of(end, back)[q(0)], back.ends[q(0)]) == (start, 300)
    assert codes(caplog).count("DATA_LOSS.QUEUE_RECREATED") == (start == 0)
    queues.spans[q(0)] = (0, 400)
    queues.spans[q(1)] = (0, 200)  # a queue added later
    following = plan.next_end(back, None)
    assert following is not None
    assert starts_of(back, following) == {q(0): 300, q(1): start, q(0, "x"): 1}
    assert "WENT_BACK" not in caplog.text


@pytest.mark.parametrize("grown", [100, 250], ids=["as far as before", "farther"])
def test_a_queue_recreated_while_no_stream_ran(grown: int, caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(40, 100), q1=(0, 7))
    end = through_a_checkpoint(StreamPlanner(queues, stream(subscribe="orders")).next_end(None, None))
    assert end.to_json()["first"] == {"orders": {"broker-a": {"0": [40, 400], "1": [0, 0]}}}
    queues.spans[q(0)] = (60, 100)
    assert StreamPlanner(queues, stream(subscribe="orders")).next_end(end, None) is None, "retention causes no batch"
    queues.spans[q(0)], queues.began[q(0)] = (0, grown), 90_000
    wrong = (
        r"QUEUE_RECREATED\] orders/broker-a/0 was deleted and recreated, .*: its first message was stored at "
        r"1970-01-01T00:01:30Z, but message 40 .*at 1970-01-01T00:00:00.400Z.* The stream is at 100.*To continue"
    )
    with pytest.raises(DataLossError, match=wrong):
        StreamPlanner(queues, stream(subscribe="orders")).next_end(end, None)
    for pinned in (False, True):
        plan = StreamPlanner(queues, stream(subscribe="orders", failOnDataLoss="false"))
        if pinned:
            plan.pin()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = through_a_checkpoint(plan.next_end(end, None))
            assert plan.next_end(again, None) is None
        assert again == StreamOffset({q(0): grown, q(1): 7}, {q(0): 0})
        assert codes(caplog) == ["DATA_LOSS.QUEUE_RECREATED"]
        assert again.firsts == {q(0): (0, 90_000), q(1): (0, 0)}
    assert StreamPlanner(queues, stream(subscribe="orders")).next_end(again, None) is None


def test_a_recreated_short_queue_is_read_as_a_new_one() -> None:
    queues = FakeQueues(q0=(0, 100))
    options = stream(subscribe="orders", failOnDataLoss="false")
    end = through_a_checkpoint(StreamPlanner(queues, options).next_end(None, None))
    queues.spans[q(0)], queues.began[q(0)] = (0, 7), 90_000
    end = through_a_checkpoint(StreamPlanner(queues, options).next_end(end, None))
    assert (end, end.firsts) == (StreamOffset({q(0): 7}, {q(0): 0}), {q(0): (0, 90_000)})
    queues.spans[q(0)] = (0, 9)
    assert StreamPlanner(queues, stream(subscribe="orders")).next_end(end, None) == StreamOffset({q(0): 9})


def test_a_queue_recreated_between_triggers_is_detected() -> None:
    """At once by its last message, or within a minute by its first one if the last one is unknown."""
    now = [0.0]
    queues = FakeQueues(q0=(0, 100))
    plan = StreamPlanner(queues, stream(subscribe="orders"), clock=lambda: now[0])
    end = plan.next_end(None, None)
    assert plan.next_end(end, None) is None
    queues.spans[q(0)], queues.began[q(0)] = (0, 250), 90_000
    now[0] = 59.0
    with pytest.raises(DataLossError, match="QUEUE_RECREATED"):
        plan.next_end(end, None)
    assert end is not None
    end = plan.next_end(replace(end, lasts={}), None)
    assert end is not None
    now[0] = 60.0
    with pytest.raises(DataLossError, match="QUEUE_RECREATED"):
        plan.next_end(end, None)


def test_a_serving_slave_may_have_more_messages() -> None:
    queues = FakeQueues(q0=(60, 100))
    plan = StreamPlanner(queues, stream(subscribe="orders"))
    end = plan.next_end(None, None)
    queues.spans[q(0)] = (70, 200)
    end = plan.next_end(end, None)
    queues.spans[q(0)] = (50, 300)  # the store times are unchanged
    assert plan.next_end(end, None) == StreamOffset({q(0): 300})


def test_unknown_first_messages() -> None:
    """A proxy does not support the request, and a queue can be empty: there is nothing to compare."""
    queues = FakeQueues(q0=(5, 100), q1=(0, 0), q2=(7, 7))
    queues.says_times = False
    end = through_a_checkpoint(StreamPlanner(queues, stream(subscribe="orders")).next_end(None, None))
    assert "first" not in end.to_json()
    queues.spans[q(0)] = (5, 120)
    queues.says_times = True
    now = [0.0]
    plan = StreamPlanner(queues, stream(subscribe="orders"), clock=lambda: now[0])
    end = through_a_checkpoint(plan.next_end(end, None))
    assert end.firsts == {q(0): (5, 50)}
    queues.spans |= {q(1): (0, 1), q(2): (7, 8)}
    end = through_a_checkpoint(plan.next_end(end, None))
    assert end.firsts == {q(0): (5, 50), q(1): (0, 0)}
    now[0] = 60.0
    queues.spans[q(1)] = (0, 2)
    end = through_a_checkpoint(plan.next_end(end, None))
    assert end.firsts == {q(0): (5, 50), q(1): (0, 0), q(2): (7, 70)}, "it is requested again"


def test_a_deleted_topic_with_a_cached_route_ends_at_0() -> None:
    class CachedRoute(FakeQueues):
        def topics(self) -> list[str]:
            return ["payments"]

        def route(self, topic: str) -> TopicRoute:
            return route_of(topic, (q(0),))

    queues = CachedRoute(q0=(0, 0))
    with pytest.raises(DataLossError, match=r"TOPIC_DELETED.*topic orders does not exist.*orders/broker-a/0 at 9"):
        StreamPlanner(queues, stream(subscribe="orders")).next_end(StreamOffset({q(0): 9}), None)


@pytest.mark.parametrize(("end", "is_lost"), [(10, False), (11, True), (0, True)])
def test_a_removed_queue(end: int, is_lost: bool, caplog: pytest.LogCaptureFixture) -> None:
    """No data loss if it was read to its end, which brokers still report."""
    queues = FakeQueues(q0=(0, 20))
    queues.hidden[q(1)] = (0, end)
    before = StreamOffset({q(0): 20, q(1): 10})
    if is_lost:
        with pytest.raises(DataLossError, match=r"QUEUE_DELETED.*orders/broker-a/1.*is at 10"):
            StreamPlanner(queues, stream(subscribe="orders")).next_end(before, None)
    plan = StreamPlanner(queues, stream(subscribe="orders", failOnDataLoss="false"))
    with caplog.at_level(logging.WARNING):
        assert plan.next_end(before, None) is None
        assert plan.next_end(before, None) is None
    assert codes(caplog) == (["DATA_LOSS.QUEUE_DELETED"] if is_lost else [])
    queues.spans[q(1)] = (0, 30)
    following = plan.next_end(before, None)
    assert following == StreamOffset({q(0): 20, q(1): 30})
    del queues.spans[q(1)]
    queues.hidden[q(1)] = (0, 30)
    assert plan.next_end(following, None) is None


def test_decreasing_ends_that_stay_ahead_of_the_position(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(5, 100), q1=(5, 100))
    queues.says_times = False
    before = StreamOffset({q(0): 20, q(1): 20})
    failing, going_on = (
        StreamPlanner(queues, stream(subscribe="orders", failOnDataLoss=fail)) for fail in ("true", "false")
    )
    for plan in (failing, going_on):
        plan.next_end(before, 2)
    queues.spans[q(0)] = (5, 90)  # a broker that lost its newest messages: read messages are not read again
    queues.spans[q(1)] = (0, 200)  # a recreated topic that has grown past the position
    with pytest.raises(DataLossError, match=r"OFFSETS_WENT_BACK.*orders/broker-a/0: its end decreased from 100 to 90"):
        failing.next_end(before, None)
    with caplog.at_level(logging.WARNING):
        end = going_on.next_end(before, None)
    assert end == StreamOffset({q(0): 90, q(1): 200}, {q(1): 0})
    assert "orders/broker-a/1: its first message decreased from 5 to 0" in caplog.text
    caplog.clear()
    assert going_on.next_end(end, None) is None
    assert not caplog.records


# --- start of new queues ----------------------------------------------------------------------------------------

TIMES = '{"orders": {"broker-a": {"0": 0, "1": 405, "3": "1970-01-01T00:00:00.200Z"}}}'


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "group", "consumerGroup": "g", "groupOffsetsFallback": "latest"}, 10),
        ({"startingOffsets": "group", "consumerGroup": "g", "groupOffsetsFallback": "error"}, 10),
        (
            {
                "startingOffsets": "group",
                "consumerGroup": "g",
                "groupOffsetsFallback": "timestamp",
                "startingTimestamp": "405",
            },
            41,
        ),
        ({"startingTimestamp": "405", "startingOffsetsByTimestampStrategy": "error"}, 41),
        ({"startingTimestamp": "-1h"}, 10),
    ],
)
def test_a_new_queue(options: dict[str, str], start: int) -> None:
    queues = FakeQueues()
    before = StreamOffset({})
    queues.spans[q(1)] = (10, 100)
    following = StreamPlanner(queues, stream(subscribe="orders", **options)).next_end(before, None)
    assert following == StreamOffset({q(1): 100}, {q(1): start})


# --- start and end ----------------------------------------------------------------------------------------------


def test_start_times_per_queue_and_queues_without_later_messages() -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 100), q3=(0, 10))
    given = {"subscribe": "orders", "startingOffsetsByTimestamp": TIMES}
    starts = {q(0): 0, q(1): 41, q(3): 10}
    assert [span.start for span in batch_ranges(queues, batch(**given))] == [0, 41]
    first = StreamPlanner(queues, stream(**given)).next_end(None, None)
    assert first is not None
    assert first.starts == starts
    with pytest.raises(OffsetsError, match=r"NOTHING_SINCE.*orders/broker-a/3 .*stored at 1970-01-01T00:00:00.200"):
        batch_ranges(queues, batch(**given, startingOffsetsByTimestampStrategy="error"))
    queues.spans[q(4)] = (0, 1)
    with pytest.raises(OffsetsError, match=r"QUEUE_NOT_NAMED.*orders/broker-a/4"):
        batch_ranges(queues, batch(**given))
    del queues.spans[q(4)]
    ends = {"subscribe": "orders", "endingOffsetsByTimestamp": TIMES}
    assert batch_ranges(queues, batch(**ends)) == [OffsetRange(q(1), 0, 41), OffsetRange(q(3), 0, 10)]


def test_committed_offsets_as_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(10, 100), q1=(0, 50), q2=(0, 30))
    queues.groups = {("g", q(0)): 40, ("g", q(1)): 50}
    given = {"subscribe": "orders", "consumerGroup": "g"}

    def spans(**options: str) -> list[tuple[int, int, int]]:
        return [(r.queue.queue_id, r.start, r.end) for r in batch_ranges(queues, batch(**given, **options))]

    assert spans(startingOffsets="group") == [(0, 40, 100), (2, 0, 30)]
    assert spans(startingOffsets="group", groupOffsetsFallback="latest") == [(0, 40, 100)]
    assert "has no committed offset" not in caplog.text
    given["consumerGroup"] = "mistyped"
    for _ in range(2):
        assert len(spans(startingOffsets="group")) == 3
    assert caplog.text.count("group mistyped has no committed offset for orders/broker-a/0") == 1
    given["consumerGroup"] = "g"
    assert spans(startingOffsets="group", groupOffsetsFallback="timestamp", startingTimestamp="200") == [
        (0, 40, 100),
        (2, 20, 30),
    ]
    with pytest.raises(OffsetsError, match=r"NOTHING_COMMITTED.*group g .*orders/broker-a/2.*groupOffsetsFallback"):
        spans(startingOffsets="group", groupOffsetsFallback="error")
    assert spans(endingOffsets="group") == [(0, 10, 40), (1, 0, 50)], "nothing where it has committed nothing"
    assert spans(endingOffsets="group", startingTimestamp="450") == [(1, 45, 50)], "nor where it is not so far"
    queues.groups["g", q(1)] = 60
    with pytest.raises(DataLossError, match=r"QUEUE_SHORTENED.*expected offset 60"):
        spans(endingOffsets="group")
    assert spans(endingOffsets="group", failOnDataLoss="false") == [(0, 10, 40), (1, 0, 50)]


def test_a_relative_time_is_resolved_once_in_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_rocket.datasource.options.parsers.now_ms", lambda: 3_600_405)
    queues = FakeQueues(q0=(0, 100))
    given = {"subscribe": "orders", "startingTimestamp": "-1h"}
    end = StreamPlanner(queues, stream(**given)).next_end(None, None)
    assert end == StreamOffset({q(0): 100}, {q(0): 41})
    monkeypatch.setattr("spark_rocket.datasource.options.parsers.now_ms", lambda: 3_600_900)
    assert StreamPlanner(queues, stream(**given)).next_end(end, None) is None
    assert starts_of(None, end) == {q(0): 41}
    ends = {"startingTimestamp": "-1h", "endingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": "-3600000ms"}}}'}
    assert batch_ranges(queues, batch(subscribe="orders", **ends)) == []


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "TIME"},
        {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 0, "1": TIME}}}'},
        {
            "startingOffsets": "group",
            "consumerGroup": "g",
            "groupOffsetsFallback": "timestamp",
            "startingTimestamp": "TIME",
        },
    ],
    ids=["one", "each", "fallback"],
)
def test_a_stream_does_not_start_at_a_future_time(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream would start at the end and read messages stored before that time; a batch would read nothing."""
    monkeypatch.setattr("spark_rocket.datasource.options.checks.now_ms", lambda: 1_700_000_000_000)

    def at(time_ms: int) -> dict[str, str]:
        return {"subscribe": "orders"} | {name: text.replace("TIME", str(time_ms)) for name, text in given.items()}

    option = next(reversed(given))
    with pytest.raises(
        OptionError, match=rf"FUTURE_TIME.*{option} is 2023-11-14T22:14:20.001.*\(now: 2023-11-14T22:13:20"
    ):
        stream(**at(1_700_000_060_001))
    with pytest.raises(OptionError, match=r"FUTURE_TIME.*9223372036854775807"):
        stream(**at(2**63 - 1))
    stream(**at(1_700_000_060_000))
    if option == "startingTimestamp" and len(given) == 1:
        with pytest.raises(
            OptionError, match=r"FUTURE_TIME.*a batch read cannot wait for it.*use spark.readStream with"
        ):
            batch(**at(1_700_000_060_001))
    else:  # some queues have no range
        assert batch_ranges(FakeQueues(q0=(0, 0), q1=(0, 100)), batch(**at(1_700_000_060_001))) == []


@pytest.mark.parametrize(
    ("text", "ago"), [("-2h", 7_200_000), ("-30m", 1_800_000), ("-1d", 86_400_000), ("-5 s", 5000), ("2h", 7_200_000)]
)
def test_relative_times(text: str, ago: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.datasource.options.parsers.now_ms", lambda: 100_000_000)
    starting = batch(subscribe="orders", startingTimestamp=text).starting
    assert (starting.timestamp_ms, starting.is_relative) == (100_000_000 - ago, True)
