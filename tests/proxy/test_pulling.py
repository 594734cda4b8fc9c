"""PullMessage, UpdateOffset, GetOffset, QueryOffset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.proxy import definitions
from spark_rocket.proxy.definitions import Code, QueryOffsetPolicy
from tests.kit.waiting import until_async
from tests.proxy.consuming import Consuming, a_client_of, consuming
from tests.proxy.test_receiving import refused

pytestmark = pytest.mark.live

QUEUE = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consuming]:
    with consuming(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(world: Consuming) -> Iterator[Consuming]:
    with a_client_of(world) as its:
        yield its


def _pull_request(client: Consuming, offset: int = 0, **fields: Any) -> Any:
    request = definitions.PullMessageRequest(
        group={"name": client.group},
        message_queue={"topic": {"name": client.topic}, "id": QUEUE},
        offset=offset,
        batch_size=32,
    )
    for name, value in fields.items():
        request.ClearField(name)
        request.MergeFrom(definitions.PullMessageRequest(**{name: value}))
    return request


def _answers(client: Consuming, request: Any, context: Any = None) -> list[Any]:
    async def all_of() -> list[Any]:
        return [each async for each in client.pulling.pull_message(context or client.context(), request)]

    return client.do(all_of())


def _pull(client: Consuming, offset: int = 0, **fields: Any) -> tuple[int, list[Any], int]:
    """Status code, messages and next offset."""
    first, *messages, last = _answers(client, _pull_request(client, offset, **fields))
    assert last.WhichOneof("content") == "next_offset"
    return first.status.code, [answer.message for answer in messages], last.next_offset


def _queue(client: Consuming, **fields: Any) -> dict[str, Any]:
    return {"message_queue": {"topic": {"name": client.topic}, "id": QUEUE, **fields}}


def _update(client: Consuming, offset: int, **fields: Any) -> Any:
    request = {"group": {"name": client.group}, **_queue(client), "offset": offset, **fields}
    return client.do(client.pulling.update_offset(client.context(), definitions.UpdateOffsetRequest(**request)))


def _get(client: Consuming, **fields: Any) -> Any:
    request = {"group": {"name": client.group}, **_queue(client), **fields}
    return client.do(client.pulling.get_offset(client.context(), definitions.GetOffsetRequest(**request)))


def _query(client: Consuming, policy: Any, milliseconds: int | None = None, **fields: Any) -> Any:
    request = definitions.QueryOffsetRequest(**{**_queue(client), "query_offset_policy": policy, **fields})
    if milliseconds is not None:
        request.timestamp.FromMilliseconds(milliseconds)
    return client.do(client.pulling.query_offset(client.context(), request))


def test_messages_of_the_queue_from_the_offset_on(client: Consuming) -> None:
    client.send(b"a", b"b", b"c", queue_id=QUEUE, KEYS="k")
    client.send(b"elsewhere", queue_id=1)
    code, messages, following = _pull(client, 1)
    assert (code, [message.body for message in messages], following) == (Code.OK, [b"b", b"c"], 3)
    system = messages[0].system_properties
    assert (system.queue_id, system.queue_offset, list(system.keys)) == (QUEUE, 1, ["k"])
    assert not system.HasField("receipt_handle")
    assert not system.HasField("invisible_duration")
    assert _pull(client, 1) == (code, messages, following)  # a pull can be repeated
    assert _pull(client, 3) == (Code.MESSAGE_NOT_FOUND, [], 3)


def test_more_than_32_at_once(client: Consuming) -> None:
    client.send(*(b"%03d" % number for number in range(100)), queue_id=QUEUE)
    assert len(_pull(client, 0)[1]) == 32
    code, messages, following = _pull(client, 0, batch_size=64)
    assert (code, len(messages), following) == (Code.OK, 64, 64)
    assert len(_pull(client, 64, batch_size=1000)[1]) == 36


def test_filtered_messages_are_skipped(client: Consuming) -> None:
    client.send(b"a", queue_id=QUEUE, TAGS="Aa")  # the same hash as BB
    client.send(b"b", queue_id=QUEUE, TAGS="C")
    tags = {"type": "TAG", "expression": "BB"}
    assert _pull(client, filter_expression=tags) == (Code.MESSAGE_NOT_FOUND, [], 2)
    client.send(b"c", queue_id=QUEUE, TAGS="BB")
    code, messages, following = _pull(client, filter_expression=tags)
    assert (code, [message.body for message in messages], following) == (Code.OK, [b"c"], 3)


def test_sql_filters_need_the_brokers_permission(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    client.send(b"cheap", queue_id=QUEUE, price="5")
    client.send(b"dear", queue_id=QUEUE, price="50")
    sql = {"type": "SQL", "expression": "price > 10"}
    message = refused(Code.INTERNAL_SERVER_ERROR, _answers, client, _pull_request(client, filter_expression=sql))
    assert "SQL92" in message
    monkeypatch.setattr(client.parts.config, "enable_property_filter", True)
    assert [message.body for message in _pull(client, filter_expression=sql)[1]] == [b"dear"]
    sql["expression"] = "price >"
    refused(Code.ILLEGAL_FILTER_EXPRESSION, _answers, client, _pull_request(client, filter_expression=sql))


@pytest.mark.parametrize(("offset", "following"), [(7, 3), (3, 3)])
def test_an_offset_beyond_the_end(client: Consuming, offset: int, following: int) -> None:
    client.send(b"a", b"b", b"c", queue_id=QUEUE)
    code = Code.MESSAGE_NOT_FOUND if offset == 3 else Code.ILLEGAL_OFFSET
    assert _pull(client, offset) == (code, [], following)


def test_an_empty_queue(client: Consuming) -> None:
    assert _pull(client, 0) == (Code.MESSAGE_NOT_FOUND, [], 0)
    assert _pull(client, 5) == (Code.ILLEGAL_OFFSET, [], 0)


def test_a_pull_waits_for_a_message(client: Consuming) -> None:
    async def pull() -> list[Any]:
        request = _pull_request(client, long_polling_timeout={"seconds": 20})
        return [each async for each in client.pulling.pull_message(client.context(), request)]

    waiting = asyncio.run_coroutine_threadsafe(pull(), client.server.loop)
    client.wait_for(lambda: client.parts.held_requests.pulls.count == 1)
    client.send(b"late", queue_id=QUEUE)
    first, message, last = waiting.result(30)
    assert (first.status.code, message.message.body, last.next_offset) == (Code.OK, b"late", 1)


def test_a_call_that_ends_while_it_waits_receives_nothing(client: Consuming) -> None:
    """Remoting cannot withdraw a request: the broker holds it until there is a response, which is discarded."""

    async def start_and_cancel() -> None:
        request = _pull_request(client, long_polling_timeout={"seconds": 20})
        task = asyncio.ensure_future(anext(client.pulling.pull_message(client.context(), request)))
        await until_async(lambda: client.parts.held_requests.pulls.count)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client.do(start_and_cancel())
    client.send(b"a", queue_id=QUEUE)
    client.wait_for(lambda: client.parts.held_requests.pulls.count == 0)
    assert [message.body for message in _pull(client)[1]] == [b"a"]


@pytest.mark.parametrize("seconds", [0.5, 0.0, -1.0])
def test_a_call_without_time_is_answered_at_once(client: Consuming, seconds: float) -> None:
    request = _pull_request(client, long_polling_timeout={"seconds": 20})
    answers = _answers(client, request, client.context(seconds=seconds))
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
    assert client.run(lambda: client.parts.held_requests.pulls.count) == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"batch_size": 0}, Code.BAD_REQUEST),
        ({"group": {"name": "a b"}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": {"topic": {"name": "rmq_sys_x"}}}, Code.ILLEGAL_TOPIC),
        ({"filter_expression": {"type": "TAG", "expression": "||"}}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_a_bad_pull(client: Consuming, fields: dict[str, Any], code: Any) -> None:
    refused(code, _answers, client, _pull_request(client, **fields))


def test_offsets_of_a_group(client: Consuming) -> None:
    client.send(b"a", b"b", b"c", queue_id=QUEUE)
    refused(Code.OFFSET_NOT_FOUND, _get, client)
    refused(Code.CONSUMER_GROUP_NOT_FOUND, _update, client, 2)
    client.parts.loop.call_soon_threadsafe(client.parts.groups.find, client.group)  # as its first pull does
    assert _update(client, 2).status.code == Code.OK
    answer = _get(client)
    assert (answer.status.code, answer.offset) == (Code.OK, 2)
    assert client.parts.offsets.query(client.group, client.topic, QUEUE) == 2
    _update(client, 0)
    assert _get(client).offset == 0
    refused(Code.ILLEGAL_OFFSET, _update, client, -1)
    refused(Code.ILLEGAL_CONSUMER_GROUP, _update, client, 1, group={"name": ""})
    refused(Code.ILLEGAL_CONSUMER_GROUP, _get, client, group={"name": "a b"})


def test_first_last_and_time_offsets(client: Consuming) -> None:
    start = client.clock.now
    assert _query(client, QueryOffsetPolicy.END).offset == 0
    for body in (b"a", b"b", b"c"):
        client.send(body, queue_id=QUEUE)
        client.clock.now += 1_000
    assert _query(client, QueryOffsetPolicy.BEGINNING).offset == 0
    assert _query(client, QueryOffsetPolicy.END).offset == 3
    timestamp = QueryOffsetPolicy.TIMESTAMP
    assert _query(client, timestamp, start).offset == 0
    assert _query(client, timestamp, start + 1).offset == 1
    assert _query(client, timestamp, start + 2_000).offset == 2
    assert _query(client, timestamp, start + 99_000).offset == 3
    assert _query(client, timestamp, -5).offset == 0
    refused(Code.BAD_REQUEST, _query, client, timestamp)
    refused(Code.BAD_REQUEST, _query, client, 77)


def test_missing_queues_and_topics(client: Consuming) -> None:
    nowhere = {"message_queue": {"topic": {"name": "Nowhere"}, "id": 0}}
    for queue_id in (4, -1):
        no_queue = _queue(client, id=queue_id)
        refused(Code.BAD_REQUEST, _update, client, 1, **no_queue)
        refused(Code.BAD_REQUEST, _get, client, **no_queue)
        refused(Code.BAD_REQUEST, _query, client, QueryOffsetPolicy.END, **no_queue)
        refused(Code.BAD_REQUEST, _answers, client, _pull_request(client, **no_queue))
    for call, args in ((_update, (1,)), (_get, ()), (_query, (QueryOffsetPolicy.END,))):
        assert "rocket topic create" in refused(Code.TOPIC_NOT_FOUND, call, client, *args, **nowhere)
