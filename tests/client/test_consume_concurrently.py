"""Concurrent consumption, with a clock that only the test advances."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.client.consume import concurrently as module
from spark_rocket.client.consume.concurrently import ConsumeConcurrently
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, ConsumeHooks
from spark_rocket.client.consume.process_queue import START_TIME, StartTime
from spark_rocket.client.consume.services import FlowControl
from spark_rocket.client.core.hooks import ConsumeMessageContext
from spark_rocket.model import MessageExt
from spark_rocket.protocol.record.messages import decode_messages
from tests.client.consuming import (
    FAILURES,
    SECONDS,
    BlockedListener,
    Rig,
    check_messages_before_an_undecodable_one,
    found,
    nothing,
    queue_at,
    raising,
    rig_of,
)
from tests.kit.waiting import until

SUCCESS, AGAIN = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


rig = rig_of(ConsumeConcurrently, SUCCESS, threads=2, batch_size=1, flow=FlowControl(10, 100, 20))


def test_consumed_messages_are_committed(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), queue_at()
    one.service.receive(queue, found(range(5)))
    one.until(lambda: queue.commit_offset == 5)
    one.service.receive(queue, nothing(9))
    assert queue.commit_offset == 9
    assert sorted(one.calls) == [[0], [1], [2], [3], [4]]


def test_messages_before_an_undecodable_one_are_consumed(rig: Callable[..., Rig]) -> None:
    check_messages_before_an_undecodable_one(rig(), queue_at())


@pytest.mark.parametrize("level", [0, 4, -1])
def test_failed_messages_are_returned_with_their_delay_level(rig: Callable[..., Rig], level: int) -> None:
    one, queue = rig(), queue_at()

    def listen(_: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = level
        return AGAIN

    one.listener = listen
    one.service.receive(queue, found([3]))
    one.until(lambda: queue.commit_offset == 4)
    assert one.back.given == [(3, level)]


@pytest.mark.parametrize(("index", "back"), [(-1, [0, 1, 2]), (0, [1, 2]), (1, [2]), (2, []), (9, []), (-7, [0, 1, 2])])
def test_a_success_counts_up_to_ack_index(rig: Callable[..., Rig], index: int, back: list[int]) -> None:
    one, queue = rig(batch_size=3), queue_at()

    def listen(_: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.ack_index = index
        return SUCCESS

    one.listener = listen
    one.service.receive(queue, found(range(3)))
    one.until(lambda: queue.commit_offset == 3)
    assert [offset for offset, _ in one.back.given] == back


class UnprintableError(BaseException):
    """An error of the application that cannot be formatted."""

    def __str__(self) -> str:
        raise ValueError("invalid body")


def _with_level(level: Any) -> Callable[..., Any]:
    def listen(_: object, context: ConsumeConcurrentlyContext) -> Any:
        context.delay_level_when_next_consume = level
        return AGAIN

    return listen


@pytest.mark.parametrize(
    "listener",
    [
        *FAILURES,
        raising(UnprintableError()),
        lambda *_: "CONSUME_SUCCESS",
        lambda *_: True,
        lambda *_: ConsumeConcurrentlyStatus,
        _with_level("soon"),
        _with_level(None),
    ],
)
def test_failed_and_invalid_listener_results_are_retried_and_logged_once(
    rig: Callable[..., Rig], listener: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    one, queue = rig(), queue_at()
    one.listener = listener
    with caplog.at_level(logging.WARNING):
        one.service.receive(queue, found(range(5)))
        one.until(lambda: queue.commit_offset == 5)
    assert sorted(one.back.given) == [(offset, 0) for offset in range(5)]
    assert len([record for record in caplog.records if "listener " in record.message]) == 1
    one.listener = lambda *_: SUCCESS  # all threads are still alive
    one.service.receive(queue, found([5, 6]))
    one.until(lambda: queue.commit_offset == 7)


def test_an_invalid_ack_index_is_ignored(rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    one, queue = rig(batch_size=2), queue_at()

    def listen(_: object, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.ack_index = None  # type: ignore[assignment]
        return SUCCESS

    one.listener = listen
    with caplog.at_level(logging.WARNING):
        one.service.receive(queue, found(range(6)))
        one.until(lambda: queue.commit_offset == 6)
    assert sorted(one.back.given) == [(offset, 0) for offset in range(6)]
    assert len([record for record in caplog.records if "listener " in record.message]) == 1


def test_messages_consumed_before_an_internal_error_are_committed(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, queue = rig(threads=1), queue_at()
    call = one.service._call
    monkeypatch.setattr(one.service, "_call", lambda *given: call(*given) // (len(one.calls) < 2))
    one.service.receive(queue, found(range(2)))
    one.until(lambda: queue.commit_offset == 1)


def test_messages_refused_by_all_brokers_are_retried_locally(rig: Callable[..., Rig]) -> None:
    one, queue = rig(batch_size=2), queue_at()
    one.back.refuses = True
    seen: list[int] = []

    def listen(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        seen.append(messages[0].reconsume_times)
        return AGAIN if len(seen) == 1 else SUCCESS

    one.listener = listen
    one.service.receive(queue, found([0, 1]))
    assert one.later.run() == 5.0
    one.until(lambda: queue.commit_offset == 2)
    assert seen == [0, 1]
    assert one.calls == [[0, 1], [0, 1]]


def test_broadcasting_skips_failed_messages(rig: Callable[..., Rig]) -> None:
    one, queue = rig(clustering=False), queue_at()
    one.listener = lambda *_: AGAIN
    one.service.receive(queue, found([0]))
    one.until(lambda: queue.commit_offset == 1)
    assert one.back.given == []


def test_a_dropped_queue_is_not_changed(rig: Callable[..., Rig]) -> None:
    one, queue = rig(threads=1), queue_at()

    def listen(*_: object) -> ConsumeConcurrentlyStatus:
        queue.dropped = True
        ended.set()
        return AGAIN

    ended = threading.Event()
    one.listener = listen
    one.service.receive(queue, found([0, 1]))
    assert ended.wait(SECONDS)
    one.service.close(SECONDS)
    assert (one.calls, one.back.given, queue.commit_offset) == ([[0]], [], 0)


@pytest.mark.parametrize(("quick", "step_ns"), [(False, 0), (True, 0), (True, -3_600_000_000_000)])
def test_a_stuck_call_does_not_delay_other_messages(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, quick: bool, step_ns: int
) -> None:
    """Also if the machine's clock is set back meanwhile."""
    one, queue = rig(flow=FlowControl(1000, 1 << 20)), queue_at()
    if quick:  # then one thread makes all calls of a run
        one.service.receive(queue, found(range(400)))
        one.until(lambda: queue.commit_offset == 400)
        one.service._mean_ns = 0
    start = queue.end
    stuck, go = threading.Event(), threading.Event()

    def listen(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        if messages[0].queue_offset == start + 1:
            now_ns = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: now_ns() + step_ns)
            stuck.set()
            assert go.wait(SECONDS)
        return SUCCESS

    one.listener = listen
    one.service.receive(queue, found(range(start, start + 10)))
    assert stuck.wait(SECONDS)
    one.until(lambda: queue.count == 1)
    assert queue.commit_offset == start + 1
    go.set()
    one.until(lambda: queue.commit_offset == start + 10)


