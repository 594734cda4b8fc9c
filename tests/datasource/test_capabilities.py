"""Spark 4.0 and 4.1: options for newer versions are refused, and a stream keeps its own position."""

from __future__ import annotations

import pytest

from spark_rocket.client import Producer
from spark_rocket.datasource import capabilities
from spark_rocket.datasource.batch_reader import TaskPartition
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.datasource.stream import UnlimitedStreamReader
from spark_rocket.datasource.stream_offsets import initial_offset
from spark_rocket.errors import OptionError, StateError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster


def parsed(name_server: str = "127.0.0.1:1", **options: str) -> ReadOptions:
    return parse_read_options({"nameServer": name_server, "subscribe": "orders", **options}, Scope.READ_STREAM)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_limits_are_refused_without_support_in_spark(option: str) -> None:
    options = parsed(**{option: "10"})
    capabilities.check_limits(options, has_read_limits=True)
    with pytest.raises(OptionError, match=rf"\[BAD_OPTION.NEWER_SPARK\].*{option} requires Spark 4.2.*PySpark 4.2"):
        capabilities.check_limits(options, has_read_limits=False)


def test_a_minimum_is_not_a_limit() -> None:
    capabilities.check_limits(parsed(minOffsetsPerTrigger="10", maxTriggerDelay="1m"), has_read_limits=False)


@pytest.mark.live
def test_the_order_of_spark_4_0s_calls() -> None:
    """As in PySpark 4.0.5 and 4.1.4: a new query first requests the end, a restarted one passes its offset."""

    def reader() -> UnlimitedStreamReader:
        return UnlimitedStreamReader(parsed(cluster.name_server, startingOffsets="earliest"), SOURCE_SCHEMA)

    def planned(of: UnlimitedStreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[int, int]]:
        tasks = [each.task for each in of.partitions(start, end) if isinstance(each, TaskPartition)]
        return [(span.start, span.end) for task in tasks if isinstance(task, tuple) for span in task]

    with LocalCluster() as cluster, Producer("tests", name_server=cluster.name_server) as producer:
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
