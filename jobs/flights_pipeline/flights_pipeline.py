"""A declarative pipeline: flights from a topic to a table, delays by carrier, and very late flights to another topic.

``spark-pipelines run`` imports this file and orders the flows by their dependencies. Each flow has a checkpoint in the
pipeline's storage, so a run continues where the last one stopped. The name server is that of ``NAMESRV_ADDR``, or
127.0.0.1:9876. docs/guides/pipelines.md explains the commands.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
VERY_LATE_MINUTES = 120


@dp.table
def flights() -> DataFrame:
    """Return the messages of the topic as typed rows."""
    return (
        spark.readStream.format("rocket")
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "flights-pipeline")
        .option("bodyFormat", "json")
        .schema("carrier STRING, flight INT, origin STRING, dest STRING, dep_delay DOUBLE, time_hour TIMESTAMP")
        .load()
    )


@dp.materialized_view
def delays() -> DataFrame:
    """Return totals per carrier, computed from the table in each run."""
    very_late = F.count_if(F.col("dep_delay") > VERY_LATE_MINUTES)
    return (
        spark.table("flights")
        .groupBy("carrier")
        .agg(F.count("*").alias("flights"), very_late.alias("very_late"), F.avg("dep_delay").alias("mean_delay"))
    )


dp.create_sink(
    "very_late_topic",
    "rocket",
    {"topic": "very-late-flights", "bodyFormat": "json", "deliveryGuarantee": "exactlyOnce"},
)


@dp.append_flow(target="very_late_topic")
def very_late_flights() -> DataFrame:
    """Return the flights that left more than two hours late, one message each."""
    late = spark.readStream.table("flights").where(F.col("dep_delay") > VERY_LATE_MINUTES)
    return late.select("*", F.col("carrier").alias("tags"))
