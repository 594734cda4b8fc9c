"""An interrupt at each line of an administrator's calls, and of ``close``.

The calls are made from the signatures, so a new method is covered without a line here. Servers refuse most requests:
the lines are those that exchange requests. After each interrupt, the same client works, and no request is in flight.
Every line in ``make long``, otherwise some of them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import pytest

from spark_rocket.client import Admin, Reader
from spark_rocket.client.admin import GroupState
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.common.arguments import hints_of
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from tests.client import test_interrupts_consuming as consuming
from tests.client.test_interrupts_everywhere import LONG, at_line, interrupt
from tests.kit.scripted import FakeCluster
from tests.kit.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.long] if LONG else pytest.mark.live

BROKERS = 1
STEP = 1 if LONG else 43
QUEUE = MessageQueue("t", "b0", 0)
NOT_CALLED = {
    "close": "has a test of its own",
    "after_fork": "internal",
    "add_metrics": "internal",
    "masters_away": "deprecated",
}


def called() -> Iterator[str]:
    for name in dir(Admin):
        if name[0] != "_" and name not in NOT_CALLED and isinstance(inspect.getattr_static(Admin, name), FunctionType):
            yield name


def value_of(name: str, hint: Any, message: MessageExt) -> Any:
    """Return a value for a required argument of a method."""
    named: dict[str, Any] = {
        "broker": "b0", "topic": "t", "topics": ["t"], "groups": ["g"], "resource": "Topic:t",
        "timestamp_ms": 1_769_860_800_000,
        "brokers": [], "addresses": ["b0"], "actions": ["Pub"], "offset_msg_id": message.offset_msg_id,
    }  # fmt: skip
    if name in named:
        return named[name]
    made: dict[Any, Callable[[], Any]] = {
        MessageExt: lambda: message,
        Message: lambda: Message.of("t", "x"),
        MessageQueue: lambda: QUEUE,
        GroupState: lambda: GroupState("g", [], {}, None, None, None, [], 0.0),
        str: lambda: "x",
        int: lambda: 1,
        bool: lambda: True,
    }
    if hint in made:
        return made[hint]()
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is not None and len(parts) == 2:
        return {value_of("", parts[0], message): value_of("", parts[1], message)} if name != "failed" else {}
    return [value_of("", parts[0], message)]


def arguments_of(name: str, message: MessageExt) -> dict[str, Any]:
    method = inspect.getattr_static(Admin, name)
    hints = hints_of(method)
    required = list(inspect.signature(method).parameters.values())[1:]
    return {
        one.name: value_of(one.name, hints[one.name], message)
        for one in required
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


def call_of(admin: Admin, name: str, message: MessageExt) -> Callable[[], None]:
    """Return a complete call of a method, which may be refused."""
    arguments = arguments_of(name, message)

    def call() -> None:
        with suppress(RocketError):
            found = getattr(admin, name)(**arguments)
            if inspect.isgenerator(found):
                list(found)

    return call


def message_of(mq: FakeCluster) -> MessageExt:
    with Reader(mq.name_server.address) as reader:
        return reader.messages(QUEUE, 3)[0]


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    return consuming.serve(mq)


def lines() -> Iterator[int]:
    """The numbers of lines: fewer of the later ones, because long calls repeat themselves."""
    at = 1
    while at < 100_000:
        yield at
        at += max(STEP, at // (200 if LONG else 5))


def in_flight(admin: Admin) -> bool:
    """Whether a request waits for a response."""
    return any(len(one.session) for one in admin.instance().remoting.requests.connections)


def new(mq: FakeCluster) -> Admin:
    return Admin(mq.name_server.address, request_timeout=2.0)


def test_the_calls_are_found() -> None:
    assert len(list(called())) > 90


@pytest.mark.parametrize("name", list(called()))
def test_a_call_that_is_interrupted_leaves_nothing(
    mq: FakeCluster, closing: Callable[[Admin], Admin], name: str
) -> None:
    admin = closing(new(mq))
    admin.cluster_info()
    call = call_of(admin, name, message_of(mq))
    for at in lines():
        reached, _ = at_line(at, interrupt, call, consuming.PARTS)
        assert admin.cluster_info().broker_addr_table
        until(lambda: not in_flight(admin))
        if not reached:
            break
    assert admin.topic_route("t").queue_datas


@pytest.mark.parametrize("act", [interrupt, None], ids=["interrupt", "close"])
def test_a_close_is_completed(
    mq: FakeCluster, closing: Callable[[Admin], Admin], act: Callable[[], object] | None
) -> None:
    for at in consuming.lines(2):
        admin = closing(new(mq))
        admin.send(Message.of("t", "x"))  # it has a reader and a producer of its own
        admin.offsets("t")
        reached, _ = at_line(at, act or admin.close, admin.close, consuming.PARTS)
        admin.close()
        assert admin.state is ServiceState.SHUTDOWN_ALREADY
        with new(mq) as other:
            assert other.cluster_info().broker_addr_table
        if not reached:
            break
