"""Redelivery: store a delayed message again, in the topic and queue that it was sent to.

A delayed message is first stored in a system topic, with the original topic and queue in its properties REAL_TOPIC and
REAL_QID. When it is due it is stored a second time, in the original queue. Body, flag, sysFlag, born time, born host
and reconsume times stay the same. The tags code is computed again from the properties. All properties stay, as with
Apache's broker (DELAY, REAL_TOPIC and REAL_QID included), except a CRC of the old record. The timer adds properties of
its own (TIMER_DEQUEUE_MS and others).

After a crash: progress is saved only when the delivered messages are on disk, so a message may be delivered twice but
is never lost. Corresponds to ScheduleMessageService.messageTimeUp and TimerMessageStore.convertMessage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from spark_rocket.errors import ProtocolError
from spark_rocket.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.layout import AT, LONG
from spark_rocket.protocol.record.properties import append_property, find_property, remove_property
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""Delay before the retry of a rejected put (the disk is full)."""

REAL_TOPIC = b"REAL_TOPIC"
REAL_QUEUE_ID = b"REAL_QID"
_CRC32 = b"__CRC32#"
_COPIED_FIELDS = ("flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times")
_PENDING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class PutRefusedError(Exception):
    """The store accepts no messages at present: the delivery must be retried."""


def redeliver(store: MessageStore, record: Buffer | RecordView, notes: Mapping[str, str] | None = None) -> PutResult:
    """Store a delayed record in its original topic and queue.

    SERVICE_NOT_AVAILABLE: the store accepts no messages at present; retry later. Any other failure (the record is
    damaged, or has no valid destination) is permanent and has been logged here: continue with the next message.
    ``notes``: properties to set, if they fit.
    """
    place = (
        record.physical_offset if isinstance(record, RecordView) else LONG.unpack_from(record, AT["physical_offset"])[0]
    )
    where = f"The delayed message at offset {place} of the commit log"
    try:
        if not isinstance(record, RecordView):
            record = view_record(record)
        properties = remove_property(bytes(record.properties), _CRC32)
        topic, queue_id = _destination(properties)
    except (ProtocolError, ValueError) as error:
        _log.warning("%s is not delivered: %s", where, error)
        return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
    return put_again(store, topic, queue_id, record, with_notes(properties, notes) if notes else properties)


def put_again(store: MessageStore, topic: str, queue_id: int, record: RecordView, properties: bytes) -> PutResult:
    """Store a record's message again; log a warning if it is rejected permanently."""
    result = put_record(store, topic, queue_id, record, properties)
    if result.status not in (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE):
        where = f"The delayed message at offset {record.physical_offset} of the commit log"
        _log.warning("%s is not delivered to %s, queue %d: %s", where, topic, queue_id, result.reason)
    return result


def put_record(
    store: MessageStore, topic: str, queue_id: int, record: RecordView, properties: bytes, **changes: Any
) -> PutResult:
    """Store a record's message again; ``changes`` replace some arguments of ``put_message``."""
    fields = {name: getattr(record, name) for name in _COPIED_FIELDS} | changes
    return store.put_message(topic, queue_id, record.body, properties, **fields)


def _destination(properties: bytes) -> tuple[str, int]:
    """Return the original topic and queue id; ValueError if missing or invalid."""
    topic, queue_id = find_property(properties, REAL_TOPIC), find_property(properties, REAL_QUEUE_ID)
    if not topic or not queue_id:
        raise ValueError("it has no property REAL_TOPIC or REAL_QID.")
    if not queue_id.isdigit() or len(queue_id) > 10:
        raise ValueError(f"its property REAL_QID is {queue_id!r}, not a queue number.")
    name = topic.decode()
    if name in _PENDING_TOPICS:
        raise ValueError(f"its property REAL_TOPIC is {name}, a system topic for pending messages.")
    return name, int(queue_id)


def with_notes(properties: bytes, notes: Mapping[str, str]) -> bytes:
    """Return the properties with these set, or unchanged if they do not fit."""
    noted = properties
    for name, value in notes.items():
        noted = append_property(remove_property(noted, name.encode()), name, value)
    return noted if len(noted) <= MAX_PROPERTIES_BYTES else properties
