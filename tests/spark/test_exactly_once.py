"""``deliveryGuarantee=exactlyOnce`` through Spark: streams, failed tasks, a killed driver, batch writes."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from subprocess import run as run_process

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf

from tests.spark.conftest import Rocket
from tests.spark.sessions import finish_limited


def stored(mq: Rocket, topic: str) -> Counter[str]:
    return Counter(mq.bodies(topic))


def start(frame: DataFrame, mq: Rocket, topic: str, checkpoint: Path, **options: str) -> None:
    given = {
        "nameServer": mq.name_server,
        "topic": topic,
        "deliveryGuarantee": "exactlyOnce",
        "gracePeriod": "2s",
        "requestTimeout": "1s",
    }
    writer = frame.writeStream.format("rocket").options(**(given | options))
    finish_limited(writer.option("checkpointLocation", str(checkpoint)), 240)


def source(mq: Rocket, count: int) -> tuple[DataFrame, list[str]]:
    """A stream of micro-batches of 100 rows, and its bodies."""
    topic = mq.topic(2)
    bodies = [str(number) for number in range(count)]
    mq.send(topic, bodies[::2], 0)
    mq.send(topic, bodies[1::2], 1)
    stream = mq.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    return stream.selectExpr("CAST(body AS STRING) AS body"), bodies


def test_a_stream(mq: Rocket, tmp_path: Path) -> None:
    frame, bodies = source(mq, 300)
    target = mq.topic(4)
    start(frame, mq, target, tmp_path / "checkpoint")
    start(frame, mq, target, tmp_path / "checkpoint")
    assert stored(mq, target) == Counter(bodies)


@pytest.mark.long
def test_a_task_with_a_failed_attempt(mq: Rocket, tmp_path: Path) -> None:
    """The first attempt stages blocks that are never published."""
    frame, bodies = source(mq, 200)
    target = mq.topic(4)
    marker = tmp_path / "failed"

    @udf("string", useArrow=False)
    def fail_once(body: str) -> str:
        if body == "90" and not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails")
        return body

    rows = frame.select(fail_once(col("body")).alias("body"))
    start(rows, mq, target, tmp_path / "checkpoint", sendBatchSize="10")
    assert marker.exists()
    assert stored(mq, target) == Counter(bodies)


@pytest.mark.long
@pytest.mark.classic("the server's environment is set before it starts")
def test_a_driver_killed_during_publishing(mq: Rocket, tmp_path: Path) -> None:
    """The whole Spark process exits between PREPARED and DONE. The rows that the restarted query computes again are
    others; those that were decided count."""
    source_topic, target = mq.topic(2), mq.topic(4)
    mq.send(source_topic, [str(number) for number in range(200)])
    program = [sys.executable, "-m", "tests.spark.exactly_once_query", mq.name_server, source_topic, target]
    checkpoint = str(tmp_path / "checkpoint")
    died = run_process([*program, checkpoint, "die"], timeout=240, start_new_session=True, check=False)
    assert died.returncode == -signal.SIGKILL
    assert 0 < mq.end(target) < 100
    run_process([*program, checkpoint], timeout=240, check=True)
    rows = [body.split(":") for body in mq.bodies(target)]
    assert sorted(int(number) for number, _ in rows) == list(range(200))


def test_a_repeated_batch_write(mq: Rocket, spark: SparkSession) -> None:
    target = mq.topic(4)
    frame = spark.range(1000, numPartitions=3).selectExpr("concat(id, ':', rand()) AS body")

    def write(**options: str) -> None:
        given = {"nameServer": mq.name_server, "topic": target, "deliveryGuarantee": "exactlyOnce", **options}
        frame.write.format("rocket").options(**given).mode("append").save()

    for _ in range(2):
        write(writeId=f"nightly-{target}")
    assert sorted(int(body.split(":")[0]) for body in mq.bodies(target)) == list(range(1000))
    with pytest.raises(PySparkException, match=r"WRITE_ID.*for 1000 rows for.*this write has 1000 rows for other"):
        write(writeId=f"nightly-{target}", topic=f"other-{target}")
    assert mq.bodies(target)
    with pytest.raises(PySparkException, match=r"BAD_OPTION.REQUIRES.*writeId"):
        write()
    spark.range(0).selectExpr("CAST(id AS STRING) AS body").write.format("rocket").options(
        nameServer=mq.name_server, topic=target, deliveryGuarantee="exactlyOnce", writeId=f"empty-{target}"
    ).mode("append").save()
    assert mq.end(target) == 1000


def test_a_stream_needs_a_checkpoint(mq: Rocket, tmp_path: Path) -> None:
    frame, _ = source(mq, 2)
    given = {"nameServer": mq.name_server, "topic": mq.topic(), "deliveryGuarantee": "exactlyOnce"}
    with pytest.raises(PySparkException, match="checkpointLocation"):
        frame.writeStream.format("rocket").options(**given).start()
