"""The declarative pipeline as a user runs it, with ``spark-pipelines run``: two JVMs for each run, thus a long test."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.flights import FLIGHTS_TOPIC, load_flights
from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

pytest.importorskip("pyspark.pipelines", reason="Declarative Pipelines need Spark 4.1")

PIPELINE = Path(__file__).parents[2] / "jobs" / "flights_pipeline"
CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
FLIGHTS = 1_000
RUNS = 2
pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_each_run_continues_after_the_previous_one(tmp_path: Path) -> None:
    flights = load_flights(FLIGHTS * RUNS).to_pylist()
    with LocalCluster() as cluster, Reader(cluster.name_server) as reader:
        cluster.create_topic(FLIGHTS_TOPIC, 2)
        for run in range(RUNS):
            publish(cluster, flights[run * FLIGHTS : (run + 1) * FLIGHTS])
            run_pipeline(cluster, tmp_path)

            published = flights[: (run + 1) * FLIGHTS]
            very_late = sum((flight["dep_delay"] or 0) > 120 for flight in published)
            assert very_late > 0
            delays = pq.read_table(tmp_path / "spark-warehouse" / "delays").to_pylist()
            assert {row["carrier"] for row in delays} == {flight["carrier"] for flight in published}
            assert sum(row["flights"] for row in delays) == len(published)
            assert sum(row["very_late"] for row in delays) == very_late
            assert messages_in(reader, "very-late-flights") == very_late
            queues = reader.queues(FLIGHTS_TOPIC) if HAS_READ_LIMITS else []  # older Spark commits in the next run
            assert [reader.committed_offset("flights-pipeline", queue) for queue in queues] == [
                reader.max_offset(queue) for queue in queues
            ]


def publish(cluster: LocalCluster, flights: list[dict[str, object]]) -> None:
    bodies = [json.dumps(flight, default=datetime.isoformat) for flight in flights]
    with Producer("flights", name_server=cluster.name_server) as producer:
        producer.send([Message.of(FLIGHTS_TOPIC, body) for body in bodies])


def messages_in(reader: Reader, topic: str) -> int:
    return sum(reader.max_offset(queue) - reader.min_offset(queue) for queue in reader.queues(topic))


def run_pipeline(cluster: LocalCluster, folder: Path) -> None:
    """Run it in ``folder``, where the tables are, with a copy of its specification whose storage is there too."""
    pipeline = folder / "pipeline"
    pipeline.mkdir(exist_ok=True)
    for file in PIPELINE.iterdir():
        if file.is_file():
            text = file.read_text().replace("file:///tmp/flights-pipeline", (folder / "storage").as_uri())
            (pipeline / file.name).write_text(text)
    done = subprocess.run(
        ["spark-pipelines", "run", "--spec", pipeline / "spark-pipeline.yml", *CATALOG],
        cwd=folder,
        # SPARK_TESTING: a free port, not 15002, for the server of Spark Connect that the command starts.
        env=os.environ | {"NAMESRV_ADDR": cluster.name_server, "SPARK_TESTING": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "Run is COMPLETED." in done.stdout
