"""Receipt handles and their renewal, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import RemotingConnectError
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.methods import receipts, renewals
from spark_rocket.proxy.methods.handles import Handle, read_handle
from tests.proxy.consuming import Consuming, a_client_of, consuming, handle_of
from tests.proxy.test_receiving import refused

pytestmark = pytest.mark.live

NOW = 1_795_230_000_000
GOOD = f"7 {NOW - 1000} 60000 3 0 broker-a 2 9 4096"


# --- handles ----------------------------------------------------------------------------------------------------


def test_every_part_of_a_handle() -> None:
    handle = read_handle(GOOD, NOW)
    info = handle.info
    assert (info.start_offset, info.pop_time, info.invisible_time, info.revive_queue_id) == (7, NOW - 1000, 60_000, 3)
    assert (info.queue_id, handle.offset, handle.physical_offset, handle.text) == (2, 9, 4096, GOOD)
    assert handle.topic("orders", "g") == "orders"


def test_a_handle_of_a_retry_topic() -> None:
    assert read_handle(GOOD.replace(" 0 b", " 1 b"), NOW).topic("orders", "g") == "%RETRY%g_orders"
    assert read_handle(GOOD.replace(" 0 b", " 2 b"), NOW).topic("orders", "g") == "%RETRY%g+orders"


def test_a_handle_of_eight_parts_has_no_place() -> None:
    assert read_handle(GOOD.rpartition(" ")[0], NOW).physical_offset == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        GOOD.replace("9", "nine"),
        GOOD.replace(" 4096", " here"),
        " ".join(GOOD.split(" ")[:7]),
        GOOD.replace("7 ", "-7 "),
        GOOD.replace(" 0 b", " 5 b"),
        GOOD.replace("60000", "9" * 30),
        GOOD.replace(" 4096", f" {2**63}"),
        GOOD.replace(" 2 9", f" {2**31} 9"),
        GOOD.replace(" 3 0", f" {2**31} 0"),
        GOOD.replace("7 ", f"{2**63 - 1} ").replace(" 9 ", f" {2**63} "),
        GOOD.replace(" 9 ", " 6 "),
        GOOD.replace(" 9 ", " 70000 "),
        GOOD.replace("60000", "1000"),
        "9" * 100_000,
        GOOD + " " * 100_000,
        GOOD + " 1",
        GOOD + " 1 2",
        "7 " + GOOD,
        "\x00" * 9,
    ],
)
def test_invalid_and_expired_handles(text: str) -> None:
    with pytest.raises(StatusError) as failure:
        read_handle(text, NOW)
    assert failure.value.code == Code.INVALID_RECEIPT_HANDLE
    assert len(failure.value.message) < 300


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.one_of(st.integers().map(str), st.sampled_from(["broker-a", "0", "1", "", "x"])), max_size=11).map(
            " ".join
        ),
    )
)
def test_any_string_is_a_handle_or_refused(text: str) -> None:
    try:
        handle = read_handle(text, NOW)
    except StatusError as error:
        assert error.code == Code.INVALID_RECEIPT_HANDLE  # noqa: PT017
    else:
        assert 0 <= handle.info.start_offset <= handle.offset


# --- renewal ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consuming]:
    with consuming(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(world: Consuming) -> Iterator[Consuming]:
    with a_client_of(world) as its:
        yield its


def test_a_message_is_renewed_until_it_is_acked(client: Consuming) -> None:
    client.register()
    client.send(b"long")
    (message,) = client.receive(auto_renew=True)
    system = message.system_properties
    assert system.invisible_duration.seconds == 60
    for _ in range(3):
        client.live(1_500_000)
        assert client.receive() == []
    assert client.renewals.count == 1
    answer = client.ack(system.receipt_handle)
    assert (answer.status.code, answer.entries[0].receipt_handle) == (Code.OK, system.receipt_handle)
    assert client.renewals.count == 0
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_renewal_ends_after_three_hours(client: Consuming) -> None:
    client.register()
    client.send(b"longer")
    client.receive(auto_renew=True)
    client.live(3 * 3_600_000 - 5_000)
    assert client.renewals.count == 1
    assert client.receive() == []
    client.live(3_600_000 + 5_000)
    assert client.renewals.count == 0
    (again,) = client.receive()
    assert again.system_properties.delivery_attempt == 2
    client.ack(again)


def test_messages_of_a_client_that_leaves_are_redelivered_soon(client: Consuming) -> None:
    member = client.register()
    client.send(b"a", b"b")
    messages = client.receive(auto_renew=True)
    client.ack(messages[0])
    client.pass_time(6_000)
    assert client.receive() == []
    client.leave(member)
    client.run(lambda: client.renewals.client_left(client.client_id, [client.group, "another"]))
    client.settle_all()
    assert client.renewals.count == 0
    client.pass_time(2_001)
    assert [message.body for message in client.receive()] == [messages[1].body]


def test_a_client_that_disappears_is_detected(client: Consuming) -> None:
    member = client.register()
    client.send(b"a")
    client.receive(auto_renew=True)
    client.leave(member)
    client.pass_time(5_000)
    assert client.renewals.count == 0
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


def test_messages_of_an_unregistered_client_stay_invisible_for_a_minute(client: Consuming) -> None:
    client.send(b"a")
    client.receive(auto_renew=True)
    client.pass_time(30_000)
    assert client.renewals.count == 1
    client.pass_time(20_000)
    assert client.renewals.count == 0
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


def test_a_client_may_register_after_its_first_receive(client: Consuming) -> None:
    client.send(b"a")
    client.receive(auto_renew=True)
    client.pass_time(10_000)
    member = client.register()
    client.pass_time(45_000)
    assert client.renewals.count == 1
    client.leave(member)
    client.pass_time(5_000)
    assert client.renewals.count == 0


def test_two_clients_of_a_group_renew_their_messages(client: Consuming) -> None:
    client.register()
    client.send(b"a", b"b")
    (first,) = client.receive(auto_renew=True, batch_size=1)
    first_client, client.client_id = client.client_id, "another@1"
    member = client.register()
    client.receive(auto_renew=True, batch_size=1)
    client.leave(member)
    client.pass_time(5_000)
    assert client.renewals.count == 1
    client.pass_time(2_001)
    client.client_id = first_client
    assert [len(client.receive()), len(client.receive())] == [1, 0]
    client.ack(first)


def test_a_change_ends_the_renewal_and_starts_from_the_latest_handle(client: Consuming) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    client.live(100_000)
    assert client.receive() == []
    client.change(message, 10)
    assert client.renewals.count == 0
    client.pass_time(11_001)
    assert client.bodies() == [b"a"]


def test_a_renewed_message_accepts_its_first_handle_from_its_client_only(
    client: Consuming,
) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    handle = message.system_properties.receipt_handle
    client.live(100_000)
    first_client, client.client_id = client.client_id, "another@1"
    assert client.ack(handle).status.code == Code.INVALID_RECEIPT_HANDLE
    client.client_id = first_client
    assert client.ack(handle).status.code == Code.OK
    assert client.ack(handle).status.code == Code.INVALID_RECEIPT_HANDLE  # its own time is over


def test_a_message_that_cannot_be_renewed_is_skipped(client: Consuming) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    # Acked by the classic protocol, of which the proxy knows nothing.
    handle = client.do(client.receipts.read(message.system_properties.receipt_handle))
    results = client.do(client.receipts.ack(client.group, client.topic, [handle]))
    assert results == [None]
    client.pass_time(50_000)
    assert client.renewals.count == 0
    client.pass_time(61_000)
    assert client.receive() == []


@pytest.fixture
def away(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> list[RequestCode]:
    """The codes of requests that fail once each, as with an unavailable broker."""
    codes: list[RequestCode] = []
    ask = client.cluster.ask

    async def fail_once(broker: str, code: RequestCode, *rest: Any, **named: Any) -> RemotingCommand:
        if code in codes:
            codes.remove(code)
            raise RemotingConnectError("connection refused")
        return await ask(broker, code, *rest, **named)

    monkeypatch.setattr(client.cluster, "ask", fail_once)
    return codes


@pytest.mark.parametrize("others", [0, 1])
def test_a_renewed_message_is_acked_by_the_second_ack(client: Consuming, away: list[RequestCode], others: int) -> None:
    """The first handle is that of a receipt which the renewal has ended: its ack would not count."""
    client.register()
    client.send(*(b"%d" % number for number in range(1 + others)))
    messages = client.receive(auto_renew=True)
    client.live(55_000)
    away.append(RequestCode.BATCH_ACK_MESSAGE if others else RequestCode.ACK_MESSAGE)
    assert client.ack(*messages).status.code == Code.INTERNAL_SERVER_ERROR
    assert client.renewals.count == 1 + others
    assert client.ack(*messages).status.code == Code.OK
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_a_message_is_renewed_after_a_failed_change(client: Consuming, away: list[RequestCode]) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    client.live(55_000)
    away.append(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    with pytest.raises(RemotingConnectError):
        client.change(message, 10)
    client.live(600_000)
    assert client.receive() == []
    client.change(message, 10)
    client.pass_time(11_001)
    assert client.bodies() == [b"a"]


def test_a_dead_letter_whose_ack_fails_is_stored_once(client: Consuming, away: list[RequestCode]) -> None:
    client.register()
    client.send(b"poison")
    (message,) = client.receive(auto_renew=True)
    client.live(55_000)
    away.append(RequestCode.ACK_MESSAGE)
    with pytest.raises(StatusError):
        client.forward(message)
    client.forward(message)
    assert [one.body for one in client.wire.messages(f"%DLQ%{client.group}")] == [b"poison"]
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_a_dead_letter_that_is_renewed_between_two_requests_is_stored_once(
    client: Consuming, away: list[RequestCode]
) -> None:
    client.register()
    client.send(b"poison")
    (message,) = client.receive(auto_renew=True)
    away.append(RequestCode.ACK_MESSAGE)
    with pytest.raises(StatusError):
        client.forward(message)
    client.live(55_000)
    client.forward(message)
    assert [one.body for one in client.wire.messages(f"%DLQ%{client.group}")] == [b"poison"]
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


Work = Callable[[], Coroutine[Any, Any, object]]


@pytest.fixture
def during(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> dict[RequestCode, list[Work]]:
    """By the code of a request: the work that begins when the broker has served one, before the proxy knows it."""
    works: dict[RequestCode, list[Work]] = {}
    ask = client.cluster.ask

    async def ask_and_begin(broker: str, code: RequestCode, *rest: Any, **named: Any) -> RemotingCommand:
        response = await ask(broker, code, *rest, **named)
        for work in works.pop(code, []):
            client.cluster.spawn(discarded(work()))
            await asyncio.sleep(0)  # it takes the message
        return response

    async def discarded(work: Coroutine[Any, Any, object]) -> None:
        await work

    monkeypatch.setattr(client.cluster, "ask", ask_and_begin)
    return works


@pytest.mark.parametrize("others", [0, 1])
def test_an_ack_during_a_renewal_uses_its_handle(
    client: Consuming, during: dict[RequestCode, list[Work]], others: int
) -> None:
    client.register()
    client.send(*(b"%d" % number for number in range(1 + others)))
    messages = client.receive(auto_renew=True)
    during[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [lambda: client.acked(*messages)]
    client.live(55_000)
    assert (client.renewals.count, during) == (0, {})
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_a_change_during_a_renewal_uses_its_handle(client: Consuming, during: dict[RequestCode, list[Work]]) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    during[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [lambda: client.changed(message, 600)]
    client.live(55_000)
    client.pass_time(500_000)
    assert client.receive() == []
    client.pass_time(101_000)
    assert client.bodies() == [b"a"]


def test_an_ack_that_is_cancelled_during_a_renewal(client: Consuming, during: dict[RequestCode, list[Work]]) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)

    async def cancelled() -> None:
        ack = asyncio.ensure_future(client.acked(message))
        await asyncio.sleep(0)
        assert not ack.done(), "it waits for the renewal"
        ack.cancel()
        await asyncio.wait((ack,))

    during[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [cancelled]
    client.live(900_000)
    assert (client.renewals.count, client.receive(), during) == (1, [], {})
    assert client.ack(message).status.code == Code.OK
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_a_client_that_leaves_during_a_renewal(client: Consuming, during: dict[RequestCode, list[Work]]) -> None:
    member = client.register()
    client.send(b"a")
    client.receive(auto_renew=True)

    async def leave() -> None:
        client.leave(member)
        client.renewals.client_left(client.client_id, [client.group])

    during[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [leave]
    client.live(50_000)
    assert (client.renewals.count, during) == (0, {})
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


@pytest.mark.parametrize("is_during", [False, True])
def test_a_message_is_renewed_once_at_a_time_after_failed_acks(
    client: Consuming,
    away: list[RequestCode],
    during: dict[RequestCode, list[Work]],
    monkeypatch: pytest.MonkeyPatch,
    is_during: bool,
) -> None:
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    if is_during:
        away.append(RequestCode.ACK_MESSAGE)
        during[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [lambda: client.acked(message)]
    for _ in range(0 if is_during else 3):
        away.append(RequestCode.ACK_MESSAGE)
        assert client.ack(message).status.code == Code.INTERNAL_SERVER_ERROR
    renewed: list[str] = []
    change = client.receipts.change_invisible

    async def counted(group: str, topic: str, handle: Handle, *rest: Any, **named: Any) -> str:
        renewed.append(handle.text)
        return await change(group, topic, handle, *rest, **named)

    monkeypatch.setattr(client.receipts, "change_invisible", counted)
    client.live(55_000)
    assert (renewed, away, during) == ([handle_of(message)], [], {})
    assert client.ack(message).status.code == Code.OK


def test_two_concurrent_requests_for_a_dead_letter(client: Consuming, during: dict[RequestCode, list[Work]]) -> None:
    client.register()
    client.send(b"poison")
    (message,) = client.receive()
    during[RequestCode.PULL_MESSAGE] = [lambda: client.forwarded(message)]
    client.forward(message)
    client.settle_all()
    assert [one.body for one in client.wire.messages(f"%DLQ%{client.group}")] == [b"poison"]
    assert during == {}


@pytest.mark.parametrize("order", ["first fails last", "second fails last", "second fails first"])
def test_two_concurrent_acks_of_which_one_fails(client: Consuming, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Both use the handle of the renewal."""
    client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    client.live(55_000)
    ask, requests = client.cluster.ask, list[RequestCode]()
    fails, other_first = (0 if order == "first fails last" else 1), order != "second fails first"
    done = asyncio.Event()

    async def ask_twice(broker: str, code: RequestCode, *rest: Any, **named: Any) -> RemotingCommand:
        number = len(requests)
        requests.append(code)
        if number == fails:
            if other_first:
                await done.wait()
            else:
                done.set()
            raise RemotingConnectError("connection refused")
        if not other_first:
            await done.wait()
        response = await ask(broker, code, *rest, **named)
        done.set()
        return response

    async def both() -> list[int]:
        acks = await asyncio.gather(client.acked(message), client.acked(message))
        return [ack.status.code for ack in acks]

    with monkeypatch.context() as patched:
        patched.setattr(client.cluster, "ask", ask_twice)
        assert sorted(client.do(both())) == [Code.OK, Code.INTERNAL_SERVER_ERROR]
    assert client.renewals.count == 0
    client.pass_time(3 * 3_600_000)
    assert client.receive() == []


