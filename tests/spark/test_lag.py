"""The lag of a stream, in its progress and the listener."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from spark_rocket.datasource import RocketLagListener
from tests.spark.conftest import Rocket


class RecordingLagListener(RocketLagListener):
    """Records its state after each progress, and the served metrics."""

    def __init__(self, name_server: str) -> None:
        super().__init__(0, name_server=name_server)
        self.lags: list[int] = []
        self.latest: list[int] = []
        self.ended = 0
        self.both_ended = threading.Event()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        super().onQueryProgress(event)
        self.lags += [sum(known.messages.values()) for known in self.queries()]
        self.latest += [_sum(source.latestOffset) for source in event.progress.sources]

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        super().onQueryTerminated(event)
        self.ended += 1
        if self.ended == 2:
            self.both_ended.set()


def _sum(offset: str) -> int:
    value = json.loads(offset)
    ends = value["offsets"]
    for topic, brokers in value.get("latest", {}).items():
        for broker, queues in brokers.items():
            ends[topic][broker].update(queues)
    return sum(end for brokers in ends.values() for queues in brokers.values() for end in queues.values())


@pytest.mark.classic("PySpark 4.3 drops a client's listeners when accumulators of a task come between their events")
def test_the_listener_reports_the_lag_of_a_stream(
    mq: Rocket, spark: SparkSession, run: Callable[..., list[str]]
) -> None:
    topic = mq.topic(2)
    mq.send(topic, [f"{n}" for n in range(60)])
    mq.send(topic, [f"{n}" for n in range(40)], queue=1)
    listener = RecordingLagListener(mq.name_server)
    spark.streams.addListener(listener)
    try:
        frame = mq.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
        assert len(run(frame, limited=True)) == 100
        mq.send(topic, ["more"] * 5)
        assert len(run(frame, limited=True)) == 5
        assert listener.both_ended.wait(60)
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    # With a limit, the reported end of the queues is still the actual one, also after a restart.
    assert listener.latest == [100, 100, 100, 105]
    assert listener.lags == [60, 20, 0, 0]
    assert listener.ended == 2
    assert listener.queries() == []
