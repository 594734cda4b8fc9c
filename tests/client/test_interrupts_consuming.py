"""An interrupt, or a signal handler that closes, at each line of a consumer's or reader's call.

After each: the same call works, messages arrive, offsets are committed, and ``close`` ends. After a handler that closed
the client: the call ends. Every line in ``make long``, otherwise some of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from spark_rocket.client import LitePullConsumer, PushConsumer, Reader
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.fakes import FakeCluster, record, says, says_offset
from tests.client.pushing import SUCCESS
from tests.client.test_interrupts_everywhere import LONG, at_line, interrupt
from tests.kit.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.long] if LONG else pytest.mark.live

BROKERS = 1
STEP = 1 if LONG else 11
PARTS = ("spark_rocket/client/", "spark_rocket/remoting/client/", "spark_rocket/remoting/event_loop.py")
QUEUE = MessageQueue("t", "b0", 0)
END = 1_000_000


def pulled(request: RemotingCommand) -> RemotingCommand:
    """A message at each offset."""
    offset = int(request.ext_fields["queueOffset"])
    ext = {"nextBeginOffset": str(offset + 1), "minOffset": "0", "maxOffset": str(END), "suggestWhichBrokerId": "0"}
    return RemotingCommand.response(request, 0, None, ext, record(offset))


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
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
