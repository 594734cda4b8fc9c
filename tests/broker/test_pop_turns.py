"""Topics with more queues than one request examines: requests examine parts, and continue each other."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_rocket.broker.pop import turns
from spark_rocket.broker.pop.turns import MAX_EXAMINED_QUEUES, QueueTurns, parts_of, place_of
from spark_rocket.broker.state.topic_config_manager import new_topic
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.state import CONSUMER_OFFSETS, STATE_LIMITS
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.testing import LocalCluster
from tests.broker.pop_world import World, texts
from tests.broker.popping import NONE, SOME, Popper
from tests.broker.wire import Wire, messages_of

QUEUES = 5_000


def test_few_queues_are_one_part_that_begins_anywhere() -> None:
    queue_turns = QueueTurns()
    assert queue_turns.part("p", 4, 0) == [0, 1, 2, 3]
    assert queue_turns.part("p", 4, 7) == [3, 0, 1, 2]
    assert len(queue_turns.part("p", MAX_EXAMINED_QUEUES, 0)) == MAX_EXAMINED_QUEUES
    assert queue_turns.part("p", 0, 5) == []


def test_parts_examine_each_queue_once_for_each_place() -> None:
    queue_turns = QueueTurns()
    places = [place_of("g", "T", kind, tags) for kind in ("pop", "peek") for tags in (None, frozenset({1}))]
    seen = {place: Counter[int]() for place in places}
    for _ in range(parts_of(QUEUES)):
        for place in places:
            seen[place].update(queue_turns.part(place, QUEUES, 0))
    for counts in seen.values():
        assert counts.keys() == set(range(QUEUES))
        assert counts.total() == parts_of(QUEUES) * MAX_EXAMINED_QUEUES


def test_positions_are_limited_and_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_MAX_POSITIONS", 2)
    queue_turns = QueueTurns()
    queue_turns.continue_at("used", QUEUES, 7)
    queue_turns.continue_at("unused", QUEUES, 7)
    queue_turns.part("used", QUEUES, 0)
    queue_turns.continue_at("new", QUEUES, 7)
    assert list(queue_turns._next) == ["used", "new"]


# --- pops ---------------------------------------------------------------------------------------------------------


def test_one_pop_examines_a_part_of_the_queues(world: World) -> None:
    world.topics.put(new_topic("Wide", QUEUES))
    for number in range(1, parts_of(QUEUES) + 1):
        assert world.pop(topic="Wide") == []
        committed = world.offsets.query_all("g", "Wide")
        assert len(committed) == min(number * MAX_EXAMINED_QUEUES, QUEUES)


def test_a_late_queue_is_reached_in_a_bounded_number_of_pops(world: World) -> None:
    world.topics.put(new_topic("Wide", QUEUES))
    world.send(b"late", QUEUES - 1, topic="Wide")
    found = [text for _ in range(parts_of(QUEUES)) for text in texts(world.pop(topic="Wide"))]
    assert found == [b"late"]


def test_queues_with_many_messages_are_read_in_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_EXAMINED_QUEUES", 4)
    world.topics.put(new_topic("Wide", 10))
    for queue_id in range(10):
        for _ in range(3):
            world.send(b"%d" % queue_id, queue_id, topic="Wide")
    for count in (1, 2, 3):
        for _ in range(10):
            assert len(world.pop(topic="Wide", most=1)) == 1
        assert set(world.offsets.query_all("g", "Wide").values()) == {count}


def test_a_pop_that_is_full_says_that_it_left_queues_unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_EXAMINED_QUEUES", 4)
    world.topics.put(new_topic("Wide", 10))
    world.send(b"one", 3, topic="Wide")
    cuts = []
    for _ in range(3):
        world.pop(topic="Wide", most=1)
        cuts.append((world.result.count, world.result.is_cut))
    assert sum(count for count, _ in cuts) == 1
    assert all(count or not is_cut for count, is_cut in cuts)
    world.send(b"two", 1)
    world.pop(most=1)
    assert (world.result.count, world.result.is_cut) == (1, False)  # T has two queues


def test_a_pop_returns_its_messages_when_no_more_offsets_fit(world: World) -> None:
    world.offsets.commit("g", "T", 0, 0)
    world.send(b"there", 0)
    world.offsets._count = STATE_LIMITS[CONSUMER_OFFSETS].total
    assert texts(world.pop()) == [b"there"]
    with pytest.raises(RefusedError, match="too many consumer offsets"):
        world.pop()


# --- over the wire ------------------------------------------------------------------------------------------------


@pytest.fixture
def wide(wire: Wire, cluster: LocalCluster, group: str) -> Popper:
    return Popper(wire, group, cluster.create_topic(f"Wide-{group}", QUEUES))


@pytest.mark.live
def test_a_held_pop_examines_all_queues(wide: Popper) -> None:
    for queue_id in (QUEUES - 1, 0, 1_500, 2_500, 3_500):
        wide.send(b"%d" % queue_id, queue_id=queue_id)
        (message,) = messages_of(wide.pop_later().result(30))
        assert (message.body, message.queue_id) == (b"%d" % queue_id, queue_id)


@pytest.mark.live
def test_a_held_pop_rests_when_all_queues_are_examined(wide: Popper) -> None:
    first, second = wide.pop_later(), wide.pop_later()
    assert wide.polling_num() == "2"
    for queue_id in (1_234, 4_321):
        wide.send(b"later", queue_id=queue_id)
    assert first.result(30).code == second.result(30).code == ResponseCode.SUCCESS


@pytest.mark.live
def test_a_pop_without_waiting_examines_one_part(wide: Popper) -> None:
    wide.send(b"x", queue_id=QUEUES - 1)
    codes = [wide.pop().code for _ in range(parts_of(QUEUES))]
    assert sorted(codes) == [ResponseCode.SUCCESS] + [ResponseCode.POLLING_TIMEOUT] * (len(codes) - 1)


@pytest.mark.live
def test_notifications_and_peeks_reach_all_queues(wide: Popper) -> None:
    wide.send(b"late", queue_id=QUEUES - 1)
    assert wide.notification(pollTime=60_000) == SOME
    assert wide.notification() == SOME  # the next begins with the queue that has a message
    peeked = {wide.peek().code for _ in range(parts_of(QUEUES))}
    assert peeked == {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND}
    assert wide.pop_later().result(30).code == ResponseCode.SUCCESS
    assert [wide.notification() for _ in range(parts_of(QUEUES))] == [NONE] * parts_of(QUEUES)
