"""Consumption rates that tools show."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.client.consume.consumer_stats import ConsumerStats
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from spark_rocket.protocol.wire.bodies.consumer import ConsumeStatus
from tests.client.pushing import Consume, RecordingListener, send

pytestmark = pytest.mark.live

QUEUES = 1


def test_rates_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    now = 1_000.0
    stats = ConsumerStats(lambda: now)
    assert stats.status("t") == ConsumeStatus()
    stats.pulled("t", 40, 0.010)
    stats.pulled("t", 20, 0.030)
    stats.consumed("t", calls=3, consumed=50, failed=10, seconds=0.6)
    stats.consumed("t", calls=0, consumed=0, failed=0, seconds=0)
    assert stats.status("t") == ConsumeStatus(20.0, 6.0, 200.0, 5.0, 1.0, 10), "ten seconds at least"
    now = 1_030.0
    stats.consumed("t", calls=1, consumed=10, failed=0, seconds=1.4)
    assert stats.status("t") == ConsumeStatus(20.0, 2.0, 500.0, 2.0, 10 / 30, 10)
    now = 1_065.0
    assert stats.status("t").consume_ok_tps == 10 / 35, "what is older than a minute does not count"
    now = 1_100.0
    assert stats.status("t") == ConsumeStatus(consume_failed_msgs=10)
    stats.consumed("t", calls=1, consumed=0, failed=5, seconds=0)
    assert stats.status("t").consume_failed_msgs == 15
    now = 1_000.0 + 3_700
    assert stats.status("t") == ConsumeStatus()
    assert stats.status("other") == ConsumeStatus()


@pytest.mark.parametrize("kind", ["listener", "orderly", "batches"])
def test_statistics_of_a_consumer(producer: Producer, topic: str, consume: Consume, kind: str) -> None:
    send(producer, topic, 20)
    seen = RecordingListener()
    failed: list[bytes] = []

    def listen(messages: Any, _: object) -> Any:
        bodies = messages.column("body").to_pylist() if kind == "batches" else [message.body for message in messages]
        if kind == "listener" and bodies == [b"7"]:
            failed.extend(bodies)
            seen.add(bodies, [])
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        seen.add(bodies, [])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if kind == "listener" else ConsumeOrderlyStatus.SUCCESS

    consumer = consume(topic, **{kind: listen})
    seen.until_has(20)
    consumer.close()
    status = consumer.running_info().status_table[topic]
    assert status.pull_rt > 0
    assert status.pull_tps > 0
    assert status.consume_rt > 0
    assert status.consume_ok_tps == pytest.approx(status.pull_tps * (20 - len(failed)) / 20)
    assert status.consume_failed_msgs == len(failed)
    assert (status.consume_failed_tps > 0) is bool(failed)
