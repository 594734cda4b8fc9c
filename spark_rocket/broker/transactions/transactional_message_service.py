"""Transactions: commits, rollbacks, and checks of undecided half messages with their producers.

A transactional message is pending in the half topic. END_TRANSACTION (37) decides it: a commit stores the message at
its destination; then, as for a rollback, an op message marks the half message as settled. Undecided messages are
checked in rounds at least ``transactionCheckInterval`` apart. Each message older than ``transactionTimeOut`` (or its
own CHECK_IMMUNITY_TIME_IN_SECONDS) is copied to the end of the half topic with an incremented counter, and a check
request (39) about the copy is sent to a member of its producer group. After ``transactionCheckMax`` checks it goes to
TRANS_CHECK_MAX_TIME_TOPIC. A round ends at the first message that is too young, or at the copies that it has made.

Each queue has two numbers, stored as offsets of the group CID_RMQ_SYS_TRANS. Half messages below the first are settled
(decided, copied or abandoned); op messages below the second are about such half messages. The later op messages tell
which other half messages are decided.

Unlike in Apache's broker, a copy has the offset of its original (half_messages.py). So a decision about any copy
settles the pending one, and a kill during a round does not leave two of them pending. The age of a message that has not
been copied yet is measured from its store time, by the broker's own clock.

Thread-safety: used on the event loop only; it neither reads a clock nor sleeps (:meth:`check` gets the time).
After a crash: the two numbers are saved only when all messages that they depend on are on disk (:meth:`mark`,
:meth:`confirm`). A kill between a commit's message and its op message leaves the transaction undecided: the producer is
checked again, and the message may be duplicated. No message is lost, and rolled-back messages are never delivered.
Corresponds to TransactionalMessageServiceImpl and TransactionalMessageCheckService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.delivery.delay_rules import TIMER_PROPERTIES, PendingPlace
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.transactions.half_messages import (
    CHECK_TIMES,
    FIRST_OFFSET,
    OP_PROPERTIES,
    HalfMessage,
    decided_offsets,
    given_up_half,
    op_body,
)
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.redelivery import RETRY_MS, put_record
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

_MAX_RECENT = 10_000
_MAX_STEPS = 50_000  # of one call
_HOUR_MS = 3_600_000
_TRANSACTION_ID = "__transactionId__"
_IGNORED_PROPERTIES = ("DELAY", *TIMER_PROPERTIES, CHECK_TIMES.decode(), FIRST_OFFSET.decode())


class TransactionMark(NamedTuple):
    """A snapshot of the progress, and the end of the log that must be on disk before it may be saved."""

    progress: dict[int, tuple[int, int]]
    physical_offset: int


@dataclass(slots=True)
class _HalfQueue:
    """State of one queue of the half topic."""

    queue_id: int
    settled: int = 0
    """Every half message below this offset is settled."""
    decided: dict[int, int] = field(default_factory=dict)
    """Settled half messages from ``settled`` on, and the offsets of their op messages."""
    copies: dict[int, int] = field(default_factory=dict)
    """The last copies of undecided messages, by the offset of the original."""
    recent: dict[int, None] = field(default_factory=dict)
    """Original offsets of recently decided messages: a second decision about them is refused."""

    def advance(self) -> None:
        """Move ``settled`` past decided messages, at most ``_MAX_STEPS``; the next call continues."""
        for _ in range(_MAX_STEPS):
            if self.settled not in self.decided:
                return
            del self.decided[self.settled]
            self.settled += 1

    def pass_over(self, offset: int) -> None:
        """Mark all half messages below ``offset`` as settled."""
        if offset > self.settled + 1:
            self.decided = {half: op for half, op in self.decided.items() if half >= offset}
        self.settled = offset
        self.advance()

    def done_ops(self, end: int) -> int:
        """The offset below which all op messages are about settled half messages. ``end``: of the op queue."""
        return min(self.decided.values(), default=end)

    def remember(self, first: int) -> None:
        self.recent[first] = None
        if len(self.recent) > _MAX_RECENT:
            del self.recent[next(iter(self.recent))]


class TransactionalMessageService:
    """The transactions of one broker."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        clients: ClientManager,
        may_ask: Callable[[Channel, str], bool] | None = None,
    ) -> None:
        """``may_ask``: whether a connection may see an undecided message to a topic; None: all may.

        A client can register as a producer of any group, also of one whose messages it has not sent.
        """
        config = self._config = environment.config
        self._host = environment.store_host
        self._store = store
        self._topics, self._offsets, self._clients = topics, offsets, clients
        self._may_ask = may_ask
        self._queues: dict[int, _HalfQueue] = {}
        self._round: Iterator[None] | None = None
        self._next_round = environment.clock()
        self._due: int | None = None
        self._turn = 0
        self._often = RateLimited(_log, 60.0)
        for queue_id in {0, *store.queues(HALF_TOPIC)}:
            self._load(queue_id)
        self._saved = self._progress()
        if any(queue.settled < store.get_max_offset(HALF_TOPIC, queue.queue_id) for queue in self._queues.values()):
            self._next_round += config.transaction_check_interval  # time for producers to connect

    # --- at start -----------------------------------------------------------------------------------------------

    def _load(self, queue_id: int) -> None:
        queue = self._queues[queue_id] = _HalfQueue(queue_id)
        store = self._store
        queue.settled = self._saved_offset(HALF_TOPIC, queue_id)
        end = store.get_max_offset(HALF_TOPIC, queue_id)
        ops = store.get_max_offset(OP_HALF_TOPIC, queue_id)
        for op_offset in range(self._saved_offset(OP_HALF_TOPIC, queue_id), ops):
            for offset in decided_offsets(self._record(OP_HALF_TOPIC, queue_id, op_offset)):
                if queue.settled <= offset < end:
                    queue.decided.setdefault(offset, op_offset)
        for offset in range(queue.settled, end):
            raw = self._record(HALF_TOPIC, queue_id, offset)
            half = HalfMessage.view(raw) if raw is not None and FIRST_OFFSET in raw else None
            if half is not None and half.first != offset:  # the copy replaces its source
                before = queue.copies.get(half.first, half.first)
                if before >= queue.settled:
                    queue.decided.setdefault(before, ops)
                queue.copies[half.first] = offset
        queue.copies = {first: last for first, last in queue.copies.items() if last not in queue.decided}
        while queue.settled in queue.decided:
            queue.advance()

    def _saved_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the group CID_RMQ_SYS_TRANS, limited to the queue's range."""
        first, end = self._store.get_min_offset(topic, queue_id), self._store.get_max_offset(topic, queue_id)
        saved = self._offsets.query_all(TRANSACTION_GROUP, topic).get(queue_id, -1)
        if saved > end:
            _log.warning("queue %d of %s ends at %d, not %d: truncated by recovery", queue_id, topic, end, saved)
        if 0 <= saved < first and topic == HALF_TOPIC:
            _log.warning("retention removed the unsettled half messages %d to %d", saved, first - 1)
        return min(max(saved, first), end)

    # --- sending ------------------------------------------------------------------------------------------------

    def prepare(self, properties: dict[str, str], topic: str, queue_id: int, now_ms: int) -> PendingPlace:
        """Make a message to ``topic`` a half message; return its place. Delays and delivery times are removed."""
        if self._config.reject_transaction_message:
            raise RefusedError(
                f"the broker[{self._host[0]}] sending transaction message is forbidden", ResponseCode.NO_PERMISSION
            )
        for name in _IGNORED_PROPERTIES:
            properties.pop(name, None)
        if unique_key := properties.get("UNIQ_KEY"):
            properties[_TRANSACTION_ID] = unique_key
        properties["REAL_TOPIC"] = topic
        properties["REAL_QID"] = str(queue_id)
        return PendingPlace(HALF_TOPIC, 0, now_ms + self._config.transaction_time_out + 1)

    # --- decisions ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of half messages that are not known to be decided."""
        ends = {queue_id: self._store.get_max_offset(HALF_TOPIC, queue_id) for queue_id in self._queues}
        return sum(max(ends[one.queue_id] - one.settled - len(one.decided), 0) for one in self._queues.values())

    def is_decided(self, half: HalfMessage) -> bool:
        """Whether a decision about it is cached. Old decisions are not: such a message would be decided again."""
        queue = self._queue(half.record.queue_id)
        return half.first in queue.recent or half.record.queue_offset in queue.decided

    def commit(self, half: HalfMessage) -> PutResult:
        """Store the message at its destination, then the decision. On failure the message remains undecided."""
        record = half.record
        try:
            topic, queue_id = half.real_place()
        except ValueError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        changes = {
            "sys_flag": half.sys_flag(TRANSACTION_COMMIT),
            "prepared_transaction_offset": record.physical_offset,
        }
        result = put_record(self._store, topic, queue_id, record, half.sent_properties(), **changes)
        if result.status is PutStatus.PUT_OK:
            decision = self.rollback(half)
            if decision.status is not PutStatus.PUT_OK:
                _log.error(
                    "committed half message %d, but failed to store the decision (%s): expect a duplicate",
                    record.queue_offset,
                    decision.reason,
                )
        return result

    def rollback(self, half: HalfMessage) -> PutResult:
        record = half.record
        queue = self._queue(record.queue_id)
        offsets = {record.queue_offset, queue.copies.get(half.first, record.queue_offset)}
        result = self._store.put_message(
            OP_HALF_TOPIC,
            queue.queue_id,
            op_body(offsets),
            OP_PROPERTIES,
            born_timestamp=self._store.store_timestamp,
            born_host=self._host,
        )
        if result.status is PutStatus.PUT_OK:
            for offset in offsets:
                if offset >= queue.settled:
                    queue.decided[offset] = result.queue_offset
            queue.copies.pop(half.first, None)
            queue.remember(half.first)
            queue.advance()
        return result

    def resume(self, raw: bytes | None) -> PutResult:
        """Restart the checks of an abandoned message. RefusedError for any other message."""
        given_up = given_up_half(raw)
        if given_up is None:
            raise RefusedError(
                "the message is not an abandoned half message",
                ResponseCode.SYSTEM_ERROR,
                remedy=f"Use the id of a message in {CHECK_MAX_TIME_TOPIC}.",
            )
        record, properties, first = given_up
        queue = self._queue(0)
        if first in queue.recent:
            raise RefusedError("The transaction was decided before", ResponseCode.SYSTEM_ERROR)
        sys_flag = record.sys_flag & ~TRANSACTION_MASK
        result = put_record(self._store, HALF_TOPIC, queue.queue_id, record, properties, sys_flag=sys_flag)
        if result.status is PutStatus.PUT_OK and first >= 0:
            queue.copies[first] = result.queue_offset
        return result

    # --- checks -------------------------------------------------------------------------------------------------

    def check(self, now_ms: int, budget: float) -> int | None:
        """Continue a round of checks, or start one if it is due, for about ``budget`` seconds.

        Returns when to call again: ``now_ms`` if the round is unfinished, None if no message is pending.
        """
        if self._round is None:
            if now_ms < self._next_round <= now_ms + self._config.transaction_check_interval:
                return self._next_round
            self._round = self._check_all(now_ms)
        deadline = monotonic() + budget
        try:
            for _ in self._round:
                if monotonic() >= deadline:
                    return now_ms
        except BaseException:
            self._round = None
            raise
        self._round = None
        return self._due

    def _check_all(self, now: int) -> Iterator[None]:
        """Run one round, one message per step; set ``_due`` to the time of the next round."""
        self._due = None
        self._next_round = now
        for queue in list(self._queues.values()):
            due = yield from self._check_queue(queue, now)
            if due is not None and (self._due is None or due < self._due):
                self._due = due
        if self._due is not None:
            self._due = max(self._due, self._next_round)

    def _check_queue(self, queue: _HalfQueue, now: int) -> Generator[None, None, int | None]:
        """Check the current messages of a queue up to the first that is too young."""
        store, queue_id = self._store, queue.queue_id
        end = store.get_max_offset(HALF_TOPIC, queue_id)
        first = store.get_min_offset(HALF_TOPIC, queue_id)
        if queue.settled < first:
            _log.warning("retention removed the unsettled half messages %d to %d", queue.settled, first - 1)
            queue.pass_over(first)
        while queue.settled < end:
            if queue.settled in queue.decided:
                queue.advance()
                yield
                continue
            offset = queue.settled
            half = HalfMessage.view(self._record(HALF_TOPIC, queue_id, offset))
            if half is None:
                _log.warning("skipped half message %d: unreadable record", offset)
            else:
                due = self._check_one(queue, half, now)
                if due is not None:
                    return due
            queue.pass_over(offset + 1)
            yield
        return self._next_round if queue.settled < store.get_max_offset(HALF_TOPIC, queue_id) else None

    def _check_one(self, queue: _HalfQueue, half: HalfMessage, now: int) -> int | None:
        """Check or abandon one message; return when to retry if that is not possible now."""
        record, config = half.record, self._config
        too_old = now - record.born_timestamp > config.store.file_reserved_time * _HOUR_MS
        if half.check_times >= config.transaction_check_max or too_old:
            return self._give_up(queue, half, now)
        since = record.born_timestamp if half.is_copy else record.store_timestamp
        timeout = config.transaction_time_out
        immunity = half.immunity_ms(timeout)
        immune = since <= now <= since + immunity
        if immune and now <= since + timeout:
            return since + min(immunity, timeout) + 1
        copy = self._put(HALF_TOPIC, queue.queue_id, half, half.copy_properties(checked=not immune))
        if copy.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return now + RETRY_MS
        if copy.status is not PutStatus.PUT_OK:
            _log.error("failed to copy half message %d: %s", record.queue_offset, copy.reason)
            return self._give_up(queue, half, now)
        queue.copies[half.first] = copy.queue_offset
        self._next_round = now + config.transaction_check_interval
        if not immune:
            self._ask(half, copy)
        return None

    def _give_up(self, queue: _HalfQueue, half: HalfMessage, now: int) -> int | None:
        """Move a message to TRANS_CHECK_MAX_TIME_TOPIC and stop its checks."""
        topic = self._topics.ensure(CHECK_MAX_TIME_TOPIC).topic_name
        result = self._put(topic, 0, half, half.properties)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return now + RETRY_MS
        _log.error(
            "abandoned the transaction of group %s at offset %d of the commit log after %d checks: %s",
            half.group,
            half.record.physical_offset,
            half.check_times,
            f"moved to {topic}" if result.status is PutStatus.PUT_OK else f"not moved ({result.reason})",
        )
        queue.copies.pop(half.first, None)
        return None

    def _put(self, topic: str, queue_id: int, half: HalfMessage, properties: bytes) -> PutResult:
        sys_flag = half.sys_flag(TRANSACTION_NONE)
        return put_record(self._store, topic, queue_id, half.record, properties, sys_flag=sys_flag)

    def _ask(self, half: HalfMessage, copy: PutResult) -> None:
        channel = self._channel(half)
        if channel is None:
            self._often.warning(
                half.group, "cannot check transactions of group %s: no producer is connected", half.group
            )
            return
        try:
            channel.write(half.check_request(copy))
        except (ValueError, ProtocolError) as error:
            _log.warning("failed to check half message %d: %s", half.record.queue_offset, error)

    def _channel(self, half: HalfMessage) -> Channel | None:
        """The next connection of the producer group, round-robin."""
        topic = str(find_property(half.properties, b"REAL_TOPIC") or b"", "utf-8", "replace")
        members = self._clients.producers.get(half.group)
        channels = [
            channel
            for channel in (members.channels() if members is not None else ())
            if channel.is_writable and (self._may_ask is None or self._may_ask(channel, topic))
        ]
        self._turn += 1
        return channels[self._turn % len(channels)] if channels else None

    # --- progress -----------------------------------------------------------------------------------------------

    def mark(self) -> TransactionMark | None:
        """The current progress for :meth:`confirm`; None if it is already saved."""
        progress = self._progress()
        return None if progress == self._saved else TransactionMark(progress, self._store.max_physical_offset)

    def confirm(self, mark: TransactionMark) -> None:
        """Commit the progress of a mark; call this when the log is on disk up to the mark."""
        self._saved = mark.progress
        for queue_id, (settled, done_ops) in mark.progress.items():
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, queue_id, settled, is_own=True)
            self._offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, queue_id, done_ops, is_own=True)

    def _progress(self) -> dict[int, tuple[int, int]]:
        return {
            queue_id: (queue.settled, queue.done_ops(self._store.get_max_offset(OP_HALF_TOPIC, queue_id)))
            for queue_id, queue in self._queues.items()
        }

    # --- helpers ------------------------------------------------------------------------------------------------

    def _queue(self, queue_id: int) -> _HalfQueue:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = _HalfQueue(queue_id)
        return queue

    def _record(self, topic: str, queue_id: int, offset: int) -> bytes | None:
        entries = self._store.get_entries(topic, queue_id, offset, 1)
        return self._store.look_message_by_offset(entries[0][0]) if entries else None
