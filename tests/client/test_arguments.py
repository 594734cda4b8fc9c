"""Every public argument is used, or refused by its name before anything is sent.

The table is made from the signatures: a new public argument is covered without a line here, and an argument that is not
checked fails, unless ``ANY`` has it with a reason.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import typing
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any

import pytest

from spark_rocket import client
from spark_rocket.arrow import read_arrow
from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer, Reader, TransactionProducer, aio
from spark_rocket.client.consume.pull import pull, pull_result
from spark_rocket.client.consume.subscriptions import Subscriptions
from spark_rocket.client.send.router import Selector, select_by_sharding_key
from spark_rocket.common.arguments import check, hints_of
from spark_rocket.errors import RocketError, StateError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.record.properties import encode_properties
from tests.client.producing import Decides

CLIENTS = (Admin, LitePullConsumer, Producer, PushConsumer, Reader, TransactionProducer)
QUEUE = MessageQueue("orders", "broker-a", 0)
ANY = {
    "arg": "passed to the listener",
    "selector_arg": "passed to the selector",
    "open_telemetry": "a tracer provider of a library that may be missing",
    "listener": "checked by the consumer, because its type needs pyarrow; of a transaction: an object with two methods",
    "orderly": "as listener",
    "batches": "as listener",
    "settings": "those of a producer",
}


PACKAGE = {
    "PullResult", "PullStatus", "QueueLag", "TransactionSendResult", "ServiceState", "LocalTransactionState",
    "ConsumeConcurrentlyStatus", "ConsumeOrderlyStatus", "ConsumeFromWhere", "MessageModel",
    "ConsumeConcurrentlyContext", "ConsumeOrderlyContext", "AllocateStrategy", "TransactionListener",
}  # fmt: skip
"""Results, enumerations and protocols: nothing that takes arguments of users."""
OF_SELECTORS = {("select_by_random", "arg"), ("select_by_sharding_key", "key")}
"""Anything: ignored, or a key by its text."""
INTERNAL = ("after_fork", "add_metrics", "may_block")
"""Called by the package alone."""


class Wrong:
    """A value of no type that an argument may have."""

    def __repr__(self) -> str:
        return "<wrong>"


def _methods() -> Iterator[tuple[type, str, FunctionType]]:
    for kind in CLIENTS:
        for name in dir(kind):
            member = inspect.getattr_static(kind, name)
            if name not in INTERNAL and isinstance(member, FunctionType) and (name == "__init__" or name[0] != "_"):
                yield kind, name, member


def _arguments() -> Iterator[Any]:
    for kind, method, function in _methods():
        signature = list(inspect.signature(function).parameters.values())[1:]
        names = [one.name for one in signature if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        hints = hints_of(function)
        for name in dict.fromkeys([*names, *hints]):
            if name not in ANY:
                yield pytest.param(kind, function, name, id=f"{kind.__name__}.{method}({name})")


ARGUMENTS = list(_arguments())


@pytest.mark.parametrize("kind", [*CLIENTS, aio.Admin, aio.Reader])
def test_an_unknown_argument_is_refused(kind: Any) -> None:
    """As by any Python function: a misspelt ``access_key`` would leave requests without a signature."""
    first: tuple[Any, ...] = () if kind in (Admin, aio.Admin, Reader, aio.Reader) else ("group",)
    first += (Decides(),) if kind is TransactionProducer else ()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'acces_key'. Did you mean 'access_key'\?"):
        kind(*first, name_server="127.0.0.1:1", acces_key="me")


def test_the_arguments_are_found() -> None:
    assert len(ARGUMENTS) > 400
    assert {kind.__name__ for kind in CLIENTS} == {
        name
        for name in client.__all__
        if inspect.isclass(getattr(client, name)) and hasattr(getattr(client, name), "close")
    }


@pytest.mark.parametrize(("kind", "function", "name"), ARGUMENTS)
def test_an_argument_of_a_wrong_type_is_refused_by_name(kind: type, function: FunctionType, name: str) -> None:
    unborn: object = object.__new__(kind)  # the check comes before everything else
    with pytest.raises(RocketError, match=rf"Invalid argument {name}: "):
        function(unborn, **{name: Wrong()})


@pytest.mark.parametrize(("kind", "function", "name"), [one for one in ARGUMENTS if one.values[2].endswith("_ms")])
def test_seconds_are_not_taken_for_milliseconds(kind: type, function: FunctionType, name: str) -> None:
    if name.endswith(("timestamp_ms", "at_ms", "begin_ms", "end_ms")):
        with pytest.raises(RocketError, match=rf"{name}: 1769860800. Pass .*did you mean 1769860800000"):
            function(object.__new__(kind), **{name: 1_769_860_800})


RANGES = {"poll_timeout", "shutdown_timeout"}
"""Checked with the other ranges of their settings."""


@pytest.mark.parametrize("value", [-1, 0, 0.0])
@pytest.mark.parametrize(
    ("kind", "function", "name"),
    [
        one
        for one in ARGUMENTS
        if "timeout" in one.values[2] and one.values[2] not in RANGES and not one.id.split(".")[1].startswith("poll")
    ],
)
def test_a_timeout_is_above_0(kind: type, function: FunctionType, name: str, value: float) -> None:
    with pytest.raises(RocketError, match=rf"Invalid argument {name}: {value}\."):
        function(object.__new__(kind), **{name: value})


@pytest.mark.parametrize("value", [-1, 0])
def test_async_clients_refuse_a_timeout_of_0(value: float) -> None:
    async def send() -> None:
        await aio.Producer("g", name_server="127.0.0.1:1").send(Message.of("t", b""), timeout=value)

    with pytest.raises(RocketError, match=f"Invalid argument timeout: {value}"):
        asyncio.run(send())


# --- functions, settings, strategies and read_arrow -------------------------------------------------------------------


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in client.__all__:
        member = getattr(client, name)
        if name in PACKAGE or member in CLIENTS:
            continue
        if not inspect.isclass(member) or "__init__" in vars(member):
            yield name, member
    yield "ClientConfig.of", client.ClientConfig.of
    yield "read_arrow", read_arrow


def _arguments_of(function: Callable[..., Any]) -> list[str]:
    signature = inspect.signature(function).parameters.values()
    own = [one.name for one in signature if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return list(dict.fromkeys([*own, *hints_of(function)]))


FUNCTIONS = [
    pytest.param(function, name, id=f"{where}({name})")
    for where, function in _functions()
    for name in _arguments_of(function.__init__ if inspect.isclass(function) else function)
    if name not in ("self", "options") and (where, name) not in OF_SELECTORS
]


def test_the_functions_are_found() -> None:
    assert len(FUNCTIONS) > 40
    found = {one.id.partition("(")[0] for one in FUNCTIONS}  # type: ignore[union-attr]
    assert found >= {
        "split_batch", "create_reply_message", "serve_client_metrics", "ClientConfig", "TlsSettings", "read_arrow",
        "AllocateByConfig", "AllocateByConsistentHash", "AllocateByMachineRoom", "AllocateMachineRoomNearby",
        "select_by_random", "select_by_sharding_key",
    }  # fmt: skip


@pytest.mark.parametrize(("function", "name"), FUNCTIONS)
def test_functions_refuse_an_argument_of_a_wrong_type_by_name(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(RocketError, match=rf"Invalid argument {name}: "):
        function(**{name: Wrong()})


@pytest.mark.parametrize("select", [client.select_by_random, client.select_by_sharding_key])
@pytest.mark.parametrize("queues", [[], [QUEUE, "b"], QUEUE])
def test_selectors_need_queues(select: Callable[..., Any], queues: Any) -> None:
    with pytest.raises(RocketError, match="Invalid argument queues: "):
        select(queues, Message.of("orders", "x"))


@pytest.mark.parametrize("name", ["body_format", "tags", "request_timeout", "lookup_keys", "no_such_option"])
@pytest.mark.parametrize("value", [Wrong(), [Wrong()], b"json", {1, 2}])
def test_options_of_read_arrow_have_a_text(name: str, value: Any) -> None:
    with pytest.raises(RocketError, match=rf"{name}.*(Wrong|bytes|set)"):
        read_arrow("orders", name_server="a:1", **{name: value})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"start": 1_769_860_800}, "did you mean 1769860800000"),
        ({"end": "1769860800"}, "did you mean 1769860800000"),
        ({"start": "latest", "starting_offsets": "earliest"}, "startingOffsets"),
        ({"start": "-1h", "startingTimestamp": "-2h"}, "startingTimestamp"),
        ({"subscribe": "other"}, "subscribe"),
        ({"subscribe_pattern": "o.*"}, "subscribePattern"),
        ({"tags": "a", "sql_filter": "b = 1"}, "sqlFilter"),
        ({"threads": 0}, "threads"),
    ],
)
def test_read_arrow_refuses_contradictions_and_seconds(given: dict[str, Any], named: str) -> None:
    with pytest.raises(RocketError, match=named):
        read_arrow("orders", name_server="a:1", **given)


# --- clients for asyncio ----------------------------------------------------------------------------------------------


def _async_arguments() -> Iterator[Any]:
    for kind in (aio.Admin, aio.Producer, aio.Reader):
        for method, member in vars(kind).items():
            if isinstance(member, FunctionType) and method[0] != "_":
                for name in _arguments_of(member):
                    if name not in ("self", "args", "kwargs", *ANY):
                        yield pytest.param(kind, method, name, id=f"aio.{kind.__name__}.{method}({name})")


ASYNC_ARGUMENTS = list(_async_arguments())


def test_the_arguments_of_async_methods_are_found() -> None:
    assert len(ASYNC_ARGUMENTS) > 60
    assert {one.values[0] for one in ASYNC_ARGUMENTS} == {getattr(aio, name) for name in aio.__all__}


@pytest.mark.parametrize(("kind", "method", "name"), ASYNC_ARGUMENTS)
async def test_async_methods_refuse_an_argument_by_name(kind: type[Any], method: str, name: str) -> None:
    unborn = object.__new__(kind)
    unborn.blocking = object.__new__(getattr(client, kind.__name__))
    with pytest.raises(RocketError, match=rf"Invalid argument {name}: "):
        await getattr(unborn, method)(**{name: Wrong()})


@pytest.mark.parametrize("kind", [aio.Admin, aio.Producer, aio.Reader])
def test_async_clients_have_the_arguments_of_the_blocking_ones(kind: type[Any]) -> None:
    for name in ("name_server", "tls", "access_key"):
        with pytest.raises(RocketError, match=rf"Invalid argument {name}: "):
            kind(**{name: Wrong()})


async def _coroutine(*_: object) -> None:
    """A listener that the client does not await."""


class _Awaited:
    async def __call__(self, *_: object) -> None:
        """Nor this one."""


@pytest.mark.parametrize(
    "make",
    [lambda: Producer("p"), Reader, Admin, lambda: LitePullConsumer("g"), lambda: aio.Producer("p")],
)
def test_clients_are_not_pickled(make: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match=r"A \w+ cannot be pickled.*foreachPartition"):
        pickle.dumps(make())


@pytest.mark.parametrize("place", ["listener", "orderly", "batches"])
@pytest.mark.parametrize("listener", [42, "f", _coroutine, _Awaited()])
def test_listeners_are_functions(place: str, listener: Any) -> None:
    with pytest.raises(RocketError, match=rf"Invalid argument {place}: .*not a coroutine function"):
        PushConsumer("orders", name_server="a:1", **{place: listener})


def test_usual_selectors_are_checked_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are arguments of each send."""

    class Chooser:
        def choose(self, queues: list[MessageQueue], message: Message, arg: object) -> MessageQueue:
            return queues[0]

    monkeypatch.delattr(inspect, "signature")
    for selector in (select_by_sharding_key, Chooser().choose, lambda queues, message, arg: queues[0]):
        check("selector", selector, Selector)


