"""Held pulls: woken by messages of their queue and tags, ended by timeouts and closed connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from spark_rocket.broker.delivery.pull_request_hold_service import HeldPull, PullRequestHoldService
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import HELD_PULLS
from spark_rocket.remoting.server.channel import Channel


class Peer:
    """The part of a connection that a held pull needs."""

    remote_addr = "127.0.0.1:1"


CHANNEL = cast(Channel, Peer())


@asynccontextmanager
async def holding() -> AsyncIterator[tuple[PullRequestHoldService, list[str]]]:
    """The service, and the names of the answered pulls; at the end its tables are consistent."""
    service = PullRequestHoldService(asyncio.get_running_loop(), (), lambda *arrived: None)
    yield service, []
    assert service.count == sum(map(len, service._by_queue.values())) == sum(map(len, service._by_channel.values()))


def held(
    answered: list[str], name: str, *, offset: int = 5, tags: set[int] | None = None, channel: Channel = CHANNEL
) -> HeldPull:
    codes = None if tags is None else frozenset(tags)
    return HeldPull(channel, ("T", 0), offset, codes, lambda: answered.append(name))


async def settle() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_message_wakes_the_pulls_of_its_queue_once() -> None:
    async with holding() as (service, answered):
        service.hold(held(answered, "a"), 60)
        service.hold(held(answered, "b"), 60)
        service.notify_arriving("T", 1, 6, 0)
        service.notify_arriving("Other", 0, 6, 0)
        await settle()
        assert answered == []
        service.notify_arriving("T", 0, 6, 0)
        service.notify_arriving("T", 0, 7, 0)
        assert answered == []  # not inside the put
        await settle()
        assert service.count == 0
    assert sorted(answered) == ["a", "b"]


async def test_a_message_before_the_pulls_offset_does_not_wake_it() -> None:
    async with holding() as (service, answered):
        service.hold(held(answered, "a", offset=9), 60)
        service.notify_arriving("T", 0, 9, 0)
        await settle()
        assert service.count == 1
        service.close()
    assert answered == []


async def test_only_its_tags_wake_a_pull_with_tags() -> None:
    async with holding() as (service, answered):
        service.hold(held(answered, "tagged", tags={1, 2}), 60)
        service.notify_arriving("T", 0, 6, 3)
        await settle()
        assert answered == []
        service.notify_arriving("T", 0, 7, 2)
        await settle()
    assert answered == ["tagged"]


async def test_many_messages_at_once_wake_whatever_their_tags() -> None:
    async with holding() as (service, answered):
        service.hold(held(answered, "tagged", tags={1}), 60)
        service.notify_arriving("T", 0, 100, None)
        await settle()
    assert answered == ["tagged"]


async def test_expiry_answers_in_time() -> None:
    async with holding() as (service, _):
        done = asyncio.Event()
        service.hold(HeldPull(CHANNEL, ("T", 0), 0, None, done.set), 0.01)
        await asyncio.wait_for(done.wait(), 5)
        assert service.count == 0


async def test_a_closed_connection_ends_its_pulls() -> None:
    other = cast(Channel, Peer())

    async with holding() as (service, answered):
        service.hold(held(answered, "a"), 0)
        service.hold(held(answered, "b", channel=other), 60)
        service.channel_closed(CHANNEL)
        service.channel_closed(CHANNEL)
        assert service.count == 1
        service.wake_topic("T")
        await settle()
    assert answered == ["b"]


async def test_a_failed_one_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("no file left")

    async with holding() as (service, answered):
        for name in "ab":
            service.hold(HeldPull(CHANNEL, ("T", 0), 0, None, fail), 60)
            service.hold(held(answered, name), 60)
        service.notify_arriving("T", 0, 6, 0)
        await settle()
    assert sorted(answered) == ["a", "b"]
    assert caplog.text.count("failed to respond to a held pull") == 2


async def test_pulls_are_bounded_by_connection_and_those_with_long_filters_count_more() -> None:
    async with holding() as (service, answered):
        limit = STATE_LIMITS[HELD_PULLS]
        most = limit.per_connection or 0
        pull = held(answered, "a")
        pull.weight = most - 1
        service.hold(pull, 60)
        assert service.has_room(CHANNEL, 1, limit.total)
        assert not service.has_room(CHANNEL, 2, limit.total)
        assert not service.has_room(CHANNEL, 1, 1)  # maxHeldPulls
        assert service.has_room(cast(Channel, Peer()), 2, limit.total)
        service.channel_closed(CHANNEL)
        assert service.has_room(CHANNEL, most, limit.total)
    assert answered == []
