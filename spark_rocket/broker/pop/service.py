"""POP's operations: pop, ack, change of the invisible time.

A pop reads a queue from where its group is, writes a check point of what it found into the revive log
(revive_log.py), moves the group's offset behind it, and only then gives the messages away. The next pop of the queue,
by whomever, goes on there: no message is with two members at once. Acks go into the revive log too (acks.py); when the
invisible time ends, what is not acked goes to the group's retry topic (revive.py), which is popped as well: before the
topic in 20 % of the pops, else behind it if there is room left.

Pops in order write no check points: ``order`` (order.py) knows what is out, and the group's offset stays until the
acks.

Crash safety: the check point is in the log before the offset moves. Offsets are on disk some seconds later, and never
before the check points that they passed: see ``ReviveLog.position``. What was popped meanwhile is found in the log
again (revive_log.py). So a kill or a power cut may bring messages twice that were popped or acked just before, and
loses none.

Thread-safety: used on the event loop only.
Corresponds to PopMessageProcessor, AckMessageProcessor and ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_rocket.broker.delivery.filters import get_matching
from spark_rocket.broker.pop.acks import MAX_SPAN, AckGatherer, bad_receipt, check_receipt, too_late
from spark_rocket.broker.pop.check_points import CheckPoint, Key
from spark_rocket.broker.pop.order import ALREADY_ACKED, ILLEGAL, ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import PopRequest, PopResult, as_asked, offsets_of
from spark_rocket.broker.pop.revive import PopReviver
from spark_rocket.broker.pop.revive_log import ReviveLog, recover_offsets
from spark_rocket.broker.state.shared import SharedState
from spark_rocket.errors import RefusedError, StoreCorruptError
from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.ids import (
    ORDER_REVIVE_QUEUE,
    ExtraInfo,
    msg_offset_info,
    retry_flag,
    retry_topic,
    start_offset_info,
)
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.layout import ENTRY_SIZE
from spark_rocket.store.results import GetMessageResult, GetMessageStatus, PutStatus

INIT_MIN = 0
"""``initMode`` of a group that has no offset: from the beginning; any other is from the end."""

_MISPLACED = (
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_FOUND_NULL,
)
_EMPTY = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
_PASSED = (GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING)


if TYPE_CHECKING:
    from spark_rocket.broker.tracing import BrokerTracing


class PopService:
    """POP of one broker.

    ``on_due``: called with the time when :meth:`deliver` has something to do; ``first_is_in_memory``: whether the first
    message of a topic's queue is.
    """

    def __init__(
        self,
        shared: SharedState,
        timer: TimerMessageStore,
        order: ConsumerOrderInfoManager,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._config = shared.config
        self._store = shared.store
        self._topics = shared.topics
        self._offsets = shared.offsets
        self._order = order
        self._stats = shared.stats
        self._clock = shared.clock
        self.first_is_in_memory: Callable[[str, int], bool] = lambda topic, queue_id: True
        self._random = chance or random.Random()
        self._name = shared.config.broker_name
        self.log = ReviveLog(shared)
        self._acks = AckGatherer(self.log, self._name)
        self.reviver = PopReviver(shared, self.log, timer, self._acks.late)
        recover_offsets(self._store, self.log, self._offsets)
        self.on_due: Callable[[int], None] = lambda due: None
        self.tracing: BrokerTracing | None = None
        self._turn = 0
        self._named: set[Key] = set()
        self._named_at = 0

    # --- driving ------------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Write acks that have gathered, revive what is due; when to call again."""
        acks = self._acks.write(now_ms)
        due = self.reviver.deliver(now_ms, budget)
        if acks is None or due is None:
            return due if acks is None else acks
        return min(acks, due)

    def look(self) -> None:
        """Something may have come into the revive log."""
        if self.reviver.is_behind:
            self.on_due(self._clock())

    def close(self) -> None:
        """Before the store is closed: everything that was acked is in the log."""
        self._acks.write_all(self._clock())

    # --- pop ----------------------------------------------------------------------------------------------------

    def pop(self, pop: PopRequest) -> PopResult:
        """Take messages, made invisible to the group's others for a while. RefusedError if the store takes nothing."""
        revive = ORDER_REVIVE_QUEUE if pop.order else self._next_revive_queue()
        result = PopResult(self._clock(), pop.invisible_time, revive)
        chance = self._random.randrange(100)
        retry_first = chance < self._config.pop_from_retry_probability and not pop.order
        if retry_first:
            self._pop_retry(pop, result, chance)
        if pop.queue_id < 0:
            self._pop_topic(pop, result, pop.topic, chance)
        else:
            self._pop_queue(pop, result, pop.topic, pop.queue_id)
        if not retry_first and not pop.order:
            self._pop_retry(pop, result, chance)
        if result.problem is not None and not result.count:
            raise result.problem
        return result

    def _next_revive_queue(self) -> int:
        self._turn += 1
        return self._turn % self.log.queues

    def _pop_retry(self, pop: PopRequest, result: PopResult, chance: int) -> None:
        """The retry topic; in both of its forms, since messages may still be in the one that is not used any more."""
        first = chance % 2 == 1
        for v2 in (first, not first):
            self._pop_topic(pop, result, retry_topic(pop.topic, pop.group, v2=v2), chance)

    def _pop_topic(self, pop: PopRequest, result: PopResult, topic: str, chance: int) -> None:
        config = self._topics.get(topic)
        if config is None:
            if not topic.startswith(RETRY_PREFIX) or not self._store.get_max_offset(topic, 0):
                return
            config = self._topics.ensure(topic)  # a kill came before it was in topics.json
        queues = config.read_queue_nums
        for at in range(queues):
            self._pop_queue(pop, result, topic, (at + chance) % queues)

    def _pop_queue(self, pop: PopRequest, result: PopResult, topic: str, queue_id: int) -> None:
        group, store = pop.group, self._store
        offset = self.pop_offset(group, topic, queue_id, pop.init_mode, init=True)
        if pop.order and self._order.is_blocked(
            pop.attempt_id, topic, group, queue_id, pop.invisible_time, result.pop_time
        ):
            return
        most = self._config.max_transfer_bytes_on_message_in_memory
        if result.count >= pop.max_msgs or result.size >= most:
            result.rest_num += max(store.get_max_offset(topic, queue_id) - offset, 0)
            return
        try:
            got = self._get(pop, result, topic, queue_id, offset)
            if got.status in _MISPLACED or (got.status in _EMPTY and offset > got.next_begin_offset):
                offset = got.next_begin_offset
                self._offsets.commit(group, topic, queue_id, offset)
                got = self._get(pop, result, topic, queue_id, offset)
            if got.count:
                self._give(pop, result, topic, queue_id, offset, got)
        except (StoreCorruptError, RefusedError) as error:  # what the other queues gave is with this member now
            result.problem = error
            return
        if got.status in _PASSED and got.next_begin_offset > offset:
            self._offsets.commit(group, topic, queue_id, got.next_begin_offset)
            result.passed = True
        result.rest_num += max(got.max_offset - got.next_begin_offset, 0)

    def _get(self, pop: PopRequest, result: PopResult, topic: str, queue_id: int, offset: int) -> GetMessageResult:
        most = pop.max_msgs - result.count
        room = self._config.max_transfer_bytes_on_message_in_memory - result.size
        tag_codes, matches = pop.wanted
        if matches is None:
            return self._store.get_message(topic, queue_id, offset, most, room, tag_codes)
        examined = self._config.max_filter_message_size // ENTRY_SIZE
        return get_matching(self._store, topic, queue_id, offset, most, room, matches, examined)

    def _give(
        self, pop: PopRequest, result: PopResult, topic: str, queue_id: int, offset: int, got: GetMessageResult
    ) -> None:
        group = pop.group
        flag = retry_flag(topic, group)
        following = got.next_begin_offset
        offsets = range(offset, following) if following - offset == got.count else offsets_of(got.records)
        if pop.order:
            info = self._order.popped(pop, flag, topic, queue_id, result.pop_time, offsets)
            if info:
                result.order_count_infos.append(info)
            self._offsets.commit(group, topic, queue_id, offset)
        else:
            key = (topic, group, queue_id, offset, result.pop_time)
            if self._is_taken(key):
                result.rest_num += got.count
                result.passed = True
                return
            point = CheckPoint(key, pop.invisible_time, [each - offset for each in offsets], self._name)
            self._named.add(key)  # it may be in the log, whatever the store says
            self._write(point, result.revive_queue_id)
            self._offsets.commit(group, topic, queue_id, following)
        if flag == "0":
            result.records.append(got.records)
        else:
            info_of = ExtraInfo(
                offset,
                result.pop_time,
                pop.invisible_time,
                result.revive_queue_id,
                flag,
                self._name,
                queue_id,
            )
            result.records.append(as_asked(got.records, pop.topic, info_of))
        result.count += got.count
        result.size += len(got.records)
        result.start_offset_infos.append(start_offset_info(flag, queue_id, offset))
        result.msg_offset_infos.append(msg_offset_info(flag, queue_id, offsets))
        self._stats.fetched(group, topic, got.count, len(got.records))
        if self.tracing is not None:
            self.tracing.delivered(group, topic, queue_id, got)

    def _is_taken(self, key: Key) -> bool:
        """Whether a check point of this millisecond has this name: its queue was reset. A moment later all is well."""
        if key[4] != self._named_at:
            self._named.clear()
            self._named_at = key[4]
        return key in self._named

    def _write(self, point: CheckPoint, revive_queue_id: int) -> None:
        put = self.log.put_check_point(point, revive_queue_id)
        if put.status is not PutStatus.PUT_OK:
            raise RefusedError(
                f"no check point can be stored: {put.reason or put.status.value}", ResponseCode.SYSTEM_ERROR
            )
        if point.revive_time <= self._clock() + 1_000:
            self.on_due(self._clock())

    def pop_offset(self, group: str, topic: str, queue_id: int, init_mode: int, *, init: bool = False) -> int:
        """Where a group's next pop of a queue begins. ``init``: write that down, and take a pending reset."""
        if init:
            reset = self._offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._order.clear(topic, group, queue_id)
                self._offsets.commit(group, topic, queue_id, reset)
                return reset
        offset = self._offsets.query(group, topic, queue_id)
        if offset >= 0:
            return offset
        offset = self._first_offset(topic, queue_id, init_mode)
        if init:
            self._offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        first = self._store.get_min_offset(topic, queue_id)
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            return first
        if first <= 0 and self.first_is_in_memory(topic, queue_id):
            return 0
        return max(self._store.get_max_offset(topic, queue_id) - 1, 0)

    # --- ack ----------------------------------------------------------------------------------------------------

    def ack(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, offset: int) -> None:
        """A message is consumed. RefusedError for a receipt that cannot be this broker's, and out of order."""
        self._check(receipt, offset)
        if receipt.is_order:
            self._ack_in_order(group, topic, queue_id, receipt, offset)
        else:
            self._ack(group, topic, queue_id, receipt, 1 << offset - receipt.start_offset)

    def ack_many(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, bits: int) -> None:
        """Messages of one check point are consumed: bit ``i`` for the offset ``start + i``. As :meth:`ack`."""
        self._check(receipt, receipt.start_offset)
        if bits >> MAX_SPAN:
            raise bad_receipt(f"it acks what is more than {MAX_SPAN} messages behind its start")
        if not receipt.is_order:
            if bits:
                self._ack(group, topic, queue_id, receipt, bits)
            return
        for at in range(bits.bit_length()):
            if bits >> at & 1:
                self._ack_in_order(group, topic, queue_id, receipt, receipt.start_offset + at)

    def _ack(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, bits: int) -> None:
        key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
        revive_time = receipt.pop_time + receipt.invisible_time
        due = self._acks.add(key, revive_time, receipt.revive_queue_id, bits, self._clock())
        if due is not None:
            self.on_due(due)

    def _ack_in_order(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, offset: int) -> None:
        committed = self._offsets.query(group, topic, queue_id)
        if offset < committed:
            return
        following = self._order.ack(topic, group, queue_id, offset, receipt.pop_time, self._clock())
        if following == ILLEGAL:
            raise RefusedError(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}, next:{ILLEGAL}",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        if following != ALREADY_ACKED and not self._offsets.has_reset(group, topic, queue_id):
            self._offsets.commit(group, topic, queue_id, following)

    def _check(self, receipt: ExtraInfo, offset: int) -> None:
        check_receipt(receipt, offset, self._name, self.log.queues, self._clock(), self.longest_invisible)

    @property
    def longest_invisible(self) -> int:
        """Milliseconds that a message may be invisible for: what a timed message may wait."""
        return self._config.timer_max_delay_sec * 1000

    # --- change of the invisible time ---------------------------------------------------------------------------

    def change_invisible(
        self,
        group: str,
        topic: str,
        queue_id: int,
        receipt: ExtraInfo,
        offset: int,
        invisible_time: int,
        *,
        suspend: bool = False,
    ) -> ExtraInfo | None:
        """A message stays invisible, from now on for ``invisible_time``; its new receipt.

        ``suspend``: that it comes back then counts as no attempt, but in order, where every attempt counts.
        None: popped in order and acked already. RefusedError with 208: its time was over, or it is acked.
        """
        self._check(receipt, offset)
        now = self._clock()
        if receipt.is_order:
            if offset < self._offsets.query(group, topic, queue_id):
                return None
            self._order.change_invisible(topic, group, queue_id, offset, receipt.pop_time, now + invisible_time)
            return receipt._replace(invisible_time=now + invisible_time - receipt.pop_time, offset=offset)
        key: Key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
        if self._acks.is_acked(key, offset):
            raise too_late("the message is acked already, or its receipt was exchanged for another")
        if receipt.pop_time + receipt.invisible_time <= now and not self.reviver.is_open(key, offset):
            raise too_late("the invisible time of the receipt is over")
        # Not the old one's name, though this is the same millisecond: its ack would be the new one's too.
        popped = max(now, receipt.pop_time + 1)
        key = (topic, group, queue_id, offset, popped)
        point = CheckPoint(key, invisible_time, [0], self._name, suspend=suspend)
        self._write(point, receipt.revive_queue_id)
        self._ack(group, topic, queue_id, receipt, 1 << offset - receipt.start_offset)
        return receipt._replace(start_offset=offset, pop_time=popped, invisible_time=invisible_time, offset=offset)
