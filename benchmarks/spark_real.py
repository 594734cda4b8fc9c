"""Spark writing and reading real rows: flights, and log lines of 40 to 900 bytes, with tags and keys of any lengths.

Flights are the rows of ``jobs.flights``; as JSON they have about 250 bytes. Rows around 128 bytes and 1 KiB are log
lines of half to one and a half times that length.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.lab import QUEUES, Lab
from benchmarks.registry import Pair, benchmark
from benchmarks.spark import first_batch, into_nowhere, ready, session, write_batch
from jobs.flights import FLIGHT_COLUMNS, load_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINES = 500_000
LENGTHS = {"lines": (40, 900), "around128": (64, 192), "around1024": (512, 1536)}
MESSAGE_COLUMNS = ("body", "tags", "keys")


def lines(lab: Lab, least: int, most: int) -> DataFrame:
    """Return log lines of ``least`` to ``most`` bytes; lengths and content depend on their numbers alone."""
    length = f"CAST({least} + pmod(hash(id), {most - least + 1}) AS INT)"
    return (
        session(lab)
        .range(0, LINES if most < 1000 else LINES // 2, 1, QUEUES)
        .selectExpr(
            f"substring(repeat(sha2(CAST(id AS STRING), 256), {most // 64 + 1}), 1, {length}) AS body",
            "element_at(array('info', 'warning', 'error', 'debug'), CAST(1 + pmod(hash(id), 4) AS INT)) AS tags",
            "concat('request-', id * pmod(hash(id), 1000)) AS keys",
        )
    )


def flights(lab: Lab) -> DataFrame:
    """Return flights with the columns of their bodies, tags and keys."""
    from pyspark.sql import functions as F

    path = str(lab.scratch / "flights")
    table = session(lab).createDataFrame(load_flights())
    number = F.concat("carrier", F.col("flight").cast("string"))
    keys = F.concat_ws("-", number, F.date_format("time_hour", "yyyyMMdd'T'HH"))
    frame = table.withColumn("tags", F.col("carrier")).withColumn("keys", keys)
    frame.repartition(QUEUES).write.parquet(path)
    return session(lab).read.parquet(path)


def as_messages(frame: DataFrame) -> DataFrame:
    """Return flights with ready-made bodies."""
    from pyspark.sql import functions as F

    return frame.select(F.to_json(F.struct(*FLIGHT_COLUMNS)).alias("body"), "tags", "keys")


def rows_of(lab: Lab, name: str) -> DataFrame:
    return lines(lab, *LENGTHS[name]) if name in LENGTHS else as_messages(flights(lab))


def _written(lab: Lab, frame: DataFrame, rows: int, form: str, options: dict[str, str]) -> float:
    if topic := options.get("topic"):
        lab.settle(topic)
    begun = time.perf_counter()
    frame.write.format(form).options(**options).mode("append").save()
    return rows / (time.perf_counter() - begun)


@benchmark(
    "spark.write.around128",
    "spark.write.around1024",
    "spark.write.lines",
    "spark.write.flights",
    unit="rows/s",
    ceiling="a sink that only counts",
    target=0.5,
)
def spark_write_real(lab: Lab, name: str) -> Pair:
    frame, topic = rows_of(lab, name), lab.topic(f"written-{name}")
    rows = frame.count()
    options = {"nameServer": lab.cluster.name_server, "topic": topic}
    return Pair(
        lambda: _written(lab, frame, rows, "rocket", options), lambda: _written(lab, frame, rows, "ceiling", {})
    )


@benchmark("spark.writejson.flights", unit="rows/s", ceiling="the same rows as ready-made bodies", target=0.7)
def spark_write_json(lab: Lab, name: str) -> Pair:
    frame, topic = flights(lab), lab.topic("written-json")
    made = str(lab.scratch / "made")
    as_messages(frame).write.parquet(made)
    bodies, rows = session(lab).read.parquet(made), frame.count()
    options = {"nameServer": lab.cluster.name_server, "topic": topic}
    return Pair(
        lambda: _written(lab, frame, rows, "rocket", options | {"bodyFormat": "json"}),
        lambda: _written(lab, bodies, rows, "rocket", options),
    )


@benchmark(
    "spark.read.lines",
    "spark.read.flights",
    unit="rows/s",
    ceiling="a source of one ready-made Arrow batch",
    target=0.7,
)
def spark_read_real(lab: Lab, name: str) -> Pair:
    frame, topic = rows_of(lab, name), lab.topic(f"read-{name}")
    rows = frame.count() // QUEUES * QUEUES
    server = lab.cluster.name_server
    frame.limit(rows).write.format("rocket").options(nameServer=server, topic=topic).mode("append").save()
    lab.settle(topic)
    path = lab.scratch / "ready.arrow"
    write_batch(path, first_batch(server, topic))
    stored = session(lab).read.format("rocket").option("nameServer", server).option("subscribe", topic).load()
    made = ready(session(lab), path, rows=rows)
    assert stored.count() == made.count() == rows
    return Pair(lambda: into_nowhere(stored, rows), lambda: into_nowhere(made, rows))
