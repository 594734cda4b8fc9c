"""What a query remembers in registers: adopted from earlier versions, shared, lost, rewound and refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spark_rocket.datasource.exactly_once import registers
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.registers import fingerprint_of, former_group, slots_of
from spark_rocket.errors import BrokerError, ExactlyOnceError, RemotingConnectError, RemotingTimeoutError, RocketError
from spark_rocket.model import MessageQueue, group_problem
from spark_rocket.protocol.wire.codes import ResponseCode
from tests.datasource.exactly_once_brokers import LEDGER, LEDGER_QUEUE, FailAtRequest, FakeBrokers, KilledError, once

MANY = 100
FORMER = former_group(LEDGER, "query")


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


def write(brokers: FakeBrokers, batch: int, query: str = "query") -> str:
    """Write a batch with one row, and return the row."""
    row = f"{query} {batch}"
    epoch = Epoch(query, batch)
    brokers.commit_epoch(epoch, brokers.staged(epoch, [row]))
    return row


def own(brokers: FakeBrokers, query: str = "query") -> tuple[int, int] | None:
    """The position and batch that a query remembers."""
    for slot in slots_of(query):
        position, value = (
            brokers.offsets.get((brokers.group, MessageQueue(LEDGER, "a", queue_id)), 0)
            for queue_id in (2 * slot, 2 * slot + 1)
        )
        if value >> 41 == fingerprint_of(query):
            return position, (value & (1 << 40) - 1) - 1
    return None


def age(brokers: FakeBrokers, query: str = "query") -> None:
    """Leave the offsets that an earlier version would have."""
    remembered = own(brokers, query)
    for place in [place for place in brokers.offsets if place[1].topic == LEDGER]:
        del brokers.offsets[place]
    if remembered is not None:
        position, batch = remembered
        brokers.offsets[former_group(LEDGER, query), LEDGER_QUEUE] = position
        brokers.offsets[former_group(LEDGER, query), MessageQueue(LEDGER, "a", 1)] = batch + 1


def expire(brokers: FakeBrokers) -> None:
    brokers.first[LEDGER_QUEUE] = len(brokers.log[LEDGER_QUEUE])


def test_all_names_are_known_before_the_first_start(brokers: FakeBrokers) -> None:
    for batch in range(3):
        write(brokers, batch)
    assert {group for group, _ in brokers.offsets} == {"ROCKET_SINK_LEDGER"}
    assert own(brokers) == (4, 2)


def test_registers_of_queries() -> None:
    """They are stored by brokers: other ones would forget what queries remember."""
    assert list(slots_of("query"))[:2] == [847636365, 524377036]
    assert fingerprint_of("query") == 3135156
    slots = {slot for number in range(1000) for slot in slots_of(f"query {number}")}
    assert len(slots) == 8000
    assert min(slots) >= 512
    assert 2 * max(slots) + 1 < 1 << 31


def test_the_group_has_no_lag_after_a_batch(brokers: FakeBrokers) -> None:
    write(brokers, 0)
    assert brokers.offsets[brokers.group, LEDGER_QUEUE] == len(brokers.log[LEDGER_QUEUE])
    epoch = Epoch("nightly", 0)
    brokers.commit_epoch(epoch, brokers.staged(epoch, ["row"]), is_stream=False)
    assert brokers.offsets[brokers.group, LEDGER_QUEUE] == len(brokers.log[LEDGER_QUEUE])


# --- adoption -----------------------------------------------------------------------------------------------------


def test_the_group_of_an_earlier_version_is_adopted_and_removed(brokers: FakeBrokers) -> None:
    rows = [write(brokers, batch) for batch in range(3)]
    age(brokers)
    read = []
    brokers.before = lambda kind, queue: read.append(kind) if kind == "messages" else None
    rows.append(write(brokers, 3))
    assert len(read) < 6, "it was not read from the remembered position on"
    once(brokers.rows(), rows)
    assert own(brokers) == (6, 3)
    assert {group for group, _ in brokers.offsets} == {brokers.group}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failure", [KilledError, RemotingTimeoutError("no response")], ids=["killed", "lost"])
@pytest.mark.parametrize("expires", [False, True])
def test_an_interruption_at_every_step_of_the_adoption(
    when: str, failure: type[BaseException] | RocketError, expires: bool
) -> None:
    """Nothing is stored twice or forgotten, whether or not the ledger's records exist at the restart."""
    for number in range(MANY):
        brokers = FakeBrokers()
        rows = [write(brokers, batch) for batch in range(2)]
        age(brokers)
        failing = FailAtRequest(number, failure)
        setattr(brokers, when, failing)
        try:
            rows.append(write(brokers, 2))
        except (KilledError, RemotingTimeoutError):
            rows.append("query 2")
        brokers.alive()
        is_remembered = max(remembered(brokers)) == 2
        if expires and is_remembered:
            expire(brokers)
            with pytest.raises(ExactlyOnceError, match=r"LEDGER_EXPIRED.*batch 2 of query was decided"):
                write(brokers, 2)
        else:
            write(brokers, 2)
            once(brokers.rows(), rows)
        rows = brokers.rows()
        rows.append(write(brokers, 3))
        once(brokers.rows(), rows)
        assert max(remembered(brokers)) == 3
        assert {group for group, _ in brokers.offsets} == {brokers.group}, "the former group was not removed"
        if failing.hit is None:
            return
    pytest.fail("the number of requests has no end")