@pytest.mark.parametrize("place", ["listener", "orderly", "batches"])
@pytest.mark.parametrize("listener", [lambda messages: None, lambda messages, context, more: None, list])
def test_listeners_take_messages_and_context(place: str, listener: Any) -> None:
    with pytest.raises(RocketError, match=rf"Invalid argument {place}: .*a function of 2 arguments"):
        PushConsumer("orders", name_server="a:1", **{place: listener})


def with_database(listener: Callable[..., None]) -> Callable[..., None]:
    @wraps(listener)
    def decorated(messages: list[MessageExt], context: object) -> None:
        listener("database", messages, context)

    return decorated


@pytest.mark.parametrize(
    "listener",
    [
        lambda *given: None,
        lambda messages, context, more=1: None,
        max,
        with_database(lambda database, messages, context: None),
    ],
)
def test_listeners_may_take_more(listener: Any) -> None:
    PushConsumer("orders", listener, name_server="a:1").close()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": 1}, "topic"),
        ({"body": 1}, "body"),
        ({"body": None}, "body"),
        ({"body": "cut \ud83d"}, "body"),
        ({"tags": ["a", "b"]}, "tags"),
        ({"keys": 123}, "keys"),
        ({"keys": ["a", 1]}, "keys"),
        ({"keys": b"a"}, "keys"),
        ({"sharding_key": 7}, "sharding_key"),
        ({"delay_level": "3"}, "delay_level"),
        ({"delay_level": True}, "delay_level"),
        ({"delay_seconds": 1.5}, "delay_seconds"),
        ({"delay_ms": "1s"}, "delay_ms"),
        ({"deliver_at_ms": 1_769_860_800}, "deliver_at_ms"),
        ({"wait_store_ok": "yes"}, "wait_store_ok"),
        ({"flag": "1"}, "flag"),
        ({"properties": {"a": None}}, "properties"),
        ({"properties": {"a": b"v1"}}, "properties"),
        ({"properties": {"a": 1}}, "properties"),
        ({"properties": {1: "a"}}, "properties"),
        ({"properties": ["a"]}, "properties"),
    ],
)
def test_messages_refuse_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(RocketError, match=named):
        Message.of(**({"topic": "orders", "body": b"x"} | given))


