"""Memory budgets of connections: waiting and closed ones."""

from __future__ import annotations

import asyncio

import pytest

from spark_rocket.errors import RemotingTooMuchRequestError
from spark_rocket.proxy.transport import memory_budgets
from spark_rocket.proxy.transport.memory_budgets import PendingBytes, ResponseBytes


class Connection:
    def __init__(self) -> None:
        self.forwarded = 0
        self.is_closed = False
        self.closed = asyncio.Event()

    def abort(self) -> None:
        self.is_closed = True
        self.closed.set()


def test_incomplete_requests() -> None:
    budget = PendingBytes(100)
    small, large = Connection(), Connection()
    budget.received(small, 30)
    budget.received(large, 70)
    budget.taken(small, 1_000)  # an estimate never falls below 0
    assert (budget.held(small), budget.used) == (0, 70)
    budget.received(small, 30)
    assert not large.is_closed
    budget.received(small, 1)
    assert (large.is_closed, small.is_closed) == (True, False)
    assert (budget.used, budget.closed) == (31, 1)


def test_one_connection_with_everything() -> None:
    budget = PendingBytes(100)
    only = Connection()
    budget.received(only, 101)
    assert only.is_closed
    assert budget.used == 0


async def test_responses_wait_for_room() -> None:
    budget = ResponseBytes(100)
    first, second = Connection(), Connection()
    await budget.wait_for_room(first, 80)
    waiting = [asyncio.create_task(budget.wait_for_room(second, 30)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    budget.sent(first, 80)
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), 10)
    for _ in range(2):
        budget.sent(second, 30)
    assert budget.used == 0


@pytest.mark.parametrize("cancelled_at", ["before it is woken", "as it is woken"])
async def test_a_waiter_that_leaves_admits_the_next(cancelled_at: str) -> None:
    budget = ResponseBytes(100)
    first, second = Connection(), Connection()
    await budget.wait_for_room(first, 100)
    leaves = asyncio.create_task(budget.wait_for_room(second, 50))
    stays = asyncio.create_task(budget.wait_for_room(second, 50))
    await asyncio.sleep(0)
    if cancelled_at == "before it is woken":
        leaves.cancel()
        budget.sent(first, 100)
    else:
        budget.sent(first, 100)
        leaves.cancel()
    await asyncio.wait_for(stays, 10)
    assert leaves.cancelled()
    assert budget.used == 50


async def test_a_large_response_waits_for_an_empty_budget() -> None:
    budget = ResponseBytes(100)
    one = Connection()
    await budget.wait_for_room(one, 150)
    assert not one.is_closed
    budget.sent(one, 150)
    assert budget.used == 0


async def test_too_many_pending_bytes_close_the_largest_connection() -> None:
    budget = ResponseBytes(100)
    reader, deaf = Connection(), Connection()
    await budget.wait_for_room(deaf, 100)
    waiting = asyncio.create_task(budget.wait_for_room(reader, 90))
    await asyncio.sleep(0)
    assert not deaf.is_closed
    more = asyncio.create_task(budget.wait_for_room(deaf, 20))
    await asyncio.sleep(0)
    assert (deaf.is_closed, reader.is_closed) == (True, False)
    more.cancel()
    budget.sent(deaf, 100)  # as its calls end
    await asyncio.wait_for(waiting, 10)
    assert budget.used == 90


async def test_a_connection_that_does_not_read_is_closed_when_others_wait() -> None:
    budget = ResponseBytes(100)
    reader, deaf, slow = Connection(), Connection(), Connection()
    for connection in (deaf, slow):
        await budget.wait_for_room(connection, 50)
        budget.write_begins(connection)
    waiting = asyncio.create_task(budget.wait_for_room(reader, 50))
    await asyncio.sleep(0)
    slow.forwarded += 20_000
    await asyncio.wait_for(deaf.closed.wait(), 10)
    assert not reader.is_closed
    assert not slow.is_closed
    budget.write_ends(deaf)
    budget.sent(deaf, 50)
    await asyncio.wait_for(waiting, 10)


