"""Read ranges of queues: pull raw records and yield Arrow batches.

Small responses are combined into a batch; a large one is decoded in place. Responses of several ranges of one broker
are decoded together too: a call costs as much as 100 records. That is the fast path, for batches in which each record
is the expected one. For any other, each range is decoded alone, which detects missing, surplus and invalid records
and names their queue. No Python code runs per row.

Belongs to one task and thread. Corresponds to PullAPIWrapper and DefaultMQPullConsumer's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.pull_ranges import Chunk, is_filtered, is_gone, pull_ranges
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, Projection, project
from spark_rocket.errors import ProtocolError, QueueNotFoundError, RunTooLargeError, TopicNotFoundError
from spark_rocket.protocol.record.arrays import numpy_of
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.messages import damaged_record

if TYPE_CHECKING:
    from spark_rocket.datasource.read.dedupe import DuplicateFilter

log = logging.getLogger("spark_rocket.datasource")

_OFFSET = "queueOffset"
_Pulled = tuple[OffsetRange, Chunk]


def read_range(
    span: OffsetRange,
    options: ReadOptions,
    projection: Projection,
    reader: Reader,
    duplicate_filter: DuplicateFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``span`` in order, each exactly once, as batches of Spark's own schema.

    ``duplicate_filter`` drops duplicates.
    """
    return read_ranges((span,), options, projection, reader, duplicate_filter)


def read_ranges(
    spans: Sequence[OffsetRange],
    options: ReadOptions,
    projection: Projection,
    reader: Reader,
    duplicate_filter: DuplicateFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Like ``read_range``, for one range after the other. ``duplicate_filter`` is for one range."""
    loss = LossPolicy(options)
    waiting: list[_Pulled] = []
    rows = size = 0
    for span, chunk in pull_ranges(spans, options, reader):
        if waiting and (
            rows + chunk.end - chunk.start > options.arrow_batch_rows
            or size + len(chunk.records) > options.arrow_batch_bytes
            or span.queue.broker_name != waiting[0][0].queue.broker_name
        ):
            yield from _decode(waiting, projection, loss, options, duplicate_filter)
            waiting, rows, size = [], 0, 0
        waiting.append((span, chunk))
        rows += chunk.end - chunk.start
        size += len(chunk.records)
    yield from _decode(waiting, projection, loss, options, duplicate_filter)


def read_deduplicated(
    span: OffsetRange, options: ReadOptions, projection: Projection, reader: Reader, window: int
) -> Iterator[pa.RecordBatch]:
    """Like ``read_range``, without duplicates."""
    from spark_rocket.datasource.read.dedupe import NEEDED, DuplicateFilter

    duplicate_filter = DuplicateFilter(window)
    retry_deadline = RetryDeadline(options.retry_timeout_ms)
    loss = LossPolicy(options)

    def first() -> int | None:
        try:
            return reader.min_offset(span.queue)
        except (TopicNotFoundError, QueueNotFoundError) as error:
            if is_gone(span.queue, span.start, reader, loss):
                return None
            error.retriable = True
            raise

    lowest = retry_deadline.call(first, f"to ask for the start of {span.queue.name}")
    if lowest is None:
        return
    start = max(span.start - window, lowest)
    if start < span.start:
        # Messages before the range were read earlier: if they are deleted now, nothing is lost.
        before = replace(options, fail_on_data_loss=False)
        ids = project(pa.schema([MESSAGE_SCHEMA.field(column) for column in NEEDED]))
        for _ in read_range(OffsetRange(span.queue, start, span.start), before, ids, reader, duplicate_filter):
            pass
    duplicate_filter.count = 0
    yield from read_range(span, options, projection, reader, duplicate_filter)
    if duplicate_filter.count:
        log.info(
            "dropped %d duplicates of %s from %d to %d",
            duplicate_filter.count,
            span.queue.name,
            span.start,
            span.end - 1,
        )


def _decode(
    pulled: list[_Pulled],
    projection: Projection,
    loss: LossPolicy,
    options: ReadOptions,
    duplicate_filter: DuplicateFilter | None,
) -> Iterator[pa.RecordBatch]:
    spans = [(span, [chunk for _, chunk in of_span]) for span, of_span in groupby(pulled, key=lambda each: each[0])]
    together = _decode_together(pulled, projection) if len(spans) > 1 and not is_filtered(options) else None
    if together is not None:
        yield together
        return
    for span, chunks in spans:
        yield from _decode_range(chunks, span, projection, loss, options, duplicate_filter)


def _decode_together(pulled: list[_Pulled], projection: Projection) -> pa.RecordBatch | None:
    """Decode the chunks of several ranges at once; None unless they have exactly the expected messages."""
    columns = projection.columns
    try:
        batch = decode_records(
            b"".join(chunk.records for _, chunk in pulled),
            columns if _OFFSET in columns else (*columns, _OFFSET),
            broker_name=pulled[0][0].queue.broker_name,
        )
    except ProtocolError:
        return None
    expected = [np.arange(chunk.start, min(chunk.end, span.end)) for span, chunk in pulled]
    is_expected = np.array_equal(numpy_of(batch.column(_OFFSET)), np.concatenate(expected))
    return projection.conform(batch) if is_expected else None


def _decode_range(
    chunks: list[Chunk],
    span: OffsetRange,
    projection: Projection,
    loss: LossPolicy,
    options: ReadOptions,
    duplicate_filter: DuplicateFilter | None,
) -> Iterator[pa.RecordBatch]:
    records = chunks[0].records if len(chunks) == 1 else b"".join(chunk.records for chunk in chunks)
    start, end = chunks[0].start, min(chunks[-1].end, span.end)
    expected = sum(min(chunk.end, span.end) - chunk.start for chunk in chunks)
    try:
        batch = decode_records(
            records,
            projection.columns if duplicate_filter is None else duplicate_filter.columns(projection.columns),
            broker_name=span.queue.broker_name,
            start_offset=start,
            end_offset=end,
            tags=None if options.tags is None else frozenset(options.tags),
        )
    except RunTooLargeError as error:
        at = error.queue_offset
        parts = chunks if len(chunks) > 1 else [Chunk(chunks[0].records, start, at), Chunk(chunks[0].records, at, end)]
    except ProtocolError as error:
        damaged = damaged_record(records)
        if damaged is not None and start <= damaged.queue_offset < end:
            which, narrow = f"message {damaged.queue_offset}", ""
            before = Chunk(memoryview(records)[: damaged.position], start, damaged.queue_offset)
            yield from _decode_range([before], span, projection, loss, options, duplicate_filter)
        else:
            which = f"messages {start} to {end - 1}"
            narrow = "Narrow it down with pullBatchSize=1 and arrowBatchRows=1. "
        raise ProtocolError(
            f"{which} of {span.queue.name} cannot be decoded: {error.message}",
            remedy=f"{narrow}Select columns without body (.schema(…)) if only bodies are unreadable, or begin after "
            "the message with startingOffsets as JSON"
            f"{' and a new checkpoint directory' if options.is_stream else ''}.",
        ) from error
    else:
        # The broker returned too many records: a surplus in one chunk must not hide missing records in another.
        parts = chunks if len(chunks) > 1 and batch.num_rows > expected else []
    if parts:
        for part in parts:
            yield from _decode_range([part], span, projection, loss, options, duplicate_filter)
        return
    if batch.num_rows < expected and not is_filtered(options):
        loss.missing(span.queue, start, end, expected - batch.num_rows)
    if duplicate_filter is not None:
        batch = duplicate_filter.drop(batch)
    if batch.num_rows:
        yield projection.conform(batch)
