from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.batch_ranges import batch_ranges
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange, ranges_between
from spark_rocket.datasource.plan.tasks import Task, plan_tasks
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import DataLossError, OffsetsError, RemotingConnectError
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import FakeQueues, q


def stream(**given: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", "nameServer": "x:1"} | given, Scope.READ_STREAM)


def batch(**given: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", "nameServer": "x:1"} | given, Scope.READ)


def planner(queues: FakeQueues, **given: str) -> StreamPlanner:
    return StreamPlanner(queues, stream(**given))


def first(queues: FakeQueues, **given: str) -> StreamOffset:
    offset = planner(queues, **given).next_end(None, None)
    assert offset is not None
    return offset


# --- start offsets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, {q(0): 100, q(1): 50}),
        ({"startingOffsets": "latest"}, {q(0): 100, q(1): 50}),
        ({"startingOffsets": "earliest"}, {q(0): 10, q(1): 0}),
        ({"startingTimestamp": "405"}, {q(0): 41, q(1): 41}),
        ({"startingTimestamp": "900"}, {q(0): 90, q(1): 50}),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": -2, "1": 7}}}'}, {q(0): 10, q(1): 7}),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 100, "1": -1}}}'}, {q(0): 100, q(1): 50}),
        ({"startingOffsets": "group", "consumerGroup": "g"}, {q(0): 33, q(1): 0}),
    ],
)
def test_the_first_offset_carries_the_resolved_start(options: dict[str, str], starts: dict[MessageQueue, int]) -> None:
    queues = FakeQueues(q0=(10, 100), q1=(0, 50))
    queues.groups["g", q(0)] = 33
    assert first(queues, **options) == StreamOffset({q(0): 100, q(1): 50}, starts)


def test_the_first_batch_is_planned_again_unchanged() -> None:
    queues = FakeQueues(q0=(0, 100))
    end = first(queues)
    queues.spans[q(0)] = (0, 261)
    assert starts_of(None, end) == {q(0): 100}
    assert ranges_between(starts_of(None, end), end.ends) == []
    following = planner(queues).next_end(end, None)
    assert following == StreamOffset({q(0): 261}), "nothing between the two is lost"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"orders": {"broker-a": {"0": 1}}}', "has no position for orders/broker-a/1"),
        ('{"orders": {"broker-a": {"0": 1, "1": 1, "9": 1}}}', "names orders/broker-a/9, which does not exist"),
        ('{"orders": {"broker-z": {"0": 1, "1": 1}}}', "names orders/broker-z/0"),
        ('{"orders": {"broker-a": {"0": 101, "1": 1}}}', "is 101 for orders/broker-a/0, which is beyond its end 100"),
    ],
)
def test_json_that_does_not_fit_the_topic(text: str, wrong: str) -> None:
    with pytest.raises(OffsetsError, match=wrong):
        first(FakeQueues(q0=(10, 100), q1=(0, 50)), startingOffsets=text)


def test_deleted_start_offsets() -> None:
    queues = FakeQueues(q0=(10, 100), q1=(0, 50))
    text = '{"orders": {"broker-a": {"0": 3, "1": 0}}}'
    with pytest.raises(DataLossError, match=r"orders/broker-a/0: messages 3 to 9 were deleted.*failOnDataLoss=false"):
        first(queues, startingOffsets=text)
    assert first(queues, startingOffsets=text, failOnDataLoss="false").starts == {q(0): 10, q(1): 0}
    queues.groups["g", q(0)] = 3
    with pytest.raises(DataLossError, match="messages 3 to 9"):
        first(queues, startingOffsets="group", consumerGroup="g")


# --- successive batches -----------------------------------------------------------------------------------------


def test_no_new_messages_no_batch() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues)
    end = plan.next_end(None, None)
    assert plan.next_end(end, None) is None
    queues.spans[q(0)] = (40, 100)
    assert plan.next_end(end, None) is None, "deleting messages that were read causes no batch"


