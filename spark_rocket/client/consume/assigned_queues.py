"""The assigned queues of a pull consumer: assignment, release, seeking, commits.

The position of a queue follows from the messages that were returned to the application (``PulledMessages``). Positions
are marked for commit first and sent later, except by ``commit``, which waits. Commits are sequential, so that an older
offset never overwrites a newer one. The lock of the table is never held while waiting for a server.

Queues are returned in turn, each with the result of one pull. The polling thread decodes it, so that threads that read
connections are not delayed.

Thread-safety: all methods; concurrent polls are served one after the other, and none waits longer than its timeout.
Corresponds to AssignedMessageQueue, and to the pull tasks and the consumeRequestCache of DefaultLitePullConsumerImpl.
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
from spark_rocket.client.consume.process_queue import ERROR_DELAY_S, ProcessQueue, Puller, PullSettings
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
    """The response of one pull; ``messages`` are those from ``start`` on, decoded on first use."""

    __slots__ = ("count", "messages", "result", "start")

    def __init__(self, start: int, result: PullResult, count: int) -> None:
        self.start = start
        self.result = result
        self.count = count
        self.messages: deque[MessageExt] | None = None


class _PendingPulls:
    """The pending pulls of one queue."""

    __slots__ = ("count", "found", "process_queue", "size")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.found: deque[_Found] = deque()
        self.count = 0
        self.size = 0


class PulledMessages:
    """Pulled messages that were not returned yet. ``tags_of`` is the client-side tag filter of a topic."""

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
        self._changed = threading.Condition()  # with a reentrant lock
        self._take_lock = threading.Lock()
        self._pending: dict[ProcessQueue, _PendingPulls] = {}  # in the order of their turns
        self._count = 0
        self._closed = False
        self.wakers: set[Callable[[], None]] = set()
        """Called when messages may be available; they must not block, on any thread."""

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
            pending = self._pending.setdefault(process_queue, _PendingPulls(process_queue))
            pending.found.append(one)
            pending.count += one.count
            pending.size += len(found.records)
            self._count += one.count
        self.wake()

    def is_full(self, process_queue: ProcessQueue) -> bool:
        pending = self._pending.get(process_queue)
        if pending is not None and (pending.count > self._max_messages or pending.size > self._max_bytes):
            return True
        return self._count > self._max_of_all and self._count - self._paused() > self._max_of_all

    def _paused(self) -> int:
        """Return the number of pending messages of paused queues: they must not block pulls of other queues."""
        return sum(pending.count for pending in list(self._pending.values()) if pending.process_queue.paused)

    # --- for the consumer -------------------------------------------------------------------------------------

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the first message that was not returned yet."""
        with self._changed:
            pending = self._pending.get(process_queue)
            return pending.found[0].start if pending is not None else process_queue.end

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Whether pulls of the queue are pending."""
        return process_queue in self._pending

    def forget(self, process_queue: ProcessQueue) -> int:
        """Drop a queue and its pending messages; return its position."""
        with self._changed:
            position = self.position(process_queue)
            process_queue.dropped = True
            pending = self._pending.pop(process_queue, None)
            if pending is not None:
                self._count -= pending.count
            return position

    def wake(self) -> None:
        """Wake waiting polls."""
        with self._changed:
            self._changed.notify_all()
        for wake in tuple(self.wakers):
            wake()

    def close(self) -> None:
        """Reject new messages; waiting polls return an empty result."""
        with self._changed:
            self._closed = True
        self.wake()

    # --- taking -----------------------------------------------------------------------------------------------

    def take_messages(self, timeout: float, limit: int | None = None) -> list[MessageExt]:
        """Return the messages of one pull, or the first ``limit`` of them; an empty list on timeout.

        Raises ProtocolError for undecodable messages, on every call: the position does not move, and others wait.
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
        """Return the messages of one pull as Arrow record batches."""

        def every(process_queue: ProcessQueue, one: _Found) -> tuple[list[pa.RecordBatch], None]:
            queue = process_queue.queue
            return list(batches_of(one.result, queue, one.start, self._tags_of(queue.topic))), None

        return self._take(timeout, every)

    def _take(self, timeout: float, items_of: Callable[[ProcessQueue, _Found], tuple[list[T], int | None]]) -> list[T]:
        """Take a pull; ``items_of`` returns its items, and the offset of the rest if there is one."""
        deadline = time.monotonic() + timeout
        if not self._take_lock.acquire(timeout=timeout):
            return []
        try:
            while True:
                pending = self._next(deadline)
                if pending is None:
                    return []
                process_queue, one = pending.process_queue, pending.found[0]
                try:
                    items, rest = items_of(process_queue, one)
                except ProtocolError as error:
                    raise ProtocolError(
                        f"Cannot decode messages of {process_queue.queue} at offset {one.start}: {error.message}",
                        remedy=f"Seek to offset {one.result.next_offset} or later. {error.remedy}".rstrip(),
                    ) from error
                with self._changed:
                    if self._pending.get(process_queue) is not pending:  # dropped in the meantime: seek or rebalance
                        continue
                    if rest is not None:
                        one.start = rest
                        return items
                    was_full = self.is_full(process_queue)
                    self._remove(pending)
                if was_full and not self.is_full(process_queue):
                    self._has_room(process_queue)
                if items:
                    return items
        finally:
            self._take_lock.release()

    def _next(self, deadline: float) -> _PendingPulls | None:
        """Return the next queue in turn; None on timeout."""
        with self._changed:
            while not self._closed:
                for process_queue, pending in self._pending.items():
                    if not process_queue.paused:
                        return pending
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return None
            return None

    def _remove(self, pending: _PendingPulls) -> None:
        """Remove the first pull of a queue and move the queue to the end of the order."""
        one = pending.found.popleft()
        pending.count -= one.count
        pending.size -= len(one.result.records)
        self._count -= one.count
        del self._pending[pending.process_queue]
        if pending.found:
            self._pending[pending.process_queue] = pending


