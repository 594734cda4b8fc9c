"""Pull ranges of queues as raw records.

Pulls are in flight while earlier records are decoded. Brokers that return little at once (32 messages or 256 KiB with
Apache's defaults) get several concurrent requests, for consecutive ranges of as many messages as their responses hold.
If a response does not reach the end of its range, a pull for the rest follows before later responses are used. Each
message is therefore read once and in order. A task with several ranges sends the first pulls of the next ones ahead.

Meaning of the broker's status:

=================  =====================================================================================
FOUND              records; continue at ``next_offset``. Records past the range's end are dropped when decoding
NO_MATCHED_MSG,    with a later ``next_offset``: messages were deleted, because there is no filter
NO_NEW_MSG
NO_NEW_MSG         otherwise: the queue ends before the range does: it was shortened
OFFSET_ILLEGAL     before the queue's first message: deleted; after its last: shortened
other cases        inconsistent: retried until ``retryTimeout``
=================  =====================================================================================

After any status except FOUND, and after errors, all pulls in flight are discarded and sent again.

A missing queue is a data loss only if its master reports it missing; name servers and slaves do not count.

A slave may lag, so any status except FOUND is retried if it comes from a slave. A FOUND response may still lack deleted
records, so the records are counted.

With ``tags`` or ``sqlFilter`` the broker filters: NO_MATCHED_MSG then only reports how far it searched, and records
cannot be counted. Instead, the first message of the searched range is requested without the filter afterwards. If it
exists, no message after it was deleted. Brokers compare hashes of tags, so tags are compared again when decoding.

Belongs to one task and thread. Corresponds to PullAPIWrapper and DefaultMQPullConsumer's loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.loss_policy import LossPolicy
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.readers import explained
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import OffsetsError, QueueNotFoundError, RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.remoting.client.promise import Promise

_MIN_PROBE_INTERVAL, _MAX_PROBE_INTERVAL = 16, 4096  # full responses before a pull requests more messages than usual
_CHECK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chunk(FrozenValue):
    """The raw records of one pull, from queue offset ``start`` up to ``end``."""

    records: memoryview
    start: int
    end: int


def is_filtered(options: ReadOptions) -> bool:
    """Return whether brokers filter messages."""
    return options.tags is not None or options.sql_filter is not None


class _PendingPull(NamedTuple):
    """A pull in flight: for the messages from ``start`` up to ``end``, which its response may not reach."""

    start: int
    end: int
    answer: Promise[PullResult]

    def has_failed(self) -> bool:
        return self.answer.done() and self.answer.exception() is not None


class _PullWindow:
    """The pulls in flight of a range, in order. Each begins where the previous one should end.

    The first pull is alone. Responses that hold fewer messages than requested show how many messages and bytes a
    response can hold. Pulls of that size then follow each other, as many as ``maxPullsInFlight`` and ``pullBatchBytes``
    allow. Some pulls request twice as many messages, in case responses can hold more.
    """

    def __init__(
        self, span: OffsetRange, options: ReadOptions, ask: Callable[[int, int, int], Promise[PullResult]]
    ) -> None:
        self._ask = ask
        self._end = span.end
        self._next = span.start
        self._pulls: deque[_PendingPull] = deque()
        self._batch_size = options.pull_batch_size
        self._batch_bytes = options.pull_batch_bytes
        # The end of a filtered response is unknown before it arrives.
        self._max_in_flight = 1 if is_filtered(options) else options.max_pulls_in_flight
        self._in_flight_limit = 1
        self._step = options.pull_batch_size  # messages per response
        self._full = 0  # responses since the last one that was short, or that requested more than usual
        self._probe_interval = _MIN_PROBE_INTERVAL

    def first(self) -> _PendingPull:
        """Return the pull whose response comes next."""
        if not self._pulls:
            self._fill()
        return self._pulls[0]

    def has_failed(self) -> bool:
        """Return whether the first pull could not be sent."""
        return bool(self._pulls) and self._pulls[0].has_failed()

    def restart(self, offset: int) -> None:
        """Discard the pulls in flight and their responses."""
        self._pulls.clear()
        self._next = offset
        self._in_flight_limit = 1

    def record_response(self, following: int, size: int) -> None:
        """Record that the first pull's response reaches ``following`` and has ``size`` bytes."""
        pull = self._pulls.popleft()
        self._in_flight_limit = max(1, min(self._max_in_flight, self._batch_bytes // max(1, size)))
        self._learn(pull.end - pull.start, following - pull.start)
        if not self._pulls:
            self._next = following
        elif following > pull.end:
            self.restart(following)
        elif following < pull.end:
            answer = self._ask(following, pull.end - following, self._batch_bytes // self._in_flight_limit)
            self._pulls.appendleft(_PendingPull(following, pull.end, answer))
        self._fill()

    def _learn(self, asked: int, got: int) -> None:
        if got >= asked:
            self._full += 1
            if asked > self._step:
                self._step = asked
        elif asked > self._step:
            self._probe_interval = min(2 * self._probe_interval, _MAX_PROBE_INTERVAL)
            self._step = max(got, self._step)
        else:
            # One short response among long ones is not significant.
            self._full = 0
            self._step = got if self._step == self._batch_size else max(got, self._step - max(1, self._step // 4))

    def _fill(self) -> None:
        while len(self._pulls) < self._in_flight_limit and self._next < self._end:
            count = self._batch_size
            if self._in_flight_limit > 1:
                count = self._step
                if self._full >= self._probe_interval and count < self._batch_size:
                    self._full = 0
                    count = min(2 * count, self._batch_size)
            end = min(self._next + count, self._end)
            answer = self._ask(self._next, end - self._next, self._batch_bytes // self._in_flight_limit)
            self._pulls.append(_PendingPull(self._next, end, answer))
            self._next = end
            if self._pulls[-1].has_failed():
                return  # each further attempt may take a timeout


def pull_ranges(
    spans: Sequence[OffsetRange], options: ReadOptions, reader: Reader
) -> Iterator[tuple[OffsetRange, Chunk]]:
    """Pull ranges one after the other, each in pieces. The first pulls of the next ranges are sent ahead.

    All pulls in flight together stay within ``maxPullsInFlight`` and ``pullBatchBytes``.
    """
    ahead = min(len(spans) - 1, options.max_pulls_in_flight // 2)
    if ahead > 0:
        size, pulls = options.pull_batch_bytes // (ahead + 1), options.max_pulls_in_flight - ahead
        options = replace(options, pull_batch_bytes=size, max_pulls_in_flight=pulls)
    left = deque(span for span in spans if span.size > 0)
    begun: deque[tuple[OffsetRange, _PullWindow]] = deque()
    while left or begun:
        while left and len(begun) <= ahead and not (begun and begun[-1][1].has_failed()):
            window = _window_of(left[0], options, reader)
            window.first()
            begun.append((left.popleft(), window))
        span, window = begun.popleft()
        for chunk in pull_chunks(span, options, reader, window):
            yield span, chunk


def _window_of(span: OffsetRange, options: ReadOptions, reader: Reader) -> _PullWindow:
    tags = " || ".join(options.tags or (SUB_ALL,))

    def ask(offset: int, count: int, size: int) -> Promise[PullResult]:
        return reader.pull_async(
            span.queue,
            offset,
            max_msgs=count,
            max_bytes=max(1, size),
            timeout=options.request_timeout_ms / 1000,
            tags=tags,
            sql=options.sql_filter,
        )

    return _PullWindow(span, options, ask)


def pull_chunks(
    span: OffsetRange, options: ReadOptions, reader: Reader, window: _PullWindow | None = None
) -> Iterator[Chunk]:
    """Pull a range in pieces, with some pulls ahead of the consumer. ``window`` has pulls that are in flight."""
    loss = LossPolicy(options)
    retry_deadline = RetryDeadline(options.retry_timeout_ms)
    doing = f"to pull {span.queue.name}"
    window = window or _window_of(span, options, reader)
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
                # The driver has seen the topic and its queue. A route without them means an unavailable broker.
                error.retriable = True
            window.restart(offset)
            retry_deadline.wait(explained(error, span.queue, reader), doing)
            continue
        retry_deadline.reset()
        if following is None:
            return
        if answer.status is PullStatus.FOUND:
            window.record_response(following, len(answer.records))
            yield Chunk(answer.records, offset, following)
        else:
            window.restart(following)
        offset = following


def is_gone(queue: MessageQueue, offset: int, reader: Reader, loss: LossPolicy) -> bool:
    """Return whether the queue or its topic was deleted since the batch was planned. Only its master can confirm it."""
    said = reader.lacks(queue)
    if isinstance(said, TopicNotFoundError):
        loss.topic_deleted(queue.topic, {queue: offset})
    elif said is not None:
        loss.queue_deleted(queue, offset)
    return said is not None


class _Deletions:
    """Detects that a filter skipped messages because they were deleted, not because they did not match.

    Brokers delete from the front. If the first message of the searched range still exists, so do all others.
    """

    def __init__(self, span: OffsetRange, reader: Reader, loss: LossPolicy) -> None:
        self._span = span
        self._reader = reader
        self._loss = loss
        self._since = span.start
        self._checked = time.monotonic()

    def check(self, reached: int) -> None:
        """Check the messages before ``reached``. Sends a request only at intervals and at the end of the range."""
        queue, first = self._span.queue, self._since
        if reached < self._span.end and time.monotonic() < self._checked + _CHECK_INTERVAL_S:
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
    """Return where to continue after a response; None if the queue ends before the range. Errors may be retriable."""
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
        # Without a filter every message matches, so these are deleted. Brokers then return the start of the queue's
        # next file, and there may be messages before it.
        low = reader.min_offset(queue)
        left = low if low > offset else following
        loss.deleted(queue, offset, left, span.end)
        return left
    if answer.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL) and answer.max_offset < span.end:
        loss.shortened(queue, span.end, answer.max_offset)
        return None
    # Inconsistent response: the broker may be changing its queue right now.
    raise OffsetsError(
        f"the broker responded to a pull of {queue.name} at {offset} with {answer.status.value} and next offset "
        f"{following}, but its queue has offsets from {answer.min_offset} to {answer.max_offset}.",
        remedy="Check the broker's consume queue (rocket store check); reading stopped here.",
        retriable=True,
    )


def _lagging(queue: MessageQueue, offset: int, answer: PullResult) -> QueueNotFoundError:
    return QueueNotFoundError(
        f"the master of {queue.name} is unavailable, and its slave responded to a pull at {offset} with "
        f"{answer.status.value}: it may lag behind.",
        remedy="Start the master, or wait until the slave has caught up.",
        retriable=True,
    )
