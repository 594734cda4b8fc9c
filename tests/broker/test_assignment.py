"""Queues assigned by the broker (400), and the modes of groups (401, 402)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.processors.assignment import _STRATEGIES, MAX_ASSIGNED_QUEUES, _allocate_for_pop, _Queues
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import (
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from spark_rocket.protocol.wire.bodies.route import QueueData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.testing import LocalCluster
from tests.broker.test_clients import Member
from tests.broker.wire import Wire
from tests.kit.brokers import served
from tests.kit.clock import Clock

pytestmark = pytest.mark.live

OTHER = [QueueData("broker-b", 2, 2, 6), QueueData("broker-c", 4, 4, 2)]  # the last cannot be read


@pytest.fixture
def members(cluster: LocalCluster, group: str, topic: str) -> Iterator[list[Member]]:
    made = [Member(cluster.broker_address, f"client-{number}") for number in range(3)]
    for member in made:
        member.joins(group, topic)
    yield made
    for member in made:
        member.close()


def ask(
    wire: Wire, topic: str, group: str, client_id: str = "client-0", *, strategy: str = "AVG", model: str = "CLUSTERING"
) -> list[tuple[str, int, str]] | None:
    """Broker, queue and mode of each assigned queue."""
    body = QueryAssignmentRequestBody(topic, group, client_id, strategy, model)
    found = wire.read(
        QueryAssignmentResponseBody, RequestCode.QUERY_ASSIGNMENT, body.to_json()
    ).message_queue_assignments
    if found is None:
        return None
    assert all(each.message_queue is not None and each.message_queue.topic == topic for each in found)
    return [(each.message_queue.broker_name, each.message_queue.queue_id, each.mode) for each in found]  # type: ignore[union-attr]


def set_mode(wire: Wire, topic: str, group: str, mode: str = "POP", share: int = 0) -> tuple[int, str | None]:
    body = SetMessageRequestModeRequestBody(topic, group, mode, share)
    answer = wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body.to_json())
    return answer.code, answer.remark


def test_members_that_pull_share_the_queues(members: list[Member], wire: Wire, topic: str, group: str) -> None:
    shares = [ask(wire, topic, group, member.client_id) for member in members]
    assert shares == [
        [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")],
        [("broker-a", 2, "PULL")],
        [("broker-a", 3, "PULL")],
    ]
    in_turn = [ask(wire, topic, group, member.client_id, strategy="AVG_BY_CIRCLE") for member in members]
    assert [[queue for _, queue, _ in share or ()] for share in in_turn] == [[0, 3], [1], [2]]
    every = [("broker-a", queue, "PULL") for queue in range(4)]
    assert ask(wire, topic, group, model="BROADCASTING") == every
    assert ask(wire, topic, group, "a stranger") == []  # takes everything from it


def answers_route(monkeypatch: pytest.MonkeyPatch, parts: BrokerParts, queues: list[QueueData]) -> None:
    async def queues_of(name: str) -> list[QueueData]:
        return queues

    monkeypatch.setattr(parts.registration, "queues_of", queues_of)


def test_queues_of_other_brokers_are_shared_too(
    members: list[Member],
    wire: Wire,
    topic: str,
    group: str,
    parts: BrokerParts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def queues_of(name: str) -> list[QueueData]:
        return asyncio.run_coroutine_threadsafe(parts.registration.queues_of(name), parts.loop).result(60)

    assert [queues.read_queue_nums for queues in queues_of(topic)] == [4]
    assert queues_of("Nowhere") == []
    answers_route(monkeypatch, parts, [*OTHER, QueueData("broker-a", 9, 9, 6)])
    shares = [ask(wire, topic, group, member.client_id) or [] for member in members]
    found = [(broker, queue) for share in shares for broker, queue, _ in share]
    assert found == [*(("broker-a", queue) for queue in range(4)), ("broker-b", 0), ("broker-b", 1)]

    async def fails(name: str) -> list[QueueData]:
        raise RocketError("no response")

    monkeypatch.setattr(parts.registration, "queues_of", fails)
    assert len(ask(wire, topic, group, model="BROADCASTING") or []) == 6  # not requested again so soon
    monkeypatch.setattr("spark_rocket.broker.processors.assignment._ROUTE_MS", 0)
    assert len(ask(wire, topic, group, model="BROADCASTING") or []) == 6  # kept as it was


def test_routes_are_requested_again_after_the_clock_is_set_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Clock()
    with served(tmp_path, clock, monotonic=running, namesrvAddr="127.0.0.1:1") as (server, wire):
        assert wire.send("T").code == ResponseCode.SUCCESS
        answers_route(monkeypatch, server.broker.parts, [])
        own = ask(wire, "T", "g", model="BROADCASTING") or []
        answers_route(monkeypatch, server.broker.parts, OTHER)
        assert ask(wire, "T", "g", model="BROADCASTING") == own
        clock.now -= 86_400_000
        running.now += 60_000
        assert len(ask(wire, "T", "g", model="BROADCASTING") or []) == len(own) + 2


def test_without_an_assignment_the_client_continues(members: list[Member], wire: Wire, topic: str, group: str) -> None:
    assert ask(wire, "Nowhere", group) is None
    assert ask(wire, topic, "no members") is None
    assert ask(wire, topic, group, strategy="MACHINE_ROOM") is None
    assert ask(wire, "Nowhere", group, model="BROADCASTING") is None


def test_members_that_pop_read_all_the_queues(members: list[Member], wire: Wire, topic: str, group: str) -> None:
    assert set_mode(wire, topic, group) == (0, None)
    assert ask(wire, topic, group) == ask(wire, topic, group, "client-1") == [("broker-a", -1, "POP")]
    set_mode(wire, topic, group, share=1)
    shares = [ask(wire, topic, group, member.client_id) or [] for member in members]
    assert [[queue for _, queue, _ in share] for share in shares] == [[0, 1, 2], [2, 3], [0, 1, 3]]
    set_mode(wire, topic, group, "PULL")
    assert ask(wire, topic, group, "client-1") == [("broker-a", 2, "PULL")]


def test_the_defaults_are_the_brokers(members: list[Member], wire: Wire, topic: str, group: str) -> None:
    with wire.settings(defaultMessageRequestMode="POP", defaultPopShareQueueNum=-1):
        assert ask(wire, topic, group) == [("broker-a", -1, "POP")]
        assert ask(wire, f"%RETRY%{group}", group, "client-0") == [("broker-a", 0, "PULL")]  # always
    with wire.settings(serverLoadBalancerEnable=False):
        assert len(ask(wire, topic, group) or []) == 4
    assert wire.configure(defaultMessageRequestMode="PUSH").code == 1


def test_a_route_of_a_million_queues_is_not_listed(
    members: list[Member], wire: Wire, topic: str, group: str, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_route(monkeypatch, parts, [QueueData("broker-b", 1_000_000, 1_000_000, 6)])
    body = QueryAssignmentRequestBody(topic, group, "client-0", "AVG", "CLUSTERING")
    answer = wire.ask(RequestCode.QUERY_ASSIGNMENT, body.to_json())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"has 1,000,004 queues, and one response assigns at most {MAX_ASSIGNED_QUEUES:,}" in (answer.remark or "")
    set_mode(wire, topic, group, share=-1)
    assert ask(wire, topic, group) == [("broker-a", -1, "POP"), ("broker-b", -1, "POP")]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
    st.integers(0, 6),
    st.integers(1, 7),
    st.sampled_from(sorted(_STRATEGIES)),
)
def test_queues_are_those_of_a_list(counts: dict[str, int], place: int, members: int, strategy: str) -> None:
    expected = sorted(MessageQueue("T", broker, queue) for broker, count in counts.items() for queue in range(count))
    queues = _Queues("T", counts)
    assert (len(queues), queues[:]) == (len(expected), expected)
    share = _STRATEGIES[strategy](place % members, len(queues), members)
    assert queues[share] == expected[share]


@pytest.mark.parametrize("strategy", sorted(_STRATEGIES))
@pytest.mark.parametrize("shared", range(4))
def test_every_queue_is_popped(strategy: str, shared: int) -> None:
    for queues, members in itertools.product((1, 3, 8), (1, 2, 5)):
        every = _Queues("T", {"b": queues})
        clients = [f"c{number}" for number in range(members)]
        shares = [_allocate_for_pop(_STRATEGIES[strategy], client, every, clients, shared) for client in clients]
        assert all(shares)
        found = {queue.queue_id for share in shares for queue in share}
        assert found in ({-1}, set(range(queues)))
        stranger = _allocate_for_pop(_STRATEGIES[strategy], "x", every, clients, shared)
        assert {queue.queue_id for queue in stranger} <= {-1}


@pytest.mark.parametrize(
    ("topic", "group", "mode", "code"),
    [
        ("%RETRY%g", "g", "POP", ResponseCode.NO_PERMISSION),
        ("", "g", "POP", ResponseCode.INVALID_PARAMETER),
        ("T", "no group!", "POP", ResponseCode.INVALID_PARAMETER),
        ("T", "g", "PUSH", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_invalid_modes_are_refused(wire: Wire, topic: str, group: str, mode: str, code: int) -> None:
    assert set_mode(wire, topic, group, mode)[0] == code
    assert b"PUSH" not in wire.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body


@pytest.mark.parametrize("code", [RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE])
def test_invalid_bodies_are_refused(wire: Wire, code: RequestCode) -> None:
    for body in (b"", b"[]", b"{", b'{"topic":[]}'):
        assert wire.ask(code, body).code != ResponseCode.SUCCESS


def test_modes_are_on_disk_before_the_answer(tmp_path: Path) -> None:
    clock = Clock()
    mode = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}
    wanted = {"messageRequestModeMap": {"T": {"g": mode}}}
    with served(tmp_path, clock) as (_, wire):
        assert set_mode(wire, "T", "g", share=3) == (0, None)
        assert loads_tolerant((tmp_path / "config" / "messageRequestMode.json").read_bytes()) == wanted
    with served(tmp_path, clock) as (_, wire):
        answer = wire.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert (answer.code, loads_tolerant(answer.body)) == (0, wanted)
