"""What to do about lost messages (``failOnDataLoss``): raise an error, or log the loss once and continue.

Planning and reading both find losses. One object for each query or task, used by one thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.stream_offsets import Positions, format_positions, format_time
from spark_rocket.errors import RenamedCode
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

_FROM_EARLIEST = "from the earliest left"


@dataclass(frozen=True, eq=False, repr=False)
class Replaced(FrozenValue):
    """A message at the offset of another message that was already read."""

    offset: int
    was_ms: int
    now_ms: int
    since: int
    """The first of the new messages, which are unread."""


class LossPolicy:
    """What to do about lost messages: fail, or log once per queue and kind and continue."""

    def __init__(self, options: ReadOptions) -> None:
        self._fail = options.fail_on_data_loss
        self._remedy = "To continue at the earliest remaining message, set failOnDataLoss=false"
        if options.is_stream:
            self._remedy += "; to start over, use a new checkpoint directory"
        self._logged: set[tuple[object, str]] = set()

    def deleted(self, queue: MessageQueue, wanted: int, first_left: int, until: int | None = None) -> None:
        """Messages from ``wanted`` on were deleted; the queue now begins at ``first_left``."""
        last = (first_left if until is None else min(first_left, until)) - 1
        self._lost(queue, "MESSAGES_DELETED", queue=queue.name, first=wanted, last=last, left=first_left)

    def all_deleted(self, queue: MessageQueue, wanted: int, end: int, first_left: int) -> None:
        """All messages from ``wanted`` to ``end`` were deleted."""
        self._lost(
            queue, "MESSAGES_DELETED", "without them", queue=queue.name, first=wanted, last=end - 1, left=first_left
        )

    def missing(self, queue: MessageQueue, start: int, end: int, count: int) -> None:
        """The broker skipped messages: their file was deleted, or the topic is compacted."""
        self._lost(queue, "MESSAGES_MISSING", queue=queue.name, first=start, last=end - 1, count=count)

    def shortened(self, queue: MessageQueue, wanted: int, end: int) -> None:
        """The queue ends before a position that it had reached."""
        self._lost(queue, "QUEUE_SHORTENED", queue=queue.name, wanted=wanted, end=end, last=wanted - 1)

    def went_back(self, queue: MessageQueue, which: str, was: int, now: int, at: int) -> None:
        """The queue's first offset or its end is lower than before."""
        then = "where it was" if which == "end" else _FROM_EARLIEST
        self._lost(queue, "OFFSETS_WENT_BACK", then, queue=queue.name, which=which, was=was, now=now, at=at)

    def recreated(self, queue: MessageQueue, offset: int, was_ms: int, now_ms: int, at: int) -> None:
        """The queue was recreated and holds other messages."""
        was, now = format_time(was_ms), format_time(now_ms)
        self._lost(queue, "QUEUE_RECREATED", queue=queue.name, offset=offset, was=was, now=now, at=at)

    def replaced(self, queue: MessageQueue, found: Replaced) -> None:
        """The queue lost its newest messages and has stored others since."""
        was, now = format_time(found.was_ms), format_time(found.now_ms)
        given = {"queue": queue.name, "offset": found.offset, "was": was, "now": now, "since": found.since}
        self._lost(queue, "MESSAGES_REPLACED", f"from message {found.since}", **given)

    def queue_deleted(self, queue: MessageQueue, at: int) -> None:
        """The topic has fewer queues on a broker than it had."""
        self._lost(queue, "QUEUE_DELETED", "without it", queue=queue.name, at=at)

    def broker_unavailable(self, topic: str, broker: str, why: str) -> None:
        """A broker of the topic is missing in its route."""
        self._lost((topic, broker), "BROKER_UNAVAILABLE", "without it", topic=topic, broker=broker, why=why)

    def topic_deleted(self, topic: str, positions: Positions) -> None:
        """A topic of the query does not exist any more."""
        at = format_positions({queue: offset for queue, offset in positions.items() if queue.topic == topic})
        self._lost(topic, "TOPIC_DELETED", "without it", topic=topic, at=at)

    def not_selected(self, option: str, value: str, positions: Positions) -> None:
        """The query has read queues that its options no longer select."""
        at = format_positions(positions)
        self._lost("selection", "NOT_SELECTED", "without them", option=option, value=value, at=at)

    def _lost(self, what: object, kind: str, then: str = _FROM_EARLIEST, **values: object) -> None:
        loss = error(f"DATA_LOSS.{kind}", case="", go_on=self._remedy, **values)
        if self._fail:
            raise loss
        if (what, kind) not in self._logged:
            self._logged.add((what, kind))
            former = f" [{loss.code.former}]" if isinstance(loss.code, RenamedCode) else ""
            log.warning("[%s] %s Continuing %s (failOnDataLoss=false).%s", loss.code, loss.message, then, former)
