"""A process whose streaming query blocks during its third batch, and is then killed by the test.

    python killed_query.py NAME_SERVER TOPIC CHECKPOINT OUTPUT FIFO

The task that reads queue 0 of batch 2 returns some rows, opens the FIFO for writing as a signal, and blocks forever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def source(spark: SparkSession, name_server: str, topic: str, **more: str) -> DataFrame:
    return (
        spark.readStream.format("rocket")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .option("consumerGroup", "killed")
        .option("arrowBatchRows", 10)
        .option("pullBatchSize", 10)
        .options(**more)
        .load()
        .selectExpr("queueId", "queueOffset", "CAST(body AS STRING) AS body")
    )


def main(name_server: str, topic: str, checkpoint: str, output: str, fifo: str) -> None:
    def stop_dead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path
        from threading import Event

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        third = context.getLocalProperty("streaming.sql.batchId") == "2"
        for number, batch in enumerate(batches):
            if third and number == 1 and batch.column(0)[0].as_py() == 0:
                with Path(fifo).open("w") as out:
                    out.write("in the middle of batch 2\n")
                Event().wait()
            yield batch

    spark = session()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    frame = source(spark, name_server, topic, trigger="processingTime")
    query = (
        frame.mapInArrow(stop_dead, frame.schema)
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
