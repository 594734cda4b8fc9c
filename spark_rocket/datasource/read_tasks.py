"""Plan a batch read as tasks, and read a task: the work that Spark's partitions and ``read_arrow`` share.

A task is a tuple of ranges of queues, or a span of a stopped broker's log (``storePath``). Tasks hold only values and
can be pickled. Each function imports only its part, so typed rows only with ``bodyFormat``: what a task does not need
costs CPU time in every Python worker.

``plan`` runs in one thread. Tasks are independent; each is read by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, Union

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.schema import Projection, project

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_rocket.datasource.plan.tasks import Task
    from spark_rocket.datasource.read.store_directory import SpanTask

AnyTask: TypeAlias = Union["Task", "SpanTask"]


def projection_of(options: ReadOptions, schema: pa.Schema) -> Projection:
    """Return the message columns that a read requires; SchemaError if the schema is invalid."""
    if options.body is None:
        return project(schema, options.namespace)
    from spark_rocket.datasource.read.typed_rows import TypedRows

    return TypedRows(options, options.body, schema).projection


def warn_of_names(options: ReadOptions, columns: Sequence[str]) -> None:
    """Log on the driver which columns have the name of a message column but are read from the body."""
    if options.body is not None:
        from spark_rocket.datasource.read.typed_rows import log_message_names

        log_message_names(options.body, columns)


def plan(options: ReadOptions) -> list[AnyTask]:
    """Plan a batch read. With ``lookupKeys`` or ``lookupMsgIds``: the ranges that the brokers' index returns."""
    if options.store_path is not None:
        from spark_rocket.datasource.read.store_directory import plan_directory

        return [*plan_directory(options)]
    from spark_rocket.datasource.plan.batch_ranges import batch_ranges
    from spark_rocket.datasource.plan.cluster import Cluster
    from spark_rocket.datasource.plan.tasks import plan_tasks

    cluster = Cluster(options)
    spans = batch_ranges(cluster, options)
    if options.look_up is not None:
        from spark_rocket.datasource.plan.lookup import BrokerIndex, find
        from spark_rocket.datasource.readers import reader_of

        spans = find(spans, options.look_up, BrokerIndex(reader_of(options), options.request_timeout_ms / 1000))
    return [*plan_tasks(spans, options, cluster.known_sizes)]


def read(task: AnyTask, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a task of a batch or of a micro-batch."""
    projection = projection_of(options, schema)
    if not isinstance(task, tuple):
        from spark_rocket.datasource.read.store_directory import read_span_task

        return rows_of(read_span_task(task, options, projection), options, schema)
    from spark_rocket.datasource.read.fetch import read_deduplicated, read_ranges
    from spark_rocket.datasource.readers import reader_of

    reader = reader_of(options)
    if options.look_up is not None:
        from spark_rocket.datasource.plan.lookup import LookupFilter

        lookup_filter = LookupFilter(options.look_up, projection)
        batches = lookup_filter.rows(read_ranges(task, options, lookup_filter.projection, reader))
    elif (window := options.dedupe_window) is not None:
        batches = chain.from_iterable(read_deduplicated(span, options, projection, reader, window) for span in task)
    else:
        batches = read_ranges(task, options, projection, reader)
    return rows_of(batches, options, schema)


def rows_of(batches: Iterator[pa.RecordBatch], options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert a task's batches, read with ``projection_of``, to the schema of the read."""
    if options.body is None:
        return batches
    from spark_rocket.datasource.read.typed_rows import TypedRows

    return TypedRows(options, options.body, schema).rows(batches)
