"""The limit of the memory for messages: calls that wait, and their order."""

from __future__ import annotations

import asyncio

import pytest

from spark_rocket.errors import RemotingTooMuchRequestError
from spark_rocket.proxy.transport import message_bytes
from spark_rocket.proxy.transport.message_bytes import ByteSemaphore, MessageBytes


async def started(*waiting: asyncio.Task[None]) -> None:
    """Let tasks run until they wait."""
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)


async def test_bytes_wait_for_room_in_order() -> None:
    room = ByteSemaphore(100)
    await room.acquire(80)
    large, small = asyncio.create_task(room.acquire(90)), asyncio.create_task(room.acquire(10))
    await started(large, small)
    assert not room.take(1)  # others wait
    room.release(60)
    await started(large, small)  # the small one does not overtake
    room.release(20)
    await asyncio.wait_for(asyncio.gather(large, small), 10)
    room.release(100)
    assert room.used == 0


@pytest.mark.parametrize("cancelled_at", ["before it is woken", "as it is woken"])
async def test_a_waiter_that_leaves_admits_the_next(cancelled_at: str) -> None:
    room = ByteSemaphore(100)
    await room.acquire(100)
    leaves, stays = asyncio.create_task(room.acquire(60)), asyncio.create_task(room.acquire(60))
    await started(leaves, stays)
    if cancelled_at == "before it is woken":
        leaves.cancel()
        room.release(100)
    else:
        room.release(100)
        leaves.cancel()
    await asyncio.wait_for(stays, 10)
    assert leaves.cancelled()
    assert room.used == 60


async def test_more_than_the_limit_is_admitted_alone() -> None:
    room = ByteSemaphore(100)
    await room.acquire(10)
    waiting = asyncio.create_task(room.acquire(150))
    await started(waiting)
    room.release(10)
    await asyncio.wait_for(waiting, 10)
    assert not room.take(1)


# --- batches ----------------------------------------------------------------------------------------------------


async def test_a_batch_counts_all_copies_until_it_is_written() -> None:
    limit = MessageBytes(100)
    async with limit.batch() as batch:
        await batch.wait()
        assert limit.used == 0  # the broker is asked: nothing is here
        assert batch.take(20)
        assert limit.used == 60
    assert limit.used == 0


async def test_a_batch_without_room_is_requested_again() -> None:
    limit = MessageBytes(100)
    async with limit.batch() as first, limit.batch() as second:
        for batch in (first, second):
            await batch.wait()
        assert first.take(20)
        assert not second.take(20)
        assert limit.used == 60
        waiting = asyncio.create_task(second.wait())
        await started(waiting)
        await first.__aexit__()
        await asyncio.wait_for(waiting, 10)
        assert limit.used == 60  # room is kept for it while the broker is asked
        assert second.take(25)  # more than was dropped
        assert second.take(15)  # or less
        assert limit.used == 45
    assert limit.used == 0


async def test_a_batch_above_the_limit_waits_until_it_is_alone() -> None:
    limit = MessageBytes(100)
    async with limit.batch() as batch, limit.batch() as other:
        await batch.wait()
        assert batch.take(5_000)
        assert not other.take(1)
    assert limit.used == 0


async def test_a_batch_that_waits_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_bytes, "_MAX_WAIT_S", 0.01)
    limit = MessageBytes(100)
    assert limit.stored.take(100)
    async with limit.batch() as batch:
        await batch.wait()
        assert not batch.take(1)
        with pytest.raises(RemotingTooMuchRequestError, match="maxUnreadAnswerBytes"):
            await batch.wait()
    assert limit.used == 100


async def test_decompressed_messages_have_their_own_limit() -> None:
    """Half of it, so that waiting calls do not wait for each other."""
    limit = MessageBytes(100)
    async with limit.batch() as first, limit.batch() as second:
        await first.wait()
        assert first.take(33)
        await first.reserve(20)
        first.keep(10)
        assert limit.used == 99 + 20
        await second.reserve(15)  # beside it
        waiting = asyncio.create_task(first.reserve(20))
        await started(waiting)
        second.keep(5)
        await asyncio.wait_for(waiting, 10)
        first.keep(20)
    assert limit.used == 0
    async with limit.batch() as third:
        await third.reserve(60)  # more than all, when there is nothing else
    assert limit.used == 0