def test_a_limit_is_shared_and_read_all_overrides_it() -> None:
    queues = FakeQueues(q0=(0, 90), q1=(0, 10))
    plan = planner(queues, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    end = plan.next_end(None, 10)
    assert end == StreamOffset({q(0): 9, q(1): 1}, {q(0): 0, q(1): 0})
    assert plan.next_end(end, None) == StreamOffset({q(0): 90, q(1): 10})


def test_a_new_queue_starts_at_its_first_message() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues, startingOffsets="latest")
    end = plan.next_end(None, None)
    queues.spans[q(1)] = (5, 7)
    following = plan.next_end(end, None)
    assert following == StreamOffset({q(0): 100, q(1): 7}, {q(1): 5})
    assert plan.next_end(following, None) is None


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "group", "consumerGroup": "g"}, 90),
        ({"startingTimestamp": "405"}, 41),
        ({"startingTimestamp": "20000"}, 100),
        ({"startingOffsets": "earliest"}, 10),
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 5}}}'}, 10),
    ],
)
def test_a_queue_of_a_broker_unavailable_at_the_start(options: dict[str, str], start: int) -> None:
    queues = FakeQueues(q0=(0, 100))
    queues.groups["g", q(1)] = 90
    plan = planner(queues, **options)
    end = plan.next_end(None, None)
    queues.spans[q(1)] = (10, 100)
    queues.spans[q(2)] = (10, 100)
    following = plan.next_end(end, None)
    assert following is not None
    without = 10 if start == 90 else start
    assert following.starts == {q(1): start, q(2): without}
    assert following.ends == {q(0): 100, q(1): 100, q(2): 100}


def test_available_now_ends_at_the_end_at_the_start() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues, startingOffsets="earliest")
    plan.pin()
    queues.spans[q(0)] = (0, 500)
    queues.spans[q(1)] = (0, 500)
    ends = []
    end: StreamOffset | None = None
    while (following := plan.next_end(end, 30)) is not None:
        end = following
        ends.append(end.ends[q(0)])
        assert set(end.ends) == {q(0)}
    assert ends == [30, 60, 90, 100]


def test_available_now_from_latest_reads_no_later_messages() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues, startingOffsets="latest")
    plan.pin()
    queues.spans[q(0)] = (0, 500)
    assert plan.next_end(None, None) == StreamOffset({q(0): 100}, {q(0): 100})


# --- data loss --------------------------------------------------------------------------------------------------


def test_deleted_messages_are_an_error_or_skipped_once(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(50, 100))
    before = StreamOffset({q(0): 20})
    with pytest.raises(DataLossError, match="orders/broker-a/0: messages 20 to 49 were deleted"):
        planner(queues).next_end(before, None)
    plan = planner(queues, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = plan.next_end(before, None)
        plan.next_end(before, None)
    assert end == StreamOffset({q(0): 100}, {q(0): 50})
    assert caplog.text.count("messages 20 to 49 were deleted") == 1


def test_a_recreated_topic_is_an_error_or_read_from_its_start() -> None:
    queues = FakeQueues(q0=(0, 7))
    before = StreamOffset({q(0): 100})
    with pytest.raises(DataLossError, match="expected offset 100, but the queue ends at 7"):
        planner(queues).next_end(before, None)
    plan = planner(queues, failOnDataLoss="false")
    end = plan.next_end(before, None)
    assert end == StreamOffset({q(0): 7}, {q(0): 0})
    assert plan.next_end(end, None) is None


@pytest.mark.parametrize(
    "limits", [{}, {"maxBytesPerTrigger": "1000"}, {"maxOffsetsPerTrigger": "5"}], ids=["none", "bytes", "offsets"]
)
def test_retention_that_passes_the_end_of_an_available_now_query(
    limits: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 100))
    count = 5 if "maxOffsetsPerTrigger" in limits else None
    plan, failing = (
        planner(queues, startingOffsets="earliest", failOnDataLoss=fail, **limits) for fail in ("false", "true")
    )
    for each in (plan, failing):
        each.pin()
        before = each.next_end(None, 10)
    assert before is not None
    read = before.ends[q(1)]
    queues.spans[q(0)] = (150, 300)
    with pytest.raises(DataLossError, match=r"MESSAGES_DELETED.*orders/broker-a/0: messages 5 to 149"):
        failing.next_end(before, count)
    with caplog.at_level(logging.WARNING):
        while (end := plan.next_end(before, count)) is not None:
            spans = ranges_between(starts_of(before, end), end.ends)
            assert {span.queue for span in spans} == {q(1)}, "nothing behind the end that was there at the start"
            read += spans[0].size
            before = end
    assert (read, before.ends) == (100, {q(0): 150, q(1): 100})
    assert [record.getMessage().partition("]")[0] for record in caplog.records] == ["[DATA_LOSS.MESSAGES_DELETED"]


