"""Which messages a query's filters leave: what need not be read, and what Spark must still filter.

A filter that is understood narrows what is read; one that is not is left to Spark alone. Of those that are understood
Spark may leave out the exact ones:

====================================  ====================================================  ==========
column                                what it narrows                                       exact
====================================  ====================================================  ==========
``topic``, ``brokerName``             whole queues                                          yes
``queueId``                           whole queues                                          yes
``queueOffset``                       ranges of queues, or single messages                  yes
``storeTimestamp``                    ranges of queues, by search, with a margin            no
``tags``                              the broker's tag filter                               no
``keys``, ``msgId``                   single messages, found in the index                   no
====================================  ====================================================  ==========

Store times are whole milliseconds and Spark's are microseconds: bounds are rounded so that a millisecond that might
match is read. A broker's clock may have been set back, and masters that follow one another have clocks of their own:
searches leave ``MARGIN_MS`` on both sides, within which times may run backwards without a row being lost.

Pure: filters to values, ranges to ranges, over the ``Queues`` questions. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_rocket.datasource.ranges import OffsetRange
from spark_rocket.datasource.resolve import Queues
from spark_rocket.datasource.schema import SOURCE_SCHEMA
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.subscription import SUB_ALL

MARGIN_MS = 5_000

_LOWEST, _HIGHEST = -(2**63), 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_EXPRESSION = 8 * 1024
_SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # its consume queues have delivery times in the place of tags

Texts = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers from ``low`` up to and without ``high``; only those ``among`` some, if given."""

    low: int = _LOWEST
    high: int = _HIGHEST
    among: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return self.low <= number < self.high and (self.among is None or number in self.among)

    def __and__(self, other: Numbers) -> Numbers:
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        return Numbers(max(self.low, other.low), min(self.high, other.high), among)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What all understood filters together leave; None is anything."""

    topics: Texts = None
    brokers: Texts = None
    queue_ids: Numbers = Numbers()
    offsets: Numbers = Numbers()
    store_ms: Numbers = Numbers()
    tags: Texts = None
    keys: Texts = None
    msg_ids: Texts = None

    @property
    def is_contradiction(self) -> bool:
        """Whether no message can be meant."""
        return any(texts is not None and not texts for texts in (self.tags, self.keys, self.msg_ids))

    def has(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and queue.queue_id in self.queue_ids
        )


_TEXTS = {"topic": "topics", "brokername": "brokers", "tags": "tags", "keys": "keys", "msgid": "msg_ids"}
_MESSAGES = {name.lower(): name.lower() for name in SOURCE_SCHEMA.names}
_EXACT = frozenset({"topic", "brokername", "queueid", "queueoffset"})


def understand(filters: Iterable[Filter], columns: Mapping[str, str] = _MESSAGES) -> tuple[Wanted, list[Filter]]:
    """What the filters leave, and those of them that Spark must apply to what is read.

    ``columns`` says which are a message's own, and by which name it has them; all in lower case.
    """
    wanted = Wanted()
    left = []
    for one in filters:
        column = columns.get(_column(one), "")
        narrowed = _narrowed(wanted, column, one)
        if narrowed is not None:
            wanted = narrowed
        if narrowed is None or column not in _EXACT:
            left.append(one)
    return wanted, left


def _column(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0].lower() if len(path) == 1 else ""


def _narrowed(wanted: Wanted, column: str, one: Filter) -> Wanted | None:
    if column in _TEXTS:
        texts = _texts(one)
        if texts is None:
            return None
        known: Texts = getattr(wanted, _TEXTS[column])
        changes: dict[str, Any] = {_TEXTS[column]: texts if known is None else known & texts}
        return replace(wanted, **changes)
    if column in ("queueid", "queueoffset"):
        numbers = _numbers(one)
        if numbers is None:
            return None
        if column == "queueid":
            return replace(wanted, queue_ids=wanted.queue_ids & numbers)
        return replace(wanted, offsets=wanted.offsets & numbers)
    if column == "storetimestamp":
        times = _times(one)
        return None if times is None else replace(wanted, store_ms=wanted.store_ms & times)
    return None


def _texts(one: Filter) -> Texts:
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(one.value, str):
        return frozenset({one.value})
    if isinstance(one, In):
        given = [value for value in one.value if value is not None]  # which nothing is equal to
        if all(isinstance(value, str) for value in given):
            return frozenset(given)
    return None


def _numbers(one: Filter) -> Numbers | None:
    if isinstance(one, In):
        given = [value for value in one.value if value is not None]
        return Numbers(among=frozenset(given)) if all(type(value) is int for value in given) else None
    value = getattr(one, "value", None)
    if type(value) is not int:
        return None
    return _between(one, value, value + 1)


def _times(one: Filter) -> Numbers | None:
    """The milliseconds that may match. One with microseconds in it matches none, and bounds go to the next one."""
    if isinstance(one, In):
        given = [_micros(value) for value in one.value if value is not None]
        whole = [value // 1000 for value in given if value is not None]
        if len(whole) < len(given):
            return None
        return Numbers(min(whole), max(whole) + 1) if whole else Numbers(0, 0)
    micros = _micros(getattr(one, "value", None))
    if micros is None:
        return None
    # The first millisecond that is not before the moment, and the first that is after it.
    return _between(one, -(-micros // 1000), micros // 1000 + 1)


def _micros(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // datetime.resolution


def _between(one: Filter, at_or_after: int, after: int) -> Numbers | None:
    """What compares so with a value: ``at_or_after`` is the first number not below it, ``after`` the first above."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return Numbers(at_or_after, after)
    if isinstance(one, GreaterThan):
        return Numbers(low=after)
    if isinstance(one, GreaterThanOrEqual):
        return Numbers(low=at_or_after)
    if isinstance(one, LessThan):
        return Numbers(high=at_or_after)
    if isinstance(one, LessThanOrEqual):
        return Numbers(high=after)
    return None