@pytest.mark.parametrize("value", [None, b"v1", ["v"], 1, 1.5, True])
def test_property_values_are_text_wherever_they_come_from(value: Any) -> None:
    message = Message("orders", b"x", {"fine": "text"})
    message.set_property("color", value)
    with pytest.raises(RocketError, match="Property 'color' is not text"):
        encode_properties(message.properties)


def test_property_text_is_refused_alone_and_in_batches_alike() -> None:
    for text in ("a\x01b", "a\x02b", "\ud83d"):
        for properties in ({"color": text}, {"CLUSTER": "c", "color": text}, {"color": text, "z": ""}):
            with pytest.raises(RocketError, match=r"(?i)property"):
                encode_properties(properties)


@pytest.mark.parametrize(("tags", "sql"), [("paid", "amount > 5"), ("a || b", "TRUE"), ("paid", "")])
def test_tags_and_sql_are_not_combined(tags: str, sql: str) -> None:
    with pytest.raises(RocketError, match=r"tags=.*sql=.*cannot be given together"):
        Subscriptions().add("orders", tags, sql)
    with pytest.raises(RocketError, match=r"tags=.*sql=.*cannot be given together"):
        pull("group", QUEUE, 0, {"tags": tags, "sql": sql}, lambda response: pull_result(response, True))


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, int, True), (True, int, False), (1.0, int, False), (1, float, True), (float("nan"), float, False),
        ("a", typing.Iterable[str], False), (["a"], typing.Iterable[str], True), ([1], typing.Iterable[str], False),
        (bytearray(b"a"), bytes, True), (None, int | None, True), ("a", int | None, False), (len, Callable, True),
        ({"a": 1}, dict[str, int], True), ({"a": "b"}, dict[str, int], False), (iter([1]), typing.Iterable[str], True),
    ],
)  # fmt: skip
def test_what_fits_an_annotation(value: object, hint: Any, fits: bool) -> None:
    if fits:
        check("one", value, hint)
    else:
        with pytest.raises(RocketError, match=r"Invalid argument one: .* Pass "):
            check("one", value, hint)