def test_available_now_detects_a_recreated_topic() -> None:
    plan = planner(FakeQueues(q0=(0, 7)))
    plan.pin()
    with pytest.raises(DataLossError, match=r"QUEUE_SHORTENED.*expected offset 100"):
        plan.next_end(StreamOffset({q(0): 100}), None)


def test_a_stream_continues_from_slaves(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    plan = planner(queues, startingOffsets="earliest", failOnDataLoss="true")
    end = plan.next_end(None, None)
    queues.masterless = {q(0)}
    queues.spans[q(0)] = (30, 80)  # the slave lags behind and has a later first offset
    assert plan.next_end(end, None) is None, "nothing new, and nothing lost"
    queues.spans |= {q(0): (30, 120), q(1): (0, 60)}
    end = plan.next_end(end, None)
    assert end is not None
    assert end.ends == {q(0): 120, q(1): 60}
    assert "The masters of broker-a are unavailable" in caplog.text
    queues.masterless, queues.spans[q(0)] = set(), (0, 130)
    end = plan.next_end(end, None)
    assert end is not None
    assert end.ends == {q(0): 130, q(1): 60}
    queues.spans[q(0)] = (0, 125)
    with pytest.raises(DataLossError, match="QUEUE_SHORTENED"):  # a master that has lost messages is still detected
        plan.next_end(end, None)


def test_start_offsets_require_the_master() -> None:
    queues = FakeQueues(q0=(0, 100))
    queues.masterless = {q(0)}
    with pytest.raises(RemotingConnectError):
        planner(queues, startingOffsets="earliest").next_end(None, None)


# --- the consumer group -----------------------------------------------------------------------------------------


def test_the_next_batch_commits_the_previous_one_and_never_backwards() -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 10))
    queues.groups["g", q(1)] = 8
    plan = planner(queues, consumerGroup="g", startingOffsets="earliest")
    end = plan.next_end(None, 10)
    assert queues.commits == []
    assert end is not None
    plan.next_end(end, 10)
    plan.commit(end)
    assert queues.commits == [("g", q(0), end.ends[q(0)])], "once, and not for the queue that is further on already"
    assert queues.groups["g", q(1)] == 8


@pytest.mark.parametrize("end", [7, 250], ids=["shorter", "longer"])
@pytest.mark.parametrize("stale", [False, True], ids=["forgotten", "still at the broker"])
def test_a_group_is_never_beyond_the_end_of_a_recreated_topic(end: int, stale: bool) -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    given = {"consumerGroup": "g", "startingOffsets": "earliest"}
    before = first(queues, **given)
    if stale:
        queues.groups["g", q(0)] = 300
    queues.spans[q(0)], queues.began[q(0)] = (0, end), 90_000
    failing = planner(queues, **given)
    with pytest.raises(DataLossError):
        failing.next_end(before, None)
    failing.commit(before)
    assert queues.told == [], "what was not checked is not committed"
    plan = planner(queues, **given, failOnDataLoss="false")
    following = plan.next_end(before, None)
    plan.commit(before)
    assert queues.groups == {("g", q(0)): 0, ("g", q(1)): 50}
    assert following is not None
    assert plan.next_end(following, None) is None
    assert queues.groups == {("g", q(0)): end, ("g", q(1)): 50}


def test_offsets_are_committed_once_the_master_has_been_checked() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues, consumerGroup="g", startingOffsets="earliest")
    end = plan.next_end(None, None)
    queues.masterless = {q(0)}
    assert plan.next_end(end, None) is None
    assert queues.told == []
    queues.masterless = set()
    assert plan.next_end(end, None) is None
    assert queues.groups == {("g", q(0)): 100}


