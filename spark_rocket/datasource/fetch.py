"""A task's work: one range of one queue, pulled as raw records and yielded as Arrow batches.

The next pull is under way while the last one is decoded. Pulls are put together until a batch is worth handing over,
so that brokers that give 32 messages at a time (Apache's default) do not make tiny batches; one big pull is decoded
where it lies. No Python runs per row.

What an answer means (the broker's statuses):

=================  =====================================================================================
FOUND              records; go on at ``next_offset``. Those past the range's end are dropped while decoding
NO_MATCHED_MSG,    with a later ``next_offset``: a stretch was deleted, for no message is filtered out
NO_NEW_MSG
NO_NEW_MSG         else: the queue ends here although the range does not: it was shortened
OFFSET_ILLEGAL     before the queue's first message: deleted; after its last: shortened
anything else      contradicts itself: asked again, until ``retryTimeout`` is over
=================  =====================================================================================

A slave may lag behind, so all but FOUND is no news from it: asked again. Records found may still leave out deleted
ones among them, so they are counted.

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
from spark_rocket.errors import OffsetsError, ProtocolError, QueueNotFoundError, RocketError, TopicNotFoundError
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
    loss = LossPolicy(options)
    waiting: list[Chunk] = []
    rows = size = 0
    for chunk in pull_chunks(span, options, reader):
        if waiting and (
            rows + chunk.end - chunk.start > options.arrow_batch_rows
            or size + len(chunk.records) > options.arrow_batch_bytes
        ):
            yield from _decode(waiting, span, projection, loss, options)
            waiting, rows, size = [], 0, 0
        waiting.append(chunk)
        rows += chunk.end - chunk.start
        size += len(chunk.records)
    yield from _decode(waiting, span, projection, loss, options)


def _decode(
    chunks: list[Chunk], span: OffsetRange, projection: Projection, loss: LossPolicy, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    if not chunks:
        return
    records = chunks[0].records if len(chunks) == 1 else b"".join(chunk.records for chunk in chunks)
    start, end = chunks[0].start, min(chunks[-1].end, span.end)
    try:
        batch = decode_records(
            records,
            projection.columns,
            broker_name=span.queue.broker_name,
            start_offset=start,
            end_offset=end,
        )
    except ProtocolError as error:
        raise ProtocolError(
            f"messages {start} to {end - 1} of {name(span.queue)} cannot be decoded: {error.message}",
            remedy="Narrow it down with pullBatchSize=1 and arrowBatchRows=1. Leave out body (.schema(…)) if only "
            "that cannot be read, or begin after it with startingOffsets as JSON"
            f"{' and a new checkpoint directory' if options.is_stream else ''}.",
        ) from error
    expected = sum(min(chunk.end, span.end) - chunk.start for chunk in chunks)
    if batch.num_rows < expected:
        loss.missing(span.queue, start, end, expected - batch.num_rows)
    if batch.num_rows:
        yield projection.conform(batch)


def pull_chunks(span: OffsetRange, options: ReadOptions, reader: Reader) -> Iterator[Chunk]:
    """Pull a range piece by piece, one pull ahead of whoever uses the pieces."""
    loss = LossPolicy(options)
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
            following = _following(answer, offset, span, loss, reader)
        except RocketError as error:
            # The driver has seen the topic and its queue, so a route that lacks them is a broker that is away.
            if isinstance(error, TopicNotFoundError | QueueNotFoundError):
                error.retriable = True
            patience.wait(error, doing)
            pending = None
            continue
        patience.reset()
        if following is None:
            return
        pending = ask(following) if following < span.end else None
        if answer.status is PullStatus.FOUND:
            yield Chunk(answer.records, offset, following)
        offset = following


def _following(answer: PullResult, offset: int, span: OffsetRange, loss: LossPolicy, reader: Reader) -> int | None:
    """Where to go on after an answer; None if the queue ends before the range does. Errors may be retriable."""
    queue, following = span.queue, answer.next_offset
    if answer.status is PullStatus.FOUND and following > offset:
        return following
    if not answer.from_master:
        raise QueueNotFoundError(
            f"the master of {name(queue)} is away, and its slave answered a pull at {offset} with "
            f"{answer.status.value}: it may lag behind.",
            remedy="Start the master, or wait until the slave has caught up.",
            retriable=True,
        )
    if answer.status is PullStatus.OFFSET_ILLEGAL and offset < answer.min_offset:
        loss.deleted(queue, offset, answer.min_offset, span.end)
        return answer.min_offset
    if answer.status in (PullStatus.NO_MATCHED_MSG, PullStatus.NO_NEW_MSG) and following > offset:
        # Every message matches, so these are gone. Brokers then name the start of their next file of the queue, and
        # there may be messages before it.
        low = reader.min_offset(queue)
        left = low if low > offset else following
        loss.deleted(queue, offset, left, span.end)
        return left
    if answer.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL) and answer.max_offset < span.end:
        loss.shortened(queue, span.end, answer.max_offset)
        return None
    # The broker contradicts itself: it may be at work on its queue just now.
    raise OffsetsError(
        f"the broker answered a pull of {name(queue)} at {offset} with {answer.status.value} and the next offset "
        f"{following}, and its queue goes from {answer.min_offset} to {answer.max_offset}.",
        remedy="Check the broker's consume queue (rocket store check); nothing more was read.",
        retriable=True,
    )
