"""Transactions: what is decided, what is not, and the producers asked about it.

A transactional message waits in the half topic. END_TRANSACTION (37) decides it: a commit is stored where the message
was sent to, and then, as for a rollback, an op message says that this half message is settled. What nobody decided is
checked: in rounds at least ``transactionCheckInterval`` apart, each message that is older than ``transactionTimeOut``
(or than its own CHECK_IMMUNITY_TIME_IN_SECONDS) is put once more at the end of the half topic, counted, and a member of
its producer group is asked (39) about that copy. After ``transactionCheckMax`` times it goes to
TRANS_CHECK_MAX_TIME_TOPIC. A round is over when it comes to a message that is too young, or to the copies it made.

Per queue there are two numbers, kept as offsets of group CID_RMQ_SYS_TRANS: below the one, every half message is
settled (decided, copied or given up); below the other, every op message is about such. The ops from there on say which
of the others are decided.

Beyond Apache's broker a copy remembers the first of its kind (half_messages.py), so that a decision about any of them
settles the one that waits, and a kill in the middle of a round makes no two of them wait. The age of a message that no
check has copied yet counts from when it was stored, by the broker's own clock.

Thread-safety: used on the event loop only; it does not look at a clock or sleep (:meth:`check` is told the time).
After a crash: the two numbers are saved only when all they rest on is on disk (:meth:`mark`, :meth:`confirm`). A kill
between a commit's message and its op leaves the transaction undecided: the producer is asked, and the message may come
twice. None is lost, and what was rolled back is never delivered.
Corresponds to TransactionalMessageServiceImpl and TransactionalMessageCheckService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from spark_rocket.broker.delivery.delayed import TIMER_PROPERTIES, Waiting
from spark_rocket.broker.state.clients import ClientManager
from spark_rocket.broker.state.shared import SharedState
from spark_rocket.broker.transactions.half_messages import (
    CHECK_TIMES,
    FIRST_OFFSET,
    OP_PROPERTIES,
    Half,
    decided_offsets,
    given_up_half,
    op_body,
)
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.logs import RateLimited
from spark_rocket.model import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.delay.redelivery import RETRY_MS, put_record
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)

_REMEMBERED = 10_000
_HOUR_MS = 3_600_000
_TRANSACTION_ID = "__transactionId__"
_NOT_OF_A_HALF = ("DELAY", *TIMER_PROPERTIES, CHECK_TIMES.decode(), FIRST_OFFSET.decode())


class TransactionMark(NamedTuple):
    """The progress of a moment, and up to where the log must be on disk before it may be saved."""

    progress: dict[int, tuple[int, int]]
    physical_offset: int


@dataclass(slots=True)
class _HalfQueue:
    """What is known of one queue of the half topic."""

    queue_id: int
    settled: int = 0
    """Every half message below this offset is settled."""
    decided: dict[int, int] = field(default_factory=dict)
    """Half messages from ``settled`` on that are settled, and the offset of the op message that says so."""
    copies: dict[int, int] = field(default_factory=dict)
    """The last copy of a message that is not decided, by the offset of the first of its kind."""
    lately: dict[int, None] = field(default_factory=dict)
    """First offsets of messages decided lately: a second decision about one of them is refused."""

    def advance(self) -> None:
        while self.settled in self.decided:
            del self.decided[self.settled]
            self.settled += 1

    def pass_over(self, offset: int) -> None:
        """All below ``offset`` is settled."""
        if offset > self.settled + 1:
            self.decided = {half: op for half, op in self.decided.items() if half >= offset}
        self.settled = offset
        self.advance()

    def done_ops(self, end: int) -> int:
        """Every op message below this offset is about half messages that are settled. ``end``: of the op queue."""
        return min(self.decided.values(), default=end)

    def remember(self, first: int) -> None:
        self.lately[first] = None
        if len(self.lately) > _REMEMBERED:
            del self.lately[next(iter(self.lately))]


class TransactionalMessageService:
    """The transactions of one broker."""

    def __init__(self, shared: SharedState, clients: ClientManager) -> None:
        self._config = config = shared.config
        self._store = store = shared.store
        self._topics = shared.topics
        self._offsets = shared.offsets
        self._clients = clients
        self._host = shared.host
        #: Whether a connection may see a message to a topic that is not decided: who calls itself a producer of a
        #: group need not be one of those who sent it.
        self.may_ask: Callable[[Channel, str], bool] = lambda channel, topic: True
        self._queues: dict[int, _HalfQueue] = {}
        self._round: Iterator[None] | None = None
        self._next_round = shared.clock()
        self._due: int | None = None
        self._turn = 0
        self._often = RateLimited(_log, 60.0)
        for queue_id in {0, *store.queues(HALF_TOPIC)}:
            self._load(queue_id)
        self._saved = self._progress()
        if any(queue.settled < store.get_max_offset(HALF_TOPIC, queue.queue_id) for queue in self._queues.values()):
            self._next_round += config.transaction_check_interval  # producers must find their broker first

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
            half = Half.view(raw) if raw is not None and FIRST_OFFSET in raw else None
            if half is not None and half.first != offset:  # the copy counts, not what it was made of
                before = queue.copies.get(half.first, half.first)
                if before >= queue.settled:
                    queue.decided.setdefault(before, ops)
                queue.copies[half.first] = offset
        queue.copies = {first: last for first, last in queue.copies.items() if last not in queue.decided}
        queue.advance()

    def _saved_offset(self, topic: str, queue_id: int) -> int:
        """Where group CID_RMQ_SYS_TRANS is, brought inside the queue."""
        first, end = self._store.get_min_offset(topic, queue_id), self._store.get_max_offset(topic, queue_id)
        saved = self._offsets.query_all(TRANSACTION_GROUP, topic).get(queue_id, -1)
        if saved > end:
            _log.warning("Queue %d of %s ends at %d, not %d: it was cut by recovery.", queue_id, topic, end, saved)
        if 0 <= saved < first and topic == HALF_TOPIC:
            _log.warning("Half messages %d to %d were removed before they were settled.", saved, first - 1)
        return min(max(saved, first), end)

    # --- sending ------------------------------------------------------------------------------------------------

    def prepare(self, properties: dict[str, str], topic: str, queue_id: int, now_ms: int) -> Waiting:
        """Make a message to ``topic`` a half message, and say where it waits. Delays and times are left out of it."""
        if self._config.reject_transaction_message:
            raise RefusedError(
                f"the broker[{self._host[0]}] sending transaction message is forbidden", ResponseCode.NO_PERMISSION
            )
        for name in _NOT_OF_A_HALF:
            properties.pop(name, None)
        if unique_key := properties.get("UNIQ_KEY"):
            properties[_TRANSACTION_ID] = unique_key
        properties["REAL_TOPIC"] = topic
        properties["REAL_QID"] = str(queue_id)
        return Waiting(HALF_TOPIC, 0, now_ms + self._config.transaction_time_out + 1)

    # --- decisions ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Half messages that are not decided yet, as far as is known."""
        ends = {queue_id: self._store.get_max_offset(HALF_TOPIC, queue_id) for queue_id in self._queues}
        return sum(max(ends[one.queue_id] - one.settled - len(one.decided), 0) for one in self._queues.values())

    def is_decided(self, half: Half) -> bool:
        """Whether a decision about it is known. Of those settled long ago it is not: they would be decided anew."""
        queue = self._queue(half.record.queue_id)
        return half.first in queue.lately or half.record.queue_offset in queue.decided

    def commit(self, half: Half) -> PutResult:
        """Store the message where it was sent to, then the decision. A refusal means that nothing was decided."""
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
                    "Half message %d is committed, but this could not be noted (%s): its message may come twice.",
                    record.queue_offset,
                    decision.reason,
                )
        return result

    def rollback(self, half: Half) -> PutResult:
        """Store that it is settled, and nothing else."""
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
        """Have a message that was given up checked again, from the first time on. RefusedError for any other."""
        given_up = given_up_half(raw)
        if given_up is None:
            raise RefusedError(
                "there is no half message that was given up",
                ResponseCode.SYSTEM_ERROR,
                remedy=f"Give the id of a message in {CHECK_MAX_TIME_TOPIC}.",
            )
        record, properties, first = given_up
        queue = self._queue(0)
        if first in queue.lately:
            raise RefusedError("The transaction was decided before", ResponseCode.SYSTEM_ERROR)
        sys_flag = record.sys_flag & ~TRANSACTION_MASK
        result = put_record(self._store, HALF_TOPIC, queue.queue_id, record, properties, sys_flag=sys_flag)
        if result.status is PutStatus.PUT_OK and first >= 0:
            queue.copies[first] = result.queue_offset
        return result

    # --- checks -------------------------------------------------------------------------------------------------

    def check(self, now_ms: int, budget: float) -> int | None:
        """Go on with a round of checks, or begin one when it is time, for about ``budget`` seconds.

        Returns when to call again: ``now_ms`` if there is more to do at once, None if nothing waits.
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
        """One round, a message at a step; leaves in ``_due`` when the next one is due."""
        self._due = None
        self._next_round = now
        for queue in list(self._queues.values()):
            due = yield from self._check_queue(queue, now)
            if due is not None and (self._due is None or due < self._due):
                self._due = due
        if self._due is not None:
            self._due = max(self._due, self._next_round)

    def _check_queue(self, queue: _HalfQueue, now: int) -> Generator[None, None, int | None]:
        """The messages that are in the queue now, up to one that is too young."""
        store, queue_id = self._store, queue.queue_id
        end = store.get_max_offset(HALF_TOPIC, queue_id)
        first = store.get_min_offset(HALF_TOPIC, queue_id)
        if queue.settled < first:
            _log.warning("Half messages %d to %d were removed before they were settled.", queue.settled, first - 1)
            queue.pass_over(first)
        while queue.settled < end:
            offset = queue.settled
            half = Half.view(self._record(HALF_TOPIC, queue_id, offset))
            if half is None:
                _log.warning("Half message %d cannot be read: it is passed over.", offset)
            else:
                due = self._check_one(queue, half, now)
                if due is not None:
                    return due
            queue.pass_over(offset + 1)
            yield
        return self._next_round if queue.settled < store.get_max_offset(HALF_TOPIC, queue_id) else None

    def _check_one(self, queue: _HalfQueue, half: Half, now: int) -> int | None:
        """Ask for one message, or give it up; when to come back to it, if it cannot be done now."""
        record, config = half.record, self._config
        too_old = now - record.born_timestamp > config.file_reserved_time * _HOUR_MS
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
            _log.error("Half message %d cannot be copied: %s", record.queue_offset, copy.reason)
            return self._give_up(queue, half, now)
        queue.copies[half.first] = copy.queue_offset
        self._next_round = now + config.transaction_check_interval
        if not immune:
            self._ask(half, copy)
        return None

    def _give_up(self, queue: _HalfQueue, half: Half, now: int) -> int | None:
        """Put it where somebody may look at it; nobody is asked any more."""
        topic = self._topics.ensure(CHECK_MAX_TIME_TOPIC).topic_name
        result = self._put(topic, 0, half, half.properties)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return now + RETRY_MS
        _log.error(
            "Nobody has decided the transaction of group %s at offset %d of the commit log in %d checks: %s.",
            half.group,
            half.record.physical_offset,
            half.check_times,
            f"it is in {topic} now" if result.status is PutStatus.PUT_OK else f"it is left there ({result.reason})",
        )
        queue.copies.pop(half.first, None)
        return None

    def _put(self, topic: str, queue_id: int, half: Half, properties: bytes) -> PutResult:
        sys_flag = half.sys_flag(TRANSACTION_NONE)
        return put_record(self._store, topic, queue_id, half.record, properties, sys_flag=sys_flag)

    def _ask(self, half: Half, copy: PutResult) -> None:
        channel = self._channel(half)
        if channel is None:
            self._often.warning(
                half.group, "No producer of group %s is there to be asked about its transactions.", half.group
            )
            return
        try:
            channel.write(half.check_request(copy))
        except (ValueError, ProtocolError) as error:
            _log.warning("Nobody can be asked about half message %d: %s", half.record.queue_offset, error)

    def _channel(self, half: Half) -> Channel | None:
        """One of its group's connections, each in its turn."""
        topic = str(find_property(half.properties, b"REAL_TOPIC") or b"", "utf-8", "replace")
        members = self._clients.producers.get(half.group)
        channels = [
            channel
            for channel in (members.channels() if members is not None else ())
            if channel.is_writable and self.may_ask(channel, topic)
        ]
        self._turn += 1
        return channels[self._turn % len(channels)] if channels else None

    # --- progress -----------------------------------------------------------------------------------------------

    def mark(self) -> TransactionMark | None:
        """The present progress for :meth:`confirm`; None if it is saved already."""
        progress = self._progress()
        return None if progress == self._saved else TransactionMark(progress, self._store.max_physical_offset)

    def confirm(self, mark: TransactionMark) -> None:
        """The log is on disk up to the mark: its progress may be saved."""
        self._saved = mark.progress
        for queue_id, (settled, done_ops) in mark.progress.items():
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, queue_id, settled)
            self._offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, queue_id, done_ops)

    def _progress(self) -> dict[int, tuple[int, int]]:
        return {
            queue_id: (queue.settled, queue.done_ops(self._store.get_max_offset(OP_HALF_TOPIC, queue_id)))
            for queue_id, queue in self._queues.items()
        }

    # --- small things -------------------------------------------------------------------------------------------

    def _queue(self, queue_id: int) -> _HalfQueue:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = _HalfQueue(queue_id)
        return queue

    def _record(self, topic: str, queue_id: int, offset: int) -> bytes | None:
        entries = self._store.get_entries(topic, queue_id, offset, 1)
        return self._store.look_message_by_offset(entries[0][0]) if entries else None
