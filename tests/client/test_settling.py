"""Sends settle in one way: plain, with hooks, with message trace, with OpenTelemetry, and in automatic batches.

The same cases run for each kind of producer, and for synchronous, asynchronous and one-way sends.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from spark_rocket.client import Producer
from spark_rocket.client.core.hooks import SendContext, SendHook
from spark_rocket.errors import BrokerError, RemotingError, RemotingTimeoutError, SendForbiddenError, StateError
from spark_rocket.model import TRACE_TOPIC, Message, SendResult, SendStatus
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.promise import run_on
from tests.client.producing import HOWS, Produce, done
from tests.client.test_producer_accumulator import stored
from tests.kit.interrupts import interrupted_at
from tests.kit.scripted import FakeCluster, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live

BROKERS = 1
SENDS = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
MESSAGE = Message.of("t", "x")
COUNT = 20

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "hook": lambda: {"send_hooks": [SendHook()]},
    "trace": lambda: {"enable_msg_trace": True},
    "OpenTelemetry": lambda: {"open_telemetry": TracerProvider()},
    "auto_batch": lambda: {"auto_batch": True},
    "auto_batch, hook": lambda: {"auto_batch": True, "send_hooks": [SendHook()]},
    "auto_batch, trace, OpenTelemetry": lambda: {
        "auto_batch": True, "enable_msg_trace": True, "open_telemetry": TracerProvider()
    },
}  # fmt: skip

Make = Callable[..., Producer]


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    mq.add(TRACE_TOPIC)
    respond(mq, stored)
    return mq


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, produce: Produce) -> Make:
    return lambda **options: produce(**{"send_timeout": 20.0, **KINDS[request.param](), **options})


def respond(mq: FakeCluster, handler: Callable[[RemotingCommand], RemotingCommand | None]) -> None:
    """Handle the sends to topic ``t`` with ``handler``; sends of message trace are stored."""
    for code in SENDS:
        mq.everywhere(code, lambda request: (handler if request.ext_fields["b"] == "t" else stored)(request))


def settled(producer: Producer, futures: list[Future[SendResult]]) -> None:
    assert all(future.done() for future in futures)
    until(lambda: producer.in_flight.count == 0)
    assert not producer.in_flight.sends


def test_close_in_a_callback_fails_no_stored_send(make: Make) -> None:
    producer, closed = make(), threading.Event()
    futures = [producer.send_async(MESSAGE) for _ in range(COUNT)]
    futures[0].add_done_callback(lambda _: (producer.close(), closed.set()))
    assert [future.result(20).status for future in futures] == [SendStatus.SEND_OK] * COUNT
    assert closed.wait(20)
    settled(producer, futures)


def test_a_callback_may_wait_for_other_sends(mq: FakeCluster, make: Make) -> None:
    producer, seen, ended = make(), [], threading.Event()
    futures = [producer.send_async(MESSAGE) for _ in range(COUNT)]

    def callback(_: Future[SendResult]) -> None:
        try:
            seen.append(producer.send(MESSAGE).status)
            seen.append(producer.send_async(MESSAGE).result(20).status)
            seen.extend(future.result(20).status for future in futures)
        finally:
            ended.set()

    futures[0].add_done_callback(callback)
    assert ended.wait(60)
    assert seen == [SendStatus.SEND_OK] * (COUNT + 2)
    settled(producer, futures)


def test_callbacks_run_once_each(make: Make) -> None:
    producer, calls = make(), []
    futures = [producer.send_async(MESSAGE) for _ in range(COUNT)]
    for at, future in enumerate(futures):
        future.add_done_callback(lambda _, at=at: calls.append(at))  # type: ignore[misc]
    for future in futures:
        future.result(20)
    until(lambda: len(calls) >= COUNT)
    assert sorted(calls) == list(range(COUNT))


@pytest.mark.parametrize("how", HOWS)
def test_a_refused_send_fails(mq: FakeCluster, make: Make, how: str) -> None:
    respond(mq, says(ResponseCode.MESSAGE_ILLEGAL, "not this one"))
    producer = make()
    with pytest.raises(BrokerError, match="not this one"):
        done(producer, how)
    settled(producer, [])
    respond(mq, stored)
    assert done(producer, how).status is SendStatus.SEND_OK


def test_a_one_way_send_reports_nothing(mq: FakeCluster, make: Make) -> None:
    respond(mq, says(ResponseCode.MESSAGE_ILLEGAL, "not this one"))
    producer = make()
    producer.send_oneway(MESSAGE)
    until(lambda: any(request.ext_fields["b"] == "t" for request in mq.sends()))
    settled(producer, [])


@pytest.mark.parametrize("how", HOWS)
def test_a_send_without_a_response_times_out(mq: FakeCluster, make: Make, how: str) -> None:
    producer = make(retry_times_when_send_failed=0, retry_times_when_send_async_failed=0)
    done(producer, how)  # the route is cached
    respond(mq, lambda request: None)
    with pytest.raises(RemotingTimeoutError):
        done(producer, how, timeout=0.2)
    settled(producer, [])


@pytest.mark.parametrize("how", HOWS)
def test_a_retried_send_is_settled_once(mq: FakeCluster, make: Make, how: str) -> None:
    answers = iter([says(ResponseCode.SYSTEM_BUSY, "busy"), stored])
    respond(mq, lambda request: next(answers)(request))
    producer = make()
    assert done(producer, how).status is SendStatus.SEND_OK
    assert next(answers, None) is None
    settled(producer, [])


def test_close_ends_sends_in_flight(mq: FakeCluster, make: Make) -> None:
    respond(mq, lambda request: None)
    producer = make(send_timeout=0.2)
    futures = [producer.send_async(MESSAGE, timeout=60) for _ in range(COUNT)]
    producer.close()
    for future in futures:
        assert isinstance(future.exception(0), StateError | RemotingError)
    settled(producer, futures)
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(StateError, match="is closed"):
            send(MESSAGE)


def test_close_ends_a_synchronous_send(mq: FakeCluster, make: Make) -> None:
    respond(mq, lambda request: None)
    producer, errors = make(send_timeout=0.2), []

    def send() -> None:
        try:
            producer.send(MESSAGE, timeout=60)
        except (StateError, RemotingError) as error:
            errors.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    until(lambda: any(request.ext_fields["b"] == "t" for request in mq.sends()))
    producer.close()
    sending.join(20)
    assert len(errors) == 1
    settled(producer, [])


# --- hooks --------------------------------------------------------------------------------------------------------


class Order(SendHook):
    """Records the calls of hooks and callbacks."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_end = threading.Event()

    def before(self, context: SendContext) -> None:
        self.calls.append("before")

    def after(self, context: SendContext) -> None:
        assert self.may_end.wait(20)
        self.calls.append("after" if context.error is None else type(context.error).__name__)


