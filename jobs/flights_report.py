"""Report how late New York's flights left: a table in the terminal and a chart, from a batch read of the totals."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.flights import DELAYS_TOPIC, airline_names
from jobs.flights_chart import draw
from jobs.session import job_parser, spark_session
from jobs.terminal import rate, table

TOTALS_SCHEMA = "carrier STRING, hour TIMESTAMP, flights BIGINT, cancelled BIGINT, late BIGINT, delay_minutes BIGINT"
NUMBERS = ["flights", "cancelled", "late", "delay_minutes"]


@dataclass(frozen=True)
class Report:
    table: str
    picture: Path
    flights: int
    messages: int
    seconds: float


def read_totals(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Return the newest totals of each (carrier, hour): the row with the highest offset in the pair's queue."""
    messages = (
        spark.read.format("rocket")
        .schema("queueOffset BIGINT, keys STRING, body BINARY")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .load()
    )
    newest = messages.groupBy("keys").agg(F.max_by("body", "queueOffset").alias("body"), F.count("*").alias("messages"))
    totals = F.from_json(F.col("body").cast("string"), TOTALS_SCHEMA)
    return newest.select(totals.alias("totals"), "messages").select("totals.*", "messages")


def by_carrier_and_local_hour(totals: DataFrame) -> pd.DataFrame:
    """Return sums over the year by carrier and hour of the day in New York: at most a few hundred rows."""
    local = F.hour(F.from_utc_timestamp("hour", "America/New_York"))
    sums = [F.sum(column).alias(column) for column in [*NUMBERS, "messages"]]
    return totals.groupBy("carrier", local.alias("local_hour")).agg(*sums).toPandas()


def table_of(hours: pd.DataFrame, names: dict[str, str]) -> str:
    carriers = hours.groupby("carrier")[NUMBERS].sum()
    flown = carriers["flights"] - carriers["cancelled"]
    carriers["flown"] = flown.where(flown > 0)  # otherwise the mean is unknown
    carriers["mean"] = carriers["delay_minutes"] / carriers["flown"]
    carriers = carriers.sort_values("mean", ascending=False)
    header = ["Carrier", "", "Flights", "Mean delay", "Over 15 min", "Cancelled"]
    rows = [
        [
            str(carrier),
            names.get(str(carrier), ""),
            f"{row['flights']:,.0f}",
            "–" if pd.isna(row["mean"]) else f"{row['mean']:.1f} min",
            "–" if pd.isna(row["mean"]) else f"{row['late'] / row['flown']:.0%}",
            f"{row['cancelled'] / row['flights']:.1%}",
        ]
        for carrier, row in carriers.iterrows()
    ]
    return table(header, rows, left=2)


def report(spark: SparkSession, name_server: str, picture: Path, *, topic: str = DELAYS_TOPIC) -> Report:
    """Read the totals, draw the chart and build the table."""
    started = time.monotonic()
    hours = by_carrier_and_local_hour(read_totals(spark, name_server, topic))
    seconds = time.monotonic() - started
    if hours.empty:
        raise SystemExit(f"The topic {topic} has no totals yet: run python -m jobs.flights_delays first.")
    names = airline_names()
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(hours, names, picture)
    return Report(table_of(hours, names), picture, int(hours["flights"].sum()), int(hours["messages"].sum()), seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Print a table and draw a chart of the delays.")
    parser.add_argument("--topic", default=DELAYS_TOPIC, help="topic with the totals")
    parser.add_argument("--picture", type=Path, default=Path("demo-output/delays.png"), help="file for the chart")
    options = parser.parse_args(arguments)
    spark = spark_session("flights_report", verbose=options.verbose)
    try:
        result = report(spark, options.nameserver, options.picture, topic=options.topic)
    finally:
        spark.stop()
    print(f"\n{result.table}\n")
    print(f"{result.flights:,} flights in all. Read from {options.topic}: {rate(result.messages, result.seconds)}")
    print(f"Picture: {result.picture.resolve()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
