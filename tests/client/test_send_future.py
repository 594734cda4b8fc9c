"""Futures of sends: done before anybody asks, asked before they are done, and both at once; places in flight."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

from spark_rocket.client.send.async_send import AsyncSend, InFlight, SendFuture, settle
from spark_rocket.errors import RemotingTooMuchRequestError, RocketError
from spark_rocket.model import MessageQueue, SendResult, SendStatus


def result(offset: int = 0) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "key", "id", MessageQueue("T", "b0", 0), offset)


class Shared:
    """Results of a batch, numbered from an offset on."""

    def __init__(self, first: int = 0) -> None:
        self._first = first

    def of(self, index: int) -> SendResult:
        return result(self._first + index)


@pytest.mark.parametrize("asked", [False, True])
def test_a_result(asked: bool) -> None:
    future, called = SendFuture(), list[Future[SendResult]]()
    if asked:
        future.add_done_callback(called.append)
        with pytest.raises(TimeoutError):
            future.result(0)
    assert not future.done()
    assert future.running() is False
    assert not future.cancel()
    future.set_result(result())
    assert future.done()
    assert future.result() == result()
    assert future.exception() is None
    assert called == [future] * asked
    future.add_done_callback(called.append)
    assert called[-1] is future


@pytest.mark.parametrize("asked", [False, True])
def test_an_error(asked: bool) -> None:
    future, called, error = SendFuture(), list[Future[SendResult]](), RocketError("no")
    if asked:
        future.add_done_callback(called.append)
    future.set_exception(error)
    assert future.done()
    assert future.exception() is error
    with pytest.raises(RocketError, match="no"):
        future.result()
    assert called == [future] * asked


def test_a_callback_that_exits_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    futures = [SendFuture() for _ in range(3)]
    for future in futures:
        future.add_done_callback(lambda _: sys.exit(1))
    settle(futures, Shared())
    assert [future.result(0).queue_offset for future in futures] == [0, 1, 2]
    assert caplog.text.count("a call-back of a send failed") == 3


def test_what_the_standard_library_waits_with() -> None:
    futures = [SendFuture() for _ in range(300)]
    settle(futures[:100], Shared())
    seen: SimpleQueue[int] = SimpleQueue()

    def wait() -> None:
        for future in concurrent.futures.as_completed(futures, 20):
            seen.put(future.result().queue_offset)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    first = seen.get(timeout=20)
    assert first < 100
    settle(futures[100:200], Shared(100))
    for n, future in enumerate(futures[200:], 200):
        future.set_result(result(n))
    for thread in threads:
        thread.join(20)
    assert sorted([first, *(seen.get_nowait() for _ in range(599))]) == sorted([*range(300), *range(300)])
    assert concurrent.futures.wait(futures, 20).not_done == set()


def test_done_and_asked_at_the_same_time() -> None:
    """Nobody who asks is left waiting, and every call-back is called once."""
    rounds, askers = 400, 3
    futures = [SendFuture() for _ in range(rounds)]
    called: SimpleQueue[int] = SimpleQueue()
    gate = threading.Barrier(askers + 1)

    def ask(asker: int) -> int:
        total = 0
        for future in futures:
            gate.wait(20)
            if asker:
                total += future.result(20).queue_offset
            else:
                future.add_done_callback(lambda done: called.put(done.result(0).queue_offset))
        return total

    with ThreadPoolExecutor(askers) as pool:
        asking = [pool.submit(ask, asker) for asker in range(askers)]
        for n, future in enumerate(futures):
            gate.wait(20)
            settle([future], Shared(n) if n % 2 else result(n))
        totals = [one.result(20) for one in asking]
    assert totals == [0] + [sum(range(rounds))] * (askers - 1)
    assert sorted(called.get_nowait() for _ in range(rounds)) == list(range(rounds))
    assert called.empty()


def test_places_that_come_back_one_by_one() -> None:
    """Who waits for a place is woken for many at once, but does not miss the few that there are."""
    places = InFlight(16, block=True)
    sends = iter([Mock(spec=AsyncSend) for _ in range(20)])
    for _ in range(16):
        places.reserve(0.0, lambda: False, next(sends))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(places.reserve, time.monotonic() + 20, lambda: True, next(sends))
        while not places._waiting:
            pass
        places.release(1)
        waiting.result(20)
    with pytest.raises(RemotingTooMuchRequestError, match="16 messages are in flight"):
        places.reserve(time.monotonic() + 0.03, lambda: True, next(sends))
    places.release(16)
    assert places.wait_until_empty(time.monotonic())
