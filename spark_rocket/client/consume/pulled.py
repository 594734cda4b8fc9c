"""What a pull consumer has pulled and not handed out yet: filled by pullers, emptied by polls.

Queues take turns, each with what one pull found. It is decoded by who takes it, so that threads that read connections
have nothing to do. How far a queue is follows from what waits here: its first message, or the end of its last pull.

Thread-safety: all methods; takers are served one after the other, and none waits longer than it wants to.
Corresponds to the consumeRequestCache of DefaultLitePullConsumerImpl and to AssignedMessageQueue.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus, batches_of, messages_of
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageExt
from spark_rocket.protocol.filter.tags import TagExpression

if TYPE_CHECKING:
    import pyarrow as pa

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

    async def each_async(
        self, is_over: Callable[[], bool], before_each: Callable[[], None], idle_seconds: Callable[[], float]
    ) -> AsyncIterator[MessageExt]:
        """Message by message; neither waiting nor taking blocks the event loop, and cancelling loses nothing."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ready.set)

        self.wakers.add(wake)
        try:
            while not is_over():
                ready.clear()
                before_each()
                messages = self.take_messages(0, limit=1)
                if messages:
                    yield messages[0]
                    await asyncio.sleep(0)  # others have their turn, however many messages there are
                elif not is_over():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(ready.wait(), idle_seconds())
        finally:
            self.wakers.discard(wake)

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
