"""Held pulls: woken by messages of their queue and tags, ended by timeouts and closed connections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from spark_rocket.broker.delivery.held_requests import HeldKind, HeldPlace, HeldRequest, HeldRequests, HoldResult
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import HELD_PULLS
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel


class Peer:
    """The part of a connection that a held pull needs, with the responses that it got."""

    is_active = True
    is_writable = True
    remote_addr = "127.0.0.1:1"

    def __init__(self) -> None:
        self.answered: list[str | None] = []

    def write(self, command: RemotingCommand) -> None:
        self.answered.append(command.remark)


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.rules = object()
        self.held = HeldRequests(asyncio.get_running_loop(), BrokerConfig(**settings), lambda: self.rules)
        self.peer = Peer()

    @property
    def answered(self) -> list[str | None]:
        return self.peer.answered

    def hold(
        self,
        name: str,
        *,
        offset: int = 5,
        tags: set[int] | None = None,
        peer: Peer | None = None,
        milliseconds: int = 60_000,
        subscription: str = "",
        again: Callable[[], RemotingCommand] | None = None,
    ) -> HoldResult:
        request = RemotingCommand.request(11, {"subscription": subscription})
        place = HeldPlace("T", "", 0, HeldKind.PULL, None if tags is None else frozenset(tags))
        channel = cast(Channel, peer or self.peer)
        return self.held.hold(
            HeldRequest(
                channel,
                request,
                place,
                again or (lambda: RemotingCommand.response(request, 0, name)),
                lambda: RemotingCommand.response(request, 0, f"{name}: nothing"),
                offset,
            ),
            milliseconds,
        )


@asynccontextmanager
async def holding(**settings: Any) -> AsyncIterator[Scene]:
    """Held pulls; at the end the tables are consistent, and empty after a stop."""
    scene = Scene(**settings)
    yield scene
    held = scene.held
    assert held.pulls.count == len(list(held.of_topic("T")))
    held.close()
    assert (held.pulls.count, held.pulls.quota.total, held.pulls.lines) == (0, 0, {})


async def settle() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_message_wakes_the_pulls_of_its_queue_once() -> None:
    async with holding() as scene:
        scene.hold("a")
        scene.hold("b")
        scene.held.notify_arriving("T", 1, 6, 0)
        scene.held.notify_arriving("Other", 0, 6, 0)
        await settle()
        assert scene.answered == []
        scene.held.notify_arriving("T", 0, 6, 0)
        scene.held.notify_arriving("T", 0, 7, 0)
        assert scene.answered == []  # not inside the put
        await settle()
        assert scene.held.pulls.count == 0
    assert scene.answered == ["a", "b"]


async def test_a_message_before_the_pulls_offset_does_not_wake_it() -> None:
    async with holding() as scene:
        scene.hold("a", offset=9)
        scene.hold("b", offset=8)
        scene.held.notify_arriving("T", 0, 9, 0)
        await settle()
        assert scene.held.pulls.count == 1
    assert scene.answered == ["b"]


async def test_only_its_tags_wake_a_pull_with_tags() -> None:
    async with holding() as scene:
        scene.hold("tagged", tags={1, 2})
        scene.held.notify_arriving("T", 0, 6, 3)
        await settle()
        assert scene.answered == []
        scene.held.notify_arriving("T", 0, 7, 2)
        await settle()
    assert scene.answered == ["tagged"]


async def test_many_messages_at_once_wake_whatever_their_tags() -> None:
    async with holding() as scene:
        scene.hold("tagged", tags={1})
        scene.held.notify_arriving("T", 0, 100, None)
        await settle()
    assert scene.answered == ["tagged"]


async def test_expiry_answers_in_time() -> None:
    async with holding() as scene:
        done = asyncio.Event()

        def respond() -> RemotingCommand:
            done.set()
            return RemotingCommand.response(RemotingCommand.request(11))

        scene.hold("a", milliseconds=10, again=respond)
        await asyncio.wait_for(done.wait(), 5)
        assert scene.held.pulls.count == 0


async def test_a_closed_connection_ends_its_pulls() -> None:
    other = Peer()
    async with holding() as scene:
        scene.hold("a")
        scene.hold("b", peer=other)
        scene.held.channel_closed(cast(Channel, scene.peer))
        scene.held.channel_closed(cast(Channel, scene.peer))
        assert scene.held.pulls.count == 1
        scene.held.wake_topic("T")
        await settle()
    assert (scene.answered, other.answered) == ([], ["b"])


async def test_a_failed_one_does_not_affect_the_others() -> None:
    def fail() -> RemotingCommand:
        raise RefusedError("no file left", ResponseCode.SYSTEM_ERROR)

    async with holding() as scene:
        for name in "ab":
            scene.hold("", again=fail)
            scene.hold(name)
        scene.held.notify_arriving("T", 0, 6, 0)
        await settle()
    assert len(scene.answered) == 4
    assert scene.answered[1::2] == ["a", "b"]
    assert all("no file left" in (remark or "") for remark in scene.answered[::2])


async def test_a_response_that_cannot_be_written_does_not_affect_the_others() -> None:
    class Broken(Peer):
        def write(self, command: RemotingCommand) -> None:
            raise ValueError("cannot be encoded")

    async with holding() as scene:
        scene.hold("broken", peer=Broken())
        scene.hold("a")
        scene.hold("b", tags={1})
        scene.held.notify_arriving("T", 0, 6, None)
        await settle()
    assert scene.answered == ["a", "b"]


async def test_many_arrivals_for_a_connection_that_does_not_read_have_one_timer() -> None:
    async with holding() as scene:
        slow, later, done = Peer(), asyncio.get_running_loop().call_later, asyncio.Event()
        slow.is_writable = False

        def respond() -> RemotingCommand:
            done.set()
            return RemotingCommand.response(RemotingCommand.request(11))

        scene.hold("slow", peer=slow, again=respond)
        timers: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                asyncio.get_running_loop(),
                "call_later",
                lambda delay, *call: (timers.append(delay), later(delay, *call))[1],
            )
            for _ in range(20):
                scene.held.notify_arriving("T", 0, 6, 0)
                await settle()
        assert len(timers) == 1
        slow.is_writable = True
        await asyncio.wait_for(done.wait(), 30)


async def test_a_pull_that_was_checked_by_other_rules_gets_nothing() -> None:
    async with holding() as scene:
        scene.hold("before")
        scene.rules = object()
        scene.hold("after")
        scene.held.notify_arriving("T", 0, 6, 0)
        await settle()
    assert scene.answered == ["before: nothing", "after"]


async def test_pulls_are_bounded_by_connection_and_those_with_long_filters_count_more() -> None:
    most = STATE_LIMITS[HELD_PULLS].per_connection or 0
    async with holding() as scene:
        assert scene.hold("a", subscription="x" * 128 * (most - 2)) is HoldResult.HELD
        assert scene.hold("b", subscription="x" * 128) is HoldResult.FULL
        assert scene.hold("b", subscription="x" * 128, peer=Peer()) is HoldResult.HELD
        assert scene.hold("c") is HoldResult.HELD
        scene.held.channel_closed(cast(Channel, scene.peer))
        assert scene.hold("d", subscription="x" * 128 * (most - 1)) is HoldResult.HELD
    assert scene.answered == []


async def test_pulls_are_bounded_by_a_setting() -> None:
    async with holding(max_held_pulls=1) as scene:
        assert scene.hold("a") is HoldResult.HELD
        assert scene.hold("b", peer=Peer()) is HoldResult.FULL
