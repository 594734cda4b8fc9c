"""Delivery of messages with a delay level, from ``SCHEDULE_TOPIC_XXXX`` to their original topics.

Queue *n* − 1 of the topic has the messages of level *n*. They all have the same delay, so they are due in queue order.
An entry's tags code is the delivery time. Each level has one offset: its first undelivered message.
``config/delayOffset.json`` stores the offsets by level: ``{"dataVersion": …, "offsetTable": {1:10,2:0}}``.

Nothing here waits or reads the system clock. The caller calls :meth:`ScheduleMessageService.deliver`, which returns the
time of the next call.

After a crash: an offset is saved only when the messages delivered before it are on disk (:meth:`mark`,
:meth:`confirm`), so none is lost. Messages delivered after the last save are found in the log and not delivered again
(delivered.py). Corresponds to org.apache.rocketmq.broker.schedule.ScheduleMessageService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from spark_rocket.errors import StoreError
from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.store.delay.delivered import DeliveredMessages
from spark_rocket.store.delay.redelivery import RETRY_MS, PutRefusedError, redeliver
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_log = logging.getLogger(__name__)

_READ_AHEAD = 64


class OffsetMark(NamedTuple):
    """A snapshot of the offsets, and the log offset that must be flushed before they are saved."""

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
        self._unreadable: dict[int, str] = {}  # last logged error, by level
        self._delivered = DeliveredMessages(store, "messages with a delay level")

    # --- delivering ---------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Deliver due messages for about ``budget`` seconds, at least one message.

        Returns the time of the next call: ``now_ms`` if more messages are due, None if none are pending.
        """
        deadline = self._timer() + budget
        nearest: int | None = None
        failed = False
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
                due, failed = now_ms + RETRY_MS, True
            if due is not None and due <= now_ms:  # budget used up; the next call starts with the other levels
                self._next = (index + 1) % count
                return now_ms
            if due is not None and (nearest is None or due < nearest):
                nearest = due
        if not failed and (nearest is None or nearest > self._delivered.until):
            self._delivered.clear()
        return nearest

    def _deliver_level(self, level: int, now_ms: int, deadline: float) -> int | None:
        store, queue_id = self._store, level - 1
        end = store.get_max_offset(SCHEDULE_TOPIC, queue_id)
        offset = self._offsets.get(level, 0)
        if offset >= end:
            return None
        offset = self._not_before_the_first(level, offset)
        # A time later than possible for this level (the clock was set back, the level shortened) counts as due.
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
        # A damaged entry must neither deliver another message nor skip an intact one.
        record = self._store.look_message(SCHEDULE_TOPIC, level - 1, offset)
        if record is None:
            _log.warning(
                "Message %d of delay level %d is skipped: its record at offset %d of the commit log is damaged.",
                offset,
                level,
                physical_offset,
            )
            return
        if self._delivered and self._delivered.take(view_record(record)):
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
        """Load the content of ``delayOffset.json``. ValueError, TypeError or AttributeError if it is invalid."""
        offsets = {int(level): int(offset) for level, offset in stored.get("offsetTable", {}).items()}
        self._offsets, self._saved, self._loaded = offsets, dict(offsets), True
        version = stored.get("dataVersion")
        if version:
            self._version = DataVersion.from_value(version)

    def correct_offsets(self) -> None:
        """Correct the offsets to the queues' bounds, and find what was delivered after they were saved.

        Logs the consequences. Call once, after loading.
        """
        pending: list[int] = []
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            level = queue_id + 1
            first = self._store.get_min_offset(SCHEDULE_TOPIC, queue_id)
            end = self._store.get_max_offset(SCHEDULE_TOPIC, queue_id)
            offset = self._offsets.get(level, first)
            if not self._loaded and end > first:
                _log.warning(
                    "delayOffset.json is missing: delivering all %d messages of delay level %d, except those that the "
                    "end of the log shows as delivered.",
                    end - first,
                    level,
                )
            if offset > end:
                _log.warning("Delay level %d ends at %d, not %d: truncated by recovery.", level, end, offset)
                self._offsets[level] = offset = end
            if level > len(self._delays) and offset < end:
                _log.warning(
                    "%d messages of delay level %d are not delivered: messageDelayLevel has only %d levels.",
                    end - max(offset, first),
                    level,
                    len(self._delays),
                )
            elif offset < end:
                with suppress(StoreError):  # the level is not delivered, and the error is logged then
                    entries = self._store.get_entries(SCHEDULE_TOPIC, queue_id, max(offset, first), 1)
                    pending += [code for _, _, code in entries]
        if pending:
            self._delivered.find(min(pending))
            self._delivered_to = self._store.max_physical_offset

    def runtime_info(self) -> dict[str, str]:
        """Return each level's offset and end for request 28, under Apache's names."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.get_max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in sorted(self._offsets.items())
        }

    def mark(self) -> OffsetMark | None:
        """Return the current offsets for :meth:`confirm`; None if they are already saved."""
        if self._offsets == self._saved:
            return None
        return OffsetMark(dict(self._offsets), self._delivered_to)

    def confirm(self, mark: OffsetMark, now_ms: int) -> None:
        """Make a mark's offsets the ones to save; the log is flushed up to the mark."""
        self._saved = mark.offsets
        self._version = self._version.next(now_ms)

    def snapshot(self) -> dict[str, Any]:
        """Return the confirmed offsets, for ``delayOffset.json`` and request 45."""
        return {"dataVersion": self._version.to_value(), "offsetTable": dict(sorted(self._saved.items()))}
