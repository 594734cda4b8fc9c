"""A batch read that Spark tells the query's filters (option ``filterPushdown``).

A class of its own, because Spark refuses readers with ``pushFilters`` unless
``spark.sql.python.filterPushdown.enabled`` is true. ``pushFilters`` and ``partitions`` run in the same planning process
on the driver; what was understood travels to the tasks as narrowed options and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource.batch import RangePartition, RocketBatchReader
from spark_rocket.datasource.body_formats.columns import layout
from spark_rocket.datasource.cluster import Cluster, reader_for
from spark_rocket.datasource.lookup import BrokerIndex, find
from spark_rocket.datasource.option_parsers import Pushdown
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.plan import batch_ranges
from spark_rocket.datasource.pushdown import Wanted, narrow, tags_for_brokers, understand
from spark_rocket.datasource.ranges import OffsetRange, split
from spark_rocket.datasource.schema import SOURCE_SCHEMA
from spark_rocket.datasource.tracebacks import short

_SMALL = 1_000  # messages; a range of more is a task of its own
_TOGETHER = 256  # small ranges in a task


@dataclass
class RangesPartition(InputPartition):
    """One Spark partition: a few small ranges."""

    spans: tuple[OffsetRange, ...]


class FilterPushdownReader(RocketBatchReader):
    """Reads what the filters leave."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._columns = _columns(options, schema)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        self._wanted, left = understand(filters, self._columns)
        options = self._options
        if options.sql_filter is None:  # a pull has one or the other
            self._options = replace(options, tags=tags_for_brokers(self._wanted, options.tags, options.topics))
        return left

    @short
    def partitions(self) -> list[InputPartition]:
        if self._wanted.is_contradiction or self._options.tags == ():
            return []
        options = self._options
        cluster = Cluster(options)
        spans = narrow(batch_ranges(cluster, options), self._wanted, cluster)
        if options.filter_pushdown is Pushdown.INDEX:
            reader = reader_for(options.name_server, options.request_timeout_ms, options.credentials, options.tls)
            spans = find(spans, self._wanted, BrokerIndex(reader, options.request_timeout_ms / 1000))
        return _partitions(spans, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangesPartition):
            yield from super().read(partition)
            return
        for span in partition.spans:
            yield from super().read(RangePartition(span))


def _columns(options: ReadOptions, schema: StructType) -> dict[str, str]:
    """Which columns are a message's own and not of its body: the message's name for each, all in lower case."""
    named = {name: name for name in SOURCE_SCHEMA.names}
    if options.body is not None:
        named = layout(options.body, schema).metadata
    return {name.lower(): source.lower() for name, source in named.items()}


def _partitions(spans: list[OffsetRange], options: ReadOptions) -> list[InputPartition]:
    """Ranges as tasks. Small ones share a task, unless the user says how to cut."""
    least, most = options.min_partitions, options.max_records_per_partition
    small = [] if least or most else [span for span in spans if span.size <= _SMALL]
    large = [span for span in spans if span.size > _SMALL] if small else spans
    alone: list[InputPartition] = [
        RangePartition(span) for span in split(large, min_partitions=least, max_records=most)
    ]
    groups = (tuple(small[start : start + _TOGETHER]) for start in range(0, len(small), _TOGETHER))
    return alone + [RangesPartition(group) for group in groups]
