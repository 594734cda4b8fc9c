"""A task's work: one range of one queue, pulled as raw records and yielded as Arrow batches.

The next pull is under way while the last one is decoded. Pulls are put together until a batch is worth handing over,
so that brokers that give 32 messages at a time (Apache's default) do not make tiny batches; one big pull is decoded
where it lies. No Python runs per row.

What an answer means (the broker's statuses):

=================  =====================================================================================
FOUND              records; go on at ``next_offset``. Those past the range's end are dropped while decoding
NO_MATCHED_MSG     nothing for us up to ``next_offset``
NO_NEW_MSG         the queue ends here although the range does not: it was shortened
OFFSET_ILLEGAL     before the queue's first message: deleted; after its last: shortened
=================  =====================================================================================

Belongs to one task and thread. Corresponds to PullAPIWrapper and DefaultMQPullConsumer's loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from spark_rocket.client.reader import PullResult, PullStatus, Reader
from spark_rocket.datasource.offsets import name
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.resolve import LossPolicy
from spark_rocket.datasource.schema import Projection
from spark_rocket.errors import OffsetsError, RocketError
from spark_rocket.protocol.columnar import decode_records


@dataclass(frozen=True, slots=True)
class Chunk:
    """One pull's raw records; they cover the queue from ``start`` up to ``end``."""

    records: memoryview
    start: int
    end: int


def read_range(
    span: OffsetRange, options: ReadOptions, projection: Projection, reader: Reader
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``span`` in order, each exactly once, as batches of Spark's own schema."""
    waiting: list[Chunk] = []
    rows = size = 0
    for chunk in pull_chunks(span, options, reader):
        if waiting and (
            rows + chunk.end - chunk.start > options.arrow_batch_rows
            or size + len(chunk.records) > options.arrow_batch_bytes
        ):
            yield from _decode(waiting, span, projection)
            waiting, rows, size = [], 0, 0
        waiting.append(chunk)
        rows += chunk.end - chunk.start
        size += len(chunk.records)
    yield from _decode(waiting, span, projection)


def _decode(chunks: list[Chunk], span: OffsetRange, projection: Projection) -> Iterator[pa.RecordBatch]:
    if not chunks:
        return
    records = chunks[0].records if len(chunks) == 1 else b"".join(chunk.records for chunk in chunks)
    batch = decode_records(
        records,
        projection.columns,
        broker_name=span.queue.broker_name,
        start_offset=chunks[0].start,
        end_offset=min(chunks[-1].end, span.end),
    )
    if batch.num_rows:
        yield projection.conform(batch)


def pull_chunks(span: OffsetRange, options: ReadOptions, reader: Reader) -> Iterator[Chunk]:
    """Pull a range piece by piece, one pull ahead of whoever uses the pieces."""
    loss = LossPolicy(options.fail_on_data_loss)
    patience = Patience(options.retry_timeout_ms)
    doing = f"to pull {name(span.queue)}"

    def ask(offset: int) -> Future[PullResult]:
        return reader.pull_async(
            span.queue,
            offset,
            max_msgs=min(options.pull_batch_size, span.end - offset),
            max_bytes=options.pull_batch_bytes,
            timeout=options.request_timeout_ms / 1000,
        )

    offset = span.start
    pending: Future[PullResult] | None = None
    while offset < span.end:
        try:
            answer = (pending or ask(offset)).result()
        except RocketError as error:
            patience.wait(error, doing)
            pending = None
            continue
        patience.reset()
        found = answer.status is PullStatus.FOUND
        if (
            found
            or answer.status is PullStatus.NO_MATCHED_MSG
            or (answer.status is PullStatus.NO_NEW_MSG and answer.next_offset > offset)
        ):
            following = answer.next_offset
            if following <= offset:
                raise OffsetsError(
                    f"the broker answered a pull of {name(span.queue)} at {offset} with the next offset {following}.",
                    remedy="Check the broker's consume queue (rocket store check); nothing more was read.",
                )
        elif offset < answer.min_offset:
            loss.deleted(span.queue, offset, answer.min_offset, span.end)
            following = answer.min_offset
        else:
            loss.shortened(span.queue, span.end, answer.max_offset)
            return
        pending = ask(following) if following < span.end else None
        if found:
            yield Chunk(answer.records, offset, following)
        offset = following
