"""``df.write`` and ``df.writeStream`` with ``deliveryGuarantee=exactlyOnce``.

Tasks stage rows (``staging.py``); ``commit`` decides and publishes (``commit.py``). Spark calls ``commit`` in another
process, without a TaskContext, so the tasks' commit messages carry the query, the batch and the run. ``abort`` has
nothing to undo: staged messages without a manifest are never published, and the staging topic's retention deletes
them. Writers hold only values, because Spark pickles them. Only the driver imports ``driver.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import Staged, stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.processes import hide_traceback
from spark_rocket.datasource.write.writer import (
    BATCH_ID,
    QUERY_ID,
    RocketStreamWriter,
    RocketWriter,
    refuse_values,
    with_bodies,
)
from spark_rocket.errors import StateError

if TYPE_CHECKING:
    from spark_rocket.datasource.exactly_once.first_record import LedgerPlace

RUN_ID = "spark.jobGroup.id"  # of a streaming query it is the run's id
DESCRIPTION = "spark.job.description"  # of a streaming query: its name, "id = …", "runId = …", "batch = …"

log = logging.getLogger("spark_rocket.datasource")


def query_name(description: str | None, query: str) -> str:
    """The name of a streaming query in the description of its jobs; empty if it has none."""
    first, _, others = (description or "").partition("\n")
    return first.strip() if others.startswith(f"id = {query}") else ""


def _stage(batches: Iterator[pa.RecordBatch], options: WriteOptions, epoch: Epoch) -> Staged:
    return stage_rows(batches, brokers_for(options), options, epoch)


class ExactlyOnceWriter(RocketWriter):
    """A batch write: one epoch, named by ``writeId``."""

    @hide_traceback
    def __init__(self, options: WriteOptions, schema: StructType, only_read: Sequence[str] = ()) -> None:
        from spark_rocket.datasource.exactly_once.driver import check_topics

        super().__init__(options, schema, only_read)
        self._options, _ = check_topics(options)

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        batches = with_bodies(refuse_values(iterator, self._only_read), self._options, self._schema)
        return _stage(batches, self._options, Epoch(self._name, 0))

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from spark_rocket.datasource.exactly_once.driver import commit_epoch

        commit_epoch(self._options, messages, is_stream=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("write failed; if it is decided, a retry with the same writeId publishes the remaining messages")


class ExactlyOnceStreamWriter(RocketStreamWriter):
    """A stream: an epoch for each micro-batch."""

    @hide_traceback
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        from spark_rocket.datasource.exactly_once.driver import check_topics

        super().__init__(options, schema)
        self._place: LedgerPlace | None
        self._options, self._place = check_topics(options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_place": None}  # found for one process and moment

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        context = TaskContext.get()
        query, batch, run, description = (
            context.getLocalProperty(key) if context is not None else None
            for key in (QUERY_ID, BATCH_ID, RUN_ID, DESCRIPTION)
        )
        if query is None or batch is None:
            raise StateError("The task has no query and batch properties.", remedy="This needs PySpark 4.2 or newer.")
        batches = with_bodies(iterator, self._options, self._schema)
        return _stage(batches, self._options, Epoch(query, int(batch), run or "", query_name(description, query)))

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        from spark_rocket.datasource.exactly_once.driver import commit_epoch

        commit_epoch(self._options, messages, is_stream=True, place=self._place)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning("batch %d failed; if it is decided, the restarted query publishes its remaining messages", batchId)