def narrow(spans: Iterable[OffsetRange], wanted: Wanted, queues: Queues) -> list[OffsetRange]:
    """The parts of ranges in which wanted messages may be; never more than was given."""
    kept = [_cut(span, wanted.offsets.low, wanted.offsets.high) for span in spans if wanted.has(span.queue)]
    kept = [span for span in kept if span.size > 0]
    low, high = wanted.store_ms.low, wanted.store_ms.high
    if low >= high:
        return []
    if kept and low > _LOWEST:
        starts = queues.offsets_for_times({span.queue: max(low - MARGIN_MS, 0) for span in kept})
        kept = [_cut(span, starts[span.queue], span.end) for span in kept]
    if kept and high < _HIGHEST:
        ends = queues.offsets_for_times({span.queue: max(high + MARGIN_MS, 0) for span in kept})
        kept = [_cut(span, span.start, ends[span.queue]) for span in kept]
    kept = [span for span in kept if span.size > 0]
    if wanted.offsets.among is not None:
        kept = [piece for span in kept for piece in pieces(span, wanted.offsets.among)]
    return kept


def _cut(span: OffsetRange, low: int, high: int) -> OffsetRange:
    start = max(span.start, low)
    return OffsetRange(span.queue, start, max(start, min(span.end, high)))


def pieces(span: OffsetRange, offsets: Iterable[int]) -> list[OffsetRange]:
    """The messages of a range at some offsets; neighbours are one piece."""
    found: list[OffsetRange] = []
    for offset in sorted({offset for offset in offsets if span.start <= offset < span.end}):
        if found and found[-1].end == offset:
            found[-1] = OffsetRange(span.queue, found[-1].start, offset + 1)
        else:
            found.append(OffsetRange(span.queue, offset, offset + 1))
    return found


def tags_for_brokers(wanted: Wanted, given: Sequence[str] | None, topics: Iterable[str]) -> tuple[str, ...] | None:
    """What to give brokers as tags: the option's, narrowed by the filters as far as an expression can say them."""
    asked = wanted.tags
    if asked is None or _SCHEDULE_TOPIC in topics or not all(map(_is_plain, asked)):
        return None if given is None else tuple(given)
    if sum(len(tag) + 4 for tag in asked) > _LONGEST_EXPRESSION:
        return None if given is None else tuple(given)
    return tuple(sorted(asked if given is None else asked & frozenset(given)))


def _is_plain(tag: str) -> bool:
    """Whether a tag expression of the tag means the tag."""
    return tag not in ("", SUB_ALL) and "||" not in tag and tag[0] > " " < tag[-1]
