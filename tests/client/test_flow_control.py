"""Limits of messages pulled ahead of a listener."""

from __future__ import annotations

import pytest

from spark_rocket.client.consume.services import FlowControl
from tests.client.consuming import message, queue_at


@pytest.mark.parametrize(
    ("flow", "fits", "full"),
    [
        (FlowControl(3, 1000), [0, 1, 2], [3]),
        (FlowControl(10, 30), [0, 1, 2], [3]),
        (FlowControl(10, 1000, 20), [0, 20], [21]),
        (FlowControl(1, 1, topic_messages=6, topic_size=900, queues_of={"t": 2}.__getitem__), [0, 1, 2], [3]),
        (FlowControl(10, 1, topic_size=61, queues_of={"t": 2}.__getitem__), [0, 1, 2], [3]),
        (FlowControl(10, 1000, topic_messages=3, queues_of={"t": 0}.__getitem__), [0, 1, 2], [3]),
        (FlowControl(10, 1000, topic_messages=1, queues_of={"t": 9}.__getitem__), [0], [1]),
        (FlowControl(10, 1000, topic_size=1, queues_of={"t": 9}.__getitem__), [], [0]),
    ],
)
def test_limits(flow: FlowControl, fits: list[int], full: list[int]) -> None:
    queue = queue_at()
    queue.put([message(offset, b"ten bytes.") for offset in fits], 0)
    assert not flow.is_full(queue)
    queue.put([message(offset, b"ten bytes.") for offset in full], 0)
    assert flow.is_full(queue)
