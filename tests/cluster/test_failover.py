"""Failover under load: members are killed, stopped, disconnected and reconnected while producers send.

At the end every acknowledged message is at its offset, on the master and on its slave, and the slave's log is
its master's byte for byte. FAILOVER_ROUNDS=30 in the environment makes as many rounds (``make failover``); the seed of
what happens is printed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.testing import LocalCluster
from tests.cluster.harness import (
    QUEUES,
    SMALL_FILES,
    TOPIC,
    Load,
    assert_all_there,
    assert_slaves_follow,
    assert_stores_right,
    knows_topic,
    max_offsets,
    slaves_ready,
)
from tests.kit.waiting import until

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "4"))
FEW = 12  # each sender waits some seconds for every second answer
SETTINGS = {"brokerRole": "SYNC_MASTER", **SMALL_FILES}


class World:
    """The cluster, its load, and the events that can happen to them."""

    def __init__(self, cluster: LocalCluster, load: Load, rng: random.Random) -> None:
        self.cluster = cluster
        self.load = load
        self.rng = rng
        self.masters = list(cluster.brokers)
        self.slaves = list(cluster.slaves)

    def pair(self) -> int:
        return self.rng.randrange(len(self.masters))

    def kill_master(self) -> None:
        """Producers continue with the other; the slave has all messages that were acknowledged as replicated."""
        number = self.pair()
        master, slave = self.masters[number], self.slaves[number]
        master.kill()
        ends = self.load.strong_ends(master.broker_name)
        has = max_offsets(slave.address)
        assert all(has[queue_id] >= end for queue_id, end in ends.items()), (has, ends)
        self.load.goes_on()
        master.start()
        self.load.goes_on(20, of=master.broker_name)

    def stop_master(self) -> None:
        master = self.masters[self.pair()]
        master.restart()
        self.load.goes_on(20, of=master.broker_name)

    def kill_slave(self) -> None:
        """Its master reports that it has no slave, and continues alone."""
        number = self.pair()
        slave = self.slaves[number]
        slave.kill()
        self.load.goes_on(50, of=slave.broker_name)
        slave.start()

    def kill_name_server(self) -> None:
        name_server = self.rng.choice(self.cluster.name_servers)
        name_server.kill()
        self.load.goes_on()
        name_server.start()

    def kill_both_of_a_pair(self) -> None:
        number = self.pair()
        master, slave = self.masters[number], self.slaves[number]
        for member in self.rng.sample([master, slave], 2):
            member.kill()
        self.load.goes_on()
        for member in self.rng.sample([master, slave], 2):
            member.start()
        self.load.goes_on(20, of=master.broker_name)

    def cut_replication(self) -> None:
        """A master reports that its slave took too long, or that it has no slave; nothing waits forever."""
        number = self.pair()
        master, slave = self.masters[number], self.slaves[number]
        slave.partition(master)
        self.load.goes_on(FEW)
        slave.heal()
        self.load.goes_on(20, of=master.broker_name)

    def cut_master(self) -> None:
        """It is disconnected; the other accepts messages."""
        master = self.masters[self.pair()]
        master.partition()
        self.load.goes_on(FEW)
        master.heal()
        self.load.goes_on(20, of=master.broker_name)

    def pause_master(self) -> None:
        master = self.masters[self.pair()]
        master.pause()
        self.load.goes_on(FEW)
        master.resume()
        self.load.goes_on(20, of=master.broker_name)

    def swap(self) -> None:
        """The slave is promoted, and the former master returns as its slave."""
        number = self.pair()
        master, slave = self.masters[number], self.slaves[number]
        until(lambda: knows_topic(slave), "the slave knows the topic")
        self.load.swapped.add(master.broker_name)
        master.kill()
        slave.restart(config={"brokerRole": "SYNC_MASTER", "brokerId": 0})
        self.load.goes_on(20, of=master.broker_name)
        master.restart(config={"brokerRole": "SLAVE", "brokerId": 1})
        self.masters[number], self.slaves[number] = slave, master


EVENTS: tuple[Callable[[World], None], ...] = (
    World.kill_master,
    World.kill_slave,
    World.cut_replication,
    World.kill_name_server,
    World.cut_master,
    World.kill_both_of_a_pair,
    World.stop_master,
    World.pause_master,
    World.swap,
)


def test_nothing_acknowledged_is_lost_whatever_happens(tmp_path: Path, figure: Callable[[str], None]) -> None:
    seed = int(os.environ.get("FAILOVER_SEED", random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)
    figure(f"seed {seed}")
    with LocalCluster(data_dir=tmp_path, brokers=2, slaves=True, name_servers=2, config=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, QUEUES)
        slaves_ready(cluster.brokers)
        with Load(cluster) as load:
            load.goes_on(200)
            world = World(cluster, load, rng)
            for number in range(ROUNDS):
                # Each of them once, in their order, then as chance has it.
                event = EVENTS[number] if number < len(EVENTS) else rng.choice(EVENTS)
                begun = time.monotonic()
                event(world)
                print(f"round {number}: {event.__name__} {time.monotonic() - begun:.1f} s", flush=True)
        assert load.wrong == []
        assert_slaves_follow(cluster)
        for master, slave in zip(cluster.brokers, cluster.slaves, strict=True):
            assert_all_there(load, master.address, master.broker_name)
            until(lambda m=master, s=slave: max_offsets(s.address) == max_offsets(m.address), "its queues")  # type: ignore[misc]
            assert_all_there(load, slave.address, slave.broker_name)
        pairs = [(m.store_dir, s.store_dir) for m, s in zip(cluster.brokers, cluster.slaves, strict=True)]
        count = sum(len(queue) for queue in load.strong.values())
        weak = sum(len(queue) for queue in load.weak.values())
        figure(f"{count} messages that both had, {weak} that the master had, {load.failed} sends failed")
    assert_stores_right(pairs)
