"""`make demo`: start a name server and a broker, and run the three flight jobs one after the other."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from jobs import flights_delays, flights_publish, flights_report
from jobs.flights import DELAYS_TOPIC, FLIGHTS_TOPIC
from jobs.session import spark_session
from jobs.terminal import rate
from spark_rocket.testing import LocalCluster


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the demo's output")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="use only the first N flights")
    parser.add_argument("--max-per-trigger", type=int, default=50_000, help="maximum messages per micro-batch")
    parser.add_argument("--verbose", action="store_true", help="show Spark's own log on the terminal")
    options = parser.parse_args(arguments)
    output: Path = options.output
    for left_over in ("delays", "checkpoint"):  # of an earlier run, whose broker and offsets no longer exist
        shutil.rmtree(output / left_over, ignore_errors=True)

    # The demo ends before the JVM's second compiler and its parallel collector would pay off.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    begun = time.monotonic()
    with LocalCluster(in_process=False) as cluster:
        print(f"Name server and broker are up at {cluster.name_server}.")
        spark = spark_session("rocket-demo", verbose=options.verbose, log=output / "spark.log")
        try:
            print(f"\n1/3  Publishing the flights to the topic {FLIGHTS_TOPIC} …")
            published = flights_publish.publish(spark, cluster.name_server, limit=options.limit)
            print(f"     {rate(published.rows, published.seconds)}")

            print(f"\n2/3  Delays by carrier and hour, as a stream, to the topic {DELAYS_TOPIC} and to Parquet …")
            places = flights_delays.Places(cluster.name_server, output / "delays", output / "checkpoint")
            delays = flights_delays.run(spark, places, max_per_trigger=options.max_per_trigger)
            print(f"     {rate(delays.rows_in, delays.seconds)}, {delays.rows_out:,} totals out")

            print(f"\n3/3  Reading {DELAYS_TOPIC} back …")
            result = flights_report.report(spark, cluster.name_server, output / "delays.png")
            print(f"     {rate(result.messages, result.seconds)}\n")
        finally:
            spark.stop()

    print(result.table)
    if not published.rows == delays.rows_in == result.flights:
        print(f"\nWrong counts: {published.rows:,} flights in, {delays.rows_in:,} read, {result.flights:,} counted.")
        return 1
    print(f"\nEvery flight was counted once: {published.rows:,} in, {result.flights:,} in the table.")
    print(f"Picture: {result.picture.resolve()}")
    print(f"In:  {published.rows / published.seconds:,.0f} rows/s written to {FLIGHTS_TOPIC}")
    print(f"Out: {delays.rows_in / delays.seconds:,.0f} rows/s through the streaming query, from start to end")
    print(f"Total time: {time.monotonic() - begun:.0f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
