"""Consuming Arrow record batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.client.consume import orderly as consume_batches
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from spark_rocket.client.consume.orderly import ConsumeBatches
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.errors import ProtocolError
from tests.client.consuming import FAILURES, SECONDS, Rig, found, nothing, queue_at, rig_of
from tests.kit.scripted import record, undecodable

SUCCESS = ConsumeOrderlyStatus.SUCCESS


rig = rig_of(ConsumeBatches, SUCCESS, threads=2, max_reconsume_times=1, pause_ms=1_000)


@pytest.mark.parametrize("status", [SUCCESS, ConsumeConcurrentlyStatus.CONSUME_SUCCESS])
def test_pulls_are_consumed_in_order(rig: Callable[..., Rig], status: object) -> None:
    one, queue = rig(), queue_at()
    one.listener = lambda *_: status
    one.service.receive(queue, found([0, 1]))
    one.service.receive(queue, found([2]))
    one.until(lambda: queue.commit_offset == 3)
    assert one.calls == [[0, 1], [2]]


def test_an_empty_pull_commits_no_pending_messages(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), queue_at()
    go = threading.Event()
    one.listener = lambda *_: SUCCESS if go.wait(SECONDS) else None
    one.service.receive(queue, nothing(5))
    assert queue.commit_offset == 5
    one.service.receive(queue, found([5]))
    one.service.receive(queue, nothing(9))
    assert one.service.is_full(queue)
    assert queue.commit_offset == 5
    go.set()
    one.until(lambda: queue.commit_offset == 9)


def test_pulls_stop_while_the_queues_hold_too_much(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_batches, "MAX_PENDING_BYTES", 2 * len(found([0]).records))
    one, queues = rig(), [queue_at() for _ in range(3)]
    full = one.service.is_full
    go = threading.Event()
    one.listener = lambda *_: SUCCESS if go.wait(SECONDS) else None
    one.service.receive(queues[0], found([0]))
    assert not full(queues[0])
    one.service.receive(queues[1], found([0]))
    assert [full(queue) for queue in queues] == [True, True, False]  # an empty queue may always pull
    queues[1].dropped = True
    assert not full(queues[0])
    go.set()
    one.until(lambda: queues[0].commit_offset == 1)
    one.service.receive(queues[2], found([0]))
    one.until(lambda: queues[2].commit_offset == 1)
    one.service.receive(queues[2], found([1]))
    one.until(lambda: queues[2].commit_offset == 2)
    assert not full(queues[2]), "what was consumed does not count"


@pytest.mark.parametrize("listener", FAILURES)
def test_a_failed_batch_is_retried_then_returned(rig: Callable[..., Rig], listener: Callable[..., Any]) -> None:
    one, queue = rig(), queue_at()
    one.listener = listener
    one.service.receive(queue, found([0, 1]))
    assert one.later.run() == 1.0
    one.until(lambda: queue.commit_offset == 2)
    assert one.calls == [[0, 1]] * 2
    assert one.back.given == [(0, 0), (1, 0)]


def test_returned_messages_are_not_returned_twice(rig: Callable[..., Rig]) -> None:
    one, queue = rig(max_reconsume_times=0), queue_at()
    one.back.refuses = iter([False, True, False]).__next__
    one.listener = lambda *_: None
    one.service.receive(queue, found([0, 1]))
    assert one.later.run() == 1.0
    one.until(lambda: queue.commit_offset == 2)
    assert one.back.asked == [0, 1, 1]


def test_a_stuck_call_does_not_delay_other_queues(rig: Callable[..., Rig]) -> None:
    one, stuck, queue = rig(), queue_at(), queue_at()
    began, go = threading.Event(), threading.Event()

    def listen(_: object, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.suspend_current_queue_time_millis = "soon"  # type: ignore[assignment]
        if began.is_set():
            return SUCCESS
        began.set()
        assert go.wait(SECONDS)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    one.listener = listen
    one.service.receive(stuck, found([0, 1]))
    assert began.wait(SECONDS)
    one.service.receive(queue, found(range(5)))
    one.until(lambda: queue.commit_offset == 5)
    go.set()
    assert one.later.run() == 1.0
    one.until(lambda: stuck.commit_offset == 2)


def test_broadcasting_skips_failed_batches(rig: Callable[..., Rig]) -> None:
    one, queue = rig(max_reconsume_times=0, clustering=False), queue_at()
    one.listener = lambda *_: None
    one.service.receive(queue, found([0]))
    one.until(lambda: queue.commit_offset == 1)


def test_broadcasting_skips_batches_that_a_filter_hook_removes(rig: Callable[..., Rig]) -> None:
    one, queue = rig(max_reconsume_times=0, clustering=False), queue_at()
    one.choose = lambda _: []
    one.listener = lambda *_: None
    one.service.receive(queue, found([0]))
    one.until(lambda: queue.commit_offset == 1)


@pytest.mark.parametrize("succeeds", [True, False])
def test_messages_before_an_undecodable_one_are_consumed_once(
    rig: Callable[..., Rig], succeeds: bool, caplog: pytest.LogCaptureFixture
) -> None:
    one, queue = rig(max_reconsume_times=0), queue_at()
    one.listener = lambda *_: SUCCESS if succeeds else None
    records = record(0) + record(1) + undecodable(2) + record(3)
    one.service.receive(queue, PullResult(PullStatus.FOUND, 4, 0, 4, memoryview(records)))
    for _ in range(2):
        assert one.later.run() == 1.0
        one.until(lambda: queue.commit_offset == 2)
    assert one.calls == [[0, 1]]
    assert one.back.asked == ([] if succeeds else [0, 1])
    lines = [line for line in caplog.text.splitlines() if "The message at offset 2: " in line]
    assert len(lines) >= 2
    assert all(line.endswith("The group waits there: reset its offset behind the message.") for line in lines)
    assert "Traceback" not in caplog.text


def test_few_threads_decode_and_failed_decoding_is_retried(rig: Callable[..., Rig]) -> None:
    one, queue = rig(), queue_at()
    decode, threads = one.batches, set[threading.Thread]()

    def failing(queue: ProcessQueue, pulled: PullResult) -> Iterator[pa.RecordBatch]:
        threads.add(threading.current_thread())
        if not failed:
            failed.append(queue)
            raise ProtocolError("as if damaged")
        yield from decode(queue, pulled)

    failed: list[ProcessQueue] = []
    one.batches = failing  # type: ignore[method-assign]
    one.service.receive(queue, found([0]))
    assert one.later.run() == 1.0
    one.until(lambda: queue.commit_offset == 1)
    one.service.close(SECONDS)
    assert all(thread.name.startswith("rocket-decode") for thread in threads)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
