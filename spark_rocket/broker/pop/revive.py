"""Redelivers popped, unacked messages to their group, in the millisecond in which their invisible time ends.

The queues of the revive log are read as they grow. A check point is cached from the time that it enters the log, one
second before its messages are due, until it is settled: all messages are acked, or the unacked ones have been put into
the group's retry topic. So memory holds only the check points of one second. Acks follow their check point in the log.
No message is revived before the timer has delivered everything that is due by then, because that may include its ack.
The broker name in a check point may be an earlier name of this broker.

Unacked messages go into the retry topic ``%RETRY%group_topic`` (``%RETRY%group+topic`` with ``enableRetryTopicV2``).
Messages popped from a retry topic go there again. The new record:

==================  ===================================================================================================
field               value
==================  ===================================================================================================
reconsume times     incremented, unless redelivery does not count as an attempt (``suspend``); 1 for a dead letter
RETRY_TOPIC         the original topic; set once
1ST_POP_TIME        time of the first pop; set once
ORIGIN_GROUP        the group
other               unchanged, except the born host (the broker) and the CRC of a record of RocketMQ 5 (removed)
==================  ===================================================================================================

After the first delivery and ``retryMaxTimes`` (16) retries the message goes to ``%DLQ%group`` instead, with
ORIGIN_MESSAGE_ID; in RocketMQ 5 the proxy does this. Messages removed by retention, and messages of deleted topics and
groups, are skipped.

After a crash: all check points up to the offset of the group CID_RMQ_SYS_REVIVE_GROUP are settled (inclusive, as in
Apache's broker); the log is read again from there. Redelivered messages are in the log as acks, so only a kill between
the two writes makes a duplicate. Corresponds to PopReviveService.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.pop.check_points import (
    REVIVE_GROUP,
    TAG_ACK,
    TAG_BATCH_ACK,
    TAG_CHECK_POINT,
    CheckPoint,
    Key,
    decode_ack,
    decode_check_point,
)
from spark_rocket.broker.pop.revive_log import ReviveLog
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ProtocolError, StoreCorruptError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX
from spark_rocket.protocol.ids import encode_offset_msg_id, normal_topic, pack_host, retry_topic
from spark_rocket.protocol.record.properties import decode_properties, find_property, join_properties
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.store.delay.redelivery import RETRY_MS, put_record
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.layout import MAX_PROPERTIES_BYTES
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus

_log = logging.getLogger(__name__)

_TIMER_POLL_MS = 10
"""Interval of checks whether the timer has caught up."""


class PopReviver:
    """Reader of one broker's revive log. ``late_acks``: returns acks of a check point that are not yet in the log."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        stats: BrokerStats,
        log: ReviveLog,
        timer: TimerMessageStore,
        late_acks: Callable[[Key], list[int]],
    ) -> None:
        self._config = environment.config
        self._host = pack_host(environment.store_host)
        self._store = store
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._stats = stats
        self._log = log
        self._timer = timer
        self._late_acks = late_acks
        self._open: dict[Key, CheckPoint] = {}
        self._unsettled: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(log.queues)]
        self._heap: list[tuple[int, int, Key]] = []  # revive time, a number, key
        self._number = 0
        self.revived = 0
        self._next = [self._first(queue_id) for queue_id in range(log.queues)]

    def _first(self, queue_id: int) -> int:
        settled = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
        return min(settled + 1, self._log.end(queue_id))

    @property
    def is_behind(self) -> bool:
        """Whether the log has unread messages."""
        log = self._log
        return any(offset < log.end(queue_id) for queue_id, offset in enumerate(self._next))

    def is_open(self, key: Key, offset: int) -> bool:
        """Whether a message will be redelivered unless it is acked now."""
        point = self._open.get(key)
        return point is not None and offset in point.open_offsets()

    # --- driving ------------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Read the log and revive due messages for about ``budget`` seconds; return when to call again, if known."""
        deadline = time.monotonic() + budget
        if not self._read_all(deadline):
            return now_ms
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, number, key = heap[0]
            point = self._open.get(key)
            if point is None or point.revive_time > now_ms:  # settled meanwhile
                heappop(heap)
                continue
            if time.monotonic() >= deadline:
                return now_ms
            if not self._timer.is_done_to(now_ms):
                due = self._timer.deliver(now_ms, budget)
                if not self._timer.is_done_to(now_ms):
                    return now_ms if due is not None and due <= now_ms else now_ms + _TIMER_POLL_MS
            if self.is_behind:  # what the timer delivered may be an ack
                if not self._read_all(deadline):
                    return now_ms
                continue
            heappop(heap)
            settled = False
            try:
                point.ack(self._late_acks(key))
                settled = point.is_done or self._revive(point)
            finally:  # an error does not block other check points; this one is retried
                if not settled:
                    heappush(heap, (now_ms + RETRY_MS, number, key))
            if not settled:
                return now_ms + RETRY_MS
            self._settle(point)
        return heap[0][0] if heap else None

    # --- reading ------------------------------------------------------------------------------------------------

    def _read_all(self, deadline: float) -> bool:
        """Read the log to its end; False if the deadline came first."""
        log = self._log
        for queue_id in range(log.queues):
            while self._next[queue_id] < log.end(queue_id):
                if time.monotonic() >= deadline:
                    return False
                following, records = log.read(queue_id, self._next[queue_id])
                if following <= self._next[queue_id]:
                    following = self._next[queue_id] + 1  # skip an unreadable message
                for record in records:
                    try:
                        self._take(record, queue_id)
                    except ProtocolError as error:
                        _log.warning("invalid message %d of %s: %s", record.queue_offset, log.topic, error)
                self._next[queue_id] = following
                self._remember(queue_id)
        return True

    def _take(self, record: RecordView, queue_id: int) -> None:
        tag = find_property(bytes(record.properties), b"TAGS")
        if tag == TAG_CHECK_POINT:
            point = decode_check_point(record.body, self._config.broker_name)
            if point.key in self._open:
                return  # the timer delivers twice after a crash
            point.revive_queue_id, point.revive_offset = queue_id, record.queue_offset
            self._open[point.key] = point
            self._unsettled[queue_id][record.queue_offset] = None
            self._number += 1
            heappush(self._heap, (point.revive_time, self._number, point.key))
            if point.is_done:
                self._settle(point)
        elif tag in (TAG_ACK, TAG_BATCH_ACK):
            ack = decode_ack(record.body, self._config.broker_name)
            found = self._open.get(ack.key)
            if found is not None:
                found.ack(ack.offsets)
                if found.is_done:
                    self._settle(found)

    def _settle(self, point: CheckPoint) -> None:
        del self._open[point.key]
        queue_id = point.revive_queue_id
        self._unsettled[queue_id].pop(point.revive_offset, None)
        self._remember(queue_id)

    def _remember(self, queue_id: int) -> None:
        """Commit the offset up to which all check points of a queue are settled."""
        unsettled = self._unsettled[queue_id]
        first = next(iter(unsettled)) if unsettled else self._next[queue_id]
        self._offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, first - 1, is_own=True)

    # --- reviving -----------------------------------------------------------------------------------------------

    def _revive(self, point: CheckPoint) -> bool:
        """Redeliver the unacked messages; False if the store is unavailable and the rest must be retried."""
        topic, group, queue_id = point.key[:3]
        settings = self._groups.find(group, bounded=False)
        if settings is None or self._topics.get(normal_topic(topic, group)) is None:
            _log.warning(
                "dropped %d messages that group %s popped from %s: the group or the topic was deleted",
                len(point.open_offsets()),
                group,
                topic,
            )
            return True
        retry = (
            topic
            if topic.startswith(RETRY_PREFIX)
            else retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)
        )
        done: list[int] = []
        try:
            for offset in point.open_offsets():
                record = self._look(topic, queue_id, offset)
                if record is not None and not self._put_back(record, retry, point, settings):
                    break
                point.ack([offset])
                done.append(offset)
        finally:
            if done:
                result = self._log.put_revived(point, done)
                if result.queue_offset == self._next[point.revive_queue_id]:
                    self._next[point.revive_queue_id] += 1  # its contents are known
        return point.is_done

    def _look(self, topic: str, queue_id: int, offset: int) -> RecordView | None:
        if offset < self._store.get_min_offset(topic, queue_id):
            return None  # removed by retention
        try:
            raw = self._store.look_message(topic, queue_id, offset)
            return view_record(raw or b"")
        except (StoreCorruptError, ProtocolError) as error:
            _log.error("failed to redeliver message %d of %s, queue %d: %s", offset, topic, queue_id, error)
            return None

    def _put_back(self, record: RecordView, retry: str, point: CheckPoint, settings: SubscriptionGroupConfig) -> bool:
        group = point.key[1]
        properties = decode_properties(record.properties)
        properties.pop("__CRC32#", None)  # the checksum of the old record, if RocketMQ 5 wrote it
        properties.setdefault("RETRY_TOPIC", str(record.topic, "utf-8", "replace"))
        if not record.reconsume_times or "1ST_POP_TIME" not in properties:
            properties["1ST_POP_TIME"] = str(point.key[4])
        properties["ORIGIN_GROUP"] = group
        # Consumers of the dead-letter topic get the same number of attempts as for other messages.
        tried = 0 if point.key[0].startswith(DLQ_PREFIX) else record.reconsume_times
        times = tried + (not point.suspend)
        if times > settings.retry_max_times and not point.suspend:
            topic = self._topics.ensure(DLQ_PREFIX + group).topic_name
            properties.setdefault("ORIGIN_MESSAGE_ID", encode_offset_msg_id(record.store_host, record.physical_offset))
        else:
            topic = self._topics.ensure(retry).topic_name
            if self._offsets.query(group, topic, 0) < 0:
                self._offsets.commit(group, topic, 0, 0, is_own=True)
        text = join_properties(properties)
        fitting = text if len(text) <= MAX_PROPERTIES_BYTES else bytes(record.properties)
        changes = {"born_host": self._host, "reconsume_times": times}
        result = put_record(self._store, topic, 0, record, fitting, **changes)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        if result.status is not PutStatus.PUT_OK:
            _log.error(
                "failed to redeliver the message at offset %d of the commit log to group %s: %s",
                record.physical_offset,
                group,
                result.reason,
            )
        elif topic.startswith(DLQ_PREFIX):
            self._stats.group(group, str(record.topic, "utf-8", "replace")).dead_letters += 1
        self._log.position = max(self._log.position, result.end_physical_offset)
        self.revived += 1
        return True
