"""Consuming in order: one thread a queue at a time, and only while the broker holds the queue's lock for this client.

A call that does not end in success has its messages given again after a pause, and everything behind them waits. Each
such round counts as a reconsumption; from ``max_reconsume_times`` on (by default never) a message goes to the retry
topic, from where the broker moves it to the dead letters, and the queue goes on.

Arrow record batches are consumed in their queue's order, too, without locks: what one pull found is one batch.

No message becomes a Python object. A queue is pulled ahead of its listener only while all queues together hold little:
what waits takes memory, decoded several times as much. All is decoded on the same few threads, whichever threads the
listener is called on: Arrow's allocator keeps memory for every thread that has ever asked it for some.

A batch that the listener does not consume is given again after a pause; after ``max_reconsume_times`` rounds its
messages go back to the broker one by one, to the retry topic or the dead letters.

Thread-safety: ``receive`` on reading threads, listeners on the service's own, under the queue's ``lock_consume``.
Corresponds to ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from spark_rocket.client.consume.listeners import (
    BatchListener,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    OrderlyListener,
)
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.services import ConsumeService, FlowControl, ServiceParts
from spark_rocket.model import MessageExt, MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_TURN_SECONDS = 60.0  # of one queue, when others wait
LOCK_AGAIN_SECONDS = 0.1


class ConsumeOrderly(ConsumeService[ProcessQueue, ConsumeOrderlyContext]):
    """See the module. ``needs_locks``: whether queues must be locked, which broadcasting does not need."""

    statuses = (ConsumeOrderlyStatus,)
    successes = (ConsumeOrderlyStatus.SUCCESS,)

    def __init__(
        self,
        listener: OrderlyListener,
        parts: ServiceParts,
        *,
        threads: int,
        batch_size: int,
        flow: FlowControl,
        max_reconsume_times: int,
        pause_ms: int,
        needs_locks: bool,
    ) -> None:
        super().__init__(listener, parts, threads)
        self._batch_size = batch_size
        self._flow = flow
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._needs_locks = needs_locks
        self._busy: set[ProcessQueue] = set()
        self._busy_lock = threading.Lock()

    # --- taking over --------------------------------------------------------------------------------------------

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        process_queue.put(self._decoder.messages(process_queue, found), found.next_offset)
        self._consume_soon(process_queue)

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return self._flow.is_full(process_queue)

    def _consume_soon(self, process_queue: ProcessQueue) -> None:
        """Have a thread look at the queue, unless one does already."""
        with self._busy_lock:
            if process_queue in self._busy:
                return
            self._busy.add(process_queue)
        self._work.put(process_queue)

    def _context(self, queue: MessageQueue) -> ConsumeOrderlyContext:
        return ConsumeOrderlyContext(queue)

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume(self, process_queue: ProcessQueue) -> None:
        try:
            pause = self._consume_queue(process_queue)
        except Exception:
            logger.exception("the outcome of messages of %s was lost; they are consumed again", process_queue.queue)
            process_queue.give_back()
            pause = self._pause_ms / 1000
        if process_queue.dropped:
            with self._busy_lock:
                self._busy.discard(process_queue)
            self._queues.released(process_queue)
        elif pause is not None:
            self._call_later(pause, lambda: self._work.put(process_queue))  # until then no thread has the queue

    def _consume_queue(self, process_queue: ProcessQueue) -> float | None:
        """Consume what is there; after how many seconds to go on, None if something else sees to that."""
        begun = time.monotonic()
        while not process_queue.dropped and not self._closing:
            if self._needs_locks and (not process_queue.locked or process_queue.is_lock_expired()):
                self._lock_first(process_queue)
                return None
            if time.monotonic() - begun > MAX_TURN_SECONDS:
                return 0.0
            with process_queue.lock_consume:
                if process_queue.dropped:
                    return None
                messages = process_queue.take(self._batch_size)
                if messages:
                    context = ConsumeOrderlyContext(process_queue.queue)
                    # A copy: the listener may empty its list, and fail then.
                    done = self._call_counted(messages[:], messages, context)
                    if not done and self._must_wait(messages):
                        process_queue.give_back()
                        return context.pause(self._pause_ms)
                    process_queue.commit()
            if not messages:
                with self._busy_lock:
                    self._busy.discard(process_queue)
                if process_queue.count:  # put in between
                    self._consume_soon(process_queue)
                return None
            self._queues.has_room(process_queue)
        return None

    def _lock_first(self, process_queue: ProcessQueue) -> None:
        def lock() -> None:
            if process_queue.dropped or self._queues.lock(process_queue):
                self._work.put(process_queue)
            else:
                self._call_later(LOCK_AGAIN_SECONDS * 10, lock)

        self._call_later(LOCK_AGAIN_SECONDS, lock)

    def _must_wait(self, messages: list[MessageExt]) -> bool:
        """Count a round that failed; False if every message had its last and went to the retry topic."""
        waits = False
        for message in messages:
            last = message.reconsume_times >= self._max_reconsume_times
            if not last or self._send_back is None or not self._send_back.send_copy(message):
                message.reconsume_times += 1
                waits = True
        return waits


PENDING = 2  # pulls of one queue that wait for the listener, or are with it
HELD_BYTES = 16 << 20  # of all queues; while they hold more, each has one pull
DECODERS = 2


class _Queue:
    """What waits of one queue."""

    __slots__ = ("busy", "found", "given_back", "process_queue", "rounds", "size")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.found: deque[PullResult] = deque()
        self.size = 0
        self.busy = False
        self.rounds = 0
        self.given_back = 0  # of the first of ``found``


class ConsumeBatches(ConsumeService[_Queue, ConsumeOrderlyContext]):
    """See the module."""

    statuses = (ConsumeOrderlyStatus, ConsumeConcurrentlyStatus)
    successes = (ConsumeOrderlyStatus.SUCCESS, ConsumeConcurrentlyStatus.CONSUME_SUCCESS)

    def __init__(
        self, listener: BatchListener, parts: ServiceParts, *, threads: int, max_reconsume_times: int, pause_ms: int
    ) -> None:
        super().__init__(listener, parts, threads)
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._waiting: dict[ProcessQueue, _Queue] = {}
        self._lock = threading.Lock()
        self._decoding = ThreadPoolExecutor(DECODERS, thread_name_prefix="rocket-decode")

    def close(self, timeout: float) -> None:
        super().close(timeout)  # first the threads that wait for decoded batches
        self._decoding.shutdown(wait=False)

    def is_full(self, process_queue: ProcessQueue) -> bool:
        with self._lock:
            waiting = self._waiting.get(process_queue)
            if waiting is None or not waiting.found:
                return False
            held = sum(one.size for other, one in self._waiting.items() if not other.dropped)
            return len(waiting.found) >= PENDING or held >= HELD_BYTES

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        with self._lock:
            for gone in [other for other in self._waiting if other.dropped]:
                del self._waiting[gone]
            waiting = self._waiting.setdefault(process_queue, _Queue(process_queue))
            if not waiting.found and found.status is not PullStatus.FOUND:
                process_queue.put((), found.next_offset)
                return
            waiting.found.append(found)  # nothing found has its turn too: commits must not pass what is before it
            waiting.size += len(found.records)
            if waiting.busy:
                return
            waiting.busy = True
        self._work.put(waiting)

    def _context(self, queue: MessageQueue) -> ConsumeOrderlyContext:
        return ConsumeOrderlyContext(queue)

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume(self, waiting: _Queue) -> None:
        try:
            again = self._consume_queue(waiting)
        except Exception:
            logger.exception("messages of %s could not be consumed", waiting.process_queue.queue)
            again = self._pause_ms / 1000
        if again is not None:
            self._call_later(again, lambda: self._work.put(waiting))

    def _consume_queue(self, waiting: _Queue) -> float | None:
        """Consume what waits of a queue; after how many seconds to try again what was not consumed."""
        process_queue = waiting.process_queue
        while not process_queue.dropped and not self._closing:
            with self._lock:
                if not waiting.found:
                    waiting.busy = False
                    return None
                found = waiting.found[0]
            context = ConsumeOrderlyContext(process_queue.queue)
            done = all(
                not len(batch) or self._call_counted(batch, [], context)
                for batch in self._batches(process_queue, found)
            )
            if process_queue.dropped:
                return None
            if not done:
                waiting.rounds += 1
                if waiting.rounds <= self._max_reconsume_times or not self._give_back(waiting, found):
                    return context.pause(self._pause_ms)
            waiting.rounds = waiting.given_back = 0
            with self._lock:
                waiting.found.popleft()
                waiting.size -= len(found.records)
            process_queue.put((), found.next_offset)  # what is behind it may be committed
            process_queue.last_consume = time.monotonic()
            self._queues.has_room(process_queue)
        return None

    def _batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        batches = self._decoder.batches(process_queue, found) if found.status is PullStatus.FOUND else iter(())
        while (batch := self._decoding.submit(next, batches, None).result()) is not None:
            yield batch

    def _give_back(self, waiting: _Queue, found: PullResult) -> bool:
        """The last resort: each message to the retry topic, or, broadcasting, nowhere."""
        messages = self._decoder.messages(waiting.process_queue, found)
        if self._send_back is None:
            queue = waiting.process_queue.queue
            logger.warning("%d messages of %s were not consumed and are left", len(messages), queue)
            return True
        for message in messages[waiting.given_back :]:
            if not self._send_back.send(message):
                return False
            waiting.given_back += 1
        return True