def test_a_client_that_leaves_during_an_ack_that_fails(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    member = client.register()
    client.send(b"a")
    (message,) = client.receive(auto_renew=True)
    client.live(900_000)

    async def leave(*_: Any, **__: Any) -> RemotingCommand:
        client.leave(member)
        client.renewals.client_left(client.client_id, [client.group])
        raise RemotingConnectError("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(client.cluster, "ask", leave)
        client.ack(message)
    client.pass_time(5_000)
    assert client.renewals.count == 0
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


def test_messages_of_a_client_that_leaves_an_unavailable_broker(
    client: Consuming, away: list[RequestCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "RELEASE_RETRY_S", 0.0)
    member = client.register()
    client.send(b"a")
    client.receive(auto_renew=True)
    client.live(900_000)
    client.leave(member)
    away.append(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    client.pass_time(5_000)
    assert (client.renewals.count, away) == (0, [])
    client.pass_time(2_001)
    assert client.bodies() == [b"a"]


def test_an_ordered_message_is_renewed(client: Consuming) -> None:
    client.change_group(consume_message_orderly=True)
    client.register()
    client.send(b"1", b"2", queue_id=1)
    (first,) = client.receive(auto_renew=True, batch_size=1)
    for _ in range(4):
        client.live(50_000)
        assert client.receive() == []
    assert client.ack(first).status.code == Code.OK
    assert client.bodies() == [b"2"]


def test_renewals_are_bounded(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals, "MAX_RENEWED", 2)
    client.register()
    client.send(b"a", b"b", b"c")
    messages = client.receive(auto_renew=True, batch_size=2)
    refused(Code.TOO_MANY_REQUESTS, client.answers, client.request(auto_renew=True))
    assert len(client.receive()) == 1
    client.ack(*messages)
    assert client.receive(auto_renew=True) == []


def test_a_stop_returns_renewed_messages(tmp_path: Path) -> None:
    with consuming(tmp_path) as world:
        world.register()
        world.send(b"long")
        world.receive(auto_renew=True)
        world.live(100_000)
        world.send(b"new")
        (new,) = world.receive(auto_renew=True)
        clock = world.clock
    with consuming(tmp_path, clock) as world:
        assert world.ack(new).status.code == Code.OK
        world.pass_time(2_001)
        assert world.bodies() == [b"long"]


def test_a_message_whose_ack_fails_after_the_stop_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with consuming(tmp_path) as world:
        world.register()
        world.send(b"a")
        (message,) = world.receive(auto_renew=True)
        world.live(100_000)

        async def stop(*_: Any, **__: Any) -> RemotingCommand:
            world.renewals.close()
            raise RemotingConnectError("connection refused")

        with monkeypatch.context() as patched:
            patched.setattr(world.cluster, "ask", stop)
            world.ack(message)
        assert world.renewals.count == 0
        world.settle_all()
        world.pass_time(2_001)
        assert world.bodies() == [b"a"]


def test_messages_acked_soon_use_no_memory(
    client: Consuming, away: list[RequestCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "_SLACK", 10)
    client.register()
    client.send(b"kept")
    (kept,) = client.receive(auto_renew=True)
    for _ in range(20):
        away.append(RequestCode.ACK_MESSAGE)
        client.ack(kept)
    assert len(client.renewals._due) <= 13
    for _ in range(3):
        client.send(*(b"%02d" % number for number in range(30)))
        messages = client.receive(auto_renew=True)
        client.ack(*messages)
    assert client.renewals.count == 1
    assert len(client.renewals._due) <= 12
    client.live(60_000)
    assert client.receive() == []
    client.ack(kept)


def test_many_messages_are_renewed_in_slices(client: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals, "_AT_ONCE", 3)
    client.register()
    client.send(*(b"%02d" % number for number in range(20)))
    messages = client.receive(auto_renew=True)
    client.pass_time(50_000)
    assert client.renewals.count == 20
    client.pass_time(20_000)
    assert client.receive() == []
    client.ack(*messages)
