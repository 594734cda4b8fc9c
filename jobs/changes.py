"""Apply the changes that Canal or Debezium sent to a topic to a Delta table: inserts, updates and deletes.

All changes of a row must be in one queue. A micro-batch then has them in the order of their offsets, and only the
newest one of each row is merged. The commit stores the query and the micro-batch. A repeated micro-batch is skipped.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.changes_publish import CHANGES_TOPIC, FORMATS
from jobs.session import job_parser, spark_session
from spark_rocket.datasource.ddl import parse_ddl

KEY = "id"
COLUMNS = "id bigint, item string, price decimal(10,2), paid boolean, ordered_at timestamp_ntz, due date"
COLUMN_TYPES = parse_ddl(COLUMNS)


def read_changes(spark: SparkSession, name_server: str, form: str, topic: str = CHANGES_TOPIC) -> DataFrame:
    """Return a stream with a row for each change: ``op`` (U or D), the row's columns, and its place in the topic."""
    envelope = f"op string, before struct<{COLUMNS}>, after struct<{COLUMNS}>"
    schema = {
        "canal": f"type string, isDdl boolean, data array<struct<{COLUMNS}>>, old array<struct<{KEY} bigint>>",
        "debezium": envelope,
        "debezium-schema": f"payload struct<{envelope}>",
    }[form]
    options = {"jsonQuotedValues": "true"} if form == "canal" else {"jsonEpochUnits": "us, days"}
    messages = (
        spark.readStream.format("rocket")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("bodyFormat", "json")
        .option("metadataColumns", "queueOffset")
        .options(**options)
        .schema(f"{schema}, queueOffset bigint")
        .load()
    )
    if form == "canal":
        return _of_canal(messages)
    envelopes = messages.select("payload.*", "queueOffset") if form == "debezium-schema" else messages
    return _of_debezium(envelopes)


def _of_canal(messages: DataFrame) -> DataFrame:
    """Divide statements into rows. An update of the key is a delete of the former key, too."""
    rows = messages.where("NOT isDdl AND type IN ('INSERT', 'UPDATE', 'DELETE')").selectExpr(
        "type", "queueOffset", "old", "posexplode(data) AS (place, row)"
    )
    changed = f"old[place].{KEY} IS NOT NULL AND old[place].{KEY} <> row.{KEY}"
    former = f"named_struct('op', 'D', 'row', named_struct({_named('row', former=True)}))"
    now = f"named_struct('op', IF(type = 'DELETE', 'D', 'U'), 'row', named_struct({_named('row')}))"
    each = rows.selectExpr(
        "queueOffset", "place", f"explode(IF({changed}, array({former}, {now}), array({now}))) AS change"
    )
    return each.selectExpr("change.op", "change.row.*", "queueOffset", "place")


def _of_debezium(envelopes: DataFrame) -> DataFrame:
    """Debezium sends an update of the key as a delete and an insert."""
    rows = envelopes.where("op IN ('c', 'r', 'u', 'd')")
    return rows.selectExpr(
        "IF(op = 'd', 'D', 'U') AS op", "IF(op = 'd', before, after) AS row", "queueOffset", "0 AS place"
    ).selectExpr("op", "row.*", "queueOffset", "place")


def _named(row: str, *, former: bool = False) -> str:
    sources = {name: f"{row}.{name}" for name in COLUMN_TYPES.names}
    if former:
        sources[KEY] = f"old[place].{KEY}"
    return ", ".join(f"'{name}', {source}" for name, source in sources.items())


def newest(changes: DataFrame) -> DataFrame:
    """Return the last change of each row."""
    columns = [name for name in changes.columns if name not in ("queueOffset", "place")]
    last = F.max_by(F.struct(*columns), F.struct("queueOffset", "place")).alias("last")
    return changes.groupBy(KEY).agg(last).select("last.*")


def apply_once(table: DeltaTable, changes: pa.Table, query: str, batch_id: int) -> None:
    """Merge the newest changes of a micro-batch, unless the table has the micro-batch."""
    done = table.transaction_version(query)
    if done is not None and done >= batch_id:
        return
    once = CommitProperties(app_transactions=[Transaction(query, batch_id)])
    columns = {name: f"new.{name}" for name in changes.column_names if name != "op"}
    merge = table.merge(
        changes, f"old.{KEY} = new.{KEY}", source_alias="new", target_alias="old", commit_properties=once
    )
    merge = merge.when_matched_delete("new.op = 'D'").when_matched_update(columns)
    merge.when_not_matched_insert(columns, predicate="new.op <> 'D'").execute()


def create_table(path: str, storage_options: dict[str, str] | None = None) -> DeltaTable:
    """Return the table; create it if it is missing."""
    DeltaTable.create(path, COLUMN_TYPES, mode="ignore", storage_options=storage_options)
    return DeltaTable(path, storage_options=storage_options)


def run(changes: DataFrame, path: str, checkpoint: str, **trigger: Any) -> None:
    """Apply a stream of changes until it ends."""
    create_table(path)

    def apply(batch: DataFrame, batch_id: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        apply_once(DeltaTable(path), newest(batch).toArrow(), query, batch_id)

    started = (
        changes.writeStream.foreachBatch(apply).option("checkpointLocation", checkpoint).trigger(**trigger).start()
    )
    started.awaitTermination()


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Apply the changes of Canal or Debezium to a Delta table.")
    parser.add_argument("--topic", default=CHANGES_TOPIC, help="topic to read")
    parser.add_argument("--format", choices=FORMATS, default="canal", help="format of the messages")
    parser.add_argument("--table", default="lake/orders", help="path of the Delta table")
    parser.add_argument("--checkpoint", default="checkpoints/changes", help="folder of the query's progress")
    given = parser.parse_args(arguments)
    spark = spark_session("changes", verbose=given.verbose)
    try:
        changes = read_changes(spark, given.nameserver, given.format, given.topic)
        run(changes, given.table, given.checkpoint, availableNow=True)
    finally:
        spark.stop()
    # From the table's statistics: threads that read its files could still call Python while it ends.
    print(f"{given.table} has {DeltaTable(given.table).count():,} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