def remembered(brokers: FakeBrokers) -> list[int]:
    """The batches that registers and former group have."""
    former = brokers.offsets.get((FORMER, MessageQueue(LEDGER, "a", 1)), 0) - 1
    return [former, (own(brokers) or (0, -1))[1]]


def test_a_former_group_that_cannot_be_removed_is_not_used_again(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account without the permission to remove groups: it stays, and what it has is out of date."""
    write(brokers, 0)
    age(brokers)
    monkeypatch.setattr(brokers, "remove_group", lambda group: True)
    write(brokers, 1)
    asked, committed = [], brokers.committed

    def ask(group: str, queue: MessageQueue) -> int | None:
        asked.append(group)
        return committed(group, queue)

    monkeypatch.setattr(brokers, "committed", ask)
    write(brokers, 2)
    assert FORMER not in asked
    assert own(brokers) == (4, 2)


def test_a_former_group_whose_broker_is_unavailable_is_removed_later(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(brokers, 0)
    age(brokers)
    remove = brokers.remove_group
    monkeypatch.setattr(brokers, "remove_group", lambda group: False)
    write(brokers, 1)
    assert remembered(brokers) == [0, 1]
    monkeypatch.setattr(brokers, "remove_group", remove)
    write(brokers, 2)
    assert remembered(brokers) == [-1, 2]


def test_a_former_group_without_permission_counts_as_absent(brokers: FakeBrokers) -> None:
    """A new query asks for it once, under an account that has the permission of the sink's group alone."""

    def committed(group: str, queue: MessageQueue) -> int | None:
        if group != brokers.group:
            raise BrokerError("no permission", response_code=ResponseCode.NO_PERMISSION)
        return brokers.offsets.get((group, queue))

    brokers.committed = committed  # type: ignore[method-assign]
    rows = [write(brokers, batch) for batch in range(2)]
    once(brokers.rows(), rows)
    assert own(brokers) == (2, 1)


def test_names_of_former_groups() -> None:
    assert former_group("LEDGER", "0f6c-1") == "LEDGER-0f6c-1"
    long = former_group("L" * 127, "0f6c-1")
    assert group_problem(long) is None
    assert long != former_group("L" * 127, "0f6c-2")


# --- several queries ----------------------------------------------------------------------------------------------


def test_queries_with_the_same_slot_remember_their_own_batches(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [f"query {number}" for number in range(5)]
    monkeypatch.setattr(registers, "slots_of", lambda query: iter(range(600, 608)))
    for batch in range(3):
        for query in queries:
            write(brokers, batch, query)
    expire(brokers)
    for query in queries:
        with pytest.raises(ExactlyOnceError, match=f"LEDGER_EXPIRED.*batch 2 of {query} was decided"):
            write(brokers, 2, query)
    once(brokers.rows(), [f"{query} {batch}" for query in queries for batch in range(3)])


def test_a_query_without_a_free_slot_reads_the_ledger(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registers, "slots_of", lambda query: iter([600]))
    write(brokers, 0, "first")
    rows = [write(brokers, batch) for batch in range(3)]
    write(brokers, 2)
    once(brokers.rows(), ["first 0", *rows])
    assert "batch 2 of query is not remembered" in caplog.text
    assert "has no free register" in caplog.text


@pytest.mark.parametrize("position", [1, 2, 5, 99])
def test_a_position_of_another_query_is_not_believed(
    brokers: FakeBrokers, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The records there say whose they are: another's PREPARED, a DONE, the end and beyond."""
    rows = [write(brokers, 0), write(brokers, 0, "other"), write(brokers, 1)]
    slot = next(slots_of("query"))
    brokers.offsets[brokers.group, MessageQueue(LEDGER, "a", 2 * slot)] = position
    with caplog.at_level(logging.WARNING):
        write(brokers, 1)
    once(brokers.rows(), rows)
    assert ("reading the ledger from its start" in caplog.text) == (position < 6)


# --- lost and rewound ---------------------------------------------------------------------------------------------


def lose_all(brokers: FakeBrokers, before: dict[tuple[str, MessageQueue], int]) -> None:
    brokers.offsets.clear()


def rewind(brokers: FakeBrokers, before: dict[tuple[str, MessageQueue], int]) -> None:
    brokers.offsets.clear()
    brokers.offsets.update(before)


def lose_positions(brokers: FakeBrokers, before: dict[tuple[str, MessageQueue], int]) -> None:
    for place in [place for place in brokers.offsets if not place[1].queue_id % 2]:
        del brokers.offsets[place]


def lose_batches(brokers: FakeBrokers, before: dict[tuple[str, MessageQueue], int]) -> None:
    for place in [place for place in brokers.offsets if place[1].queue_id % 2]:
        del brokers.offsets[place]


@pytest.mark.parametrize("lose", [lose_all, rewind, lose_positions, lose_batches])
def test_lost_and_rewound_registers_cost_reading_only(
    brokers: FakeBrokers, lose: Callable[[FakeBrokers, dict[tuple[str, MessageQueue], int]], None]
) -> None:
    """A broker that is killed loses the offsets of its last seconds."""
    rows = [write(brokers, 0)]
    before = dict(brokers.offsets)
    rows += [write(brokers, batch) for batch in (1, 2)]
    lose(brokers, before)
    write(brokers, 2)
    rows.append(write(brokers, 3))
    once(brokers.rows(), rows)
    assert own(brokers) == (6, 3)
    expire(brokers)
    with pytest.raises(ExactlyOnceError, match="LEDGER_EXPIRED"):
        write(brokers, 3)


def test_the_first_offset_of_a_group_may_be_lost(brokers: FakeBrokers) -> None:
    """Apache's broker loses one of two first offsets of a topic and group that arrive at the same time."""
    lost = iter([True, True])

    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "commit" and next(lost, False):
            brokers.offsets.clear()

    brokers.after = lose
    write(brokers, 0)
    assert own(brokers) == (0, 0)


def test_two_queries_that_take_a_slot_at_the_same_time(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "slots_of", lambda query: iter(range(600, 608)))
    others = iter([lambda: write(brokers, 0, "other")])

    def commit_between(kind: str, queue: MessageQueue) -> None:
        if kind == "commit" and (other := next(others, None)):
            other()

    brokers.before = commit_between
    write(brokers, 0)
    brokers.alive()
    for query in ("query", "other"):
        write(brokers, 1, query)
    expire(brokers)
    for query in ("query", "other"):
        with pytest.raises(ExactlyOnceError, match="LEDGER_EXPIRED"):
            write(brokers, 1, query)


def test_registers_that_cannot_be_written(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(kind: str, queue: MessageQueue) -> None:
        if kind == "commit":
            raise BrokerError("no", response_code=ResponseCode.NO_PERMISSION)

    brokers.before = refuse
    rows = [write(brokers, batch) for batch in range(2)]
    once(brokers.rows(), rows)
    assert "is not remembered as an offset of group ROCKET_SINK_LEDGER" in caplog.text


def test_registers_are_read_when_their_broker_is_back(brokers: FakeBrokers) -> None:
    brokers.before = FailAtRequest(0, RemotingConnectError("unavailable"), {"query"})
    write(brokers, 0)
    assert own(brokers) == (0, 0)
