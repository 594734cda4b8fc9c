"""``spark.readStream.format("rocket")``: micro-batches whose offsets contain all that is needed to read them again.

* ``initialOffset`` is a constant marker, because Spark requests it more than once and in more than one process. The
  first ``latestOffset`` resolves ``startingOffsets`` and stores the result in the offset it returns.
* ``latestOffset(start)`` proves that all messages before ``start`` are processed, so it commits the consumer group's
  offsets there. ``commit`` does so too, but Spark calls it only when it plans the next batch. ``stop`` is not called
  reliably; nothing depends on it.
* Spark 4.2 and newer pass a start and a limit to ``latestOffset``: ``LimitedStreamReader``, with lag in the progress
  and AvailableNow. Spark 4.0 and 4.1 pass neither: ``PlainStreamReader``.
* An offset without new information is returned unchanged, as the same text: Spark compares text.
* Queues that appear later begin at their first message. Queues whose broker is unavailable keep their position.

One object in one driver process per query, called from one thread. After a crash only the checkpoint counts; the
group's offsets on the broker are only for monitoring tools. Corresponds to KafkaMicroBatchStream and
SupportsAdmissionControl in Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_rocket.datasource.batch_reader import TaskPartition, on_driver, read_partition
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS, check_limits
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parsers import Trigger
from spark_rocket.datasource.plan.ranges import ranges_between
from spark_rocket.datasource.processes import PickledByValue, hide_traceback
from spark_rocket.datasource.read_tasks import projection_of
from spark_rocket.datasource.spark_schema import columns_of
from spark_rocket.datasource.stream_offsets import StreamOffset, initial_offset, parse_stream_offset, starts_of
from spark_rocket.errors import StateError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_rocket.datasource.plan.planner import StreamPlanner

if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

_NO_LIMIT = 2**62

log = logging.getLogger("spark_rocket.datasource")


class RocketStreamReader(PickledByValue, DataSourceStreamReader):
    """Adapts the stream planner and the reading tasks to Spark's interface, except for ``latestOffset``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options = on_driver(options)
        self._columns = columns_of(schema, options.body)
        projection_of(options, self._columns)
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        if self._planner is None:
            from spark_rocket.datasource.plan.cluster import Cluster
            from spark_rocket.datasource.plan.planner import StreamPlanner

            cluster = Cluster(self._options)
            self._planner = StreamPlanner(cluster, self._options)
        return self._planner

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        return initial_offset()

    def end_after(
        self, start: dict[str, object], max_records: int | None = None, *, is_limited: bool = True
    ) -> dict[str, object]:
        """Return where the batch after ``start`` ends; ``start`` itself if there is no batch yet."""
        end = self.planner.next_end(parse_stream_offset(start), max_records, is_limited=is_limited)
        return start if end is None else end.to_json()

    @hide_traceback
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        upto = parse_stream_offset(end)
        if upto is None:
            return []
        starts = starts_of(parse_stream_offset(start), upto)
        return [TaskPartition(task) for task in self.planner.tasks(upto, ranges_between(starts, upto.ends))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, object]) -> None:
        offset = parse_stream_offset(end)
        if offset is not None:
            self.planner.commit(offset)


if TYPE_CHECKING or HAS_READ_LIMITS:

    class LimitedStreamReader(RocketStreamReader, SupportsTriggerAvailableNow):
        """A reader whose batches can be limited."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """Return one limit for all limits: Spark cannot express several at once. Trigger.Once overrides it."""
            options = self._options
            if not options.limits and options.min_offsets_per_trigger is None:
                return ReadAllAvailable()
            return ReadMaxRows(options.max_offsets_per_trigger or _NO_LIMIT)

        @hide_traceback
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            if self._options.trigger is Trigger.PROCESSING_TIME:
                raise error("BAD_OPTION.TRIGGER")
            self.planner.pin()

        @hide_traceback
        def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
            is_limited = isinstance(limit, ReadMaxRows)
            max_records = limit.max_rows if isinstance(limit, ReadMaxRows) and limit.max_rows < _NO_LIMIT else None
            return self.end_after(start, max_records, is_limited=is_limited)

        def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
            seen = self.planner.latest_seen()
            return StreamOffset(seen).to_json() if seen else None


class PlainStreamReader(RocketStreamReader):
    """A reader for Spark 4.0 and 4.1, which do not pass the start and a limit to ``latestOffset``.

    The reader learns the start from ``partitions``: Spark plans each batch before it requests the next end, and after a
    restart it first calls ``partitions`` with the newest offset of the checkpoint as start and end. The start of a
    batch always comes from Spark, so a wrong order of calls cannot skip messages; it is an error.

    The reader cannot learn the trigger. The option ``trigger`` names it: limits apply with a processing time only,
    because ``Trigger.AvailableNow`` and ``Trigger.Once`` end after one micro-batch. If the option is wrong, the log
    says so.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._first: dict[str, object] | None = None  # the end of the first batch of a new query
        self._reached: dict[str, object] | None = None  # the end of the newest planned batch
        self._has_warned = False

    @hide_traceback
    def latestOffset(self) -> dict[str, object]:  # type: ignore[override] # noqa: N802
        if self._reached is not None:
            return self._end_of_next(self._reached)
        if self._first is None:
            self._first = self._end_of_next(initial_offset())
        return self._first

    def _end_of_next(self, start: dict[str, object]) -> dict[str, object]:
        is_limited = self._options.trigger is not Trigger.AVAILABLE_NOW
        most = self._options.max_offsets_per_trigger if is_limited else None
        end = self.planner.next_end(parse_stream_offset(start), most, is_limited=is_limited)
        if end is None:
            return start
        latest = {queue: last for queue, last in self.planner.latest_seen().items() if last > end.ends.get(queue, last)}
        if latest and not self._has_warned:
            self._has_warned = True
            limits = ", ".join(f"{option}={value}" for option, value in self._options.limits.items())
            log.warning(
                "This micro-batch leaves %d messages to the next ones (%s). If the query has Trigger.AvailableNow or "
                "Trigger.Once, it ends now and these messages are unread: set trigger=availableNow.",
                sum(last - end.ends[queue] for queue, last in latest.items()),
                limits,
            )
        return replace(end, latest=latest).to_json()

    @hide_traceback
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        if self._reached is None and self._first is not None and parse_stream_offset(start) is not None:
            raise StateError(
                "Spark requested an end before it passed the checkpoint's offset.",
                remedy="Set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, or use PySpark 4.2 or newer.",
            )
        self._reached = end
        return [] if start == end else super().partitions(start, end)


def stream_reader(options: ReadOptions, schema: StructType) -> RocketStreamReader:
    """Return the reader for the installed Spark. OptionError for limits that it cannot apply."""
    check_limits(options)
    return LimitedStreamReader(options, schema) if HAS_READ_LIMITS else PlainStreamReader(options, schema)
