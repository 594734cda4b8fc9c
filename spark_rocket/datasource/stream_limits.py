"""``spark.readStream.format("rocket")`` on Spark 4.2 and newer: with limits, lag in the progress and AvailableNow.

Not imported on older versions, which lack these classes (``capabilities.py``). Corresponds to SupportsAdmissionControl
in Spark.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.parsers import Trigger
from spark_rocket.datasource.processes import hide_traceback
from spark_rocket.datasource.stream import RocketStreamReader
from spark_rocket.datasource.stream_offsets import StreamOffset

_NO_LIMIT = 2**62


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
