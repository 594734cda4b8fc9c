"""Delays by carrier and hour, in event time, from the flights' topic to another topic and to Parquet.

Every micro-batch writes the (carrier, hour) pairs whose numbers changed, with their new totals. A later message about a
pair replaces an earlier one. The totals are exact at any time, also for hours whose watermark has not passed, which an
append-mode query would hold back until newer flights arrive.

Restartable: the checkpoint has the offsets and the totals. A micro-batch that is retried after a crash writes its
Parquet folder again and its messages with the same ids, so duplicates can be detected: ``writeId`` is the query's id,
which Spark stores in the checkpoint, and the batch number. Another query with its own checkpoint has other ids.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from jobs.flights import DELAYS_TOPIC, FLIGHT_SCHEMA, FLIGHTS_TOPIC
from jobs.session import ensure_topic, job_parser, spark_session
from jobs.terminal import Progress, rate

GROUP = "flight-delays-job"
LATE_MINUTES = 15


@dataclass(frozen=True)
class Delays:
    rows_in: int
    rows_out: int
    seconds: float


@dataclass(frozen=True)
class Places:
    """Where the query reads, writes and stores its state."""

    name_server: str
    parquet: Path
    checkpoint: Path
    source: str = FLIGHTS_TOPIC
    target: str = DELAYS_TOPIC
    group: str = GROUP


def delays_of(messages: DataFrame, watermark: str) -> DataFrame:
    """Totals per carrier and hour of scheduled departure."""
    flight = F.from_json(F.col("body").cast("string"), FLIGHT_SCHEMA)
    flights = messages.select(flight.alias("flight")).select("flight.*")
    late = F.count_if(F.col("dep_delay") > LATE_MINUTES)
    return (
        flights.withWatermark("time_hour", watermark)
        .groupBy("carrier", F.window("time_hour", "1 hour"))
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
            late.alias("late"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
        )
        .select("carrier", F.col("window.start").alias("hour"), "flights", "cancelled", "late", "delay_minutes")
    )


def messages_of(delays: DataFrame) -> DataFrame:
    """Return one message per (carrier, hour). The sharding key keeps a pair's totals in one queue, the newest last."""
    key = F.concat_ws("-", "carrier", F.date_format("hour", "yyyyMMdd'T'HH'Z'"))
    return delays.select(
        F.to_json(F.struct("*")).alias("body"),
        F.col("carrier").alias("tags"),
        key.alias("keys"),
        key.alias("shardingKey"),
    )


def query_id(batch: DataFrame) -> str:
    """Return the id of the streaming query that a micro-batch belongs to. It survives restarts."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise RuntimeError("Spark did not pass the query id of this micro-batch.")
    return found


class Sink:
    """Writes a micro-batch to the topic and to Parquet, and counts the rows."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.rows = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        # Cached while both are written: otherwise the second write would read and aggregate everything again.
        batch = batch.persist()
        try:
            folder = self._places.parquet / f"batch={batch_id:06d}"
            batch.write.mode("overwrite").parquet(str(folder))
            (
                messages_of(batch)
                .write.format("rocket")
                .option("nameServer", self._places.name_server)
                .option("topic", self._places.target)
                .option("writeId", f"{query_id(batch)}-{batch_id}")
                .mode("append")
                .save()
            )
            self.rows += batch.count()
        finally:
            batch.unpersist()


def start(
    spark: SparkSession,
    places: Places,
    sink: Callable[[DataFrame, int], None],
    *,
    continuous: bool = False,
    max_per_trigger: int = 100_000,
    watermark: str = "30 days",
) -> StreamingQuery:
    """Start the query. By default it processes all available messages and ends."""
    # An empty batch after the last one would only evict old totals, which update mode does not emit.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    messages = (
        spark.readStream.format("rocket")
        .schema("body BINARY")  # decodes only this column
        .option("nameServer", places.name_server)
        .option("subscribe", places.source)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", places.group)
        .option("maxOffsetsPerTrigger", max_per_trigger)
        .option("trigger", "processingTime" if continuous else "availableNow")  # for Spark 4.0 and 4.1
        .load()
    )
    writer = (
        delays_of(messages, watermark)
        .writeStream.queryName("flight-delays")
        .outputMode("update")
        .option("checkpointLocation", str(places.checkpoint))
        .foreachBatch(sink)
    )
    writer = writer.trigger(processingTime="1 second") if continuous else writer.trigger(availableNow=True)
    return writer.start()


