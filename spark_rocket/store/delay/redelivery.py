"""Putting a stored message again, under the topic and queue that it was sent to.

A message that waits for its time lies in a topic of the broker's own, with the sender's in its properties REAL_TOPIC
and REAL_QID. When it is due it is stored a second time, there. Body, flag, sysFlag, born time, born host and reconsume
times stay; the tags code is made anew from the properties; of the properties all stay, as Apache's broker leaves them
(DELAY, REAL_TOPIC and REAL_QID among them), but for a CRC of the old record. The timer adds its own notes to them
(TIMER_DEQUEUE_MS and the like).

Thread-safety: for the store's one thread. After a crash: whoever delivers remembers how far it got only when what it
delivered is on disk, so a message may be put twice and is never left out.
Corresponds to ScheduleMessageService.messageTimeUp and TimerMessageStore.convertMessage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from spark_rocket.errors import ProtocolError
from spark_rocket.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol.record.layout import AT, LONG
from spark_rocket.protocol.record.properties import append_property, find_property, remove_property
from spark_rocket.protocol.record.record import Buffer, RecordView, view_record
from spark_rocket.store.layout import MAX_PROPERTIES
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""After a refused put (the disk is full) it is tried again this much later."""

REAL_TOPIC = b"REAL_TOPIC"
REAL_QUEUE_ID = b"REAL_QID"
_CRC32 = b"__CRC32#"
_KEPT = ("flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times")
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class PutRefusedError(Exception):
    """The store takes no message now: what was to be delivered waits."""


def redeliver(store: MessageStore, record: Buffer | RecordView, notes: Mapping[str, str] | None = None) -> PutResult:
    """Put a record where it was meant to go.

    SERVICE_NOT_AVAILABLE means that the store takes nothing now and that it is to be tried again. Any other refusal
    (the record is damaged, or does not say where it belongs) will never change and has been warned of here: go on with
    the next. ``notes`` are set among the properties, unless they then had no room.
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
    """Store a record's message once more; it is warned of if that is refused for good."""
    result = put_record(store, topic, queue_id, record, properties)
    if result.status not in (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE):
        where = f"The delayed message at offset {record.physical_offset} of the commit log"
        _log.warning("%s is not delivered to %s, queue %d: %s", where, topic, queue_id, result.reason)
    return result


def put_record(
    store: MessageStore, topic: str, queue_id: int, record: RecordView, properties: bytes, **changes: Any
) -> PutResult:
    """Store a record's message once more, with other arguments of ``put_message`` for some of its fields."""
    fields = {name: getattr(record, name) for name in _KEPT} | changes
    return store.put_message(topic, queue_id, record.body, properties, **fields)


def _destination(properties: bytes) -> tuple[str, int]:
    """Topic and queue id of the sender; ValueError when they cannot be told."""
    topic, queue_id = find_property(properties, REAL_TOPIC), find_property(properties, REAL_QUEUE_ID)
    if not topic or not queue_id:
        raise ValueError("it has no property REAL_TOPIC or REAL_QID.")
    if not queue_id.isdigit() or len(queue_id) > 10:
        raise ValueError(f"its property REAL_QID is {queue_id!r}, not the number of a queue.")
    name = topic.decode()
    if name in _WAITING_TOPICS:
        raise ValueError(f"its property REAL_TOPIC is {name}, where messages wait.")
    return name, int(queue_id)


def with_notes(properties: bytes, notes: Mapping[str, str]) -> bytes:
    """Properties with these set, unless they then had no room."""
    noted = properties
    for name, value in notes.items():
        noted = append_property(remove_property(noted, name.encode()), name, value)
    return noted if len(noted) <= MAX_PROPERTIES else properties
