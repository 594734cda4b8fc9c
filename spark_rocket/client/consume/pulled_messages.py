"""The pulled messages of a lite pull consumer that were not returned to the application yet.

Queues are returned in turn, each with the result of one pull. The polling thread decodes it, so that threads that read
connections are not delayed. The position of a queue follows from what was returned.

Thread-safety: all methods; concurrent polls are served one after the other, and none waits longer than its timeout.
Corresponds to the consumeRequestCache of DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus, batches_of, messages_of
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageExt
from spark_rocket.protocol.filter.tags import TagExpression
from spark_rocket.protocol.record.messages import UndecodableError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _UnreturnedPull:
    """The response of one pull. ``start``: the next offset. ``messages``: decoded on first use; some are before it."""

    start: int
    result: PullResult
    count: int
    messages: list[MessageExt] | None = None
    damaged: UndecodableError | None = None  # the message after them


@dataclass(slots=True, eq=False)
class _PulledQueue:
    """The pending pulls of one queue."""

    process_queue: ProcessQueue
    found: deque[_UnreturnedPull] = field(default_factory=deque)
    count: int = 0
    size: int = 0


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
        lock: AbstractContextManager[object],
    ) -> None:
        self._pull_batch_size = pull_batch_size
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_of_all = max_of_all
        self._tags_of = tags_of
        self._has_room = has_room
        self._lock = lock
        self._take_lock = threading.RLock()
        self._waiting: deque[Callable[[None], object]] = deque()  # polls
        self._pending: dict[ProcessQueue, _PulledQueue] = {}  # in the order of their turns
        self._count = 0
        self._closed = False
        self.wakers: set[Callable[[], None]] = set()
        """Called when messages may be available; they must not block, on any thread."""

    # --- for pullers ------------------------------------------------------------------------------------------

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        with self._lock:
            if process_queue.dropped or self._closed:
                return
            start = process_queue.end
            process_queue.put((), found.next_offset)
            if found.status is not PullStatus.FOUND:
                return
            one = _UnreturnedPull(start, found, min(found.next_offset - start, self._pull_batch_size))
            pending = self._pending.setdefault(process_queue, _PulledQueue(process_queue))
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
        with self._lock:
            pending = self._pending.get(process_queue)
            return pending.found[0].start if pending is not None and pending.found else process_queue.end

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Whether pulls of the queue are pending."""
        return process_queue in self._pending

    def forget(self, process_queue: ProcessQueue) -> None:
        """Drop a queue and its pending messages."""
        with self._lock:
            process_queue.dropped = True
            self._pending.pop(process_queue, None)
            self._count = sum(each.count for each in self._pending.values())

    def wake(self) -> None:
        for _ in range(len(self._waiting)):
            with suppress(IndexError):  # another thread woke it
                self._waiting.popleft()(None)
        for wake in tuple(self.wakers):
            wake()

    def close(self) -> None:
        """Reject new messages; waiting polls return an empty result."""
        with self._lock:
            self._closed = True
        self.wake()

    # --- taking -----------------------------------------------------------------------------------------------

    def take_messages(self, timeout: float, limit: int | None = None) -> list[MessageExt]:
        """Return the messages of one pull, or the first ``limit`` of them; an empty list on timeout.

        Raises ProtocolError for undecodable messages, on every call: the position does not move, and others wait.
        The messages before it are returned first.
        """

        def first(process_queue: ProcessQueue, one: _UnreturnedPull) -> tuple[list[MessageExt], int | None]:
            if one.messages is None:
                queue = process_queue.queue
                try:
                    one.messages = messages_of(one.result, queue, one.start, self._tags_of(queue.topic))
                except UndecodableError as error:
                    one.messages, one.damaged = error.messages, error
            begin = bisect_left(one.messages, one.start, key=attrgetter("queue_offset"))
            if one.damaged is not None and begin == len(one.messages):
                raise one.damaged.with_traceback(None)
            end = len(one.messages) if limit is None else begin + limit
            rest = None if one.damaged is None else one.damaged.queue_offset
            if end < len(one.messages):
                rest = one.messages[end].queue_offset
            return one.messages[begin:end], rest

        return self._take(timeout, first)

    def take_batches(self, timeout: float) -> list[pa.RecordBatch]:
        """Return the messages of one pull as Arrow record batches; errors as of ``take_messages``."""

        def every(process_queue: ProcessQueue, one: _UnreturnedPull) -> tuple[list[pa.RecordBatch], int | None]:
            queue = process_queue.queue
            batches: list[pa.RecordBatch] = []
            try:
                batches += batches_of(one.result, queue, one.start, self._tags_of(queue.topic))
            except UndecodableError as error:
                one.damaged = error
                if not batches:
                    raise
                return batches, error.queue_offset
            return batches, None

        return self._take(timeout, every)

    def _take(
        self, timeout: float, items_of: Callable[[ProcessQueue, _UnreturnedPull], tuple[list[T], int | None]]
    ) -> list[T]:
        """Take a pull; ``items_of`` returns its items, and the offset of the rest if there is one."""
        undo: list[Callable[[], object]] = []
        try:
            return self._take_first(timeout, items_of, undo)
        except BaseException:  # an interrupt: the caller does not get the items
            for step in undo:
                step()
            raise

    def _take_first(
        self,
        timeout: float,
        items_of: Callable[[ProcessQueue, _UnreturnedPull], tuple[list[T], int | None]],
        undo: list[Callable[[], object]],
    ) -> list[T]:
        """``undo`` gets what to call if the items do not reach the caller."""
        deadline = time.monotonic() + timeout
        try:
            if not self._take_lock.acquire(timeout=timeout):
                return []
            while True:
                pending = self._next(deadline)
                if pending is None:
                    return []
                process_queue, one = pending.process_queue, pending.found[0]
                try:
                    items, rest = items_of(process_queue, one)
                except ProtocolError as error:
                    after = one.result.next_offset
                    if one.damaged is not None:  # an inner batch may begin before the position
                        after = max(one.start, one.damaged.queue_offset) + 1
                    raise ProtocolError(
                        f"Cannot decode messages of {process_queue.queue} at offset {one.start}: {error.message}",
                        remedy=f"Seek to offset {after} or later. {error.remedy}".rstrip(),
                    ) from error
                with self._lock:
                    if (
                        self._pending.get(process_queue) is not pending
                        or not pending.found
                        or pending.found[0] is not one
                    ):
                        continue  # dropped in the meantime by a seek or rebalance, or taken by a signal handler
                    undo[:] = [partial(self._give_back, pending, one, one.start)]
                    if rest is not None:
                        one.start = rest
                        return items
                    was_full = self.is_full(process_queue)
                    self._remove(pending)
                if was_full and not self.is_full(process_queue):
                    self._has_room(process_queue)
                if items:
                    return items
                undo.clear()
        finally:
            with suppress(RuntimeError):  # not acquired
                self._take_lock.release()

    def _give_back(self, pending: _PulledQueue, one: _UnreturnedPull, start: int) -> None:
        """Count a pull as not returned from an offset on."""
        with self._lock:
            one.start = start
            pending = self._pending.get(pending.process_queue, pending)  # it may have received others in the meantime
            if all(each is not one for each in pending.found):
                pending.found.appendleft(one)
            self._restore(pending)

    def _next(self, deadline: float) -> _PulledQueue | None:
        """Return the next queue in turn; None on timeout, or when it is closed."""
        pending = self._in_turn()
        while pending is None and not self._closed and (left := deadline - time.monotonic()) > 0:
            woken: SimpleQueue[None] = SimpleQueue()
            self._waiting.append(woken.put)  # before the next look
            try:
                pending = self._in_turn()
                if pending is None and not self._closed:
                    woken.get(True, left)  # without a lock, which an interrupt could leave acquired
                    pending = self._in_turn()
            except Empty:
                return None
            finally:
                with suppress(ValueError):  # woken
                    self._waiting.remove(woken.put)
        return pending

    def _in_turn(self) -> _PulledQueue | None:
        with self._lock:
            if self._closed:
                return None
            first = next(iter(self._pending.values()), None)  # usually it; a copy costs more with many queues
            if first is None or (first.found and not first.process_queue.paused):
                return first
            every = list(self._pending.values())  # a signal handler may change it
            return next((one for one in every if one.found and not one.process_queue.paused), None)

    def _remove(self, pending: _PulledQueue) -> None:
        """Remove the first pull of a queue and move the queue to the end of the order."""
        try:
            one = pending.found.popleft()
            pending.count -= one.count
            pending.size -= len(one.result.records)
            self._count -= one.count
            self._pending.pop(pending.process_queue, None)  # missing if a signal handler has closed the consumer
            if pending.found and not pending.process_queue.dropped:
                self._pending[pending.process_queue] = pending
        except BaseException:  # an interrupt between the lines
            self._restore(pending)
            raise

    def _restore(self, pending: _PulledQueue) -> None:
        """Count again what is pending, also of a queue that was about to move to the end of the order."""
        if pending.found and not pending.process_queue.dropped:
            self._pending[pending.process_queue] = pending
        elif self._pending.get(pending.process_queue) is pending:
            del self._pending[pending.process_queue]
        pending.count = sum(one.count for one in pending.found)
        pending.size = sum(len(one.result.records) for one in pending.found)
        self._count = sum(each.count for each in self._pending.values())
