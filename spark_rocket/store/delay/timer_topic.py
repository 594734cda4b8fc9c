"""The topic ``rmq_sys_wheel_timer``: its messages and their delivery times, and rolling, which stores them again.

Corresponds to parts of TimerMessageStore.enqueue and doPut.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_rocket.errors import ProtocolError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import RecordView, iter_records, view_record
from spark_rocket.store.delay.delivered import rolls_of
from spark_rocket.store.delay.redelivery import put_again, with_notes
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageStatus, PutResult

_log = logging.getLogger(__name__)
_TOPIC = TIMER_TOPIC.encode()
_READ_AHEAD = 64
_READ_BYTES = 1 << 18
_COARSEST_MS = 1_000  # maximum timerPrecisionMs, also in the past
_LATEST = 1 << 62
_DELAYS = ((b"TIMER_DELAY_SEC", 1000), (b"TIMER_DELAY_MS", 1))


def number_of(properties: bytes, name: bytes) -> int | None:
    """Return a property as a number; None if it is missing or invalid."""
    value = find_property(properties, name)
    if value is None or len(value) > 19 or not value.isdigit():
        return None
    return min(int(value), _LATEST)


def due_time(properties: bytes, store_timestamp: int, out: int, precision_ms: int) -> int:
    """Return the delivery time in milliseconds: the requested time, if it is in the second that follows ``out``.

    A delay counts from the store time. A rolled message has a later store time than the original, so its requested
    time is not used: it is due at the end of its slot.
    """
    requested = number_of(properties, b"TIMER_DELIVER_MS")
    for name, factor in _DELAYS:
        delay = number_of(properties, name)
        if delay is not None:
            requested = store_timestamp + delay * factor
            break
    return requested if requested is not None and out < requested <= out + _COARSEST_MS else out + precision_ms


class TimerTopic:
    """Queue 0 of the topic."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def first(self) -> int:
        return self._store.get_min_offset(TIMER_TOPIC, 0)

    @property
    def first_store_time(self) -> int:
        """Store time of the first message; 0 if it cannot be read."""
        return max(self._store.get_store_time(TIMER_TOPIC, 0, self.first), 0)

    @property
    def end(self) -> int:
        return self._store.get_max_offset(TIMER_TOPIC, 0)

    def read(self, offset: int) -> tuple[list[RecordView], int, int]:
        """Read some messages from an offset on.

        Returns the messages, the next offset, and the number of messages already removed by retention. A damaged
        message is skipped with a warning.
        """
        for count in (_READ_AHEAD, 1):
            found = self._store.get_message(TIMER_TOPIC, 0, offset, count, _READ_BYTES)
            if found.status is not GetMessageStatus.FOUND:
                is_gone = found.status is GetMessageStatus.OFFSET_TOO_SMALL
                return [], found.next_begin_offset, found.next_begin_offset - offset if is_gone else 0
            try:
                return list(iter_records(found.records)), found.next_begin_offset, 0
            except ProtocolError as error:
                reason = error
        _log.warning("Message %d of %s is not delivered: %s", offset, TIMER_TOPIC, reason)
        return [], offset + 1, 0

    def message(self, offset: int, size: int, *, check_crc: bool = False) -> RecordView | None:
        """Return the message of this size at an offset of the commit log; None if it is removed or damaged."""
        record = self._store.look_message_by_offset(offset)
        if record is None or len(record) != size:
            return None
        try:
            view = view_record(record, check_crc=check_crc)
        except ProtocolError:
            return None
        return view if view.topic == _TOPIC else None

    def number_of(self, offset: int, size: int) -> int:
        """Return the queue offset of that message; −1 if it does not exist."""
        view = self.message(offset, size)
        return view.queue_offset if view is not None and view.queue_id == 0 else -1

    def roll(self, view: RecordView, notes: Mapping[str, str]) -> PutResult:
        """Store a message in the topic again, with these properties."""
        properties = bytes(view.properties)
        notes = {**notes, "TIMER_ROLL_TIMES": str(rolls_of(properties) + 1)}
        return put_again(self._store, TIMER_TOPIC, 0, view, with_notes(properties, notes))
