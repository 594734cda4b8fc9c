"""An interrupt, or a signal handler that sends or closes, at each line of a send that the calling thread executes.

After each: every future is done, nothing is in flight, and the next send works. The lines are those of ``client/send``,
``remoting/client`` and the event loop: every line in ``make long``, otherwise some of them.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from spark_rocket.client import Producer, TransactionProducer
from spark_rocket.errors import RemotingConnectError, StateError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.event_loop import LoopThread, loop_thread
from tests.client.producing import Decides
from tests.client.test_producer_accumulator import stored
from tests.kit.scripted import FakeCluster, says
from tests.kit.waiting import until

LONG = bool(os.environ.get("LONG"))
pytestmark = [pytest.mark.live, pytest.mark.long] if LONG else pytest.mark.live

BROKERS = 1
PARTS = "spark_rocket/client/send/", "spark_rocket/remoting/client/", "spark_rocket/remoting/event_loop.py"
STEP = 1 if LONG else 23
IDLE_S = 0.3  # a thread that spins makes 100,000 calls in that time
MESSAGE = Message.of("t", "x")

CALLS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "send": ({}, lambda producer: producer.send(MESSAGE)),
    "send with hooks": ({"enable_msg_trace": True}, lambda producer: producer.send(MESSAGE)),
    "batch": ({}, lambda producer: producer.send([MESSAGE, MESSAGE])),
    "send_async": ({}, lambda producer: [producer.send_async(MESSAGE)]),
    "send_async with hooks": ({"enable_msg_trace": True}, lambda producer: [producer.send_async(MESSAGE)]),
    "send_oneway": ({}, lambda producer: producer.send_oneway(MESSAGE)),
    "accumulated": ({"auto_batch": True}, lambda producer: [producer.send_async(MESSAGE) for _ in range(3)]),
    "accumulated, full": (
        {"auto_batch": True, "batch_max_bytes": 200},
        lambda producer: [producer.send_async(MESSAGE, queue=producer.queues("t")[0]) for _ in range(3)],
    ),
    "in transaction": ({"transaction": True}, lambda producer: producer.send_in_transaction(MESSAGE)),
}


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    return serve(mq)


def serve(mq: FakeCluster) -> FakeCluster:
    """Let the brokers respond to producers."""
    mq.everywhere(RequestCode.SEND_BATCH_MESSAGE, stored)
    mq.everywhere(RequestCode.END_TRANSACTION, says(0))
    return mq


def follows_directly(frame: FrameType) -> bool:
    """Whether no interrupt comes before the line: it ends a ``with``, or returns what the line before has taken."""
    code, number = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, number).strip()
    if text in ("if messages:", "return messages[0]"):
        return True
    if not text.startswith("with "):
        return False
    return frame.f_lasti != min(start for start, _, line in code.co_lines() if line == number)


def at_line(
    number: int, act: Callable[[], object], call: Callable[[], Any], parts: tuple[str, ...] = PARTS
) -> tuple[bool, Any]:
    """Call ``act`` before the line with a number; return whether there is such a line, and the result of the call."""
    left = number
    reached = False

    def line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left, reached
        if not any(part in frame.f_code.co_filename for part in parts):
            return None if event == "call" else line
        if event == "line" and not follows_directly(frame):
            left -= 1
            if left == 0:
                reached = True
                act()
        return line

    result = None
    before = sys.gettrace()
    sys.settrace(line)
    try:
        with suppress(KeyboardInterrupt):
            result = call()
    finally:
        sys.settrace(before)
    return reached, result


def lines(first: int) -> Iterator[int]:
    yield from range(first, 100_000, STEP)


def check(producer: Producer, futures: Any) -> None:
    """The next send works; then every future is done and nothing is in flight."""
    assert producer.send([MESSAGE], timeout=20).queue_offset == 100
    for future in futures if isinstance(futures, list) else []:
        assert future.result(20).queue_offset >= 7
    until(lambda: producer.in_flight.count == 0)
    assert not producer.in_flight.sends


def make(mq: FakeCluster, settings: dict[str, Any]) -> Any:
    common: dict[str, Any] = {"name_server": mq.name_server.address, "send_timeout": 20.0}
    if settings.get("transaction"):
        producer: Any = TransactionProducer("g", Decides(), **common)
    else:
        producer = Producer("g", member=False, **common, **settings)
    producer.send([MESSAGE])
    return producer


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_each_line(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    settings, call = CALLS[name]
    producer = closing(make(mq, settings))
    for at in lines(1):
        reached, futures = at_line(at, interrupt, lambda: call(producer))
        check(producer, futures)
        if not reached:
            break


@pytest.mark.parametrize("name", CALLS)
def test_no_thread_spins_after_interrupts(
    mq: FakeCluster, closing: Callable[[Any], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: calls on the threads that were started since, and what they and others post to the event loop."""
    steps = itertools.count()
    loop: LoopThread = loop_thread()
    post = loop.post

    def counted(call: Callable[[], object]) -> None:
        next(steps)
        post(call)

    monkeypatch.setattr(loop, "post", counted)
    threading.setprofile(lambda *_: next(steps))
    try:
        settings, call = CALLS[name]
        producer = closing(make(mq, settings))
        for at in range(1, 100_000, 3 * STEP):
            if not at_line(at, interrupt, lambda: call(producer))[0]:
                break
        check(producer, None)
    finally:
        threading.setprofile(None)
    later = threading.Event()
    loop_thread().call_at(time.monotonic() + IDLE_S, later.set)
    before = next(steps)
    assert later.wait(20)
    assert next(steps) - before < 10_000


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_sends_at_each_line(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    settings, call = CALLS[name]
    producer = closing(make(mq, settings))
    for at in lines(2):
        sent = []
        reached, futures = at_line(
            at,
            lambda: sent.append(producer.send([MESSAGE], timeout=20)),  # noqa: B023
            lambda: call(producer),
        )
        assert len(sent) == reached
        check(producer, futures)
        if not reached:
            break


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_closes_at_each_line(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    settings, call = CALLS[name]
    for at in lines(3):
        producer = closing(make(mq, settings))
        futures: list[Any] = []

        def run() -> None:
            with suppress(StateError, RemotingConnectError):
                result = call(producer)  # noqa: B023
                futures.extend(result if isinstance(result, list) else ())  # noqa: B023

        reached, _ = at_line(at, producer.close, run)
        for future in futures:
            assert isinstance(future.exception(20), StateError | None)
        until(lambda: producer.in_flight.count == 0)  # noqa: B023
        if not reached:
            break
