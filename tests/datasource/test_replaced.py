"""Queues that lost their newest messages and have grown again, and batches planned by another process."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from spark_rocket.client import Producer
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import OffsetRange, ranges_between
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.errors import DataLossError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.datasource.fakes import FakeQueues, q

LATER = 5000


def stream(**given: str) -> ReadOptions:
    raw = {"subscribe": "orders", "nameServer": "x:1", "startingOffsets": "earliest"}
    return parse_read_options(raw | given, Scope.READ_STREAM)


def planner(queues: FakeQueues, **given: str) -> StreamPlanner:
    return StreamPlanner(queues, stream(**given))


def through_a_checkpoint(offset: StreamOffset | None) -> StreamOffset:
    assert offset is not None
    again = parse_stream_offset(json.loads(json.dumps(offset.to_json())))
    assert again is not None
    return again


def first(queues: FakeQueues, **given: str) -> StreamOffset:
    return through_a_checkpoint(planner(queues, **given).next_end(None, None))


# --- the end of the log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_replaced_messages(restarted: bool, starting: str, caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    plans = {fail: planner(queues, startingOffsets=starting, failOnDataLoss=fail) for fail in ("true", "false")}
    ends = {fail: through_a_checkpoint(plan.next_end(None, None)) for fail, plan in plans.items()}
    assert ends["true"].lasts == {q(0): (99, 990), q(1): (49, 490)}
    if restarted:
        plans = {fail: planner(queues, failOnDataLoss=fail) for fail in plans}
    queues.spans[q(0)], queues.regrown[q(0)] = (0, 130), (90, LATER)
    with pytest.raises(
        DataLossError,
        match=r"DATA_LOSS.MESSAGES_REPLACED\] orders/broker-a/0: message 99, .* at 1970-01-01T00:00:00.990Z.*; .*"
        r" at 1970-01-01T00:00:05.990Z.* To continue at message 90, .*failOnDataLoss=false",
    ):
        plans["true"].next_end(ends["true"], None)
    with caplog.at_level(logging.WARNING):
        end = plans["false"].next_end(ends["false"], None)
        assert end == StreamOffset({q(0): 130, q(1): 50}, {q(0): 90}), "all that is new, and nothing else"
        assert end.lasts == {q(0): (129, 1290 + LATER), q(1): (49, 490)}
        queues.spans[q(0)] = (0, 140)
        assert plans["false"].next_end(through_a_checkpoint(end), None) == StreamOffset({q(0): 140, q(1): 50})
    assert caplog.text.count("MESSAGES_REPLACED") == 1
    assert "Continuing from message 90 (failOnDataLoss=false)" in caplog.text


def test_replaced_messages_after_a_clock_reset() -> None:
    """The first replaced message cannot be found by time: the last read one is included."""
    queues = FakeQueues(q0=(0, 100))
    end = first(queues)
    queues.spans[q(0)], queues.regrown[q(0)] = (0, 130), (99, -500)
    assert planner(queues, failOnDataLoss="false").next_end(end, None) == StreamOffset({q(0): 130}, {q(0): 99})


def test_a_trigger_checks_only_queues_with_new_messages() -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50), q2=(0, 0))
    plan = planner(queues)
    end = plan.next_end(None, None)
    assert queues.looked_up == [q(0), q(1)]
    queues.looked_up.clear()
    for _ in range(3):
        assert plan.next_end(end, None) is None
    assert queues.looked_up == [], "idle triggers ask nothing"
    queues.spans[q(1)] = (0, 60)
    end = plan.next_end(end, None)
    assert queues.looked_up == [q(1), q(1)], "whether it is the queue that it was, and its last message now"
    assert end is not None
    assert end.lasts == {q(0): (99, 990), q(1): (59, 590)}


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    ("spans", "says_times"),
    [
        pytest.param([(100, 100), (60, 100), (60, 101)], True, id="a promoted slave that retained more"),
        pytest.param([(100, 100), (60, 101)], True, id="it has also stored a message"),
        pytest.param([(60, 100), (0, 100), (0, 101)], False, id="restart of Apache's broker with expired messages"),
        pytest.param([(60, 100), (0, 101)], False, id="it has also stored a message since its restart"),
    ],
)
def test_a_lower_first_offset_of_an_emptied_queue_is_no_loss(
    spans: list[tuple[int, int]], says_times: bool, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention has deleted all messages on one of the brokers, so the query knows none. What was read is not read
    again."""
    queues, now = FakeQueues(q0=spans[0]), [0.0]
    queues.says_times = says_times
    options = stream(startingOffsets="latest", failOnDataLoss=fail)
    plan = StreamPlanner(queues, options, clock=lambda: now[0])
    end = through_a_checkpoint(plan.next_end(None, None))
    assert (end.ends, end.firsts, end.lasts) == ({q(0): 100}, {}, {})
    assert plan.next_end(end, None) is None
    with caplog.at_level(logging.WARNING):
        for span in spans[1:]:
            queues.spans[q(0)] = span
            now[0] += 60
            following = plan.next_end(end, None)
            assert following == (None if span[1] == 100 else StreamOffset({q(0): 101}))
    assert "DATA_LOSS" not in caplog.text


