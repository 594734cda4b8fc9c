"""Shares of queues: the results of Java's strategies, with exactly one owner for every queue."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client.consume.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocateStrategy,
)
from spark_rocket.errors import ClientError
from spark_rocket.model import MessageQueue


def queues(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for number in range(count)]


def ids(found: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in found]


@pytest.mark.parametrize(
    ("strategy", "count", "members", "shares"),
    [
        (AllocateAveragely(), 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AllocateAveragely(), 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (AllocateAveragely(), 2, 4, [[0], [1], [], []]),
        (AllocateAveragely(), 0, 2, [[], []]),
        (AllocateByCircle(), 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (AllocateByCircle(), 2, 4, [[0], [1], [], []]),
    ],
)
def test_shares(strategy: AllocateStrategy, count: int, members: int, shares: list[list[int]]) -> None:
    names = [f"c{number}" for number in range(members)]
    assert [ids(strategy.allocate("g", name, queues(count), names)) for name in names] == shares


def test_an_unknown_member_has_no_share() -> None:
    nearby = AllocateMachineRoomNearby(AllocateAveragely(), lambda _: "r", lambda _: "r")
    for strategy in (AllocateAveragely(), AllocateByCircle(), AllocateByConsistentHash(), nearby):
        assert strategy.allocate("g", "me", queues(4), ["you"]) == []
    assert AllocateByMachineRoom(["r"]).allocate("g", "me", queues(4, "r@b"), ["you"]) == []


def test_config_returns_its_queues_of_the_topic() -> None:
    other = MessageQueue("other", "b", 0)
    strategy = AllocateByConfig([*queues(2), other])
    assert strategy.allocate("g", "me", queues(4), ["you"]) == queues(2)


def test_machine_rooms() -> None:
    near = queues(5, "hz@a")
    far = queues(3, "sh@a") + queues(2, "nowhere")
    strategy = AllocateByMachineRoom(["hz"])
    assert [ids(strategy.allocate("g", name, near + far, ["c0", "c1"])) for name in ("c0", "c1")] == [[0, 1, 4], [2, 3]]


def test_rooms_nearby_and_rooms_without_members() -> None:
    strategy = AllocateMachineRoomNearby(
        AllocateAveragely(), lambda queue: queue.broker_name, lambda client: client.partition("-")[0]
    )
    every = queues(2, "hz") + queues(2, "sh") + queues(2, "empty")
    members = ["hz-1", "hz-2", "sh-1"]
    shares = {name: strategy.allocate("g", name, every, members) for name in members}
    assert [(queue.broker_name, queue.queue_id) for queue in shares["sh-1"]] == [("sh", 0), ("sh", 1)]
    assert [(queue.broker_name, queue.queue_id) for queue in shares["hz-1"]] == [("hz", 0), ("empty", 0)]
    assert sorted(queue for share in shares.values() for queue in share) == sorted(every)
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


def test_consistent_hash_moves_few_queues() -> None:
    strategy = AllocateByConsistentHash()
    members = [f"192.168.0.{number}@1" for number in range(10)]
    before = {queue: name for name in members for queue in strategy.allocate("g", name, queues(200), members)}
    left = members[1:]
    after = {queue: name for name in left for queue in strategy.allocate("g", name, queues(200), left)}
    assert len(before) == len(after) == 200
    assert all(after[queue] == owner for queue, owner in before.items() if owner != members[0])
    with pytest.raises(ClientError, match="virtual_nodes is out of range"):
        AllocateByConsistentHash(0)


STRATEGIES = st.sampled_from([AllocateAveragely(), AllocateByCircle(), AllocateByConsistentHash(3)])


@settings(deadline=None)
@given(STRATEGIES, st.integers(0, 40), st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=12))
def test_every_queue_has_one_owner(strategy: AllocateStrategy, count: int, members: set[str]) -> None:
    names = sorted(members)
    owned = Counter(queue for name in names for queue in strategy.allocate("g", name, queues(count), names))
    assert owned == Counter(queues(count))
