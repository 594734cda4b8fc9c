"""POP with failures: errors of the store, resets, kills, recreated topics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.pop.acks import GATHER_MS
from spark_rocket.broker.state.topic_config_manager import new_topic
from spark_rocket.errors import RefusedError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.ids import real_topic
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.results import PutResult, PutStatus
from spark_rocket.store.tools.check import check_store
from tests.broker.pop_world import World, texts
from tests.broker.test_pop_revive import write

FULL = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")


def failing(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], Exception | PutResult | None]
) -> None:
    """The store's puts fail if ``fails`` returns true for their topic."""
    put = world.store.put_message

    def put_message(topic: str, *args: Any, **more: Any) -> PutResult:
        problem = fails(topic)
        if isinstance(problem, Exception):
            raise problem
        return problem or put(topic, *args, **more)

    monkeypatch.setattr(world.store, "put_message", put_message)


def test_a_failed_redelivery_is_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.send_numbers(2, 0, 1)
    world.send(b"2", 0)
    world.pop(invisible=1_000)
    errors = [None, OSError(5, "Input/output error")]
    failing(world, monkeypatch, lambda topic: errors.pop(0) if errors and topic.startswith("%RETRY%") else None)
    with pytest.raises(OSError, match="Input/output"):
        world.pass_time(1_000)
    world.pass_time(1_000)
    assert sorted(texts(world.pop())) == [b"0", b"1", b"2"]


def test_returned_messages_cannot_be_extended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.send_numbers(2)
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


def test_a_queue_without_a_check_point_does_not_affect_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_numbers(2, 0, 1)
    results = [None, FULL]
    with monkeypatch.context() as patch:
        failing(world, patch, lambda topic: results.pop(0) if results else None)
        first = texts(world.pop())
    assert len(first) == 1
    world.clock.now += 1
    assert sorted(first + texts(world.pop())) == [b"0", b"1"]


def test_pops_of_one_millisecond_after_a_reset_have_different_names(world: World) -> None:
    world.send_numbers(5)
    world.pop(most=1, invisible=1_000)
    world.offsets.reset("g", "T", 0, 0)
    assert world.pop() == []
    assert (world.result.passed, world.result.rest_num) == (True, 5)
    world.clock.now += 1
    assert len(world.pop(invisible=1_000)) == 5
    world.pass_time(1_000)
    assert sorted(texts(world.pop())) == [b"0", b"0", b"1", b"2", b"3", b"4"]


def test_after_a_kill_a_recreated_topic_is_popped_from_its_beginning(world: World) -> None:
    world.send_numbers(10)
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
    world.send_numbers(3)
    world.offsets.commit("g", "T", 0, 3)
    place = {"t": "T", "c": "g", "q": 0, "so": 0, "pt": world.clock() - 1_000, "bn": "b"}
    write(world, "ck", {**place, "it": 1_000, "n": 3, "bm": -(1 << 31) | 1, "d": [0, 1, 2], "ro": 5})
    assert texts(world.pop()) == [b"1", b"2"]


def test_a_check_point_that_was_written_despite_an_error_keeps_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = world.store.put_message

    def put_and_fail(*args: Any, **more: Any) -> PutResult:
        put(*args, **more)
        raise OSError(5, "Input/output error")

    world.send(b"0")
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put_message", put_and_fail)
        with pytest.raises(OSError, match="Input/output"):
            world.pop(most=1, invisible=5_000)
    world.send(b"1")
    assert world.pop() == []
    world.clock.now += 1
    assert texts(world.pop(invisible=5_000)) == [b"0", b"1"]
    world.pass_time(5_000)
    assert sorted(texts(world.pop())) == [b"0", b"0", b"1"]


def test_messages_are_acked_though_the_clock_was_set_back(world: World) -> None:
    world.send_numbers(2)
    (first, _) = (receipt for _, receipt in world.pop(invisible=5_000))
    world.clock.now -= 3_600_000
    world.pops.ack("g", "T", 0, first, 0)
    world.pass_time(3_605_000)
    assert texts(world.pop()) == [b"1"]


def test_acks_are_written_though_the_clock_is_set_back_meanwhile(world: World) -> None:
    """Otherwise too many would be in memory, and refused."""
    world.send_numbers(2)
    (first, _) = (receipt for _, receipt in world.pop(invisible=5_000))
    before = world.store.get_max_offset(TIMER_TOPIC, 0)
    world.pops.ack("g", "T", 0, first, 0)
    world.clock.now -= 3_600_000
    world.pass_time(GATHER_MS)
    assert world.store.get_max_offset(TIMER_TOPIC, 0) == before + 1


class Unlucky(World):
    """A world in which some of the store's puts fail, before or after they have stored the record."""

    lucky = True

    def put_message(self, *args: Any, **more: Any) -> PutResult:
        chance = 1.0 if self.lucky else self.random.random()
        if chance < 0.15:
            return FULL
        if chance < 0.22:
            raise OSError(5, "Input/output error, nothing stored")
        result = super().put_message(*args, **more)
        if chance < 0.3:
            raise OSError(5, "Input/output error, stored")
        return result

    def give(self) -> set[bytes]:
        """Pop, and process each message in a random way; return the acked ones."""
        acked, random = set(), self.random
        most, invisible = random.choice((1, 3, 32)), random.choice((500, 2_000, 10_000))
        for record, receipt in self.pop(most=most, queue_id=random.choice((-1, 0, 1)), invisible=invisible):
            place = ("g", real_topic("T", "g", receipt.flag), receipt.queue_id, receipt, receipt.offset)
            chance = random.random()
            with suppress(OSError, RefusedError):
                if chance < 0.3:
                    self.pops.ack(*place)
                    acked.add(bytes(record.body))
                elif chance < 0.5:
                    self.pops.change_invisible(*place, random.choice((300, 3_000)))
        return acked


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_whatever_fails(tmp_path: Path, seed: int) -> None:
    world = Unlucky(tmp_path, seed)
    world.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=999))
    world.send_numbers(10, 0, 1)
    seen: set[bytes] = set()
    for _ in range(30):
        world.lucky = False
        with suppress(OSError, RefusedError):
            seen |= world.give()
        with suppress(OSError, AssertionError):  # the store may refuse for long
            world.pass_time(world.random.choice((0, 200, 1_000, 4_000)))
        world.lucky = True
        if world.random.random() < 0.1:
            world.random.choice((world.kill, world.stop))()
    for _ in range(30):
        world.pass_time(5_000)
        seen |= {bytes(record.body) for record, _ in world.pop(invisible=200_000_000)}
    assert seen == {b"%d" % number for number in range(10)}
    world.close()
    assert check_store(tmp_path / "store", world.config()) == []