def test_a_failed_commit_does_not_stop_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues, consumerGroup="g", startingOffsets="earliest")
    end = plan.next_end(None, None)
    queues.down = True
    with caplog.at_level(logging.WARNING):
        assert plan.next_end(end, None) is None
        assert plan.next_end(end, None) is None
    assert caplog.text.count("could not be committed for orders/broker-a/0") == 1
    queues.down = False
    plan.next_end(end, None)
    assert queues.commits == [("g", q(0), 100)]


def test_commits_do_not_wait_for_unavailable_brokers() -> None:
    """An unavailable broker must not delay the batches of the others for committed offsets."""
    queues, other = FakeQueues(q0=(0, 100)), q(0, broker="broker-b")
    queues.spans[other] = (0, 10)
    plan = planner(queues, consumerGroup="g", startingOffsets="earliest", failOnDataLoss="false")
    end = plan.next_end(None, None)
    away = queues.spans.pop(other)
    queues.spans[q(0, broker="broker-c")] = (0, 5)
    following = plan.next_end(end, None)
    assert queues.told == [q(0)], "a queue without a broker is left alone"
    queues.spans[other] = away
    plan.next_end(following, None)
    assert queues.groups["g", other] == 10, "offsets are committed when it is back"


def test_an_idle_stream_repeats_lost_commits_within_a_minute() -> None:
    now = [0.0]
    queues = FakeQueues(q0=(0, 100))
    plan = StreamPlanner(queues, stream(consumerGroup="g", startingOffsets="earliest"), clock=lambda: now[0])
    end = plan.next_end(None, None)
    assert plan.next_end(end, None) is None
    queues.groups.clear()  # killed before it persisted them
    now[0] = 59.0
    assert plan.next_end(end, None) is None
    assert queues.groups == {}
    now[0] = 60.0
    assert plan.next_end(end, None) is None
    assert queues.groups == {("g", q(0)): 100}
    told = len(queues.told)
    now[0] = 119.0
    assert plan.next_end(end, None) is None
    assert len(queues.told) == told


# --- any history ------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=25),
    st.none() | st.integers(1, 30),
    st.sampled_from(["earliest", "latest"]),
)
def test_batches_follow_each_other_without_gap_or_overlap(
    arrivals: list[tuple[int, int]], limit: int | None, starting: str
) -> None:
    queues = FakeQueues(q0=(5, 20))
    plan = planner(queues, startingOffsets=starting)
    seen: dict[object, list[int]] = {}
    begin: dict[object, int] = {}
    previous: StreamOffset | None = None

    def step() -> bool:
        nonlocal previous, plan
        end = plan.next_end(previous, limit)
        if end is None:
            return False
        end = parse_stream_offset(json.loads(json.dumps(end.to_json())))  # through the checkpoint, into a new process
        assert end is not None
        plan = planner(queues, startingOffsets=starting)
        for queue, start in starts_of(previous, end).items():
            begin.setdefault(queue, start)
        for span in ranges_between(starts_of(previous, end), end.ends):
            seen.setdefault(span.queue, []).extend(range(span.start, span.end))
        previous = end
        return True

    step()
    for number, count in arrivals:
        low, high = queues.spans.get(q(number), (3 * number, 3 * number))
        queues.spans[q(number)] = (low, high + count)
        step()
    while step():
        pass
    for queue, (_, high) in queues.spans.items():
        assert seen.get(queue, []) == list(range(begin[queue], high))


# --- batch reads ------------------------------------------------------------------------------------------------