def test_unknown_last_messages() -> None:
    """An old checkpoint has none, compaction or retention may have removed one, and an empty queue has none."""
    queues = FakeQueues(q0=(0, 100), q1=(0, 50), q2=(0, 0))
    queues.says_times = False
    end = first(queues)
    assert "last" not in end.to_json()
    queues.says_times = True
    queues.spans |= {q(0): (100, 130), q(2): (0, 1)}
    end = through_a_checkpoint(planner(queues).next_end(end, None))
    assert end.lasts == {q(0): (129, 1290), q(2): (0, 0)}
    queues.says_times = False
    queues.spans[q(0)] = (100, 140)
    end = through_a_checkpoint(planner(queues).next_end(end, None))
    assert end == StreamOffset({q(0): 140, q(1): 50, q(2): 1})
    assert end.lasts[q(0)] == (129, 1290), "an earlier one will do"
    queues.says_times = True
    queues.spans[q(0)], queues.regrown[q(0)] = (100, 150), (120, LATER)
    with pytest.raises(DataLossError, match="MESSAGES_REPLACED"):
        planner(queues).next_end(end, None)
    queues.spans[q(0)] = (140, 150)
    assert planner(queues).next_end(end, None) == StreamOffset({q(0): 150, q(1): 50, q(2): 1})
    queues.spans[q(0)] = (145, 160)
    with pytest.raises(DataLossError, match="messages 140 to 144 were deleted"):
        planner(queues).next_end(end, None)


def test_promoted_slaves_are_checked_and_serving_slaves_are_not() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues)
    end = plan.next_end(None, None)
    queues.masterless = {q(0)}
    queues.spans[q(0)] = (0, 90)
    assert plan.next_end(end, None) is None
    queues.masterless, queues.spans[q(0)], queues.regrown[q(0)] = set(), (0, 130), (90, LATER)
    with pytest.raises(DataLossError, match="MESSAGES_REPLACED"):
        plan.next_end(end, None)


# --- replanned batches ------------------------------------------------------------------------------------------


def spans_of(end: StreamOffset) -> list[OffsetRange]:
    return ranges_between(starts_of(None, end), end.ends)