MAX_PULL_BYTES = 4 << 20  # brokers that support this field return more than 32 messages
CORRECT_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Assigned:
    """One assigned queue. ``puller`` is set with the first offset, ``done`` is the offset to commit."""

    process_queue: ProcessQueue
    puller: Puller | None = None
    done: int | None = None


class AssignedQueues:
    """The assigned queues of a consumer. ``expression_of`` returns the tags and the SQL92 expression of a topic."""

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
        self._to_begin: dict[str, list[Assigned]] = {}  # by broker: queues whose start offset is unknown
        self._lock = threading.RLock()
        self._committing = threading.RLock()
        self._closed = False

    # --- assignment -------------------------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        with self._lock:
            return sorted(self._table)

    def get(self, queues: Iterable[MessageQueue]) -> list[Assigned]:
        """Return those queues; StateError if one is not assigned."""
        found = []
        with self._lock:
            for queue in queues:
                one = self._table.get(queue)
                if one is None:
                    raise StateError(
                        f"{queue} is not assigned to this consumer.",
                        remedy="Check assignment(); a rebalance may have assigned it to another member.",
                    )
                found.append(one)
        return found

    def own(self, mine: Iterable[MessageQueue], topic: str | None = None, *, mark: bool) -> None:
        """Assign exactly these queues, of one topic or of all topics.

        ``mark``: commit the positions of released queues, not only offsets that are already marked.
        """
        wanted = dict.fromkeys(mine)
        with self._committing:
            with self._lock:
                if self._closed:
                    return
                released = [queue for queue in self._table if topic in (None, queue.topic) and queue not in wanted]
                offsets = self._release_topic(released, mark=mark)
                added = {queue: Assigned(ProcessQueue(queue, 0)) for queue in wanted if queue not in self._table}
                self._table.update(added)
            self._offsets.persist(offsets)
        self._begin_each(added.values())

    def close(self, *, mark: bool) -> None:
        """Release all queues permanently."""
        with self._committing:
            with self._lock:
                self._closed = True
                offsets = self._release_topic(list(self._table), mark=mark)
            self._offsets.persist(offsets)

    def _release_topic(self, queues: Iterable[MessageQueue], *, mark: bool) -> dict[MessageQueue, int]:
        """Release queues; return the offsets to commit. Lock held."""
        offsets = {}
        for queue in queues:
            one = self._table.pop(queue)
            position = self._pulled.forget(one.process_queue)
            if mark and one.puller is not None:
                one.done = position
            if one.done is not None:
                offsets[queue] = one.done
            logger.info("group %s released %s", self._group, queue)
        return offsets

    # --- pulling ----------------------------------------------------------------------------------------------

    def _begin_each(self, every: Iterable[Assigned]) -> None:
        """Start pulling queues; of a broker that does not respond only one is tried, so that others are not delayed."""
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
            pending = self._to_begin.setdefault(broker_name, [])
            pending.append(one)
            if len(pending) == 1:
                self._instance().call_later(ERROR_DELAY_S, lambda: self._begin_again(broker_name))

    def _begin_again(self, broker_name: str) -> None:
        """Retry on a separate thread: a hanging broker must not block the instance's tasks."""
        with self._lock:
            pending = self._to_begin.pop(broker_name, [])
        threading.Thread(target=self._begin_each, args=(pending,), name="rocket-begin", daemon=True).start()

    def _begin(self, one: Assigned, offset: int | None = None) -> bool:
        """Start pulling a queue, later if its start offset is unknown. Return False if the broker is unavailable."""
        process_queue, queue = one.process_queue, one.process_queue.queue
        if self._closed or process_queue.dropped:
            return True
        if offset is None:
            try:
                offset = self._share.first_offset(queue)
            except RocketError as error:
                if not self._closed:
                    logger.warning("start offset of %s not available yet: %s", queue, error)
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
        logger.info("group %s started reading %s at offset %d", self._group, queue, offset)
        one.puller.pull()
        return True

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Continue pulling on another thread: it may have to connect first, which must not delay a poll."""
        with self._lock:
            one = self._table.get(process_queue.queue)
            if one is not None and one.puller is not None and not self._closed:
                self._instance().later(one.puller.has_room)

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic after a change of its filter, without waiting for long polls in flight."""
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

    # --- seeking ----------------------------------------------------------------------------------------------

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset; drop the pulled messages."""
        with self._lock:
            (one,) = self.get([queue])
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    def _replace(self, old: Assigned, offset: int) -> Assigned:
        """Replace a queue to start at another offset; call ``_begin`` next. Lock held."""
        queue = old.process_queue.queue
        self._pulled.forget(old.process_queue)
        new = self._table[queue] = Assigned(ProcessQueue(queue, offset))
        new.process_queue.paused = old.process_queue.paused
        return new

    def _correct_offset(self, puller: Puller, offset: int) -> None:
        """Continue at the broker's offset after an invalid one, when all earlier messages were returned."""
        queue = puller.process_queue.queue
        with self._lock:
            one = self._table.get(queue)
            if self._closed or one is None or one.puller is not puller:
                return
            if self._pulled.holds(puller.process_queue):
                self._instance().call_later(CORRECT_RETRY_SECONDS, lambda: self._correct_offset(puller, offset))
                return
            moved = self._replace(one, offset)
        self._begin(moved, offset)

    # --- committing -------------------------------------------------------------------------------------------

    def positions(self) -> dict[MessageQueue, int]:
        """Return the positions of the queues: the first offset that was not returned yet."""
        with self._lock:
            return {
                queue: self._pulled.position(one.process_queue)
                for queue, one in self._table.items()
                if one.puller is not None
            }

    def mark_done(self) -> None:
        """Mark all current positions for commit."""
        with self._lock:
            for queue, position in self.positions().items():
                self._table[queue].done = position

    def persist(self) -> None:
        """Commit the marked offsets; failures are logged and retried with the next call."""
        with self._committing:
            with self._lock:
                done = {queue: one.done for queue, one in self._table.items() if one.done is not None}
            self._offsets.persist(done)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or all positions, and wait: in parallel, with one timeout. Raises the first error."""
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
