"""Messages with a delay level: from ``SCHEDULE_TOPIC_XXXX`` to where they were sent, when their time has come.

Queue *n* − 1 of the topic holds level *n*; since all in it wait equally long, they are due in the order of the queue.
An entry's tags code is the time of delivery. Per level there is one number, the offset of the first message that is
not delivered yet; ``config/delayOffset.json`` keeps them by level: ``{"dataVersion": …, "offsetTable": {1:10,2:0}}``.

Nothing here waits or looks at a clock: whoever drives it calls :meth:`ScheduleMessageService.deliver` and is told when
to call again.

Thread-safety: for the store's one thread. After a crash: an offset is saved only when what was delivered up to it is
on disk (:meth:`mark`, :meth:`confirm`), so messages delivered shortly before may be delivered once more, and none is
left out. Corresponds to org.apache.rocketmq.broker.schedule.ScheduleMessageService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spark_rocket.errors import StoreError
from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.protocol.wire.bodies import DataVersion
from spark_rocket.store.delay.redelivery import RETRY_MS, PutRefusedError, redeliver
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_log = logging.getLogger(__name__)

_READ_AHEAD = 64


class OffsetMark(NamedTuple):
    """The offsets of a moment, and up to where the log must be on disk before they may be."""

    offsets: dict[int, int]
    physical_offset: int


class ScheduleMessageService:
    """Delivers the delay levels of one store."""

    def __init__(
        self,
        store: MessageStore,
        delays: Sequence[int],
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._delays = delays
        self._timer = timer
        self._offsets: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self._loaded = False
        self._version = DataVersion()
        self._delivered_to = 0
        self._next = 0
        self._unreadable: dict[int, str] = {}  # levels, and what was said of them

    # --- delivering ---------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Deliver what is due, for about ``budget`` seconds and at least one message.

        Returns when to call again: ``now_ms`` if there is more to do at once, None if nothing waits.
        """
        deadline = self._timer() + budget
        nearest: int | None = None
        count = len(self._delays)
        for turn in range(count):
            index = (self._next + turn) % count
            try:
                due = self._deliver_level(index + 1, now_ms, deadline)
            except PutRefusedError:
                return now_ms + RETRY_MS
            except StoreError as error:
                if self._unreadable.get(index + 1) != str(error):
                    _log.error("Delay level %d cannot be read: %s", index + 1, error)
                self._unreadable[index + 1] = str(error)
                due = now_ms + RETRY_MS
            if due is not None and due <= now_ms:  # out of time; the other levels come first next time
                self._next = (index + 1) % count
                return now_ms
            if due is not None and (nearest is None or due < nearest):
                nearest = due
        return nearest

    def _deliver_level(self, level: int, now_ms: int, deadline: float) -> int | None:
        store, queue_id = self._store, level - 1
        end = store.get_max_offset(SCHEDULE_TOPIC, queue_id)
        offset = self._offsets.get(level, 0)
        if offset >= end:
            return None
        offset = self._not_before_the_first(level, offset)
        # A later time than any message of this level can have (the clock was set back, the level made shorter) is now.
        latest = max(now_ms, store.store_timestamp) + self._delays[queue_id]
        while offset < end:
            entries = store.get_entries(SCHEDULE_TOPIC, queue_id, offset, _READ_AHEAD)
            if not entries:
                raise StoreError(f"Queue {queue_id} of {SCHEDULE_TOPIC} has no entry {offset}.")
            for physical_offset, _, code in entries:
                if now_ms < code <= latest:
                    return code
                self._deliver_one(level, offset, physical_offset)
                offset += 1
                self._offsets[level] = offset
                if self._timer() >= deadline:
                    return now_ms
        return None

    def _deliver_one(self, level: int, offset: int, physical_offset: int) -> None:
        # An entry may be damaged: it must not have another message delivered, nor a whole one left out.
        record = self._store.look_message(SCHEDULE_TOPIC, level - 1, offset)
        if record is None:
            _log.warning(
                "Message %d of delay level %d is not delivered: its record at offset %d of the commit log is damaged.",
                offset,
                level,
                physical_offset,
            )
            return
        result = redeliver(self._store, record)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            raise PutRefusedError
        self._delivered_to = max(self._delivered_to, result.end_physical_offset)

    def _not_before_the_first(self, level: int, offset: int) -> int:
        first = self._store.get_min_offset(SCHEDULE_TOPIC, level - 1)
        if offset >= first:
            return offset
        if level in self._offsets:
            _log.warning(
                "Messages %d to %d of delay level %d were removed from the store before they could be delivered.",
                offset,
                first - 1,
                level,
            )
        self._offsets[level] = first
        return first

    # --- offsets ------------------------------------------------------------------------------------------------

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what ``delayOffset.json`` says; ValueError, TypeError or AttributeError when it does not fit."""
        offsets = {int(level): int(offset) for level, offset in stored.get("offsetTable", {}).items()}
        self._offsets, self._saved, self._loaded = offsets, dict(offsets), True
        version = stored.get("dataVersion")
        if version:
            self._version = DataVersion.from_value(version)

    def correct_offsets(self) -> None:
        """Once, after loading: bring the offsets inside the queues, and warn of what that means."""
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            level = queue_id + 1
            first = self._store.get_min_offset(SCHEDULE_TOPIC, queue_id)
            end = self._store.get_max_offset(SCHEDULE_TOPIC, queue_id)
            offset = self._offsets.get(level, first)
            if not self._loaded and end > first:
                _log.warning(
                    "delayOffset.json is missing: the %d messages of delay level %d are delivered, those that had been "
                    "a second time.",
                    end - first,
                    level,
                )
            if offset > end:
                _log.warning("Delay level %d ends at %d, not %d: it was cut by recovery.", level, end, offset)
                self._offsets[level] = offset = end
            if level > len(self._delays) and offset < end:
                _log.warning(
                    "%d messages of delay level %d are not delivered: messageDelayLevel has only %d levels.",
                    end - max(offset, first),
                    level,
                    len(self._delays),
                )

    def runtime_info(self) -> dict[str, str]:
        """For request 28, under Apache's names: how far each level is, and its end."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.get_max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in sorted(self._offsets.items())
        }

    def mark(self) -> OffsetMark | None:
        """The present offsets for :meth:`confirm`; None if they are saved already."""
        if self._offsets == self._saved:
            return None
        return OffsetMark(dict(self._offsets), self._delivered_to)

    def confirm(self, mark: OffsetMark, now_ms: int) -> None:
        """The log is on disk up to the mark: its offsets may be saved."""
        self._saved = mark.offsets
        self._version = self._version.next(now_ms)

    def snapshot(self) -> dict[str, Any]:
        """What ``delayOffset.json`` and code 45 say: the offsets that have been confirmed."""
        return {"dataVersion": self._version.to_value(), "offsetTable": dict(sorted(self._saved.items()))}
