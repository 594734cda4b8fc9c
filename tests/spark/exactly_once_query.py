"""A process that copies a topic with ``deliveryGuarantee=exactlyOnce``, and can kill itself during publishing.

    python -m tests.spark.exactly_once_query NAME_SERVER SOURCE TARGET CHECKPOINT [die]

With ``die`` the process in which Spark calls ``commit`` kills this process, its JVM and itself before its third send.
Start it in a separate process group.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql.types import StructType

from spark_rocket.datasource import RocketDataSource
from spark_rocket.datasource.exactly_once.writer import ExactlyOnceStreamWriter
from tests.spark.killed_query import session
from tests.spark.sessions import TRIGGER, finish_limited


class DyingWriter(ExactlyOnceStreamWriter):
    """Kill the process in ``commit``."""

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        from spark_rocket.datasource.exactly_once.sink_brokers import Brokers

        publish, left = Brokers.publish, iter(range(2))

        def publish_some(brokers: Brokers, *args: Any) -> Any:
            if next(left, None) is None:
                os.killpg(self._driver, signal.SIGKILL)  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGKILL)
            return publish(brokers, *args)

        Brokers.publish = publish_some  # type: ignore[assignment, method-assign]
        super().commit(messages, batchId)


class DyingRocket(RocketDataSource):
    """The sink whose first commit kills the process."""

    driver = os.getpgrp()

    @classmethod
    def name(cls) -> str:
        return "dying-rocket"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        dying = DyingWriter.__new__(DyingWriter)
        dying.__dict__.update(writer.__dict__, _driver=self.driver)
        return dying


def main(name_server: str, source: str, target: str, checkpoint: str, how: str = "") -> None:
    spark = session()
    spark.dataSource.register(DyingRocket)
    frame = (
        spark.readStream.format("rocket")
        .options(nameServer=name_server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=100)
        .options(**TRIGGER)
        .load()
        .selectExpr("concat(CAST(body AS STRING), ':', rand()) AS body", "CAST(queueOffset % 4 AS INT) AS queueId")
    )
    finish_limited(
        frame.writeStream.format("dying-rocket" if how == "die" else "rocket")
        .options(nameServer=name_server, topic=target, deliveryGuarantee="exactlyOnce", gracePeriod="2s")
        .options(requestTimeout="1s", checkpointLocation=checkpoint),
        seconds=3600,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
