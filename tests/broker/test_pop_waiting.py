"""Held pops: a message wakes one of each group, in turn and by tag; without a match it is held again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from spark_rocket.broker.delivery.filters import ALL, PullFilter
from spark_rocket.broker.delivery.held_requests import HeldKind, HeldPlace, HeldRequest, HeldRequests, HoldResult
from spark_rocket.broker.pop.requests import time_left
from spark_rocket.broker.pop.turns import MAX_EXAMINED_QUEUES, parts_of
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

NOW = 1_795_229_620_131


class Client:
    """The parts of a connection that a held request needs."""

    is_active = True
    is_writable = True
    remote_addr = "127.0.0.1:1"

    def write(self, command: RemotingCommand) -> None:
        """Responses are seen where they are made."""


class Scene:
    """Held pops, and the messages available for them, by group."""

    def __init__(self, **settings: Any) -> None:
        self.now = NOW
        self.queues = 8
        self.waiting = HeldRequests(
            asyncio.get_running_loop(), BrokerConfig(**settings), parts_of=lambda topic: parts_of(self.queues)
        )
        self.ran: list[str] = []
        self.answered: list[str] = []
        self._one_more = asyncio.Event()
        self.there: dict[str, int] = {}
        self.channel = cast(Channel, Client())

    def answer(self, name: str) -> None:
        self.answered.append(name)
        self._one_more.set()

    async def until(self, number: int) -> None:
        while len(self.answered) < number:
            self._one_more.clear()
            await asyncio.wait_for(self._one_more.wait(), 30)

    def hold(
        self,
        name: str,
        group: str = "G",
        *,
        topic: str = "T",
        queue_id: int = -1,
        wanted: PullFilter = ALL,
        order: bool = False,
        poll_time: int = 60_000,
        born_time: int = NOW,
        channel: Channel | None = None,
        takes: int = 1,
    ) -> HoldResult:
        kind = HeldKind.ORDER if order else HeldKind.POP
        place = HeldPlace(topic, group, queue_id, kind, wanted.tag_codes)

        def again() -> bool:
            self.ran.append(name)
            there = self.there.get(group, 0)
            if there:
                self.there[group] = max(there - takes, 0)
                self.answer(name)
                if there > takes:
                    self.waiting.more(group, topic, queue_id)
            return there > 0

        return self.hold_at(place, name, again, milliseconds=time_left(born_time, poll_time, self.now), channel=channel)

    def hold_at(
        self,
        place: HeldPlace,
        name: str,
        again: Callable[[], bool],
        *,
        milliseconds: int = 60_000,
        channel: Channel | None = None,
    ) -> HoldResult:
        """Hold a request; ``again`` runs it, and returns whether it is completed."""
        request = RemotingCommand.request(200050)
        response = RemotingCommand.response(request)

        def nothing() -> RemotingCommand:
            self.answer(name + ": nothing")
            return response

        def run() -> RemotingCommand | None:
            if again():
                return response
            return None if self.waiting.hold(held, 0) is HoldResult.HELD else nothing()

        held = HeldRequest(channel or self.channel, request, place, run, nothing)
        return self.waiting.hold(held, milliseconds)

    def arrive(self, topic: str = "T", queue_id: int = 0, tags_code: int | None = 0, **there: int) -> None:
        for group, count in there.items():
            self.there[group] = self.there.get(group, 0) + count
        self.waiting.notify_arriving(topic, queue_id, 1, tags_code)


@asynccontextmanager
async def playing(**settings: Any) -> AsyncIterator[Scene]:
    """A scene; at its end the tables are consistent, and empty after a stop."""
    scene = Scene(**settings)
    yield scene
    waiting = scene.waiting
    assert waiting.pops.count == sum(len(line.waiters) for line in waiting.pops.lines.values())
    waiting.close()
    assert (waiting.pops.count, waiting.pops.quota.total, waiting.pops.lines) == (0, 0, {})
    assert list(waiting.of_topic("T")) == []


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_message_wakes_one_pop_of_each_group_and_the_oldest_first() -> None:
    async with playing() as scene:
        for number in range(500):
            assert scene.hold(f"a{number}", "A") is HoldResult.HELD
        scene.hold("b", "B")
        scene.hold("other", topic="Other")
        scene.arrive(A=1, B=1)
        assert scene.ran == []  # not inside the put
        await settle()
        assert sorted(scene.ran) == ["a0", "b"]
        scene.arrive(queue_id=7, A=1)
        await settle()
        assert scene.answered[2:] == ["a1"]


async def test_a_pop_that_finds_nothing_keeps_its_place_and_wakes_no_other() -> None:
    async with playing() as scene:
        scene.hold("first")
        scene.hold("second")
        scene.arrive()
        await settle()
        assert (scene.ran, scene.answered) == (["first"], [])
        scene.arrive(G=1)
        await settle()
        assert scene.answered == ["first"]


async def test_messages_wake_as_many_pops_as_they_can_serve() -> None:
    async with playing() as scene:
        for number in range(9):
            scene.hold(f"{number}", takes=32)
        for _ in range(100):  # one turn of the loop: a batch, or many senders
            scene.arrive(G=1)
        for _ in range(4):
            await settle()
        assert scene.answered == ["0", "1", "2", "3"]
        assert scene.ran == scene.answered


async def test_a_queue_wakes_its_waiters_and_those_of_all_queues() -> None:
    async with playing() as scene:
        scene.hold("of 1", queue_id=1)
        scene.hold("of 2", queue_id=2)
        scene.hold("of all")
        scene.arrive(queue_id=1)
        await settle()
        assert sorted(scene.ran) == ["of 1", "of all"]
        assert scene.waiting.polling_num("G", "T", -1) == scene.waiting.polling_num("G", "T", 2) == 1
        assert scene.waiting.polling_num("G", "T", 3) == scene.waiting.polling_num("H", "T", -1) == 0


@pytest.mark.parametrize("topic", ["%RETRY%G_T", "%RETRY%G+T"])
async def test_the_groups_retry_topics_wake_it_and_no_other_group(topic: str) -> None:
    async with playing() as scene:
        scene.hold("mine", queue_id=3)
        scene.hold("theirs", "H")
        scene.hold("in order", order=True)
        scene.arrive(topic)
        await settle()
        assert scene.ran == ["mine"]


async def test_other_tags_wake_no_pull() -> None:
    async with playing() as scene:
        scene.hold("1 or 2", wanted=PullFilter(frozenset((1, 2))))
        scene.hold("by properties", wanted=PullFilter(matches=lambda properties: False))
        scene.arrive(tags_code=3)
        await settle()
        assert scene.ran == ["by properties"]
        scene.arrive(tags_code=2)
        scene.arrive(tags_code=None)
        await settle()
        assert sorted(scene.ran) == ["1 or 2", "by properties", "by properties"]


async def test_messages_without_a_match_are_skipped_while_there_are_more() -> None:
    async with playing() as scene:
        left = [3]

        def again() -> bool:
            scene.ran.append("looked")
            left[0] -= 1
            if left[0]:
                scene.waiting.more("G", "T", -1)
            return False

        scene.hold_at(HeldPlace("T", "G", -1), "a", again)
        scene.arrive()
        await settle()
        await settle()
        assert scene.ran == ["looked"] * 3


async def test_time_is_up_after_the_birth_and_not_after_the_request_came() -> None:
    async with playing() as scene:
        assert scene.hold("too late", born_time=NOW - 60_000) is HoldResult.TIMED_OUT
        assert scene.hold("too short", poll_time=0) is HoldResult.TIMED_OUT
        assert scene.hold("of long ago", born_time=1) is HoldResult.TIMED_OUT
        assert scene.hold("soon", born_time=NOW - 59_900) is HoldResult.HELD
        assert scene.hold("no birth", born_time=0, poll_time=100) is HoldResult.HELD
        await scene.until(2)
        assert sorted(scene.answered) == ["no birth: nothing", "soon: nothing"]
        scene.hold("from the future", born_time=NOW + 10**9)
        (waiter,) = scene.waiting.of_topic("T")
        assert waiter.timer is not None
        assert waiter.timer.when() - asyncio.get_running_loop().time() <= 60


async def test_a_pop_woken_without_a_message_ends_at_its_timeout() -> None:
    async with playing() as scene:
        scene.hold("a", poll_time=100)
        scene.arrive()
        await settle()
        assert scene.ran == ["a"]
        await scene.until(1)
        assert scene.answered == ["a: nothing"]


async def test_too_many_waiters_get_an_error() -> None:
    async with playing(pop_polling_size=2, pop_polling_map_size=2, max_pop_polling_size=3) as scene:
        assert [scene.hold("a") for _ in range(3)] == [HoldResult.HELD, HoldResult.HELD, HoldResult.FULL]
        assert scene.hold("b", "H") is HoldResult.HELD
        assert scene.hold("c", "I") is HoldResult.FULL  # two places at most
        assert scene.hold("d", "H") is HoldResult.FULL  # three in all


async def test_a_closed_connection_ends_its_pops() -> None:
    async with playing() as scene:
        other = cast(Channel, Client())
        scene.hold("a")
        scene.hold("b", channel=other)
        scene.arrive(G=1)
        scene.waiting.channel_closed(scene.channel)
        scene.waiting.channel_closed(scene.channel)
        await settle()
        assert scene.answered == ["b"]


async def test_producers_that_do_not_read_are_asked_later() -> None:
    async with playing() as scene:
        slow, gone = Client(), Client()
        slow.is_writable = gone.is_active = gone.is_writable = False
        scene.hold("gone", channel=cast(Channel, gone))
        scene.hold("slow", channel=cast(Channel, slow))
        scene.hold("a")
        scene.arrive(G=1)
        await settle()
        assert (scene.answered, scene.waiting.pops.count) == (["a"], 1)
        scene.arrive(G=1)
        await settle()
        assert scene.answered == ["a"]
        slow.is_writable = True
        await scene.until(2)
        assert scene.answered == ["a", "slow"]


async def test_one_that_fails_wakes_the_next_after_a_while() -> None:
    async with playing() as scene:

        def fail() -> bool:
            raise RefusedError("no file left", ResponseCode.SYSTEM_ERROR)

        for _ in range(3):
            scene.hold_at(HeldPlace("T", "G", -1), "b", fail)
        scene.hold("a")
        scene.arrive(G=1)
        await settle()
        assert scene.waiting.pops.count == 3, "what fails for all does not end the whole line at once"
        await scene.until(1)
        assert scene.answered == ["a"]


async def test_a_reset_wakes_the_pops_of_its_group_alone() -> None:
    async with playing() as scene:
        scene.hold("own")
        scene.hold("other", "H")
        scene.there = {"G": 1, "H": 1}
        scene.waiting.offsets_reset("G", "T")
        await settle()
        assert (scene.ran, scene.answered, scene.waiting.pops.count) == (["own"], ["own"], 1)


async def test_notifications_are_woken_by_the_number_of_messages() -> None:
    async with playing() as scene:
        told: list[int] = []
        for number in range(4):
            place = HeldPlace("T", "G", -1, HeldKind.NOTIFICATION)

            def tell(number: int = number) -> bool:
                told.append(number)
                return True

            scene.hold_at(place, "a notification", tell)
        scene.hold("a pop", takes=2)
        assert scene.waiting.polling_num("G", "T", -1) == 1
        scene.arrive(G=1)
        scene.arrive(G=1)
        await settle()
        assert told == [0, 1]
        assert scene.answered == ["a pop"]


async def test_a_deleted_topic_answers_everybody() -> None:
    async with playing() as scene:
        scene.hold("a")
        scene.hold("b")
        scene.waiting.wake_topic("T")
        await settle()
        assert scene.answered == ["a: nothing", "b: nothing"]


async def test_after_each_arrival_a_line_runs_until_all_parts_of_a_topic_are_examined() -> None:
    async with playing() as scene:
        scene.queues = 3 * MAX_EXAMINED_QUEUES
        scene.hold("first")  # it has examined one part
        scene.hold("second")
        for _ in range(4):
            await settle()
        assert scene.ran == ["first"] * 2
        scene.arrive()
        for _ in range(4):
            await settle()
        assert scene.ran == ["first"] * 5


async def test_the_next_request_of_a_line_examines_the_parts_that_are_left() -> None:
    async with playing() as scene:
        scene.hold("first")
        scene.hold("second")
        scene.queues = 4 * MAX_EXAMINED_QUEUES
        scene.arrive(G=1)
        for _ in range(4):
            await settle()
        assert scene.answered == ["first"]
        assert scene.ran == ["first"] + ["second"] * 3
