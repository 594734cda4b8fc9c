"""The message columns that a read requires, and its rows in the schema of the read.

Typed rows are imported only with ``bodyFormat``: a read without it starts faster.

Pure functions over the options and the schema; the rows belong to one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.schema import Projection, project

if TYPE_CHECKING:
    import pyarrow as pa


def projection_of(options: ReadOptions, schema: pa.Schema) -> Projection:
    """Return the message columns that a read requires; SchemaError if the schema is invalid."""
    if options.body is None:
        return project(schema, options.namespace)
    from spark_rocket.datasource.read.typed_rows import TypedRows

    return TypedRows(options, options.body, schema).projection


def rows_of(batches: Iterator[pa.RecordBatch], options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert a task's batches, read with ``projection_of``, to the schema of the read."""
    if options.body is None:
        return batches
    from spark_rocket.datasource.read.typed_rows import TypedRows

    return TypedRows(options, options.body, schema).rows(batches)


def warn_of_names(options: ReadOptions, columns: Sequence[str]) -> None:
    """Log on the driver which columns have the name of a message column but are read from the body."""
    if options.body is not None:
        from spark_rocket.datasource.read.typed_rows import log_message_names

        log_message_names(options.body, columns)
