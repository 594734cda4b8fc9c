"""ForwardMessageToDeadLetterQueue: the place of an abandoned message, and invalid handles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.proxy import definitions
from tests.broker.wire import Wire
from tests.kit.clock import Clock
from tests.proxy.caller import resource
from tests.proxy.direct import BrokersEndpoint, DirectCaller, endpoint
from tests.proxy.outgoing import message, sent

pytestmark = pytest.mark.live

Code = definitions.Code
GROUP, DEAD = "GID_d", "%DLQ%GID_d"


class World:
    """A consumer with one received message of topic T."""

    def __init__(self, here: BrokersEndpoint, wire: Wire, clock: Clock) -> None:
        self.here, self.wire, self.clock = here, wire, clock
        self.client: DirectCaller = here.client()
        here.create_topic("T")
        here.create_topic("Other")
        sent(self.client, message("T", b"bad", {"a": "b"}, tag="t", keys=["k"], message_id="M1"))
        (self.message,) = self.receive()

    def receive(self) -> list[Any]:
        return self.client.receive(GROUP, "T", seconds=5, invisible_duration={"seconds": 30})

    @property
    def handle(self) -> str:
        handle: str = self.message.system_properties.receipt_handle
        return handle

    def forward(self, handle: str, topic: str = "T", group: str = GROUP) -> Any:
        return self.client.call(
            "ForwardMessageToDeadLetterQueue",
            group=resource(group),
            topic=resource(topic),
            receipt_handle=handle,
            message_id="M1",
            delivery_attempt=1,
            max_delivery_attempts=1,
        ).status


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = Clock()
    with endpoint(tmp_path, clock) as (here, wire):
        yield World(here, wire, clock)


def test_an_abandoned_message(world: World) -> None:
    assert world.forward(world.handle).code == Code.OK
    (dead,) = world.wire.messages(DEAD)
    assert (dead.body, dead.msg_id, dead.tags, dead.keys, dead.properties["a"]) == (b"bad", "M1", "t", "k", "b")
    assert (dead.properties["RETRY_TOPIC"], dead.reconsume_times) == ("T", 1)
    sent(world.client, message("T", b"next"))
    world.clock.now += 60_000
    world.here.served.wake()
    assert [one.body for one in world.receive()] == [b"next"]  # it is not delivered again


def test_abandoned_twice_is_one_dead_letter(world: World) -> None:
    assert world.forward(world.handle).code == Code.OK
    assert world.forward(world.handle).code == Code.OK  # a client whose answer was lost
    assert len(world.wire.messages(DEAD)) == 1


def test_a_handle_with_the_place_of_another_message(world: World) -> None:
    sent(world.client, *(message("T", b"other %d" % at) for at in range(8)))
    mine, *others = (world.handle, *(one.system_properties.receipt_handle for one in world.receive()))
    for other in others:
        status = world.forward(" ".join([*mine.split(" ")[:8], other.split(" ")[8]]))
        assert status.code == Code.INVALID_RECEIPT_HANDLE, status
    assert world.wire.messages(DEAD) == []
    assert world.forward(mine).code == Code.OK


def test_invalid_handles(world: World) -> None:
    parts = world.handle.split(" ")
    forged = [
        "",
        "no handle",
        " ".join(parts[:8]),
        " ".join([*parts[:8], "-1"]),
        " ".join([*parts[:8], str(int(parts[8]) + 1)]),
        " ".join([*parts[:8], str(2**62)]),
        " ".join([*parts[:5], "elsewhere", *parts[6:]]),
    ]
    for handle in forged:
        status = world.forward(handle)
        assert status.code == Code.INVALID_RECEIPT_HANDLE, (handle, status)
        assert status.message
    assert world.forward(world.handle, topic="Other").code == Code.INVALID_RECEIPT_HANDLE
    assert world.forward(world.handle, topic="no good").code == Code.ILLEGAL_TOPIC
    assert world.forward(world.handle, group="no good").code == Code.ILLEGAL_CONSUMER_GROUP
    assert world.wire.messages(DEAD) == []
    world.clock.now += 31_000
    assert world.forward(world.handle).code == Code.INVALID_RECEIPT_HANDLE  # its invisible time has ended
    assert world.wire.messages(DEAD) == []


def test_a_broker_without_write_permission(world: World) -> None:
    world.here.server.run(lambda: setattr(world.here.served.config, "broker_permission", 4))
    assert world.forward(world.handle).code == Code.FORBIDDEN
