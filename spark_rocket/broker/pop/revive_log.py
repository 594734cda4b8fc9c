"""The revive log: writes and reads check points and acks, and recovers groups' offsets from them after a kill.

Check points and acks are timed messages (``DelayRules``): they are stored in ``rmq_sys_wheel_timer`` and move into
their queue of the revive log when they are due. Acks are due when the check point's messages become visible, the check
point one second earlier, or at once if that time has passed. So acks follow their check point, even if both were rolled
over in the timer. A late ack also goes through the timer because its check point may still be there. Apache's broker
does the same: each broker can continue with a store of the other.

After a crash: a ``put`` that reported success survives a kill. A power failure loses unflushed records, so a group's
offset is written to disk only after its check points. :func:`recover_offsets` moves groups past the messages that they
popped shortly before a kill, because ``consumerOffset.json`` is some seconds old then:

* A check point that starts exactly at a group's offset proves that the group has popped its messages; the unacked ones
  become visible by it. So the offset moves past its last message, and on to the next check point.
* Only check points of pops since the file was written count (its ``savedAt``, which RocketMQ does not have and
  ignores): older ones may be from before a reset. A check point that is older than its messages does not count either:
  they belong to a recreated topic of the same name.
* Every message that is skipped is in a check point, so none is lost. If the chain is broken, messages are delivered
  twice.

Thread-safety: for the event loop; recovery before the broker serves. Corresponds to PopMessageProcessor.buildCkMsg and
the writing half of AckMessageProcessor; RocketMQ has no such recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.pop.check_points import (
    ACK_INTERVAL,
    TAG_ACK,
    TAG_BATCH_ACK,
    TAG_CHECK_POINT,
    CheckPoint,
    Key,
    decode_check_point,
    encode_ack,
    encode_check_point,
)
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ProtocolError, StoreCorruptError
from spark_rocket.model import REVIVE_PREFIX, TIMER_TOPIC
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageStatus, PutResult

_log = logging.getLogger(__name__)
_READ_RECORDS = 64
_READ_BYTES = 1 << 18


class ReviveLog:
    """The revive log of one broker."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        store: MessageStore,
        topics: TopicConfigManager,
        expect: Callable[[str, int], None],
    ) -> None:
        """``expect``: called with the timer's topic and the time (ms) when a record will enter the log."""
        config = environment.config
        self.topic = REVIVE_PREFIX + config.broker_cluster_name
        revive_topic = topics.get(self.topic)
        self.queues = 8 if revive_topic is None else revive_topic.write_queue_nums
        self._expect = expect
        self.position = store.max_physical_offset
        """Flush the commit log up to here before groups' offsets are saved; after a kill, up to its end."""
        self._store = store
        self._clock = environment.clock
        self._host = pack_host(environment.store_host)
        self._precision = config.timer_precision
        self._codes = {tag: java_hash(tag.decode()) for tag in (TAG_CHECK_POINT, TAG_ACK, TAG_BATCH_ACK)}
        self._place = b"\x02REAL_TOPIC\x01%s\x02REAL_QID\x01" % self.topic.encode()

    def put_check_point(self, point: CheckPoint, queue_id: int) -> PutResult:
        return self._put(TAG_CHECK_POINT, encode_check_point(point), point.revive_time - ACK_INTERVAL, queue_id)

    def put_ack(self, key: Key, broker_name: str, offsets: list[int], revive_time: int, queue_id: int) -> PutResult:
        """Write the acks of a check point whose messages become visible at ``revive_time``."""
        tag, body = encode_ack(key, broker_name, offsets)
        return self._put(tag, body, revive_time, queue_id)

    def put_revived(self, point: CheckPoint, offsets: list[int]) -> PutResult:
        """Write that messages of a check point in the revive log were redelivered: they count as acked."""
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
        out = max((deliver - 1) // self._precision * self._precision, 0)  # negative for a forged receipt
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
        self._expect(TIMER_TOPIC, out)
        return result

    def end(self, queue_id: int) -> int:
        """The offset after the last message of a queue."""
        return self._store.get_max_offset(self.topic, queue_id)

    def read(self, queue_id: int, offset: int, topic: str = "") -> tuple[int, Iterator[RecordView]]:
        """Read some messages from an offset on; return the next offset and the messages without damaged ones."""
        topic = topic or self.topic
        try:
            found = self._store.get_message(topic, queue_id, offset, _READ_RECORDS, _READ_BYTES)
        except StoreCorruptError as error:
            _log.error("skipped message %d of %s, queue %d: %s", offset, topic, queue_id, error)
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


def recover_offsets(store: MessageStore, log: ReviveLog, offsets: ConsumerOffsetManager) -> int:
    """Move offsets past the messages popped since they were saved; return the number of changed offsets."""
    since = offsets.saved_at
    if store.recovery is None or store.recovery.clean or not since:
        return 0
    spans: dict[tuple[str, str, int], set[tuple[int, int, int]]] = {}
    for topic, queue_id in ((TIMER_TOPIC, 0), *((log.topic, queue_id) for queue_id in range(log.queues))):
        for point in _check_points(store, log, topic, queue_id, since):
            name, group, queue, start, popped = point.key
            spans.setdefault((group, name, queue), set()).add((start, start + max(point.diffs) + 1, popped))
    moved = 0
    for place, found in spans.items():
        before = offsets.query(*place)
        offset = before if before >= 0 else min(found)[0]
        for start, end, popped in sorted(found, key=lambda span: (span[0], -span[1])):
            if start == offset and _was_there(store, place[1], place[2], end - 1, popped):
                offset = end
        if offset > before:
            offsets.commit(*place, offset, is_own=True)
            moved += 1
    if moved:
        _log.info("recovered groups' offsets of pops before the broker was killed: %d queues", moved)
    return moved


def _was_there(store: MessageStore, topic: str, queue_id: int, offset: int, popped: int) -> bool:
    """Whether a message was in the queue at the time ``popped``."""
    try:
        return view_record(store.look_message(topic, queue_id, offset) or b"").store_timestamp <= popped
    except (StoreCorruptError, ProtocolError):
        return False


def _check_points(store: MessageStore, log: ReviveLog, topic: str, queue_id: int, since: int) -> list[CheckPoint]:
    """The check points of pops since a time."""
    found = []
    offset = store.get_offset_by_time(topic, queue_id, since)
    while offset < store.get_max_offset(topic, queue_id):
        following, records = log.read(queue_id, offset, topic)
        for record in records:
            if find_property(bytes(record.properties), b"TAGS") != TAG_CHECK_POINT:
                continue
            try:
                point = decode_check_point(record.body, "")
            except ProtocolError:
                continue
            if point.key[4] >= since and point.diffs:
                found.append(point)
        offset = max(following, offset + 1)
    return found
