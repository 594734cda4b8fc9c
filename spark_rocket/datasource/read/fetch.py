"""A task's work: one range of one queue, pulled as raw records and yielded as Arrow batches.

Pulls are under way while what came before is decoded. Brokers that give little at a time (32 messages or 256 KiB at
Apache's defaults) have several to answer at once, for consecutive stretches of as many messages as their answers hold;
an answer that does not reach the end of its stretch is followed by a pull for the rest, before what comes after is
looked at. So whatever the answers hold, each message is read once and in order. Small answers are put together until a
batch is worth handing over; one big one is decoded where it lies. No Python runs per row.

What an answer means (the broker's statuses):

=================  =====================================================================================
FOUND              records; go on at ``next_offset``. Those past the range's end are dropped while decoding
NO_MATCHED_MSG,    with a later ``next_offset``: a stretch was deleted, for no message is filtered out
NO_NEW_MSG
NO_NEW_MSG         else: the queue ends here although the range does not: it was shortened
OFFSET_ILLEGAL     before the queue's first message: deleted; after its last: shortened
anything else      contradicts itself: asked again, until ``retryTimeout`` is over
=================  =====================================================================================

After all but FOUND, and after errors, what else is under way is forgotten and asked for anew.

A queue that is not there any more is a loss if its master says so; what a name server or a slave says of it is not.

A slave may lag behind, so all but FOUND is no news from it: asked again. Records found may still leave out deleted
ones among them, so they are counted.

With ``tags`` or ``sqlFilter`` the broker chooses: NO_MATCHED_MSG then only says how far it looked, and nothing can be
counted. Instead the first message of what was looked at is asked for without the filter afterwards: if it is there,
nothing behind it had been deleted. Brokers compare hashes of tags, so the tags are compared again while decoding.

Belongs to one task and thread. Corresponds to PullAPIWrapper and DefaultMQPullConsumer's loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.offsets import name
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.plan.resolve import LossPolicy
from spark_rocket.datasource.read.cluster import explained
from spark_rocket.datasource.read.dedupe import NEEDED, Repeats
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.schema import SOURCE_SCHEMA, Projection, project
from spark_rocket.errors import (
    OffsetsError,
    ProtocolError,
    QueueNotFoundError,
    RocketError,
    RunTooLargeError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.remoting.client.promise import Promise

log = logging.getLogger("spark_rocket.datasource")

_FIRST_PROBE, _LAST_PROBE = 16, 4096  # full answers before a pull asks for more than the usual
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One pull's raw records; they cover the queue from ``start`` up to ``end``."""

    records: memoryview
    start: int
    end: int


def is_filtered(options: ReadOptions) -> bool:
    """Whether brokers leave out messages."""
    return options.tags is not None or options.sql_filter is not None


