"""Publish the flights of New York's airports in 2013 to a topic: one message per flight, with ``df.write``.

A message's tag is the carrier and its key the flight's id (carrier, number and hour). Its sharding key is the aircraft,
so the flights of one aircraft stay in order in one queue. Its body is the flight as JSON.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.flights import FLIGHT_COLUMNS, FLIGHTS_TOPIC, load_flights
from jobs.session import TopicWatch, ensure_topic, job_parser, spark_session
from jobs.terminal import Progress, rate


@dataclass(frozen=True)
class Published:
    rows: int
    seconds: float


def messages_of(flights: DataFrame) -> DataFrame:
    """Return the columns that ``format("rocket")`` writes, one row per flight."""
    number = F.concat("carrier", F.col("flight").cast("string"))
    return flights.select(
        F.to_json(F.struct(*FLIGHT_COLUMNS)).alias("body"),
        F.col("carrier").alias("tags"),
        F.concat_ws("-", number, F.date_format("time_hour", "yyyyMMdd'T'HH'Z'")).alias("keys"),
        F.create_map(F.lit("origin"), F.col("origin"), F.lit("dest"), F.col("dest")).alias("properties"),
        F.coalesce(F.col("tailnum"), number).alias("shardingKey"),
    )


def publish(
    spark: SparkSession, name_server: str, *, topic: str = FLIGHTS_TOPIC, queues: int = 4, limit: int | None = None
) -> Published:
    """Write the flights to the topic and measure the time of Spark's write."""
    flights = load_flights(limit)
    ensure_topic(name_server, topic, queues)
    # One partition writes the year in order. Several would be faster, but would interleave January with July: readers
    # that use event time would need a watermark of half a year.
    rows = messages_of(spark.createDataFrame(flights).coalesce(1))
    total = flights.num_rows
    with TopicWatch(name_server, topic) as watch, Progress(lambda: f"{watch.arrived():,} of {total:,} published"):
        started = time.monotonic()
        rows.write.format("rocket").option("nameServer", name_server).option("topic", topic).mode("append").save()
        return Published(total, time.monotonic() - started)


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Publish 336,776 flights to a topic, one message per flight.")
    parser.add_argument("--topic", default=FLIGHTS_TOPIC, help="topic to publish to")
    parser.add_argument("--queues", type=int, default=4, help="queues per broker, if the topic has to be created")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="publish only the first N flights")
    options = parser.parse_args(arguments)
    spark = spark_session("flights_publish", verbose=options.verbose)
    try:
        done = publish(spark, options.nameserver, topic=options.topic, queues=options.queues, limit=options.limit)
    finally:
        spark.stop()
    print(f"Published to {options.topic}: {rate(done.rows, done.seconds)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
