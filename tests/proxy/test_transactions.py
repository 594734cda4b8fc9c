"""Transactions by gRPC, with a manual clock: decisions, checks, restarts, invalid ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.proxy import definitions
from spark_rocket.proxy.methods.transactions import make_transaction_id, parse_transaction_id
from tests.broker.wire import Wire
from tests.kit.clock import START, Clock
from tests.proxy.caller import Caller, resource
from tests.proxy.direct import BrokersEndpoint, DirectCaller, endpoint
from tests.proxy.outgoing import Type, message, sent

pytestmark = pytest.mark.live

Code, Resolution, Source = definitions.Code, definitions.TransactionResolution, definitions.TransactionSource
MINUTES = 60_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def here(tmp_path: Path, clock: Clock) -> Iterator[BrokersEndpoint]:
    """An endpoint with the topic Tx."""
    with endpoint(tmp_path, clock) as (running, _):
        running.create_topic("Tx")
        yield running


@pytest.fixture
def producer(here: BrokersEndpoint) -> DirectCaller:
    return here.client()


def half(client: Caller, topic: str = "Tx", body: bytes = b"paid", **more: Any) -> Any:
    """Send a half message; its entry."""
    fields = {"message_type": Type.TRANSACTION, "born_ms": START} | more
    (entry,) = sent(client, message(topic, body, **fields))
    return entry


def end(
    client: Caller,
    entry: Any,
    resolution: str = "COMMIT",
    *,
    topic: str = "Tx",
    transaction_id: str | None = None,
    checked: bool = False,
) -> Any:
    """The status of an EndTransaction."""
    return client.call(
        "EndTransaction",
        topic=resource(topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id if transaction_id is None else transaction_id,
        resolution=Resolution.Value(resolution),
        source=Source.SOURCE_SERVER_CHECK if checked else Source.SOURCE_CLIENT,
    ).status


def bodies(wire: Wire, topic: str = "Tx") -> list[bytes]:
    return [one.body for one in wire.messages(topic)]


def passes(here: BrokersEndpoint, clock: Clock, milliseconds: int) -> None:
    """Time passes, and what it leads to is done."""
    clock.now += milliseconds
    here.served.wake()
    here.client().settle()


def asked(client: DirectCaller) -> list[Any]:
    """What a producer has been asked, and forgets with this."""
    client.settle()
    commands = [one.recover_orphaned_transaction_command for one in client.told]
    commands = [
        one for one, told in zip(commands, client.told, strict=True) if told.WhichOneof("command") != "settings"
    ]
    client.told.clear()
    return commands


# --- decisions --------------------------------------------------------------------------------------------------


def test_a_commit(here: BrokersEndpoint, producer: DirectCaller) -> None:
    entry = half(producer, body=b"paid", tag="t", keys=["k"], message_id="M1")
    assert entry.message_id == "M1"
    assert bodies(here.wire) == []
    assert end(producer, entry).code == Code.OK
    (found,) = here.wire.messages("Tx")
    assert (found.body, found.msg_id, found.tags, found.keys) == (b"paid", "M1", "t", "k")
    assert (found.born_timestamp, found.properties["PGROUP"]) == (START, "Tx")
    again = end(producer, entry)
    assert (again.code, again.message) == (Code.INVALID_TRANSACTION_ID, "The transaction was decided before")


def test_a_rollback_and_an_invalid_decision(here: BrokersEndpoint, producer: DirectCaller) -> None:
    first, second = half(producer), half(producer)
    assert end(producer, first, "ROLLBACK").code == Code.OK
    assert end(producer, second, "TRANSACTION_RESOLUTION_UNSPECIFIED").code == Code.OK
    assert bodies(here.wire) == []
    assert end(producer, second).code == Code.OK
    assert bodies(here.wire) == [b"paid"]


def test_in_a_namespace(here: BrokersEndpoint, producer: DirectCaller) -> None:
    here.create_topic("shop%Tx")
    entry = half(producer, namespace="shop")
    answer = producer.call(
        "EndTransaction",
        topic=resource("Tx", "shop"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=Resolution.COMMIT,
    )
    assert answer.status.code == Code.OK
    assert bodies(here.wire, "shop%Tx") == [b"paid"]


def test_a_restart_loses_no_transaction(tmp_path: Path, clock: Clock) -> None:
    with endpoint(tmp_path, clock) as (here, _):
        here.create_topic("Tx")
        committed, rolled_back = half(here.client()), half(here.client())
    clock.now += 5 * MINUTES
    with endpoint(tmp_path, clock) as (here, wire):
        assert end(here.client(), committed).code == Code.OK
        assert end(here.client(), rolled_back, "ROLLBACK").code == Code.OK
        assert bodies(wire) == [b"paid"]


def test_ids_without_a_transaction(here: BrokersEndpoint, producer: DirectCaller) -> None:
    here.create_topic("Other")
    sent(producer, message("Tx", b"ordinary"))
    entry = half(producer)
    at_half, at_log, broker = entry.transaction_id.split("-", 2)
    wrong = [
        "",
        " ",
        entry.message_id,
        f"{at_half}-{at_log}",
        f"{at_half}-{at_log}-",
        f"{at_half}-{at_log}-elsewhere",
        f"{at_half}-x-{broker}",
        f"-1-{at_log}-{broker}",
        f"{int(at_half) + 1}-{at_log}-{broker}",
        f"{at_half}-{int(at_log) + 1}-{broker}",
        f"{at_half}-0-{broker}",
        f"{at_half}-{2**63 - 1}-{broker}",
        f"{at_half}-{2**63}-{broker}",
        f"{at_half}-{'9' * 5000}-{broker}",
        f"{at_half}-\u0663-{broker}",
    ]
    for text in wrong:
        status = end(producer, entry, transaction_id=text)
        assert status.code == Code.INVALID_TRANSACTION_ID, text
        assert status.message
    assert end(producer, entry, topic="Other").code == Code.INVALID_TRANSACTION_ID
    assert end(producer, entry, topic="no good").code == Code.ILLEGAL_TOPIC
    assert bodies(here.wire) == [b"ordinary"]
    assert end(producer, entry).code == Code.OK


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.text(min_size=1))
def test_ids_are_read_as_they_are_written(half_offset: int, log_offset: int, broker: str) -> None:
    written = make_transaction_id(half_offset, log_offset, broker)
    assert parse_transaction_id(written) == (str(half_offset), str(log_offset), broker)


@given(st.text() | st.from_regex(r"[0-9-]*-[a-z-]*", fullmatch=True))
def test_any_string_is_an_id_or_invalid(text: str) -> None:
    parts = parse_transaction_id(text)
    if parts is not None:
        assert "-".join(parts) == text
        assert int(parts[0]) < 2**63 > int(parts[1])


# --- asking -----------------------------------------------------------------------------------------------------


def test_a_producer_is_asked_and_answers(here: BrokersEndpoint, producer: DirectCaller, clock: Clock) -> None:
    producer.produce("Tx")
    entry = half(producer, body=b"paid", tag="t", keys=["a", "b"], message_id="M1", message_group="")
    passes(here, clock, 5_000)
    assert asked(producer) == []
    passes(here, clock, 5 * MINUTES)
    (question,) = asked(producer)
    shown = question.message
    assert (shown.topic, shown.body) == (resource("Tx"), b"paid")
    system = shown.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == ("M1", "t", ["a", "b"])
    assert system.message_type == Type.TRANSACTION
    assert question.transaction_id != entry.transaction_id  # it names the copy that the check made
    assert end(producer, entry, transaction_id=question.transaction_id, checked=True).code == Code.OK
    assert bodies(here.wire) == [b"paid"]
    passes(here, clock, 5 * MINUTES)
    assert asked(producer) == []


def test_a_late_decision_decides_the_checked_transaction(
    here: BrokersEndpoint, producer: DirectCaller, clock: Clock
) -> None:
    producer.produce("Tx")
    entry = half(producer)
    passes(here, clock, 5 * MINUTES)
    (question,) = asked(producer)
    assert end(producer, entry).code == Code.OK  # with the first id
    passes(here, clock, 5 * MINUTES)
    assert asked(producer) == []
    assert end(producer, entry, transaction_id=question.transaction_id).code == Code.INVALID_TRANSACTION_ID
    assert bodies(here.wire) == [b"paid"]


def test_a_producer_whose_settings_do_not_name_the_topic_yet(
    here: BrokersEndpoint, producer: DirectCaller, clock: Clock
) -> None:
    producer.produce()
    half(producer)
    passes(here, clock, 5 * MINUTES)
    (question,) = asked(producer)
    assert question.message.topic == resource("Tx")


def test_another_producer_of_the_topic_is_asked_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with endpoint(tmp_path, clock) as (here, _):
        here.create_topic("Tx")
        entry = half(here.client("first@1"))
    with endpoint(tmp_path, clock) as (here, wire):
        stranger, other = here.client("stranger@1"), here.client("other@1")
        here.create_topic("Else")
        stranger.produce("Else")
        passes(here, clock, 5 * MINUTES)  # no producer is connected
        other.produce("Tx")
        passes(here, clock, 5 * MINUTES)
        (question,) = asked(other)
        assert asked(stranger) == []
        assert end(other, entry, transaction_id=question.transaction_id, checked=True).code == Code.OK
        assert bodies(wire) == [b"paid"]


def test_a_client_without_a_stream_is_skipped(here: BrokersEndpoint, clock: Clock) -> None:
    gone, there = here.client("gone@1"), here.client("there@1")
    gone.produce("Tx")
    there.produce("Tx")
    here.server.run(lambda: here.clients.of(gone.context).streams.clear())  # type: ignore[union-attr]
    half(there)
    for _ in range(4):
        passes(here, clock, 5 * MINUTES)
        assert len(asked(there)) == 1
    here.server.run(lambda: here.clients.of(there.context).streams.clear())  # type: ignore[union-attr]
    passes(here, clock, 5 * MINUTES)
    assert asked(there) == asked(gone) == []


def test_a_time_of_immunity(here: BrokersEndpoint, producer: DirectCaller, clock: Clock) -> None:
    producer.produce("Tx")
    entry = half(producer, recovery_seconds=600)
    passes(here, clock, 9 * MINUTES)
    assert asked(producer) == []
    passes(here, clock, 2 * MINUTES)
    passes(here, clock, 2 * MINUTES)
    (question,) = asked(producer)[:1]
    late = end(producer, entry)
    assert (late.code, "immunity" in late.message) == (Code.PRECONDITION_FAILED, True)
    assert end(producer, entry, transaction_id=question.transaction_id, checked=True).code == Code.OK
    assert bodies(here.wire) == [b"paid"]


def test_by_telemetry(
    client: Caller, wire: Wire, parts: BrokerParts, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the wire and by the machine's own clock."""
    monkeypatch.setattr(parts.config, "transaction_time_out", 1)
    monkeypatch.setattr(parts.config, "transaction_check_interval", 50)
    monkeypatch.setattr(parts.config, "transaction_check_max", 1_000_000)
    with client.publish(topic) as stream:
        entry = half(client, topic, born_ms=parts.clock())
        command = stream.hear().recover_orphaned_transaction_command
        assert command.message.system_properties.message_id == entry.message_id
        # Meanwhile there may be a copy of the copy: a decision about any of them settles it.
        status = end(client, entry, transaction_id=command.transaction_id, topic=topic, checked=True)
        assert status.code == Code.OK
    found = [one for queue_id in range(4) for one in wire.messages(topic, queue_id=queue_id)]
    assert [one.msg_id for one in found] == [entry.message_id]
