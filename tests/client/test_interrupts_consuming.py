"""An interrupt, or a signal handler that closes, at each line of a consumer's or reader's call.

After each: the same call works, messages arrive, offsets are committed, and ``close`` ends. After a handler that closed
the client: the call ends. Every line in ``make long``, otherwise some of them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from spark_rocket.client import Admin, ConsumeOrderlyStatus, LitePullConsumer, PushConsumer, Reader
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.pushing import SUCCESS
from tests.client.test_interrupts_everywhere import LONG, at_line, interrupt
from tests.kit.scripted import FakeCluster, record, says, says_offset
from tests.kit.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.long] if LONG else pytest.mark.live

BROKERS = 1
STEP = 1 if LONG else 23
PARTS = ("spark_rocket/client/", "spark_rocket/remoting/client/", "spark_rocket/remoting/event_loop.py")
QUEUE = MessageQueue("t", "b0", 0)
END = 1_000_000


def pulled(request: RemotingCommand) -> RemotingCommand:
    """A message at each offset."""
    offset = int(request.ext_fields["queueOffset"])
    ext = {"nextBeginOffset": str(offset + 1), "minOffset": "0", "maxOffset": str(END), "suggestWhichBrokerId": "0"}
    return RemotingCommand.response(request, 0, None, ext, record(offset))


def locked(request: RemotingCommand) -> RemotingCommand:
    """All queues."""
    queues = LockBatchRequestBody.from_json(bytes(request.body)).mq_set
    return RemotingCommand.response(request, 0, None, None, LockBatchResponseBody(queues).to_json())


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    return serve(mq)


def serve(mq: FakeCluster) -> FakeCluster:
    """Let the brokers respond to consumers and readers."""
    members: list[str] = []

    def join(request: RemotingCommand) -> RemotingCommand:
        members[:] = [json.loads(bytes(request.body))["clientID"]]
        return RemotingCommand.response(request, 0)

    mq.everywhere(Code.HEART_BEAT, join)
    mq.everywhere(
        Code.GET_CONSUMER_LIST_BY_GROUP,
        lambda request: RemotingCommand.response(
            request, 0, None, None, GetConsumerListByGroupResponseBody(list(members)).to_json()
        ),
    )
    mq.everywhere(Code.PULL_MESSAGE, pulled)
    mq.everywhere(Code.UPDATE_CONSUMER_OFFSET, says(0))
    mq.everywhere(Code.LOCK_BATCH_MQ, locked)
    mq.everywhere(Code.UNLOCK_BATCH_MQ, says(0))
    for code in (Code.QUERY_CONSUMER_OFFSET, Code.GET_MIN_OFFSET):
        mq.everywhere(code, says_offset(0))
    mq.everywhere(Code.GET_MAX_OFFSET, says_offset(END))
    return mq


def assigned(address: str) -> LitePullConsumer:
    consumer = LitePullConsumer("g", name_server=address, auto_commit=False)
    consumer.assign([QUEUE])
    consumer.start()
    assert consumer.poll(20)
    return consumer


def subscribed(address: str) -> LitePullConsumer:
    consumer = LitePullConsumer("g", name_server=address, auto_commit=False)
    consumer.subscribe("t")
    consumer.start()
    assert consumer.poll(20)
    return consumer


def reader(address: str) -> Reader:
    made = Reader(address, request_timeout=20.0)
    made.min_offset(QUEUE)
    return made


def pushing(address: str) -> PushConsumer:
    consumer = PushConsumer("g", listener=lambda *_: SUCCESS, name_server=address)
    consumer.subscribe("t")
    consumer.start()
    return consumer


def poll_and_commit(consumer: LitePullConsumer) -> None:
    consumer.poll(20)
    consumer.commit()


CALLS: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "poll": (assigned, lambda c: c.poll(20)),
    "poll of a group": (subscribed, lambda c: c.poll(20)),
    "commit": (assigned, lambda c: c.commit()),
    "commit of a group": (subscribed, poll_and_commit),
    "committed": (assigned, lambda c: c.committed(QUEUE)),
    "seek": (assigned, lambda c: c.seek(QUEUE, 5)),
    "pause, resume": (assigned, lambda c: (c.pause([QUEUE]), c.resume([QUEUE]))),
    "subscribe": (subscribed, lambda c: c.subscribe("t", "*")),
    "messages": (reader, lambda c: c.messages(QUEUE, 3)),
    "pull_async": (reader, lambda c: c.pull_async(QUEUE, 3).result(20)),
    "min_offset": (reader, lambda c: c.min_offset(QUEUE)),
    "commit_offset": (reader, lambda c: c.commit_offset("g", QUEUE, 3)),
    "push: suspend, resume": (pushing, lambda c: (c.suspend(), c.resume())),
}


def lines(first: int) -> Iterator[int]:
    yield from range(first, 100_000, STEP)


def works(client: Any, mq: FakeCluster) -> None:
    """Messages arrive and offsets are committed."""
    if isinstance(client, Reader):
        assert client.messages(QUEUE, 3)
        client.commit_offset("g", QUEUE, 4)
    elif isinstance(client, LitePullConsumer):
        client.resume([QUEUE])
        assert client.poll(20)
        client.commit()
    else:
        client.resume()
        before = len(mq.brokers[0].of(Code.PULL_MESSAGE))
        until(lambda: len(mq.brokers[0].of(Code.PULL_MESSAGE)) > before)


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_each_line(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    make, call = CALLS[name]
    client = closing(make(mq.name_server.address))
    for at in lines(1):
        reached, _ = at_line(at, interrupt, lambda: call(client), PARTS)
        works(client, mq)
        if not reached:
            break


@contextmanager
def busy(client: Any) -> Iterator[Callable[[], object]]:
    """The periodic tasks of the client run all the time, on the event loop and on another thread.

    Yields a function that waits until each has run once more, or has had the time to wait for a lock of the caller.
    """
    members, done, rounds = client.instance().members, threading.Event(), threading.Semaphore(0)

    def work() -> None:
        while not done.is_set():
            members.send_heartbeats()
            members.persist_offsets()
            if not isinstance(client, Reader):
                client.persist_offsets()  # of assigned queues
            rounds.release()

    def meet() -> None:
        while rounds.acquire(blocking=False):
            pass
        all(rounds.acquire(timeout=0.1) for _ in range(2))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield meet
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_closes_at_each_line(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    make, call = CALLS[name]
    for at in lines(2):
        client = closing(make(mq.name_server.address))

        def run() -> None:
            with suppress(RocketError):
                call(client)  # noqa: B023

        with busy(client) as meet:
            reached, _ = at_line(at, lambda: (meet(), client.close()), run, PARTS)  # noqa: B023
        if not reached:
            break
        assert client.state is ServiceState.SHUTDOWN_ALREADY


def starting(address: str, **settings: Any) -> LitePullConsumer:
    return LitePullConsumer("g", name_server=address, auto_commit=False, **settings)


def new_assigned(address: str) -> LitePullConsumer:
    consumer = starting(address)
    consumer.assign([QUEUE])
    return consumer


def new_subscribed(address: str) -> LitePullConsumer:
    consumer = starting(address)
    consumer.subscribe("t")
    return consumer


def new_pushing(address: str, **listener: Any) -> PushConsumer:
    consumer = PushConsumer("g", name_server=address, **listener or {"listener": lambda *_: SUCCESS})
    consumer.subscribe("t")
    return consumer


def new_orderly(address: str) -> PushConsumer:
    return new_pushing(address, orderly=lambda *_: ConsumeOrderlyStatus.SUCCESS)


STARTS: dict[str, Callable[[str], Any]] = {
    "assigned": new_assigned,
    "of a group": new_subscribed,
    "push": new_pushing,
    "orderly": new_orderly,
}


def leaves_nothing(client: Any, mq: FakeCluster) -> None:
    """The consumer is closed, its threads end, and another one of the group works."""
    client.close()
    assert client.state in (ServiceState.SHUTDOWN_ALREADY, ServiceState.START_FAILED)
    other = subscribed(mq.name_server.address)
    other.close()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in PERIODIC])


PERIODIC = ("rocket-offsets", "rocket-rebalance", "rocket-consumer", "rocket-start")


@pytest.mark.parametrize("act", [interrupt, None], ids=["interrupt", "close"])
@pytest.mark.parametrize("name", STARTS)
def test_a_start_is_undone(
    mq: FakeCluster, closing: Callable[[Any], Any], name: str, act: Callable[[], object] | None
) -> None:
    for at in lines(3):
        client = closing(STARTS[name](mq.name_server.address))

        def start() -> None:
            with suppress(RocketError):
                client.start()  # noqa: B023

        reached, _ = at_line(at, act or client.close, start, PARTS)
        if not reached:
            break
        leaves_nothing(client, mq)


@pytest.mark.parametrize("act", [interrupt, None], ids=["interrupt", "close"])
@pytest.mark.parametrize("name", STARTS)
def test_a_close_is_completed(
    mq: FakeCluster,
    closing: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
    name: str,
    act: Callable[[], object] | None,
) -> None:
    for at in lines(6):
        client = closing(STARTS[name](mq.name_server.address))
        client.start()
        reached, _ = at_line(at, act or client.close, client.close, PARTS)
        leaves_nothing(client, mq)
        assert "not committed" not in caplog.text, at
        assert "before these queues were released" not in caplog.text, at
        if not reached:
            break


def test_an_interrupted_iteration_loses_no_message(mq: FakeCluster, closing: Callable[[Any], Any]) -> None:
    consumer = closing(assigned(mq.name_server.address))
    mq.everywhere(Code.PULL_MESSAGE, pulled_by_three)
    last = next(iter(consumer)).queue_offset
    for at in (*lines(5), *lines(6)):
        each = iter(consumer)
        reached, message = at_line(at, interrupt, lambda: next(each), PARTS)  # noqa: B023
        found = message if message is not None else next(each)
        assert found.queue_offset == last + 1
        last = found.queue_offset
        if not reached:
            break


@pytest.mark.parametrize("form", ["iteration", "poll"])
def test_an_interrupt_after_a_call_loses_no_message(mq: FakeCluster, closing: Callable[[Any], Any], form: str) -> None:
    """Python handles signals after calls of built-in functions, also at the end of a line."""
    consumer = closing(assigned(mq.name_server.address))
    each = iter(consumer)
    calls: dict[str, Callable[[], Any]] = {"iteration": lambda: next(each), "poll": lambda: consumer.poll(20)[0]}
    call = calls[form]
    last = call().queue_offset
    for at in range(1, 1_000):
        reached, message = after_call(at, call)
        found = message or call()
        assert found.queue_offset == last + 1
        last = found.queue_offset
        if not reached:
            break
    assert not reached


def after_call(number: int, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Interrupt after the call of a built-in function with a number; return whether there is one, and the result."""
    left, reached = number, False

    def returned(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left, reached
        if event == "c_return" and any(part in frame.f_code.co_filename for part in PARTS):
            left -= 1
            if left == 0:
                reached = True
                sys.setprofile(None)
                raise KeyboardInterrupt

    result = None
    with suppress(KeyboardInterrupt):
        sys.setprofile(returned)
        try:
            result = call()
        finally:
            sys.setprofile(None)
    return reached, result


def pulled_by_three(request: RemotingCommand) -> RemotingCommand:
    """Three messages from each offset on."""
    offset = int(request.ext_fields["queueOffset"])
    ext = {"nextBeginOffset": str(offset + 3), "minOffset": "0", "maxOffset": str(END), "suggestWhichBrokerId": "0"}
    return RemotingCommand.response(request, 0, None, ext, b"".join(record(offset + n) for n in range(3)))


def test_an_interrupted_poll_loses_no_message(mq: FakeCluster, closing: Callable[[Any], Any]) -> None:
    consumer = closing(assigned(mq.name_server.address))
    mq.everywhere(Code.PULL_MESSAGE, pulled_by_three)
    last = consumer.poll(20)[-1].queue_offset
    for at in lines(5):
        reached, messages = at_line(at, interrupt, lambda: consumer.poll(20), PARTS)
        found = messages or consumer.poll(20)
        assert found[0].queue_offset == last + 1
        last = found[-1].queue_offset
        if not reached:
            break


FIRST_CALLS: dict[str, tuple[Callable[[str], Any], Callable[[Any], object]]] = {
    "reader": (lambda address: Reader(address, request_timeout=2.0), lambda c: c.min_offset(QUEUE)),
    "admin": (lambda address: Admin(address, request_timeout=2.0), lambda c: c.cluster_info()),
    "admin, of a broker": (lambda address: Admin(address, request_timeout=2.0), lambda c: c.offsets("t")),
}


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_an_interrupted_first_call_can_be_repeated(mq: FakeCluster, closing: Callable[[Any], Any], name: str) -> None:
    """It opens the connections."""
    make, call = FIRST_CALLS[name]
    for at in lines(7):
        client = closing(make(mq.name_server.address))
        reached, _ = at_line(at, interrupt, lambda: call(client), PARTS)  # noqa: B023
        call(client)
        client.close()
        if not reached:
            break
