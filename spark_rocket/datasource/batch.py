"""``spark.read.format("rocket")``: all messages between two positions, planned once.

With ``lookupKeys`` or ``lookupMsgIds`` the reader reads only the ranges that the brokers' index returns.

Filters are not pushed down. Spark 4.1 to 4.3 stores a narrowed read on an object that all scans of a data frame, view
or table share, and does not call Python again. Other scans would lose rows (SPARK-58551, fixed in Spark 5.0).

``partitions`` runs in a planning process on the driver, ``read`` in the executors' workers. The reader object is
pickled between them and therefore holds only values. Each imports only its part: what a task does not need costs CPU
time in every Python worker. Corresponds to KafkaBatch in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.processes import PickledByValue, hide_traceback, hide_traceback_while, settle_worker
from spark_rocket.datasource.read.projection import projection_of, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_rocket.datasource.options.parsers import LookUp
    from spark_rocket.datasource.plan.cluster import Cluster
    from spark_rocket.datasource.plan.tasks import Task


@dataclass
class RangesPartition(InputPartition):
    """A Spark partition: the ranges that a task reads, one after the other."""

    spans: tuple[OffsetRange, ...]


def read_partition(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read one partition. Spark passes ``InputPartition(None)`` for an empty plan; it has no rows."""
    if not isinstance(partition, RangesPartition):
        return iter(())
    from spark_rocket.datasource.read.fetch import read_deduplicated, read_ranges
    from spark_rocket.datasource.readers import reader_of

    reader, spans = reader_of(options), partition.spans
    projection = projection_of(options, schema)
    settle_worker()
    if options.look_up is not None:
        from spark_rocket.datasource.plan.lookup import LookupFilter

        lookup_filter = LookupFilter(options.look_up, projection)
        batches = lookup_filter.rows(read_ranges(spans, options, lookup_filter.projection, reader))
    elif (window := options.dedupe_window) is not None:
        batches = chain.from_iterable(read_deduplicated(span, options, projection, reader, window) for span in spans)
    else:
        batches = read_ranges(spans, options, projection, reader)
    return hide_traceback_while(rows_of(batches, options, schema, projection))


def _plan_lookup(cluster: Cluster, look_up: LookUp, options: ReadOptions) -> list[Task]:
    """Plan the messages that the index returns."""
    from spark_rocket.datasource.plan.lookup import BrokerIndex, find
    from spark_rocket.datasource.plan.planner import batch_ranges
    from spark_rocket.datasource.plan.tasks import plan_tasks
    from spark_rocket.datasource.readers import reader_of

    index = BrokerIndex(reader_of(options), options.request_timeout_ms / 1000)
    return plan_tasks(find(batch_ranges(cluster, options), look_up, index), options, cluster.known_sizes)


class RocketBatchReader(PickledByValue, DataSourceReader):
    """Plan and read a batch. It has no ``pushFilters``, because Spark would apply the filters to other scans too."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        projection_of(options, schema)
        self._options = options
        self._schema = schema

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        from spark_rocket.datasource.plan.cluster import Cluster
        from spark_rocket.datasource.plan.planner import plan_batch

        options = self._options
        cluster = Cluster(options)
        look_up = options.look_up
        tasks = plan_batch(cluster, options) if look_up is None else _plan_lookup(cluster, look_up, options)
        return [RangesPartition(spans) for spans in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema)
