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

from spark_rocket.client.consume.flow_control import FlowControl
from spark_rocket.client.consume.hooks import Hooks
from spark_rocket.client.consume.listeners import (
    Complaints,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    OrderlyListener,
)
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.client.consume.send_back import SendBack
from spark_rocket.client.consume.threads import ConsumeThreads
from spark_rocket.model import MessageExt, MessageQueue

logger = logging.getLogger(__name__)

MAX_TURN_SECONDS = 60.0  # of one queue, when others wait
LOCK_AGAIN_SECONDS = 0.1


class ConsumeOrderly(ConsumeThreads[ProcessQueue]):
    """See the module. ``lock``: ask the broker for a queue's lock; None when broadcasting needs none."""

    def __init__(
        self,
        listener: OrderlyListener,
        *,
        threads: int,
        batch_size: int,
        flow: FlowControl,
        max_reconsume_times: int,
        pause_ms: int,
        decode: Callable[[ProcessQueue, PullResult], list[MessageExt]],
        lock: Callable[[ProcessQueue], bool] | None,
        send_back: SendBack | None,
        has_room: Callable[[ProcessQueue], None],
        released: Callable[[ProcessQueue], None],
        call_later: Callable[[float, Callable[[], None]], None],
        hooks: Hooks,
    ) -> None:
        super().__init__(threads)
        self._listener = listener
        self._batch_size = batch_size
        self.is_full = flow.is_full
        self._max_reconsume_times = max_reconsume_times
        self._pause_ms = pause_ms
        self._decode = decode
        self._lock = lock
        self._send_back = send_back
        self._has_room = has_room
        self._released = released
        self._call_later = call_later
        self._hooks = hooks
        self._complaints = Complaints()
        self._busy: set[ProcessQueue] = set()
        self._busy_lock = threading.Lock()

    # --- taking over --------------------------------------------------------------------------------------------

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
                pause = self._consume(process_queue)
            except Exception:
                logger.exception("the outcome of messages of %s was lost; they are consumed again", process_queue.queue)
                process_queue.give_back()
                pause = self._pause_ms / 1000
            if process_queue.dropped:
                with self._busy_lock:
                    self._busy.discard(process_queue)
                self._released(process_queue)
            elif pause is not None:
                self._consume_later(process_queue, pause)

    def _consume(self, process_queue: ProcessQueue) -> float | None:
        """Consume what is there; after how many seconds to go on, None if something else sees to that."""
        begun = time.monotonic()
        while not process_queue.dropped and not self._closing:
            if self._lock is not None and (not process_queue.locked or process_queue.is_lock_expired()):
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
                    called = time.monotonic()
                    done = self._call(messages, context)
                    consumed, failed = (len(messages), 0) if done else (0, len(messages))
                    spent = time.monotonic() - called
                    self._hooks.stats.consumed(process_queue.queue.topic, 1, consumed, failed, spent)
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
            self._has_room(process_queue)
        return None

    def _lock_first(self, process_queue: ProcessQueue) -> None:
        def lock() -> None:
            assert self._lock is not None
            if process_queue.dropped or self._lock(process_queue):
                self._work.put(process_queue)
            else:
                self._call_later(LOCK_AGAIN_SECONDS * 10, lock)

        self._call_later(LOCK_AGAIN_SECONDS, lock)

    def consume_directly(self, messages: list[MessageExt], queue: MessageQueue) -> object:
        """One call of the listener that counts for nothing: what it answers, or raises."""
        return self._listener(messages, ConsumeOrderlyContext(queue))

    def _call(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> bool:
        """Whether the listener consumed the messages."""
        around = self._hooks.before(messages, context.message_queue) if self._hooks.consume else None
        status: object = None
        try:
            status = self._listener(messages[:], context)  # it may empty its list, and fail then
        except BaseException as error:  # SystemExit too: the thread is the consumer's
            self._complaints.failed(error, len(messages), context.message_queue)
        else:
            if not isinstance(status, ConsumeOrderlyStatus):
                self._complaints.nonsense(status, "ConsumeOrderlyStatus", context.message_queue)
        done = status is ConsumeOrderlyStatus.SUCCESS
        if around is not None:
            self._hooks.after(around, success=done, status=getattr(status, "value", str(status)))
        return done

    def _must_wait(self, messages: list[MessageExt]) -> bool:
        """Count a round that failed; False if every message had its last and went to the retry topic."""
        waits = False
        for message in messages:
            last = message.reconsume_times >= self._max_reconsume_times
            if not last or self._send_back is None or not self._send_back.send_copy(message):
                message.reconsume_times += 1
                waits = True
        return waits
