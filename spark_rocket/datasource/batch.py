"""``spark.read.format("rocket")``: all messages between two positions, planned once.

``partitions`` runs in a planning process on the driver, ``read`` in the executors' workers; the reader object travels
between them by pickle and therefore holds values only. Corresponds to KafkaBatch in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource.cluster import Cluster, reader_for
from spark_rocket.datasource.dedupe import read_without_repeats
from spark_rocket.datasource.fetch import read_range
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.plan import plan_batch
from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.tracebacks import short, short_while
from spark_rocket.datasource.travel import Traveller
from spark_rocket.datasource.typed_rows import projection_of, rows_of
from spark_rocket.datasource.worker import settle_worker


@dataclass
class RangePartition(InputPartition):
    """One Spark partition: one range of one queue."""

    span: OffsetRange


def read_partition(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read one partition. An empty plan arrives as ``InputPartition(None)`` and has no rows."""
    if not isinstance(partition, RangePartition):
        return iter(())
    settle_worker()
    reader = reader_for(options.name_server, options.request_timeout_ms, options.credentials, options.tls)
    projection = projection_of(options, schema)
    if options.dedupe_window is not None:
        batches = read_without_repeats(partition.span, options, projection, reader, options.dedupe_window)
    else:
        batches = read_range(partition.span, options, projection, reader)
    return short_while(rows_of(batches, options, schema, projection))


class RocketBatchReader(Traveller, DataSourceReader):
    """Plans and reads. It defines no ``pushFilters``: Spark refuses readers that do, unless a setting allows it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        projection_of(options, schema)
        self._options = options
        self._schema = schema

    @short
    def partitions(self) -> list[InputPartition]:
        cluster = Cluster(self._options)
        return [RangePartition(span) for span in plan_batch(cluster, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema)
