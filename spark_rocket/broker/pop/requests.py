"""Requests and results of pops, and the records of retry topics as consumers see them.

How a POP_MESSAGE is processed (processors/pop.py):

1. The processor checks the request as Apache's does and converts it to a :class:`PopRequest`.
2. ``PopService.pop(request)`` returns a :class:`PopResult`. If it has messages, they are the response; if messages
   remain, ``HeldRequests.more(group, topic, queue_id)`` may run another held request.
3. Without messages: ``HeldRequests.hold`` (delivery/held_requests.py). HELD: the response is sent later. The request is
   run again on the loop when a matching message may have arrived, or when the timeout expires (``poll_time`` after
   ``born_time``). That repeats everything from step 2. FULL: 209. TIMED_OUT: 210.

Ordered pops (all calls from ``PopService``, with the queue's real topic) go through
:class:`~spark_rocket.broker.pop.consumer_order_info_manager.ConsumerOrderInfoManager`:

* before a pop of a queue: ``is_blocked``; a blocked queue is skipped and does not count in ``rest_num``;
* after it: ``popped`` stores the offsets and returns the queue's part of orderCountInfo. No check point is written,
  and the group's offset stays at the first popped message;
* at an ack with reviveQid 999: ``ack`` returns the offset to commit, ALREADY_ACKED or ILLEGAL (the response is 13);
  afterwards ``HeldRequests.more`` is called if the queue is free;
* at a change of the invisible time: ``change_invisible``; when the group's offset is reset: ``clear``.

A message of a retry topic is returned with the topic of the request: its record is encoded again with that topic and
with POP_CK, its receipt, which identifies the retry topic. Queue and offsets remain those of the retry topic. Apache's
broker does the same by default (``popResponseReturnActualRetryTopic``). A POP_CK from the sender is removed because it
is not a valid receipt.

Corresponds to the recoding in PopMessageProcessor.popMsgFromQueue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_rocket.broker.delivery.filters import PullFilter
from spark_rocket.errors import RefusedError, StoreCorruptError
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.record.properties import append_property, remove_property
from spark_rocket.protocol.record.record import encode_record, iter_records
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES

_POP_CK = b"POP_CK"
_MIN_HELD_MS = 50  # as Apache's: requests with less time left are not held


class PopRequest(NamedTuple):
    """A checked pop. ``queue_id`` −1: all queues. Times in ms; ``invisible_time`` starts at the pop."""

    group: str
    topic: str
    queue_id: int
    max_msgs: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    wanted: PullFilter
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True)
class PopResult:
    """The messages of a pop.

    ``rest_num``: number of remaining messages in the examined queues, which are a part of a topic with many (turns.py);
    ``filter_until``: no more messages are filtered from this thread time on; ``is_cut``: whether queues of this part
    were not read because the response was full; ``passed``: whether messages that do not match were skipped, or some
    are temporarily unavailable, so that another pop may find messages; ``problem``: a queue is damaged, or the store
    accepts no check point.
    """

    pop_time: int
    invisible_time: int
    revive_queue_id: int
    rest_num: int = 0
    count: int = 0
    size: int = 0
    filter_until: float = 0.0
    is_cut: bool = False
    passed: bool = False
    problem: StoreCorruptError | RefusedError | None = None
    records: list[bytes | memoryview] = field(default_factory=list)
    start_offset_infos: list[str] = field(default_factory=list)
    msg_offset_infos: list[str] = field(default_factory=list)
    order_count_infos: list[str] = field(default_factory=list)


def time_left(born_time: int, poll_time: int, now: int) -> int:
    """How long a request may be held, in ms: ``poll_time``, but not longer than until ``born_time + poll_time``."""
    left = min(poll_time, born_time + poll_time - now) if born_time > 0 else poll_time
    return left if left > _MIN_HELD_MS else 0


def offsets_of(records: bytes | memoryview) -> list[int]:
    """Queue offsets of consecutive records."""
    offsets = []
    position = 0
    while position < len(records):
        offsets.append(int.from_bytes(records[position + 20 : position + 28], "big"))
        position += int.from_bytes(records[position : position + 4], "big")
    return offsets


def as_asked(records: bytes | memoryview, topic: str, receipt: ExtraInfo) -> bytes:
    """Encode records again with another topic, each with its receipt."""
    name = topic.encode()
    parts = []
    for record in iter_records(records):
        own = bytes(record.properties)
        noted = append_property(
            remove_property(own, _POP_CK), _POP_CK, receipt._replace(offset=record.queue_offset).text()
        )
        fits = len(noted) <= MAX_PROPERTIES_BYTES
        # If it is too long, the consumer makes the receipt from the response's offset infos and the retry topic.
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