def test_a_batch_read() -> None:
    queues = FakeQueues(q0=(10, 100), q1=(0, 50), q2=(7, 7))
    assert batch_ranges(queues, batch()) == [OffsetRange(q(0), 10, 100), OffsetRange(q(1), 0, 50)]
    assert batch_ranges(queues, batch(startingTimestamp="200", endingTimestamp="300")) == [
        OffsetRange(q(0), 20, 30),
        OffsetRange(q(1), 20, 30),
    ]

    def planned(**options: str) -> list[Task]:
        return plan_tasks(batch_ranges(queues, batch(**options)), batch(**options), queues.known_sizes)

    assert planned() == [(OffsetRange(q(0), 10, 100), OffsetRange(q(1), 0, 50))]
    assert len(planned(minPartitions="7")) == 7
    assert max(sum(span.size for span in task) for task in planned(maxRecordsPerPartition="9")) == 9
    ending = '{"orders": {"broker-a": {"0": 11, "1": -2, "2": -1}}}'
    assert batch_ranges(queues, batch(endingOffsets=ending)) == [OffsetRange(q(0), 10, 11)]


def test_only_stream_errors_mention_the_checkpoint() -> None:
    queues = FakeQueues(q0=(50, 100))
    starting = '{"orders": {"broker-a": {"0": 20}}}'
    with pytest.raises(DataLossError, match="messages 20 to 49 were deleted") as of_batch:
        batch_ranges(queues, batch(startingOffsets=starting))
    with pytest.raises(DataLossError, match="messages 20 to 49 were deleted") as of_stream:
        first(queues, startingOffsets=starting)
    assert "checkpoint" not in of_batch.value.remedy
    assert "use a new checkpoint directory" in of_stream.value.remedy
    assert "fileReservedSize" in of_batch.value.remedy


def test_a_batch_read_with_its_end_before_its_start() -> None:
    queues = FakeQueues(q0=(10, 100))
    ends = {"startingTimestamp": "500", "endingOffsets": '{"orders": {"broker-a": {"0": 20}}}'}
    with pytest.raises(OffsetsError, match="orders/broker-a/0 would be read from 50 to 20"):
        batch_ranges(queues, batch(**ends))
    ending = '{"orders": {"broker-a": {"0": 101}}}'
    with pytest.raises(OffsetsError, match="endingOffsets is 101 for orders/broker-a/0"):
        batch_ranges(queues, batch(endingOffsets=ending))


@pytest.mark.parametrize("start", ["earliest", '{"orders": {"broker-a": {"0": 2, "1": -2}}}', "group", "-1d"])
def test_a_batch_read_with_a_queue_deleted_beyond_its_end(start: str, caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(10, 100), q1=(0, 50))
    queues.groups["g", q(0)] = 2
    given = {"startingTimestamp" if start == "-1d" else "startingOffsets": start}
    given |= {"consumerGroup": "g"} if start == "group" else {}
    queues.offsets_for_times = lambda times_ms: {q(0): 10, q(1): 0}  # type: ignore[method-assign]
    given["endingOffsets"] = '{"orders": {"broker-a": {"0": 5, "1": 30}}}'
    with pytest.raises(DataLossError, match=r"MESSAGES_DELETED.*orders/broker-a/0: messages [02] to [49] were deleted"):
        batch_ranges(queues, batch(**given))
    with caplog.at_level(logging.WARNING):
        assert batch_ranges(queues, batch(**given, failOnDataLoss="false")) == [OffsetRange(q(1), 0, 30)]
    assert caplog.text.count("DATA_LOSS.MESSAGES_DELETED") == 1
    given["endingOffsets"] = given["endingOffsets"].replace("5", "0")
    if start in ("earliest", "-1d"):
        assert batch_ranges(queues, batch(**given)) == [OffsetRange(q(1), 0, 30)], "nothing was wanted of it"


def test_deleted_messages_do_not_excuse_an_end_before_the_start() -> None:
    queues = FakeQueues(q0=(10, 100))
    queues.groups["g", q(0)] = 50
    ending = '{"orders": {"broker-a": {"0": 5}}}'
    for starting in (
        {"startingOffsets": '{"orders": {"broker-a": {"0": 7}}}', "failOnDataLoss": "false"},
        {"startingOffsets": "group", "consumerGroup": "g"},
    ):
        with pytest.raises(OffsetsError, match=r"END_BEFORE_START.*orders/broker-a/0"):
            batch_ranges(queues, batch(**starting, endingOffsets=ending))
