"""ReceiveMessage, AckMessage and ChangeInvisibleDuration, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.protocol.record.compression import compress_body
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.message_out import milliseconds_of
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.method_types import MAX_ACKS
from spark_rocket.proxy.methods import receiving
from tests.kit.waiting import until_async
from tests.proxy.consuming import Consuming, a_client_of, consuming

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consuming]:
    with consuming(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(world: Consuming) -> Iterator[Consuming]:
    with a_client_of(world) as its:
        yield its


def refused(code: Any, call: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(StatusError) as failure:
        call(*args, **fields)
    assert failure.value.code == code, failure.value.message
    return failure.value.message


# --- receive ----------------------------------------------------------------------------------------------------


def test_messages_of_all_queues_are_received(client: Consuming) -> None:
    client.send(b"a", b"b", b"c", b"d", TAGS="paid")
    assert client.bodies(message_queue={"id": 0}) == [b"a", b"b", b"c", b"d"]
    assert client.receive() == []


def test_every_field_that_only_a_popped_message_has(client: Consuming) -> None:
    client.send(b"a", queue_id=2, TAGS="paid", KEYS="k1 k2", colour="red")
    (message,) = client.receive(invisible_duration={"seconds": 30, "nanos": 250_000_000})
    system = message.system_properties
    assert (message.topic.name, message.body) == (client.topic, b"a")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (2, 0, 1)
    assert (system.invisible_duration.seconds, system.invisible_duration.nanos) == (30, 250_000_000)
    parts = system.receipt_handle.split(" ")
    assert parts[:3] == ["0", str(client.clock.now), "30250"]
    assert parts[4:8] == ["0", client.parts.config.broker_name, "2", "0"]
    assert len(parts) == 9
    assert int(parts[8]) > 0


def test_an_empty_receive_has_its_status_and_time(client: Consuming) -> None:
    status, last = client.answers(client.request())
    assert status.status.code == Code.MESSAGE_NOT_FOUND
    assert milliseconds_of(last.delivery_timestamp) == client.clock.now


def test_a_batch_has_the_requested_size_and_at_most_32(client: Consuming) -> None:
    client.send(*(b"%02d" % number for number in range(40)))
    assert len(client.receive(batch_size=3)) == 3
    assert len(client.receive(batch_size=1000)) == 32
    assert len(client.receive()) == 5


def test_unacked_messages_are_redelivered_and_count_attempts(client: Consuming) -> None:
    client.send(b"a", UNIQ_KEY="U1")
    (first,) = client.receive()
    client.pass_time(59_999)
    assert client.receive() == []
    client.pass_time(1_001)
    (again,) = client.receive()
    assert again.topic.name == client.topic
    assert (again.body, again.system_properties.message_id) == (b"a", first.system_properties.message_id)
    assert again.system_properties.delivery_attempt == 2
    assert client.ack(again).status.code == Code.OK
    client.pass_time(61_000)
    assert client.receive() == []


def test_a_receive_waits_for_a_message(client: Consuming) -> None:
    async def receive() -> list[Any]:
        request = client.request(long_polling_timeout={"seconds": 20})
        return [each async for each in client.receiving.receive_message(client.context(), request)]

    waiting = asyncio.run_coroutine_threadsafe(receive(), client.server.loop)
    client.wait_for(lambda: client.parts.held_requests.pops.count == 1)
    client.send(b"late")
    answers = waiting.result(30)
    assert [answer.message.body for answer in answers[1:-1]] == [b"late"]


def test_a_broker_holds_a_receive_for_some_seconds_at_a_time(
    client: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a receive on when its client has gone, but not for long."""
    asked: list[str] = []
    begin = client.cluster.begin

    async def note(broker: str, code: int, ext: dict[str, str], *more: Any, **named: Any) -> Any:
        asked.append(ext["pollTime"])
        return await begin(broker, code, ext, *more, **named)

    monkeypatch.setattr(receiving, "SLICE_MS", 25)
    monkeypatch.setattr(client.cluster, "begin", note)
    assert client.receive() == []  # polls for 60 ms
    assert asked == ["25", "25", "10"]


def test_tags_are_filtered_and_compared(client: Consuming) -> None:
    client.send(b"a", TAGS="Aa")  # the same hash as BB
    client.send(b"b", TAGS="BB")
    client.send(b"c", TAGS="C")
    chosen = {"filter_expression": {"type": "TAG", "expression": "BB || D"}}
    assert client.bodies(**chosen) == [b"b"]
    client.pass_time(61_001)
    (again,) = client.receive(**chosen)  # the other one was acked: it does not come again
    assert again.body == b"b"
    client.ack(again)