def test_a_run_without_a_free_thread_is_offered_once(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners may be stuck for hours."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.001)
    one, queue = rig(), queue_at()
    looks, stuck, go = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    wait = one.service._stop.wait

    def look(seconds: float) -> bool:
        looks.release()
        return wait(seconds)

    def listen(*_: object) -> ConsumeConcurrentlyStatus:
        stuck.release()
        assert go.wait(SECONDS)
        return SUCCESS

    monkeypatch.setattr(one.service._stop, "wait", look)
    one.listener = listen
    one.service._watch.set()
    one.service.receive(queue, found(range(10)))
    for _ in range(2):
        assert stuck.acquire(timeout=SECONDS)
    while looks.acquire(blocking=False):
        pass
    for _ in range(20):
        one.service._watch.set()
        assert looks.acquire(timeout=SECONDS)
    assert one.service._work.qsize() <= 3  # three at first, two of them taken, and each of these offered once
    go.set()
    one.until(lambda: queue.commit_offset == 10)


def test_flow_control(rig: Callable[..., Rig]) -> None:
    one = rig()
    full = one.service.is_full
    queue = queue_at()
    queue.put(decode_messages(found(range(10)).records), 10)
    assert not full(queue)
    queue.put(decode_messages(found([10]).records), 11)
    assert full(queue)  # more messages than 10
    queue = queue_at()
    queue.put(decode_messages(found([0, 20]).records), 21)
    assert not full(queue)
    queue.put(decode_messages(found([21]).records), 22)
    assert full(queue)  # a span of more than 20
    queue = queue_at()
    (large,) = decode_messages(found([0]).records)
    large.body = b"x" * 101
    queue.put([large], 1)
    assert full(queue)  # more than 100 bytes


def test_expired_messages_are_returned_sixteen_at_a_time(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), queue_at()
    messages = decode_messages(found(range(20)).records)
    for message in messages[:18]:
        message.properties[START_TIME] = StartTime(1000)
    queue.put(messages, 20)
    one.service.return_expired([queue], 900)
    assert one.back.given == [(offset, 3) for offset in range(16)]
    one.service.return_expired([queue], 900)
    assert queue.commit_offset == 18  # the other calls have not started
    one.back.refuses = True
    messages[18].properties[START_TIME] = StartTime(1000)
    one.service.return_expired([queue], 900)
    assert queue.commit_offset == 18


def test_the_start_time_of_a_forwarded_message_does_not_expire(rig: Callable[..., Rig]) -> None:
    """A consumer may forward its messages with all their properties; here they wait for a thread."""
    one, queue = rig(), queue_at()
    messages = decode_messages(found(range(2)).records)
    for message, started in zip(messages, ("1000", "9" * 5_000), strict=True):
        message.properties[START_TIME] = started
    queue.put(messages, 2)
    one.service.return_expired([queue], 900)
    assert (one.back.given, queue.commit_offset) == ([], 0)


def test_an_expired_call_no_longer_blocks_its_queue(rig: Callable[..., Rig]) -> None:
    one, queue = rig(threads=2), queue_at()
    began, go = threading.Event(), threading.Event()

    def listen(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        if messages[0].queue_offset == 0:
            began.set()
            assert go.wait(SECONDS)
        return SUCCESS

    one.listener = listen
    one.service.receive(queue, found(range(5)))
    assert began.wait(SECONDS)
    one.until(lambda: queue.count == 1)
    one.service.return_expired([queue], 900)
    assert (one.back.given, queue.commit_offset) == ([], 0)
    one.service.return_expired([queue], -900)  # as if the call had started that long ago
    assert (one.back.given, queue.commit_offset) == ([(0, 3)], 5)
    go.set()
    one.service.close(SECONDS)
    assert (one.back.given, queue.commit_offset, queue.count, queue.size) == ([(0, 3)], 5, 0, 0)


def test_a_message_changed_by_its_listener_is_returned_on_expiry(rig: Callable[..., Rig]) -> None:
    one, spoilt, worse, queue = rig(), queue_at(), queue_at(), queue_at()
    one.back.refuses = True

    def listen(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        messages[0].properties = []  # type: ignore[assignment]
        return AGAIN

    one.listener = listen
    one.service.receive(spoilt, found([0]))
    one.later.run()  # it cannot be consumed again
    one.back.refuses = False
    one.listener = lambda *_: SUCCESS
    one.service.receive(queue, found([0]))
    one.until(lambda: queue.commit_offset == 1)
    worse.first_started_before = None  # type: ignore[method-assign, assignment]
    one.service.return_expired([worse, spoilt], 900)
    assert (one.back.given, spoilt.commit_offset) == ([(0, 3)], 1)


def test_close_waits_for_calls_and_starts_none(rig: Callable[..., Rig]) -> None:
    one, queue = rig(threads=1), queue_at()
    one.listener = held = BlockedListener(SUCCESS)
    one.service.receive(queue, found([0, 1]))
    assert held.began.wait(SECONDS)
    one.service.close(0.0)  # close waits at most that long
    held.go.set()
    one.service.close(SECONDS)
    assert (one.calls, queue.commit_offset) == ([[0]], 1)


class SeenEvent(threading.Event):
    """``set`` returns when the thread that waited has seen it, and waits again or has ended."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            self.waiter = threading.current_thread()
            self.waits += 1
        return super().wait(timeout)

    def set(self) -> None:
        waits = self.waits
        super().set()
        if waits:
            until(lambda: self.waits > waits or not self.waiter.is_alive())


def test_close_ends_the_thread_that_watches(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[SeenEvent] = []

    def event() -> SeenEvent:
        events.append(SeenEvent())
        return events[-1]

    monkeypatch.setattr(module, "threading", SimpleNamespace(**vars(threading) | {"Event": event}))
    before = set(threading.enumerate())
    one = rig()
    until(lambda: any(event.waits for event in events))
    one.service.close(SECONDS)
    assert set(threading.enumerate()) <= before


def test_hooks_surround_each_call_and_may_fail(rig: Callable[..., Rig]) -> None:
    one, queue = rig(threads=1), queue_at()
    seen: list[object] = []

    class Hook:
        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            context.properties["offset"] = context.messages[0].queue_offset
            raise SystemExit("a hook's own")

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            seen.append((context.consumer_group, context.properties["offset"], context.success, context.status))

    one.hooks.consume.append(Hook())
    one.listener = lambda messages, _: SUCCESS if messages[0].queue_offset == 0 else AGAIN
    one.service.receive(queue, found([0, 1]))
    one.until(lambda: queue.commit_offset == 2)
    assert sorted(seen, key=repr) == [("g", 0, True, "CONSUME_SUCCESS"), ("g", 1, False, "RECONSUME_LATER")]


@pytest.mark.parametrize(
    ("end", "back"), [(lambda: SUCCESS, []), (lambda: AGAIN, [0, 1, 2]), (lambda: 1 / 0, [0, 1, 2])]
)
def test_a_listener_may_change_its_list(rig: Callable[..., Rig], end: Callable[[], Any], back: list[int]) -> None:
    one, queue = rig(batch_size=3), queue_at()
    seen: list[int] = []

    def listen(messages: list[MessageExt], _: object) -> Any:
        while messages:
            messages.pop().queue_offset = 99
        return end()

    class Hook:
        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            context.messages.clear()  # type: ignore[attr-defined]

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            seen.append(len(context.messages))

    one.listener = listen
    one.hooks.consume.append(Hook())
    one.service.receive(queue, found(range(3)))
    one.until(lambda: queue.commit_offset == 3)
    assert [offset for offset, _ in one.back.given] == back
    assert (seen, queue.size) == ([3], 0)


@pytest.mark.parametrize("error", [ValueError("a hook's own"), SystemExit(1)])
def test_a_failing_filter_hook_filters_nothing(error: BaseException) -> None:
    def fail(_: object, messages: list[MessageExt]) -> list[MessageExt]:
        messages.clear()
        raise error

    hooks = ConsumeHooks("g")
    hooks.filter.append(fail)
    messages = decode_messages(found([0, 1]).records)
    assert hooks.choose(queue_at().queue, messages) == messages
    assert len(messages) == 2
