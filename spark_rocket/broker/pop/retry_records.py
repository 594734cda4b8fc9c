"""Messages of a retry topic as their consumer knows them: under the topic that it asked for.

The record is written anew with that topic and with POP_CK, its receipt, which says that it is of the retry topic; all
else is as it was, queue and offsets too, which are the retry topic's. As Apache's broker does it unless told otherwise
(``popResponseReturnActualRetryTopic``); but a POP_CK that somebody sent along does not stay, since nothing can be acked
with it.

Thread-safety: pure functions. Corresponds to the recoding in PopMessageProcessor.popMsgFromQueue.
"""

from __future__ import annotations

from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.record.properties import append_property, remove_property
from spark_rocket.protocol.record.record import encode_record, iter_records
from spark_rocket.store.layout import MAX_PROPERTIES

_POP_CK = b"POP_CK"


def as_asked(records: bytes | memoryview, topic: str, receipt: ExtraInfo) -> bytes:
    """A run of records under another topic, each with its receipt."""
    name = topic.encode()
    parts = []
    for record in iter_records(records):
        own = bytes(record.properties)
        noted = append_property(
            remove_property(own, _POP_CK), _POP_CK, receipt._replace(offset=record.queue_offset).text()
        )
        fits = (
            len(noted) <= MAX_PROPERTIES
        )  # else its consumer makes the receipt of the answer's infos and its real topic
        parts.append(
            encode_record(
                name if fits else bytes(record.topic),
                record.queue_id,
                record.body,
                noted if fits else own,
                queue_offset=record.queue_offset,
                physical_offset=record.physical_offset,
                born_timestamp=record.born_timestamp,
                born_host=record.born_host,
                store_timestamp=record.store_timestamp,
                store_host=record.store_host,
                flag=record.flag,
                sys_flag=record.sys_flag,
                reconsume_times=record.reconsume_times,
                prepared_transaction_offset=record.prepared_transaction_offset,
            )
        )
    return b"".join(parts)