def test_a_replanned_batch_of_a_recreated_topic(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    end = first(queues)
    spans = spans_of(end)
    assert planner(queues).remaining(end, spans) == spans
    queues.spans[q(0)], queues.began[q(0)] = (0, 300), 90_000
    with pytest.raises(DataLossError, match=r"QUEUE_RECREATED\] orders/broker-a/0 .*The stream is at 0"):
        planner(queues).remaining(end, spans)
    plan = planner(queues, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert plan.remaining(end, spans) == [OffsetRange(q(1), 0, 50)]
        following = plan.next_end(end, None)
    assert following == StreamOffset({q(0): 300, q(1): 50}, {q(0): 0}), "the new queue's messages, each once"


def test_a_replanned_batch_after_replaced_messages() -> None:
    queues = FakeQueues(q0=(0, 100), q1=(0, 50))
    end = first(queues)
    spans = spans_of(end)
    queues.spans[q(0)], queues.regrown[q(0)] = (0, 130), (90, LATER)
    with pytest.raises(DataLossError, match=r"MESSAGES_REPLACED\] orders/broker-a/0"):
        planner(queues).remaining(end, spans)
    plan = planner(queues, failOnDataLoss="false")
    assert plan.remaining(end, spans) == [OffsetRange(q(0), 0, 90), OffsetRange(q(1), 0, 50)]
    assert plan.next_end(end, None) == StreamOffset({q(0): 130, q(1): 50}, {q(0): 90})
    queues.regrown[q(0)] = (0, LATER)
    assert planner(queues, failOnDataLoss="false").remaining(end, spans) == [OffsetRange(q(1), 0, 50)]


def test_batches_of_this_process_are_not_checked() -> None:
    queues = FakeQueues(q0=(0, 100))
    plan = planner(queues)
    end = plan.next_end(None, None)
    assert end is not None
    queues.looked_up.clear()
    assert plan.remaining(end, spans_of(end)) == spans_of(end)
    again = planner(queues)
    for _ in range(2):
        assert again.remaining(end, spans_of(end)) == spans_of(end)
    assert queues.looked_up == [q(0)]


@pytest.mark.parametrize("gone", ["topic", "broker", "master"])
def test_unavailable_queues_are_left_to_the_tasks(gone: str) -> None:
    queues = FakeQueues(q0=(0, 100))
    queues.spans[q(0, broker="broker-b")] = (0, 10)
    end = first(queues)
    if gone == "topic":
        queues.spans.clear()
    elif gone == "broker":
        del queues.spans[q(0)]
    else:
        queues.masterless = {q(0)}
    assert sorted(planner(queues).remaining(end, spans_of(end)), key=str) == sorted(spans_of(end), key=str)


# --- a live broker ----------------------------------------------------------------------------------------------


@pytest.mark.live
def test_a_broker_restored_from_a_copy(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"

    def run(count: int) -> tuple[LocalCluster, MessageQueue]:
        """Send this many more messages."""
        cluster = LocalCluster(data_dir=data, in_process=True, config={"mappedFileSizeCommitLog": 1 << 20})
        cluster.start()
        topic = cluster.create_topic("orders", 1)
        with Producer("g", name_server=cluster.name_server) as producer:
            (queue,) = producer.queues(topic)
            for number in range(count):
                producer.send(Message.of(topic, str(number)), queue=queue)
        return cluster, queue

    def next_end(cluster: LocalCluster, previous: StreamOffset | None, **given: str) -> StreamOffset:
        options = stream(**given, nameServer=cluster.name_server)
        return through_a_checkpoint(StreamPlanner(Cluster(options), options).next_end(previous, None))

    cluster, queue = run(10)
    cluster.stop()
    shutil.copytree(data, copy)
    cluster, _ = run(5)
    end = next_end(cluster, None)
    assert end == StreamOffset({queue: 15}, {queue: 0})
    assert end.lasts[queue][0] == 14
    cluster.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    cluster, _ = run(20)
    try:
        with pytest.raises(DataLossError, match=r"MESSAGES_REPLACED.*at message 10, the first one that was stored"):
            next_end(cluster, end)
        following = next_end(cluster, end, failOnDataLoss="false")
        assert following == StreamOffset({queue: 30}, {queue: 10})
    finally:
        cluster.stop()


def test_a_queue_that_only_a_slave_has_served_is_recreated() -> None:
    """Its first message is unknown, and the new queue has as many messages as were read: the last one tells."""
    queues = FakeQueues(q0=(0, 0))
    end = through_a_checkpoint(planner(queues, startingOffsets="earliest").next_end(None, None))
    queues.spans[q(0)], queues.masterless = (0, 3), {q(0)}
    end = through_a_checkpoint(planner(queues).next_end(end, None))
    assert (end.ends[q(0)], dict(end.firsts)) == (3, {})
    queues.masterless, queues.began[q(0)] = set(), 1_000_000
    with pytest.raises(DataLossError, match=r"MESSAGES_REPLACED\] orders/broker-a/0"):
        planner(queues).next_end(end, None)
    following = planner(queues, failOnDataLoss="false").next_end(end, None)
    assert following == StreamOffset({q(0): 3}, {q(0): 0})
