"""Ordered consumption: one thread per queue at a time, and only while the client holds the broker's lock of the queue.

After a failed call its messages are redelivered after a pause, and all later messages wait. Each such round counts as a
reconsumption. From ``max_reconsume_times`` on (default: never) a message goes to the retry topic, from which the broker
moves it to the dead letters, and the queue continues.

Arrow record batches are also consumed in queue order, but without locks: the result of one pull is one batch. No
message becomes a Python object. A queue is pulled ahead of its listener only while all queues together hold few bytes,
because decoded data takes several times the memory of pulled data. All decoding runs on a few fixed threads,
independent of the listener's threads: Arrow's allocator retains memory for every thread that has ever allocated some.

A batch that the listener did not consume is redelivered after a pause. After ``max_reconsume_times`` rounds its
messages are sent back to the broker one by one, to the retry topic or the dead letters.

Thread-safety: ``receive`` on reading threads, listeners on threads of the service, under the queue's ``lock_consume``.
Corresponds to ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_rocket.client.consume.listeners import (
    BatchListener,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    OrderlyListener,
)
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import WAITS_TEXT, PullResult, PullStatus
from spark_rocket.client.consume.services import ConsumeService, FlowControl, ServiceParts, put_messages
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.record.messages import UndecodableError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_TURN_SECONDS = 60.0  # per queue, while others are pending
LOCK_RETRY_SECONDS = 0.1


class ConsumeInOrder(ConsumeService[ProcessQueue, ConsumeOrderlyContext]):
    """Base class of the services that consume a queue on one thread at a time."""

    def __init__(
        self,
        listener: Callable[..., object],
        parts: ServiceParts,
        threads: int,
        max_reconsume_times: int,
        pause_ms: int,
    ) -> None:
        super().__init__(listener, parts, threads)
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._busy: set[ProcessQueue] = set()
        self._busy_lock = threading.Lock()

    def _context(self, queue: MessageQueue) -> ConsumeOrderlyContext:
        return ConsumeOrderlyContext(queue)

    def _consume_soon(self, process_queue: ProcessQueue) -> None:
        """Queue the queue for a thread, unless it already is."""
        with self._busy_lock:
            if process_queue in self._busy:
                return
            self._busy.add(process_queue)
        self._work.put(process_queue)

    def _consume(self, process_queue: ProcessQueue) -> None:
        try:
            pause = self._consume_queue(process_queue)
        except Exception:
            logger.exception("results of messages of %s lost; the messages are consumed again", process_queue.queue)
            process_queue.give_back()
            pause = self._pause_ms / 1000
        if process_queue.dropped:
            with self._busy_lock:
                self._busy.discard(process_queue)
            self._queues.released(process_queue)
        elif pause is not None:
            self._call_later(pause, lambda: self._work.put(process_queue))  # until then no thread works on the queue

    @abstractmethod
    def _consume_queue(self, process_queue: ProcessQueue) -> float | None:
        """Consume the pending messages; return the seconds until to continue, None if that is triggered elsewhere."""

    @abstractmethod
    def _has_pending(self, process_queue: ProcessQueue) -> bool:
        """Whether there are messages to consume."""

    def _rest(self, process_queue: ProcessQueue) -> None:
        """Leave a queue without messages until it receives some."""
        with self._busy_lock:
            self._busy.discard(process_queue)
        if self._has_pending(process_queue):  # added in the meantime
            self._consume_soon(process_queue)


class ConsumeOrderly(ConsumeInOrder):
    """Ordered consumption of messages. ``needs_locks``: whether queues must be locked; False for broadcasting."""

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
        super().__init__(listener, parts, threads, max_reconsume_times, pause_ms)
        self._batch_size = batch_size
        self._flow = flow
        self._needs_locks = needs_locks

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        _, damaged = put_messages(self._decoder, process_queue, found)
        self._consume_soon(process_queue)
        if damaged is not None:
            raise damaged

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return self._flow.is_full(process_queue)

    def _has_pending(self, process_queue: ProcessQueue) -> bool:
        return process_queue.count > 0

    def _consume_queue(self, process_queue: ProcessQueue) -> float | None:
        started = time.monotonic()
        while not process_queue.dropped and not self._closing:
            if self._needs_locks and (not process_queue.locked or process_queue.is_lock_expired()):
                self._lock_first(process_queue)
                return None
            if time.monotonic() - started > MAX_TURN_SECONDS:
                return 0.0
            with process_queue.lock_consume:
                if process_queue.dropped:
                    return None
                messages = process_queue.take(self._batch_size)
                if messages:
                    context = ConsumeOrderlyContext(process_queue.queue)
                    # A copy: the listener may modify its list and then fail.
                    done = self._call_counted(messages[:], messages, context)
                    if not done and self._must_wait(messages):
                        process_queue.give_back()
                        return context.pause(self._pause_ms)
                    process_queue.commit()
            if not messages:
                self._rest(process_queue)
                return None
            self._queues.has_room(process_queue)
        return None

    def _lock_first(self, process_queue: ProcessQueue) -> None:
        def lock() -> None:
            if process_queue.dropped or self._queues.lock(process_queue):
                self._work.put(process_queue)
            else:
                self._call_later(LOCK_RETRY_SECONDS * 10, lock)

        self._call_later(LOCK_RETRY_SECONDS, lock)

    def _must_wait(self, messages: list[MessageExt]) -> bool:
        """Count a failed round; return False if every message reached its limit and went to the retry topic."""
        waits = False
        for message in messages:
            last = message.reconsume_times >= self._max_reconsume_times
            if not last or self._send_back is None or not self._send_back.send_copy(message):
                message.reconsume_times += 1
                waits = True
        return waits


MAX_PENDING_PULLS = 2  # per queue, pending or at the listener
MAX_PENDING_BYTES = 16 << 20  # of all queues; above it each queue has at most one pull
DECODERS = 2


@dataclass(slots=True, eq=False)
class _BatchQueue:
    """The pending pulls of one queue. ``given_back``: number of messages of the first pull."""

    found: deque[PullResult] = field(default_factory=deque)
    size: int = 0
    rounds: int = 0
    given_back: int = 0


class ConsumeBatches(ConsumeInOrder):
    """Ordered consumption of Arrow record batches."""

    statuses = (ConsumeOrderlyStatus, ConsumeConcurrentlyStatus)
    successes = (ConsumeOrderlyStatus.SUCCESS, ConsumeConcurrentlyStatus.CONSUME_SUCCESS)

    def __init__(
        self, listener: BatchListener, parts: ServiceParts, *, threads: int, max_reconsume_times: int, pause_ms: int
    ) -> None:
        super().__init__(listener, parts, threads, max_reconsume_times, pause_ms)
        self._pending: dict[ProcessQueue, _BatchQueue] = {}
        self._lock = threading.Lock()
        self._decoding = ThreadPoolExecutor(DECODERS, thread_name_prefix="rocket-decode")

    def close(self, timeout: float) -> None:
        super().close(timeout)  # first stop the threads that wait for decoded batches
        self._decoding.shutdown(wait=False)

    def _has_pending(self, process_queue: ProcessQueue) -> bool:
        pending = self._pending.get(process_queue)
        return pending is not None and bool(pending.found)

    def is_full(self, process_queue: ProcessQueue) -> bool:
        with self._lock:
            if not self._has_pending(process_queue):
                return False
            held = sum(one.size for other, one in self._pending.items() if not other.dropped)
            return len(self._pending[process_queue].found) >= MAX_PENDING_PULLS or held >= MAX_PENDING_BYTES

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        with self._lock:
            for dropped in [other for other in self._pending if other.dropped]:
                del self._pending[dropped]
            pending = self._pending.setdefault(process_queue, _BatchQueue())
            if not pending.found and found.status is not PullStatus.FOUND:
                process_queue.put((), found.next_offset)
                return
            pending.found.append(found)  # empty results too: commits must not pass pending messages before them
            pending.size += len(found.records)
        self._consume_soon(process_queue)

    def _consume_queue(self, process_queue: ProcessQueue) -> float | None:
        while not process_queue.dropped and not self._closing:
            pending = self._pending.get(process_queue)
            if pending is None or not pending.found:
                self._rest(process_queue)
                return None
            found = pending.found[0]
            context = ConsumeOrderlyContext(process_queue.queue)
            damaged: UndecodableError | None = None
            try:
                done = all(
                    not len(batch) or self._call_counted(batch, [], context)
                    for batch in self._batches(process_queue, found)
                )
            except UndecodableError as error:
                done, damaged = True, error
            if process_queue.dropped:
                return None
            if not done:
                pending.rounds += 1
                if pending.rounds <= self._max_reconsume_times:
                    return context.pause(self._pause_ms)
                done, damaged = self._give_back(process_queue, pending, found)
                if not done:
                    return context.pause(self._pause_ms)
            pending.rounds = pending.given_back = 0
            if damaged is not None:
                process_queue.put((), damaged.queue_offset)  # the messages before it are consumed
                logger.error(WAITS_TEXT, process_queue.queue, damaged.message)
                return self._pause_ms / 1000
            with self._lock:
                pending.found.popleft()
                pending.size -= len(found.records)
            process_queue.put((), found.next_offset)  # everything before it may be committed
            process_queue.last_consume = time.monotonic()
            self._queues.has_room(process_queue)
        return None

    def _batches(self, process_queue: ProcessQueue, found: PullResult) -> Iterator[pa.RecordBatch]:
        batches = self._decoder.batches(process_queue, found) if found.status is PullStatus.FOUND else iter(())
        while (batch := self._decoding.submit(next, batches, None).result()) is not None:
            yield batch

    def _give_back(
        self, process_queue: ProcessQueue, pending: _BatchQueue, found: PullResult
    ) -> tuple[bool, UndecodableError | None]:
        """Send each message to the retry topic after the last round; in broadcasting, skip them.

        Returns whether all were sent, and the first message that cannot be decoded: only those before it are sent.
        """
        damaged: UndecodableError | None = None
        try:
            messages = self._decoder.messages(process_queue, found)
        except UndecodableError as error:
            messages, damaged = error.messages, error
        if self._send_back is None:
            logger.warning("skipped %d messages of %s: not consumed", len(messages), process_queue.queue)
            return True, damaged
        for message in messages[pending.given_back :]:
            if not self._send_back.send(message):
                return False, damaged
            pending.given_back += 1
        return True, damaged
