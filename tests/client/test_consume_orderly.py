"""Ordered consumption, with a clock that only the test advances."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.client.consume.listeners import ConsumeOrderlyContext, ConsumeOrderlyStatus
from spark_rocket.client.consume.orderly import ConsumeOrderly
from spark_rocket.client.consume.process_queue import LOCK_EXPIRED_SECONDS, ProcessQueue
from spark_rocket.client.consume.services import FlowControl
from spark_rocket.model import MessageExt
from tests.client.consuming import (
    FAILURES,
    SECONDS,
    BlockedListener,
    Rig,
    check_messages_before_an_undecodable_one,
    found,
    queue_at,
    rig_of,
)

SUCCESS, SUSPEND = ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


rig = rig_of(
    ConsumeOrderly,
    SUCCESS,
    threads=3,
    batch_size=1,
    flow=FlowControl(10, 100),
    max_reconsume_times=2**31 - 1,
    pause_ms=1_000,
    needs_locks=True,
)


def locked() -> ProcessQueue:
    queue = queue_at()
    queue.locked, queue.last_lock = True, time.monotonic()
    return queue


def test_one_call_at_a_time_in_the_queues_order(rig: Callable[..., Rig]) -> None:
    one, queue = rig(batch_size=2), locked()
    inside = threading.Lock()

    def listen(*_: object) -> ConsumeOrderlyStatus:
        assert inside.acquire(blocking=False)
        inside.release()
        return SUCCESS

    one.listener = listen
    for start in range(0, 50, 5):
        one.service.receive(queue, found(range(start, start + 5)))
    one.until(lambda: queue.commit_offset == 50)
    assert [offset for call in one.calls for offset in call] == list(range(50))
    assert max(map(len, one.calls)) == 2


def test_messages_before_an_undecodable_one_are_consumed(rig: Callable[..., Rig]) -> None:
    check_messages_before_an_undecodable_one(rig(), locked())


@pytest.mark.parametrize(
    ("wish", "pause"), [(-1, 1.0), (0, 0.01), (500, 0.5), (99_999, 30.0), ("soon", 1.0), (None, 1.0)]
)
def test_a_suspended_queue_retries_its_messages(rig: Callable[..., Rig], wish: int, pause: float) -> None:
    one, queue = rig(batch_size=2), locked()
    times: list[int] = []

    def listen(messages: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        times.append(messages[0].reconsume_times)
        context.suspend_current_queue_time_millis = wish
        return SUSPEND if len(times) < 3 else SUCCESS

    one.listener = listen
    one.service.receive(queue, found(range(3)))
    assert one.later.run() == pause
    assert queue.commit_offset == 0
    one.service.receive(queue, found([3]))  # messages pulled meanwhile are queued
    assert one.later.run() == pause
    one.until(lambda: queue.commit_offset == 4)
    assert one.calls == [[0, 1], [0, 1], [0, 1], [2, 3]]
    assert times == [0, 1, 2, 0]


@pytest.mark.parametrize("listener", FAILURES)
def test_failed_and_invalid_listener_results_are_retried(
    rig: Callable[..., Rig], listener: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    one, queue = rig(), locked()
    one.listener = listener
    with caplog.at_level(logging.WARNING):
        one.service.receive(queue, found([0]))
        one.later.run()
        one.later.wait()
        one.listener = lambda *_: SUCCESS
        one.later.run()
        one.until(lambda: queue.commit_offset == 1)
    assert len([record for record in caplog.records if "listener " in record.message]) == 1


def test_after_max_reconsume_times_a_message_goes_to_the_retry_topic(rig: Callable[..., Rig]) -> None:
    one, queue = rig(max_reconsume_times=2), locked()
    one.listener = lambda messages, _: SUSPEND if messages[0].queue_offset == 0 else SUCCESS
    one.service.receive(queue, found([0, 1]))
    one.later.run()
    one.back.refuses = True
    one.later.run()
    assert one.later.run() == 1.0  # no broker accepted it: the queue stays suspended
    one.back.refuses = False
    one.until(lambda: queue.commit_offset == 2 or one.later.waiting)
    if queue.commit_offset != 2:
        one.later.run()
    one.until(lambda: queue.commit_offset == 2)
    assert one.back.copies == [0]
    assert one.calls[-1] == [1]


def test_nothing_is_consumed_without_a_valid_lock(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), locked()
    queue.last_lock -= LOCK_EXPIRED_SECONDS + 1
    one.locks = [False, True]
    one.service.receive(queue, found([0]))
    assert one.later.run() == 0.1
    assert one.calls == []
    assert one.later.run() == 1.0
    one.until(lambda: queue.commit_offset == 1)


def test_a_dropped_queue_is_reported_after_its_last_call(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), locked()
    one.listener = held = BlockedListener(SUCCESS)
    one.service.receive(queue, found([0, 1]))
    assert held.began.wait(SECONDS)
    queue.dropped = True
    assert not queue.lock_consume.acquire(blocking=False)
    assert one.given_up == []
    held.go.set()
    one.until(lambda: one.given_up == [queue])
    assert queue.lock_consume.acquire(blocking=False)
    assert queue.commit_offset == 1  # the message of that call is consumed, the other is for the next owner
    assert one.calls == [[0]]


def test_a_stuck_call_does_not_delay_other_queues(rig: Callable[..., Rig]) -> None:
    one, stuck, queue = rig(), locked(), locked()
    one.listener = held = BlockedListener(SUCCESS, once=True)
    one.service.receive(stuck, found([0, 1]))
    assert held.began.wait(SECONDS)
    one.service.receive(queue, found(range(5)))
    one.until(lambda: queue.commit_offset == 5)
    assert stuck.commit_offset == 0
    one.service.close(0.0)  # nor does close
    held.go.set()
    one.service.close(SECONDS)
    assert stuck.commit_offset == 1


def test_a_queue_dropped_while_suspended_is_reported(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), locked()
    one.listener = lambda *_: SUSPEND
    one.service.receive(queue, found([0]))
    one.later.wait()
    queue.dropped = True
    one.later.run()
    one.until(lambda: queue in one.given_up)
    assert queue.commit_offset == 0


@pytest.mark.parametrize("fail", [lambda: SUSPEND, lambda: 1 / 0])
def test_messages_removed_from_the_list_are_not_consumed(rig: Callable[..., Rig], fail: Callable[[], Any]) -> None:
    one, queue = rig(batch_size=2), locked()

    def listen(messages: list[MessageExt], _: object) -> Any:
        while messages:
            messages.pop(0)
        return fail() if len(one.calls) == 1 else SUCCESS

    one.listener = listen
    one.service.receive(queue, found(range(2)))
    assert one.later.run() == 1.0
    one.until(lambda: queue.commit_offset == 2)
    assert one.calls == [[0, 1], [0, 1]]
