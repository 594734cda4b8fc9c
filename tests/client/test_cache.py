"""Cached responses of brokers: when they are refreshed, and what is valid without a response."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from spark_rocket.client.core import cache
from spark_rocket.client.core.cache import Cache
from spark_rocket.errors import RemotingConnectError


class World:
    """A cache, its clock, and what it asks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.says: str | None = "first"
        self.fails = False
        self.cache: Cache[str] = Cache(self.load, fresh=20.0, monotonic=lambda: self.now)

    async def load(self, name: str) -> str | None:
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.fails:
            raise RemotingConnectError("no response")
        return self.says


@pytest.fixture
def world() -> World:
    return World()


async def test_one_request_at_a_time_and_none_for_a_fresh_value(world: World) -> None:
    assert await asyncio.gather(*(world.cache.get("a") for _ in range(5))) == ["first"] * 5
    assert world.asked == ["a"]
    world.now = 19.9
    assert (await world.cache.get("a"), world.asked) == ("first", ["a"])


async def test_a_stale_value_is_used_during_its_refresh(world: World) -> None:
    await world.cache.get("a")
    world.now, world.says = 20.1, "second"
    assert await world.cache.get("a") == "first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert (world.cache.last("a"), world.asked) == ("second", ["a", "a"])


async def test_an_expired_value_is_requested_first(world: World) -> None:
    await world.cache.get("a")
    world.now, world.says = 60.1, "second"
    assert await world.cache.get("a") == "second"


async def test_a_missing_value_is_cached_briefly(world: World) -> None:
    world.says = None
    assert await world.cache.get("a") is None
    world.says = "created"
    assert await world.cache.get("a") is None
    world.now = 1.1
    assert await world.cache.get("a") == "created"


async def test_cached_values_are_used_without_a_response(world: World) -> None:
    world.fails = True
    with pytest.raises(RemotingConnectError):
        await world.cache.get("a")
    world.fails = False
    await world.cache.get("a")
    world.now, world.fails = 100.0, True
    assert await world.cache.get("a") == "first"
    asked = len(world.asked)
    assert (await world.cache.get("a"), len(world.asked)) == ("first", asked)  # not at once again
    world.now, world.fails, world.says = 200.0, False, "second"
    assert await world.cache.get("a") == "second"


async def test_a_suspected_client_is_checked_at_intervals(world: World) -> None:
    await world.cache.get("a")
    world.says = "second"
    world.cache.suspect("a")  # just asked
    assert await world.cache.get("a") == "first"
    world.now = 0.6
    world.cache.suspect("a")
    assert await world.cache.get("a") == "second"


async def test_it_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
    for name in "abcd":
        await world.cache.get(name)
    assert [world.cache.last(name) for name in "abcd"] == [None, "first", "first", "first"]
    world.says = None
    for at in range(9):
        await world.cache.get(f"invented {at}")
    assert world.cache.last("d") == "first"


async def test_a_forked_process_does_not_wait_for_requests_of_its_parent(world: World) -> None:
    task = world.cache.refresh("a")
    world.cache.after_fork()
    assert await world.cache.get("a") == "first"
    assert world.asked == ["a", "a"]
    await task


async def test_other_threads_pass_refreshes_to_the_loop() -> None:
    posted: list[Callable[[], object]] = []
    world = World()
    world.cache = Cache(world.load, fresh=20.0, monotonic=lambda: world.now, post=posted.append)
    await world.cache.get("a")
    world.now, world.says = 20.1, "second"
    for _ in range(3):
        assert await asyncio.to_thread(world.cache.peek, "a") == "first"
    (refresh,) = posted
    refresh()
    assert await world.cache.get("a") == "first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.cache.peek("a") == "second"


async def test_a_refresh_that_is_cancelled_before_it_begins_requests_nothing(world: World) -> None:
    world.cache.refresh("a")
    world.cache.close()  # a coroutine that was never awaited is a warning, and an error in tests
    await asyncio.sleep(0)
    gc.collect()
    assert world.asked == []
