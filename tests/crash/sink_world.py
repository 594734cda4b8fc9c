"""Drivers of the exactly-once sink as processes, and their rows as consumers see them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from spark_rocket.client import Reader
from spark_rocket.datasource.exactly_once.driver import check_topics
from spark_rocket.testing import LocalCluster
from tests.crash.sink_driver import ROWS, TASKS, committed, sink_options
from tests.crash.sink_points import plan, plans
from tests.kit.waiting import until

PROGRAM = "tests.crash.sink_driver"


class Query:
    """A query: its checkpoint, its plans and its drivers."""

    def __init__(self, cluster: LocalCluster, directory: Path, topic: str, name: str) -> None:
        self._cluster = cluster
        self.directory = directory / name
        self.directory.mkdir()
        self.topic = topic
        self.name = name
        self._planned = 0
        check_topics(sink_options(cluster.name_server, topic))

    def plan(self, point: str, victim: str = "driver", count: int = 1) -> None:
        self._planned += 1
        plan(self.directory, self._planned, point, victim, count)

    def start(self, epochs: int) -> subprocess.Popen[bytes]:
        arguments = [self._cluster.name_server, self.topic, str(self.directory), self.name, str(epochs)]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", PROGRAM, *arguments], stderr=log)

    def run(self, epochs: int) -> int:
        """Run it to its end, with a restart after each kill; return the number of kills."""
        for killed in range(10_000):
            status = self.start(epochs).wait(600)
            if status == 0:
                return killed
            assert status == -signal.SIGKILL, self.log
        raise AssertionError("it is killed for ever")

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def epochs(self) -> int:
        return committed(self.directory)

    def wait_for(self, number: int) -> None:
        """Wait until a number of plans are done."""
        until(lambda: len(plans(self.directory, "done")) >= number)


def rows_seen(name_server: str, topic: str) -> dict[str, list[list[str]]]:
    """The rows in each queue, as query, batch, task, row and the random part."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    with Reader(name_server) as reader:
        for queue in reader.queues(topic):
            at = 0
            while at < reader.max_offset(queue):
                messages = reader.messages(queue, at)
                found[f"{queue.broker_name}/{queue.queue_id}"] += [
                    bytes(message.body).decode().split("/") for message in messages
                ]
                at = messages[-1].queue_offset + 1
    return found


def assert_each_row_once(name_server: str, topic: str, queries: Sequence[tuple[str, int]]) -> tuple[int, int, int]:
    """In order: epochs in each queue, in them tasks and rows, those with keys (odd) separate from those without.

    How many were sent, are stored, and are distinct.
    """
    found = rows_seen(name_server, topic)
    for queue, rows in found.items():
        for query, _ in queries:
            order = [tuple(map(int, row[1:4])) for row in rows if row[0] == query]
            assert all(low[:2] <= high[:2] for low, high in pairwise(order)), f"{query} in {queue}: {order}"
            for odd in (0, 1):
                kind = [place for place in order if place[2] % 2 == odd]
                assert all(low < high for low, high in pairwise(kind)), f"{query} in {queue}: {kind}"
    stored = [row for rows in found.values() for row in rows]
    distinct = {tuple(row[:4]) for row in stored}
    sent = sum(epochs for _, epochs in queries) * TASKS * ROWS
    expected = {
        (query, str(batch), str(task), str(row))
        for query, epochs in queries for batch in range(epochs) for task in range(TASKS) for row in range(ROWS)
    }  # fmt: skip
    assert distinct == expected, f"missing {sorted(expected - distinct)}, extra {sorted(distinct - expected)}"
    assert sent == len(stored) == len(distinct)
    return sent, len(stored), len(distinct)
