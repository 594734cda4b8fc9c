"""JSON bodies of 8 fields: typed columns by ``bodyFormat``, compared with ``from_json`` on ``body``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.lab import QUEUES, Lab
from benchmarks.registry import Pair, benchmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 1_000_000
SCHEMA = "id bigint, name string, price double, qty int, ok boolean, city string, at timestamp, note string"


@benchmark("spark.json.8", unit="rows/s", ceiling="reading body, and from_json (not a ceiling; equal rows)", target=1.5)
def spark_json(lab: Lab, size: str) -> Pair:
    from pyspark.sql import functions as F

    spark, topic = lab.spark, lab.topic("json")
    server = {"nameServer": lab.cluster.name_server}
    frame = spark.range(0, ROWS, 1, QUEUES).selectExpr(
        "id",
        "concat('user-', id) AS name",
        "id * 0.25D AS price",
        "CAST(id % 7 AS INT) AS qty",
        "id % 2 = 0 AS ok",
        "'Berlin' AS city",
        "timestamp_seconds(1769860800 + id) AS at",
        "repeat('x', 20) AS note",
    )
    frame.write.format("rocket").options(**server, topic=topic, bodyFormat="json").mode("append").save()
    lab.settle(topic)
    reader = spark.read.format("rocket").options(**server, subscribe=topic)
    bodies = reader.schema("body binary").load()
    parsed = bodies.select(F.from_json(F.col("body").cast("string"), SCHEMA).alias("row")).select("row.*")
    typed = reader.option("bodyFormat", "json").schema(SCHEMA).load()
    total = ["sum(id) AS id", "sum(qty) AS qty", "count(at) AS at", "sum(price) AS price", "count(name) AS name"]
    assert typed.selectExpr(*total).collect() == parsed.selectExpr(*total).collect()
    return Pair(lambda: _into_nowhere(typed), lambda: _into_nowhere(parsed))


def _into_nowhere(frame: DataFrame) -> float:
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return ROWS / (time.perf_counter() - begun)
