"""The messages that a consumer holds of a queue, its committed offset, and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client.consume.process_queue import START_TIME, StartTime
from spark_rocket.client.consume.services import FlowControl
from tests.client.consuming import message, queue_at


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "gap", "done", "take", "commit", "back"]), st.integers(0, 30))))
def test_commits_never_pass_unconsumed_messages(steps: list[tuple[str, int]]) -> None:
    queue, end, open_, taken = queue_at(5), 5, set[int](), list[int]()
    committed = 5
    for step, number in steps:
        if step == "put":
            offsets = range(end, end + number)
            queue.put([message(offset) for offset in offsets], end + number)
            open_.update(offsets)
            end += number
        elif step == "gap":  # tags without a subscription
            end += number
            queue.put((), end)
        elif step == "done" and open_.difference(taken):
            offset = sorted(open_.difference(taken))[number % len(open_.difference(taken))]
            queue.remove([offset])
            open_.discard(offset)
        elif step == "take" and not taken:
            taken = sorted(open_)[:number]
            assert [one.queue_offset for one in queue.take(number)] == taken
        elif step == "commit":
            queue.commit()
            open_.difference_update(taken)
            taken = []
        elif step == "back":
            queue.give_back()
            taken = []
        assert queue.commit_offset == min(open_, default=end)
        assert queue.commit_offset >= committed  # and it never runs backwards
        committed = queue.commit_offset
        assert queue.count == queue.size == len(open_)


def test_duplicate_messages_are_not_added() -> None:
    queue = queue_at()
    queue.put([message(0), message(1)], 2)
    assert [one.queue_offset for one in queue.take(1)] == [0]
    queue.put([message(0), message(1), message(2)], 3)
    assert queue.count == 3
    assert queue.span == 1


def test_the_first_message_expires_after_its_listener_started() -> None:
    queue = queue_at()
    assert queue.first_started_before(10) is None
    first = message(0)
    queue.put([first], 1)
    assert queue.first_started_before(10) is None  # it waits for a thread
    first.properties[START_TIME] = StartTime(9)
    assert queue.first_started_before(10) == (0, first)
    assert queue.first_started_before(9) is None


def test_queue_info_for_tools() -> None:
    queue = queue_at()
    queue.put([message(3, b"x" * (1 << 20)), message(4)], 5)
    queue.take(1)
    info = queue.info()
    assert (info.commit_offset, info.cached_msg_min_offset, info.cached_msg_count) == (3, 4, 1)
    assert (info.transaction_msg_min_offset, info.transaction_msg_count) == (3, 1)
    assert info.cached_msg_size_in_mib == 1
    assert info.last_pull_timestamp > 0
    assert info.last_lock_timestamp == 0


def test_changes_by_the_listener_do_not_affect_the_queue() -> None:
    queue = queue_at()
    messages = [message(0), message(1)]
    queue.put(messages, 2)
    assert queue.take(1) == messages[:1]
    for one in messages:
        one.queue_offset, one.body = 7, b"inflated"
    queue.commit()
    queue.remove([1])
    assert (queue.commit_offset, queue.count, queue.size) == (2, 0, 0)


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
