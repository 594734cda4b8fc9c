"""Consuming in order: one thread a queue at a time, and only while the broker holds the queue's lock for this client.

A call that does not end in success has its messages given again after a pause, and everything behind them waits. Each
such round counts as a reconsumption; from ``max_reconsume_times`` on (by default never) a message goes to the retry
topic, from where the broker moves it to the dead letters, and the queue goes on.

Thread-safety: ``receive`` on reading threads, listeners on the service's own, under the queue's ``lock_consume``.
Corresponds to ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import logging
import threading
import time

from spark_rocket.client.consume.listeners import ConsumeOrderlyContext, ConsumeOrderlyStatus, OrderlyListener
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.client.consume.services import ConsumeService, FlowControl, ServiceParts
from spark_rocket.model import MessageExt

logger = logging.getLogger(__name__)

MAX_TURN_SECONDS = 60.0  # of one queue, when others wait
LOCK_AGAIN_SECONDS = 0.1


class ConsumeOrderly(ConsumeService[ProcessQueue]):
    """See the module. ``needs_locks``: whether queues must be locked, which broadcasting does not need."""

    statuses = (ConsumeOrderlyStatus,)
    successes = frozenset({ConsumeOrderlyStatus.SUCCESS})

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