class RowsRead:
    """The number of rows that the query's finished micro-batches have read since this start.

    Spark stores only the last 100 micro-batches, so call this at least once per 100 micro-batches.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._counted_until = ""
        self._rows = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            for progress in self._query.recentProgress:
                if progress.timestamp > self._counted_until:
                    self._counted_until = progress.timestamp
                    self._rows += progress.numInputRows
            return self._rows


def doing(spark: SparkSession, query: StreamingQuery) -> str:
    """Describe the query's current activity, with its task counts, because the first micro-batch takes a while."""
    tracker = spark.sparkContext.statusTracker()
    jobs = set(tracker.getJobIdsForGroup(str(query.runId))) & set(tracker.getActiveJobsIds())
    stages = [stage for job in map(tracker.getJobInfo, jobs) if job is not None for stage in job.stageIds]
    known = [stage for stage in map(tracker.getStageInfo, stages) if stage is not None]
    tasks = f": {sum(s.numCompletedTasks for s in known)} of {sum(s.numTasks for s in known)} tasks" if known else ""
    said, _, _ = str(query.status["message"]).lower().partition(" from ")  # getting offsets from org.apache…
    return f"{said}{tasks}"


def run(spark: SparkSession, places: Places, *, continuous: bool = False, **settings: int | str) -> Delays:
    """Run the query until all available messages are processed, or, with ``continuous``, until SIGTERM or Ctrl-C."""
    ensure_topic(places.name_server, places.target, queues=4)
    sink = Sink(places)
    started = time.monotonic()
    # argparse has checked the settings of the command line.
    query = start(spark, places, sink, continuous=continuous, **settings)  # type: ignore[arg-type]
    stop = _stop_on_signals() if continuous else (lambda: False)

    rows_read = RowsRead(query)

    def describe() -> str:
        return f"{rows_read():,} flights in, {sink.rows:,} totals out ({doing(spark, query)})"

    with Progress(describe):
        while not query.awaitTermination(1) and not stop():
            rows_read()
    query.stop()
    return Delays(rows_read(), sink.rows, time.monotonic() - started)


def _stop_on_signals() -> Callable[[], bool]:
    wanted: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        wanted.append(number)

    signal.signal(signal.SIGINT, remember)
    signal.signal(signal.SIGTERM, remember)
    return lambda: bool(wanted)


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser(
        "Aggregate delays by carrier and hour: from the flights' topic to another topic and to Parquet."
    )
    parser.add_argument("--source", default=FLIGHTS_TOPIC, help="topic with the flights")
    parser.add_argument("--target", default=DELAYS_TOPIC, help="topic for the totals")
    parser.add_argument("--group", default=GROUP, help="consumer group for committed offsets")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for Parquet and checkpoint")
    parser.add_argument("--continuous", action="store_true", help="run until Ctrl-C instead of ending when caught up")
    parser.add_argument("--max-per-trigger", type=int, default=100_000, help="maximum messages per micro-batch")
    parser.add_argument("--watermark", default="30 days", help="maximum lateness of a flight in event time")
    options = parser.parse_args(arguments)
    places = Places(
        name_server=options.nameserver,
        parquet=options.output / "delays",
        checkpoint=options.output / "checkpoint",
        source=options.source,
        target=options.target,
        group=options.group,
    )
    spark = spark_session("flights_delays", verbose=options.verbose)
    try:
        done = run(
            spark,
            places,
            continuous=options.continuous,
            max_per_trigger=options.max_per_trigger,
            watermark=options.watermark,
        )
    finally:
        spark.stop()
    print(f"Read from {places.source}: {rate(done.rows_in, done.seconds)}")
    print(f"Wrote {done.rows_out:,} totals to {places.target} and to {places.parquet}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