def test_messages_are_selected_by_sql(client: Consuming) -> None:
    client.send(b"cheap", price="5")
    client.send(b"dear", price="50")
    assert client.bodies(filter_expression={"type": "SQL", "expression": "price > 10"}) == [b"dear"]


def test_only_messages_of_other_tags(client: Consuming) -> None:
    client.send(b"a", TAGS="Aa", queue_id=0)
    answers = client.answers(client.request(filter_expression={"type": "TAG", "expression": "BB"}))
    assert [answers[0].status.code, len(answers)] == [Code.MESSAGE_NOT_FOUND, 2]


def test_a_compressed_body_is_delivered_decompressed(client: Consuming) -> None:
    body = b"much of the same " * 500
    client.wire.send(client.topic, compress_body(body), {"UNIQ_KEY": "U1"}, f=1)
    assert client.bodies() == [body]


def test_an_ordered_group_gets_the_next_messages_after_an_ack(client: Consuming) -> None:
    client.change_group(consume_message_orderly=True)
    client.send(b"1", b"2", b"3", queue_id=1, __SHARDINGKEY="customer")
    first = client.receive(batch_size=2)
    assert [message.body for message in first] == [b"1", b"2"]
    assert {message.system_properties.message_group for message in first} == {"customer"}
    assert client.receive() == []
    handles = [message.system_properties.receipt_handle for message in first]
    assert client.ack(handles[0]).status.code == Code.OK
    assert client.receive() == []
    assert client.ack(handles[1]).status.code == Code.OK
    (third,) = client.receive()
    assert (third.body, third.system_properties.delivery_attempt) == (b"3", 1)
    client.pass_time(60_001)
    (again,) = client.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (b"3", 2)
    assert client.ack(again).status.code == Code.OK
    assert client.receive() == []


def test_the_same_ordered_attempt_gets_the_same_messages(client: Consuming) -> None:
    client.change_group(consume_message_orderly=True)
    client.send(b"1", queue_id=0, __SHARDINGKEY="customer")
    assert client.bodies(attempt_id="a1") == [b"1"]
    assert client.bodies(attempt_id="a1") == [b"1"]
    assert client.bodies(attempt_id="a2") == []


@pytest.mark.parametrize("ordered", [False, True])
def test_after_its_last_attempt_a_message_is_a_dead_letter(client: Consuming, ordered: bool) -> None:
    client.change_group(retry_max_times=2, consume_message_orderly=ordered)
    client.send(b"poison", queue_id=0)
    attempts: list[int] = []
    while messages := client.receive():
        attempts += [message.system_properties.delivery_attempt for message in messages]
        client.pass_time(61_001)
    assert attempts == [1, 2, 3]
    client.pass_time(61_001)
    assert client.receive() == []
    client.topic = f"%DLQ%{client.group}"
    client.group += "-dead"
    (dead,) = client.receive()
    assert (dead.body, dead.system_properties.message_id) == (b"poison", f"U{b'poison'.hex()}")


@pytest.mark.parametrize("ordered", [False, True])
def test_readers_of_dead_letters_have_all_attempts(client: Consuming, ordered: bool) -> None:
    client.change_group(retry_max_times=1, consume_message_orderly=ordered)
    client.send(b"poison", queue_id=0)
    for reader in ("first", "second", "third"):
        attempts: list[int] = []
        while messages := client.receive():
            attempts += [message.system_properties.delivery_attempt for message in messages]
            client.pass_time(61_001)
        assert attempts == [1, 2], reader
        client.pass_time(61_001)
        client.topic = f"%DLQ%{client.group}"
        client.group = f"{reader}-{ordered}"
        client.change_group(retry_max_times=1, consume_message_orderly=ordered)


