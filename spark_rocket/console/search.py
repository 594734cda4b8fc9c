"""Search of a topic's messages by time, newest first, page by page, with a limit on the work of each request.

The position of a search is a *cursor*: for each queue the offsets that remain. It does not depend on messages that are
stored later, so pages are stable. Each queue is read backward in steps, and the queues are merged by store time. A
message is returned only when the next match of every other queue is known, so the order holds across pages.

Brokers filter by tag, the console by text. A request ends when its page is full, when nothing remains, or when it has
used its budget. Then the cursor has its progress: the next request continues there.

Thread-safety: a ``Search`` belongs to one request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from spark_rocket.client import Admin, Reader
from spark_rocket.client.admin.messages import check_times
from spark_rocket.client.consume.pull import PullResult, PullStatus, messages_of
from spark_rocket.console.responses import Refused
from spark_rocket.errors import ClientError, ProtocolError, RocketError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import TagExpression, parse_tags

MAX_SCANNED_MESSAGES = 50_000
MAX_SCANNED_BYTES = 64 << 20
MAX_SCAN_S = 3.0
"""The budget of one request, checked after each step."""
WINDOW = 16  # queues that are read at the same time
_LONGEST_STEP = 1_000  # messages
_FIRST_STEP, _SHORTEST_FIRST_STEP = 64, 8
_QUICK_S, _SLOW_S = 0.2, 1.0


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """The messages that a search returns. Times are inclusive."""

    begin_ms: int
    end_ms: int
    tags: TagExpression
    text: bytes

    @classmethod
    def of(cls, begin_ms: int, end_ms: int, tags: str, text: str) -> SearchFilter:
        try:
            check_times(begin_ms, end_ms)
            return cls(begin_ms, end_ms, parse_tags(tags), text.encode())
        except (ClientError, ProtocolError) as error:
            raise Refused(error.message, remedy=error.remedy) from None

    def place(self, message: MessageExt) -> int | None:
        """Return the position of the text in the body (0 if none is wanted); None for messages that do not match."""
        if not self.begin_ms <= message.store_timestamp <= self.end_ms:
            return None
        at = message.body.find(self.text)
        return None if at < 0 else at


@dataclass(slots=True)
class Span:
    """The offsets of a queue that remain: ``low`` to before ``high``.

    ``newest``: the store time of the message at ``high - 1``, if it is known to match.
    """

    queue: MessageQueue
    low: int
    high: int
    newest: int | None = None
    rows: deque[dict[str, Any]] = field(default_factory=deque)
    """Matches that were read and not yet returned, newest first."""
    read_to: int = 0
    """Everything from here on was read, if there are rows."""

    @property
    def left(self) -> int:
        return self.high - self.low if self.high > self.low else 0

    def put(self, first: int, rows: Iterable[dict[str, Any]]) -> None:
        """Add the matches of the offsets from ``first`` to before ``high``, newest first."""
        self.rows.extend(rows)
        self.read_to = first
        self._settle()

    def take(self) -> dict[str, Any]:
        row = self.rows.popleft()
        self._settle()
        return row

    def _settle(self) -> None:
        if self.rows:
            self.high, self.newest = int(self.rows[0]["offset"]) + 1, int(self.rows[0]["stored"])
        else:
            self.high, self.newest = self.read_to, None

    def to_json(self) -> list[Any]:
        return [self.queue.broker_name, self.queue.queue_id, self.low, self.high, self.newest]


def parse_cursor(topic: str, value: object) -> list[Span]:
    if not isinstance(value, list):
        raise _invalid_cursor()
    return [_parse_span(topic, one) for one in value]


def _parse_span(topic: str, value: object) -> Span:
    if isinstance(value, list) and len(value) == 5:
        broker, queue, low, high, newest = value
        is_known = newest is None or isinstance(newest, int)
        if is_known and isinstance(broker, str) and _is_offset(queue) and _is_offset(low) and _is_offset(high):
            return Span(MessageQueue(topic, broker, queue), low, high, newest)
    raise _invalid_cursor()


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**63


def _invalid_cursor() -> Refused:
    return Refused("Invalid position of the search.", remedy="Search again from the first page.")


def first_spans(
    admin: Admin, reader: Reader, topic: str, begin_ms: int, end_ms: int | None
) -> tuple[list[Span], dict[str, RocketError]]:
    """Return the offsets of a topic between two times, and the errors of brokers that did not respond.

    For these brokers, what their slaves have is searched. After an error, a broker is not queried about other queues.
    """
    failed: dict[str, RocketError] = {}
    ends = admin.offsets(topic, failed=failed)

    def bounded(queue: MessageQueue, low: int, high: int) -> Span | None:
        if queue.broker_name in failed:
            return None
        try:
            first = reader.offset_for_time(queue, begin_ms) if begin_ms > 0 else low
            return Span(queue, first, high if end_ms is None else reader.offset_for_time(queue, end_ms + 1))
        except RocketError as error:
            failed[queue.broker_name] = error
            return None

    with ThreadPoolExecutor(WINDOW, "console-search") as pool:
        tasks = [pool.submit(bounded, queue, low, high) for queue, (low, high) in ends.items() if low < high]
        spans = [span for task in tasks if (span := task.result()) is not None]
    if failed:
        spans = [span for span in spans if span.queue.broker_name not in failed]
        spans += _slave_spans(reader, topic, failed.keys())
    return spans, failed


def _slave_spans(reader: Reader, topic: str, brokers: Container[str]) -> list[Span]:
    """Return the offsets that the slaves of these brokers have."""
    spans: list[Span] = []
    unavailable: set[str] = set()
    for queue in reader.refresh(topic):
        if queue.broker_name not in brokers or queue.broker_name in unavailable:
            continue
        last = reader.slave_max_offset(queue)
        if last is None:
            unavailable.add(queue.broker_name)
        elif last:
            spans.append(Span(queue, 0, last))
    return spans


@dataclass(slots=True)
class _Step:
    """A part of a span while it is read, forward."""

    span: Span
    first: int
    at: int
    end: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    most: int = _LONGEST_STEP
    was_slave: bool = False


class Search:
    """One request. ``row(message, at)`` makes its row, which has ``offset`` and ``stored``."""

    def __init__(
        self, reader: Reader, spans: list[Span], wanted: SearchFilter, row: Callable[[MessageExt, int], dict[str, Any]]
    ) -> None:
        self._reader = reader
        self._spans = spans
        self._wanted = wanted
        self._row = row
        self.failed: dict[str, RocketError] = {}
        self.unreadable: dict[str, RocketError] = {}
        """By broker: its first message that could not be decoded. The search goes on without these messages."""
        self.messages = 0
        """The number of messages that were searched."""
        self._bytes = 0
        self._deadline = time.monotonic() + MAX_SCAN_S
        self._step = _FIRST_STEP
        self._has_read = False  # the first step is always made: every request has some progress

    @property
    def left(self) -> int:
        return sum(span.left for span in self._spans)

    def cursor(self) -> list[list[Any]]:
        return [span.to_json() for span in self._spans if span.left]

    def page(self, limit: int) -> list[dict[str, Any]]:
        """Return the next matches: fewer than ``limit`` at the end, or when the budget is used."""
        rows: list[dict[str, Any]] = []
        self._step = max(_SHORTEST_FIRST_STEP, min(limit * 2 // max(len(self._spans), 1), _FIRST_STEP))
        while len(rows) < limit:
            spans = [span for span in self._spans if span.left and span.queue.broker_name not in self.failed]
            unread = [span for span in spans if span.newest is None]
            if not unread:
                if not spans:
                    break
                newest = max(spans, key=_age)
                if newest.rows:
                    rows.append(newest.take())
                    continue
                unread = [newest]
            if self._has_read and self._is_spent():
                break
            self._read(unread[:WINDOW])
        return rows

    def _is_spent(self) -> bool:
        return (
            self.messages >= MAX_SCANNED_MESSAGES
            or self._bytes >= MAX_SCANNED_BYTES
            or time.monotonic() >= self._deadline
        )

    def _read(self, spans: list[Span]) -> None:
        began, self._has_read = time.monotonic(), True
        count = self._count(len(spans))
        steps = [_Step(span, first := max(span.low, span.high - count), first, span.high) for span in spans]
        pending = steps
        while pending:
            asked = [
                (
                    step,
                    self._reader.pull_async(
                        step.span.queue,
                        step.at,
                        max_msgs=min(step.end - step.at, step.most),
                        tags=str(self._wanted.tags),
                    ),
                )
                for step in pending
            ]
            pending = []
            for step, promise in asked:
                try:
                    if self._took(step, promise.result()):
                        pending.append(step)
                except RocketError as error:
                    self.failed.setdefault(step.span.queue.broker_name, error)
        for step in steps:
            if step.span.queue.broker_name not in self.failed:
                step.span.put(step.first, reversed(step.rows))
        seconds = time.monotonic() - began
        if seconds > _SLOW_S:
            self._step = max(self._step // 2, 1)
        elif seconds < _QUICK_S and not any(step.rows for step in steps):
            self._step = min(self._step * 2, _LONGEST_STEP)

    def _count(self, spans: int) -> int:
        """Return how many messages of each span to read: as many as fit into the rest of the budget."""
        if not self.messages:
            return self._step
        each = max(self._bytes // self.messages, 1)
        return max(min(self._step, (MAX_SCANNED_BYTES - self._bytes) // each // spans), 1)

    def _took(self, step: _Step, found: PullResult) -> bool:
        """Add the result of a pull; return whether the step needs another."""
        queue, is_found = step.span.queue, found.status is PullStatus.FOUND
        is_progress = found.next_offset > step.at
        if not is_found and not is_progress and not found.from_master:
            if step.was_slave:
                raise ClientError(
                    f"The slave of {queue.broker_name} does not have offset {step.at} of queue {queue.queue_id}.",
                    remedy="Wait until its master is back: a slave may lag behind.",
                    retriable=True,
                )
            step.was_slave = True  # the reader asks the master next
            return True
        try:
            messages = messages_of(found, queue, step.at, self._wanted.tags) if is_found else []
        except ProtocolError as error:
            if step.most > 1:  # one of several messages, or bodies that are too large together
                step.most = 1
                return True
            self._skip(queue, step.at, error)
            messages, step.most = [], _LONGEST_STEP
        step.span.low = max(step.span.low, found.min_offset)
        for message in messages:
            if message.queue_offset >= step.end:
                break
            if message.store_timestamp < self._wanted.begin_ms:
                step.span.low = max(step.span.low, message.queue_offset + 1)
            at = self._wanted.place(message)
            if at is not None:
                step.rows.append(self._row(message, at))
        self._bytes += len(found.records)
        self.messages += max(min(found.next_offset, step.end) - step.at, 0)
        step.at = found.next_offset
        return is_progress and step.at < step.end

    def _skip(self, queue: MessageQueue, offset: int, error: ProtocolError) -> None:
        text = f"The message at offset {offset} of queue {queue.queue_id} is unreadable: {error.message}"
        self.unreadable.setdefault(queue.broker_name, ProtocolError(text, remedy=error.remedy))


def _age(span: Span) -> tuple[int, str, int]:
    return span.newest or 0, span.queue.broker_name, span.queue.queue_id
