"""In-flight messages of each queue, for groups that pop in order.

A queue from which a group has popped is blocked for the group's other members until every message of that pop is acked
or visible again. The same attempt (``attemptId``) may pop the same messages again if its response was lost. Retry
topics are not used: the queue is popped again from the first unacked message on. An ack commits the offset of the first
unacked message.

The state of one queue, :class:`OrderInfo`, in ``config/consumerOrderInfo.json`` as Apache's broker writes it,
``{"table":{"topic@group":{queueId:{…}}}}``:

=======  ==============================================================================================================
field    meaning
=======  ==============================================================================================================
popTime  time of the pop; acks of earlier pops are ignored
i        invisible time, ms
o        queue offsets: the first one, then the distances of the others from it
ot       offset → time when it is visible again, for messages whose invisible time was changed
oc       offset → number of previous deliveries, if not 0
l        time of the pop; unused entries are removed after 24 h
cm       bit i: the i-th message is acked
a        attemptId
=======  ==============================================================================================================

Queues in flight are bounded (``ORDERED_POPS``): when there are too many, those whose messages are acked or visible
again are forgotten, with the numbers of their deliveries. If there are none, further queues are not popped.

After a crash: the file is at most 200 ms old, or 1 s for each MB of its size, so the same queues are blocked. Offsets
are some seconds old; they are moved past the messages acked in later pops. Offsets decide what is delivered, so no
message is lost. Acks of pops that are missing in the file are dropped: Apache's broker commits them, which skips
messages popped earlier. Acks of messages lost in a power failure are dropped too, because new messages get the same
offsets. Messages below the group's offset count as acked. Corresponds to
org.apache.rocketmq.broker.offset.{ConsumerOrderInfoManager, ConsumerOrderInfoLockManager}.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state.versioned_table import CachedTexts
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import message_order_count, queue_order_count
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import ORDERED_POPS
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.wall_clock_timer import WallClockTimer

ALREADY_ACKED = -2
ILLEGAL = -1
_SEPARATOR = "@"
_MIN_ENDS = 64  # of the heap, before replaced ends are removed
_RETENTION_MS = 24 * 3600 * 1000
_CLEAN_INTERVAL_MS = 60_000
_MAKE_ROOM_INTERVAL_MS = 1_000  # it examines all entries


@dataclass(slots=True)
class OrderInfo(Body):
    """The messages of the last pop of a queue."""

    pop_time: int = 0
    invisible_time: int = field(default=0, metadata={"wire": "i"})
    offset_list: list[int] = field(default_factory=list, metadata={"wire": "o"})
    offset_next_visible_time: dict[int, int] | None = field(default=None, metadata={"wire": "ot"})
    offset_consumed_count: dict[int, int] | None = field(default=None, metadata={"wire": "oc"})
    last_consume_timestamp: int = field(default=0, metadata={"wire": "l"})
    commit_offset_bit: int = field(default=0, metadata={"wire": "cm"})
    attempt_id: str | None = field(default=None, metadata={"wire": "a"})

    def offsets(self) -> list[int]:
        return [at if index == 0 else self.offset_list[0] + at for index, at in enumerate(self.offset_list)]

    def open_offsets(self, committed: int) -> list[int]:
        bits = self.commit_offset_bit
        if bits == (1 << len(self.offset_list)) - 1:
            return []
        return [offset for index, offset in enumerate(self.offsets()) if not bits >> index & 1 and offset >= committed]

    def visible_at(self, offsets: Sequence[int]) -> int:
        """The time when all of these are visible again; 0 if there are none."""
        usual = self.pop_time + self.invisible_time
        changed = self.offset_next_visible_time
        if not changed or not offsets:
            return usual if offsets else 0
        return max([changed.get(offset, usual) for offset in offsets])

    def free_at(self, committed: int) -> int:
        """The time when all unacked messages are visible again; 0 if all are acked."""
        return self.visible_at(self.open_offsets(committed))


class ConsumerOrderInfoManager:
    """The table of in-flight messages. ``on_free`` is called with group, topic and queue when a block ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        offsets: ConsumerOffsetManager,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        on_free: Callable[[str, str, int], None],
    ) -> None:
        self._clock = clock
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._on_free = on_free
        self.table: dict[str, dict[int, OrderInfo]] = {}
        self._count = 0  # entries of the table
        self._texts = CachedTexts()
        self._clean_at = 0
        self._room_at = 0
        #: Heap of the ends of blocks; each queue has at most one valid entry, not later than the end of its block.
        self._ends: list[tuple[int, str, str, int]] = []
        self._expected: dict[tuple[str, str, int], int] = {}
        self._timer = WallClockTimer(loop, clock, self.free)
        self.dirty = False

    # --- popping and acking -------------------------------------------------------------------------------------

    def is_blocked(
        self, attempt_id: str | None, group: str, topic: str, queue_id: int, invisible_time: int, now: int
    ) -> bool:
        """Whether the queue has unacked invisible messages. It is never blocked for the same attempt."""
        info = self._find(group, topic, queue_id)
        if info is None or (attempt_id is not None and info.attempt_id == attempt_id):
            return False
        if info.invisible_time <= 0:  # written by a broker before 5.0
            info.invisible_time = invisible_time
            self._touch(topic + _SEPARATOR + group)
        return now < info.free_at(self._offsets.query(group, topic, queue_id))

    def check_room(self, group: str, topic: str, queue_id: int, now: int) -> None:
        """RefusedError if the queue would be one too many in flight."""
        most = STATE_LIMITS[ORDERED_POPS].total
        if self._count < most or self._find(group, topic, queue_id) is not None:
            return
        if not 0 <= now - self._room_at < _MAKE_ROOM_INTERVAL_MS:
            self._room_at = now
            for key, queues in list(self.table.items()):
                name, _, other = key.partition(_SEPARATOR)
                for each, info in list(queues.items()):
                    if info.free_at(self._offsets.query(other, name, each)) <= now:
                        self._drop(key, each)
        if self._count >= most:
            raise RefusedError(
                f"too many {ORDERED_POPS}: at most {most:,} queues in all",
                ResponseCode.SYSTEM_BUSY,
                remedy="Ack popped messages, or pop from fewer queues in order.",
                retriable=True,
            )

    def popped(
        self, pop: PopRequest, flag: str, topic: str, queue_id: int, pop_time: int, offsets: Sequence[int]
    ) -> str:
        """Store the messages in flight; return the queue's part of orderCountInfo."""
        group = pop.group
        first = offsets[0]
        info = OrderInfo(
            pop_time=pop_time,
            invisible_time=pop.invisible_time,
            offset_list=[first, *(offset - first for offset in offsets[1:])],
            last_consume_timestamp=self._clock(),
            attempt_id=pop.attempt_id,
        )
        queues = self.table.setdefault(topic + _SEPARATOR + group, {})
        before = queues.get(queue_id)
        if before is not None:
            counts = before.offset_consumed_count or {}
            if pop.attempt_id is None or before.attempt_id != pop.attempt_id:
                again = set(before.offsets())
                counts = {offset: counts.get(offset, 0) + 1 for offset in offsets if offset in again}
            info.offset_consumed_count = counts
        queues[queue_id] = info
        self._count += before is None
        self._changed(group, topic, queue_id, info)
        counts = info.offset_consumed_count or {}
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        parts = [message_order_count(flag, queue_id, offset, count) for offset, count in counts.items()]
        return ";".join([*parts, queue_order_count(flag, queue_id, least)])

    def ack(self, group: str, topic: str, queue_id: int, offset: int, pop_time: int, now: int) -> int:
        """Mark a message as acked; return the offset to commit, ALREADY_ACKED (nothing to do) or ILLEGAL."""
        committed = self._offsets.query(group, topic, queue_id)
        if offset < committed:
            return ALREADY_ACKED
        info = self._find(group, topic, queue_id)
        if info is None or pop_time != info.pop_time:
            return ALREADY_ACKED
        offsets = info.offsets()
        if offset not in offsets:
            return ILLEGAL
        info.commit_offset_bit |= 1 << offsets.index(offset)
        left = info.open_offsets(committed)
        free_at = info.visible_at(left)
        self._touch(topic + _SEPARATOR + group)
        self._expect(group, topic, queue_id, free_at)
        if free_at <= now:
            self._on_free(group, topic, queue_id)
        return left[0] if left else offsets[-1] + 1

    def change_invisible(
        self, group: str, topic: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> None:
        """Keep the message invisible until ``visible_at``."""
        info = self._find(group, topic, queue_id)
        if info is None or info.pop_time != pop_time or offset not in info.offsets():
            return
        if info.offset_next_visible_time is None:
            info.offset_next_visible_time = {}
        info.offset_next_visible_time[offset] = visible_at
        self._changed(group, topic, queue_id, info)

    def clear(self, group: str, topic: str, queue_id: int) -> None:
        if self._find(group, topic, queue_id) is not None:
            self._drop(topic + _SEPARATOR + group, queue_id)

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic, so that a recreated one starts without state."""
        self._remove([key for key in self.table if key.partition(_SEPARATOR)[0] == topic])

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self.table if key.partition(_SEPARATOR)[2] == group])

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            for queue_id in list(self.table[key]):
                self._drop(key, queue_id)

    def _drop(self, key: str, queue_id: int) -> None:
        """Remove the entry of a queue, with the end of its block."""
        queues = self.table[key]
        del queues[queue_id]
        if not queues:
            del self.table[key]
        self._count -= 1
        topic, _, group = key.partition(_SEPARATOR)
        self._expected.pop((topic, group, queue_id), None)
        self._touch(key)

    def _touch(self, key: str) -> None:
        """Mark a topic's state of a group as changed since the file was written."""
        self.dirty = True
        self._texts.pop(key, None)

    def _find(self, group: str, topic: str, queue_id: int) -> OrderInfo | None:
        queues = self.table.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    # --- when blocks end ----------------------------------------------------------------------------------------

    def _changed(self, group: str, topic: str, queue_id: int, info: OrderInfo) -> None:
        self._touch(topic + _SEPARATOR + group)
        self._expect(group, topic, queue_id, info.free_at(self._offsets.query(group, topic, queue_id)))

    def _expect(self, group: str, topic: str, queue_id: int, free_at: int) -> None:
        key = (topic, group, queue_id)
        expected = self._expected.get(key)
        if free_at and (expected is None or free_at < expected):
            self._expected[key] = free_at
            heapq.heappush(self._ends, (free_at, *key))
            if len(self._ends) > 2 * len(self._expected) + _MIN_ENDS:
                self._ends = [(at, *place) for place, at in self._expected.items()]
                heapq.heapify(self._ends)
            self._timer.expect(free_at)

    def free(self, now: int) -> int | None:
        """Call ``on_free`` for queues whose messages are visible again; return when to call again."""
        while self._ends and self._ends[0][0] <= now:
            at, topic, group, queue_id = heapq.heappop(self._ends)
            if self._expected.get((topic, group, queue_id)) != at:
                continue  # replaced by an earlier end
            del self._expected[topic, group, queue_id]
            info = self._find(group, topic, queue_id)
            if info is None:
                continue
            free_at = info.free_at(self._offsets.query(group, topic, queue_id))
            if free_at > now:
                self._expect(group, topic, queue_id, free_at)
            elif free_at:  # 0: the last ack has called on_free
                self._on_free(group, topic, queue_id)
        return self._ends[0][0] if self._ends else None

    # --- the file -----------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """``consumerOrderInfo.json``, without outdated entries. It is written up to five times a second."""
        self._clean()
        if not self.table:
            return dumps_fastjson({"table": {}}, pretty=True)
        parts = self._texts.joined(
            self.table, lambda queues: {queue_id: info.to_value() for queue_id, info in queues.items()}
        )
        return f'{{\n\t"table":{{{parts}\n\t}}\n}}'.encode()

    def _clean(self) -> None:
        now = self._clock()
        if 0 <= now - self._clean_at < _CLEAN_INTERVAL_MS:
            return
        self._clean_at = now
        oldest = now - _RETENTION_MS
        for key in list(self.table):
            name, _, group = key.partition(_SEPARATOR)
            topic, queues = self._topics.get(name), self.table[key]
            read_queues = 0 if topic is None or self._groups.get(group) is None else topic.read_queue_nums
            for queue_id, info in list(queues.items()):
                if queue_id >= read_queues or info.last_consume_timestamp < oldest:
                    self._drop(key, queue_id)

    def load(self, stored: dict[str, Any]) -> None:
        """Load the contents of the file; ValueError, TypeError or ProtocolError if they are invalid."""
        table = {
            key: {int(queue_id): OrderInfo.from_value(info) for queue_id, info in queues.items()}
            for key, queues in (stored.get("table") or {}).items()
        }
        self.table = {key: queues for key, queues in table.items() if queues}
        self._count = sum(map(len, self.table.values()))
        self._texts.clear()

    def recover(self, max_offset: Callable[[str, int], int]) -> None:
        """After a kill, move groups' offsets past the messages acked in pops since the offsets were saved."""
        since = self._offsets.saved_at
        for key, queues in list(self.table.items()):
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, info in list(queues.items()):
                offsets = info.offsets()
                if not offsets or offsets[-1] >= max_offset(topic, queue_id):
                    self._drop(key, queue_id)
                elif since and info.last_consume_timestamp > since:  # since is 0 for a missing file or Apache's
                    left = info.open_offsets(0)
                    following = left[0] if left else offsets[-1] + 1
                    if following > self._offsets.query(group, topic, queue_id):
                        self._offsets.commit(group, topic, queue_id, following, is_own=True)

    def start(self) -> None:
        """Schedule the ends of the loaded blocks."""
        for key, queues in self.table.items():
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, info in queues.items():
                self._expect(group, topic, queue_id, info.free_at(self._offsets.query(group, topic, queue_id)))

    def close(self) -> None:
        self._timer.close()
