"""Spark reading a topic without output and writing rows to one, compared with an empty source and sink.

All rows here have bodies and tags of equal lengths, the exception in practice: see spark_real.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.frames import BATCH
from benchmarks.lab import QUEUES, Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.store import BORN, TOPIC, batch_body, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

READ_ROWS = 1_000_000
WRITE_ROWS = {128: 1_000_000, 1024: 250_000}


def session(lab: Lab) -> SparkSession:
    from benchmarks.spark_sources import Ceiling

    lab.spark.dataSource.register(Ceiling)
    return lab.spark


def into_nowhere(frame: DataFrame, rows: int) -> float:
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - begun)


@benchmark(
    "spark.read.128", "spark.read.1024", unit="rows/s", ceiling="a source of one ready-made Arrow batch; equal rows"
)
def spark_read(lab: Lab, size: str) -> Pair:
    topic = lab.filled(int(size), READ_ROWS)
    spark = session(lab)
    path = lab.folder / f"ready-{size}.arrow"
    write_batch(path, first_batch(lab.cluster.name_server, topic))

    frame = spark.read.format("rocket").option("nameServer", lab.cluster.name_server).option("subscribe", topic).load()
    made = ready(spark, path)
    assert frame.count() == made.count() == READ_ROWS
    return Pair(lambda: into_nowhere(frame, READ_ROWS), lambda: into_nowhere(made, READ_ROWS))


@benchmark(
    "spark.body.128", "spark.body.1024", unit="rows/s", ceiling="a source of one ready-made Arrow batch; equal rows"
)
def spark_read_bodies(lab: Lab, size: str) -> Pair:
    """Read only the bodies: ``.schema("body binary")``."""
    topic = lab.filled(int(size), READ_ROWS)
    spark = session(lab)
    path = lab.folder / f"bodies-{size}.arrow"
    reader = spark.read.format("rocket").schema("body binary")
    frame = reader.option("nameServer", lab.cluster.name_server).option("subscribe", topic).load()
    write_batch(path, first_batch(lab.cluster.name_server, topic, frame.schema))
    made = ready(spark, path, frame.schema)
    assert frame.count() == made.count() == READ_ROWS
    return Pair(lambda: into_nowhere(frame, READ_ROWS), lambda: into_nowhere(made, READ_ROWS))


@benchmark("spark.storepath.128", unit="rows/s", ceiling="a source of one ready-made Arrow batch; equal rows")
def spark_store_path(lab: Lab, size: str) -> Pair:
    """Read a directory that no broker uses."""
    spark = session(lab)
    path, ready_path = lab.scratch / "store", lab.scratch / "ready.arrow"
    body = batch_body(int(size))
    with open_store(path) as store:
        for number in range(READ_ROWS // BATCH):
            store.put_batch(TOPIC, number % QUEUES, body, born_timestamp=1, born_host=BORN)
        batch = _ready_batch(store.get_message(TOPIC, 0, 0, 32_768, 4 * 1024 * 1024).records)
    write_batch(ready_path, batch)
    frame = spark.read.format("rocket").option("storePath", str(path)).load()
    made = ready(spark, ready_path)
    assert frame.count() == made.count() == READ_ROWS
    return Pair(lambda: into_nowhere(frame, READ_ROWS), lambda: into_nowhere(made, READ_ROWS))


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as stored:
        stored.write_batch(batch)


def ready(spark: SparkSession, path: Path, schema: StructType | None = None, rows: int = READ_ROWS) -> DataFrame:
    """The ceiling: the same batch repeatedly, for as many rows as are read."""
    reader = spark.read.format("ceiling").option("path", str(path))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.option("rows", rows).option("partitions", QUEUES).load()


def first_batch(name_server: str, topic: str, schema: StructType | None = None) -> pa.RecordBatch:
    """Return a batch like the source's: one pull of the default size."""
    from spark_rocket.client import Reader

    with Reader(name_server) as reader:
        answer = reader.pull(reader.queues(topic)[0], 0, max_msgs=32_768, max_bytes=4 * 1024 * 1024)
        return _ready_batch(answer.records, schema)


def _ready_batch(records: bytes | memoryview, schema: StructType | None = None) -> pa.RecordBatch:
    """Return the schema's columns, or all, in Spark's own types."""
    from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
    from spark_rocket.datasource.spark_schema import columns_of
    from spark_rocket.protocol.record.columns import decode_records

    projection = project(MESSAGE_SCHEMA if schema is None else columns_of(schema, None))
    return projection.conform(decode_records(records, projection.columns, broker_name="broker-a"))


@benchmark("spark.write.128", "spark.write.1024", unit="rows/s", ceiling="a sink that only counts; equal rows")
def spark_write(lab: Lab, size: str) -> Pair:
    from pyspark.sql import functions as F

    spark = session(lab)
    topic = lab.topic(f"written-{size}")
    rows = WRITE_ROWS[int(size)]
    frame = spark.range(0, rows, 1, QUEUES).select(
        F.repeat(F.lit("x"), int(size)).alias("body"),
        F.lit("bench").alias("tags"),
        F.col("id").cast("string").alias("keys"),
    )
    options = {"nameServer": lab.cluster.name_server, "topic": topic}

    def write(form: str, options: dict[str, str]) -> float:
        lab.settle(topic)
        begun = time.perf_counter()
        frame.write.format(form).options(**options).mode("append").save()
        return rows / (time.perf_counter() - begun)

    return Pair(lambda: write("rocket", options), lambda: write("ceiling", {}))
