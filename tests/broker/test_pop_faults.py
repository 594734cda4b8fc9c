"""POP when something goes wrong halfway: errors of the store, resets, kills, topics that are made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.pop.acks import GATHER_MS
from spark_rocket.broker.topics import new_topic
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.store.check import check_store
from spark_rocket.store.results import PutResult, PutStatus
from tests.broker.pop_world import World, texts
from tests.broker.test_pop_revive import write

FULL = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    world = World(tmp_path)
    yield world
    world.close()
    assert check_store(tmp_path / "store", world.config()) == []


def failing(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], Exception | PutResult | None]
) -> None:
    """The store's puts fail as ``fails`` says of their topic."""
    put = world.store.put_message

    def put_message(topic: str, *args: Any, **more: Any) -> PutResult:
        problem = fails(topic)
        if isinstance(problem, Exception):
            raise problem
        return problem or put(topic, *args, **more)

    monkeypatch.setattr(world.store, "put_message", put_message)


def test_what_an_error_keeps_from_coming_back_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue_id in (0, 1):
        world.send(b"%d" % queue_id, queue_id)
    world.send(b"2", 0)
    world.pop(invisible=1_000)
    errors = [None, OSError(5, "Input/output error")]
    failing(world, monkeypatch, lambda topic: errors.pop(0) if errors and topic.startswith("%RETRY%") else None)
    with pytest.raises(OSError, match="Input/output"):
        world.pass_time(1_000)
    world.pass_time(1_000)
    assert sorted(texts(world.pop())) == [b"0", b"1", b"2"]


def test_what_was_given_back_cannot_be_kept_for_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        world.send(b"%d" % number)
    (first, second) = (receipt for _, receipt in world.pop(invisible=1_000))
    results = [None, FULL]
    failing(world, monkeypatch, lambda topic: results.pop(0) if results and topic.startswith("%RETRY%") else None)
    world.clock.now += 1_000
    world.timer.deliver(world.clock(), 10.0)
    world.pops.deliver(world.clock(), 10.0)  # of the two the first
    with pytest.raises(RefusedError) as refused:
        world.pops.change_invisible("g", "T", 0, first, 0, 5_000)
    assert refused.value.response_code == ResponseCode.NO_MESSAGE
    assert world.pops.change_invisible("g", "T", 0, second, 1, 5_000)
    world.pass_time(4_999)
    assert texts(world.pop()) == [b"0"]
    world.pass_time(1)
    assert texts(world.pop()) == [b"1"]


def test_a_queue_without_a_check_point_keeps_nothing_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue_id in (0, 1):
        world.send(b"%d" % queue_id, queue_id)
    results = [None, FULL]
    with monkeypatch.context() as patch:
        failing(world, patch, lambda topic: results.pop(0) if results else None)
        first = texts(world.pop())
    assert len(first) == 1
    assert sorted(first + texts(world.pop())) == [b"0", b"1"]


def test_pops_of_one_millisecond_after_a_reset_have_names_of_their_own(world: World) -> None:
    for number in range(5):
        world.send(b"%d" % number)
    world.pop(most=1, invisible=1_000)
    world.offsets.reset("g", "T", 0, 0)
    assert world.pop() == []
    assert (world.result.passed, world.result.rest_num) == (True, 5)
    world.clock.now += 1
    assert len(world.pop(invisible=1_000)) == 5
    world.pass_time(1_000)
    assert sorted(texts(world.pop())) == [b"0", b"0", b"1", b"2", b"3", b"4"]


def test_after_a_kill_a_topic_made_anew_is_popped_from_its_beginning(world: World) -> None:
    for number in range(10):
        world.send(b"%d" % number)
    world.save_offsets()
    for _, receipt in world.pop():
        world.pops.ack("g", "T", 0, receipt, receipt.offset)
    world.pass_time(GATHER_MS)
    world.topics.delete("T")
    world.offsets.remove_topic("T")
    world.store.delete_topic("T")
    world.topics.put(new_topic("T", 2))
    world.clock.now += 1
    for number in range(5):
        world.send(b"new %d" % number)
    world.kill()
    assert texts(world.pop()) == [b"new %d" % number for number in range(5)]


def test_the_sign_of_a_bit_map_is_an_ack_too(world: World) -> None:
    for number in range(3):
        world.send(b"%d" % number)
    world.offsets.commit("g", "T", 0, 3)
    place = {"t": "T", "c": "g", "q": 0, "so": 0, "pt": world.clock() - 1_000, "bn": "b"}
    write(world, "ck", {**place, "it": 1_000, "n": 3, "bm": -(1 << 31) | 1, "d": [0, 1, 2], "ro": 5})
    assert texts(world.pop()) == [b"1", b"2"]
