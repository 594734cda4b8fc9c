"""Random histories of members that own queues: no message is skipped, and no queue has two owners.

Members join, leave and crash, their brokers stop responding, locks expire, listeners succeed and fail, and tools reset
offsets. Ctrl-C interrupts commits and unlocks. During requests other members act; while a member finds a start offset,
so do its own other threads.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.client.consume import owned_queues
from spark_rocket.client.consume.listeners import ConsumeFromWhere
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.queue_locks import EXPIRED_AT_BROKER_SECONDS
from spark_rocket.model import MessageQueue
from tests.client.consuming import message
from tests.client.owning import Brokers, Owner, Q

START = 7  # the first offset of each queue


class Histories:
    """Members of a group, their calls of listeners, and what was consumed."""

    def __init__(self, chance: random.Random, orderly: bool) -> None:
        self.chance, self.orderly = chance, orderly
        self.brokers = Brokers()
        self.brokers.on_request = self.meanwhile
        self.members: dict[str, Owner] = {}
        self.calls: dict[MessageQueue, list[tuple[Owner, ProcessQueue]]] = defaultdict(list)
        self.consumed: dict[MessageQueue, set[int]] = defaultdict(set)
        self.ends = dict.fromkeys(Q, START)
        self.committed: dict[MessageQueue, int] = {}
        self.regresses: set[MessageQueue] = set()  # queues whose owner changed without its last commit
        self.acting: list[Owner] = []
        self.interrupting = True

    # --- steps ------------------------------------------------------------------------------------------------

    def join(self) -> None:
        if len(self.members) < 3:
            name = f"m{len(self.brokers.asked)}-{len(self.members)}"
            where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            self.members[name] = Owner(self.brokers, name, orderly=self.orderly, where=where)
            self.brokers.ids = sorted(self.members)

    def leave(self) -> None:
        """Close a member when the calls of its listener have ended."""
        name = self.chance.choice(list(self.members))
        if self.members[name] in self.acting:
            return
        one = self.members.pop(name)
        self.brokers.ids = sorted(self.members)
        for queue in Q:
            for owner, process_queue in list(self.calls[queue]):
                if owner is one:
                    self.end(owner, process_queue, success=True)
        self.act(one, one.queues.close)
        self.interrupting, interrupting = False, self.interrupting
        self.act(one, one.queues.close)  # again, if it was interrupted
        self.interrupting = interrupting

    def crash(self) -> None:
        name = self.chance.choice(list(self.members))
        if self.members[name] in self.acting:
            return
        one = self.members.pop(name)
        self.brokers.ids = sorted(self.members)
        self.regresses |= {queue for queue, owner in self.brokers.owners.items() if owner == name}
        self.brokers.owners = {queue: owner for queue, owner in self.brokers.owners.items() if owner != name}
        for calls in self.calls.values():
            calls[:] = [(owner, process_queue) for owner, process_queue in calls if owner is not one]

    def expire(self) -> None:
        """A lock expires without a renewal."""
        for queue, name in list(self.brokers.owners.items()):
            if not self.calls[queue] and self.chance.random() < 0.3:
                del self.brokers.owners[queue]
                self.regresses.add(queue)
                for process_queue in self.members[name].queues.process_queues() if name in self.members else ():
                    if process_queue.queue == queue:
                        process_queue.last_lock -= EXPIRED_AT_BROKER_SECONDS + 1

    def silence(self) -> None:
        self.brokers.silent = set() if self.brokers.silent else {"b"}
        self.regresses.update(Q)  # a last commit may fail

    def balance(self, one: Owner) -> None:
        one.balance()

    def persist(self, one: Owner) -> None:
        one.queues.persist()

    def renew(self, one: Owner) -> None:
        one.queues.renew_locks()

    def reset(self, one: Owner) -> None:
        """A tool resets the offset of a queue to the first message."""
        queue = self.chance.choice(Q)
        if queue in one.queues.queues():
            self.regresses.add(queue)
            one.queues.restart({queue: START}, commit=True)

    def receive(self, one: Owner) -> None:
        for process_queue in one.queues.process_queues():
            start, end = process_queue.end, process_queue.end + self.chance.randrange(4)
            process_queue.put([message(offset) for offset in range(start, end)], end)
            self.ends[process_queue.queue] = max(self.ends[process_queue.queue], end)

    def begin(self, one: Owner) -> None:
        """Begin a call of the listener, as the services do."""
        for process_queue in one.queues.process_queues():
            if process_queue.dropped or process_queue.lock_consume.locked():
                continue
            if self.orderly and (not process_queue.locked or process_queue.is_lock_expired()):
                continue
            taken = process_queue.take(2)
            if taken:
                calls = self.calls[process_queue.queue]
                assert not (self.orderly and calls), "two owners at once"
                assert {*range(START, taken[0].queue_offset)} <= self.consumed[process_queue.queue], "skipped"
                process_queue.lock_consume.acquire()
                calls.append((one, process_queue))

    def finish(self) -> None:
        calls = [call for calls in self.calls.values() for call in calls if call[0] not in self.acting]
        if calls:
            owner, process_queue = self.chance.choice(calls)
            self.end(owner, process_queue, success=self.chance.random() < 0.8)

    def end(self, owner: Owner, process_queue: ProcessQueue, *, success: bool) -> None:
        queue = process_queue.queue
        self.calls[queue].remove((owner, process_queue))
        if success:
            self.consumed[queue].update(one.queue_offset for one in process_queue.take(0))
            if self.orderly or not process_queue.dropped:
                process_queue.commit()
        else:
            process_queue.give_back()
        process_queue.lock_consume.release()
        if process_queue.dropped:
            self.act(owner, lambda: owner.queues.released(process_queue))

    # --- running ----------------------------------------------------------------------------------------------

    def step(self, depth: int = 0) -> None:
        if not self.members:
            self.join()
        one = self.members[self.chance.choice(list(self.members))]
        rarely = self.chance.random() < 0.1
        if self.chance.random() < 0.5 and one not in self.acting:
            frequent = [self.balance, self.balance, self.receive, self.begin, self.begin, self.persist]
            of_one = self.chance.choice([self.renew, self.reset] if rarely and not depth else frequent)
            self.act(one, lambda: of_one(one))
        else:
            rare = [self.crash] if depth else [self.crash, self.silence, self.expire]
            self.chance.choice(rare if rarely else [self.join, self.leave, self.finish, self.finish])()
        self.check()

    def act(self, one: Owner, action: Callable[[], None]) -> None:
        self.acting.append(one)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                action()
        finally:
            self.acting.remove(one)

    def meanwhile(self, kind: str) -> None:
        """Another member acts during a request. While an offset is read, so does another thread of the same one."""
        if self.interrupting and kind in ("commit", "unlock") and self.chance.random() < 0.02:
            self.regresses.update(Q)
            raise KeyboardInterrupt
        if len(self.acting) != 1 or self.chance.random() < 0.5:
            return
        (one,) = self.acting
        if kind == "read" and self.chance.random() < 0.5:
            other = self.chance.choice([self.receive, self.begin, self.balance, self.persist])
            self.act(one, lambda: other(one))
        else:
            self.step(depth=1)

    def check(self) -> None:
        for queue in Q:
            valid = [
                one
                for one in self.members.values()
                for process_queue in one.queues.process_queues()
                if process_queue.queue == queue and process_queue.locked and not process_queue.dropped
                if not process_queue.is_lock_expired()
            ]
            assert len(valid) <= 1, "two valid locks"
            offset = self.brokers.offsets.get(queue, START)
            assert {*range(START, offset)} <= self.consumed[queue], "acknowledged before it was consumed"
            if self.orderly and queue not in self.regresses:
                assert offset >= self.committed.get(queue, START), "an offset ran backwards"
            self.committed[queue] = offset

    def settle(self) -> None:
        """Let the group come to rest, and consume everything."""
        self.brokers.on_request = lambda _: None
        self.brokers.silent = set()
        while any(self.calls.values()):
            call = next(calls[0] for calls in self.calls.values() if calls)
            self.end(*call, success=True)
        if not self.members:
            self.join()
        for _ in range(2):  # first those that have too much release it
            for one in self.members.values():
                one.balance()
            held = {queue: owner for queue, owner in self.brokers.owners.items() if owner in self.members}
            self.brokers.owners = {  # the locks of others expire
                queue: owner for queue, owner in held.items() if queue in self.members[owner].queues.queues()
            }
        owners = [queue for one in self.members.values() for queue in one.queues.positions()]
        assert sorted(owners) == Q, "every queue has one owner"
        for one in self.members.values():
            one.queues.renew_locks()
            for process_queue in one.queues.process_queues():
                queue = process_queue.queue
                process_queue.put(map(message, range(process_queue.end, self.ends[queue])), self.ends[queue])
                rest = [each.queue_offset for each in process_queue.take(1_000)]
                self.consumed[queue].update(rest)
                process_queue.commit()
            one.queues.close()
        for queue in Q:
            assert self.consumed[queue] == {*range(START, self.ends[queue])}, "lost"
            assert self.brokers.offsets.get(queue, START) == self.ends[queue]
        assert self.brokers.owners == {}


@pytest.mark.parametrize("orderly", [True, False])
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_message_is_skipped_and_no_queue_has_two_owners(orderly: bool, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owned_queues, "COMMIT_RETRY_SECONDS", 0.0)
        histories = Histories(random.Random(seed), orderly)
        for _ in range(100):
            histories.step()
        histories.settle()
