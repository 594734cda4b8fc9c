"""What the Python processes of Spark import for a stream: each costs CPU time at every start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.client import Producer
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="the order of calls is that of Spark 4.2 and newer"),
]

_BEGIN = """
import json, sys
from pathlib import Path
import pyarrow, pyspark.cloudpickle, pyspark.worker
import pyspark.sql.streaming.python_streaming_source_runner, pyspark.sql.worker.plan_data_source_read
theirs = set(sys.modules)
name_server, file = sys.argv[1], Path(sys.argv[2])
"""
_PLAN = """
import pyspark_rocket
from pyspark.sql.streaming.datasource import ReadAllAvailable
source = pyspark_rocket.DefaultSource({"nameServer": name_server, "subscribe": "lean", "startingOffsets": "earliest"})
reader = source.streamReader(source.schema())
start = reader.initialOffset()
partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
file.write_bytes(pyspark.cloudpickle.dumps((reader.read, partitions)))
"""
_TASK = """
read, partitions = pyspark.cloudpickle.loads(file.read_bytes())
assert sum(batch.num_rows for partition in partitions for batch in read(partition)) == 60
"""
_END = """
print(json.dumps(sorted(set(sys.modules) - theirs)))
"""


def imported(code: str, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + code + _END, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_processes_import_only_what_they_use(tmp_path: Path) -> None:
    with LocalCluster() as cluster, Producer("lean", name_server=cluster.name_server) as producer:
        cluster.create_topic("lean", 2)
        for size in (3, 60):  # bodies of equal and of different lengths
            messages = [Message.of("lean", "x" * (10 + number % size), keys=f"key-{number}") for number in range(30)]
            producer.send(messages)
        file = str(tmp_path / "read")
        plan = imported(_PLAN, cluster.name_server, file)
        task = imported(_TASK, cluster.name_server, file)
    wire = "spark_rocket.protocol.wire"
    unused = {
        "pandas",
        "spark_rocket.client.admin",
        "spark_rocket.client.send.producer",
        "spark_rocket.datasource.bodies.encoding",
        "spark_rocket.datasource.exactly_once",
        "spark_rocket.datasource.plan.lookup",
        "spark_rocket.datasource.read.dedupe",
        "spark_rocket.datasource.read.typed_rows",
        "spark_rocket.datasource.write",
        f"{wire}.request_limits",
        *(f"{wire}.bodies.{family}" for family in ("config", "consumer", "every", "register", "stats")),
        *(f"{wire}.headers.{family}" for family in ("admin", "consumer", "every", "namesrv", "producer")),
    }
    assert not plan & {*unused, "pyarrow.compute", "spark_rocket.datasource.read.fetch"}
    assert not task & {*unused, "spark_rocket.datasource.plan.planner"}
    assert len(plan) < 140, sorted(plan)
    assert len(task) < 150, sorted(task)
