"""``spark.read.format("rocket")``: all messages between two positions, planned once.

Filters are not pushed down. Spark 4.1 to 4.3 stores a narrowed read on an object that all scans of a data frame, view
or table share, and does not call Python again. Other scans would lose rows (SPARK-58551, fixed in Spark 5.0).

``partitions`` runs in a planning process on the driver, ``read`` in the executors' workers. The reader object is
pickled between them and therefore holds only values. Corresponds to KafkaBatch in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource import read_tasks
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.processes import PickledByValue, hide_traceback, hide_traceback_while, settle_worker
from spark_rocket.datasource.read_tasks import projection_of
from spark_rocket.datasource.spark_schema import columns_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class TaskPartition(InputPartition):
    """A Spark partition: a task."""

    task: read_tasks.AnyTask


def read_partition(partition: InputPartition, options: ReadOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read one partition. Spark passes ``InputPartition(None)`` for an empty plan; it has no rows."""
    if not isinstance(partition, TaskPartition):
        return iter(())
    settle_worker()
    options = in_session(options)
    return hide_traceback_while(read_tasks.read(partition.task, options, columns), options.namespace)


def on_driver(options: ReadOptions) -> ReadOptions:
    """Add what tasks must not find out for themselves: the time zone of the driver's machine, Spark's default."""
    if options.body is None or options.body.time_zone is not None:
        return options
    from spark_rocket.datasource.time_zones import machine_zone

    return replace(options, body=replace(options.body, default_zone=machine_zone()))


def in_session(options: ReadOptions) -> ReadOptions:
    """Add what only tasks see: the session's time zone, if the session sets one."""
    context = TaskContext.get()
    zone = context.getLocalProperty("spark.sql.session.timeZone") if context is not None else None
    if options.body is None or not zone:
        return options
    return replace(options, body=replace(options.body, default_zone=zone))


class RocketBatchReader(PickledByValue, DataSourceReader):
    """Plan and read a batch. It has no ``pushFilters``, because Spark would apply the filters to other scans too."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options = on_driver(options)
        self._columns = columns_of(schema, options.body)
        projection_of(options, self._columns)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in read_tasks.plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)
