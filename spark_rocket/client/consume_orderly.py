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
from collections.abc import Callable
from queue import SimpleQueue

from spark_rocket.client.listeners import ConsumeOrderlyContext, ConsumeOrderlyStatus, OrderlyListener
from spark_rocket.client.process_queue import ProcessQueue
from spark_rocket.client.reader import PullResult
from spark_rocket.client.send_back import SendBack
from spark_rocket.model import MessageExt

logger = logging.getLogger(__name__)

MAX_TURN_SECONDS = 60.0  # of one queue, when others wait
LOCK_AGAIN_SECONDS = 0.1
SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS = 10, 30_000


class ConsumeOrderly:
    """See the module. ``lock``: ask the broker for a queue's lock; None when broadcasting needs none."""

    def __init__(
        self,
        listener: OrderlyListener,
        *,
        threads: int,
        batch_size: int,
        max_messages: int,
        max_bytes: int,
        max_reconsume_times: int,
        pause_ms: int,
        decode: Callable[[ProcessQueue, PullResult], list[MessageExt]],
        lock: Callable[[ProcessQueue], bool] | None,
        send_back: SendBack | None,
        has_room: Callable[[ProcessQueue], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._listener = listener
        self._batch_size = batch_size
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._decode = decode
        self._lock = lock
        self._send_back = send_back
        self._has_room = has_room
        self._call_later = call_later
        self._work: SimpleQueue[ProcessQueue | None] = SimpleQueue()
        self._busy: set[ProcessQueue] = set()
        self._busy_lock = threading.Lock()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._consume_forever, name=f"rocket-consume-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        self._closing = True
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- taking over --------------------------------------------------------------------------------------------

    def is_full(self, process_queue: ProcessQueue) -> bool:
        return process_queue.count > self._max_messages or process_queue.size > self._max_bytes

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        process_queue.put(self._decode(process_queue, found), found.next_offset)
        self._consume_soon(process_queue)

    def _consume_soon(self, process_queue: ProcessQueue) -> None:
        """Have a thread look at the queue, unless one does already."""
        with self._busy_lock:
            if process_queue in self._busy:
                return
            self._busy.add(process_queue)
        self._work.put(process_queue)

    def _consume_later(self, process_queue: ProcessQueue, seconds: float) -> None:
        """As ``_consume_soon``, by the thread that has the queue now, after a pause in which nobody has it."""
        self._call_later(seconds, lambda: self._work.put(process_queue))

    # --- consuming ----------------------------------------------------------------------------------------------

    def _consume_forever(self) -> None:
        while True:
            process_queue = self._work.get()
            if process_queue is None or self._closing:
                return
            try:
                self._consume(process_queue)
            except Exception:
                logger.exception("the outcome of messages of %s was lost; they are consumed again", process_queue.queue)
                process_queue.give_back()
                self._consume_later(process_queue, self._pause_ms / 1000)

    def _consume(self, process_queue: ProcessQueue) -> None:
        begun = time.monotonic()
        while not process_queue.dropped and not self._closing:
            if self._lock is not None and (not process_queue.locked or process_queue.is_lock_expired()):
                self._lock_first(process_queue)
                return
            if time.monotonic() - begun > MAX_TURN_SECONDS:
                self._work.put(process_queue)
                return
            messages = process_queue.take(self._batch_size)
            if not messages:
                with self._busy_lock:
                    self._busy.discard(process_queue)
                if process_queue.count:  # put in between
                    self._consume_soon(process_queue)
                return
            context = ConsumeOrderlyContext(process_queue.queue)
            with process_queue.lock_consume:
                if process_queue.dropped:
                    break
                done = self.call(messages, context)
            if done or not self._must_wait(messages):
                process_queue.commit()
                self._has_room(process_queue)
                continue
            process_queue.give_back()
            pause = context.suspend_current_queue_time_millis
            pause = max(SHORTEST_PAUSE_MS, min(self._pause_ms if pause < 0 else pause, LONGEST_PAUSE_MS))
            self._consume_later(process_queue, pause / 1000)
            return
        with self._busy_lock:
            self._busy.discard(process_queue)

    def _lock_first(self, process_queue: ProcessQueue) -> None:
        def lock() -> None:
            assert self._lock is not None
            if process_queue.dropped or self._lock(process_queue):
                self._work.put(process_queue)
            else:
                self._call_later(LOCK_AGAIN_SECONDS * 10, lock)

        self._call_later(LOCK_AGAIN_SECONDS, lock)

    def call(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> bool:
        """Whether the listener consumed the messages."""
        try:
            status = self._listener(messages, context)
        except Exception:
            logger.exception("the listener failed on %d messages of %s", len(messages), context.message_queue)
            return False
        if status not in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT):
            logger.warning(
                "the listener answered %r for messages of %s: that is no ConsumeOrderlyStatus, they are given again",
                status,
                context.message_queue,
            )
        return status is ConsumeOrderlyStatus.SUCCESS

    def _must_wait(self, messages: list[MessageExt]) -> bool:
        """Count a round that failed; False if every message had its last and went to the retry topic."""
        waits = False
        for message in messages:
            last = message.reconsume_times >= self._max_reconsume_times
            if not last or self._send_back is None or not self._send_back.send_copy(message):
                message.reconsume_times += 1
                waits = True
        return waits
