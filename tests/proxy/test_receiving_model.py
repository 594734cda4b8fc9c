"""Random receives, cancellations, acks, changes, renewals and departures of clients, with a manual clock.

What must hold: what was acked is not delivered again, what was not acked is, and no two clients have the same message.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.statuses import StatusError
from tests.proxy.consuming import Consuming, consuming

pytestmark = pytest.mark.live


class Had:
    """A message in flight: its handle, and the end of its invisible time. None: until it is acked."""

    def __init__(self, client_id: str, handle: str, until: int | None) -> None:
        self.client_id = client_id
        self.handle = handle
        self.until = until


class Clients:
    """Three clients of a group."""

    def __init__(self, world: Consuming, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.sent = 0
        self.acked: set[bytes] = set()
        self.had: dict[bytes, Had] = {}
        self.members: dict[str, tuple[str, str]] = {}

    def send(self) -> None:
        for _ in range(self.random.randrange(1, 12)):
            self.world.send(b"%d" % self.sent, queue_id=self.random.randrange(4))
            self.sent += 1

    def receive(self) -> None:
        client_id = self._somebody()
        renewed = self.random.random() < 0.5
        seconds = self.random.choice((10, 15, 60))
        now = self.world.clock()
        batch_size = self.random.choice((1, 3, 32))
        if renewed:
            messages = self.world.receive(auto_renew=True, batch_size=batch_size)
        else:
            messages = self.world.receive(invisible_duration={"seconds": seconds}, batch_size=batch_size)
        for message in messages:
            body = bytes(message.body)
            assert body not in self.acked
            had = self.had.get(body)
            assert had is None or (had.until is not None and had.until <= now), (
                f"{body!r} is with {had and had.client_id}"
            )
            until = None if renewed else now + seconds * 1000
            self.had[body] = Had(client_id, message.system_properties.receipt_handle, until)

    def break_off(self) -> None:
        """A receive that is canceled."""
        self._somebody()
        answers = self.world.receiving.receive_message(
            self.world.context(), self.world.request(auto_renew=self.random.random() < 0.5)
        )
        taken = self.random.randrange(1, 5)

        async def some_of() -> None:
            for _ in range(taken):
                await anext(answers, None)
            await answers.aclose()

        self.world.do(some_of())
        self.world.settle_all()

    def ack(self) -> None:
        of_one = self._of_one()
        chosen = dict(self.random.sample(of_one, min(len(of_one), self.random.choice((1, 5, 40)))))
        if not chosen:
            return
        answer = self.world.ack(*[had.handle for had in chosen.values()])
        now = self.world.clock()
        for (body, had), entry in zip(chosen.items(), answer.entries, strict=True):
            if had.until is None or had.until > now:
                assert entry.status.code == Code.OK, entry
                self.acked.add(body)
                del self.had[body]
            else:
                assert entry.status.code == Code.INVALID_RECEIPT_HANDLE

    def change(self) -> None:
        of_one = self._of_one()
        if not of_one:
            return
        body, had = self.random.choice(of_one)
        seconds = self.random.choice((1, 10, 100))
        now = self.world.clock()
        try:
            handle = self.world.change(had.handle, seconds, suspend=self.random.random() < 0.5).receipt_handle
        except StatusError as error:
            assert error.code == Code.INVALID_RECEIPT_HANDLE  # noqa: PT017
            assert had.until is not None
            assert had.until <= now
            return
        self.had[body] = Had(had.client_id, handle, now + seconds * 1000)

    def leave(self) -> None:
        self._leave(self._somebody())

    def _leave(self, client_id: str) -> None:
        self.world.client_id = client_id
        member = self.members.pop(client_id)
        group = self.world.group
        self.world.leave(member)
        self.world.run(lambda: self.world.renewals.client_left(client_id, [group]))
        self.world.settle_all()
        for had in self.had.values():
            if had.client_id == client_id and had.until is None:
                had.client_id, had.until = (
                    "",
                    self.world.clock(),
                )  # it belongs to no client, and is redelivered within a second

    def wait(self) -> None:
        self.world.live(self.random.choice((100, 3_000, 20_000, 70_000)))

    def _somebody(self) -> str:
        self.world.client_id = client_id = self.random.choice(("a@1", "b@1", "c@1"))
        if client_id not in self.members:
            self.members[client_id] = self.world.register()
        return client_id

    def _of_one(self) -> list[tuple[bytes, Had]]:
        client_id = self._somebody()
        return [(body, had) for body, had in self.had.items() if had.client_id == client_id]

    def verify(self) -> None:
        """All clients leave: all unacked messages are redelivered, and acked."""
        for client_id in tuple(self.members):
            self._leave(client_id)
        found: set[bytes] = set()
        while len(found) < self.sent - len(self.acked):
            self.world.live(110_000)
            messages: list[Any] = self.world.receive()
            bodies = {bytes(message.body) for message in messages}
            assert bodies, f"{self.sent - len(self.acked) - len(found)} messages are lost"
            assert not bodies & self.acked
            assert not bodies & found
            found |= bodies
            answer = self.world.ack(*messages)
            assert answer.status.code == Code.OK, answer
        self.world.live(110_000)
        assert self.world.receive() == []


@pytest.fixture(params=range(1, 3))
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clients]:
    with consuming(tmp_path) as world:
        yield Clients(world, request.param)
        assert world.renewals.count == 0


def test_acked_messages_never_return_and_all_others_do(clients: Clients) -> None:
    steps = [clients.send, clients.receive, clients.break_off, clients.ack, clients.change, clients.leave, clients.wait]
    for step in clients.random.choices(steps, (4, 8, 2, 6, 3, 1, 3), k=150):
        step()
    clients.verify()