@pytest.mark.parametrize("auto_batch", [False, True])
def test_hooks_end_before_the_future_is_done(produce: Produce, auto_batch: bool) -> None:
    """A hook that blocks delays the futures of its producer, not the connection, which others use too."""
    hook = Order()
    producer, other = produce(send_hooks=[hook], auto_batch=auto_batch, send_timeout=20.0), produce("other")
    future = producer.send_async(MESSAGE)
    future.add_done_callback(lambda _: hook.calls.append("callback"))
    assert other.send(MESSAGE, timeout=20).status is SendStatus.SEND_OK
    assert not future.done()
    hook.may_end.set()
    assert future.result(20).status is SendStatus.SEND_OK
    until(lambda: len(hook.calls) == 3)
    assert hook.calls == ["before", "after", "callback"]


class Threads(SendHook):
    """Records the threads of its calls."""

    def __init__(self) -> None:
        self.seen: list[threading.Thread] = []

    def before(self, context: SendContext) -> None:
        self.seen.append(threading.current_thread())

    after = before


def test_hooks_of_a_synchronous_send_run_on_its_thread(mq: FakeCluster, produce: Produce) -> None:
    answers = iter([says(ResponseCode.SYSTEM_BUSY, "busy"), stored])
    respond(mq, lambda request: next(answers)(request))
    hook = Threads()
    producer = produce(send_hooks=[hook], send_timeout=20.0)
    assert producer.send(MESSAGE).status is SendStatus.SEND_OK
    assert hook.seen == [threading.current_thread()] * 4
    settled(producer, [])


def test_hooks_of_a_send_that_is_interrupted(mq: FakeCluster, produce: Produce) -> None:
    asked, hook = threading.Event(), Order()
    respond(mq, lambda request: asked.set())
    hook.may_end.set()
    producer = produce(send_hooks=[hook], send_timeout=20.0)
    with interrupted_at(asked):
        producer.send(MESSAGE)
    until(lambda: len(hook.calls) > 1)
    assert hook.calls == ["before", "RemotingError"]
    settled(producer, [])


class ClosesBefore(Order):
    """Closes the producer before an attempt. A close that waited for its own send would do so for ``send_timeout``."""

    def __init__(self, attempt: int) -> None:
        super().__init__()
        self.may_end.set()
        self.attempt = attempt
        self.producer: Producer | None = None

    def before(self, context: SendContext) -> None:
        super().before(context)
        if self.calls.count("before") == self.attempt:
            assert self.producer is not None
            self.producer.close()


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("how", HOWS)
def test_hooks_of_a_send_that_close_ends_before_its_request(
    mq: FakeCluster, produce: Produce, how: str, attempt: int, auto_batch: bool
) -> None:
    respond(mq, says(ResponseCode.SYSTEM_BUSY, "busy"))
    hook = ClosesBefore(attempt)
    producer = hook.producer = produce(send_hooks=[hook], auto_batch=auto_batch, send_timeout=600.0)
    with pytest.raises(StateError, match="closed"):
        done(producer, how, timeout=20.0)
    until(lambda: len(hook.calls) == 2 * attempt)
    assert hook.calls == ["before", "BrokerError"] * (attempt - 1) + ["before", "StateError"]
    settled(producer, [])
    assert len(mq.sends()) == attempt - 1


