"""A broker with a manual clock, and a proxy's consuming methods called as functions, connected by Remoting."""

from __future__ import annotations

import itertools
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.methods.acknowledging import AckFamily
from spark_rocket.proxy.methods.pulling import PullFamily
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.proxy.methods.receiving import ReceiveFamily
from spark_rocket.proxy.methods.renewals import Renewals
from tests.broker.wire import Wire
from tests.kit.brokers import Served, served
from tests.kit.clock import Clock
from tests.kit.waiting import until
from tests.proxy.brokers import cluster_of
from tests.proxy.direct import DirectContext

T = TypeVar("T")
POLL_MS = 60
"""The polling time of an empty receive."""


def handle_of(message: Any) -> str:
    """The receipt handle of a message, or the handle itself."""
    handle: str = message if isinstance(message, str) else message.system_properties.receipt_handle
    return handle


class Consuming:
    """One client of a group, at one broker."""

    def __init__(self, server: Served, wire: Wire, clock: Clock, cluster: ProxyCluster) -> None:
        self.server = server
        self.wire = wire
        self.clock = clock
        self.topic = "Orders"
        self.group = "GID_billing"
        self.cluster = cluster
        self.members: set[tuple[str, str]] = set()
        self.receipts = Receipts(cluster)
        self.renewals: Renewals = server.run(
            lambda: Renewals(cluster, self.receipts, lambda client_id, group: (client_id, group) in self.members)
        )
        self.acking = AckFamily(self.receipts, self.renewals)
        self.receiving = ReceiveFamily(cluster, self.receipts, self.renewals, min_polling_ms=POLL_MS)
        self.pulling: PullFamily = server.run(lambda: PullFamily(cluster))
        self.client_id = "client@1"
        self.clients = itertools.count(1)
        self._numbers = itertools.count()
        server.run(lambda: self.parts.topics.ensure(self.topic, 4))

    @property
    def parts(self) -> BrokerParts:
        return self.server.broker.parts

    # --- the client ---------------------------------------------------------------------------------------------

    def context(self, *, seconds: float | None = 30.0, **metadata: str) -> Any:
        every = {"x-mq-client-version": "5.1.2"}
        every.update((name.replace("_", "-"), value) for name, value in metadata.items())
        deadline = None if seconds is None else time.monotonic() + seconds
        return DirectContext(self.client_id, deadline=deadline, **every)

    def request(self, **fields: Any) -> Any:
        """A ReceiveMessageRequest for a minute; ``fields`` override."""
        request = definitions.ReceiveMessageRequest(
            group={"name": self.group}, message_queue={"topic": {"name": self.topic}}, batch_size=32
        )
        request.long_polling_timeout.nanos = POLL_MS * 1_000_000
        if not fields.get("auto_renew"):
            request.invisible_duration.seconds = 60
        request.MergeFrom(definitions.ReceiveMessageRequest(**fields))
        return request

    def answers(self, request: Any, context: Any = None) -> list[Any]:
        """All responses of a ReceiveMessage."""

        async def all_of() -> list[Any]:
            return [each async for each in self.receiving.receive_message(context or self.context(), request)]

        return self.do(all_of())

    def receive(self, **fields: Any) -> list[Any]:
        """The messages of a ReceiveMessage; the rest of its answers is checked."""
        first, *messages, last = self.answers(self.request(**fields))
        assert first.status.code == (Code.OK if messages else Code.MESSAGE_NOT_FOUND)
        assert last.WhichOneof("content") == "delivery_timestamp"
        return [answer.message for answer in messages]

    def bodies(self, **fields: Any) -> list[bytes]:
        return sorted(message.body for message in self.receive(**fields))

    def ack(self, *messages: Any, **fields: Any) -> Any:
        """Acks of these messages, or of these handles."""
        return self.do(self.acked(*messages, **fields))

    async def acked(self, *messages: Any, **fields: Any) -> Any:
        handles = [handle_of(message) for message in messages]
        request = definitions.AckMessageRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            entries=[{"message_id": f"id {handle[:9]}", "receipt_handle": handle} for handle in handles],
        )
        for name, value in fields.items():
            request.ClearField(name)
            request.MergeFrom(definitions.AckMessageRequest(**{name: value}))
        return await self.acking.ack_message(self.context(), request)

    def change(self, message: Any, seconds: int, nanos: int = 0, **fields: Any) -> Any:
        return self.do(self.changed(message, seconds, nanos, **fields))

    async def changed(self, message: Any, seconds: int, nanos: int = 0, **fields: Any) -> Any:
        request = definitions.ChangeInvisibleDurationRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=handle_of(message),
            invisible_duration={"seconds": seconds, "nanos": nanos},
            **fields,
        )
        return await self.acking.change_invisible_duration(self.context(), request)

    def forward(self, message: Any) -> Any:
        """Make a message a dead letter."""
        return self.do(self.forwarded(message))

    async def forwarded(self, message: Any) -> Any:
        request = definitions.ForwardMessageToDeadLetterQueueRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=handle_of(message),
            message_id=message.system_properties.message_id,
        )
        return await self.acking.forward_message_to_dead_letter_queue(self.context(), request)

    def change_group(self, **settings: Any) -> None:
        """Set fields of its group's settings."""

        def change() -> None:
            known = self.parts.groups.find(self.group)
            assert known is not None
            self.parts.groups.put(replace(known, **settings))

        self.run(change)

    def register(self) -> tuple[str, str]:
        """Send a heartbeat: the client is a member of its group until ``leave``."""
        member = (self.client_id, self.group)
        self.members.add(member)
        return member

    def leave(self, member: tuple[str, str]) -> None:
        """Unregister, or become silent."""
        self.members.discard(member)

    # --- the broker ---------------------------------------------------------------------------------------------

    def send(self, *bodies: bytes, queue_id: int | None = None, **properties: str) -> RemotingCommand:
        """Messages by the classic protocol, to one queue after the other."""
        for body in bodies:
            queue = next(self._numbers) % 4 if queue_id is None else queue_id
            answer = self.wire.send(self.topic, body, {"UNIQ_KEY": f"U{body.hex()}", **properties}, queue_id=queue)
            assert answer.code == 0, answer.remark
        return answer

    def pass_time(self, milliseconds: int) -> None:
        """Advance the clock, and run everything that is due."""
        self.clock.now += milliseconds
        self.settle()

    def live(self, milliseconds: int) -> None:
        """Advance the clock in steps, with all periodic work."""
        for start in range(0, milliseconds, 5_000):
            self.clock.now += min(5_000, milliseconds - start)
            self.run(self.renewals.timer.wake)
            self.settle_all()
        self.settle()

    def settle(self) -> None:
        for _ in range(2):
            self.server.wake()
            self.run(self.renewals.timer.wake)
            self.settle_all()
        self.server.wake()

    def settle_all(self) -> None:
        """Wait until proxy and broker have finished their background work."""
        self.do(self.cluster.settle())
        self.do(self.parts.tasks.settle())

    def wait_for(self, condition: Any) -> None:
        """Wait until a condition is true on the loop."""
        until(lambda: self.run(condition))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.server.do(work)

    def run(self, call: Any) -> Any:
        return self.server.run(call)


@contextmanager
def a_client_of(world: Consuming) -> Iterator[Consuming]:
    """The same world with a new client, topic and group, which must leave nothing."""
    number = next(world.clients)
    world.topic, world.group, world.client_id = f"Topic-{number}", f"GID-{number}", f"client@{number}"
    world.run(lambda: world.parts.topics.ensure(world.topic, 4))
    yield world
    world.settle()
    assert world.renewals.count == 0, "renewals are left"


@contextmanager
def consuming(directory: Path, clock: Clock | None = None, **settings: Any) -> Iterator[Consuming]:
    clock = clock or Clock()
    with served(directory, clock, **settings) as (server, wire), cluster_of(server, clock) as cluster:
        world = Consuming(server, wire, clock, cluster)
        yield world
        world.run(world.renewals.close)
        world.settle_all()
        held = world.run(lambda: (world.parts.held_requests.pops.count, world.parts.held_requests.pulls.count))
        assert held == (0, 0), "ended calls are held"
