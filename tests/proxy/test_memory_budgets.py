"""Bytes of connections within a bound: who waits, who is closed."""

from __future__ import annotations

import asyncio

import pytest

from spark_rocket.proxy.memory_budgets import PendingBytes, UnreadBytes


class Connection:
    def __init__(self) -> None:
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


def test_responses_wait_for_room() -> None:
    async def run() -> None:
        budget = UnreadBytes(100)
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

    asyncio.run(run())


@pytest.mark.parametrize("cancelled_at", ["before it is woken", "as it is woken"])
def test_a_waiter_that_leaves_lets_the_next_one_in(cancelled_at: str) -> None:
    async def run() -> None:
        budget = UnreadBytes(100)
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

    asyncio.run(run())


def test_a_response_above_the_limit_waits_for_an_empty_budget() -> None:
    async def run() -> None:
        budget = UnreadBytes(100)
        one = Connection()
        await budget.wait_for_room(one, 150)
        assert not one.is_closed
        budget.sent(one, 150)
        assert budget.used == 0

    asyncio.run(run())


def test_too_much_that_waits_closes_the_connection_with_the_most() -> None:
    async def run() -> None:
        budget = UnreadBytes(100)
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

    asyncio.run(run())


def test_a_connection_that_does_not_read_is_closed_when_others_wait() -> None:
    async def run() -> None:
        budget = UnreadBytes(100)
        reader, deaf = Connection(), Connection()
        await budget.wait_for_room(deaf, 100)
        waiting = asyncio.create_task(budget.wait_for_room(reader, 50))
        await asyncio.wait_for(deaf.closed.wait(), 10)
        assert not reader.is_closed
        budget.sent(deaf, 100)
        await asyncio.wait_for(waiting, 10)

    asyncio.run(run())
