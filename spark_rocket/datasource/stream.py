"""``spark.readStream.format("rocket")``: micro-batches whose offsets contain all that is needed to read them again.

* ``initialOffset`` is a constant marker, because Spark requests it more than once and in more than one process. The
  first ``latestOffset`` resolves ``startingOffsets`` and stores the result in the offset it returns.
* ``latestOffset(start)`` proves that all messages before ``start`` are processed, so it commits the consumer group's
  offsets there. ``commit`` does so too, but Spark calls it only when it plans the next batch. ``stop`` is not called
  reliably; nothing depends on it.
* An offset without new information is returned unchanged, as the same text: Spark compares text.
* Queues that appear later begin at their first message. Queues whose broker is unavailable keep their position.

One object in one driver process per query, called from one thread. After a crash only the checkpoint counts; the
group's offsets on the broker are only for monitoring tools. Corresponds to KafkaMicroBatchStream in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_rocket.datasource.batch import RangePartition, read_partition
from spark_rocket.datasource.offsets import StreamOffset, initial_offset, parse_stream_offset, starts_of
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.plan.ranges import ranges_between, split
from spark_rocket.datasource.processes import PickledByValue, hide_traceback
from spark_rocket.datasource.read.cluster import Cluster
from spark_rocket.datasource.read.typed_rows import projection_of

_NO_LIMIT = 2**62


class RocketStreamReader(PickledByValue, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Adapts the stream planner and the reading tasks to Spark's interface."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        projection_of(options, schema)
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        if self._planner is None:
            cluster = Cluster(self._options)
            self._planner = StreamPlanner(cluster, self._options)
        return self._planner

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        return initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit for all limits: Spark cannot express several at once. Trigger.Once overrides it."""
        options = self._options
        if (options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger) == (
            None,
        ) * 3:
            return ReadAllAvailable()
        return ReadMaxRows(options.max_offsets_per_trigger or _NO_LIMIT)

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.planner.pin()

    @hide_traceback
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        is_limited = isinstance(limit, ReadMaxRows)
        max_records = limit.max_rows if isinstance(limit, ReadMaxRows) and limit.max_rows < _NO_LIMIT else None
        end = self.planner.next_end(parse_stream_offset(start), max_records, is_limited=is_limited)
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        seen = self.planner.latest_seen()
        return StreamOffset(seen).to_json() if seen else None

    @hide_traceback
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        upto = parse_stream_offset(end)
        if upto is None:
            return []
        starts = starts_of(parse_stream_offset(start), upto)
        pieces = split(
            self.planner.remaining(upto, ranges_between(starts, upto.ends)),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [RangePartition(span) for span in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema)

    def commit(self, end: dict[str, object]) -> None:
        offset = parse_stream_offset(end)
        if offset is not None:
            self.planner.commit(offset)
