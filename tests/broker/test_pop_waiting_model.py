"""Held pops against a model: in a quiet state, no pop waits for an available message."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from spark_rocket.broker.delivery.filters import ALL, PullFilter
from spark_rocket.broker.delivery.held_requests import HeldPlace, HeldRequest, HeldRequests, HoldResult
from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

GROUPS = ("G", "H")
QUEUES = (0, 1)
EXAMINED = 2  # messages that one pop looks at in a queue


class Client:
    is_active = True
    is_writable = True
    remote_addr = "127.0.0.1:1"

    def write(self, command: RemotingCommand) -> None:
        """The response."""


class WaitingMachine(RuleBasedStateMachine):
    """Two groups, two queues, tags 1 and 2; all members of a group have the same subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.waiting = HeldRequests(self.loop, BrokerConfig())
        self.messages: dict[int, list[int]] = {queue: [] for queue in QUEUES}
        self.at = {(group, queue): 0 for group in GROUPS for queue in QUEUES}
        self.wanted = {"G": ALL, "H": PullFilter(frozenset((1,)))}
        self.clients: list[Client] = []
        for group in GROUPS:
            for queue_id in (-1, -1, 0, 1):
                self.ask(group, queue_id, 1)

    def teardown(self) -> None:
        self.nobody_waits_for_what_is_there()
        self.waiting.close()
        self.still()
        assert not list(self.waiting.of_topic("T"))
        self.loop.close()

    def still(self) -> None:
        async def turns() -> None:
            for _ in range(80):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    # --- what the processor does --------------------------------------------------------------------------------

    def pop(self, pop: PopRequest) -> tuple[int, int, bool]:
        """The numbers of found and remaining messages, and whether some were skipped."""
        found = left = 0
        passed = False
        tags = pop.wanted.tag_codes
        for queue in QUEUES if pop.queue_id < 0 else (pop.queue_id,):
            at = self.at[pop.group, queue]
            for tag in self.messages[queue][at : at + EXAMINED]:
                if found == pop.max_msgs:
                    break
                at += 1
                found += tags is None or tag in tags
            passed |= not found and at > self.at[pop.group, queue]
            self.at[pop.group, queue] = at
            left += len(self.messages[queue]) - at
        return found, left, passed

    def run(self, client: Client, request: RemotingCommand, pop: PopRequest) -> RemotingCommand | None:
        found, left, passed = self.pop(pop)
        if found:
            if left:
                self.waiting.more(pop.group, pop.topic, pop.queue_id)
            return RemotingCommand.response(request)
        place = HeldPlace(pop.topic, pop.group, pop.queue_id, tag_codes=pop.wanted.tag_codes)
        held = HeldRequest(
            cast(Channel, client),
            request,
            place,
            lambda: self.run(client, request, pop),
            lambda: RemotingCommand.response(request),
        )
        assert self.waiting.hold(held, 60_000) is HoldResult.HELD
        if passed and left:
            self.waiting.more(pop.group, pop.topic, pop.queue_id)
        return None

    # --- what happens -------------------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), queue_id=st.sampled_from((-1, 0, 1)), most=st.integers(1, 3))
    def ask(self, group: str, queue_id: int, most: int) -> None:
        client = Client()
        self.clients.append(client)
        pop = PopRequest(group, "T", queue_id, most, 60_000, 60_000, 0, 0, self.wanted[group])
        self.run(client, RemotingCommand.request(200050), pop)

    @rule(queue=st.sampled_from(QUEUES), tags=st.lists(st.sampled_from((1, 2)), min_size=1, max_size=4))
    def send(self, queue: int, tags: list[int]) -> None:
        for tag in tags:
            self.messages[queue].append(tag)
            self.waiting.notify_arriving("T", queue, len(self.messages[queue]), tag)

    @rule(queue=st.sampled_from(QUEUES), tags=st.lists(st.sampled_from((1, 2)), min_size=2, max_size=6))
    def send_batch(self, queue: int, tags: list[int]) -> None:
        self.messages[queue] += tags
        for tag in set(tags):
            self.waiting.notify_arriving("T", queue, len(self.messages[queue]), tag)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        client.is_active = client.is_writable = False
        self.waiting.channel_closed(cast(Channel, client))

    @rule()
    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule()
    def nobody_waits_for_what_is_there(self) -> None:
        before = dict(self.at)
        self.still()
        for place in list(self.waiting.pops.lines):
            pop = PopRequest(place.group, "T", place.queue_id, 32, 0, 0, 0, 0, self.wanted[place.group])
            for _ in range(40):
                found, left, _ = self.pop(pop)
                assert not found, (place, before, self.messages)
                if not left:
                    break


TestWaiting = WaitingMachine.TestCase
TestWaiting.settings = settings(max_examples=60, stateful_step_count=8, deadline=None)
