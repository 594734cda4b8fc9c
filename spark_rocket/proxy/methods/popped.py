"""The messages in a broker's response to POP_MESSAGE, with their receipt handles.

Corresponds to org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt.processPopResponse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.model import DLQ_PREFIX
from spark_rocket.protocol.ids import FLAG_NORMAL, real_topic
from spark_rocket.protocol.record.record import RecordView, iter_records
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.messages.message_out import attempt_of, properties_of


class PoppedMessage(NamedTuple):
    """A popped message."""

    record: RecordView
    properties: dict[str, str]
    attempt: int
    handle: str


def popped_of(
    response: RemotingCommand, broker: str, topic: str, group: str, given: Callable[[str, str, int, int], None]
) -> list[PoppedMessage]:
    """Return the messages of a pop's response. Its offset infos are in the order of its records.

    ``given`` is called with broker, stored topic, queue and last offset.
    """
    fields = response.ext_fields
    starts: dict[str, str] = {}
    for part in fields["startOffsetInfo"].split(";"):
        queue, _, start = part.rpartition(" ")
        starts[queue] = start
    counts = _order_counts(fields.get("orderCountInfo"))
    times = f"{fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']}"
    is_dead_letter = topic.startswith(DLQ_PREFIX)  # its previous attempts were another group's
    records = iter_records(response.body)
    popped: list[PoppedMessage] = []
    for part in fields["msgOffsetInfo"].split(";"):
        queue, _, offsets = part.rpartition(" ")
        flag, _, queue_id = queue.partition(" ")
        head = f"{starts[queue]} {times} {flag} {broker} {queue_id}"
        for offset in offsets.split(","):
            record = next(records, None)
            if record is None:
                raise ProtocolError(f"broker {broker} sent fewer messages than offsets")
            tried = 0 if is_dead_letter and flag == FLAG_NORMAL else record.reconsume_times
            if counts:
                tried = counts.get(f"{flag} qo{queue_id}%{offset}") or counts.get(queue) or tried
            handle = f"{head} {offset} {record.physical_offset}"
            popped.append(PoppedMessage(record, properties_of(record), attempt_of(tried), handle))
        given(broker, real_topic(topic, group, flag), int(queue_id), int(offset))
    return popped


def _order_counts(info: str | None) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in (info or "").split(";"):
        name, _, count = part.rpartition(" ")
        if name:
            counts[name] = int(count)
    return counts
