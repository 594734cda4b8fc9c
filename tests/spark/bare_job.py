"""A job for ``spark-submit --py-files spark_rocket.zip``; driver and workers have only pyspark, pyarrow and numpy.

    bare_job.py NAME_SERVER TOPIC CHECKPOINT

Prints its results as JSON, one line for each step.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

from pyspark.sql import SparkSession


def main(name_server: str, topic: str, checkpoint: str) -> None:
    from spark_rocket.datasource import RocketDataSource

    def say(value: object) -> None:
        print(json.dumps(value), flush=True)

    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(RocketDataSource)
    say([name for name in ("pandas", "orjson", "uvloop") if find_spec(name) is None])
    where = {"nameServer": name_server}
    rows = spark.range(20, numPartitions=3).selectExpr("id", "CAST(id % 5 AS STRING) AS shardingKey")
    rows.write.format("rocket").options(**where, topic=topic, bodyFormat="json").mode("append").save()
    read = spark.read.format("rocket").options(**where, subscribe=topic, bodyFormat="json").schema("id bigint").load()
    say(sorted(row.id for row in read.collect()))
    query = (
        spark.readStream.format("rocket")
        .options(**where, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8")
        .load()
        .select("body", "keys")
        .writeStream.format("rocket")
        .options(**where, topic=f"{topic}-copy", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    say(spark.read.format("rocket").options(**where, subscribe=f"{topic}-copy").load().count())
    say(spark.read.format("rocket").options(**where, view="queues", subscribe=topic).load().count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
