"""The exactly-once sink in Spark, whose processes are killed at every point: JVM and driver, tasks, ``commit``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.crash.sink_points import DECIDE_POINTS, PUBLISH_POINTS, RESUME_POINTS, TASK_POINTS, plan, plans
from tests.crash.sink_query import RECORDS
from tests.crash.sink_world import rows_seen

pytestmark = [pytest.mark.crash, pytest.mark.long]

EPOCHS = 40


def test_each_row_once_whatever_is_killed(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Rows of an epoch that is run again are others; those that were decided count."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    directory = tmp_path / "plans"
    directory.mkdir()
    number = 0
    for victim in ("self", "driver"):
        for point in (*TASK_POINTS, *DECIDE_POINTS, *PUBLISH_POINTS, *RESUME_POINTS):
            if point in RESUME_POINTS:
                plan(directory, number := number + 1, "a block was sent", "self", 2)
            plan(directory, number := number + 1, point, victim)
    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        source, target = cluster.create_topic("source", 2), cluster.create_topic("target", 3)
        with Producer("tests", name_server=cluster.name_server) as producer:
            for queue in producer.queues(source):
                producer.send([Message.of(source, "row")] * (EPOCHS * RECORDS // 2), queue=queue)
        program = [sys.executable, "-m", "tests.crash.sink_query", cluster.name_server, source, target]
        drivers = 0
        while (
            status := subprocess.run(
                [*program, str(tmp_path / "checkpoint"), str(directory)],
                timeout=600,
                start_new_session=True,
                check=False,
            ).returncode
        ) == -signal.SIGKILL:
            drivers += 1
        assert status == 0
        left = plans(directory)
        assert left == []
        found = rows_seen(cluster.name_server, target)
    stored = [row for rows in found.values() for row in rows]
    sent = {(str(queue), str(offset)) for queue in range(2) for offset in range(EPOCHS * RECORDS // 2)}
    for rows in found.values():
        order = defaultdict(list)
        for number_of_queue, offset, _ in rows:
            order[number_of_queue, int(offset) % 4].append(int(offset))
        assert all(low < high for offsets in order.values() for low, high in pairwise(offsets))
    figure(f"{number} kills, {drivers} of the JVM: sent {len(sent)} = stored {len(stored)}")
    assert len(stored) == len(sent)
    assert {(queue, offset) for queue, offset, _ in stored} == sent
    # A task that outlives its driver may come to the next plan that is to kill it.
    assert 0 < drivers <= sum(" driver " in file.name for file in plans(directory, "done"))
