"""What the Python processes of Spark import for a stream: each costs CPU time at every start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

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
import pyspark.sql.worker.write_into_data_source
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
_PLAN_WRITE = """
import pyspark_rocket
from pyspark.sql.types import StructType
source = pyspark_rocket.DefaultSource({"nameServer": name_server, "topic": "lean", **json.loads(sys.argv[3])})
file.write_bytes(pyspark.cloudpickle.dumps(source.writer(StructType.fromJson(json.loads(sys.argv[4])), False).write))
"""
_WRITE = """
batch = pyarrow.ipc.open_file(sys.argv[3]).get_batch(0)
assert pyspark.cloudpickle.loads(file.read_bytes())(iter([batch])).messages == batch.num_rows
"""
_STAGE = """
batch = pyarrow.ipc.open_file(sys.argv[3]).get_batch(0)
staged = pyspark.cloudpickle.loads(file.read_bytes())(iter([batch]))
assert sum(block.rows for block in staged.blocks) == batch.num_rows
"""
_END = """
from dataclasses import is_dataclass
modules = set(sys.modules) - theirs
classes = (one for name in modules if name.startswith("spark_rocket.") for one in vars(sys.modules[name]).values())
compared = {one.__name__ for one in classes if isinstance(one, type) and is_dataclass(one) and "__eq__" in vars(one)}
print(json.dumps([sorted(modules), sorted(compared)]))
"""


_WIRE = "spark_rocket.protocol.wire"
UNUSED = {
    "pandas",
    "spark_rocket.client.admin",
    "spark_rocket.datasource.exactly_once",
    "spark_rocket.datasource.plan.lookup",
    "spark_rocket.datasource.read.dedupe",
    "spark_rocket.protocol.filter.sql92",
    "spark_rocket.protocol.requests",
    *(f"{_WIRE}.bodies.{family}" for family in ("config", "consumer", "register", "stats")),
    *(f"{_WIRE}.headers.{family}" for family in ("admin", "consumer", "namesrv")),
}


def imported(code: str, *arguments: str, most_compared: int = 20) -> set[str]:
    """Return the modules. ``most_compared``: the dataclasses that may have compiled methods (``common.values``)."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + code + _END, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    modules, compared = json.loads(done.stdout.splitlines()[-1])
    assert len(compared) <= most_compared, compared
    return set(modules)


def test_processes_import_only_what_they_use(tmp_path: Path) -> None:
    with LocalCluster(in_process=True) as cluster, Producer("lean", name_server=cluster.name_server) as producer:
        cluster.create_topic("lean", 2)
        for size in (3, 60):  # bodies of equal and of different lengths
            messages = [Message.of("lean", "x" * (10 + number % size), keys=f"key-{number}") for number in range(30)]
            producer.send(messages)
        file = str(tmp_path / "read")
        plan = imported(_PLAN, cluster.name_server, file)
        task = imported(_TASK, cluster.name_server, file)
    unused = {
        *UNUSED,
        f"{_WIRE}.headers.producer",
        "spark_rocket.client.send.producer",
        "spark_rocket.datasource.bodies.encoding",
        "spark_rocket.datasource.read.typed_rows",
        "spark_rocket.datasource.write",
    }
    assert not plan & {*unused, "pyarrow.compute", "spark_rocket.datasource.read.fetch"}
    assert not task & {*unused, "spark_rocket.datasource.plan.planner"}
    assert len(plan) <= 180, sorted(plan)
    assert len(task) <= 180, sorted(task)


ROWS = pa.record_batch(
    {
        "body": ["a", "longer"] * 9,
        "tags": ["t", None] * 9,
        "keys": ["k", "key"] * 9,
        "properties": pa.array([[("p", "1")], None] * 9, pa.map_(pa.string(), pa.string())),
        "shardingKey": ["s", None] * 9,
        "delayLevel": pa.array([1, None] * 9, pa.int32()),
    }
)
FLIGHTS = pa.record_batch(
    {
        "carrier": ["UA", None] * 9,
        "delay": pa.array([-1, None] * 9, pa.int64()),
        "distance": [1.5, None] * 9,
        "at": pa.array([0, None] * 9, pa.timestamp("us", "UTC")),
        "legs": [["a", "b"], None] * 9,
    }
)


@pytest.mark.parametrize(
    ("batch", "options"),
    [(ROWS, {}), (ROWS, {"compression": "zlib", "compressAbove": "1"}), (FLIGHTS, {"bodyFormat": "json"})],
)
def test_writing_processes_import_only_what_they_use(
    tmp_path: Path, batch: pa.RecordBatch, options: dict[str, str]
) -> None:
    file, rows = str(tmp_path / "write"), tmp_path / "rows.arrow"
    with pa.OSFile(str(rows), "wb") as out, pa.ipc.new_file(out, batch.schema) as stored:
        stored.write_batch(batch)
    schema = from_arrow_schema(batch.schema).json()
    with LocalCluster(in_process=True) as cluster:
        cluster.create_topic("lean", 2)
        plan = imported(_PLAN_WRITE, cluster.name_server, file, json.dumps(options), schema)
        task = imported(_WRITE, cluster.name_server, file, str(rows))
    unused = {*UNUSED, "spark_rocket.datasource.plan", "spark_rocket.datasource.read"}
    assert not plan & unused, sorted(plan & unused)
    assert not task & unused, sorted(task & unused)
    assert len(plan) <= 190, sorted(plan)
    assert len(task) <= 180, sorted(task)


def test_tasks_of_the_exactly_once_sink_do_not_import_what_only_its_driver_uses(tmp_path: Path) -> None:
    file, rows = str(tmp_path / "write"), tmp_path / "rows.arrow"
    with pa.OSFile(str(rows), "wb") as out, pa.ipc.new_file(out, ROWS.schema) as stored:
        stored.write_batch(ROWS)
    schema = from_arrow_schema(ROWS.schema).json()
    options = {"deliveryGuarantee": "exactlyOnce", "writeId": "lean"}
    with LocalCluster(in_process=True) as cluster:
        cluster.create_topic("lean", 2)
        imported(_PLAN_WRITE, cluster.name_server, file, json.dumps(options), schema, most_compared=70)
        task = imported(_STAGE, cluster.name_server, file, str(rows))
    once = "spark_rocket.datasource.exactly_once"
    driver = {f"{once}.{module}" for module in ("commit", "driver", "ledger", "place", "publish", "registers")}
    unused = {*UNUSED, *driver} - {once, f"{_WIRE}.bodies.config", f"{_WIRE}.headers.admin"}  # for a topic's type
    assert not task & unused, sorted(task & unused)
    assert len(task) <= 210, sorted(task)
