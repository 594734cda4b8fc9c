"""Limits of a micro-batch: bytes, minimum count and delay, and all limits together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import MAX_QUEUES, MAX_ROUNDS, RUN, UNSIZED_BATCH_MESSAGES, limit_bytes
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import FakeQueues, q


def planner(queues: FakeQueues, now: list[float] | None = None, **given: Any) -> StreamPlanner:
    options = {"subscribe": "orders", "nameServer": "x:1", "startingOffsets": "earliest"} | given
    at = now or [0.0]
    return StreamPlanner(queues, parse_read_options(options, Scope.READ_STREAM), clock=lambda: at[0])


def total(queues: FakeQueues, starts: dict[MessageQueue, int], ends: dict[MessageQueue, int]) -> int:
    return sum(queues.size_of(queue, offset) for queue in ends for offset in range(starts[queue], ends[queue]))


def limited(queues: FakeQueues, max_bytes: int) -> tuple[dict[MessageQueue, int], int]:
    starts = {queue: low for queue, (low, _) in queues.spans.items()}
    ends = limit_bytes(
        starts, {queue: high for queue, (_, high) in queues.spans.items()}, max_bytes, queues.message_sizes
    )
    assert ends is not None
    return ends, total(queues, starts, ends)


# --- bytes ------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(100, 5000), max_size=RUN), min_size=1, max_size=6), st.integers(1, 400_000))
def test_small_batches_are_exactly_within_the_limit(sizes: list[list[int]], max_bytes: int) -> None:
    queues = FakeQueues(**{f"q{number}": (7, 7 + len(each)) for number, each in enumerate(sizes)})
    queues.size_of = lambda queue, offset: sizes[queue.queue_id][offset - 7]
    ends, size = limited(queues, max_bytes)
    taken = sum(end - 7 for end in ends.values())
    assert size <= max_bytes or taken == 1, "one message is read, however large"
    there = sum(map(len, sizes))
    assert taken >= min(there, 1)
    if sum(map(sum, sizes)) <= max_bytes:
        assert taken == there


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32), st.sampled_from([(100, 200), (100, 2000), (50, 8000)]))
def test_large_batches_are_near_the_limit(count: int, seed: int, between: tuple[int, int]) -> None:
    chance = random.Random(seed)
    sizes = [[chance.randint(*between) for _ in range(chance.randint(1000, 20_000))] for _ in range(count)]
    queues = FakeQueues(**{f"q{number}": (0, len(each)) for number, each in enumerate(sizes)})
    queues.size_of = lambda queue, offset: sizes[queue.queue_id][offset]
    whole = sum(map(sum, sizes))
    _, size = limited(queues, whole // 3)
    assert 0.7 * whole / 3 <= size <= 1.1 * whole / 3


@pytest.mark.parametrize(("old", "new"), [(100, 4000), (4000, 100)])
def test_sizes_that_change_along_the_queue(old: int, new: int) -> None:
    queues = FakeQueues(q0=(0, 100_000))
    queues.size_of = lambda queue, offset: old if offset < 30_000 else new
    _, size = limited(queues, 1_000_000)
    assert 700_000 <= size <= 1_000_000


def test_a_queue_without_sizes_counts_as_the_others() -> None:
    queues = FakeQueues(q0=(0, 1000), q1=(0, 1000))
    told = queues.message_sizes
    queues.message_sizes = lambda starts, count: {  # type: ignore[method-assign]
        queue: [] if queue == q(1) else sizes for queue, sizes in told(starts, count).items()
    }
    ends, _ = limited(queues, 100_000)
    assert sum(ends.values()) in range(800, 1001)


@pytest.mark.parametrize("sizes", [[], [0]])
def test_without_any_size_a_batch_takes_a_few_messages_of_each_queue(
    sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    queues = FakeQueues(q0=(0, 100_000), q1=(7, 9), q2=(0, 0))
    queues.message_sizes = lambda starts, count: dict.fromkeys(starts, sizes)  # type: ignore[method-assign]
    plan = planner(queues, maxBytesPerTrigger="1000")
    end = plan.next_end(None, None)
    assert end is not None
    assert end.ends == {q(0): UNSIZED_BATCH_MESSAGES, q(1): 9, q(2): 0}
    assert plan.next_end(end, 5) == StreamOffset({q(0): UNSIZED_BATCH_MESSAGES + 5, q(1): 9, q(2): 0}), (
        "the other limit counts too"
    )
    assert plan.next_end(end, None) == StreamOffset({q(0): 2 * UNSIZED_BATCH_MESSAGES, q(1): 9, q(2): 0})
    assert caplog.text.count("do not report message sizes") == 1


@pytest.mark.parametrize("limit", [2, 150])
def test_many_queues_are_sampled(limit: int) -> None:
    """A few busy queues, many quiet ones, and a topic with much larger messages."""
    queues = FakeQueues()
    for number in range(900):
        queues.spans[q(number, "a-quiet")] = (0, 3)
    for number in range(50):
        queues.spans[q(number, "busy")] = (0, 4000)
        queues.spans[q(number, "large")] = (0, 400)
    queues.size_of = lambda queue, offset: 5000 if queue.topic == "large" else 100 + offset % 50
    whole = total(queues, dict.fromkeys(queues.spans, 0), {queue: end for queue, (_, end) in queues.spans.items()})
    _, size = limited(queues, whole // limit)
    assert 0.75 * whole / limit <= size <= 1.25 * whole / limit


@pytest.mark.parametrize("count", [100, 1000])
def test_few_requests_are_sent_for_any_amount_of_data(count: int) -> None:
    queues = FakeQueues(**{f"q{number}": (0, 10_000_000) for number in range(count)})
    asked = 0
    told = queues.message_sizes

    def counted(starts: dict[MessageQueue, int], count: int) -> dict[MessageQueue, list[int]]:
        nonlocal asked
        asked += len(starts)
        return told(starts, count)

    queues.message_sizes = counted  # type: ignore[assignment,method-assign]
    limited(queues, 10_000_000)
    assert asked <= MAX_ROUNDS * MAX_QUEUES


# --- a minimum count, and all limits together -------------------------------------------------------------------


def test_a_batch_waits_for_the_minimum_or_the_delay() -> None:
    now = [100.0]
    queues = FakeQueues(q0=(0, 3))
    plan = planner(queues, now, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    end = plan.next_end(None, None)
    assert end == StreamOffset({q(0): 3}, {q(0): 0}), "the first batch does not wait"
    queues.spans[q(0)] = (0, 12)
    assert plan.next_end(end, None) is None
    queues.spans[q(0)] = (0, 13)
    end = plan.next_end(end, None)
    assert end == StreamOffset({q(0): 13})
    queues.spans[q(0)] = (0, 14)
    now[0] = 129.9
    assert plan.next_end(end, None) is None
    assert plan.next_end(end, None, is_limited=False) == StreamOffset({q(0): 14}), "Trigger.Once"
    plan = planner(queues, now, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    end = plan.next_end(end, None)
    assert end == StreamOffset({q(0): 14}), "nor the first after a restart"
    queues.spans[q(0)] = (0, 15)
    now[0] = 159.0
    assert plan.next_end(end, None) is None
    now[0] = 160.0
    assert plan.next_end(end, None) == StreamOffset({q(0): 15})
    now[0] = 1000.0
    assert plan.next_end(StreamOffset({q(0): 15}), None) is None


def test_the_start_of_a_new_queue_is_recorded_at_once() -> None:
    queues = FakeQueues(q0=(0, 3))
    plan = planner(queues, minOffsetsPerTrigger="10")
    end = plan.next_end(None, None)
    queues.spans[q(1)] = (5, 6)
    assert plan.next_end(end, None) == StreamOffset({q(0): 3, q(1): 6}, {q(1): 5})


def test_all_limits_together_and_available_now_without_waits() -> None:
    limits: dict[str, Any] = {"minOffsetsPerTrigger": "50", "maxOffsetsPerTrigger": "60", "maxBytesPerTrigger": "4000"}
    queues = FakeQueues(q0=(0, 90), q1=(0, 30))
    plan = planner(queues, **limits)
    plan.pin()
    queues.spans[q(0)] = (0, 500)
    taken = []
    end: StreamOffset | None = None
    while (following := plan.next_end(end, 60)) is not None:
        before = sum(end.ends.values()) if end else 0
        end = following
        taken.append(sum(end.ends.values()) - before)
    assert sum(taken) == 120
    assert all(32 <= count <= 40 for count in taken[:-1]), "of 100 bytes each"
    plan = planner(queues, **(limits | {"maxOffsetsPerTrigger": "50"}))
    first = plan.next_end(None, 50)
    assert first is not None
    assert sum(first.ends.values()) <= 40
    everything = plan.next_end(first, None, is_limited=False)
    assert everything is not None
    assert everything.ends == {q(0): 500, q(1): 30}