def test_no_hooks_of_batches_that_close_ends_before_they_are_prepared(mq: FakeCluster, produce: Produce) -> None:
    mq.add("u")
    hook, both_sent = ClosesBefore(1), threading.Event()

    def wait(_: SendContext) -> None:
        assert both_sent.wait(20)

    producer = hook.producer = produce(send_hooks=[hook], forbidding_hooks=[wait], auto_batch=True, send_timeout=600.0)
    thread = producer._running().batch_thread
    futures = [producer.send_async(Message.of(topic, "x"), timeout=20.0) for topic in ("t", "u")]
    both_sent.set()
    for future in futures:
        assert isinstance(future.exception(20), StateError)
    until(lambda: len(hook.calls) == 2)
    run_on(thread, lambda: None)
    assert hook.calls == ["before", "StateError"]
    settled(producer, futures)


class Exits(Order):
    """Calls ``sys.exit`` before an attempt."""

    def __init__(self, attempt: int) -> None:
        super().__init__()
        self.may_end.set()
        self.attempt = attempt

    def before(self, context: SendContext) -> None:
        super().before(context)
        if self.calls.count("before") == self.attempt:
            sys.exit(1)


@pytest.mark.parametrize(("attempt", "auto_batch"), [(1, True), (2, True), (2, False)])
def test_a_hook_that_exits_on_a_thread_of_the_producer_ends_the_send(
    mq: FakeCluster, produce: Produce, attempt: int, auto_batch: bool
) -> None:
    respond(mq, says(ResponseCode.SYSTEM_BUSY, "busy"))
    producer = produce(send_hooks=[Exits(attempt)], auto_batch=auto_batch, send_timeout=600.0)
    with pytest.raises(RemotingError, match="interrupted: SystemExit"):
        done(producer, "send_async")
    settled(producer, [])
    assert len(mq.sends()) == attempt - 1


def stored_without_slave(request: RemotingCommand) -> RemotingCommand:
    response = stored(request)
    response.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    return response


STATUSES = {SendStatus.SEND_OK: stored, SendStatus.FLUSH_SLAVE_TIMEOUT: stored_without_slave}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("how", HOWS)
def test_a_stored_message_is_a_success_although_a_hook_closes(
    mq: FakeCluster, produce: Produce, how: str, status: SendStatus
) -> None:
    respond(mq, STATUSES[status])
    hook = Order()
    hook.after = lambda context: producer.close()  # type: ignore[method-assign]
    producer = produce(send_hooks=[hook], send_timeout=20.0)
    assert done(producer, how).status is status
    settled(producer, [])


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("how", HOWS)
def test_a_stored_message_is_a_success_although_a_hook_takes_long(
    mq: FakeCluster, produce: Produce, how: str, status: SendStatus
) -> None:
    """Also after another attempt, for which an asynchronous send has a timer of its own."""
    seconds, hook = 2.0, Order()
    hook.may_end.set()
    producer = produce(send_hooks=[hook], send_timeout=20.0)
    producer.send(MESSAGE)  # the route and the connection take no time of the next one
    answers = iter([says(ResponseCode.SYSTEM_BUSY, "busy"), STATUSES[status]])
    respond(mq, lambda request: next(answers)(request))
    begun = time.monotonic()

    def after(context: SendContext) -> None:
        if context.result is not None:
            until(lambda: time.monotonic() > begun + seconds + 0.1)

    hook.after = after  # type: ignore[method-assign]
    assert done(producer, how, timeout=seconds).status is status
    settled(producer, [])


def test_a_handler_of_log_records_may_send(mq: FakeCluster, produce: Produce) -> None:
    """While it sends, it holds its lock: the loop, which notices another status, must not log."""
    respond(mq, stored_without_slave)
    producer, seen = produce(send_timeout=20.0), []

    class Sender(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "application":
                seen.append(producer.send(MESSAGE).status)

    handler = Sender()
    logging.getLogger().addHandler(handler)
    try:
        logging.getLogger("application").error("hello")
    finally:
        logging.getLogger().removeHandler(handler)
    assert seen == [SendStatus.FLUSH_SLAVE_TIMEOUT]


def refuse(context: SendContext) -> None:
    raise ValueError("never")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_forbidden_send_is_settled(mq: FakeCluster, produce: Produce, how: str, auto_batch: bool) -> None:
    producer = produce(forbidding_hooks=[refuse], auto_batch=auto_batch, send_timeout=20.0)
    with pytest.raises(SendForbiddenError, match="never"):
        done(producer, how)
    settled(producer, [])
    assert not mq.sends()
