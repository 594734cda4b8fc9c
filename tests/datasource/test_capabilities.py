"""Spark 4.0 and 4.1: limits need the option ``trigger``, and a stream keeps its own position."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from spark_rocket.client import Producer
from spark_rocket.datasource import capabilities
from spark_rocket.datasource.batch_reader import TaskPartition
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.datasource.stream import PlainStreamReader, stream_reader
from spark_rocket.datasource.stream_offsets import initial_offset
from spark_rocket.errors import OptionError, StateError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.datasource.fakes import FakeQueues


def parsed(name_server: str = "127.0.0.1:1", **options: str) -> ReadOptions:
    return parse_read_options({"nameServer": name_server, "subscribe": "orders", **options}, Scope.READ_STREAM)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_needs_a_spark_that_reports_the_trigger_or_the_option(option: str) -> None:
    options = parsed(**{option: "10"})
    capabilities.check_limits(options, has_read_limits=True)
    wrong = rf"\[BAD_OPTION.NEWER_SPARK\].*{option} requires Spark 4.2 or .* trigger.*set trigger=processingTime"
    with pytest.raises(OptionError, match=wrong):
        capabilities.check_limits(options, has_read_limits=False)
    for trigger in ("processingTime", "availableNow"):
        capabilities.check_limits(parsed(**{option: "10"}, trigger=trigger), has_read_limits=False)


def test_a_minimum_is_not_a_limit() -> None:
    capabilities.check_limits(parsed(minOffsetsPerTrigger="10", maxTriggerDelay="1m"), has_read_limits=False)


ENDS = {f"q{number}": (0, 50 + number) for number in range(3)}


def reader_of(queues: FakeQueues, **options: str) -> PlainStreamReader:
    given = parsed(startingOffsets="earliest", **options)
    plan = StreamPlanner(queues, given)

    class FakedReader(PlainStreamReader):
        @property
        def planner(self) -> StreamPlanner:
            return plan

    return FakedReader(given, SOURCE_SCHEMA)


def batches(reader: PlainStreamReader, end: dict[str, object] | None = None) -> Iterator[dict[str, object]]:
    """Plan micro-batches as Spark 4.0 does, until there are no new messages."""
    start = initial_offset() if end is None else end
    if end is not None:
        reader.partitions(start, start)
    while (end := reader.latestOffset()) != start:
        reader.partitions(start, end)
        yield end
        start = end


def messages(end: dict[str, object], field: str = "offsets") -> int:
    tree = end.get(field, {})
    assert isinstance(tree, dict)
    return sum(at for brokers in tree.values() for queues in brokers.values() for at in queues.values())


def test_limits_apply_to_each_micro_batch_with_a_processing_time(caplog: pytest.LogCaptureFixture) -> None:
    queues = FakeQueues(**ENDS)
    limits = {"maxOffsetsPerTrigger": "60", "trigger": "processingTime"}
    ends = list(batches(reader_of(queues, **limits)))
    assert [messages(end) for end in ends] == [60, 120, 153]
    assert [messages(end, "latest") for end in ends] == [153, 153, 0], "for the lag, where Spark does not request it"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"leaves 93 messages .*\(maxOffsetsPerTrigger=60\).*AvailableNow .* unread: set trigger=", warning)
    queues.spans = {queue: (low, high + 40) for queue, (low, high) in queues.spans.items()}
    after_restart = list(batches(reader_of(queues, **limits), ends[-1]))
    assert [messages(end) for end in after_restart] == [213, 273]
    by_bytes = batches(reader_of(queues, maxBytesPerTrigger="3000", trigger="processingTime"))
    assert 0 < messages(next(by_bytes)) < 100


def test_the_only_micro_batch_of_available_now_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "10", "minOffsetsPerTrigger": "5"}
    (end,) = batches(reader_of(FakeQueues(**ENDS), **limits, trigger="availableNow"))
    assert messages(end) == 153
    assert "latest" not in end
    assert not caplog.records


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark 4.0 and 4.1 do not report the trigger")
def test_a_wrong_trigger_is_an_error_where_spark_reports_it() -> None:
    from spark_rocket.datasource.stream import LimitedStreamReader

    reader = stream_reader(parsed(trigger="processingTime"), SOURCE_SCHEMA)
    assert isinstance(reader, LimitedStreamReader)
    with pytest.raises(OptionError, match=r"\[BAD_OPTION.TRIGGER\].* is processingTime, but .*AvailableNow"):
        reader.prepareForTriggerAvailableNow()


@pytest.mark.live
def test_the_order_of_spark_4_0s_calls() -> None:
    """As in PySpark 4.0.5 and 4.1.4: a new query first requests the end, a restarted one passes its offset."""

    def reader() -> PlainStreamReader:
        return PlainStreamReader(parsed(cluster.name_server, startingOffsets="earliest"), SOURCE_SCHEMA)

    def planned(of: PlainStreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[int, int]]:
        tasks = [each.task for each in of.partitions(start, end) if isinstance(each, TaskPartition)]
        return [(span.start, span.end) for task in tasks if isinstance(task, tuple) for span in task]

    with LocalCluster(in_process=True) as cluster, Producer("tests", name_server=cluster.name_server) as producer:
        cluster.create_topic("orders", 1)
        producer.send(Message.of("orders", "a"))
        new, marker = reader(), initial_offset()
        first = new.latestOffset()
        producer.send(Message.of("orders", "b"))
        assert new.latestOffset() == first, "not planned yet"
        assert planned(new, marker, first) == [(0, 1)]
        second = new.latestOffset()
        assert planned(new, first, second) == [(1, 2)]
        assert new.latestOffset() == second, "an idle stream makes no batch"

        after_commit = reader()
        assert planned(after_commit, second, second) == []
        assert after_commit.latestOffset() == second

        in_mid_batch = reader()
        assert planned(in_mid_batch, second, second) == []
        assert planned(in_mid_batch, first, second) == [(1, 2)]
        assert in_mid_batch.latestOffset() == second

        other_order = reader()
        end = other_order.latestOffset()
        with pytest.raises(StateError, match="before it passed"):
            other_order.partitions(second, end)
