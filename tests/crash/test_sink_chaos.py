"""Chaos for the exactly-once sink: tasks, ``commit`` processes, drivers and brokers are killed at every point.

Several queries write to one topic of two brokers and share the ledger and the staging topic. Rows have a random part,
so a row that were published from two runs of its epoch would be seen. At the end: sent = stored = distinct, in order.

SINK_KILLS=200 in the environment kills as often (``make chaos-sink``). The seed is printed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_rocket.testing import LocalCluster
from tests.crash.sink_points import DECIDE_POINTS, PUBLISH_POINTS, RESUME_POINTS, TASK_POINTS, plans
from tests.crash.sink_world import Query, assert_each_row_once

pytestmark = [pytest.mark.crash, pytest.mark.long]

KILLS = int(os.environ.get("SINK_KILLS", "40"))
QUERIES = 6
_MANY = {
    "before a block",
    "a block is staged",
    "a block was staged",
    "a block is sent",
    "a block is in flight",
    "a block was sent",
}


def make_plans(query: Query, kills: int, rng: random.Random) -> None:
    """All points equally often; points of a resumed run come after a kill that causes one."""
    points = [*TASK_POINTS, *DECIDE_POINTS, *PUBLISH_POINTS, *RESUME_POINTS]
    rng.shuffle(points)
    left = kills
    while left > 0:
        for point in points:
            if left > 1 and point in RESUME_POINTS:
                query.plan(rng.choice(("after PREPARED", "a block is in flight")), rng.choice(("self", "driver")))
                left -= 1
            elif point in RESUME_POINTS:
                continue
            count = rng.randrange(1, 4) if point in _MANY else 1
            query.plan(point, rng.choice(("self", "driver", "driver", "broker")), count)
            left -= 1
            if left <= 0:
                return


class BrokerKiller(threading.Thread):
    """Kills and restarts a broker when a query's plan requests it."""

    def __init__(self, cluster: LocalCluster, queries: list[Query], rng: random.Random) -> None:
        super().__init__()
        self._cluster = cluster
        self._queries = queries
        self._rng = rng
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(0.01):
            for asked in [file for query in self._queries for file in plans(query.directory, "asked")]:
                broker = self._rng.choice(self._cluster.brokers)
                broker.kill()
                asked.rename(asked.with_suffix(".done"))
                broker.start()

    def end(self) -> None:
        self._ending.set()
        self.join()


def test_sent_stored_and_distinct_are_the_same(tmp_path: Path, figure: Callable[[str], None]) -> None:
    seed = int(os.environ.get("SINK_SEED", random.SystemRandom().randrange(1 << 32)))
    figure(f"seed {seed}")
    rng = random.Random(seed)
    with LocalCluster(brokers=2, config={"flushDiskType": "SYNC_FLUSH", "grpcServerPort": -1}) as cluster:
        topic = cluster.create_topic("chaos", 2)
        queries = [Query(cluster, tmp_path, topic, f"query-{number}") for number in range(QUERIES)]
        for number, query in enumerate(queries):
            make_plans(query, KILLS // QUERIES + (number < KILLS % QUERIES), rng)
        killer = BrokerKiller(cluster, queries, rng)
        killer.start()
        try:
            with ThreadPoolExecutor(QUERIES) as pool:
                list(pool.map(lambda query: query.run(3), queries))
        finally:
            killer.end()
        sent, stored, distinct = assert_each_row_once(
            cluster.name_server, topic, [(query.name, query.epochs) for query in queries]
        )
    kills: Counter[str] = Counter()
    for done in [file for query in queries for file in plans(query.directory, "done")]:
        _, _, victim, point = done.stem.split(" ", 3)
        kills[f"{point:20} {'task or commit' if victim == 'self' else victim}"] += 1
    for what, count in sorted(kills.items()):
        figure(f"{count:4} kills: {what}")
    epochs = sum(query.epochs for query in queries)
    figure(f"{kills.total()} kills in {epochs} epochs: sent {sent} = stored {stored} = distinct {distinct}")
    assert kills.total() == KILLS
