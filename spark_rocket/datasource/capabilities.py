"""What the installed PySpark can do. The only module that knows how Spark 4.0 and 4.1 differ from 4.2 and newer.

Capabilities are found by looking at the API, not at its version, because managed platforms backport features.

* Read limits (admission control): Spark 4.2 passes the start and a limit to ``latestOffset`` and asks for the latest
  offset for its progress. Before, ``latestOffset()`` has no arguments, and the reader does not learn the trigger: the
  calls up to the end of the first micro-batch are the same for all triggers (a test of the traps compares
  them), and ``Trigger.AvailableNow`` and ``Trigger.Once`` end there.
* Arrow batches for streaming writes: Spark 4.1 has a class of its own. Spark 4.0 passes Arrow batches to each
  ``DataSourceArrowWriter``, also to that of a stream.
* ``to_arrow_schema`` has the argument ``timezone`` since Spark 4.2. Before, UTC is its default.

Pure; imports pyspark only.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema

from spark_rocket.datasource.conditions import error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_rocket.datasource.options.options import ReadOptions

__all__ = ["HAS_READ_LIMITS", "HAS_STREAM_ARROW_WRITER", "StreamArrowWriter", "arrow_schema", "check_limits"]

HAS_READ_LIMITS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Whether a micro-batch can be limited, and the reader knows where it starts (Spark 4.2)."""

HAS_STREAM_ARROW_WRITER = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether streaming writes have a class for Arrow batches (Spark 4.1)."""

_NAMES_TIME_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters

if TYPE_CHECKING or HAS_STREAM_ARROW_WRITER:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter):
        """A streaming writer that Spark 4.0 recognizes as a writer of Arrow batches."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark derives from ``schema``, with timestamps in UTC."""
    return to_arrow_schema(schema, timezone="UTC") if _NAMES_TIME_ZONE else to_arrow_schema(schema)


def check_limits(options: ReadOptions, *, has_read_limits: bool = HAS_READ_LIMITS) -> None:
    """Reject the limits of a micro-batch if neither Spark nor the option ``trigger`` tells the trigger.

    A limited batch would be the only one of ``Trigger.AvailableNow``, and the other messages would silently remain
    unread.
    """
    if not has_read_limits and options.trigger is None:
        for option in options.limits:
            raise error("BAD_OPTION.NEWER_SPARK", option=option, needed="4.2", here=pyspark.__version__)
