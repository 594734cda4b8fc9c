"""The queues that a pull consumer has now: taking them on, giving them up, moving in them, committing.

How far a queue is follows from what was handed out of it (``PulledMessages``). What is to be committed is marked first
and sent later, except by ``commit``, which waits. Commits follow each other, so that no later offset is overtaken by an
earlier one; the table's lock is never held while waiting for a server.

Queues take turns, each with what one pull found. It is decoded by who takes it, so that threads that read connections
have nothing to do.

Thread-safety: all methods; takers are served one after the other, and none waits longer than its timeout. Corresponds
to AssignedMessageQueue, and to the pull tasks and the consumeRequestCache of DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from spark_rocket.client.consume.allocation import QueueShare
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.process_queue import AFTER_ERROR, ProcessQueue, Puller, PullSettings
from spark_rocket.client.consume.pull import DEFAULT_MAX_MSGS, PullResult, PullStatus, batches_of, messages_of
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import ProtocolError, RemotingError, RocketError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import TagExpression

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Found:
    """One pull's answer; ``messages`` are those from ``start`` on, once somebody has decoded them."""

    __slots__ = ("count", "messages", "result", "start")

    def __init__(self, start: int, result: PullResult, count: int) -> None:
        self.start = start
        self.result = result
        self.count = count
        self.messages: deque[MessageExt] | None = None


class _Waiting:
    """What waits of one queue."""

    __slots__ = ("count", "found", "process_queue", "size")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.found: deque[_Found] = deque()
        self.count = 0
        self.size = 0


