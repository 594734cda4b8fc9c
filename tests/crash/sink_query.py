"""A streaming query of Spark's that copies a topic with ``deliveryGuarantee=exactlyOnce``, and is killed as planned.

    python -m tests.crash.sink_query NAME_SERVER SOURCE TARGET CHECKPOINT PLANS

Tasks have four attempts. A query that fails because ``commit`` was killed is started again in the same JVM. It must be
started in a process group of its own: to kill the driver is to kill the JVM, this process and the one that comes to the
point, with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_rocket.datasource import RocketDataSource
from spark_rocket.datasource.exactly_once.writer import ExactlyOnceStreamWriter

RECORDS = 40  # in a micro-batch


class MortalWriter(ExactlyOnceStreamWriter):
    """The sink's writer, whose tasks and ``commit`` die as planned."""

    def _install(self) -> None:
        from tests.crash.sink_points import install

        install(Path(self._plans), killer(self._group))  # type: ignore[attr-defined]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        self._install()
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._install()
        super().commit(messages, batchId)


def killer(group: int) -> Callable[[], None]:
    return lambda: os.killpg(group, signal.SIGKILL)


class MortalRocket(RocketDataSource):
    """The sink with that writer."""

    plans = ""
    group = os.getpgrp()

    @classmethod
    def name(cls) -> str:
        return "mortal-rocket"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        mortal = MortalWriter.__new__(MortalWriter)
        mortal.__dict__.update(writer.__dict__, _plans=self.plans, _group=self.group)
        return mortal


def main(name_server: str, source: str, target: str, checkpoint: str, plans: str) -> None:
    MortalRocket.plans = plans
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.dataSource.register(MortalRocket)
    frame = (
        spark.readStream.format("rocket")
        .options(nameServer=name_server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=RECORDS)
        .load()
        .selectExpr(
            "concat_ws('/', queueId, queueOffset, rand()) AS body", "CAST(queueOffset % 4 AS STRING) shardingKey"
        )
    )
    while True:
        query = (
            frame.writeStream.format("mortal-rocket")
            .options(nameServer=name_server, topic=target, deliveryGuarantee="exactlyOnce", gracePeriod="2s")
            .options(requestTimeout="1s", sendBatchSize="4", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        before = len(list(Path(plans).glob("*.plan")))
        try:
            query.awaitTermination()
            return
        except StreamingQueryException:
            if len(list(Path(plans).glob("*.plan"))) == before:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
