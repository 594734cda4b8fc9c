"""POP's operations: pop, ack, change of the invisible time.

A pop reads a queue from the group's offset, writes a check point of the messages into the revive log (revive_log.py),
moves the group's offset past them, and only then returns them. The next pop of the queue, by any member, continues
there: no message is in flight with two members at once. Acks go into the revive log too (acks.py). When the invisible
time ends, unacked messages go to the group's retry topic (revive.py). Retry topics are popped as well: before the topic
in 20 % of the pops, otherwise after it if there is room left.

Ordered pops write no check points: consumer_order_info_manager.py has the messages in flight, and acks move the
group's offset.

Crash safety: the check point is in the log before the offset moves. Offsets are on disk some seconds later, and never
before the check points that they have passed: see ``ReviveLog.position``. Later pops are recovered from the log
(revive_log.py). So a kill or a power failure may duplicate messages that were popped or acked just before, but loses
none.

Corresponds to PopMessageProcessor, AckMessageProcessor and ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.delivery.filters import get_matching
from spark_rocket.broker.delivery.in_memory import first_is_in_memory
from spark_rocket.broker.pop.acks import (
    MAX_POPPED,
    MAX_SPAN_OFFSETS,
    AckGatherer,
    bad_receipt,
    check_receipt,
    offsets_of_bits,
    too_late,
)
from spark_rocket.broker.pop.check_points import CheckPoint, Key
from spark_rocket.broker.pop.consumer_order_info_manager import ALREADY_ACKED, ILLEGAL, ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import PopRequest, PopResult, as_asked, offsets_of
from spark_rocket.broker.pop.revive import PopReviver
from spark_rocket.broker.pop.revive_log import ReviveLog, recover_offsets
from spark_rocket.broker.pop.turns import QueueTurns, is_divided, place_of
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
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
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageResult, GetMessageStatus, PutStatus

INIT_MIN = 0
"""``initMode`` for groups without an offset: start at the beginning; any other value starts at the end."""

# CPU time of one pop for an SQL92 filter; each queue has a limit of its own (delivery/filters.py).
_MAX_FILTER_S = 0.03

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
    """The POP service of one broker."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        stats: BrokerStats,
        timer_store: TimerMessageStore,
        order_info: ConsumerOrderInfoManager,
        *,
        expect: Callable[[str, int], None],
        tracing: BrokerTracing | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """``expect``: called with a system topic and the time (ms) when its messages are to be delivered."""
        self._config, self._clock = environment.config, environment.clock
        self._store = store
        self._topics, self._offsets, self._stats = topics, offsets, stats
        self._order = order_info
        self._tracing = tracing
        self._random = chance or random.Random()
        self._name = self._config.broker_name
        self.log = ReviveLog(environment, store, self._topics, expect)
        self._acks = AckGatherer(self.log, self._name)
        self.reviver = PopReviver(
            environment, store, topics, groups, offsets, stats, self.log, timer_store, self._acks.late
        )
        recover_offsets(self._store, self.log, self._offsets)
        self._expect = partial(expect, self.log.topic)
        self._turn = 0
        self._queue_turns = QueueTurns()
        self._used_keys: set[Key] = set()
        self._used_at = 0

    # --- driving ------------------------------------------------------------------------------------------------

    def deliver(self, now_ms: int, budget: float) -> int | None:
        """Write collected acks and revive due messages; return when to call again."""
        acks = self._acks.write(now_ms)
        due = self.reviver.deliver(now_ms, budget)
        if acks is None or due is None:
            return due if acks is None else acks
        return min(acks, due)

    def schedule_unread(self) -> None:
        """Schedule :meth:`deliver` if the revive log has unread messages."""
        if self.reviver.is_behind:
            self._expect(self._clock())

    def close(self) -> None:
        """Write all acks into the log; call this before the store is closed."""
        self._acks.write_all(self._clock())

    # --- pop ----------------------------------------------------------------------------------------------------

    def pop(self, pop: PopRequest) -> PopResult:
        """Pop messages and make them invisible to the group. RefusedError if no check point can be stored."""
        revive = ORDER_REVIVE_QUEUE if pop.order else self._next_revive_queue()
        result = PopResult(self._clock(), pop.invisible_time, revive, filter_until=thread_time() + _MAX_FILTER_S)
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
        """Pop from both versions of the retry topic: the one that is no longer used may still have messages."""
        first = chance % 2 == 1
        for v2 in (first, not first):
            self._pop_topic(pop, result, retry_topic(pop.topic, pop.group, v2=v2), chance)

    def _pop_topic(self, pop: PopRequest, result: PopResult, topic: str, chance: int) -> None:
        config = self._topics.get(topic)
        if config is None:
            return
        queues = config.read_queue_nums
        place = place_of(pop.group, topic, "order" if pop.order else "pop", pop.wanted.tag_codes)
        is_full = False
        for queue_id in self._queue_turns.part(place, queues, chance):
            if not is_full and self._is_full(pop, result):
                is_full = True  # the rest is only counted: the next pop reads it
                self._queue_turns.continue_at(place, queues, queue_id)
                result.is_cut |= is_divided(queues)
            self._pop_queue(pop, result, topic, queue_id)

    def _is_full(self, pop: PopRequest, result: PopResult) -> bool:
        """Whether no more messages may be read in this request."""
        return (
            result.count >= pop.max_msgs
            or result.size >= self._config.max_transfer_bytes_on_message_in_memory
            or (pop.wanted.matches is not None and thread_time() >= result.filter_until)
        )

    def _pop_queue(self, pop: PopRequest, result: PopResult, topic: str, queue_id: int) -> None:
        try:
            self._read_queue(pop, result, topic, queue_id)
        except (StoreCorruptError, RefusedError) as error:  # messages of other queues are still returned
            result.problem = error

    def _read_queue(self, pop: PopRequest, result: PopResult, topic: str, queue_id: int) -> None:
        group, store = pop.group, self._store
        offset = self.pop_offset(group, topic, queue_id, pop.init_mode, init=True)
        if pop.order and self._order.is_blocked(
            pop.attempt_id, group, topic, queue_id, pop.invisible_time, result.pop_time
        ):
            return
        if pop.order:
            self._order.check_room(group, topic, queue_id, result.pop_time)
        if self._is_full(pop, result):
            result.rest_num += max(store.get_max_offset(topic, queue_id) - offset, 0)
            return
        got = self._get(pop, result, topic, queue_id, offset)
        if got.status in _MISPLACED or (got.status in _EMPTY and offset > got.next_begin_offset):
            offset = got.next_begin_offset
            self._offsets.commit(group, topic, queue_id, offset)
            got = self._get(pop, result, topic, queue_id, offset)
        if got.count:
            self._give(pop, result, topic, queue_id, offset, got)
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
        examined = self._config.store.max_filter_message_size // ENTRY_SIZE
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
            if self._is_used(key):
                result.rest_num += got.count
                result.passed = True
                return
            point = CheckPoint(key, pop.invisible_time, [each - offset for each in offsets], self._name)
            self._used_keys.add(key)  # it may be in the log even if the store reports a failure
            self._write(point, result.revive_queue_id)
            self._offsets.commit(group, topic, queue_id, following)
        if flag == "0":
            result.records.append(got.records)
        else:
            info_of = ExtraInfo(
                offset, result.pop_time, pop.invisible_time, result.revive_queue_id, flag, self._name, queue_id
            )
            result.records.append(as_asked(got.records, pop.topic, info_of))
        result.count += got.count
        result.size += len(got.records)
        result.start_offset_infos.append(start_offset_info(flag, queue_id, offset))
        result.msg_offset_infos.append(msg_offset_info(flag, queue_id, offsets))
        self._stats.fetched(group, topic, got.count, len(got.records))
        if self._tracing is not None:
            self._tracing.delivered(group, topic, queue_id, got)

    def _is_used(self, key: Key) -> bool:
        """Whether a check point of this millisecond has the same key because the queue was reset: retry later."""
        if key[4] != self._used_at:
            self._used_keys.clear()
            self._used_at = key[4]
        return key in self._used_keys

    def _write(self, point: CheckPoint, revive_queue_id: int) -> None:
        put = self.log.put_check_point(point, revive_queue_id)
        if put.status is not PutStatus.PUT_OK:
            raise RefusedError(
                f"failed to store a check point: {put.reason or put.status.value}", ResponseCode.SYSTEM_ERROR
            )
        if point.revive_time <= self._clock() + 1_000:
            self._expect(self._clock())

    def pop_offset(self, group: str, topic: str, queue_id: int, init_mode: int, *, init: bool = False) -> int:
        """The start of a group's next pop of a queue. ``init``: commit it, and apply a pending reset."""
        if init:
            reset = self._offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._order.clear(group, topic, queue_id)
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
        if first <= 0 and first_is_in_memory(self._store, self._config, topic, queue_id):
            return 0
        return max(self._store.get_max_offset(topic, queue_id) - 1, 0)

    # --- ack ----------------------------------------------------------------------------------------------------

    def ack(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, offset: int) -> None:
        """Acknowledge a message. RefusedError if the receipt is invalid, or the ack is out of order."""
        self._check(receipt, offset)
        if receipt.is_order:
            self._ack_in_order(group, topic, queue_id, receipt, offset)
        else:
            self._ack(group, topic, queue_id, receipt, 1 << offset - receipt.start_offset)

    def ack_many(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, bits: int) -> None:
        """Acknowledge messages of one check point, with bit ``i`` for the offset ``start + i``, like :meth:`ack`."""
        self._check(receipt, receipt.start_offset)
        if bits >> MAX_SPAN_OFFSETS:
            raise bad_receipt(f"an acked message is more than {MAX_SPAN_OFFSETS} messages after its start")
        if not receipt.is_order:
            if bits:
                self._ack(group, topic, queue_id, receipt, bits)
            return
        if bits.bit_count() > MAX_POPPED:
            raise bad_receipt(f"a pop has at most {MAX_POPPED} messages")
        for offset in offsets_of_bits(receipt.start_offset, bits):
            self._ack_in_order(group, topic, queue_id, receipt, offset)

    def _ack(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, bits: int) -> None:
        key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
        revive_time = receipt.pop_time + receipt.invisible_time
        due = self._acks.add(key, revive_time, receipt.revive_queue_id, bits, self._clock())
        if due is not None:
            self._expect(due)

    def _ack_in_order(self, group: str, topic: str, queue_id: int, receipt: ExtraInfo, offset: int) -> None:
        committed = self._offsets.query(group, topic, queue_id)
        if offset < committed:
            return
        following = self._order.ack(group, topic, queue_id, offset, receipt.pop_time, self._clock())
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
        """Maximum invisible time (ms): the maximum delay of a timed message."""
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
        """Make a message invisible for ``invisible_time`` from now on; return its new receipt.

        ``suspend``: the redelivery does not count as an attempt, except in order mode.
        None: popped in order and already acked. RefusedError with 208: the time had expired, or it is acked.
        """
        self._check(receipt, offset)
        now = self._clock()
        if receipt.is_order:
            if offset < self._offsets.query(group, topic, queue_id):
                return None
            self._order.change_invisible(group, topic, queue_id, offset, receipt.pop_time, now + invisible_time)
            return receipt._replace(invisible_time=now + invisible_time - receipt.pop_time, offset=offset)
        key: Key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
        if self._acks.is_acked(key, offset):
            raise too_late("the message is already acked, or its receipt was replaced by a new one")
        if receipt.pop_time + receipt.invisible_time <= now and not self.reviver.is_open(key, offset):
            raise too_late("the invisible time of the receipt has expired")
        # The new key must differ from the old one even in the same millisecond: an ack would count for both.
        popped = max(now, receipt.pop_time + 1)
        key = (topic, group, queue_id, offset, popped)
        point = CheckPoint(key, invisible_time, [0], self._name, suspend=suspend)
        self._write(point, receipt.revive_queue_id)
        self._ack(group, topic, queue_id, receipt, 1 << offset - receipt.start_offset)
        return receipt._replace(start_offset=offset, pop_time=popped, invisible_time=invisible_time, offset=offset)