class PulledMessages:
    """See the module. ``tags_of`` says what a topic's messages are compared with again."""

    def __init__(
        self,
        *,
        pull_batch_size: int,
        max_messages: int,
        max_bytes: int,
        max_of_all: int,
        tags_of: Callable[[str], TagExpression],
        has_room: Callable[[ProcessQueue], None],
    ) -> None:
        self._pull_batch_size = pull_batch_size
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_of_all = max_of_all
        self._tags_of = tags_of
        self._has_room = has_room
        self._changed = threading.Condition()  # its lock is entered again
        self._taking = threading.Lock()
        self._waiting: dict[ProcessQueue, _Waiting] = {}  # in the order in which it is their turn
        self._count = 0
        self._closed = False
        self.wakers: set[Callable[[], None]] = set()
        """Called, quickly and from any thread, when there may be something to take."""

    # --- for pullers ------------------------------------------------------------------------------------------

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        with self._changed:
            if process_queue.dropped or self._closed:
                return
            start = process_queue.end
            process_queue.put((), found.next_offset)
            if found.status is not PullStatus.FOUND:
                return
            one = _Found(start, found, min(found.next_offset - start, self._pull_batch_size))
            waiting = self._waiting.setdefault(process_queue, _Waiting(process_queue))
            waiting.found.append(one)
            waiting.count += one.count
            waiting.size += len(found.records)
            self._count += one.count
        self.wake()

    def is_full(self, process_queue: ProcessQueue) -> bool:
        waiting = self._waiting.get(process_queue)
        if waiting is not None and (waiting.count > self._max_messages or waiting.size > self._max_bytes):
            return True
        return self._count > self._max_of_all and self._count - self._paused() > self._max_of_all

    def _paused(self) -> int:
        """What waits of queues that are paused: nobody takes it, and it must not keep others from being pulled."""
        return sum(waiting.count for waiting in list(self._waiting.values()) if waiting.process_queue.paused)

    # --- for the consumer -------------------------------------------------------------------------------------

    def position(self, process_queue: ProcessQueue) -> int:
        """The offset of the first message that nobody was given."""
        with self._changed:
            waiting = self._waiting.get(process_queue)
            return waiting.found[0].start if waiting is not None else process_queue.end

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Whether something of the queue waits."""
        return process_queue in self._waiting

    def forget(self, process_queue: ProcessQueue) -> int:
        """Nothing more of it, and nothing of what waits; the position that it is left at."""
        with self._changed:
            position = self.position(process_queue)
            process_queue.dropped = True
            waiting = self._waiting.pop(process_queue, None)
            if waiting is not None:
                self._count -= waiting.count
            return position

    def wake(self) -> None:
        """Let takers look again."""
        with self._changed:
            self._changed.notify_all()
        for wake in tuple(self.wakers):
            wake()

    def close(self) -> None:
        """Takers that wait get nothing; nothing more is received."""
        with self._changed:
            self._closed = True
        self.wake()

    # --- taking -----------------------------------------------------------------------------------------------

    def take_messages(self, timeout: float, limit: int | None = None) -> list[MessageExt]:
        """What one pull found, or the first ``limit`` of it; an empty list when nothing comes in time.

        ProtocolError for what cannot be decoded, again and again: it stays where it is, and others have to wait.
        """

        def first(process_queue: ProcessQueue, one: _Found) -> tuple[list[MessageExt], int | None]:
            if one.messages is None:
                queue = process_queue.queue
                one.messages = deque(messages_of(one.result, queue, one.start, self._tags_of(queue.topic)))
            if limit is None or len(one.messages) <= limit:
                return list(one.messages), None
            return [one.messages.popleft() for _ in range(limit)], one.messages[0].queue_offset

        return self._take(timeout, first)

    def take_batches(self, timeout: float) -> list[pa.RecordBatch]:
        """The same as Arrow record batches."""

        def every(process_queue: ProcessQueue, one: _Found) -> tuple[list[pa.RecordBatch], None]:
            queue = process_queue.queue
            return list(batches_of(one.result, queue, one.start, self._tags_of(queue.topic))), None

        return self._take(timeout, every)

    def _take(self, timeout: float, items_of: Callable[[ProcessQueue, _Found], tuple[list[T], int | None]]) -> list[T]:
        """``items_of`` gives what is handed out, and where the rest begins, if there is one."""
        deadline = time.monotonic() + timeout
        if not self._taking.acquire(timeout=timeout):
            return []
        try:
            while True:
                waiting = self._next(deadline)
                if waiting is None:
                    return []
                process_queue, one = waiting.process_queue, waiting.found[0]
                try:
                    items, rest = items_of(process_queue, one)
                except ProtocolError as error:
                    raise ProtocolError(
                        f"What was pulled from {process_queue.queue} at {one.start} cannot be decoded: {error.message}",
                        remedy=f"Seek to {one.result.next_offset}, behind it, or further; {error.remedy}".rstrip("; "),
                    ) from error
                with self._changed:
                    if self._waiting.get(process_queue) is not waiting:  # forgotten meanwhile: sought elsewhere, lost
                        continue
                    if rest is not None:
                        one.start = rest
                        return items
                    was_full = self.is_full(process_queue)
                    self._remove(waiting)
                if was_full and not self.is_full(process_queue):
                    self._has_room(process_queue)
                if items:
                    return items
        finally:
            self._taking.release()

    def _next(self, deadline: float) -> _Waiting | None:
        """Whose turn it is; None when nobody comes in time."""
        with self._changed:
            while not self._closed:
                for process_queue, waiting in self._waiting.items():
                    if not process_queue.paused:
                        return waiting
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return None
            return None

    def _remove(self, waiting: _Waiting) -> None:
        """Its first pull was handed out; the others come first now."""
        one = waiting.found.popleft()
        waiting.count -= one.count
        waiting.size -= len(one.result.records)
        self._count -= one.count
        del self._waiting[waiting.process_queue]
        if waiting.found:
            self._waiting[waiting.process_queue] = waiting


MAX_PULL_BYTES = 4 << 20  # brokers that know this field give more than 32 messages for it
CORRECT_AGAIN = 1.0


@dataclass(slots=True, eq=False)
class Assigned:
    """One queue. ``puller`` comes with the first offset, ``done`` is what is to be committed."""

    process_queue: ProcessQueue
    puller: Puller | None = None
    done: int | None = None


class AssignedQueues:
    """See the module. ``expression_of`` gives the tags and the SQL92 expression that a topic is pulled by."""

    def __init__(
        self,
        group: str,
        instance: Callable[[], ClientInstance],
        share: QueueShare,
        reader: Reader,
        offsets: OffsetStore,
        pulled: PulledMessages,
        *,
        pull_batch_size: int,
        expression_of: Callable[[str], tuple[str, str | None]],
    ) -> None:
        self._group = group
        self._instance = instance
        self._share = share
        self._reader = reader
        self._offsets = offsets
        self._pulled = pulled
        self._pull_batch_size = pull_batch_size
        self._expression_of = expression_of
        self._table: dict[MessageQueue, Assigned] = {}
        self._to_begin: dict[str, list[Assigned]] = {}  # by brokers, which have not answered
        self._lock = threading.RLock()
        self._committing = threading.RLock()
        self._closed = False

    # --- which ------------------------------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        with self._lock:
            return sorted(self._table)

    def get(self, queues: Iterable[MessageQueue]) -> list[Assigned]:
        """Those queues; StateError if one is not here."""
        found = []
        with self._lock:
            for queue in queues:
                one = self._table.get(queue)
                if one is None:
                    raise StateError(
                        f"{queue} is not assigned to this consumer.",
                        remedy="assignment() says which are; a rebalance may have given it to another member.",
                    )
                found.append(one)
        return found

    def own(self, mine: Iterable[MessageQueue], topic: str | None = None, *, mark: bool) -> None:
        """Have these queues, of one topic or of all, and no others.

        ``mark``: what was handed out of queues that are given up is committed, not only what is marked already.
        """
        wanted = dict.fromkeys(mine)
        with self._committing:
            with self._lock:
                if self._closed:
                    return
                lost = [queue for queue in self._table if topic in (None, queue.topic) and queue not in wanted]
                left = self._give_up(lost, mark=mark)
                begun = {queue: Assigned(ProcessQueue(queue, 0)) for queue in wanted if queue not in self._table}
                self._table.update(begun)
            self._offsets.persist(left)
        self._begin_each(begun.values())

    def close(self, *, mark: bool) -> None:
        """Give all of them up, for good."""
        with self._committing:
            with self._lock:
                self._closed = True
                left = self._give_up(list(self._table), mark=mark)
            self._offsets.persist(left)

    def _give_up(self, queues: Iterable[MessageQueue], *, mark: bool) -> dict[MessageQueue, int]:
        """What is to be committed of queues that are this consumer's no more. Lock held."""
        left = {}
        for queue in queues:
            one = self._table.pop(queue)
            position = self._pulled.forget(one.process_queue)
            if mark and one.puller is not None:
                one.done = position
            if one.done is not None:
                left[queue] = one.done
            logger.info("group %s gives up %s", self._group, queue)
        return left

    # --- pulling ----------------------------------------------------------------------------------------------

    def _begin_each(self, every: Iterable[Assigned]) -> None:
        """Of a broker that does not answer one queue is tried, for the others' queues wait."""
        silent: set[str] = set()
        for one in every:
            broker_name = one.process_queue.queue.broker_name
            if broker_name in silent:
                self._begin_later(one)
            elif not self._begin(one):
                silent.add(broker_name)

    def _begin_later(self, one: Assigned) -> None:
        broker_name = one.process_queue.queue.broker_name
        with self._lock:
            waiting = self._to_begin.setdefault(broker_name, [])
            waiting.append(one)
            if len(waiting) == 1:
                self._instance().call_later(AFTER_ERROR, lambda: self._begin_again(broker_name))

    def _begin_again(self, broker_name: str) -> None:
        """On a thread of its own: a broker that hangs must not keep the instance's chores waiting."""
        with self._lock:
            waiting = self._to_begin.pop(broker_name, [])
        threading.Thread(target=self._begin_each, args=(waiting,), name="rocket-begin", daemon=True).start()

    def _begin(self, one: Assigned, offset: int | None = None) -> bool:
        """Start pulling a queue; if the broker does not say where, in a while. False if the broker does not answer."""
        process_queue, queue = one.process_queue, one.process_queue.queue
        if self._closed or process_queue.dropped:
            return True
        if offset is None:
            try:
                offset = self._share.first_offset(queue)
            except RocketError as error:
                if not self._closed:
                    logger.warning("%s cannot be read yet: %s", queue, error)
                    self._begin_later(one)
                return not isinstance(error, RemotingError)
        with self._lock:
            if self._closed or self._table.get(queue) is not one:
                return True
            process_queue.put((), offset)
            one.puller = Puller(
                self._instance(),
                self._reader,
                self._pulled,
                process_queue,
                offset,
                lambda: self._pull_settings(queue.topic),
                is_paused=lambda: False,
                correct_offset=self._correct_offset,
            )
        logger.info("group %s reads %s from %d on", self._group, queue, offset)
        one.puller.pull()
        return True

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Pull on, elsewhere: it may have to connect first, and a poll must not wait for that."""
        with self._lock:
            one = self._table.get(process_queue.queue)
            if one is not None and one.puller is not None and not self._closed:
                self._instance().later(one.puller.has_room)

    def pull_anew(self, topic: str) -> None:
        """Other messages of a topic are wanted now: no poll that is held for the old ones is waited for."""
        with self._lock:
            pullers = [one.puller for queue, one in self._table.items() if queue.topic == topic]
        for puller in pullers:
            if puller is not None:
                puller.pull()

    def _pull_settings(self, topic: str) -> PullSettings:
        tags, sql = self._expression_of(topic)
        return PullSettings(
            max_msgs=self._pull_batch_size,
            max_bytes=MAX_PULL_BYTES if self._pull_batch_size > DEFAULT_MAX_MSGS else None,
            backlog_msgs=self._pull_batch_size,
            tags=tags,
            sql=sql,
            must_lock=False,
        )

    # --- moving -----------------------------------------------------------------------------------------------

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Go on there; what was pulled before is forgotten."""
        with self._lock:
            (one,) = self.get([queue])
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    def _replace(self, old: Assigned, offset: int) -> Assigned:
        """Begin anew with a queue, at another offset; ``_begin`` comes next. Lock held."""
        queue = old.process_queue.queue
        self._pulled.forget(old.process_queue)
        new = self._table[queue] = Assigned(ProcessQueue(queue, offset))
        new.process_queue.paused = old.process_queue.paused
        return new

    def _correct_offset(self, puller: Puller, offset: int) -> None:
        """The broker has nothing where this consumer is: go on where it says, when all before it is handed out."""
        queue = puller.process_queue.queue
        with self._lock:
            one = self._table.get(queue)
            if self._closed or one is None or one.puller is not puller:
                return
            if self._pulled.holds(puller.process_queue):
                self._instance().call_later(CORRECT_AGAIN, lambda: self._correct_offset(puller, offset))
                return
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    # --- committing -------------------------------------------------------------------------------------------

    def positions(self) -> dict[MessageQueue, int]:
        """How far each queue is: the first offset that nobody was given."""
        with self._lock:
            return {
                queue: self._pulled.position(one.process_queue)
                for queue, one in self._table.items()
                if one.puller is not None
            }

    def mark_done(self) -> None:
        """What was handed out so far is to be committed."""
        with self._lock:
            for queue, position in self.positions().items():
                self._table[queue].done = position

    def persist(self) -> None:
        """Send what is marked; what cannot be sent is logged and comes again."""
        with self._committing:
            with self._lock:
                done = {queue: one.done for queue, one in self._table.items() if one.done is not None}
            self._offsets.persist(done)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Send these, or all positions, now: all at once, under one time-out. Raises an error if one was not kept."""
        with self._committing:
            offsets = self.positions() if offsets is None else offsets
            failed = self._offsets.commit(offsets)
            with self._lock:
                for queue, offset in offsets.items():
                    one = self._table.get(queue)
                    if one is not None and queue not in failed:
                        one.done = offset
        for error in failed.values():
            raise error

    def committed(self, queue: MessageQueue) -> int | None:
        with self._committing:
            return self._offsets.read(queue)