def read_range(
    span: OffsetRange,
    options: ReadOptions,
    projection: Projection,
    reader: Reader,
    repeats: Repeats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``span`` in order, each exactly once, as batches of Spark's own schema.

    Those that ``repeats`` knows are left out.
    """
    loss = LossPolicy(options, span.queue)
    waiting: list[Chunk] = []
    rows = size = 0
    for chunk in pull_chunks(span, options, reader):
        if waiting and (
            rows + chunk.end - chunk.start > options.arrow_batch_rows
            or size + len(chunk.records) > options.arrow_batch_bytes
        ):
            yield from _decode(waiting, span, projection, loss, options, repeats)
            waiting, rows, size = [], 0, 0
        waiting.append(chunk)
        rows += chunk.end - chunk.start
        size += len(chunk.records)
    yield from _decode(waiting, span, projection, loss, options, repeats)


def read_without_repeats(
    span: OffsetRange, options: ReadOptions, projection: Projection, reader: Reader, window: int
) -> Iterator[pa.RecordBatch]:
    """As ``read_range``, without repeats."""
    repeats = Repeats(window)
    retry_deadline = RetryDeadline(options.retry_timeout_ms)
    loss = LossPolicy(options, span.queue)

    def first() -> int | None:
        try:
            return reader.min_offset(span.queue)
        except (TopicNotFoundError, QueueNotFoundError) as error:
            if is_gone(span.queue, span.start, reader, loss):
                return None
            error.retriable = True
            raise

    lowest = retry_deadline.call(first, f"to ask for the start of {name(span.queue)}")
    if lowest is None:
        return
    start = max(span.start - window, lowest)
    if start < span.start:
        # Nothing is lost of what has been read before, should it be deleted just now.
        before = replace(options, fail_on_data_loss=False)
        ids = project(StructType([SOURCE_SCHEMA[column] for column in NEEDED]))
        for _ in read_range(OffsetRange(span.queue, start, span.start), before, ids, reader, repeats):
            pass
    repeats.count = 0
    yield from read_range(span, options, projection, reader, repeats)
    if repeats.count:
        log.info("left out %d repeats of %s from %d to %d", repeats.count, name(span.queue), span.start, span.end - 1)


def _decode(
    chunks: list[Chunk],
    span: OffsetRange,
    projection: Projection,
    loss: LossPolicy,
    options: ReadOptions,
    repeats: Repeats | None,
) -> Iterator[pa.RecordBatch]:
    if not chunks:
        return
    records = chunks[0].records if len(chunks) == 1 else b"".join(chunk.records for chunk in chunks)
    start, end = chunks[0].start, min(chunks[-1].end, span.end)
    expected = sum(min(chunk.end, span.end) - chunk.start for chunk in chunks)
    try:
        batch = decode_records(
            records,
            projection.columns if repeats is None else repeats.columns(projection.columns),
            broker_name=span.queue.broker_name,
            start_offset=start,
            end_offset=end,
            tags=None if options.tags is None else frozenset(options.tags),
            damaged=projection.damaged,
        )
    except RunTooLargeError as error:
        at = error.queue_offset
        parts = chunks if len(chunks) > 1 else [Chunk(chunks[0].records, start, at), Chunk(chunks[0].records, at, end)]
    except ProtocolError as error:
        raise ProtocolError(
            f"messages {start} to {end - 1} of {name(span.queue)} cannot be decoded: {error.message}",
            remedy="Narrow it down with pullBatchSize=1 and arrowBatchRows=1. Leave out body (.schema(…)) if only "
            "that cannot be read, or begin after it with startingOffsets as JSON"
            f"{' and a new checkpoint directory' if options.is_stream else ''}.",
        ) from error
    else:
        # A broker that gives more than it says: what is too much in one chunk must not stand for what lacks in another.
        parts = chunks if len(chunks) > 1 and batch.num_rows > expected else []
    if parts:
        for part in parts:
            yield from _decode([part], span, projection, loss, options, repeats)
        return
    if batch.num_rows < expected and not is_filtered(options):
        loss.missing(span.queue, start, end, expected - batch.num_rows)
    if repeats is not None:
        batch = repeats.drop(batch)
    if batch.num_rows:
        yield projection.conform(batch)


class _Pull(NamedTuple):
    """A pull under way: for the messages from ``start`` up to ``end``, which its answer may not reach."""

    start: int
    end: int
    answer: Promise[PullResult]


class _Window:
    """The pulls of a range that are under way, in order, each beginning where the one before should end.

    While nothing is known of the answers there is one. How many messages they hold, and of how many bytes, is learnt
    from those that hold fewer than were asked for; pulls of that many then follow each other, as many as
    ``maxPullsInFlight`` and ``pullBatchBytes`` allow. Now and then one asks for twice as many, in case that answers
    could hold more.
    """

    def __init__(
        self, span: OffsetRange, options: ReadOptions, ask: Callable[[int, int, int], Promise[PullResult]]
    ) -> None:
        self._ask = ask
        self._end = span.end
        self._next = span.start
        self._pulls: deque[_Pull] = deque()
        self._batch_size = options.pull_batch_size
        self._batch_bytes = options.pull_batch_bytes
        # Where a filtered answer ends is not known before it is there.
        self._most = 1 if is_filtered(options) else options.max_pulls_in_flight
        self._room = 1
        self._step = options.pull_batch_size  # messages of an answer
        self._full = 0  # answers since the last one that was short, or asked for more than the usual
        self._patience = _FIRST_PROBE

    def first(self) -> _Pull:
        """The pull whose answer comes next."""
        if not self._pulls:
            self._fill()
        return self._pulls[0]

    def restart(self, offset: int) -> None:
        """Forget what is under way; what comes of it is not looked at."""
        self._pulls.clear()
        self._next = offset
        self._room = 1

    def took(self, following: int, size: int) -> None:
        """The first pull's answer was found to reach to ``following`` with ``size`` bytes."""
        pull = self._pulls.popleft()
        self._room = max(1, min(self._most, self._batch_bytes // max(1, size)))
        self._learn(pull.end - pull.start, following - pull.start)
        if not self._pulls:
            self._next = following
        elif following > pull.end:
            self.restart(following)
        elif following < pull.end:
            answer = self._ask(following, pull.end - following, self._batch_bytes // self._room)
            self._pulls.appendleft(_Pull(following, pull.end, answer))
        self._fill()

    def _learn(self, asked: int, got: int) -> None:
        if got >= asked:
            self._full += 1
            if asked > self._step:
                self._step = asked
        elif asked > self._step:
            self._patience = min(2 * self._patience, _LAST_PROBE)
            self._step = max(got, self._step)
        else:
            # One short answer among long ones says little.
            self._full = 0
            self._step = got if self._step == self._batch_size else max(got, self._step - max(1, self._step // 4))

    def _fill(self) -> None:
        while len(self._pulls) < self._room and self._next < self._end:
            count = self._batch_size
            if self._room > 1:
                count = self._step
                if self._full >= self._patience and count < self._batch_size:
                    self._full = 0
                    count = min(2 * count, self._batch_size)
            end = min(self._next + count, self._end)
            answer = self._ask(self._next, end - self._next, self._batch_bytes // self._room)
            self._pulls.append(_Pull(self._next, end, answer))
            self._next = end
            if answer.done() and answer.exception() is not None:
                return  # trying again may take a time-out each


def pull_chunks(span: OffsetRange, options: ReadOptions, reader: Reader) -> Iterator[Chunk]:
    """Pull a range piece by piece, some pulls ahead of whoever uses the pieces."""
    loss = LossPolicy(options, span.queue)
    retry_deadline = RetryDeadline(options.retry_timeout_ms)
    doing = f"to pull {name(span.queue)}"
    tags = " || ".join(options.tags or (SUB_ALL,))

    def ask(offset: int, count: int, size: int) -> Promise[PullResult]:
        return reader.pull_later(
            span.queue,
            offset,
            max_msgs=count,
            max_bytes=max(1, size),
            timeout=options.request_timeout_ms / 1000,
            tags=tags,
            sql=options.sql_filter,
        )

    window = _Window(span, options, ask)
    deletions = _Deletions(span, reader, loss) if is_filtered(options) else None
    offset = span.start
    while offset < span.end:
        try:
            answer = window.first().answer.result()
            following = _following(answer, offset, span, loss, reader, is_filtered=deletions is not None)
            if deletions is not None and following is not None:
                deletions.check(following)
        except RocketError as error:
            if isinstance(error, TopicNotFoundError | QueueNotFoundError):
                if is_gone(span.queue, offset, reader, loss):
                    return
                # The driver has seen the topic and its queue, so a route that lacks them is a broker that is away.
                error.retriable = True
            window.restart(offset)
            retry_deadline.wait(explained(error, span.queue, reader), doing)
            continue
        retry_deadline.reset()
        if following is None:
            return
        if answer.status is PullStatus.FOUND:
            window.took(following, len(answer.records))
            yield Chunk(answer.records, offset, following)
        else:
            window.restart(following)
        offset = following


def is_gone(queue: MessageQueue, offset: int, reader: Reader, loss: LossPolicy) -> bool:
    """Whether the queue, or its topic, was taken away since the batch was planned: only its master's word counts."""
    said = reader.lacks(queue)
    if isinstance(said, TopicNotFoundError):
        loss.topic_deleted(queue.topic, {queue: offset})
    elif said is not None:
        loss.queue_deleted(queue, offset)
    return said is not None


class _Deletions:
    """Whether a filter passed over messages because they were deleted, and not because it does not match them.

    Brokers delete from the front. So all that was looked at was there if its first message still is.
    """

    def __init__(self, span: OffsetRange, reader: Reader, loss: LossPolicy) -> None:
        self._span = span
        self._reader = reader
        self._loss = loss
        self._since = span.start
        self._checked = time.monotonic()

    def check(self, reached: int) -> None:
        """Everything before ``reached`` was looked at. Asked now and then, and at the end."""
        queue, first = self._span.queue, self._since
        if reached < self._span.end and time.monotonic() < self._checked + _CHECK_SECONDS:
            return
        found = self._reader.pull(queue, first, max_msgs=1)
        if found.status is not PullStatus.FOUND and not found.from_master:
            raise _lagging(queue, first, found)
        rows = decode_records(
            found.records, ["queueOffset"], broker_name=queue.broker_name, start_offset=first, end_offset=first + 1
        )
        if not rows.num_rows:
            low = self._reader.min_offset(queue)
            self._loss.deleted(queue, first, low if low > first else reached, reached)
        self._since = reached
        self._checked = time.monotonic()


def _following(
    answer: PullResult, offset: int, span: OffsetRange, loss: LossPolicy, reader: Reader, *, is_filtered: bool
) -> int | None:
    """Where to go on after an answer; None if the queue ends before the range does. Errors may be retriable."""
    queue, following = span.queue, answer.next_offset
    if following > offset and (
        answer.status is PullStatus.FOUND or (is_filtered and answer.status is PullStatus.NO_MATCHED_MSG)
    ):
        return following
    if not answer.from_master:
        raise _lagging(queue, offset, answer)
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


def _lagging(queue: MessageQueue, offset: int, answer: PullResult) -> QueueNotFoundError:
    return QueueNotFoundError(
        f"the master of {name(queue)} is away, and its slave answered a pull at {offset} with "
        f"{answer.status.value}: it may lag behind.",
        remedy="Start the master, or wait until the slave has caught up.",
        retriable=True,
    )