async def test_a_connection_that_reads_small_responses_is_not_closed() -> None:
    budget = ResponseBytes(100)
    slow, deaf, reader = Connection(), Connection(), Connection()
    async with budget.batch(slow) as batch, budget.batch(deaf) as other:
        for connection, one in ((slow, batch), (deaf, other)):
            await one.wait()
            assert one.take(15)
            budget.write_begins(connection)
        waiting = asyncio.create_task(budget.wait_for_room(reader, 50))
        await asyncio.sleep(0)
        budget.write_ends(slow)
        budget.write_begins(slow)
        await asyncio.wait_for(deaf.closed.wait(), 10)
        assert not slow.is_closed
    await asyncio.wait_for(waiting, 10)


async def test_connections_take_turns() -> None:
    budget = ResponseBytes(100)
    greedy, modest = Connection(), Connection()
    await budget.wait_for_room(greedy, 100)
    waiting = [asyncio.create_task(budget.wait_for_room(one, 40)) for one in (greedy, greedy, modest)]
    await asyncio.sleep(0)
    budget.sent(greedy, 100)
    await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), 10)
    assert not waiting[1].done()
    budget.sent(modest, 40)
    await asyncio.wait_for(waiting[1], 10)


# --- batches ----------------------------------------------------------------------------------------------------


async def test_a_batch_counts_all_copies_until_it_is_written() -> None:
    budget = ResponseBytes(100)
    async with budget.batch(Connection()) as batch:
        await batch.wait()
        assert budget.used == 0  # the broker is asked: nothing is here
        assert batch.take(20)
        assert (batch.size, budget.used) == (20, 60)
    assert budget.used == 0
    assert budget.has_room(100)


async def test_a_batch_without_room_is_requested_again() -> None:
    budget = ResponseBytes(100)
    async with budget.batch(Connection()) as first, budget.batch(Connection()) as second:
        for batch in (first, second):
            await batch.wait()
        assert first.take(20)
        assert not second.take(20)
        assert budget.used == 60
        waiting = asyncio.create_task(second.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        await first.__aexit__()
        await asyncio.wait_for(waiting, 10)
        assert not budget.has_room(60)  # room is kept for it while the broker is asked
        assert second.take(25)  # more than was dropped
    assert budget.used == 0


@pytest.mark.parametrize("size", [50, 5_000])
async def test_a_batch_above_the_limit_waits_for_an_empty_budget(size: int) -> None:
    budget = ResponseBytes(100)
    async with budget.batch(Connection()) as batch:
        await batch.wait()
        assert batch.take(size)
        assert not budget.has_room(0)


async def test_a_batch_that_waits_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budgets, "_MAX_BATCH_WAIT_S", 0.01)
    budget = ResponseBytes(100)
    deaf = Connection()
    await budget.wait_for_room(deaf, 100)
    async with budget.batch(Connection()) as batch:
        await batch.wait()
        assert not batch.take(1)
        with pytest.raises(RemotingTooMuchRequestError, match="maxUnreadAnswerBytes"):
            await batch.wait()
    budget.sent(deaf, 100)
    assert budget.has_room(100)


# --- what is unpacked -------------------------------------------------------------------------------------------


async def test_decompressed_messages_have_their_own_budget() -> None:
    """Half of it, so that waiting calls do not wait for each other."""
    budget = ResponseBytes(100)
    async with budget.batch(Connection()) as first, budget.batch(Connection()) as second:
        await first.wait()
        assert first.take(33)
        assert not budget.has_room(2)
        await first.reserve(20)
        first.keep(10)
        assert (first.size, budget.used) == (43, 99 + 20)
        await second.reserve(15)  # beside it
        waiting = asyncio.create_task(first.reserve(20))
        await asyncio.sleep(0)
        assert not waiting.done()
        second.keep(5)
        await asyncio.wait_for(waiting, 10)
        first.keep(20)
    assert budget.used == 0
    async with budget.batch(Connection()) as third:
        await third.reserve(60)  # more than all, when there is nothing else


async def test_a_connection_that_does_not_read_is_closed_when_others_wait_for_decompression() -> None:
    budget = ResponseBytes(100)
    deaf = Connection()
    async with budget.batch(Connection()) as batch:
        async with budget.batch(deaf) as other:
            await other.reserve(25)
            budget.write_begins(deaf)
            waiting = asyncio.create_task(batch.reserve(25))
            await asyncio.wait_for(deaf.closed.wait(), 10)
            budget.write_ends(deaf)
        await asyncio.wait_for(waiting, 10)
    assert budget.used == 0
