"""Transactions against a model, through stops, kills, power cuts and full disks, in small files that roll over.

The model has the state of each transaction that its sender knows: open, committed or rolled back. A committed message
is delivered once, others are not, and a round of checks asks about every open transaction exactly once.
"""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.transactions.half_messages import HalfMessage
from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus
from spark_rocket.store.tools.check import check_store
from tests.broker.records import broker_environment
from tests.broker.wire import messages_of
from tests.kit.clock import Clock
from tests.store.helpers import BORN, HOST, bodies, small

pytestmark = pytest.mark.live

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OPEN, COMMITTED, ROLLED_BACK = "open", "committed", "rolled back"


class Member:
    """A connection of the producer group that records its checks."""

    is_writable = True
    remote_addr = "127.0.0.1:1"

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []

    def write(self, request: RemotingCommand) -> None:
        self.asked.append(request)


class World:
    """A store with transactions, their model, and the state after a power failure."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.directory = directory
        self.images = 0
        self.settings = BrokerConfig.from_properties({"transactionCheckMax": 1000, "fileReservedTime": 1000})
        self.states: dict[bytes, str] = {}
        self.places: dict[bytes, list[int]] = {}
        """Physical offsets of a transaction that its sender knows: of the half message, and of checked copies."""
        self.offsets = ConsumerOffsetManager()
        self.full = False
        self.open()
        self.flush()

    def open(self) -> None:
        self.store = MessageStore(small(self.directory / "store"), store_host=HOST, clock=self.clock)
        self.store.start()
        self._put = self.store.put_message
        self.store.put_message = self.put_message
        self.member = Member()
        clients = ClientManager(self.clock, lambda *_: None)
        clients.register_producer("g", self.member, "id", "PYTHON", 1)  # type: ignore[arg-type]
        topics = TopicConfigManager(self.settings, self.clock)
        environment = broker_environment(self.settings, self.clock, HOST)
        self.service = TransactionalMessageService(environment, self.store, topics, self.offsets, clients)

    def put_message(self, *args: Any, **more: Any) -> PutResult:
        if self.full:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
        return self._put(*args, **more)

    # --- what happens -------------------------------------------------------------------------------------------

    def send(self) -> None:
        body = b"%d" % len(self.states)
        properties = {"TRAN_MSG": "true", "PGROUP": "g"}
        if not self.random.randrange(4):
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(self.random.choice((0, 3, 20, 90)))
        waiting = self.service.prepare(properties, "T", 0, self.clock())
        result = self.store.put_message(
            waiting.topic,
            waiting.queue_id,
            body,
            encode_properties(properties),
            born_timestamp=self.clock.now - self.random.choice((0, 0, 0, 5_000)),
            born_host=BORN,
        )
        if result.status is PutStatus.PUT_OK:
            self.states[body] = OPEN
            self.places[body] = [result.physical_offset]

    def decide(self) -> None:
        chosen = [body for body, state in self.states.items() if state == OPEN]
        if not chosen:
            return
        body = self.random.choice(chosen)
        half = HalfMessage.view(self.store.look_message_by_offset(self.random.choice(self.places[body])))
        assert half is not None
        assert half.record.body == body
        assert not self.service.is_decided(half)
        if self.random.randrange(2):
            if self.service.commit(half).status is PutStatus.PUT_OK:
                self.states[body] = COMMITTED
        elif self.service.rollback(half).status is PutStatus.PUT_OK:
            self.states[body] = ROLLED_BACK

    def decide_again(self) -> None:
        recent = self.service._queues[0].recent
        for body, state in self.states.items():
            half = HalfMessage.view(self.store.look_message_by_offset(self.random.choice(self.places[body])))
            if half is not None and half.first in recent:
                assert state != OPEN
                assert self.service.is_decided(half)

    def pass_time(self) -> None:
        self.clock.now += self.random.choice((10, 1_000, 7_000, 30_001))

    def check(self) -> list[bytes]:
        """Run a round of checks; return the checked transactions."""
        while (due := self.service.check(self.clock.now, 100.0)) is not None and due <= self.clock.now:
            pass
        return self.asked()

    def check_one(self) -> None:
        """A part of a round, with other operations in between."""
        self.service.check(self.clock.now, 0.0)
        self.asked()

    def asked(self) -> list[bytes]:
        asked = []
        for request in self.member.asked:
            (message,) = messages_of(request)
            assert self.states[message.body] == OPEN
            self.places[message.body].append(int(request.ext_fields["commitLogOffset"]))
            asked.append(message.body)
        self.member.asked.clear()
        return asked

    def fill_up(self) -> None:
        self.full = True
        self.send()
        self.decide()
        self.check()
        self.full = False

    # --- what is kept -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush everything, then the progress that depends on it; or the power fails in between."""
        mark = self.service.mark()
        self.store.flush()
        self.on_disk = self.image()
        self.known = copy.deepcopy((self.states, self.places))
        if mark is not None:
            self.service.confirm(mark)

    def image(self) -> Path:
        self.images += 1
        image = self.directory / f"image{self.images}"
        shutil.copytree(self.directory / "store", image)
        return image

    def reopen(self, image: Path | None) -> None:
        self.store.close()
        if image is not None:
            shutil.rmtree(self.directory / "store")
            shutil.copytree(image, self.directory / "store")
        saved, self.offsets = self.offsets.snapshot(), ConsumerOffsetManager()
        self.offsets.load(copy.deepcopy(saved))
        self.open()

    def stop(self) -> None:
        self.flush()
        self.reopen(None)

    def kill(self) -> None:
        self.reopen(self.image())

    def cut_power(self) -> None:
        """The flushed log with the current offsets, which may be newer than the flush."""
        self.states, self.places = copy.deepcopy(self.known)
        self.reopen(self.on_disk)

    # --- what must be true --------------------------------------------------------------------------------------

    def verify(self) -> None:
        assert set(bodies(self.store, "T", 0)) == {body for body, state in self.states.items() if state == COMMITTED}
        assert len(bodies(self.store, "T", 0)) == len(set(bodies(self.store, "T", 0)))
        self.check()  # a pending round
        self.clock.now += 200_000
        asked = self.check()
        assert sorted(asked) == sorted(body for body, state in self.states.items() if state == OPEN)


@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_changes_are_stored(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    steps = (
        [world.send] * 8
        + [world.decide] * 8
        + [world.check, world.check_one, world.check_one]
        + [world.pass_time] * 4
        + [world.flush] * 2
    )
    steps += [world.decide_again, world.fill_up, world.stop, world.kill, world.cut_power, world.verify]
    for _ in range(150):
        world.random.choice(steps)()
    world.kill()
    world.verify()
    world.store.close()
    assert check_store(tmp_path / "store", small(tmp_path / "store")) == []
