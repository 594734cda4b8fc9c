"""Spark's ceilings: a source that repeatedly yields one ready-made Arrow batch, an empty stream, a stream of a row a
millisecond, and a sink that only counts.

Workers import this module by name, so it contains nothing else. Only its functions import modules of the product, whose
import would otherwise count as time of the ceiling.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType, TimestampType


@cache
def ready_batch(path: str) -> pa.RecordBatch:
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as stored:
        return stored.get_batch(0)


def source_schema() -> StructType:
    from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA

    return SOURCE_SCHEMA


@dataclass
class Rows(InputPartition):
    count: int


class ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._path = options["path"]
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])

    def partitions(self) -> list[InputPartition]:
        return [Rows(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        batch, left = ready_batch(self._path), partition.count
        while left > 0:
            piece = batch.slice(0, left)
            left -= piece.num_rows
            yield piece


class Counted(WriterCommitMessage):
    pass


def count_rows(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for batch in batches:
        # These sinks only read the batch size.
        batch.num_rows  # noqa: B018
    return Counted()


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return count_rows(iterator)


class CountingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return count_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class Ceiling(DataSource):
    """``format("ceiling")``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return source_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingStreamWriter:  # noqa: N802
        return CountingStreamWriter()


class EmptyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A number of batches with one partition and without rows."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": self._batches}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"batch": min(self._batches, start["batch"] + 1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


class EmptyStream(DataSource):
    """``format("empty")``."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> StructType:
        return source_schema()

    def streamReader(self, schema: StructType) -> EmptyStreamReader:  # noqa: N802
        return EmptyStreamReader(int(self.options["batches"]))


class TickingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A row for each millisecond, with its time."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"ms": time.time_ns() // 1_000_000}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"ms": time.time_ns() // 1_000_000}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["ms"], end["ms"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        times = pa.array(np.arange(*partition.value) * 1000).cast(pa.timestamp("us", "UTC"))
        yield pa.record_batch([times], pa.schema([pa.field("bornTimestamp", times.type, nullable=False)]))


class TickingStream(DataSource):
    """``format("ticking")``."""

    @classmethod
    def name(cls) -> str:
        return "ticking"

    def schema(self) -> StructType:
        return StructType([StructField("bornTimestamp", TimestampType(), False)])

    def streamReader(self, schema: StructType) -> TickingReader:  # noqa: N802
        return TickingReader()
