"""The exactly-once sink's crash matrix: each row with real processes that are killed.

Drivers, tasks and ``commit`` are processes as Spark has them, without Spark (``sink_driver.py``), so that a row takes
seconds; ``test_sink_spark.py`` kills Spark's own. Rows have a random part, so those of an epoch that is run again are
others: what consumers see must be those that were decided.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_rocket.testing import LocalCluster
from tests.crash.sink_driver import OVERTAKEN
from tests.crash.sink_points import plans
from tests.crash.sink_world import Query, assert_each_row_once
from tests.kit.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.long]

_numbers = count()


def some_of(first: str, *others: str) -> list[Any]:
    """``make test`` runs the first one, ``make chaos-sink`` all."""
    return [first, *(pytest.param(other, marks=pytest.mark.long) for other in others)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}) as running:
        yield running


@pytest.fixture
def query(cluster: LocalCluster, tmp_path: Path) -> Query:
    return query_of(cluster, tmp_path)


def query_of(cluster: LocalCluster, directory: Path, queues: int = 3) -> Query:
    name = f"query-{next(_numbers)}"
    return Query(cluster, directory, cluster.create_topic(f"target-{name}", queues), name)


def check(cluster: LocalCluster, query: Query) -> None:
    assert not plans(query.directory)
    assert_each_row_once(cluster.name_server, query.topic, [(query.name, query.epochs)])


def test_a_task_dies_while_it_stages_and_another_one_when_it_has(cluster: LocalCluster, query: Query) -> None:
    query.plan("a block is staged", "self", 3)
    query.plan("a block was staged", "self", 4)
    query.plan("the task is done", "self")
    assert query.run(2) == 0
    check(cluster, query)


def test_a_zombie_continues_to_stage_after_its_driver_died(cluster: LocalCluster, query: Query) -> None:
    """A task of the dead driver is resumed after the next driver has committed the epoch."""
    query.plan("a block was staged", "stop", 2)
    query.plan("a block is staged", "driver", 3)
    zombie = query.start(1)
    assert zombie.wait(60) == -signal.SIGKILL
    assert query.run(1) == 0
    for pid in stopped_in(query.directory):
        os.kill(pid, signal.SIGCONT)
    assert query.run(2) == 0
    check(cluster, query)


def test_the_driver_dies_before_it_has_decided(cluster: LocalCluster, query: Query) -> None:
    query.plan("the task is done")
    query.plan("before PREPARED")
    assert query.run(2) == 2
    check(cluster, query)


def test_the_response_to_the_decision_is_lost(cluster: LocalCluster, query: Query) -> None:
    query.plan("PREPARED is sent")
    assert query.run(2) == 1
    check(cluster, query)


@pytest.mark.parametrize("victim", some_of("driver", "self"))
def test_it_dies_when_it_has_decided(cluster: LocalCluster, query: Query, victim: str) -> None:
    query.plan("after PREPARED", victim)
    query.plan("it is remembered", victim)
    assert query.run(2) == 2 * (victim == "driver")
    check(cluster, query)


@pytest.mark.parametrize("victim", some_of("self", "driver"))
def test_it_dies_while_it_publishes(cluster: LocalCluster, query: Query, victim: str) -> None:
    """And repeatedly, after it has read back and continues."""
    query.plan("a block is sent", victim, 3)
    query.plan("before RESUMED", victim)
    query.plan("RESUMED is sent", victim)
    query.plan("it is read back", victim)
    query.plan("it was read back", victim)
    query.plan("a block is in flight", victim, 2)
    query.plan("a block was sent", victim, 2)
    assert query.run(2) == 7 * (victim == "driver")
    check(cluster, query)


def test_the_driver_dies_when_all_is_published(cluster: LocalCluster, query: Query) -> None:
    query.plan("before DONE")
    query.plan("DONE is sent")
    assert query.run(2) == 2
    check(cluster, query)


def test_the_driver_dies_before_its_checkpoint_knows(cluster: LocalCluster, query: Query) -> None:
    query.plan("after DONE")
    assert query.run(2) == 1
    check(cluster, query)


@pytest.mark.parametrize(
    "point", some_of("a block is in flight", "a block is staged", "PREPARED is sent", "before DONE")
)
def test_a_broker_is_killed(cluster: LocalCluster, query: Query, point: str) -> None:
    """With SYNC_FLUSH, and restarted; the driver survives."""
    query.plan(point, "broker", 2 if "block" in point else 1)
    driver = query.start(2)
    asked = until(lambda: plans(query.directory, "asked"))[0]
    cluster.kill_broker()
    asked.rename(asked.with_suffix(".done"))
    cluster.restart_broker()
    assert driver.wait(120) == 0, query.log
    check(cluster, query)


@pytest.mark.parametrize("point", some_of("a block is in flight", "a block was staged", "after PREPARED"))
def test_a_master_is_lost_and_its_slave_made_the_master(tmp_path: Path, point: str) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "grpcServerPort": -1}
    with LocalCluster(brokers=1, slaves=True, config=settings) as cluster:
        (master,), (slave,) = cluster.brokers, cluster.slaves
        query = query_of(cluster, tmp_path)
        assert query.run(1) == 0  # the slave has all of it, as the master's responses say
        query.plan(point, "broker")
        driver = query.start(3)
        asked = until(lambda: plans(query.directory, "asked"))[0]
        master.kill()
        asked.rename(asked.with_suffix(".done"))
        slave.restart(config={"brokerRole": "SYNC_MASTER", "brokerId": 0})
        master.restart(config={"brokerRole": "SLAVE", "brokerId": 1})
        assert driver.wait(180) == 0, query.log
        check(cluster, query)


def test_two_drivers_decide_the_same_epoch(cluster: LocalCluster, query: Query) -> None:
    """The second driver decides later and continues with the first one's decision; the first one detects this."""
    query.plan("before PREPARED", "stop")
    query.plan("after PREPARED", "stop")
    late = query.start(2)
    query.wait_for(1)
    early = query.start(2)
    query.wait_for(2)
    (first, second) = stopped_in(query.directory)
    os.kill(first, signal.SIGCONT)
    assert late.wait(60) == 0, query.log
    os.kill(second, signal.SIGCONT)
    assert early.wait(60) == OVERTAKEN, query.log
    check(cluster, query)


@pytest.mark.parametrize("point", some_of("before a block", "before PREPARED", "after PREPARED", "before DONE"))
def test_a_driver_that_is_paused_while_another_one_goes_on(cluster: LocalCluster, tmp_path: Path, point: str) -> None:
    """One target queue, so that it stops before its look in the ledger. Another queue's thread could be between
    its look and its send: that block would come twice, which no request of RocketMQ's can prevent (exactly-once.md)."""
    query = query_of(cluster, tmp_path, queues=1)
    query.plan(point, "stop", 2 if "block" in point else 1)
    paused = query.start(3)
    query.wait_for(1)
    assert query.run(3) == 0
    for pid in stopped_in(query.directory):
        os.kill(pid, signal.SIGCONT)
    # One that had published everything before it was paused finds its checkpoint complete.
    assert paused.wait(60) == (0 if point == "before DONE" else OVERTAKEN), query.log
    check(cluster, query)


def stopped_in(directory: Path) -> list[int]:
    """The processes that were stopped, in that order."""
    files = [file for file in plans(directory, "done") if " stop " in file.name]
    pids = [int(until(file.read_text)) for file in files]
    for pid in pids:
        until(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED)  # type: ignore[misc]
    return pids