def test_an_unforwardable_dead_letter_is_delivered(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    client.change_group(retry_max_times=0, consume_message_orderly=True)
    client.send(b"poison", queue_id=0)
    client.receive()
    client.pass_time(61_001)
    monkeypatch.setattr(client.parts.config, "broker_permission", 4)
    (again,) = client.receive()
    assert again.system_properties.delivery_attempt == 2


# --- a client that does not take what it asked for ---------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_messages_of_a_broken_call_are_redelivered_soon(client: Consuming, taken: int) -> None:
    client.send(b"a", b"b", b"c")

    async def break_off() -> None:
        answers = client.receiving.receive_message(client.context(), client.request(auto_renew=taken == 2))
        for _ in range(taken):
            await anext(answers)
        await answers.aclose()

    client.do(break_off())
    client.settle_all()
    assert client.receive() == []
    client.pass_time(2_001)
    again = client.receive()
    assert sorted(message.body for message in again) == [b"a", b"b", b"c"]
    assert {message.system_properties.delivery_attempt for message in again} == {1}


def test_messages_for_an_ended_call_are_redelivered_soon(client: Consuming) -> None:
    """Remoting cannot withdraw a request: the broker holds the receive on."""

    async def start() -> asyncio.Task[Any]:
        request = client.request(long_polling_timeout={"seconds": 20})
        task = asyncio.ensure_future(anext(client.receiving.receive_message(client.context(), request)))
        await until_async(lambda: client.parts.held_requests.pops.count == 1)
        return task

    async def cancel(task: asyncio.Task[Any]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client.do(cancel(client.do(start())))
    client.send(b"a")
    client.wait_for(lambda: client.parts.held_requests.pops.count == 0)
    assert client.receive() == []
    client.settle_all()
    client.pass_time(2_001)
    (again,) = client.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (b"a", 1)


def test_a_call_that_ends_at_delivery_returns_its_messages(client: Consuming) -> None:
    async def cancel_with_the_answer() -> None:
        request = client.request(long_polling_timeout={"seconds": 20})
        task = asyncio.ensure_future(anext(client.receiving.receive_message(client.context(), request)))
        await _turns_until(lambda: client.parts.held_requests.pops.count == 1)
        client.parts.store.put_message(client.topic, 0, b"a", b"UNIQ_KEY\x01U1", born_timestamp=1, born_host=_HOST)
        await _turns_until(lambda: client.parts.held_requests.pops.count == 0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client.do(cancel_with_the_answer())
    client.settle_all()
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


async def _turns_until(condition: Callable[[], bool]) -> None:
    """Turn by turn of the loop, so that nothing else is done when it is so."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


_HOST = bytes([127, 0, 0, 1, 0, 0, 19, 136])


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": {"name": "a b"}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": {"name": "CID_RMQ_SYS_TRANS"}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": {"topic": {"name": "SCHEDULE_TOPIC_XXXX"}}}, Code.ILLEGAL_TOPIC),
        ({"message_queue": {"topic": {"name": "a.b"}}}, Code.ILLEGAL_TOPIC),
        ({"message_queue": {"topic": {"name": "Nowhere"}}}, Code.TOPIC_NOT_FOUND),
        ({"batch_size": -1}, Code.BAD_REQUEST),
        ({"attempt_id": "x" * 257}, Code.BAD_REQUEST),
        ({"invisible_duration": {"seconds": 9, "nanos": 999_000_000}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 12 * 3600 + 1}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": -60}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": {"type": "TAG", "expression": "||"}}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": {"type": "SQL", "expression": "a >"}}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_a_bad_receive(client: Consuming, fields: dict[str, Any], code: Any) -> None:
    request = client.request(**fields)
    refused(code, client.answers, request)


def test_a_refused_receive_creates_no_group(client: Consuming) -> None:
    refused(Code.TOPIC_NOT_FOUND, client.answers, client.request(message_queue={"topic": {"name": "Nowhere"}}))
    assert client.parts.groups.get(client.group) is None


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("message_queue", Code.ILLEGAL_TOPIC),
        ("group", Code.ILLEGAL_CONSUMER_GROUP),
        ("invisible_duration", Code.ILLEGAL_INVISIBLE_TIME),
        ("batch_size", Code.BAD_REQUEST),
    ],
)
def test_missing_parts_of_a_receive(client: Consuming, part: str, code: Any) -> None:
    request = client.request()
    request.ClearField(part)
    refused(code, client.answers, request)


def test_a_call_without_time_to_poll(client: Consuming) -> None:
    for version, code in (("5.1.2", Code.ILLEGAL_POLLING_TIME), ("5.0.2", Code.BAD_REQUEST), ("", Code.BAD_REQUEST)):
        short = client.context(seconds=0.01, x_mq_client_version=version)
        refused(code, client.answers, client.request(), short)


@pytest.mark.parametrize(
    ("left", "asked", "polled"),
    [
        (30.0, 1_000, 5_000),
        (30.0, 15_000, 15_000),
        (30.0, 3_600_000, 20_000),
        (8.0, 15_000, 7_500),
        (5.2, 15_000, 5_000),
        (5.0, 15_000, 5_000),
        (4.999, 15_000, None),
        (10.0, None, 8_500),
        (5.5, None, 5_000),
        (None, None, 18_500),
        (None, 20_000, 20_000),
        (None, -5, 5_000),
    ],
)
def test_how_long_a_receive_polls(
    client: Consuming, monkeypatch: pytest.MonkeyPatch, left: float | None, asked: int | None, polled: int | None
) -> None:
    monkeypatch.setattr(client.receiving, "_monotonic", lambda: 1000.0)
    monkeypatch.setattr(client.receiving, "_min_polling_ms", 5_000)
    context = client.context()
    context.deadline = None if left is None else 1000.0 + left
    request = client.request()
    request.ClearField("long_polling_timeout")
    if asked is not None:
        request.long_polling_timeout.FromMilliseconds(asked)
    if polled is None:
        refused(Code.ILLEGAL_POLLING_TIME, client.receiving._polling_ms, context, request)
    else:
        assert client.receiving._polling_ms(context, request) == polled


def test_a_topic_without_read_permission_and_a_disabled_group(client: Consuming) -> None:
    def change(consume: bool, perm: int) -> None:
        parts = client.parts
        settings, topic = parts.groups.find(client.group), parts.topics.get(client.topic)
        assert settings is not None
        assert topic is not None
        parts.groups.put(replace(settings, consume_enable=consume))
        parts.topics.table[client.topic] = replace(topic, perm=perm)

    client.run(lambda: change(True, 2))
    refused(Code.FORBIDDEN, client.answers, client.request())
    client.run(lambda: change(False, 6))
    with pytest.raises(Exception, match="no permission"):
        client.answers(client.request())


# --- ack --------------------------------------------------------------------------------------------------------


def test_many_acks_at_once(client: Consuming) -> None:
    client.send(*(b"%02d" % number for number in range(40)))
    messages = client.receive() + client.receive()
    handles = [message.system_properties.receipt_handle for message in messages]
    answer = client.ack(*handles)
    assert answer.status.code == Code.OK
    assert [(entry.receipt_handle, entry.status.code) for entry in answer.entries] == [(h, Code.OK) for h in handles]
    assert client.ack(*handles).status.code == Code.OK  # twice is not wrong
    assert client.ack(*handles[:1] * MAX_ACKS).status.code == Code.OK
    client.pass_time(61_001)
    assert client.receive() == []


def test_an_invalid_ack_does_not_affect_the_others(client: Consuming) -> None:
    client.send(b"a", b"b", b"c", queue_id=0)
    good = [message.system_properties.receipt_handle for message in client.receive()]
    parts = good[0].split(" ")
    forged = {
        "garbage": "none at all",
        "no such message": " ".join([*parts[:7], "900", parts[8]]),
        "no such queue": " ".join([*parts[:6], "77", *parts[7:]]),
        "no such revive queue": " ".join([*parts[:3], "55", *parts[4:]]),
        "of the future": " ".join([parts[0], str(client.clock.now + 10**9), *parts[2:]]),
        "another broker's": " ".join([*parts[:5], "broker-z", *parts[6:]]),
        "of a retry topic that is not there": " ".join([*parts[:4], "1", *parts[5:]]),
    }
    answer = client.ack(good[0], *forged.values(), good[1], good[2])
    assert answer.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [Code.OK, *[Code.INVALID_RECEIPT_HANDLE] * len(forged), Code.OK, Code.OK]
    for why, handle in forged.items():
        assert client.ack(handle).status.code == Code.INVALID_RECEIPT_HANDLE, why
    assert client.ack(*forged.values()).status.code == Code.INVALID_RECEIPT_HANDLE
    client.pass_time(61_001)
    assert client.receive() == []


def test_an_ack_that_comes_too_late(client: Consuming) -> None:
    client.send(b"a")
    (message,) = client.receive()
    client.pass_time(60_000)
    answer = client.ack(message)
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert "expired" in answer.status.message


def test_bad_requests_to_ack(client: Consuming) -> None:
    refused(Code.BAD_REQUEST, client.ack)
    refused(Code.ILLEGAL_TOPIC, client.ack, "h", topic={"name": "a.b"})
    refused(Code.ILLEGAL_CONSUMER_GROUP, client.ack, "h", group={"name": ""})
    client.send(b"a")
    (message,) = client.receive()
    handle = message.system_properties.receipt_handle
    assert client.ack(handle, topic={"name": "Nowhere"}).status.code == Code.TOPIC_NOT_FOUND
    assert client.ack(handle, handle, topic={"name": "Nowhere"}).status.code == Code.TOPIC_NOT_FOUND


# --- change of the invisible time -------------------------------------------------------------------------------


def test_a_message_stays_invisible_and_its_new_handle_acks_it(client: Consuming) -> None:
    client.send(b"a")
    (message,) = client.receive()
    client.pass_time(50_000)
    old = message.system_properties.receipt_handle
    new = client.change(old, 60).receipt_handle
    assert new.split(" ")[8] == old.split(" ")[8]
    client.pass_time(59_999)
    assert client.receive() == []
    assert client.change(new, 60).status.code == Code.OK
    client.pass_time(61_001)
    (again,) = client.receive()
    assert again.system_properties.delivery_attempt == 2
    newest = client.change(again, 30).receipt_handle
    assert client.ack(newest).status.code == Code.OK
    client.pass_time(61_001)
    assert client.receive() == []


def test_a_suspended_message_counts_no_attempt(client: Consuming) -> None:
    client.change_group(retry_max_times=1)
    client.send(b"a")
    for _ in range(4):
        (message,) = client.receive()
        assert message.system_properties.delivery_attempt == 1
        client.change(message, 10, suspend=True)
        client.pass_time(11_001)
    client.receive()
    client.pass_time(61_001)
    (message,) = client.receive()
    assert message.system_properties.delivery_attempt == 2
    client.ack(message)


@pytest.mark.parametrize("nanos", [0, 1_000_000])
def test_a_message_returned_at_once(client: Consuming, nanos: int) -> None:
    client.send(b"a")
    (message,) = client.receive()
    assert client.change(message, 0, nanos).status.code == Code.OK
    client.pass_time(1_001)
    assert client.bodies() == [b"a"]


def test_bad_changes(client: Consuming) -> None:
    client.send(b"a")
    (message,) = client.receive()
    handle = message.system_properties.receipt_handle
    refused(Code.ILLEGAL_INVISIBLE_TIME, client.change, handle, -1)
    refused(Code.ILLEGAL_INVISIBLE_TIME, client.change, handle, 12 * 3600, 1_000_000)
    refused(Code.INVALID_RECEIPT_HANDLE, client.change, "", 10)
    refused(Code.INVALID_RECEIPT_HANDLE, client.change, "1 2 3", 10)
    client.change(handle, 100)
    refused(Code.INVALID_RECEIPT_HANDLE, client.change, handle, 10)  # the new one counts
    client.pass_time(60_000)
    refused(Code.INVALID_RECEIPT_HANDLE, client.change, handle, 10)


def test_an_acked_message_cannot_be_changed(client: Consuming) -> None:
    client.send(b"a")
    (message,) = client.receive()
    handle = message.system_properties.receipt_handle
    client.ack(handle)
    refused(Code.INVALID_RECEIPT_HANDLE, client.change, handle, 10)
    client.pass_time(61_001)
    assert client.receive() == []


def test_a_change_in_order(client: Consuming) -> None:
    client.change_group(consume_message_orderly=True)
    client.send(b"1", b"2", queue_id=3, __SHARDINGKEY="c")
    (first,) = client.receive(batch_size=1)
    handle = client.change(first, 10).receipt_handle
    client.pass_time(9_999)
    assert client.receive() == []
    assert client.ack(handle).status.code == Code.OK
    assert client.change(handle, 10).receipt_handle == handle  # acked already: nothing is changed
    assert client.bodies() == [b"2"]


def test_a_restart_keeps_what_was_received(tmp_path: Path) -> None:
    with consuming(tmp_path) as world:
        world.send(b"a", b"b")
        first, second = sorted(world.receive(), key=lambda message: bytes(message.body))
        world.ack(first)
        clock = world.clock
    with consuming(tmp_path, clock) as world:
        assert world.receive() == []
        assert world.ack(second).status.code == Code.OK
        world.pass_time(61_001)
        assert world.receive() == []
