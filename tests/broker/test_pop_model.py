"""POP against a model, through time, stops, kills, power cuts and full disks, in small files that roll over."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import ExtraInfo, real_topic
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.store.tools.check import check_store
from tests.broker.pop_world import World
from tests.store.helpers import bodies

GROUPS = ("g", "h")
MAX_SPANS_PER_RESPONSE = {"g": 16, "h": 3}


class Out:
    """A message in flight at a member of a group."""

    def __init__(self, receipt: ExtraInfo, until: int) -> None:
        self.receipt = receipt
        self.until = until


class Modelled(World):
    """The delivered and acked messages of every group.

    ``exact``: no message twice but after its time. Kills and power cuts bring what was done lately again.
    """

    def __init__(self, directory: Path, seed: int, *, exact: bool) -> None:
        super().__init__(directory, seed, enableRetryTopicV2=seed % 3 == 2)
        for group in GROUPS:
            self.groups.put(
                SubscriptionGroupConfig(
                    group_name=group, retry_max_times=MAX_SPANS_PER_RESPONSE[group] if exact else 999
                )
            )
        self.exact = exact
        self.sent = 0
        self.out: dict[str, dict[bytes, Out]] = {group: {} for group in GROUPS}
        self.times: dict[str, dict[bytes, int]] = {group: {} for group in GROUPS}
        self.acked: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.old: list[tuple[str, bytes, ExtraInfo]] = []

    def one(self) -> None:
        if self.send(b"%d" % self.sent, self.random.randrange(2)).status.value == "PUT_OK":
            self.sent += 1

    def take(self) -> None:
        group = self.random.choice(GROUPS)
        queue_id = self.random.choice((-1, -1, -1, 0, 1))
        invisible = self.random.choice((1, 700, 1_000, 1_001, 5_000, 30_000, 200_000_000))
        self.given(group, queue_id, self.random.choice((1, 2, 5, 32)), invisible)

    def given(self, group: str, queue_id: int, most: int, invisible: int) -> int:
        popped = self.pop(group, queue_id=queue_id, most=most, invisible=invisible)
        now = self.clock()
        for record, receipt in popped:
            body = bytes(record.body)
            if self.exact:
                assert body not in self.acked[group], (body, receipt)
                held = self.out[group].get(body)
                assert held is None or held.until <= now, (body, receipt)
                assert record.reconsume_times == self.times[group].get(body, 0)
            assert record.topic == b"T"
            self.times[group][body] = self.times[group].get(body, 0) + 1
            self.out[group][body] = Out(receipt, now + invisible)
        return len(popped)

    def some(self) -> tuple[str, bytes, Out] | None:
        group = self.random.choice(GROUPS)
        held = list(self.out[group].items())
        return None if not held else (group, *self.random.choice(held))

    def consume(self) -> None:
        chosen = self.some()
        if chosen is None:
            return
        group, body, out = chosen
        self.ack_one(group, out.receipt)
        if out.until > self.clock():
            self.done(group, body)

    def consume_many(self) -> None:
        """All messages of one check point that are in flight."""
        chosen = self.some()
        if chosen is None:
            return
        group, _, first = chosen
        receipt = first.receipt
        mine = [
            (body, out)
            for body, out in self.out[group].items()
            if out.receipt._replace(offset=0) == receipt._replace(offset=0)
        ]
        topic = real_topic("T", group, receipt.flag)
        bits = sum(1 << out.receipt.offset - receipt.start_offset for _, out in mine)
        self.pops.ack_many(group, topic, receipt.queue_id, receipt, bits)
        for body, out in mine:
            if out.until > self.clock():
                self.done(group, body)

    def ack_one(self, group: str, receipt: ExtraInfo) -> None:
        self.pops.ack(group, real_topic("T", group, receipt.flag), receipt.queue_id, receipt, receipt.offset)

    def done(self, group: str, body: bytes) -> None:
        self.acked[group].add(body)
        self.old.append((group, body, self.out[group].pop(body).receipt))

    def change(self) -> None:
        chosen = self.some()
        if chosen is None:
            return
        group, body, out = chosen
        receipt, invisible = out.receipt, self.random.choice((500, 3_000, 20_000))
        topic = real_topic("T", group, receipt.flag)
        try:
            new = self.pops.change_invisible(group, topic, receipt.queue_id, receipt, receipt.offset, invisible)
        except RefusedError:
            new = None
        if self.exact:
            assert (new is not None) is (out.until > self.clock())
        if new is None:
            return
        self.old.append((group, body, receipt))
        self.out[group][body] = Out(new, new.pop_time + new.invisible_time)

    def use_an_old_receipt(self) -> None:
        """A receipt of an acked or changed message: no effect."""
        if self.old and self.exact:
            group, _, receipt = self.random.choice(self.old[-20:])
            self.ack_one(group, receipt)

    def wait(self) -> None:
        self.pass_time(self.random.choice((1, 10, 299, 1_000, 1_000, 5_000, 40_000)))

    def fill_up(self) -> None:
        """Nothing can be stored; due messages wait, and acks remain."""
        self.full = True
        self.one()
        self.consume()
        self.change()
        with suppress(RefusedError):
            self.take()
        self.clock.now += 20
        self.timer.deliver(self.clock(), 1.0)
        self.pops.deliver(self.clock(), 1.0)
        self.full = False
        self.pass_time(1_100)

    def flush(self) -> None:
        super().flush()
        self.sent_by_then = getattr(self, "sent", 0)

    def cut_power(self) -> None:
        """Messages since the last flush are lost; acks since then may be."""
        super().cut_power()
        self.sent = self.sent_by_then
        everything = {b"%d" % number for number in range(self.sent)}
        for group in GROUPS:
            self.acked[group] &= everything
            self.out[group].clear()

    def verify(self) -> None:
        """Every message is redelivered at its time."""
        self.pass_time(200_000_001)
        for group in GROUPS:
            while self.given(group, -1, 32, 1_000):
                pass
            dead = set(bodies(self.store, f"%DLQ%{group}", 0))
            found = set(self.out[group])
            everything = {b"%d" % number for number in range(self.sent)}
            if self.exact:
                assert not self.acked[group] & dead
                assert all(self.times[group][body] == MAX_SPANS_PER_RESPONSE[group] + 1 for body in dead)
                assert everything == self.acked[group] | dead | found
            now = self.clock()
            for body in list(found):
                out = self.out[group][body]
                if out.until > now:
                    self.ack_one(group, out.receipt)
                    self.done(group, body)
            self.out[group].clear()
            assert everything == self.acked[group] | dead
        self.settle()


@pytest.mark.parametrize("seed", range(4))
def test_every_message_is_delivered_once_until_it_is_acked(tmp_path: Path, seed: int) -> None:
    world = Modelled(tmp_path, seed, exact=True)
    steps = [world.one] * 10 + [world.take] * 6 + [world.consume] * 8 + [world.consume_many] * 3 + [world.change] * 3
    steps += [world.wait] * 5 + [world.use_an_old_receipt] * 2 + [world.stop, world.verify]
    for _ in range(180):
        world.random.choice(steps)()
    world.verify()
    world.stop()
    world.verify()
    world.close()
    assert check_store(tmp_path / "store", world.config()) == []


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_by_kills_and_power_cuts(tmp_path: Path, seed: int) -> None:
    world = Modelled(tmp_path, seed, exact=False)
    steps = [world.one] * 10 + [world.take] * 6 + [world.consume] * 8 + [world.consume_many] * 3 + [world.change] * 2
    steps += (
        [world.wait] * 4
        + [world.save_offsets] * 2
        + [world.fill_up, world.stop, world.kill, world.flush, world.cut_power]
    )
    for _ in range(100):
        world.random.choice(steps)()
    world.kill()
    world.verify()
    world.close()
    assert check_store(tmp_path / "store", world.config()) == []
