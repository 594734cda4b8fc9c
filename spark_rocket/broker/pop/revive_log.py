"""Writes check points and acks, and reads the revive log.

Both are timed messages (delayed.py): they wait in ``rmq_sys_wheel_timer`` and come into their queue of the revive log
at their time, acks when the check point's messages come back, the check point itself a second before, or at once when
that is over already. As Apache's broker has it: either of the two goes on with a store of the other. So acks come
behind their check point, also if both were rolled; one that is late goes by way of the timer all the same, because its
check point may still be there.

Thread-safety: for the event loop. After a crash: what ``put`` said is stored survives a kill; a power cut takes what is
not flushed, and whoever writes a group's offset to the disk waits for that.
Corresponds to PopMessageProcessor.buildCkMsg and the writing half of AckMessageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from spark_rocket.broker.pop.check_points import (
    ACK_INTERVAL,
    REVIVE_PREFIX,
    TAG_ACK,
    TAG_BATCH_ACK,
    TAG_CHECK_POINT,
    CheckPoint,
    Key,
    encode_ack,
    encode_check_point,
)
from spark_rocket.errors import ProtocolError, StoreCorruptError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageStatus, PutResult

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 64
_READ_BYTES = 1 << 18


class ReviveLog:
    """The revive log of one broker. ``on_timed``: called with the time when something comes into it (ms)."""

    def __init__(
        self,
        store: MessageStore,
        cluster: str,
        host: tuple[str, int],
        clock: Callable[[], int],
        queues: int,
        precision_ms: int,
    ) -> None:
        self.topic = REVIVE_PREFIX + cluster
        self.queues = queues
        self.on_timed: Callable[[int], None] = lambda due: None
        self.position = store.max_physical_offset
        """No offset may be on disk before the log is that was written up to here; after a kill that is all of it."""
        self._store = store
        self._clock = clock
        self._host = pack_host(host)
        self._precision = precision_ms
        self._codes = {tag: java_hash(tag.decode()) for tag in (TAG_CHECK_POINT, TAG_ACK, TAG_BATCH_ACK)}
        self._place = b"\x02REAL_TOPIC\x01%s\x02REAL_QID\x01" % self.topic.encode()

    def put_check_point(self, point: CheckPoint, queue_id: int) -> PutResult:
        """Write a check point."""
        return self._put(TAG_CHECK_POINT, encode_check_point(point), point.revive_time - ACK_INTERVAL, queue_id)

    def put_ack(self, key: Key, broker_name: str, offsets: list[int], revive_time: int, queue_id: int) -> PutResult:
        """Write the acks of a check point whose messages come back at ``revive_time``."""
        tag, body = encode_ack(key, broker_name, offsets)
        return self._put(tag, body, revive_time, queue_id)

    def put_revived(self, point: CheckPoint, offsets: list[int]) -> PutResult:
        """Write that messages of a check point that is in the revive log were given back: they count as acked."""
        tag, body = encode_ack(point.key, point.broker_name, offsets)
        return self._put(tag, body, point.revive_time, point.revive_queue_id, at_once=True)

    def _put(self, tag: bytes, body: bytes, deliver: int, queue_id: int, *, at_once: bool = False) -> PutResult:
        now = self._clock()
        properties = b"TAGS\x01%s\x02TIMER_DELIVER_MS\x01%d" % (tag, deliver)
        if at_once or (deliver <= now and tag == TAG_CHECK_POINT):
            result = self._store.put_message(
                self.topic,
                queue_id,
                body,
                properties,
                tags_code=self._codes[tag],
                born_timestamp=now,
                born_host=self._host,
            )
            self.position = max(self.position, result.end_physical_offset)
            return result
        out = max((deliver - 1) // self._precision * self._precision, 0)  # below 0 if a forger says so
        result = self._store.put_message(
            TIMER_TOPIC,
            0,
            body,
            b"%s\x02TIMER_OUT_MS\x01%d%s%d" % (properties, out, self._place, queue_id),
            tags_code=self._codes[tag],
            born_timestamp=now,
            born_host=self._host,
        )
        self.position = max(self.position, result.end_physical_offset)
        self.on_timed(out)
        return result

    def end(self, queue_id: int) -> int:
        """One past the last message of a queue."""
        return self._store.get_max_offset(self.topic, queue_id)

    def read(self, queue_id: int, offset: int, topic: str = "") -> tuple[int, Iterator[RecordView]]:
        """Some messages from an offset on, and the offset behind them; damaged ones are left out."""
        topic = topic or self.topic
        try:
            found = self._store.get_message(topic, queue_id, offset, _READ_AT_ONCE, _READ_BYTES)
        except StoreCorruptError as error:
            _log.error("Message %d of %s, queue %d, is passed over: %s", offset, topic, queue_id, error)
            return offset + 1, iter(())
        if found.status is not GetMessageStatus.FOUND:
            return found.next_begin_offset, iter(())
        return found.next_begin_offset, _records(found.records)


def _records(run: bytes | memoryview) -> Iterator[RecordView]:
    position = 0
    while position < len(run):
        size = int.from_bytes(run[position : position + 4], "big")
        try:
            yield view_record(run, position)
        except ProtocolError:
            if size <= 0:
                return
        position += size
