"""Traps T1 to T15 of Spark's Python data sources: each has caused data loss, so each has a test here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource import error_line
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.datasource.stream import RocketStreamReader
from spark_rocket.datasource.write.row_encoder import unique_keys, write_key
from tests.spark.conftest import Rocket
from tests.spark.sessions import ROOT, CollectedBodies, finish_limited, needs

Run = Callable[..., list[str]]


def test_t01_a_failed_first_batch_is_repeated_unchanged(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.topic()
    mq.send(topic, ["before"] * 10)

    def fail(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("the first batch fails")

    stream = mq.stream(topic, startingOffsets="latest")
    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    stored = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert stored["start"] == {topic: {stored_broker(stored, topic): {"0": 10, "1": 0}}}
    mq.send(topic, ["a", "b", "c"])
    assert run(mq.stream(topic, startingOffsets="latest")) == ["a", "b", "c"]


def stored_broker(stored: dict[str, dict[str, dict[str, object]]], topic: str) -> str:
    return next(iter(stored["offsets"][topic]))


def test_t01_a_reversed_range_is_an_error(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a"] * 5)
    assert len(run(mq.stream(topic, startingOffsets="earliest"))) == 5
    mq.send(topic, ["b"] * 5)
    assert len(run(mq.stream(topic, startingOffsets="earliest"))) == 5
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    (checkpoint / "offsets" / ".1.crc").unlink(missing_ok=True)
    lines = (checkpoint / "offsets" / "1").read_text().splitlines()
    offset = json.loads(lines[-1])
    offset["offsets"][topic][stored_broker(offset, topic)]["0"] = 3
    (checkpoint / "offsets" / "1").write_text("\n".join([*lines[:-1], json.dumps(offset)]))
    with pytest.raises(StreamingQueryException, match=r"the start 5 of a micro-batch is after its end 3"):
        run(mq.stream(topic, startingOffsets="earliest"))


def test_t02_the_last_batch_is_committed_to_the_group(mq: Rocket, run: Run) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["a"] * 7, queue=0)
    mq.send(topic, ["b"] * 3, queue=1)
    stream = mq.stream(topic, startingOffsets="earliest", consumerGroup="t02", maxOffsetsPerTrigger=4)
    assert len(run(stream, limited=True)) == 10
    assert mq.committed("t02", topic) == [7, 3]


def test_t03_a_killed_source_loses_no_messages(mq: Rocket, run: Run, tmp_path: Path) -> None:
    assert "stop" not in vars(RocketStreamReader), "Spark does not call it reliably, so nothing may depend on it"
    topic = mq.topic(1)
    mq.send(topic, [str(number) for number in range(10)])
    found = CollectedBodies(tmp_path / "found")
    query = (
        mq.stream(topic, startingOffsets="earliest", consumerGroup="t03")
        .writeStream.foreachBatch(found)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    runners = [child for child in psutil.Process().children(recursive=True) if _is_source_runner(child)]
    assert runners
    for runner in runners:
        runner.send_signal(signal.SIGKILL)
    mq.send(topic, [str(number) for number in range(10, 20)])
    try:
        query.processAllAvailable()
    except PySparkException:
        pass  # Spark decides whether the query detects this
    query.stop()
    rest = run(mq.stream(topic, startingOffsets="earliest", consumerGroup="t03"))
    assert found.bodies() + rest == [str(number) for number in range(20)]
    assert mq.committed("t03", topic) == [20]


def _is_source_runner(process: psutil.Process) -> bool:
    try:
        return "python_streaming_source_runner" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_t04_an_idle_stream_has_no_batches(mq: Rocket, tmp_path: Path) -> None:
    topic = mq.topic(12)  # "10" sorts before "2" as text
    for queue in range(12):
        mq.send(topic, ["x"] * (queue + 1), queue)
    query = (
        mq.stream(topic, startingOffsets="earliest")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for _ in range(3):
            query.processAllAvailable()
        assert [path.name for path in sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))] == ["0"]
        text = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
        assert text == json.dumps(json.loads(text), sort_keys=True)
        mq.send(topic, ["y"])
        query.processAllAvailable()
        query.processAllAvailable()
        names = sorted(path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
        assert names == ["0", "1"]
    finally:
        query.stop()


@needs(HAS_READ_LIMITS, "4.2", "Trigger.AvailableNow with several micro-batches")
def test_t05_a_limit_holds_and_trigger_once_overrides_it(mq: Rocket, run: Run, tmp_path: Path) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["a"] * 90, queue=0)
    mq.send(topic, ["b"] * 10, queue=1)

    def sizes(checkpoint: str, **trigger: object) -> list[int]:
        found = CollectedBodies(tmp_path / f"{checkpoint}-found")
        stream = mq.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
        query = (
            stream.writeStream.foreachBatch(found)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**trigger)  # type: ignore[call-overload]
            .start()
        )
        assert query.awaitTermination(120)
        return [len(batch) for batch in found.batches()]

    assert sizes("limited", availableNow=True) == [30, 30, 30, 10]
    assert sizes("once", once=True) == [100]


class NotingReader(DataSourceStreamReader):
    """Reads 25 numbers, 10 at a time, and notes Spark's calls, without those that differ in number only."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reached = 0

    def note(self, call: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{call}\n")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        self.note("initialOffset")
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self.note("latestOffset")
        return {"at": min(self.reached + 10, 25)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self.note(f"partitions {start['at']} {end['at']}")
        self.reached = end["at"]
        return [InputPartition((start["at"], end["at"]))]

    def commit(self, end: dict[str, int]) -> None:
        self.note(f"commit {end['at']}")

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from zip(range(*partition.value), strict=True)


class Noting(DataSource):
    @classmethod
    def name(cls) -> str:
        return "noting"

    def schema(self) -> str:
        return "number int"

    def streamReader(self, schema: StructType) -> NotingReader:  # noqa: N802
        return NotingReader(self.options["notes"])


@pytest.mark.skipif(HAS_READ_LIMITS, reason="Spark 4.2 and newer report the trigger")
def test_t05_a_source_cannot_tell_the_triggers_apart_before_its_first_micro_batch_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Why the limits need the option ``trigger``. If this fails, a Spark reports more: use it."""
    spark.dataSource.register(Noting)

    def calls(name: str, *, runs: int = 1, **trigger: object) -> list[list[str]]:
        seen = []
        for number in range(runs):
            notes = tmp_path / f"{name}-{number}"
            query = (
                spark.readStream.format("noting")
                .option("notes", str(notes))
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(**trigger)  # type: ignore[call-overload]
                .start()
            )
            if "processingTime" in trigger:
                query.processAllAvailable()
                query.stop()
            else:
                assert query.awaitTermination(120)
            seen.append(notes.read_text().splitlines())
        return seen

    (timed,) = calls("timed", processingTime="0 seconds")
    first = ["latestOffset", "initialOffset", "partitions 0 10"]
    second = ["latestOffset", "commit 10", "partitions 10 20"]
    assert timed[:6] == first + second
    restart = ["partitions 10 10", *second]
    assert calls("once", runs=2, once=True) == [first, restart]
    assert calls("now", runs=2, availableNow=True) == [first, restart]


@pytest.mark.skipif(HAS_READ_LIMITS, reason="Spark 4.2 and newer report the trigger")
def test_t05_limits_before_spark_4_2(mq: Rocket, tmp_path: Path) -> None:
    topic = mq.topic(2)
    mq.send(topic, [f"0-{number}" for number in range(90)], queue=0)
    mq.send(topic, [f"1-{number}" for number in range(10)], queue=1)
    fails = {"at": -1}

    def batches(checkpoint: str, by: str, trigger: dict[str, object], **more: object) -> list[list[str]]:
        found = CollectedBodies(tmp_path / f"{checkpoint}-{uuid4()}")

        def collect(batch: DataFrame, batch_id: int) -> None:
            found(batch, batch_id)
            if batch_id == fails["at"]:
                raise ValueError("this micro-batch fails")

        limits = {"maxOffsetsPerTrigger": 30, "trigger": by, **more}
        query = (
            mq.stream(topic, startingOffsets="earliest", **limits)
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**trigger)  # type: ignore[call-overload]
            .start()
        )
        try:
            if "processingTime" in trigger:
                query.processAllAvailable()
            else:
                assert query.awaitTermination(120)
        except StreamingQueryException as error:
            if fails["at"] < 0 or "this micro-batch fails" not in str(error):
                raise
        finally:
            query.stop()
        return found.batches()

    timed: tuple[str, str, dict[str, object]] = ("timed", "processingTime", {"processingTime": "0 seconds"})
    fails["at"] = 1
    failed = batches(*timed)
    assert [len(batch) for batch in failed] == [30, 30]
    fails["at"] = -1
    rest = batches(*timed)
    assert [len(batch) for batch in rest] == [30, 30, 10]
    assert rest[0] == failed[1], "a failed micro-batch is repeated unchanged"
    every = failed[0] + [body for batch in rest for body in batch]
    assert sorted(every) == sorted(mq.bodies(topic))
    mq.send(topic, ["more"] * 40, queue=1)
    assert [len(batch) for batch in batches(*timed)] == [30, 10], "also after a restart"

    for name, trigger in (("once", {"once": True}), ("now", {"availableNow": True})):
        complete: tuple[str, str, dict[str, object]] = (name, "availableNow", dict(trigger))
        assert [len(batch) for batch in batches(*complete)] == [140]
        assert batches(*complete) == []
    by_bytes = batches("bytes", *timed[1:], maxBytesPerTrigger=3000)
    assert sum(len(batch) for batch in by_bytes) == 140
    assert max(len(batch) for batch in by_bytes) < 30
    with pytest.raises(PySparkException, match=r"BAD_OPTION.NEWER_SPARK.*set trigger=processingTime"):
        mq.spark.readStream.format("rocket").options(
            nameServer=mq.name_server, subscribe=topic, maxOffsetsPerTrigger=30
        ).load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "none")
        ).start().awaitTermination()


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_t06_filters_work_whether_pushdown_is_allowed_or_not(mq: Rocket, spark: SparkSession, pushdown: str) -> None:
    topic = mq.topic(2)
    mq.send(topic, ["a", "b", "c"])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        assert mq.read(topic).where("queueOffset >= 1 AND queueId = 0").count() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_t07_a_topic_without_messages_is_an_empty_frame(mq: Rocket, run: Run) -> None:
    topic = mq.topic()
    assert mq.read(topic).collect() == []
    assert run(mq.stream(topic, startingOffsets="earliest")) == []


def test_t08_every_batch_of_a_task_has_sparks_exact_schema(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["plain"] * 3)
    rows = spark.range(40, numPartitions=1).selectExpr(
        "CAST(id AS STRING) AS body",
        "0 AS queueId",
        "CASE WHEN id % 3 = 0 THEN 'T' END AS tags",
        "CASE WHEN id < 20 THEN CAST(id AS STRING) END AS keys",
        "CASE WHEN id % 2 = 0 THEN map('p', CAST(id AS STRING), 'q', '') END AS properties",
    )
    rows.write.format("rocket").options(nameServer=mq.name_server, topic=topic).mode("append").save()
    schema = "properties map<string,string>, TAGS string, queueoffset bigint, body binary, keys string"
    for options in ({}, {"arrowBatchRows": 1, "pullBatchSize": 1}, {"arrowBatchRows": 7, "pullBatchSize": 3}):
        frame = (
            spark.read.format("rocket")
            .schema(schema)
            .options(nameServer=mq.name_server, subscribe=topic, **options)
            .load()
        )
        table = frame.orderBy("queueoffset").toArrow()
        assert table.schema.names == ["properties", "TAGS", "queueoffset", "body", "keys"]
        assert table["queueoffset"].to_pylist() == list(range(43))
        assert table["body"].to_pylist() == [b"plain"] * 3 + [str(number).encode() for number in range(40)]
        assert table["TAGS"].to_pylist()[3:] == ["T" if number % 3 == 0 else None for number in range(40)]
        assert dict(table["properties"].to_pylist()[3 + 8]).items() >= {"p": "8", "q": "", "KEYS": "8"}.items()


def test_t09_a_task_without_rows_commits(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic()
    frame = spark.range(1, numPartitions=3).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("rocket").options(nameServer=mq.name_server, topic=topic).mode("append").save()
    frame.where("id > 5").write.format("rocket").options(nameServer=mq.name_server, topic=topic).mode("append").save()
    assert mq.bodies(topic) == ["0"]


def test_t10_message_ids_depend_on_query_batch_partition_and_row(
    mq: Rocket, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = mq.topic(1), mq.topic(1)
    mq.send(source, [str(number) for number in range(7)])
    stream = mq.stream(source, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    finish_limited(
        stream.selectExpr("CAST(body AS STRING) AS body")
        .writeStream.format("rocket")
        .option("nameServer", mq.name_server)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    rows = mq.read(target).select("body", "msgId").collect()
    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    found = {bytes(row.body).decode(): row.msgId for row in rows}
    first, second = (write_key(query_id, batch, 0) for batch in ("0", "1"))
    expected = unique_keys(first, np.arange(4)).to_pylist() + unique_keys(second, np.arange(3)).to_pylist()
    assert found == {str(number): key for number, key in enumerate(expected)}


def test_t11_duplicates_of_a_repeated_task_are_detectable(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(1)

    def spoil_first_attempt(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            spoilt = context.attemptNumber() == 0 and batch.column(0)[0].as_py() == "800"
            yield pa.record_batch({"body": pa.nulls(batch.num_rows, pa.string()) if spoilt else batch.column(0)})

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = spark.range(1000, numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
        frame = frame.mapInArrow(spoil_first_attempt, "body string")
        options: dict[str, Any] = {"nameServer": mq.name_server, "topic": topic, "maxRequestsInFlight": 1}
        frame.write.format("rocket").options(**options).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    rows = mq.read(topic).select("body", "msgId").collect()
    by_id = {row.msgId: bytes(row.body) for row in rows}
    assert len(rows) > 1000, "some rows of the first attempt are there twice"
    assert sorted(by_id.values()) == sorted(str(number).encode() for number in range(1000))


def test_t11_a_failed_task_reports_its_error(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    topic, target = mq.topic(1), mq.topic(1)
    mq.send(topic, ["a", "b"])
    query = (
        mq.stream(topic, startingOffsets="earliest")
        .selectExpr("CAST(body AS STRING) AS body", "CAST(9 AS INT) AS queueId")
        .writeStream.format("rocket")
        .options(nameServer=mq.name_server, topic=target, checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"\[BAD_ROW\] row 0 of partition 0: queueId is 9") as failed:
        query.awaitTermination(120)
    (line,) = {error_line(each) for each in (failed.value, query.exception())}
    assert line is not None
    assert line.startswith("[BAD_ROW] row 0 of partition 0: queueId is 9")
    assert mq.end(target) == 0


def test_t12_only_append_is_supported(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    topic = mq.topic(1)
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS body")
    options = {"nameServer": mq.name_server, "topic": topic}
    with pytest.raises(PySparkException, match=r"supports only append.*\.mode\(\"append\"\)"):
        frame.write.format("rocket").options(**options).mode("overwrite").save()
    with pytest.raises(AnalysisException):
        frame.write.format("rocket").options(**options).save()
    mq.send(topic, ["a"])
    counted = mq.stream(topic, startingOffsets="earliest").groupBy("body").count().selectExpr("body")
    complete = counted.writeStream.format("rocket").options(**options).outputMode("complete")
    with pytest.raises(PySparkException, match=r"supports only append.*outputMode\(\"append\"\)"):
        complete.start(checkpointLocation=str(tmp_path / "checkpoint")).awaitTermination(120)
    assert mq.end(topic) == 1


def test_t13_the_module_that_spark_imports_is_light_and_never_raises() -> None:
    code = (
        "import sys; import pyspark.sql.datasource; before = set(sys.modules); import pyspark_rocket; "
        "new = set(sys.modules) - before; print(pyspark_rocket.DefaultSource.name()); "
        "print(*sorted(name for name in new if name.partition('.')[0] not in ('spark_rocket', 'pyspark_rocket')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    name, others = done.stdout.splitlines()
    assert name == "rocket"
    assert others == "", "nothing but its own few modules is imported"
    for missing in ("spark_rocket", "pyspark"):
        code = f"import sys; sys.modules['{missing}'] = None; import pyspark_rocket; print(dir(pyspark_rocket))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "DefaultSource" not in done.stdout


def test_t14_workers_run_the_python_of_the_session(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        import spark_rocket.datasource

        for _ in batches:
            yield pa.record_batch({"python": [sys.executable], "package": [spark_rocket.datasource.__name__]})

    row = spark.range(1, numPartitions=1).mapInArrow(where, "python string, package string").collect()[0]
    assert row.asDict() == {"python": sys.executable, "package": "spark_rocket.datasource"}


def test_t15_option_names_are_case_insensitive(mq: Rocket, run: Run) -> None:
    topic = mq.topic(1)
    mq.send(topic, ["a", "b", "c"])
    assert mq.read(topic, STARTINGOFFSETS="earliest", MinPartitions=2).count() == 3
    stream = mq.stream(topic, STARTINGoffsets="earliest", MAXOFFSETSPERTRIGGER=1)
    assert run(stream, limited=True) == ["a", "b", "c"]
    with pytest.raises(PySparkException, match=r"option maxRecordsPerPartition is '0'"):
        mq.read(topic, MAXRECORDSPERPARTITION=0).count()
    with pytest.raises(PySparkException, match=r"no option startingofsets\. Did you mean startingOffsets\?"):
        mq.read(topic, startingOfsets="earliest").count()
