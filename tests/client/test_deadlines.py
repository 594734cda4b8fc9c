"""One deadline for each public call with a timeout: all requests that it makes have to end by then.

Servers respond after a third of the timeout each, by an injected clock, in a way that leads to another request. The
deadlines of all requests are recorded as the client sets them, so no test waits for one.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer, Reader, TransactionProducer
from spark_rocket.client.consume.offset_store import PERSIST_SECONDS
from spark_rocket.client.consume.pull import min_offset
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.event_loop import loop_thread
from spark_rocket.remoting.session import Pending
from tests.client.producing import Decides
from tests.client.test_producer_accumulator import stored
from tests.kit.scripted import POSITION, FakeCluster, Handler, says, says_offset

pytestmark = pytest.mark.live

T = 6.0  # no response may take the 3 s after which a client gives up a name server, whatever the call's timeout is
MESSAGE = Message.of("t", "x")
QUEUE = MessageQueue("t", "b0", 0)
HANDLE = RecallMessageHandle("t", "b0", "1", "0A").encode()
BODY = b"\0" * 40

Call = tuple[Callable[[str], Any], Callable[[Any], Any], float]


def producer(**settings: Any) -> Callable[[str], Any]:
    return lambda address: Producer("g", name_server=address, **settings)


def transactions(address: str) -> Any:
    return TransactionProducer("g", Decides(), name_server=address)


def reader(address: str) -> Any:
    return Reader(address, request_timeout=T)


def consumer(address: str) -> Any:
    one = LitePullConsumer("g", name_server=address, auto_commit=False)
    one.assign([QUEUE])
    one.start()
    return one


# A client, a call that takes a timeout or has a fixed one, and that timeout.
CALLS: dict[str, Call] = {
    "send": (producer(), lambda c: c.send(MESSAGE, timeout=T), T),
    "send, batch": (producer(), lambda c: c.send([MESSAGE, MESSAGE], timeout=T), T),
    "send, queue": (producer(), lambda c: c.send(MESSAGE, timeout=T, queue=QUEUE), T),
    "send, ordered": (producer(), lambda c: c.send(Message.of("t", "x", sharding_key="k"), timeout=T), T),
    "send, auto_batch": (producer(auto_batch=True), lambda c: c.send(MESSAGE, timeout=T), T),
    "send_async": (producer(), lambda c: c.send_async(MESSAGE, timeout=T).exception(20), T),
    "send_oneway": (producer(), lambda c: c.send_oneway(MESSAGE, timeout=T), T),
    "send_batch_body": (producer(), lambda c: c.send_batch_body(QUEUE, BODY, 1, timeout=T), T),
    "send_batch_body_async": (
        producer(), lambda c: c.send_batch_body_async(QUEUE, BODY, 1, timeout=T).exception(20), T
    ),
    "recall_message": (producer(), lambda c: c.recall_message("t", HANDLE, timeout=T), T),
    "request": (producer(), lambda c: c.request_async(MESSAGE, timeout=T).fail(RuntimeError("enough")), T),
    "send_in_transaction": (transactions, lambda c: c.send_in_transaction(MESSAGE, timeout=T), T),
    "commit": (consumer, lambda c: c.commit_offsets({QUEUE: 1}), PERSIST_SECONDS),
    "commit_offset": (reader, lambda c: c.commit_offset("g", QUEUE, 1), T),
    "commit_offset, one-way": (reader, lambda c: c.commit_offset("g", QUEUE, 1, oneway=True), T),
    "commit_offset_async": (reader, lambda c: c.commit_offset_async("g", QUEUE, 1, T).exception(20), T),
    "commit_to_slave": (reader, lambda c: c.commit_to_slave("g", QUEUE, 1, T), T),
    "ask": (reader, lambda c: c.ask(min_offset(QUEUE), timeout=T).exception(20), T),
    "min_offset": (reader, lambda c: c.min_offset(QUEUE), T),
}  # fmt: skip

#: They wait for messages that are pulled in the background, or are another call of the table.
WITHOUT_REQUESTS = {"poll", "poll_batches", "request_async"}
BACKGROUND = {
    Code.HEART_BEAT, Code.GET_ROUTEINFO_BY_TOPIC, Code.PULL_MESSAGE, Code.UNREGISTER_CLIENT,
    Code.POP_MESSAGE,  # of no call here: a consumer of another test is still closing
}  # fmt: skip


class Clock:
    """The time of the process, put forward by each response."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + self.ahead)

    def then(self, seconds: float, respond: Handler) -> Handler:
        def late(request: RemotingCommand) -> RemotingCommand | None:
            self.ahead += seconds
            loop_thread().run(asyncio.sleep, 0.0)  # what is late now fails in every run, not by chance
            return respond(request)

        return late


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The code and the deadline of each request."""
    seen: list[tuple[int, float]] = []
    begin, oneway = Pending.begin, RemotingClient.invoke_oneway

    def recording(self: Pending, timeout: float, now: float) -> None:
        begin(self, timeout, now)
        seen.append((self.code, self.deadline))

    def recording_oneway(self: RemotingClient, addr: str, request: RemotingCommand, timeout: float = 3.0) -> None:
        seen.append((request.code, time.monotonic() + timeout))
        oneway(self, addr, request, timeout)

    monkeypatch.setattr(Pending, "begin", recording)
    monkeypatch.setattr(RemotingClient, "invoke_oneway", recording_oneway)
    return seen


def test_the_table_has_every_call_with_a_timeout() -> None:
    clients = (Producer, TransactionProducer, LitePullConsumer, PushConsumer, Reader, Admin)
    found = {
        name
        for client in clients
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_") and "timeout" in inspect.signature(method).parameters
    }
    assert found - WITHOUT_REQUESTS <= {name.partition(",")[0] for name in CALLS}


@pytest.mark.parametrize("name", CALLS)
def test_every_request_ends_by_the_deadline(
    mq: FakeCluster,
    closing: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    deadlines: list[tuple[int, float]],
    name: str,
) -> None:
    make, call, seconds = CALLS[name]
    for code in (Code.QUERY_CONSUMER_OFFSET, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET):
        mq.everywhere(code, says_offset(0))
    mq.everywhere(Code.PULL_MESSAGE, says(ResponseCode.PULL_NOT_FOUND, ext=POSITION))
    client = closing(make(mq.name_server.address))
    clock = Clock(monkeypatch)
    step = seconds / 3
    busy = clock.then(step, says(ResponseCode.SYSTEM_BUSY, "busy"))
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.RECALL_MESSAGE, Code.GET_MIN_OFFSET):
        mq.everywhere(code, busy)
    if name == "send_in_transaction":
        mq.everywhere(Code.SEND_MESSAGE_V2, clock.then(step, stored))
    mq.everywhere(Code.UPDATE_CONSUMER_OFFSET, clock.then(step, says(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no")))
    route = mq.name_server.responses[Code.GET_ROUTEINFO_BY_TOPIC]
    mq.name_server.responses[Code.GET_ROUTEINFO_BY_TOPIC] = clock.then(step, route)
    deadlines.clear()
    latest = time.monotonic() + seconds
    if name == "send_in_transaction":  # the result of the transaction is another exchange, after a call of the user
        latest += 2 * step + seconds
    with suppress(RocketError):
        call(client)
    own = [(code, round(deadline - latest, 1)) for code, deadline in deadlines if code not in BACKGROUND]
    assert own or name == "commit_to_slave"
    assert [late for late in own if late[1] > step / 2] == []
